"""Which series are about the same thing: a group's gauge has one series per operator pod and per Prometheus server.

An entity is a metric and those labels that say what it is about; the others (`instance`, `pod`, `job`, a replica label) say
who was asked. Series that differ in replica labels only are copies of one (an HA pair of Prometheus servers). Series that
differ in `instance` are several processes: of a gauge the first that knows is taken, counters are added.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from controller_core.metric_names import GROUP_WRITABLE, LABEL_BROKER_GROUP, LABEL_CLUSTER, LABEL_NAMESPACE
from sla_reports.reduction.runs import Run
from sla_reports.series import Series, parse_series
from sla_reports.states.counters import Increase, increase
from sla_reports.states.spans import Span, State, Window, combine, first_known, spans_of

REPLICA_LABELS = ("prometheus_replica", "__replica__", "replica")


@dataclass(frozen=True, slots=True, order=True)
class GroupKey:
    """A broker group by the labels of its metrics."""

    namespace: str
    cluster: str
    broker_group: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.cluster}/{self.broker_group}"


@dataclass(frozen=True, slots=True)
class RunsOfSeries:
    """The runs of one series with its name taken apart."""

    series: Series
    runs: tuple[Run, ...]

    @property
    def group(self) -> GroupKey:
        labels = dict(self.series.labels)
        return GroupKey(
            labels.get(LABEL_NAMESPACE, ""), labels.get(LABEL_CLUSTER, ""), labels.get(LABEL_BROKER_GROUP, "")
        )

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
        self._by_metric: dict[str, list[RunsOfSeries]] = {}
        for text in sorted(runs):
            entry = RunsOfSeries(parse_series(text), runs[text])
            self._by_metric.setdefault(entry.series.metric, []).append(entry)
        self._texts = {parse_series(text): text for text in runs}

    def groups(self, metric: str) -> list[GroupKey]:
        """The groups that have the metric."""
        return sorted({entry.group for entry in self._by_metric.get(metric, ())})

    def series_of(self, metric: str, group: GroupKey) -> list[RunsOfSeries]:
        """Every series of the metric that is about the group."""
        return [entry for entry in self._by_metric.get(metric, ()) if entry.group == group]

    def gap_ms(self, metric: str, group: GroupKey) -> int:
        """The longest gap limit among the series: twice a fifth of it is the scrape interval."""
        if isinstance(self._gap_ms, int):
            return self._gap_ms
        return max((self._gap_ms[self._texts[entry.series]] for entry in self.series_of(metric, group)), default=0)

    def spans(
        self, metric: str, group: GroupKey, window: Window, state_of: Callable[[float | None], State]
    ) -> list[Span]:
        """What held for the group: of its series, in order of their names, the first that knows."""
        lines = [self.spans_of_series(entry, window, state_of) for entry in self.series_of(metric, group)]
        if not lines:
            return [Span(window.start_ms, window.end_ms, State.UNKNOWN)]
        return combine(lines, first_known)

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
        copies: dict[tuple[tuple[str, str], ...], list[RunsOfSeries]] = {}
        for entry in self.series_of(metric, group):
            copies.setdefault(entry.without(self._replica_labels), []).append(entry)
        found: dict[tuple[str, ...], Increase] = {}
        for same in copies.values():
            key = tuple(same[0].series.label(name) for name in by)
            rises = [increase(entry.runs, window, began_ms=self._began_ms(entry)) for entry in same]
            found[key] = found.get(key, Increase(0.0, 0)) + max(rises, key=lambda one: one.rise)
        return found

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
