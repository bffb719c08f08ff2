"""What is known of each instant: spans of one state, made of runs, and how far apart samples may be.

A sample holds until the next one, if that comes within the gap limit. Otherwise nothing is known from the sample on, nor before
the first one: an exporter that is silent during an outage must not turn it into availability. If the window ends within the gap
limit of the last sample, that sample holds until then. Where the scrape interval changes, so does the gap limit.
If two sources contradict each other, the time is disputed: neither up nor down, and both bounds of the availability show it
(`agreed`). Spans are half-open `[start_ms, end_ms)`, adjacent and not empty; neighbours differ in state.
"""

import datetime as dt
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import pairwise, zip_longest
from statistics import median_low

# The value of an instant for which one series has samples that contradict each other.
CONFLICT = -math.inf
_IN_A_ROW = 10
_ALIKE = 7


@dataclass(frozen=True, slots=True)
class Run:
    """`n` samples of `value` from `start_ms` (the first) to `end_ms` (the last). No value: stale markers.

    `longer_ms`: how far apart they were where that is more than the series' gap limit (`Longer`); else 0.
    """

    series: str
    value: float | None
    start_ms: int
    end_ms: int
    n: int
    longer_ms: int = 0


def gap_limit_ms(interval_ms: int) -> int:
    """Return the longest time between two samples that still counts as known: one lost scrape is no gap, two are."""
    return interval_ms * 5 // 2


def by_series(runs: Iterable[Run]) -> dict[str, tuple[Run, ...]]:
    """Return the runs of each series, in order of time. Raises ValueError if two of one series overlap."""
    found: dict[str, list[Run]] = {}
    for run in sorted(runs, key=lambda run: (run.series, run.start_ms)):
        found.setdefault(run.series, []).append(run)
    for series, ordered in found.items():
        for earlier, later in pairwise(ordered):
            if earlier.end_ms >= later.start_ms:
                raise ValueError(f"runs of {series} overlap at {later.start_ms} ms")
    return {series: tuple(ordered) for series, ordered in found.items()}


class State(StrEnum):
    """What is known of an instant."""

    UP = "up"
    DOWN = "down"
    UNKNOWN = "unknown"
    DISPUTED = "disputed"


@dataclass(frozen=True, slots=True, order=True)
class Span:
    """One state from `start_ms` up to, not including, `end_ms`."""

    start_ms: int
    end_ms: int
    state: State

    @property
    def length_ms(self) -> int:
        return self.end_ms - self.start_ms


@dataclass(frozen=True, slots=True)
class Window:
    """The time a figure is about: `[start_ms, end_ms)`."""

    start_ms: int
    end_ms: int

    def __post_init__(self) -> None:
        if self.start_ms >= self.end_ms:
            raise ValueError(f"window: start {self.start_ms} ms, end {self.end_ms} ms; expected a start before the end")

    @property
    def length_ms(self) -> int:
        return self.end_ms - self.start_ms


@dataclass(frozen=True, slots=True)
class Stretch:
    """A time in which samples came at another interval than the usual one."""

    start_ms: int
    end_ms: int
    interval_ms: int

    @property
    def length_ms(self) -> int:
        return self.end_ms - self.start_ms


@dataclass(frozen=True, slots=True)
class ScrapeInterval:
    """The interval that held at an instant: that of the stretch, else the usual one."""

    usual_ms: int
    stretches: tuple[Stretch, ...] = ()

    @classmethod
    def of(cls, interval: "int | ScrapeInterval") -> "ScrapeInterval":
        """Return the interval itself, or one that never changed."""
        return cls(interval) if isinstance(interval, int) else interval

    def at(self, at_ms: int) -> int:
        """Return the interval that held at an instant."""
        inside = (one.interval_ms for one in self.stretches if one.start_ms <= at_ms <= one.end_ms)
        return max(inside, default=self.usual_ms)


def at_least(threshold: float) -> Callable[[float | None], State]:
    """Up while the value is `threshold` or more: 1 for a gauge of health, the promised size for the SyncStateSet's size."""

    def state(value: float | None) -> State:
        if value is None:
            return State.UNKNOWN
        if value == CONFLICT:
            return State.DISPUTED
        return State.UP if value >= threshold else State.DOWN

    return state


def spans_of(
    runs: Sequence[Run], window: Window, state_of: Callable[[float | None], State], gap_ms: int | Sequence[int]
) -> list[Span]:
    """Return the states of one series over the whole window; `runs` in order of time, also those shortly before the window.

    `gap_ms` is the gap limit, or that after each run.
    """
    pieces: list[Span] = []
    known_until = window.start_ms
    limits = gap_limits(runs, gap_ms) if isinstance(gap_ms, int) else gap_ms
    for number, run in enumerate(runs):
        if run.start_ms > known_until:
            pieces.append(Span(known_until, run.start_ms, State.UNKNOWN))
        following = runs[number + 1].start_ms if number + 1 < len(runs) else window.end_ms
        holds_until = following if following - run.end_ms <= limits[number] else run.end_ms
        if holds_until > run.start_ms:
            pieces.append(Span(run.start_ms, holds_until, state_of(run.value)))
        known_until = max(holds_until, known_until)
    pieces.append(Span(known_until, max(known_until, window.end_ms), State.UNKNOWN))
    return clip(pieces, window)


