"""A synthetic month: its incidents, and the samples that a Prometheus would have stored.

A seed determines everything. Incidents come first, exact to the millisecond; then a scrape every `step_ms` yields the
samples. Then come the defects of real data: gaps (no scrapes), restarts of the operator (its
counters restart at 0), stale markers (a NaN where a series ends), and an exporter that is silent during an
outage.
"""

from __future__ import annotations

import datetime as dt
import random
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

import numpy as np

import metric_names
from brokergroup_operator.observe.incidents import Circumstance
from brokergroup_operator.observe.timeline import (
    NO_ANSWER_WORDS,
    RAN_ON_WORDS,
    Cause,
    FailoverTimeline,
    Kind,
    Outcome,
    Step,
    Trigger,
)
from brokergroup_operator.records.store import GroupKey
from sla_reports.series import series_text

if TYPE_CHECKING:
    from numpy.typing import NDArray

# October 2026 in Europe/Berlin: summer time ends on the 25th, so the month is an hour longer than 31 days.
OCTOBER_START_MS: Final = 1_790_805_600_000
OCTOBER_END_MS: Final = 1_793_487_600_000
MINUTE_MS: Final = 60_000
HOUR_MS: Final = 60 * MINUTE_MS

# The operator's trigger for each cause.
TRIGGER_OF_CAUSE: Final = {
    "crash": Trigger.CONNECTION_REFUSED, "oom": Trigger.CONTAINER_TERMINATED, "partition": Trigger.SILENCE,
    "disk": Trigger.SILENCE, "drain": Trigger.REQUESTED, "rollingUpgrade": Trigger.REQUESTED,
    "hibernation": Trigger.WOKEN, "plannedSwitchover": Trigger.REQUESTED, "unknown": Trigger.MASTERLESS,
}  # fmt: skip
PLANNED: Final = frozenset({"drain", "rollingUpgrade", "plannedSwitchover"})


@dataclass(frozen=True)
class PlantedIncident:
    """One loss of the master. `fault_ms` is its last sign of life, `in_sync_ms` the return of acknowledgements."""

    group: str
    cause: str
    epoch_before: int
    fault_ms: int
    detected_ms: int
    steps_ms: dict[Step, int]
    from_broker_id: int
    to_broker_id: int | None
    outcome: Outcome
    unfenced: bool
    # A partition of only the master's pod: its node is reachable all the time, and only the operator's evidence proves it.
    cut_off: bool = False

    @property
    def in_sync_ms(self) -> int:
        return self.detected_ms + max(self.steps_ms.values())

    @property
    def is_planned(self) -> bool:
        return self.cause in PLANNED

    def timeline(self) -> FailoverTimeline:
        """Return the timeline for the operator's incident log."""
        elected = self.outcome is Outcome.COMPLETED
        return FailoverTimeline(
            group=GroupKey("default", self.group), cluster_name="DefaultCluster", broker_name=self.group,
            kind=Kind.SWITCHOVER if self.is_planned else Kind.FAILOVER, trigger=TRIGGER_OF_CAUSE[self.cause],
            from_broker_id=self.from_broker_id, epoch_before=self.epoch_before,
            started_at_unix_seconds=self.detected_ms / 1000,
            last_sign_of_life_seconds=None if self.is_planned else self.fault_ms / 1000,
            to_broker_id=self.to_broker_id, epoch_after=self.epoch_before + 1 if elected else None,
            unfenced=self.unfenced, outcome=self.outcome,
            planned_cause=Cause(self.cause) if self.is_planned else Cause.PLANNED_SWITCHOVER,
            evidence=self._evidence(),
            steps={step: (self.detected_ms + after_ms) / 1000 for step, after_ms in self.steps_ms.items()},
        )  # fmt: skip

    def _evidence(self) -> list[str]:
        """Return the evidence. A process that hangs on its disk also runs until its deletion, but the kernel answers for it."""
        ran_on = f"pod {self.group}-{self.from_broker_id} {RAN_ON_WORDS}"
        if self.cut_off:
            return [NO_ANSWER_WORDS, ran_on]
        return [ran_on] if self.cause == "disk" and not self.unfenced else []


