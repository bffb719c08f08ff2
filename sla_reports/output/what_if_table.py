"""What other setups would have come to, as a table: each against the replay of the setup that was observed."""

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

from controller_core.metric_names import SYNC_STATE_SET_SIZE
from sla_reports.output.html.elements import duration, percent
from sla_reports.output.written import WrittenReport
from sla_reports.states.entities import Fleet
from sla_reports.what_if import Outcome, Setup, losses_among, replay

_HEAD = ("setup", "availability", "change", "down", "change", "one copy", "nobody to elect", "pods and disks")


def setups_of(
    replicas: Sequence[int], min_in_sync: Sequence[int], zones: Sequence[int], timeouts_ms: Sequence[int | None]
) -> list[Setup]:
    """Every combination that a group can have. Raises ValueError where there is none."""
    combinations = product(replicas, min_in_sync, zones, timeouts_ms)
    found = [Setup(*one[:2], zones=one[2], silence_timeout_ms=one[3]) for one in combinations if one[1] <= one[0]]
    if not found:
        raise ValueError(f"min_in_sync {min(min_in_sync)}: expected 1 to replicas ({max(replicas)})")
    return found


def replicas_seen(fleet: Fleet) -> int | None:
    """The greatest SyncStateSet that was seen; None where nobody saw one."""
    values = [
        run.value
        for group in fleet.groups(SYNC_STATE_SET_SIZE)
        for entry in fleet.series_of(SYNC_STATE_SET_SIZE, group)
        for run in entry.runs
        if run.value is not None
    ]
    return round(max(values)) if values else None


def outcomes_of(
    report: WrittenReport, fleet: Fleet, observed: Setup, others: Sequence[Setup]
) -> tuple[Outcome, list[Outcome]]:
    """The replay of what was there, and of the others."""
    losses = losses_among(
        report.incidents, report.window, fleet, SYNC_STATE_SET_SIZE, replicas=observed.replicas
    )  # fmt: skip
    return replay(losses, report.window, observed), [replay(losses, report.window, one) for one in others]


def as_table(observed: Outcome, others: Sequence[Outcome]) -> str:
    """For a person: the observed one first."""
    rows = [_HEAD, _row(observed, observed, "observed: ")]
    rows += [_row(one, observed) for one in others]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEAD))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def as_document(observed: Outcome, others: Sequence[Outcome]) -> dict[str, Any]:
    """For a program."""
    return {"observed": _document(observed), "others": [_document(one) for one in others]}


def setup_words(setup: Setup) -> str:
    """A setup in a few words."""
    timeout = "" if setup.silence_timeout_ms is None else f", silence timeout {duration(setup.silence_timeout_ms)}"
    return f"{setup.replicas} replicas, minInSync {setup.min_in_sync}, {setup.zones} zones{timeout}"


def _row(one: Outcome, observed: Outcome, name: str = "") -> tuple[str, ...]:
    points = (one.availability - observed.availability) * 100
    more_ms = one.down_ms - observed.down_ms
    return (
        name + setup_words(one.setup), percent(one.availability), "" if name else f"{points:+.4f}",
        duration(one.down_ms), "" if name else f"{'+' if more_ms > 0 else ''}{duration(more_ms)}",
        duration(one.one_copy_ms), str(one.stranded), str(one.cost),
    )  # fmt: skip


def _document(one: Outcome) -> Mapping[str, Any]:
    return {
        "replicas": one.setup.replicas, "minInSync": one.setup.min_in_sync, "zones": one.setup.zones,
        "silenceTimeoutMs": one.setup.silence_timeout_ms, "availability": round(one.availability, 9),
        "downMs": one.down_ms, "oneCopyMs": one.one_copy_ms, "stranded": one.stranded, "cost": one.cost,
    }  # fmt: skip
