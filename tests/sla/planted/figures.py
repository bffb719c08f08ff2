"""A report's figures against the planted month: every incident to the millisecond, every group's time to the millisecond."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sla_reports.states.incidents import Source

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sla_reports.measures.summary import GroupFigures, Summary
    from tests.sla.planted.month import Planted, PlantedIncident

# What the operator can tell without circumstances; oom, disk and a node's partition need theirs.
_CAUSES_OF_LOG = {"oom": "crash", "partition": "unknown", "disk": "unknown"}


def incidents_found(summary: Summary) -> int:
    """How many the report tells of."""
    return sum(len(figures.incidents) for figures in summary.groups)


def mismatches(planted: Planted, summary: Summary, *, with_circumstances: bool = True) -> list[str]:
    """What the report tells otherwise than it was planted; empty is what is wanted."""
    told = {figures.group.broker_group: figures for figures in summary.groups}
    wrong = []
    for group in sorted({one.group for one in planted.incidents} | set(told)):
        ours = [one for one in planted.incidents if one.group == group]
        if group not in told:
            wrong.append(f"{group}: not in the report")
            continue
        wrong += [f"{group}: {text}" for text in _of_group(planted, ours, told[group], with_circumstances)]
    return wrong


def _of_group(
    planted: Planted, ours: list[PlantedIncident], figures: GroupFigures, with_circumstances: bool
) -> Iterable[str]:
    want: list[tuple[Any, ...]] = sorted(
        (
            one.fault_ms,
            one.in_sync_ms,
            one.is_planned,
            one.cause if with_circumstances or one.cut_off else _CAUSES_OF_LOG.get(one.cause, one.cause),
        )
        for one in ours
    )
    found = sorted((one.start_ms, one.end_ms or 0, one.planned, one.cause) for one in figures.incidents)
    yield from (f"planted and not told: {one}" for one in want if one not in found)
    yield from (f"told and not planted: {one}" for one in found if one not in want)
    yield from (f"not from the log: {one.id}" for one in figures.incidents if one.source is not Source.LOG)
    down_ms = sum(one.in_sync_ms - one.fault_ms for one in ours)
    if figures.availability.down_ms != down_ms:
        yield f"down {figures.availability.down_ms} ms, planted {down_ms} ms"
    by_node = {node: told.down_ms for node, told in figures.by_place["node"].items() if told.down_ms}
    planted_by_node: dict[str, int] = {}
    for one in ours:
        node = f"node-{one.from_broker_id}"
        planted_by_node[node] = planted_by_node.get(node, 0) + one.in_sync_ms - one.fault_ms
    if by_node != planted_by_node:
        yield f"down by node {by_node}, planted {planted_by_node}"
    length_ms = planted.month.end_ms - planted.month.start_ms
    if figures.availability.total_ms != length_ms:
        yield f"{figures.availability.total_ms} ms in all, planted {length_ms} ms"
    # Nobody knows what held in a gap but what the log tells: each gap is unknown, up to two scrapes more at its edges.
    gaps_ms = sum(gap.end_ms - gap.start_ms for gap in planted.gaps)
    known_ms = sum(
        max(0, min(one.in_sync_ms, gap.end_ms) - max(one.fault_ms, gap.start_ms))
        for one in ours
        for gap in planted.gaps
    )
    slack_ms = (2 * len(planted.gaps) + 2) * planted.month.step_ms
    if not gaps_ms - known_ms <= figures.availability.unknown_ms <= gaps_ms - known_ms + slack_ms:
        yield f"unknown {figures.availability.unknown_ms} ms, planted {gaps_ms - known_ms} ms (+ {slack_ms} ms)"
    unplanned = [float(one.in_sync_ms - one.fault_ms) for one in ours if not one.is_planned]
    if (figures.recovery.total.n, figures.recovery.total.max_ms) != (len(unplanned), max(unplanned, default=None)):
        yield f"RTO of {figures.recovery.total}, planted {len(unplanned)}, longest {max(unplanned, default=None)}"