def circumstances_around(one: PlantedIncident) -> list[Circumstance]:
    """Return the operator's circumstances: some prove the cause, others must not count as a proof."""
    found = []

    def note(cause: str, what: str, from_ms: int, to_ms: int, *, broker_id: int = one.from_broker_id) -> None:
        # Kubernetes' times have whole seconds.
        began, ended = (dt.datetime.fromtimestamp(at_ms // 1000, dt.UTC) for at_ms in (from_ms, to_ms))
        found.append(
            Circumstance(
                group=GroupKey("default", one.group), cluster_name="DefaultCluster", broker_name=one.group,
                broker_id=broker_id, cause=cause, what=what, started_at=began, ended_at=ended,
                pod=f"{one.group}-{broker_id}", node=f"node-{broker_id}",
            )
        )  # fmt: skip

    match one.cause:
        case "oom":
            note("oom", "OOMKilled", one.fault_ms, one.fault_ms)
        case "disk":
            note("disk", "DiskPressure", one.fault_ms - 20 * MINUTE_MS, one.in_sync_ms)
        case "partition" if one.cut_off:
            # Its node has little disk left, which does not explain an address without an answer.
            note("disk", "DiskPressure", one.fault_ms - 20 * MINUTE_MS, one.in_sync_ms)
        case "partition":
            note("partition", "NodeReachableAgain", one.fault_ms - MINUTE_MS, one.in_sync_ms + MINUTE_MS)
        case "crash":
            note("crash", "ContainerEnded", one.fault_ms, one.fault_ms)
        case "rollingUpgrade":
            note("rollingUpgrade", "RollingUpdate", one.in_sync_ms + 1000, one.in_sync_ms + 31_000)
        case "unknown":
            # Another member's circumstance, and one of its own that ended long before.
            note("oom", "OOMKilled", one.fault_ms, one.fault_ms, broker_id=one.from_broker_id + 1)
            note("disk", "DiskPressure", one.fault_ms - 9 * MINUTE_MS, one.fault_ms - 2 * MINUTE_MS)
    if TRIGGER_OF_CAUSE[one.cause] is Trigger.SILENCE:
        # A silent master is fenced: an effect of the incident, not a cause.
        note("crash", "ContainerEnded", one.detected_ms + 3000, one.detected_ms + 3000)
    return found


@dataclass(frozen=True)
class Span:
    """A span [start, end) in ms."""

    start_ms: int
    end_ms: int

    def holds(self, ts_ms: NDArray[np.int64]) -> NDArray[np.bool_]:
        return (ts_ms >= self.start_ms) & (ts_ms < self.end_ms)


@dataclass(frozen=True)
class Month:
    """The parameters of a month."""

    seed: int = 1
    start_ms: int = OCTOBER_START_MS
    end_ms: int = OCTOBER_END_MS
    step_ms: int = 60_000
    groups: int = 3
    replicas: int = 3
    incidents_per_group: int = 12


@dataclass
class Planted:
    """The planted month. `series`: canonical text to (timestamps, values). `gaps` and `restarts` apply to the whole operator."""

    month: Month
    incidents: list[PlantedIncident] = field(default_factory=list)
    circumstances: list[Circumstance] = field(default_factory=list)
    gaps: list[Span] = field(default_factory=list)
    restarts_ms: list[int] = field(default_factory=list)
    series: dict[str, tuple[NDArray[np.int64], NDArray[np.float64]]] = field(default_factory=dict)

    @property
    def samples(self) -> int:
        return sum(len(ts_ms) for ts_ms, _ in self.series.values())

    def outages(self, group: str) -> list[Span]:
        """Return the spans in which the group accepted no writes."""
        return [Span(one.fault_ms, one.in_sync_ms) for one in self.incidents if one.group == group]


def plant(month: Month) -> Planted:
    """Plant the whole month. Equal parameters give the same truth."""
    source = random.Random(month.seed)
    planted = Planted(month)
    for number in range(month.groups):
        planted.incidents += _incidents(month, f"orders-{number}", source)
    planted.incidents.sort(key=lambda one: (one.fault_ms, one.group))
    planted.circumstances += [told for one in planted.incidents for told in circumstances_around(one)]
    length_ms = month.end_ms - month.start_ms
    for part in (0.31, 0.77):
        begin_ms = month.start_ms + int(length_ms * part) + source.randrange(HOUR_MS)
        planted.gaps.append(Span(begin_ms, begin_ms + source.randrange(5, 90) * MINUTE_MS))
    # The exporter is silent during one outage, from before its beginning to after its end.
    silent = next((one for one in planted.incidents if not one.is_planned), None)
    if silent is not None:
        planted.gaps.append(Span(silent.fault_ms - MINUTE_MS, silent.in_sync_ms + MINUTE_MS))
    planted.restarts_ms = sorted(month.start_ms + source.randrange(length_ms) for _ in range(3))
    for number in range(month.groups):
        _scrape(planted, f"orders-{number}", offset_ms=source.randrange(month.step_ms))
    return planted


def _incidents(month: Month, group: str, source: random.Random) -> list[PlantedIncident]:
    """Draw incidents: every cause at least once if there are enough, never two at a time."""
    causes = [list(TRIGGER_OF_CAUSE)[number % len(TRIGGER_OF_CAUSE)] for number in range(month.incidents_per_group)]
    source.shuffle(causes)
    slot_ms = (month.end_ms - month.start_ms) // (month.incidents_per_group + 1)
    master, made = 1, []
    for number, cause in enumerate(causes):
        # One crosses a midnight of the time zone, where the samples are split by day.
        across_days = month.start_ms + (number + 1) * slot_ms // (24 * HOUR_MS) * 24 * HOUR_MS - 2000
        fault_ms = (
            across_days if number == 3 else month.start_ms + number * slot_ms + source.randrange(slot_ms // 2) + HOUR_MS
        )
        following = master % month.replicas + 1
        made.append(_incident(group, cause, number + 1, fault_ms, master, following, source))
        if cause == "partition" and "partition" in causes[:number]:
            made[-1] = replace(made[-1], cut_off=True, unfenced=False)
        master = following
    return made


def _incident(
    group: str, cause: str, epoch: int, fault_ms: int, master: int, following: int, source: random.Random
) -> PlantedIncident:
    silent = TRIGGER_OF_CAUSE[cause] is Trigger.SILENCE
    detection_ms = 0 if cause in PLANNED else source.randrange(3000, 11_000) if silent else source.randrange(1, 40)
    at_ms, steps_ms = 0, {Step.DETECTED: 0}
    for step, least_ms, most_ms in (
        (Step.FENCED, 40, 2500),
        (Step.DECIDED, 1, 10),
        (Step.COMMITTED, 5, 60),
        (Step.NOTIFIED, 2, 30),
        (Step.ROLE_CHANGED, 40, 900),
        (Step.IN_SYNC, 100, 300_000 if cause in ("disk", "oom") else 4000),
    ):
        if step is not Step.FENCED or silent:
            at_ms += source.randrange(least_ms, most_ms)
            steps_ms[step] = at_ms
    return PlantedIncident(
        group, cause, epoch, fault_ms, fault_ms + detection_ms, steps_ms, master, following, Outcome.COMPLETED,
        unfenced=silent and source.random() < 0.3,
    )  # fmt: skip


def _scrape(planted: Planted, group: str, *, offset_ms: int) -> None:
    """Return the series of one group as Prometheus would have stored them."""
    month = planted.month
    ts_ms = np.arange(month.start_ms + offset_ms, month.end_ms, month.step_ms, dtype=np.int64)
    # A scrape is never exactly on time.
    ts_ms = ts_ms + np.random.default_rng(month.seed + offset_ms).integers(0, 4, len(ts_ms))
    seen = np.ones(len(ts_ms), dtype=bool)
    for gap in planted.gaps:
        seen &= ~gap.holds(ts_ms)
    ts_ms = ts_ms[seen]
    labels = {
        "namespace": "default", "cluster": "DefaultCluster", "broker_group": group, "instance": "10.1.0.7:9879",
        "job": "operator",
    }  # fmt: skip
    incidents = [one for one in planted.incidents if one.group == group]
    down = np.zeros(len(ts_ms), dtype=bool)
    short_of_copies = np.zeros(len(ts_ms), dtype=bool)
    for one in incidents:
        down |= Span(one.fault_ms, one.in_sync_ms).holds(ts_ms)
        short_of_copies |= Span(one.fault_ms, one.in_sync_ms + 5 * MINUTE_MS).holds(ts_ms)
    _add(planted, metric_names.GROUP_WRITABLE, labels, ts_ms, (~down).astype(np.float64), stale=True)
    sizes = np.where(short_of_copies, 1.0, float(month.replicas))
    _add(planted, metric_names.SYNC_STATE_SET_SIZE, labels, ts_ms, sizes, stale=True)
    rises = np.searchsorted(np.array([one.in_sync_ms for one in incidents]), ts_ms, side="right")
    epochs = 1.0 + rises.astype(np.float64)
    _add(planted, metric_names.MASTER_EPOCH, labels, ts_ms, epochs, stale=True)
    for broker_id in range(1, month.replicas + 1):
        is_master = _masters(month, incidents, ts_ms) == broker_id
        facts = {
            "broker_id": str(broker_id), "node": f"node-{broker_id}", "zone": "ab"[broker_id % 2], "tenant": "shop",
        }  # fmt: skip
        _add(planted, metric_names.MEMBER_PLACE, {**labels, **facts}, ts_ms, (is_master & ~down).astype(np.float64))
    for cause in sorted({one.timeline().cause.value for one in incidents}):
        ours = [one for one in incidents if one.timeline().cause.value == cause]
        unavailable = _counter(
            planted, ts_ms, [(one.in_sync_ms, (one.in_sync_ms - one.fault_ms) / 1000) for one in ours]
        )
        failovers = _counter(planted, ts_ms, [(one.in_sync_ms, 1.0) for one in ours])
        _add(planted, metric_names.UNAVAILABLE_SECONDS_TOTAL, {**labels, "cause": cause}, ts_ms, unavailable)
        _add(
            planted, metric_names.FAILOVERS_TOTAL, {**labels, "cause": cause, "outcome": "completed"}, ts_ms,
            failovers,
        )  # fmt: skip


def _masters(month: Month, incidents: list[PlantedIncident], ts_ms: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the master at each time, or the one lost just before."""
    masters = np.ones(len(ts_ms), dtype=np.int64)
    for one in incidents:
        masters[Span(one.in_sync_ms, month.end_ms).holds(ts_ms)] = one.to_broker_id or one.from_broker_id
    return masters


def _counter(planted: Planted, ts_ms: NDArray[np.int64], rises: list[tuple[int, float]]) -> NDArray[np.float64]:
    """Return a counter that rises at these times and restarts at 0 with each operator."""
    values = np.zeros(len(ts_ms))
    for at_ms, rise in rises:
        reset_ms = next((restart for restart in planted.restarts_ms if restart > at_ms), planted.month.end_ms)
        values[Span(at_ms, reset_ms).holds(ts_ms)] += rise
    return values


def _add(
    planted: Planted, metric: str, labels: dict[str, str], ts_ms: NDArray[np.int64], values: NDArray[np.float64], *,
    stale: bool = False,
) -> None:  # fmt: skip
    if stale:  # the last scrape before a gap of more than five minutes ends the series
        values = values.copy()
        values[np.flatnonzero(np.diff(ts_ms) > 5 * MINUTE_MS)] = np.nan
    planted.series[series_text(metric, labels)] = (ts_ms, values)
