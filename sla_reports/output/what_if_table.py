"""What other setups would have come to, as a table: each against the replay of the setup that was observed."""

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

from controller_core.metric_names import SYNC_STATE_SET_SIZE
from sla_reports.output.html.elements import duration, percent
from sla_reports.output.written import WrittenReport
from sla_reports.states.entities import Fleet
from sla_reports.what_if import Outcome, Setup, losses_among, replay

_HEAD = (
    "setup", "availability", "change", "down", "change", "one copy", "change", "nobody to elect", "pods and disks", "change",
)  # fmt: skip
# The operator's profiles (`spec.durability`): how many must have a message, and whether the master waits for them.
DURABILITIES: Mapping[str, tuple[int, bool]] = {"Strict": (2, False), "Available": (1, False), "Fast": (1, True)}


def durabilities_of(names: Sequence[str], min_in_sync: Sequence[int]) -> list[tuple[int, bool]]:
    """Profiles by name, or numbers of members that must have a message; `Available` where nothing is said. Raises ValueError."""
    if names and min_in_sync:
        raise ValueError("durability: names minInSync already; expected one of the two")
    if unknown := [name for name in names if name not in DURABILITIES]:
        raise ValueError(f"durability: {unknown[0]!r}; expected one of {', '.join(DURABILITIES)}")
    return [DURABILITIES[name] for name in names] or [(number, False) for number in min_in_sync or [1]]


def setups_of(
    replicas: Sequence[int],
    durabilities: Sequence[tuple[int, bool]],
    zones: Sequence[int],
    timeouts_ms: Sequence[int | None],
) -> list[Setup]:
    """Every combination that a group can have. Raises ValueError where there is none."""
    found = [
        Setup(count, minimum, zones=spread, silence_timeout_ms=timeout_ms, master_alone=alone)
        for count, (minimum, alone), spread, timeout_ms in product(replicas, durabilities, zones, timeouts_ms)
        if minimum <= count
    ]
    if not found:
        least = min(minimum for minimum, _ in durabilities)
        raise ValueError(f"min_in_sync {least}: expected 1 to replicas ({max(replicas)})")
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
    return {
        "observed": _document(observed),
        "others": [{**_document(one), "change": _change(one, observed)} for one in others],
    }


def setup_words(setup: Setup) -> str:
    """A setup in a few words."""
    timeout = "" if setup.silence_timeout_ms is None else f", silence timeout {duration(setup.silence_timeout_ms)}"
    alone = ", acknowledged by the master alone" if setup.master_alone else ""
    return f"{setup.replicas} replicas, minInSync {setup.min_in_sync}{alone}, {setup.zones} zones{timeout}"


def _row(one: Outcome, observed: Outcome, name: str = "") -> tuple[str, ...]:
    points = (one.availability - observed.availability) * 100
    changes = [
        f"{points:+.4f}", _more(one.down_ms - observed.down_ms), _more(one.one_copy_ms - observed.one_copy_ms),
        f"{one.cost - observed.cost:+d}",
    ]  # fmt: skip
    of_availability, of_down, of_one_copy, of_cost = ["" for _ in changes] if name else changes
    return (
        name + setup_words(one.setup), percent(one.availability), of_availability, duration(one.down_ms), of_down,
        duration(one.one_copy_ms), of_one_copy, str(one.stranded), str(one.cost), of_cost,
    )  # fmt: skip


def _more(change_ms: int) -> str:
    return f"{'+' if change_ms > 0 else ''}{duration(change_ms)}"


def _change(one: Outcome, observed: Outcome) -> Mapping[str, Any]:
    return {
        "availability": round(one.availability - observed.availability, 9), "downMs": one.down_ms - observed.down_ms,
        "oneCopyMs": one.one_copy_ms - observed.one_copy_ms, "cost": one.cost - observed.cost,
    }  # fmt: skip


def _document(one: Outcome) -> Mapping[str, Any]:
    return {
        "replicas": one.setup.replicas, "minInSync": one.setup.min_in_sync, "zones": one.setup.zones,
        "masterAlone": one.setup.master_alone, "silenceTimeoutMs": one.setup.silence_timeout_ms,
        "availability": round(one.availability, 9),
        "downMs": one.down_ms, "oneCopyMs": one.one_copy_ms, "stranded": one.stranded, "cost": one.cost,
    }  # fmt: skip
