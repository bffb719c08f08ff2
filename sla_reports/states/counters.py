"""What counters rose by in a window, out of value runs: they survive sampling, where a gauge sees a third of the short outages.

A counter that falls was reset by a new process and rose from zero: both rises count. A series that appears after its group was seen
before was zero until then; one that was there from the beginning tells nothing of its first value. A rise belongs to the sample
that shows it, so what lies within one scrape of the window's edge may be counted in the next window.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from sla_reports.reduction.runs import CONFLICT, Run
from sla_reports.states.spans import Window


@dataclass(frozen=True, slots=True)
class Increase:
    """The rise, and how often the counter began anew."""

    rise: float
    resets: int

    def __add__(self, other: "Increase") -> "Increase":
        return Increase(self.rise + other.rise, self.resets + other.resets)


def increase(runs: Sequence[Run], window: Window, *, began_ms: int | None) -> Increase:
    """The rise of one series within the window. `began_ms` is when its entity (group, process) was first seen, if known."""
    steps = [step for step in _steps(runs, began_ms) if _inside(step[0], window)]
    return Increase(sum(rise for _, rise, _ in steps), sum(is_reset for *_, is_reset in steps))


def rises(runs: Sequence[Run], window: Window, *, began_ms: int | None) -> list[tuple[int, float]]:
    """The single rises within the window: when a sample showed each, and by how much."""
    return [(at_ms, rise) for at_ms, rise, _ in _steps(runs, began_ms) if rise > 0 and _inside(at_ms, window)]


def _steps(runs: Sequence[Run], began_ms: int | None) -> Iterator[tuple[int, float, bool]]:
    """When a sample showed another value, by how much the counter had risen, and whether it had begun anew."""
    known = [(run.start_ms, run.value) for run in runs if run.value is not None and run.value != CONFLICT]
    if known and began_ms is not None and known[0][0] > began_ms:
        yield known[0][0], known[0][1], False
    for (_, before), (at_ms, value) in pairwise(known):
        yield at_ms, (value - before if value >= before else value), value < before


def histogram_quantile(buckets: Mapping[float, float], quantile: float) -> tuple[float, float] | None:
    """Between which two bounds the quantile lies, out of cumulative bucket rises (`le` to count); None without observations.

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
