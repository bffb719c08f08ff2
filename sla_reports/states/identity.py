"""Which series of one group were taken for copies though no option says so, and which can be none.

Two series of one figure that differ in a label which is neither the metric's own nor the process's (`entities.Labels`) are compared
(`counters.contradiction`) if they are of one process, or if they are gauges. If they contradict each other, the report is refused:
two groups share one identity, and their figures cannot be separated. If they do not, a note in the report names the label.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations

from metric_names import FAILOVERS_TOTAL, GROUP_LABELS, GROUP_WRITABLE, SYNC_STATE_SET_SIZE, UNAVAILABLE_SECONDS_TOTAL
from sla_reports.states.counters import Contradiction, contradiction, rose_alike
from sla_reports.states.entities import Fleet, GroupKey, RunsOfSeries
from sla_reports.states.spans import utc

# Gauges are the same whichever operator pod exposes them; a counter is its process's own.
_GAUGES = (GROUP_WRITABLE, SYNC_STATE_SET_SIZE)
_COUNTERS = (UNAVAILABLE_SECONDS_TOTAL, FAILOVERS_TOTAL)
_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Copies:
    """Series of these groups that differ in these labels, by each label's values, and were taken for copies of one."""

    labels: Mapping[str, tuple[str, ...]]
    groups: tuple[GroupKey, ...]


@dataclass(frozen=True, slots=True)
class Identity:
    """`faults`: what no figure can be made of. `notes`: what the reader must know. `copies`: the same, for a program."""

    faults: tuple[str, ...]
    notes: tuple[str, ...]
    copies: tuple[Copies, ...] = ()


@dataclass(slots=True)
class _Difference:
    values: dict[str, set[str]] = field(default_factory=dict)
    groups: set[GroupKey] = field(default_factory=set)

    def add(self, pair: tuple[RunsOfSeries, RunsOfSeries], names: Iterable[str]) -> None:
        for name in names:
            told = (dict(one.labels.way + one.labels.replica + one.labels.process).get(name, "") for one in pair)
            self.values.setdefault(name, set()).update(told)
        self.groups.add(pair[0].group)


def identity_of(fleet: Fleet) -> Identity:
    """Compare the series of each group: which were taken for copies, and which can be none."""
    unnamed = list(_without_a_name(fleet))
    copies: dict[tuple[str, ...], _Difference] = {}
    declared: dict[tuple[str, ...], _Difference] = {}
    faults: list[str] = []
    declared_ms: dict[tuple[str, ...], int] = {}
    for metric in (*_GAUGES, *_COUNTERS):
        for group in fleet.groups(metric):
            for pair in _pairs(fleet, metric, group):
                names, own = _differ(pair, "way"), _differ(pair, "replica")
                told = _contradiction(fleet, metric, pair) if names or own else None
                if names and told is not None:
                    faults.append(_fault(metric, pair, names, told))
                elif names and _tells(fleet, metric, pair):
                    copies.setdefault(names, _Difference()).add(pair, names)
                elif told is not None:
                    declared.setdefault(own, _Difference()).add(pair, own)
                    declared_ms[own] = declared_ms.get(own, 0) + told.length_ms
    found = tuple(_copies(names, one) for names, one in sorted(copies.items()))
    notes = [_words(one) for one in found]
    notes += [_of_declared(_copies(names, one), declared_ms[names]) for names, one in sorted(declared.items())]
    return Identity(
        (
            *unnamed,
            *(f"{one} ({len(faults) - 1} more such pairs of series)" if len(faults) > 1 else one for one in faults[:1]),
        ),
        tuple(notes),
        found,
    )


