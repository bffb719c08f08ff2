"""For which part of a window a group existed, as far as there is evidence; else the time without a sample is unknown.

* The operator says when the BrokerGroup was created (`brokergroup_created_timestamp_seconds`).
* Or its own scrape proves it: the target of the group was scraped right before the first sample (right after the last one) for ten
  scrapes and ten minutes, but without the group. A target that vanishes takes all of its series along.

The incident log is evidence against both: a group with an incident existed.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from metric_names import CREATED_TIMESTAMP_SECONDS, GROUP_WRITABLE, MEMBER_PLACE, SYNC_STATE_SET_SIZE
from sla_reports.states.counters import known
from sla_reports.states.entities import Fleet, GroupKey
from sla_reports.states.spans import Window, utc

# They end when the group does. Counters of a group stay on the page until the operator pod ends.
_OF_LIVING_GROUPS = (GROUP_WRITABLE, SYNC_STATE_SET_SIZE, MEMBER_PLACE, CREATED_TIMESTAMP_SECONDS)
_SCRAPES = 10
_LEAST_MS = 600_000
Interval = tuple[int, int]
_SHOWN = 3
_UNKNOWN = "That time is unknown; if there was no such group, exclude it by --amendments"
_BEFORE = (
    "Nothing proves that the group was made then: no earlier scrape of its operator, no creation time, or an incident in the log."
    f" {_UNKNOWN}"
)
_AFTER = (
    "Nothing proves that the group was deleted then: its operator was not scraped without it, or the log has a later incident."
    f" {_UNKNOWN}"
)


@dataclass(frozen=True, slots=True)
class Existence:
    """The times of the window in which the group did not exist, in order, and why that is known (`created`, `scrape`)."""

    absent: tuple[Interval, ...] = ()
    evidence: tuple[str, ...] = ()
    # The window begins (ends) without a sample of the group, and nothing shows whether it existed.
    unseen_before_ms: int | None = None
    unseen_after_ms: int | None = None

    def existed(self, window: Window) -> list[Interval]:
        """Return the parts of the window in which the group existed."""
        left, at_ms = [], window.start_ms
        for low, high in self.absent:
            if low > at_ms:
                left.append((at_ms, low))
            at_ms = high
        return [*left, (at_ms, window.end_ms)] if at_ms < window.end_ms else left


class Existences:
    """Answers for every group of a fleet; the log is by group, each incident from its begin to its end (the same, if open)."""

    def __init__(self, fleet: Fleet, logged: Mapping[GroupKey, Sequence[Interval]]) -> None:
        self._fleet, self._logged = fleet, logged
        scrapes: dict[object, list[Interval]] = {}
        for entry in fleet.entries():
            scrapes.setdefault(entry.labels.target, []).extend(fleet.scraped(entry))
        self._scraped = {target: _joined(seen, 0) for target, seen in scrapes.items()}

    def of(self, group: GroupKey, window: Window) -> Existence:
        """Return for which part of a window a group existed."""
        gap_ms = self._fleet.gap_ms(GROUP_WRITABLE, group)
        seen = self._sightings(group, _OF_LIVING_GROUPS)
        writable = self._sightings(group, (GROUP_WRITABLE,))
        if not writable:
            return Existence()
        entries = self._fleet.series_of(CREATED_TIMESTAMP_SECONDS, group)
        created_ms = sorted({round((run.value or 0.0) * 1000) for entry in entries for run in known(entry.runs)})
        absent: list[Interval] = []
        why: list[str] = []
        unseen: list[int | None] = [None, None]
        first_ms, last_ms = writable[0][0], seen[-1][1]
        if first_ms > window.start_ms + gap_ms:
            born_ms, evidence = self._born(group, first_ms, created_ms, window, gap_ms)
            if born_ms is None:
                unseen[0] = first_ms if first_ms > window.start_ms + _LEAST_MS else None
            elif born_ms > window.start_ms:
                absent.append((window.start_ms, min(born_ms, window.end_ms)))
                why.append(evidence)
        for (_, before_ms), (after_ms, _) in pairwise(seen):
            again_ms = next((at for at in created_ms if before_ms < at <= after_ms + gap_ms), None)
            if again_ms is not None and self._is_gone(group, before_ms, gap_ms, again_ms):
                absent.append((before_ms, after_ms if after_ms - again_ms <= gap_ms else again_ms))
                why.append("created")
        if last_ms < window.end_ms - gap_ms:
            if self._is_gone(group, last_ms, gap_ms, window.end_ms):
                absent.append((last_ms, window.end_ms))
                why.append("scrape")
            elif last_ms < window.end_ms - _LEAST_MS:
                unseen[1] = last_ms
        inside = [(max(low, window.start_ms), min(high, window.end_ms)) for low, high in absent]
        return Existence(
            tuple(one for one in inside if one[0] < one[1]), tuple(dict.fromkeys(why)), unseen[0], unseen[1]
        )

    def _sightings(self, group: GroupKey, metrics: Sequence[str]) -> list[Interval]:
        entries = (entry for metric in metrics for entry in self._fleet.series_of(metric, group))
        return _joined([one for entry in entries for one in self._fleet.scraped(entry)], 0)

    def _born(
        self, group: GroupKey, first_ms: int, created_ms: Sequence[int], window: Window, gap_ms: int
    ) -> tuple[int | None, str]:
        """When the group came to be, None where nothing shows it; and what shows it."""
        if any(
            start_ms < first_ms - gap_ms and end_ms >= window.start_ms
            for start_ms, end_ms in self._logged.get(group, ())
        ):
            return None, ""
        if created_ms:
            at_ms = created_ms[0]
            # The first scrape after it is the first thing that can be known.
            if at_ms > window.start_ms:
                return (first_ms if first_ms - at_ms <= gap_ms else at_ms), "created"
            return None, ""
        need_ms = max(_LEAST_MS, _SCRAPES * gap_ms * 2 // 5)
        targets = self._targets(group, lambda start_ms, _: start_ms <= first_ms + gap_ms)
        before = any(self._covers(target, first_ms - need_ms, first_ms - gap_ms) for target in targets)
        return (first_ms, "scrape") if before else (None, "")

    def _is_gone(self, group: GroupKey, last_ms: int, gap_ms: int, until_ms: int) -> bool:
        """Whether a scrape target of the group went on without the group's series."""
        if any(last_ms + gap_ms < start_ms < until_ms for start_ms, _ in self._logged.get(group, ())):
            return False
        need_ms = max(_LEAST_MS, _SCRAPES * gap_ms * 2 // 5)
        targets = self._targets(group, lambda start_ms, end_ms: start_ms <= last_ms <= end_ms + gap_ms)
        return any(self._covers(target, last_ms + gap_ms, last_ms + need_ms) for target in targets)

    def _targets(self, group: GroupKey, is_near: Callable[[int, int], bool]) -> set[object]:
        return {
            entry.labels.target
            for metric in _OF_LIVING_GROUPS
            for entry in self._fleet.series_of(metric, group)
            if any(is_near(low, high) for low, high in self._fleet.scraped(entry))
        }

    def _covers(self, target: object, low_ms: int, high_ms: int) -> bool:
        return any(low <= low_ms and high >= high_ms for low, high in self._scraped.get(target, ()))


def _joined(seen: Iterable[Interval], gap_ms: int) -> list[Interval]:
    """The intervals in order, those within the gap limit of each other as one."""
    found: list[Interval] = []
    for low, high in sorted(seen):
        if found and low - found[-1][1] <= gap_ms:
            found[-1] = (found[-1][0], max(found[-1][1], high))
        else:
            found.append((low, high))
    return found


def existence_notes(existences: Mapping[GroupKey, Existence], window: Window) -> Iterator[str]:
    """Yield a sentence for groups that existed in a part of the period, for groups that did not, and for edges without samples."""
    part = [
        f"{key} {existed_words(one, window)}" for key, one in existences.items() if one.absent and one.existed(window)
    ]
    if part:
        yield f"judged for the time in which it existed: {_named(part)}"
    gone = [str(key) for key, one in existences.items() if not one.existed(window)]
    if gone:
        yield f"not in this report, it did not exist in the period: {_named(gone)}"
    for at, words in (("before", _BEFORE), ("after", _AFTER)):
        unseen: dict[int, list[str]] = {}
        for key, one in existences.items():
            if (edge_ms := one.unseen_before_ms if at == "before" else one.unseen_after_ms) is not None:
                unseen.setdefault(edge_ms, []).append(str(key))
        if unseen:
            edge_ms = min(unseen)
            names = sorted(name for some in unseen.values() for name in some)
            since = utc(edge_ms) if len(unseen) == 1 else f"{utc(edge_ms)} (the first of them)"
            yield f"no sample {at} {since}: {_named(names)}. {words}"


def existed_words(one: Existence, window: Window) -> str:
    """`existed from ... to ...`, with an end only where it is one of the group's own."""
    times = []
    for low, high in one.existed(window):
        ends = [f"from {utc(low)}"] if low > window.start_ms else []
        ends += [f"to {utc(high)}"] if high < window.end_ms else []
        times.append(" ".join(ends))
    return f"existed {' and '.join(filter(None, times))}"


def _named(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