def clip(spans: Iterable[Span], window: Window) -> list[Span]:
    """Cut the spans to the window; neighbours of one state become one."""
    joined: list[Span] = []
    begun_ms, known_ms, state = window.start_ms, window.start_ms, None
    for span in spans:
        start_ms, end_ms = max(span.start_ms, window.start_ms), min(span.end_ms, window.end_ms)
        if start_ms >= end_ms:
            continue
        if span.state is not state or start_ms != known_ms:
            if state is not None:
                joined.append(Span(begun_ms, known_ms, state))
            begun_ms, state = start_ms, span.state
        known_ms = end_ms
    if state is not None:
        joined.append(Span(begun_ms, known_ms, state))
    return joined


def combine(lines: Sequence[Sequence[Span]], decide: Callable[[Sequence[State]], State]) -> list[Span]:
    """Return one line of spans out of several over the same window, by what `decide` says to the states at each instant."""
    return _swept(lines, lambda current, _: decide(current))


def combine_present(lines: Sequence[Sequence[Span]], decide: Callable[[Collection[State]], State]) -> list[Span]:
    """As `combine`, but `decide` gets only which states there are, at a cost that does not grow with the number of lines.

    A year of a thousand groups of one cluster is 70,000 changes; with all lines looked at for each the report took an hour.
    """
    return _swept(lines, lambda _, present: decide([one for one in State if present[one]]))


def _swept(lines: Sequence[Sequence[Span]], decide: Callable[[list[State], Counter[State]], State]) -> list[Span]:
    """One step for each change of any line. Raises ValueError if the lines are about different windows."""
    if not lines or not all(lines):
        raise ValueError("combine: expected at least one line of spans, and none of them empty")
    window = Window(lines[0][0].start_ms, lines[0][-1].end_ms)
    if any((line[0].start_ms, line[-1].end_ms) != (window.start_ms, window.end_ms) for line in lines):
        raise ValueError("combine: the lines are about different windows")
    current = [line[0].state for line in lines]
    present = Counter(current)
    changes = sorted((span.start_ms, number, span.state) for number, line in enumerate(lines) for span in line)
    pieces = []
    for (at_ms, number, state), following in zip_longest(changes, changes[1:]):
        present[current[number]] -= 1
        current[number] = state
        present[state] += 1
        end_ms = window.end_ms if following is None else following[0]
        if end_ms > at_ms:
            pieces.append(Span(at_ms, end_ms, decide(current, present)))
    return clip(pieces, window)


def agreed(lines: Sequence[Sequence[Span]], interval: ScrapeInterval) -> list[Span]:
    """Merge lines about one thing: HA pairs of Prometheus, operator pods. Their order does not matter.

    What one alone knows holds. Two that were scraped at different times contradict each other for less than a scrape interval
    after a change: there the newer one holds, which is the one that changed. A longer contradiction is disputed.
    """
    known = _newer_wins(combine(lines, _common), interval)
    return combine([known, *lines], _else_disputed)


def _common(states: Sequence[State]) -> State:
    """Without those that contradict themselves."""
    known = {state for state in states if state in {State.UP, State.DOWN}}
    if not known:
        return State.UNKNOWN
    return known.pop() if len(known) == 1 else State.DISPUTED


def _else_disputed(states: Sequence[State]) -> State:
    """The first is what the copies agree about; where none knows, one may contradict itself."""
    common, *copies = states
    return State.DISPUTED if common is State.UNKNOWN and State.DISPUTED in copies else common


def _newer_wins(line: Sequence[Span], interval: ScrapeInterval) -> list[Span]:
    """Short disputes decided: each begins where one of the copies was seen to change from what all had said before."""
    other = {State.UP: State.DOWN, State.DOWN: State.UP}
    found = list(line)
    for number in range(1, len(found)):
        span, before = found[number], found[number - 1]
        if span.state is State.DISPUTED and span.length_ms <= interval.at(span.start_ms) and before.state in other:
            found[number] = replace(span, state=other[before.state])
    return clip(found, Window(line[0].start_ms, line[-1].end_ms))


def any_up(states: Collection[State]) -> State:
    """Up while one is (cluster write: an unordered producer goes to another group); down only if all are known to be down."""
    return next((state for state in (State.UP, State.UNKNOWN, State.DISPUTED) if state in states), State.DOWN)


def all_up(states: Collection[State]) -> State:
    """Up while all are (ordered write: every group has its queues); down as soon as one is known to be down."""
    return next((state for state in (State.DOWN, State.UNKNOWN, State.DISPUTED) if state in states), State.UP)


