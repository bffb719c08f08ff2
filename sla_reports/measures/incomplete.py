"""A summary of samples some of which are known to be missing: what a server answered in part, and says so.

The share that was seen may be right, but nobody knows what the rest would have said: a group may be missing altogether. So
nothing is met. A breach that was seen stays one.
"""

from collections.abc import Sequence
from dataclasses import replace

from sla_reports.measures.availability import Verdict
from sla_reports.measures.summary import GroupFigures, Summary


def as_incomplete(summary: Summary, lacks: Sequence[str]) -> Summary:
    """The summary, marked with what is missing; as it is where that is nothing."""
    if not lacks:
        return summary
    clusters = tuple(
        replace(
            one, write_verdict=_doubted(one.write_verdict), ordered_write_verdict=_doubted(one.ordered_write_verdict)
        )
        for one in summary.clusters
    )
    return replace(summary, groups=tuple(map(_group, summary.groups)), clusters=clusters, incomplete=tuple(lacks))


def _group(figures: GroupFigures) -> GroupFigures:
    own = None if figures.own is None else replace(figures.own, verdict=_doubted(figures.own.verdict))
    return replace(figures, verdict=_doubted(figures.verdict), own=own)


def _doubted(verdict: Verdict) -> Verdict:
    return Verdict.UNDECIDABLE if verdict is Verdict.MET else verdict
