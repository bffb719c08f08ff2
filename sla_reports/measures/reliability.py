"""MTTR and MTBF with 95 % confidence intervals: three failures in a month say little, and the interval says how little.

    MTTR = time in failure / failures that ended      MTBF = time up / failures that began

Failures are taken to come by chance at a constant rate, repairs to end so. Then 2 (time) / (true mean) is chi-square distributed
with 2 n degrees of freedom, and these intervals are exact (for MTBF Garwood's, of the Poisson count). Open failures add
their time but no end. Without a failure MTBF has only a lower bound.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

from sla_reports.outages.incidents import Incident
from sla_reports.states.spans import Window

CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean of `n` events and its interval in milliseconds; None: no bound on that side, or nothing to take a mean of."""

    n: int
    mean_ms: float | None
    low_ms: float | None
    high_ms: float | None


def mttr(incidents: Sequence[Incident], window: Window, *, running: bool = False) -> Estimate:
    """Mean time to repair of the unplanned failures that began in the window."""
    durations = [one.whole(window.end_ms, running=running) for one in _failures(incidents, window)]
    ended = sum(not is_open for _, is_open in durations)
    return _estimate(sum(length for length, _ in durations), ended, shape_of_low=ended)


def mtbf(incidents: Sequence[Incident], window: Window, *, up_ms: int) -> Estimate:
    """Mean time between the unplanned failures that began in the window."""
    failures = len(_failures(incidents, window))
    # A count over a fixed time: one more event might have been just about to come.
    return _estimate(float(up_ms), failures, shape_of_low=failures + 1)


def poisson_bounds(count: int) -> tuple[float, float]:
    """The interval of a Poisson mean of which `count` were seen (Garwood)."""
    tail = (1 - CONFIDENCE) / 2
    low = gamma_quantile(count, tail) if count else 0.0
    return low, gamma_quantile(count + 1, 1 - tail)


@cache
def gamma_quantile(shape: float, share: float) -> float:
    """The value a gamma variate (scale 1) does not exceed with probability `share`; by bisection, to 12 digits."""
    high = shape + 10.0
    while regularised_gamma(shape, high) < share:
        high *= 2
    return _bisect(lambda value: regularised_gamma(shape, value) - share, 0.0, high)


def regularised_gamma(shape: float, value: float) -> float:
    """P(shape, value), the lower one: by its series below the mean, by the continued fraction of Q above."""
    if value <= 0:
        return 0.0
    front = math.exp(shape * math.log(value) - value - math.lgamma(shape))
    if value < shape + 1:
        term = total = 1.0 / shape
        number = shape
        while abs(term) > abs(total) * 1e-16:
            number += 1
            term *= value / number
            total += term
        return front * total
    return 1.0 - front * _continued_fraction(shape, value)


def _continued_fraction(shape: float, value: float) -> float:
    """Lentz's method."""
    tiny = 1e-300
    b = value + 1 - shape
    c, d = 1 / tiny, 1 / b
    result = d
    for number in range(1, 10_000):
        a = -number * (number - shape)
        b += 2
        d = 1 / (a * d + b or tiny)
        c = b + a / c or tiny
        result *= c * d
        if abs(c * d - 1) < 1e-15:
            break
    return result


def _bisect(rises: Callable[[float], float], low: float, high: float) -> float:
    while high - low > 1e-12 * max(1.0, high):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (middle, high) if rises(middle) < 0 else (low, middle)
    return (low + high) / 2


def _estimate(spent_ms: float, count: int, *, shape_of_low: int) -> Estimate:
    tail = (1 - CONFIDENCE) / 2
    low = spent_ms / gamma_quantile(shape_of_low, 1 - tail) if shape_of_low and spent_ms else None
    if not count:
        return Estimate(0, None, low, None)
    return Estimate(count, spent_ms / count, low, spent_ms / gamma_quantile(count, tail))


def _failures(incidents: Sequence[Incident], window: Window) -> list[Incident]:
    return [one for one in incidents if not one.planned and one.began_in(window)]