def overlay(spans: Sequence[Span], more: Iterable[Span]) -> list[Span]:
    """Put `more` over `spans`, later entries over earlier ones; the window stays."""
    window = Window(spans[0].start_ms, spans[-1].end_ms)
    line = list(spans)
    for put in more:
        inside = clip([put], window)
        if not inside:
            continue
        over = inside[0]
        left = [Span(s.start_ms, min(s.end_ms, over.start_ms), s.state) for s in line if s.start_ms < over.start_ms]
        right = [Span(max(s.start_ms, over.end_ms), s.end_ms, s.state) for s in line if s.end_ms > over.end_ms]
        line = clip([*left, over, *right], window)
    return line


def without(spans: Iterable[Span], taken: Iterable[tuple[int, int | None]]) -> list[Span]:
    """Take the intervals [start, end) out of the spans; an interval without an end has no end."""
    left = list(spans)
    for start_ms, end_ms in taken:
        pieces: list[Span] = []
        for one in left:
            if one.end_ms <= start_ms or (end_ms is not None and end_ms <= one.start_ms):
                pieces.append(one)
                continue
            if one.start_ms < start_ms:
                pieces.append(Span(one.start_ms, start_ms, one.state))
            if end_ms is not None and end_ms < one.end_ms:
                pieces.append(Span(max(start_ms, end_ms), one.end_ms, one.state))
        left = pieces
    return left


def total_ms(spans: Iterable[Span], state: State) -> int:
    """Return how long the state held."""
    return sum(span.length_ms for span in spans if span.state is state)


# How far the first sample of the next run is, and after which run; of samples within a run: how far the next one is, and which run.
_Distance = tuple[int, int]


def gap_limits(runs: Sequence[Run], gap_ms: int) -> list[int]:
    """Return the gap limit after each run: that of the series, or of the longer interval that held there."""
    limits = [gap_ms] * len(runs)
    for row in _rows(runs, gap_ms):
        for begin, interval_ms in _even(row):
            # Also what leads to the first and follows the last of them.
            for _, number in row[max(0, begin - 1) : begin + _IN_A_ROW + 1]:
                limits[number] = max(limits[number], gap_limit_ms(interval_ms))
    return limits


def stretches(runs: Sequence[Run], gap_ms: int) -> tuple[Stretch, ...]:
    """Return when another interval held, in order."""
    found: list[Stretch] = []
    limits = gap_limits(runs, gap_ms)
    for number, run in enumerate(runs):
        if _is_thin(run, gap_ms):
            _add(found, Stretch(run.start_ms, run.end_ms, run.longer_ms))
        distance_ms = runs[number + 1].start_ms - run.end_ms if number + 1 < len(runs) else 0
        if gap_ms < distance_ms <= limits[number]:
            _add(found, Stretch(run.end_ms, runs[number + 1].start_ms, limits[number] * 2 // 5))
    return tuple(found)


def _add(found: list[Stretch], one: Stretch) -> None:
    """As a stretch of its own, or as more of the last one."""
    last = found[-1] if found else None
    if last and last.end_ms == one.start_ms and abs(last.interval_ms - one.interval_ms) * 10 <= last.interval_ms:
        found[-1] = replace(last, end_ms=one.end_ms)
    else:
        found.append(one)


def _is_thin(run: Run, gap_ms: int) -> bool:
    """Whether the samples within a run are further apart than the gap limit (`runs.Longer`)."""
    return run.longer_ms > gap_ms and run.end_ms > run.start_ms


def _rows(runs: Sequence[Run], gap_ms: int) -> Iterator[list[_Distance]]:
    """The distances over the gap limit; together those that follow each other without samples at the usual interval in between."""
    row: list[_Distance] = []
    for number, run in enumerate(runs):
        if _is_thin(run, gap_ms):
            # Ten of them say what all of them do: no more are looked at in a row.
            inner = min(_IN_A_ROW, max(1, round((run.end_ms - run.start_ms) / run.longer_ms)))
            row += [(run.longer_ms, number)] * inner
        elif run.end_ms > run.start_ms:
            yield row
            row = []
        # The last one has no next sample: what leads to the window's end belongs to its row.
        distance_ms = runs[number + 1].start_ms - run.end_ms if number + 1 < len(runs) else 0
        if 0 < distance_ms <= gap_ms:
            yield row
            row = []
        else:
            row.append((distance_ms, number))
    yield row


def _even(row: Sequence[_Distance]) -> Iterator[tuple[int, int]]:
    """Where ten distances in a row are of one interval, and which."""
    lengths = [length for length, _ in row]
    for begin in range(len(lengths) - _IN_A_ROW + 1):
        ten = lengths[begin : begin + _IN_A_ROW]
        interval_ms = median_low(ten)
        if sum(abs(one - interval_ms) * 10 <= interval_ms for one in ten) >= _ALIKE:
            yield begin, interval_ms


def utc(at_ms: int) -> str:
    """Format an instant in UTC, to the second."""
    return dt.datetime.fromtimestamp(at_ms / 1000, dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