def _without_a_name(fleet: Fleet) -> Iterator[str]:
    """A label that is missing was renamed or dropped on the way: several groups may stand under what is left."""
    for entry in fleet.entries():
        missing = [name for name in GROUP_LABELS if not entry.series.own_label(name)]
        if missing and entry.series.metric == GROUP_WRITABLE:
            there = ", ".join(name for name, _ in entry.series.labels) or "none"
            yield (
                f"{entry.series.metric}: a series without the label {missing[0]} (it has {there}); expected"
                f" {', '.join(GROUP_LABELS)}, as the operator writes them: a relabelling of Prometheus renamed or dropped it"
            )
            return


def _pairs(fleet: Fleet, metric: str, group: GroupKey) -> Iterator[tuple[RunsOfSeries, RunsOfSeries]]:
    for own in fleet.by_own_labels(metric, group).values():
        for one, other in combinations(own, 2):
            # One after the other is one group that was scraped in another way from then on.
            if max(one.runs[0].start_ms, other.runs[0].start_ms) < min(one.runs[-1].end_ms, other.runs[-1].end_ms):
                yield one, other


def _differ(pair: tuple[RunsOfSeries, RunsOfSeries], kind: str) -> tuple[str, ...]:
    one, other = (dict(getattr(entry.labels, kind)) for entry in pair)
    return tuple(sorted(name for name in {*one, *other} if one.get(name) != other.get(name)))


def _contradiction(fleet: Fleet, metric: str, pair: tuple[RunsOfSeries, RunsOfSeries]) -> Contradiction | None:
    one, other = pair
    if metric in _COUNTERS and one.labels.process != other.labels.process:
        return None
    return contradiction(one.runs, other.runs, fleet.slack_ms(one, other))


def _tells(fleet: Fleet, metric: str, pair: tuple[RunsOfSeries, RunsOfSeries]) -> bool:
    """Whether the two are one figure. Counters of two processes are, if they rose alike; else they are added."""
    one, other = pair
    if metric in _GAUGES or one.labels.process == other.labels.process:
        return True
    return rose_alike(one.runs, other.runs, fleet.slack_ms(one, other))


def _copies(names: Sequence[str], one: _Difference) -> Copies:
    return Copies({name: tuple(sorted(one.values[name])) for name in names}, tuple(sorted(one.groups)))


def _fault(metric: str, pair: tuple[RunsOfSeries, RunsOfSeries], names: Sequence[str], told: Contradiction) -> str:
    values = "; ".join(
        f"{name} {' and '.join(repr(dict(entry.labels.way).get(name, '')) for entry in pair)}" for name in names
    )
    option = names[0]
    value = dict(pair[0].labels.way).get(option, "")
    return (
        f"{metric} of {pair[0].group}: two series that differ in {values} contradict each other for"
        f" {told.length_ms / 1000:g} s, first at {utc(told.first_ms)}; expected copies of one group. If they are two groups,"
        f" report on each alone with --match {option}={value}; if they are copies, say --replica-label {option}"
    )


def _words(one: Copies) -> str:
    option, values = next(iter(one.labels.items()))
    return (
        f"{_groups(one.groups)}: several series that differ in {_labels(one)} and do not contradict each other were taken for"
        f" copies of one group, and count once. If they are copies, say --replica-label {option}; if they are groups of their own,"
        f" report on each alone with --match {option}={values[-1]}"
    )


def _of_declared(one: Copies, length_ms: int) -> str:
    return (
        f"{_groups(one.groups)}: copies by the label {_labels(one)} contradict each other for {length_ms / 1000:g} s: expected the"
        " same values of copies. Of counters the one that rose most counts, of the gauge that time is disputed"
    )


def _labels(one: Copies) -> str:
    return ", ".join(
        f"{name} ({', '.join(repr(value) for value in values[:_SHOWN])}{', ...' if len(values) > _SHOWN else ''})"
        for name, values in one.labels.items()
    )


def _groups(groups: Sequence[GroupKey]) -> str:
    more = f" and {len(groups) - _SHOWN} more groups" if len(groups) > _SHOWN else ""
    return ", ".join(map(str, groups[:_SHOWN])) + more
