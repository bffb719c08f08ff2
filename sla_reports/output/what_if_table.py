"""What other setups would have come to, as a table: each against the replay of the setup that was observed."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

from metric_names import SYNC_STATE_SET_SIZE
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


def measured_down_ms(report: WrittenReport) -> int:
    """The down time of all groups that the report tells."""
    return sum(one["write"]["downMs"] for one in report.summary["groups"])


def _calibrated(observed: Outcome, others: Sequence[Outcome], measured_ms: int) -> tuple[Outcome, list[Outcome]]:
    """With the down time that the model leaves out added to each: the observed setup is then told as it was measured."""
    left_out_ms = measured_ms - observed.down_ms
    first, *rest = (replace(one, down_ms=max(0, one.down_ms + left_out_ms)) for one in (observed, *others))
    return first, rest


def as_table(observed: Outcome, others: Sequence[Outcome], measured_ms: int) -> str:
    """For a person: the observed one first, as it was measured (`measured_ms`), and what the model does not tell."""
    first, rest = _calibrated(observed, others, measured_ms)
    rows = [_HEAD, _row(first, first, "observed: ")]
    rows += [_row(one, first) for one in rest]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEAD))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([*lines, *_notes(observed, others, measured_ms)])


def _notes(observed: Outcome, others: Sequence[Outcome], measured_ms: int) -> Iterator[str]:
    left_out_ms = measured_ms - observed.down_ms
    yield f"observed down time: {duration(measured_ms)}; the same setup replayed: {duration(observed.down_ms)}"
    if left_out_ms > 0:
        yield (
            f"The model leaves out {duration(left_out_ms)}: planned switchovers, outages without a log, and waiting that"
            " another setup might not have. It is added to every line as it is, for what it would be elsewhere is not known."
        )
    elif left_out_ms:
        yield f"The model tells {duration(-left_out_ms)} more than was observed. That is taken off every line."
    for one in others:
        if one.setup != observed.setup and (one.down_ms, one.one_copy_ms) == (observed.down_ms, observed.one_copy_ms):
            yield (
                f"{setup_words(one.setup)}: as {setup_words(observed.setup)}, for no two of its members were away at once;"
                " the model knows only failures that were seen, and another number of replicas would have had others."
            )


def as_document(observed: Outcome, others: Sequence[Outcome], measured_ms: int) -> dict[str, Any]:
    """For a program. Down times are calibrated; what was replayed and what the model leaves out stand beside."""
    first, rest = _calibrated(observed, others, measured_ms)
    return {
        "observed": _document(first),
        "replayedDownMs": observed.down_ms,
        "leftOutMs": measured_ms - observed.down_ms,
        "others": [{**_document(one), "change": _change(one, first)} for one in rest],
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
