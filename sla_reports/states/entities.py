"""Which series are about the same thing: a group's gauge has one series per operator pod and per Prometheus server.

    group        namespace, cluster, broker_group                    the identity
    own          the other labels that the operator writes (cause)   another figure of the group
    process      instance, pod                                       an operator pod: its counters are its own
    replica      prometheus_replica and `--replica-label`            copies of one series, as the option says
    of_the_pod   node, pod_ip, uid, zone: `_OF_THE_POD`              a part of the scrape target; changes when `pod` does
    way          all others: job, region, receive_replica            compared by values (`counters.contradiction`)

Series of one process are copies: a gauge's fill each other's gaps, a counter's count once. Of several processes, gauges that
contradict each other are disputed (`spans.agreed`), counters are added. `identity.py` finds what can be no copy by its values.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from metric_names import GROUP_LABELS, GROUP_WRITABLE, MEMBER_FACTS, MEMBER_PLACE, METRICS, UNCLEAN_ELECTIONS_TOTAL
from sla_reports.series import Series, parse_series
from sla_reports.states.counters import Increase, increase, one_counter, rises, rose_alike
from sla_reports.states.spans import (
    Run,
    ScrapeInterval,
    Span,
    State,
    Stretch,
    Window,
    agreed,
    at_least,
    clip,
    gap_limits,
    spans_of,
    stretches,
)

# Every operator pod exposes what the record has counted; all other counters are of the pod that did the work.
_OF_THE_RECORD = frozenset({UNCLEAN_ELECTIONS_TOTAL})
REPLICA_LABELS = ("prometheus_replica", "__replica__", "replica")
_PROCESS = ("instance", "pod")
# A service discovery takes these from the pod: they change when `pod` does.
_OF_THE_POD = frozenset({
    "node", "host", "hostname", "pod_ip", "pod_name", "pod_template_hash", "controller_revision_hash", "container_id",
    "kubernetes_pod_name", "kubernetes_pod", "kubernetes_node", "uid", "pod_uid", "zone", "rack",
    "statefulset_kubernetes_io_pod_name", "apps_kubernetes_io_pod_index", "topology_kubernetes_io_zone",
})  # fmt: skip
_PREFIX = "exported_"
Pairs = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, order=True)
class GroupKey:
    """A broker group by the labels of its metrics."""

    namespace: str
    cluster: str
    broker_group: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.cluster}/{self.broker_group}"

    def matches(self, pattern: str) -> bool:
        """Whether a pattern is about this group, as namespace/cluster/brokerGroup with `*` and `?`."""
        return fnmatchcase(str(self), pattern.replace("[", "[[]"))

    @classmethod
    def of_series(cls, series: Series) -> "GroupKey":
        """Return the group that a series is about."""
        return cls(*(series.own_label(name) for name in GROUP_LABELS))


@dataclass(frozen=True, slots=True)
class Labels:
    """The labels of a series by what they say; `own` is without those of the group; the operator's names without `exported_`."""

    own: Pairs
    process: Pairs
    replica: Pairs
    way: Pairs
    of_the_pod: Pairs = ()

    @property
    def target(self) -> tuple[Pairs, ...]:
        """The scrape target and its Prometheus: series of one scrape share it."""
        return (self.process, self.replica, self.way, self.of_the_pod)

    @property
    def server(self) -> tuple[Pairs, ...]:
        """The Prometheus server that the series came from."""
        return (self.replica, self.way)


def labels_of(series: Series, replica_labels: Sequence[str] = REPLICA_LABELS) -> Labels:
    """Sort the labels of one series by what they identify."""
    names = {name for name, _ in series.labels}
    described = METRICS.get(series.metric) or METRICS.get(series.metric.removesuffix("_bucket"))
    # The labels with which the operator writes the metric.
    written = frozenset(described.labels if described else ()) | {"le"}
    found: dict[str, list[tuple[str, str]]] = {"own": [], "process": [], "replica": [], "way": [], "of_the_pod": []}
    for name, value in series.labels:
        base = name.removeprefix(_PREFIX)
        if base in GROUP_LABELS and (name != base or _PREFIX + base not in names):
            continue
        kind = _kind(name, base, names, written, replica_labels)
        # What is to be given to an option has its name as it stands.
        found[kind].append((name if kind in {"way", "replica"} else base, value))
    return Labels(**{kind: tuple(sorted(pairs)) for kind, pairs in found.items()})


