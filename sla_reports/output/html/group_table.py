"""A row for each group and cluster, with a small picture of its downtime day by day. Two tables, so that each fits 1280 pixels."""

from sla_reports.measures.existence_notes import existed_words
from sla_reports.measures.periods import days_of
from sla_reports.measures.reliability import Estimate
from sla_reports.measures.summary import GroupFigures, Summary
from sla_reports.output.html.burn_down import counted_downs
from sla_reports.output.html.elements import Markup, duration, join, minutes, percent, picture, section, table, tag
from sla_reports.states.spans import Window, clip

VERDICT_SHAPES = {"met": "✔ met", "breached": "✖ breached", "undecidable": "? undecidable"}
_WIDTH, _HEIGHT = 124.0, 24.0
_MOST_BARS = 62
_TIMES_HEAD = (
    "group", "verdict; objective", "availability", "worst to best case", "coverage", "down", "disputed", "planned", "by",
    "may be off by",
)  # fmt: skip
_INCIDENTS_HEAD = ("group", "incidents", "RTO p50 / p95", "MTTR", "MTBF", "budget left", "down by day")


def group_table(summary: Summary, time_zone: str) -> Markup:
    """All groups in order of name, then the clusters they are in."""
    days = _bins(summary.agreement.window, time_zone)
    times = table(_TIMES_HEAD, [_times(figures) for figures in summary.groups])
    incidents = table(_INCIDENTS_HEAD, [_incidents(figures, days) for figures in summary.groups])
    clusters = [
        [
            f"{one.namespace}/{one.cluster}", str(one.groups), percent(one.write.availability),
            VERDICT_SHAPES[one.write_verdict.value], percent(one.ordered_write.availability),
            VERDICT_SHAPES[one.ordered_write_verdict.value],
        ]
        for one in summary.clusters
    ]  # fmt: skip
    head = ["cluster", "groups", "write: one group takes writes", "verdict", "ordered write: all do", "verdict"]
    note = (
        "Intervals in brackets: 95 %. Bars: downtime of a day, the tallest is the group's worst. Verdict and budget left are over"
        " the objective's window, all else is over the report's period."
    )
    return section("groups", "Groups", tag("p", note, class_="soft"), times, incidents, table(head, clusters))


def _bins(window: Window, time_zone: str) -> list[Window]:
    """Days; several together where there are too many for a small picture."""
    days = days_of(window, time_zone)
    together = -(-len(days) // _MOST_BARS)
    return [Window(days[n].start_ms, days[n : n + together][-1].end_ms) for n in range(0, len(days), together)]


def _times(figures: GroupFigures) -> list[str]:
    told = figures.availability
    planned_ms = sum(one.down_ms for one in figures.outages if one.incident.planned)
    return [
        _name(figures), _verdict(figures), percent(told.availability),
        f"{percent(told.worst)} to {percent(told.best)}", percent(told.coverage), duration(told.down_ms),
        duration(told.disputed_ms), duration(planned_ms), told.source.value, duration(told.error_ms),
    ]  # fmt: skip


def _name(figures: GroupFigures) -> str:
    """With the time for which it existed, where that is not all of the period."""
    if not figures.existence.absent:
        return str(figures.group)
    return f"{figures.group}, {existed_words(figures.existence, figures.window)}"


def _incidents(figures: GroupFigures, days: list[Window]) -> list[str]:
    rto = figures.recovery.total
    return [
        str(figures.group), str(len(figures.incidents)),
        f"{duration(rto.p50_ms)} / {duration(rto.p95_ms)}", _estimate(figures.mttr), _estimate(figures.mtbf),
        minutes(figures.judged.budget.left_ms), _sparkline(figures, days),
    ]  # fmt: skip


def _verdict(figures: GroupFigures) -> str:
    return f"{VERDICT_SHAPES[figures.verdict.value]}; {percent(figures.objective)} over {figures.judged_over}"


def _estimate(one: Estimate) -> str:
    if one.n == 0 and one.low_ms is None:
        return "-"
    return f"{duration(one.mean_ms)} [{duration(one.low_ms)}, {duration(one.high_ms)}]"


def _sparkline(figures: GroupFigures, days: list[Window]) -> Markup:
    downs = counted_downs(figures)
    spent_ms = [sum(piece.length_ms for piece in clip(downs, day)) for day in days]
    worst_ms, wide = max(spent_ms), _WIDTH / len(days)
    bars = [
        tag("rect", class_="down", x=number * wide, y=_HEIGHT - 1 - height, width=max(1.0, wide - 0.6), height=height)
        for number, one_ms in enumerate(spent_ms)
        if one_ms and (height := max(1.5, one_ms / worst_ms * (_HEIGHT - 2)))
    ]
    base = tag("line", class_="axis", x1=0, x2=_WIDTH, y1=_HEIGHT - 0.5, y2=_HEIGHT - 0.5)
    title = (
        f"{figures.group}: down on {sum(1 for one in spent_ms if one)} of {len(days)} bars, worst {duration(worst_ms)}"
    )
    return picture(title, base, join(bars), width=_WIDTH, height=_HEIGHT)
