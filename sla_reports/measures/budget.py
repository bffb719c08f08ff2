"""The error budget in minutes, how fast it burns, and how the period will probably end.

    budget     = (1 - objective) * counted time          spent = down in it          left = budget - spent
    burn rate  = (down / time) / (1 - objective)          over the last hour, six hours, three days: 1 spends it exactly
    forecast   = spent + failures to come * MTTR          failures to come: as many per time as so far, with Poisson's interval

Outages of a whole group are rare and total: one of three minutes is a seventh of the budget of 99.95 % over a month. That is why
the budget is told in minutes and why the forecast is an interval, not a line.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sla_reports.measures.reliability import poisson_bounds
from sla_reports.states.spans import Span, State, Window, clip, total_ms

_HOUR_MS = 3_600_000
BURN_WINDOWS_MS = {"1h": _HOUR_MS, "6h": 6 * _HOUR_MS, "3d": 72 * _HOUR_MS}


@dataclass(frozen=True, slots=True)
class Forecast:
    """What will have been spent when the period ends, and when the budget was or will be gone (None: not in the period)."""

    spent_ms: float
    low_ms: float
    high_ms: float
    gone_at_ms: int | None


@dataclass(frozen=True, slots=True)
class Budget:
    """Milliseconds of down allowed in the period, and what became of them."""

    allowed_ms: float
    spent_ms: int
    burn_rates: Mapping[str, float | None]
    forecast: Forecast | None

    @property
    def left_ms(self) -> float:
        return self.allowed_ms - self.spent_ms


def budget(
    counted: Sequence[Span],
    period: Window,
    *,
    objective: float,
    now_ms: int,
    spent_ms: int,
    failures: int,
    excluded_ms: int = 0,
) -> Budget:
    """Of the spans that count in the period. `now_ms` is where the data ends: the period may still be running.

    `spent_ms` is the down of the availability.
    """
    allowed_ms = (1 - objective) * (period.length_ms - excluded_ms)
    until_ms = min(now_ms, period.end_ms)
    return Budget(
        allowed_ms=allowed_ms,
        spent_ms=spent_ms,
        burn_rates={name: _burn(counted, until_ms, ms, objective) for name, ms in BURN_WINDOWS_MS.items()},
        forecast=_forecast(counted, period, until_ms, spent_ms, allowed_ms, failures)
        if until_ms > period.start_ms
        else None,
    )


def _burn(counted: Sequence[Span], until_ms: int, length_ms: int, objective: float) -> float | None:
    """None where nothing is known of those hours."""
    if until_ms <= length_ms:
        return None
    last = Window(until_ms - length_ms, until_ms)
    pieces = [piece for span in counted for piece in clip([span], last)]
    down, up = total_ms(pieces, State.DOWN), total_ms(pieces, State.UP)
    return down / (up + down) / (1 - objective) if up + down else None


def _forecast(
    counted: Sequence[Span], period: Window, until_ms: int, spent_ms: int, allowed_ms: float, failures: int
) -> Forecast:
    """At the rate and the mean length of the failures so far; without any the low and middle are what is spent now."""
    passed_ms, ahead_ms = until_ms - period.start_ms, period.end_ms - until_ms
    each_ms = spent_ms / failures if failures else 0.0
    low, high = (bound * ahead_ms / passed_ms * each_ms for bound in poisson_bounds(failures))
    rate = spent_ms / passed_ms
    gone_at_ms = _spent_at_ms(counted, allowed_ms)
    if gone_at_ms is None and rate > 0:
        at_ms = until_ms + max(0.0, allowed_ms - spent_ms) / rate
        gone_at_ms = round(at_ms) if at_ms <= period.end_ms else None
    return Forecast(spent_ms + rate * ahead_ms, spent_ms + low, spent_ms + high, gone_at_ms)


def _spent_at_ms(counted: Sequence[Span], allowed_ms: float) -> int | None:
    """The moment in which the last of the budget was spent; None while some is left."""
    left_ms = allowed_ms
    for span in counted:
        if span.state is State.DOWN:
            if span.length_ms > left_ms:
                return span.start_ms + round(left_ms)
            left_ms -= span.length_ms
    return None
