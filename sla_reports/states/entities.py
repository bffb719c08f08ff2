"""Which series are about the same thing: a group's gauge has one series per operator pod and per Prometheus server.

An entity is a metric and those labels that say what it is about; the others (`instance`, `pod`, `job`, a replica label) say
who was asked. Series that differ in replica labels only are copies of one (an HA pair of Prometheus servers). Series that
differ in `instance` are several processes: gauges that contradict each other are disputed (`spans.agreed`), counters are added.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from metric_names import GROUP_WRITABLE, LABEL_BROKER_GROUP, LABEL_CLUSTER, LABEL_NAMESPACE
from sla_reports.reduction.runs import Run
from sla_reports.series import Series, parse_series
from sla_reports.states.counters import Increase, increase, rises
from sla_reports.states.spans import Span, State, Window, agreed, changed_interval, spans_of

REPLICA_LABELS = ("prometheus_replica", "__replica__", "replica")


@dataclass(frozen=True, slots=True, order=True)
class GroupKey:
    """A broker group by the labels of its metrics."""

    namespace: str
    cluster: str
    broker_group: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.cluster}/{self.broker_group}"

    @classmethod
    def of_series(cls, series: Series) -> "GroupKey":
        """The group that a series is about."""
        return cls(*(series.own_label(name) for name in (LABEL_NAMESPACE, LABEL_CLUSTER, LABEL_BROKER_GROUP)))


@dataclass(frozen=True, slots=True)
class RunsOfSeries:
    """The runs of one series with its name taken apart."""

    series: Series
    runs: tuple[Run, ...]

    @property
    def group(self) -> GroupKey:
        return GroupKey.of_series(self.series)

    def without(self, names: Sequence[str]) -> tuple[tuple[str, str], ...]:
        return tuple(pair for pair in self.series.labels if pair[0] not in names)


class Fleet:
    """All runs of an export, to be asked by metric and group."""

    def __init__(
        self,
        runs: Mapping[str, tuple[Run, ...]],
        *,
        gap_ms: int | Mapping[str, int],
        replica_labels: Sequence[str] = REPLICA_LABELS,
    ) -> None:
        self._gap_ms = gap_ms
        self._replica_labels = replica_labels
        # By metric, then by group: with one list for all groups a fleet costs the square of its size.
        self._entries: dict[str, dict[GroupKey, list[RunsOfSeries]]] = {}
        self._texts: dict[Series, str] = {}
        for text in sorted(runs):
            series = parse_series(text)
            entry = RunsOfSeries(series, runs[text])
            self._entries.setdefault(series.metric, {}).setdefault(entry.group, []).append(entry)
            self._texts[series] = text

    def groups(self, metric: str) -> list[GroupKey]:
        """The groups that have the metric."""
        return sorted(self._entries.get(metric, ()))

    def series_of(self, metric: str, group: GroupKey) -> list[RunsOfSeries]:
        """Every series of the metric that is about the group."""
        return self._entries.get(metric, {}).get(group, [])

    def gap_ms(self, metric: str, group: GroupKey) -> int:
        """The longest gap limit among the series: twice a fifth of it is the scrape interval."""
        if isinstance(self._gap_ms, int):
            return self._gap_ms
        return max((self._gap_ms[self._texts[entry.series]] for entry in self.series_of(metric, group)), default=0)

    def spans(
        self, metric: str, group: GroupKey, window: Window, state_of: Callable[[float | None], State]
    ) -> list[Span]:
        """What held for the group by all of its series."""
        lines = [self.spans_of_series(entry, window, state_of) for entry in self.series_of(metric, group)]
        if not lines:
            return [Span(window.start_ms, window.end_ms, State.UNKNOWN)]
        return agreed(lines, self.gap_ms(metric, group) * 2 // 5)

    def sightings(self, metric: str, group: GroupKey, state_of: Callable[[float | None], State]) -> list[Run]:
        """The runs of the group's series that say down: when a scrape really saw it, first and last."""
        runs = (run for entry in self.series_of(metric, group) for run in entry.runs)
        return [run for run in runs if state_of(run.value) is State.DOWN]

    def changed_interval(self, metric: str, group: GroupKey) -> tuple[int, int, int] | None:
        """The usual scrape interval, the longest other one, and for how long others held; None where none did."""
        for entry in self.series_of(metric, group):
            if (changed := changed_interval(entry.runs, self._gap_of(entry))) is not None:
                return (self._gap_of(entry) * 2 // 5, *changed)
        return None

    def spans_of_series(
        self, entry: RunsOfSeries, window: Window, state_of: Callable[[float | None], State]
    ) -> list[Span]:
        """What one series says."""
        return spans_of(entry.runs, window, state_of, self._gap_of(entry))

    def increase(
        self, metric: str, group: GroupKey, window: Window, *, by: Sequence[str] = ()
    ) -> dict[tuple[str, ...], Increase]:
        """What the group's counters rose by, added over processes, for each combination of the labels `by`.

        Of the copies of one counter the one that saw most counts; adding them would count each rise twice.
        """
        found: dict[tuple[str, ...], Increase] = {}
        for same in self._copies(metric, group):
            key = tuple(same[0].series.label(name) for name in by)
            rises = [increase(entry.runs, window, began_ms=self._began_ms(entry)) for entry in same]
            found[key] = found.get(key, Increase(0.0, 0)) + max(rises, key=lambda one: one.rise)
        return found

    def rises(self, metric: str, group: GroupKey, window: Window) -> list[tuple[int, float]]:
        """Each single rise of the group's counters, in order of time: of copies those of the one that saw most."""
        found: list[tuple[int, float]] = []
        for same in self._copies(metric, group):
            seen = [rises(entry.runs, window, began_ms=self._began_ms(entry)) for entry in same]
            found += max(seen, key=lambda one: sum(rise for _, rise in one))
        return sorted(found)

    def _copies(self, metric: str, group: GroupKey) -> Collection[list[RunsOfSeries]]:
        """The series of the metric that are about the group, those that differ in replica labels only together."""
        copies: dict[tuple[tuple[str, str], ...], list[RunsOfSeries]] = {}
        for entry in self.series_of(metric, group):
            copies.setdefault(entry.without(self._replica_labels), []).append(entry)
        return copies.values()

    def _began_ms(self, entry: RunsOfSeries) -> int | None:
        """When the same Prometheus server first saw the group: one that joins later would take an old total for a rise."""
        server = [entry.series.label(name) for name in self._replica_labels]
        seen = (
            gauge.runs[0].start_ms
            for gauge in self.series_of(GROUP_WRITABLE, entry.group)
            if [gauge.series.label(name) for name in self._replica_labels] == server
        )
        return min(seen, default=None)

    def _gap_of(self, entry: RunsOfSeries) -> int:
        return self._gap_ms if isinstance(self._gap_ms, int) else self._gap_ms[self._texts[entry.series]]
