"""A run: consecutive samples of one series with the same value and no gap between them. And what a longer scrape interval is.

Runs of adjacent chunks merge, and merging is associative, so a month may be reduced by the minute, by the day or at once, in any
order of the parts, and the answer is the same to the millisecond. A run says what was *seen*: it begins at its first sample and
ends at its last. `sla_reports.states` decides what held after the last sample.

Two samples further apart than `gap_ms` do not join. The rule is 2.5 scrape intervals: one lost scrape is not a gap, two are.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

import numpy as np

# The value of an instant for which one series has samples that contradict each other.
CONFLICT = -math.inf
RUN_SCHEMA = "series string, value double, start_ms long, end_ms long, n long, longer_ms long"
HOUR_MS: Final = 3_600_000
DAY_MS: Final = 86_400_000
DEFAULT_INTERVAL_MS: Final = 15_000
MIN_INTERVAL_MS: Final = 20
FULLEST_HOURS: Final = 3
LEAST_DISTANCES: Final = 10
MOST_UNLIKE: Final = 3
ALIKE_PART: Final = 25
# Fewer hours at a longer interval stay as they are: they are few runs.
LEAST_HOURS: Final = 12
ROUNDED_FROM_MS: Final = 10_000
MOST_RANGES: Final = 50


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
    """The longest time between two samples that still says what held between them."""
    return interval_ms * 5 // 2


def by_series(runs: Iterable[Run]) -> dict[str, tuple[Run, ...]]:
    """The runs of each series, in order of time. Raises ValueError where two of one series overlap."""
    found: dict[str, list[Run]] = {}
    for run in sorted(runs, key=lambda run: (run.series, run.start_ms)):
        found.setdefault(run.series, []).append(run)
    for series, ordered in found.items():
        for earlier, later in pairwise(ordered):
            if earlier.end_ms >= later.start_ms:
                raise ValueError(f"runs of {series} overlap at {later.start_ms} ms")
    return {series: tuple(ordered) for series, ordered in found.items()}


@dataclass(frozen=True, slots=True)
class Longer:
    """From `from_ms` up to `until_ms` the samples of a series were `longer_ms` apart."""

    from_ms: int
    until_ms: int
    longer_ms: int


def infer(times_ms: np.ndarray, *, default_ms: int) -> tuple[int, tuple[Longer, ...]]:
    """Return the scrape interval of a series and the hours at a longer one, from the times of all its samples, in order.

    The interval is the median distance in the three fullest hours, so neither an export that was read twice nor a long silence
    changes it. Judged by its gap limit each sample of an hour at a longer interval would be a run of its own: a month at 60 s
    after a day at 15 s is 42,000 runs a series. So such hours are reduced by their own interval, which their runs carry
    (`Run.longer_ms`).
    """
    hours, counts = np.unique(times_ms // HOUR_MS, return_counts=True)
    distinct = times_ms[np.append(True, np.diff(times_ms) > 0)]
    hour_of = distinct // HOUR_MS
    fullest = hours[np.lexsort((hours, -counts))[:FULLEST_HOURS]]
    usual_ms = usual_interval(distinct[np.isin(hour_of, fullest)], default_ms=default_ms)
    gap_ms = gap_limit_ms(usual_ms)
    # Twice: an export may hold each sample twice.
    few = hours[(counts > LEAST_DISTANCES) & (counts <= 2 * HOUR_MS / gap_ms)]
    if len(few) < LEAST_HOURS:
        return usual_ms, ()
    edges = zip(few.tolist(), *(np.searchsorted(hour_of, few, side=side) for side in ("left", "right")), strict=True)
    even = [(hour, even_distance(distinct[begin:end])) for hour, begin, end in edges]
    return usual_ms, longer_ranges([one for one in even if one[1] > gap_ms])


def usual_interval(times_ms: np.ndarray, *, default_ms: int) -> int:
    """Return the median distance within hours of distinct times, in order; `default_ms` if there is none."""
    distances = np.diff(times_ms)[np.diff(times_ms // HOUR_MS) == 0]
    median = int(np.sort(distances)[(len(distances) - 1) // 2]) if len(distances) else default_ms
    return max(median, MIN_INTERVAL_MS)


def longer_ranges(hours: Iterable[tuple[int, int]]) -> tuple[Longer, ...]:
    """Return ranges of hours of one longer interval, from hours and their even distances; none if there are few hours."""
    found: list[Longer] = []
    count = 0
    for hour, even_ms in sorted(hours):
        count += 1
        # Medians of neighbouring hours differ by milliseconds; so their runs join.
        longer_ms = (even_ms + 500) // 1000 * 1000 if even_ms >= ROUNDED_FROM_MS else even_ms
        if found and (found[-1].until_ms, found[-1].longer_ms) == (hour * HOUR_MS, longer_ms):
            found[-1] = replace(found[-1], until_ms=(hour + 1) * HOUR_MS)
        else:
            found.append(Longer(hour * HOUR_MS, (hour + 1) * HOUR_MS, longer_ms))
    if count < LEAST_HOURS:
        return ()
    # Of each series the longest: a sample is compared with every range of its series.
    longest = sorted(found, key=lambda one: (one.from_ms - one.until_ms, one.from_ms))[:MOST_RANGES]
    return tuple(sorted(longest, key=lambda one: one.from_ms))


def even_distance(times_ms: np.ndarray) -> int:
    """Return the usual distance of these times (in order) if they are even enough, else 0.

    Even enough is what `states.spans` finds ten like distances in a row in, at every place: ten distances or more, none shorter
    than their median by more than a twenty-fifth, at most three longer.
    """
    distances = np.diff(times_ms)
    if len(distances) < LEAST_DISTANCES:
        return 0
    median = int(np.sort(distances)[(len(distances) - 1) // 2])
    unlike = (distances - median) * ALIKE_PART
    return median if (unlike > median).sum() <= MOST_UNLIKE and not (-unlike > median).any() else 0


def is_even(least: np.ndarray, most: np.ndarray) -> np.ndarray:
    """Whether distances from `least` to `most` are all like their median."""
    found: np.ndarray = (most - least) * ALIKE_PART <= least
    return found
