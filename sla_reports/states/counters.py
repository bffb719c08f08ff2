"""What counters rose by in a window: it survives sampling, where a gauge sees a third of the short outages. And copies of one.

A counter that falls was reset by a new process and rose from zero: both rises count. A series that appears after its group was
seen before was zero until then; one that was there from the beginning says nothing of its first value. A rise belongs to the
sample that shows it, so what lies within one scrape of the window's edge may be counted in the next window.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import pairwise

from sla_reports.states.spans import CONFLICT, Run, Window, gap_limit_ms

# Floats that went through different forms of text.
_SAME = 1e-9


@dataclass(frozen=True, slots=True)
class Increase:
    """The rise, and how often the counter began anew."""

    rise: float
    resets: int

    def __add__(self, other: "Increase") -> "Increase":
        return Increase(self.rise + other.rise, self.resets + other.resets)


def increase(runs: Sequence[Run], window: Window, *, began_ms: int | None) -> Increase:
    """Return the rise of one series within the window. `began_ms` is when its group was first seen, if known."""
    steps = [step for step in _steps(runs, began_ms) if _inside(step[0], window)]
    return Increase(sum(rise for _, rise, _ in steps), sum(is_reset for *_, is_reset in steps))


def rises(runs: Sequence[Run], window: Window, *, began_ms: int | None) -> list[tuple[int, float]]:
    """Return the single rises within the window: when a sample showed each, and by how much."""
    return [(at_ms, rise) for at_ms, rise, _ in _steps(runs, began_ms) if rise > 0 and _inside(at_ms, window)]


def _steps(runs: Sequence[Run], began_ms: int | None) -> Iterator[tuple[int, float, bool]]:
    """When a sample showed another value, by how much the counter had risen, and whether it had begun anew."""
    known = [(run.start_ms, run.value) for run in runs if run.value is not None and run.value != CONFLICT]
    if known and began_ms is not None and known[0][0] > began_ms:
        yield known[0][0], known[0][1], False
    for (_, before), (at_ms, value) in pairwise(known):
        yield at_ms, (value - before if value >= before else value), value < before


def histogram_quantile(buckets: Mapping[float, float], quantile: float) -> tuple[float, float] | None:
    """Return the two bucket bounds around a quantile, by cumulative bucket rises (`le` to count); None without observations.

    The truth is somewhere between the two: that is the figure's error, and no straight line between them makes it smaller.
    """
    bounds = sorted(buckets)
    if not bounds or bounds[-1] != float("inf") or buckets[bounds[-1]] <= 0:
        return None
    rank = quantile * buckets[bounds[-1]]
    below = 0.0
    for bound in bounds:
        if buckets[bound] >= rank and buckets[bound] > 0:
            return below, bound
        below = bound
    return below, bounds[-1]


def _inside(at_ms: int, window: Window) -> bool:
    return window.start_ms <= at_ms < window.end_ms


@dataclass(frozen=True, slots=True)
class Contradiction:
    """For how long two series say different things, and when for the first time."""

    length_ms: int
    first_ms: int


def contradiction(one: Sequence[Run], other: Sequence[Run], slack_ms: int) -> Contradiction | None:
    """Return how two series contradict each other; None if they can be copies. `slack_ms` is cut off each end of each run."""
    firsts, seconds = _inner(one, slack_ms), _inner(other, slack_ms)
    found = [
        (max(low, other_low), min(high, other_high))
        for (low, high, value), (other_low, other_high, other_value) in _meeting(firsts, seconds)
        if abs(value - other_value) > _SAME * max(abs(value), abs(other_value), 1.0)
    ]
    if not found:
        return None
    return Contradiction(sum(high - low for low, high in found), found[0][0])


def rose_alike(one: Sequence[Run], other: Sequence[Run], slack_ms: int) -> bool:
    """Whether two counters rose by the same at the same times: no two processes do, so they are one counter."""
    low_ms = max(one[0].start_ms, other[0].start_ms) + slack_ms
    high_ms = min(one[-1].end_ms, other[-1].end_ms) - slack_ms
    rises = [
        [
            (after.start_ms, (after.value or 0.0) - (before.value or 0.0))
            for before, after in pairwise(known(runs))
            if after.value != before.value and low_ms < after.start_ms < high_ms
        ]
        for runs in (one, other)
    ]
    if not rises[0] or len(rises[0]) != len(rises[1]):
        return False
    alike = all(
        abs(at_ms - other_ms) <= slack_ms and abs(rise - other_rise) <= _SAME * max(abs(rise), 1.0)
        for (at_ms, rise), (other_ms, other_rise) in zip(*rises, strict=True)
    )
    return alike and contradiction(one, other, slack_ms) is None


def one_counter(copies: Iterable[Sequence[Run]], gap_ms: int) -> tuple[Run, ...]:
    """Merge the copies of one counter: the runs of the fullest copy, and in its gaps those of the others."""
    fullest, *others = sorted(
        (tuple(known(runs)) for runs in copies),
        key=lambda runs: sum(run.end_ms - run.start_ms for run in runs),
        reverse=True,
    )
    return reduce(lambda line, other: _filled(line, other, gap_ms), others, fullest)


def known(runs: Iterable[Run]) -> Iterator[Run]:
    """Drop stale markers, and instants with contradicting samples."""
    return (run for run in runs if run.value is not None and run.value != CONFLICT)


def _filled(line: tuple[Run, ...], other: Sequence[Run], gap_ms: int) -> tuple[Run, ...]:
    if not line:
        return tuple(other)
    margin_ms = gap_ms * 2 // 5
    holes = [
        (before.end_ms, after.start_ms) for before, after in pairwise(line) if after.start_ms - before.end_ms > gap_ms
    ]
    inside: list[Run] = []
    low_end, high_start = line[0].start_ms - margin_ms, line[-1].end_ms + margin_ms
    for run in other:
        for low, high in (
            (run.start_ms, low_end),
            *((low + margin_ms, high - margin_ms) for low, high in holes),
            (high_start, run.end_ms),
        ):
            start_ms, end_ms = max(run.start_ms, low), min(run.end_ms, high)
            if start_ms <= end_ms:
                inside.append(replace(run, start_ms=start_ms, end_ms=end_ms))
    return tuple(sorted((*line, *inside), key=lambda run: run.start_ms))


def _inner(runs: Sequence[Run], slack_ms: int) -> list[tuple[int, int, float]]:
    found = []
    for run in known(runs):
        own_ms = max(slack_ms, gap_limit_ms(run.longer_ms) // 2)
        if run.start_ms + own_ms < run.end_ms - own_ms:
            found.append((run.start_ms + own_ms, run.end_ms - own_ms, run.value or 0.0))
    return found


def _meeting(
    firsts: Sequence[tuple[int, int, float]], seconds: Sequence[tuple[int, int, float]]
) -> Iterator[tuple[tuple[int, int, float], tuple[int, int, float]]]:
    """The pairs that have time in common; both in order of time."""
    at = 0
    for first in firsts:
        while at < len(seconds) and seconds[at][1] <= first[0]:
            at += 1
        for second in seconds[at:]:
            if second[0] >= first[1]:
                break
            if max(first[0], second[0]) < min(first[1], second[1]):
                yield first, second
