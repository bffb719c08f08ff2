"""The gate before anything is written: the same time by group, by cause, by stage, by budget, by place and by cluster adds up.

Each figure is summed up here by itself and compared with the groups' totals. A report whose figures do not add up is written all
the same, so that the reason can be found in it; page one says so, and the command ends with an exit code of its own.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from sla_reports.measures.availability import (
    BY_GROUP,
    Availability,
    down_by_stage,
    incidents_by,
    sum_of,
)
from sla_reports.measures.summary import ClusterFigures, GroupFigures, Summary
from sla_reports.states.spans import State, Window, clip, total_ms


@dataclass(frozen=True, slots=True)
class Reconciliation:
    """`faults`: each sum that is not what it must be, with both numbers; none where the report adds up. `checks`: how many sums."""

    checks: int
    faults: tuple[str, ...]

    @property
    def holds(self) -> bool:
        return not self.faults


def reconcile_totals(summary: Summary) -> Reconciliation:
    """Hold every breakdown of the report against the groups' totals."""
    told = [*_of_groups(summary), *_of_fleet(summary), *_of_clusters(summary)]
    faults = tuple(f"{name}: {found} ms; expected {expected}" for name, found, expected, holds in told if not holds)
    return Reconciliation(len(told), faults)


# What is summed, the sum, what it must be, and whether it is.
_Check = tuple[str, int, str, bool]


def _same(name: str, found: int, expected: int) -> _Check:
    return name, found, f"{expected} ms", found == expected


def _of_groups(summary: Summary) -> Iterator[_Check]:
    for one in summary.groups:
        told, name = one.availability, str(one.group)
        yield _same(f"{name}: up + down + unknown + disputed", told.total_ms, one.counted_ms)
        yield _same(f"{name}: down of its outages", sum(outage.down_ms for outage in one.outages), told.down_ms)
        yield _same(f"{name}: down by stage", sum(down_by_stage(one.outages).values()), told.down_ms)
        yield _same(f"{name}: spent budget", one.budget.spent_ms, told.down_ms)
        for fact, places in one.by_place.items():
            yield from _states(f"{name}: by {fact}", sum_of(list(places.values())), told)
        yield from _once(one, summary.agreement.window)


def _once(figures: GroupFigures, window: Window) -> Iterator[_Check]:
    """An outage is counted once, and only in the period in which it began."""
    counted = {(one.id, one.start_ms) for one in figures.incidents}
    began = sum(window.start_ms <= one.start_ms < window.end_ms for one in figures.incidents)
    name = f"{figures.group}: outages that began in the period, of"
    yield name, began, f"{len(figures.incidents)} outages", began == len(figures.incidents) == len(counted)


def _of_fleet(summary: Summary) -> Iterator[_Check]:
    parts = {figures.group: figures.availability for figures in summary.groups}
    whole = Availability(
        sum(one.up_ms for one in parts.values()), sum(one.down_ms for one in parts.values()),
        sum(one.unknown_ms for one in parts.values()), sum_of(list(parts.values())).source, 0,
        sum(one.disputed_ms for one in parts.values()),
    )  # fmt: skip
    yield from _states("fleet", sum_of(list(parts.values())), whole)
    for dimension, name_of in BY_GROUP.items():
        values = summary.availability_by_group(name_of).values()
        yield from _states(f"all groups by {dimension}", sum_of(list(values)), whole)
    causes = incidents_by(lambda one: one.cause, summary.outages, until_ms=summary.until_ms)
    yield _same("down by cause", sum(share.down_ms for share in causes), whole.down_ms)
    incidents = sum(len(figures.incidents) for figures in summary.groups)
    by_cause = sum(share.incidents for share in causes)
    yield "outages by cause", by_cause, f"{incidents} outages", by_cause == incidents


def _states(name: str, found: Availability, expected: Availability) -> Iterator[_Check]:
    of: Mapping[str, Callable[[Availability], int]] = {
        "up": lambda one: one.up_ms, "down": lambda one: one.down_ms,
        "unknown": lambda one: one.unknown_ms, "disputed": lambda one: one.disputed_ms,
    }  # fmt: skip
    for state, milliseconds in of.items():
        yield _same(f"{name}: {state}", milliseconds(found), milliseconds(expected))


def _of_clusters(summary: Summary) -> Iterator[_Check]:
    for one in summary.clusters:
        members = [
            figures
            for figures in summary.groups
            if (figures.group.namespace, figures.group.cluster) == (one.namespace, one.cluster)
        ]
        if not any(figures.audit for figures in members):
            yield from _of_cluster(one, members)


def _of_cluster(cluster: ClusterFigures, members: Sequence[GroupFigures]) -> Iterator[_Check]:
    """Write is down at most as long as the group that was down least; ordered write as long as the most, or their sum."""
    name = f"cluster {cluster.namespace}/{cluster.cluster}"
    if len(members) == 1:
        for kind, told in (("write", cluster.write), ("ordered write", cluster.ordered_write)):
            yield from _states(f"{name} of one group, {kind}", told, members[0].availability)
        return
    downs = [total_ms(clip(one.held, Window(one.held[0].start_ms, one.held[-1].end_ms)), State.DOWN) for one in members]
    write, ordered = cluster.write.down_ms, cluster.ordered_write.down_ms
    # While a group did not exist it took no writes either.
    least = min(
        down_ms + sum(high - low for low, high in one.existence.absent)
        for down_ms, one in zip(downs, members, strict=True)
    )
    yield f"{name}: down of write", write, f"at most {least} ms", write <= least
    bounds = f"{max(downs)} to {sum(downs)} ms"
    yield f"{name}: down of ordered write", ordered, bounds, max(downs) <= ordered <= sum(downs)
