"""Hours in which a series came evenly, but further apart than its usual gap limit: the interval was changed, or the store is thin.

Judged by the usual gap limit each sample of such an hour is a run of its own: a month at 60 s after a day at 15 s is 42,000 runs a
series, and no driver has room for a fleet of them. So these hours are reduced by their own interval, which their runs carry
(`Run.longer_ms`). An hour counts as one of them only where `sla_reports.states.stretches` finds ten like distances in a row at
every place of it: ten distances or more, none shorter than their median by more than a twenty-fifth, at most three longer. Any
other hour stays as it is, and so do a series' hours if there are fewer than twelve: they are few runs.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

HOUR_MS: Final = 3_600_000
LEAST_DISTANCES: Final = 10
MOST_UNLIKE: Final = 3
ALIKE_PART: Final = 25
# Fewer are not worth that an export is read once more.
LEAST_HOURS: Final = 12
# Medians of neighbouring hours differ by milliseconds; so their runs join.
ROUNDED_FROM_MS: Final = 10_000
ROUNDED_TO_MS: Final = 1_000
# Of each series the longest: a sample is compared with every range of its series.
MOST_RANGES: Final = 50


@dataclass(frozen=True, slots=True)
class Longer:
    """From `from_ms` up to `until_ms` the samples of a series were `longer_ms` apart."""

    from_ms: int
    until_ms: int
    longer_ms: int


def even_distance(times_ms: np.ndarray) -> int:
    """The usual distance of these times (in order) where they are even enough; else 0."""
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


def ranges_by_series(rows: Iterable[tuple[str, int, int, int]]) -> Mapping[str, tuple[Longer, ...]]:
    """The rows of `intervals.ranges` for each series, in order of time."""
    found: dict[str, list[Longer]] = {}
    for series, *one in rows:
        found.setdefault(series, []).append(Longer(*one))
    return {series: tuple(sorted(own, key=lambda one: one.from_ms)) for series, own in found.items()}