def _kind(name: str, base: str, names: set[str], written: frozenset[str], replica_labels: Sequence[str]) -> str:
    if name in replica_labels:
        return "replica"
    if _PREFIX + name in names:
        # Set by the Prometheus that renamed the operator's.
        return "way"
    if base in written:
        return "own"
    if base in _PROCESS:
        return "process"
    return "of_the_pod" if base in _OF_THE_POD else "way"


@dataclass(frozen=True, slots=True)
class RunsOfSeries:
    """The runs of one series with its name taken apart."""

    series: Series
    runs: tuple[Run, ...]
    labels: Labels

    @property
    def group(self) -> GroupKey:
        return GroupKey.of_series(self.series)


@dataclass(frozen=True, slots=True)
class _Counter:
    """One counter of one process, by its copies; `whole` are their runs as those of one series."""

    copies: tuple[RunsOfSeries, ...]
    whole: tuple[Run, ...]


class Fleet:
    """All runs of an export, to be asked by metric and group."""

    def __init__(
        self,
        runs: Mapping[str, tuple[Run, ...]],
        *,
        gap_ms: int | Mapping[str, int],
        replica_labels: Sequence[str] = REPLICA_LABELS,
        by_stretch: bool = True,
    ) -> None:
        self._gap_ms = gap_ms
        # Not where the interval was given: then it holds for all of the time.
        self._by_stretch = by_stretch
        self._stretches_of: dict[Series, tuple[Stretch, ...]] = {}
        self._counters_of: dict[tuple[str, GroupKey], tuple[_Counter, ...]] = {}
        # By metric, then by group: with one list for all groups a fleet costs the square of its size.
        self._entries: dict[str, dict[GroupKey, list[RunsOfSeries]]] = {}
        self._texts: dict[Series, str] = {}
        for text in sorted(runs):
            series = parse_series(text)
            entry = RunsOfSeries(series, runs[text], labels_of(series, replica_labels))
            self._entries.setdefault(series.metric, {}).setdefault(entry.group, []).append(entry)
            self._texts[series] = text

    def groups(self, metric: str) -> list[GroupKey]:
        """Return the groups that have the metric."""
        return sorted(self._entries.get(metric, ()))

    def series_of(self, metric: str, group: GroupKey) -> list[RunsOfSeries]:
        """Return every series of the metric for the group."""
        return self._entries.get(metric, {}).get(group, [])

    def gap_ms(self, metric: str, group: GroupKey) -> int:
        """Return the longest gap limit among the series: 2/5 of it is the scrape interval."""
        if isinstance(self._gap_ms, int):
            return self._gap_ms
        return max((self._gap_ms[self._texts[entry.series]] for entry in self.series_of(metric, group)), default=0)

    def spans(
        self, metric: str, group: GroupKey, window: Window, state_of: Callable[[float | None], State]
    ) -> list[Span]:
        """Return the states of the group by all series of the metric."""
        lines = [
            spans_of(
                [run for entry in row for run in entry.runs], window, state_of,
                [limit for entry in row for limit in self._limits(entry)],
            )
            for row in self._rows(metric, group)
        ]  # fmt: skip
        if not lines:
            return [Span(window.start_ms, window.end_ms, State.UNKNOWN)]
        return agreed(lines, self.interval(metric, group))

    def _rows(self, metric: str, group: GroupKey) -> list[list[RunsOfSeries]]:
        """The group's series, those that follow each other together: an operator pod and the next, or other labels."""
        rows: list[list[RunsOfSeries]] = []
        for entry in sorted(self.series_of(metric, group), key=lambda one: one.runs[0].start_ms):
            before = next((row for row in rows if row[-1].runs[-1].end_ms < entry.runs[0].start_ms), None)
            if before is None:
                rows.append([entry])
            else:
                before.append(entry)
        return rows

    def sightings(self, metric: str, group: GroupKey, state_of: Callable[[float | None], State]) -> list[Run]:
        """Return the runs that say down: from the first scrape that saw it to the last."""
        runs = (run for entry in self.series_of(metric, group) for run in entry.runs)
        return [run for run in runs if state_of(run.value) is State.DOWN]

    def usual_ms(self, entry: RunsOfSeries) -> int:
        """Return the usual scrape interval of one series."""
        return self._gap_of(entry) * 2 // 5

    def interval(self, metric: str, group: GroupKey) -> ScrapeInterval:
        """Return the scrape interval of the group's series over time: the longest one if they differ."""
        own = [one for entry in self.series_of(metric, group) for one in self.stretches(entry)]
        return ScrapeInterval(self.gap_ms(metric, group) * 2 // 5, tuple(sorted(own, key=lambda one: one.start_ms)))

    def stretches(self, entry: RunsOfSeries) -> tuple[Stretch, ...]:
        """Return when a series was scraped at another interval than its usual one; never, if the interval was given."""
        if not self._by_stretch:
            return ()
        if entry.series not in self._stretches_of:
            self._stretches_of[entry.series] = stretches(entry.runs, self._gap_of(entry))
        return self._stretches_of[entry.series]

    def _limits(self, entry: RunsOfSeries) -> Sequence[int]:
        gap_ms = self._gap_of(entry)
        return gap_limits(entry.runs, gap_ms) if self._by_stretch else [gap_ms] * len(entry.runs)

    def spans_of_series(
        self, entry: RunsOfSeries, window: Window, state_of: Callable[[float | None], State]
    ) -> list[Span]:
        """Return the states by one series."""
        return spans_of(entry.runs, window, state_of, self._limits(entry))

    def increase(
        self, metric: str, group: GroupKey, window: Window, *, by: Sequence[str] = ()
    ) -> dict[tuple[str, ...], Increase]:
        """Return the rise of the group's counters, added over processes, for each combination of the labels `by`.

        Copies of one counter count once: together, or the one that rose most, whichever is more.
        """
        found: dict[tuple[str, ...], Increase] = {}
        for one in self._counters(metric, group):
            key = tuple(one.copies[0].series.own_label(name) for name in by)
            told = [increase(runs, window, began_ms=began_ms) for runs, began_ms in self._lines(one)]
            found[key] = found.get(key, Increase(0.0, 0)) + max(told, key=lambda rise: rise.rise)
        return found

    def rises(self, metric: str, group: GroupKey, window: Window) -> list[tuple[int, float]]:
        """Return each single rise of the group's counters, in order of time; copies of one counter count once."""
        found: list[tuple[int, float]] = []
        for one in self._counters(metric, group):
            seen = [rises(runs, window, began_ms=began_ms) for runs, began_ms in self._lines(one)]
            found += max(seen, key=lambda some: sum(rise for _, rise in some))
        return sorted(found)

    def by_own_labels(self, metric: str, group: GroupKey) -> Mapping[Pairs, list[RunsOfSeries]]:
        """Return the group's series of the metric by the operator's other labels (cause, phase)."""
        found: dict[Pairs, list[RunsOfSeries]] = {}
        for entry in self.series_of(metric, group):
            found.setdefault(entry.labels.own, []).append(entry)
        return found

    def slack_ms(self, one: RunsOfSeries, other: RunsOfSeries) -> int:
        """Return how far two scrapers may differ at each edge of a run, so that a lost scrape is no contradiction."""
        return max(self._gap_of(one), self._gap_of(other)) // 2

    def scraped(self, entry: RunsOfSeries) -> list[tuple[int, int]]:
        """Return the times in which a series was scraped without a gap, in order."""
        found: list[tuple[int, int]] = []
        before_ms = 0
        for run, limit_ms in zip(entry.runs, self._limits(entry), strict=True):
            if run.value is None:
                continue
            if found and run.start_ms - found[-1][1] <= before_ms:
                found[-1] = (found[-1][0], run.end_ms)
            else:
                found.append((run.start_ms, run.end_ms))
            before_ms = limit_ms
        return found

    def entries(self) -> Iterator[RunsOfSeries]:
        """Every series."""
        return (entry for groups in self._entries.values() for own in groups.values() for entry in own)

    def _counters(self, metric: str, group: GroupKey) -> tuple[_Counter, ...]:
        key = (metric, group)
        if key not in self._counters_of:
            figures = self.by_own_labels(metric, group).values()
            self._counters_of[key] = tuple(one for own in figures for one in self._of_processes(metric, own))
        return self._counters_of[key]

    def _of_processes(self, metric: str, entries: Sequence[RunsOfSeries]) -> list[_Counter]:
        by_process: dict[Pairs, list[RunsOfSeries]] = {}
        for entry in entries:
            by_process.setdefault(() if metric in _OF_THE_RECORD else entry.labels.process, []).append(entry)
        counters = [self._counter(own) for own in by_process.values()]
        # Two addresses of one process: no two processes rise alike.
        found: list[_Counter] = []
        for one in counters:
            alike = next((other for other in found if self._rose_alike(one, other)), None)
            if alike is None:
                found.append(one)
            else:
                found[found.index(alike)] = self._counter([*alike.copies, *one.copies])
        return found

    def _counter(self, copies: Sequence[RunsOfSeries]) -> _Counter:
        gap_ms = max(self._gap_of(entry) for entry in copies)
        return _Counter(tuple(copies), one_counter([entry.runs for entry in copies], gap_ms))

    def _rose_alike(self, one: _Counter, other: _Counter) -> bool:
        if not one.whole or not other.whole:
            return False
        return rose_alike(one.whole, other.whole, self.slack_ms(one.copies[0], other.copies[0]))

    def _lines(self, counter: _Counter) -> list[tuple[Sequence[Run], int | None]]:
        """The runs of all copies as one, and of each by itself, with when its Prometheus server first saw the group."""
        first = min(counter.copies, key=lambda entry: entry.runs[0].start_ms)
        own = [(entry.runs, self._began_ms(entry)) for entry in counter.copies]
        return [(counter.whole, self._began_ms(first)), *(own if len(own) > 1 else [])]

    def _began_ms(self, entry: RunsOfSeries) -> int | None:
        """When the same Prometheus server first saw the group: one that joins later would take an old total for a rise."""
        seen = (
            gauge.runs[0].start_ms
            for gauge in self.series_of(GROUP_WRITABLE, entry.group)
            if gauge.labels.server == entry.labels.server
        )
        return min(seen, default=None)

    def _gap_of(self, entry: RunsOfSeries) -> int:
        return self._gap_ms if isinstance(self._gap_ms, int) else self._gap_ms[self._texts[entry.series]]


@dataclass(frozen=True, slots=True)
class Stay:
    """The facts of the master from `start_ms` up to, not including, `end_ms`."""

    start_ms: int
    end_ms: int
    facts: Mapping[str, str]


def stays_of(fleet: Fleet, group: GroupKey, window: Window) -> tuple[Stay, ...]:
    """Return the masters over the whole window. If two are seen at once (a scrape around the change), the later one counts."""
    seen = sorted(
        (span.start_ms, tuple(entry.series.own_label(name) for name in MEMBER_FACTS))
        for entry in fleet.series_of(MEMBER_PLACE, group)
        for span in fleet.spans_of_series(entry, window, at_least(1))
        if span.state is State.UP
    )
    begins: list[tuple[int, tuple[str, ...]]] = [(window.start_ms, ("",) * len(MEMBER_FACTS))]
    for start_ms, values in seen:
        if begins[-1][0] == start_ms:
            begins.pop()
        if not begins or begins[-1][1] != values:
            begins.append((start_ms, values))
    ends = [*(start_ms for start_ms, _ in begins[1:]), window.end_ms]
    return tuple(
        Stay(start_ms, end_ms, {name: value for name, value in zip(MEMBER_FACTS, values, strict=True) if value})
        for (start_ms, values), end_ms in zip(begins, ends, strict=True)
    )


def facts_at(stays: Sequence[Stay], at_ms: int) -> Mapping[str, str]:
    """Return the facts of the master at an instant. For an outage that begins there: of the master just before."""
    return next((one.facts for one in stays if one.start_ms < at_ms <= one.end_ms), stays[0].facts)


def divided(spans: Sequence[Span], stays: Sequence[Stay], fact: str) -> dict[str, list[Span]]:
    """Divide the spans by the fact's value at the time, in order of the values; no time is lost."""
    found: dict[str, list[Span]] = {}
    for stay in stays:
        inside = [piece for span in spans for piece in clip([span], Window(stay.start_ms, stay.end_ms))]
        found.setdefault(stay.facts.get(fact, ""), []).extend(inside)
    return {value: found[value] for value in sorted(found) if found[value]}
