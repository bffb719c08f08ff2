"""Ages as kubectl prints them (k8s.io/apimachinery/pkg/util/duration.HumanDuration)."""

from __future__ import annotations

from datetime import datetime
from typing import Any

_MINUTE, _HOUR, _DAY, _YEAR = 60, 3_600, 86_400, 365 * 86_400
#: below this many seconds: the first unit and, unless 0, the second
_STEPS = (
    (2 * _MINUTE, 1, "s", 0, ""),
    (10 * _MINUTE, _MINUTE, "m", 1, "s"),
    (3 * _HOUR, _MINUTE, "m", 0, ""),
    (8 * _HOUR, _HOUR, "h", _MINUTE, "m"),
    (2 * _DAY, _HOUR, "h", 0, ""),
    (8 * _DAY, _DAY, "d", _HOUR, "h"),
    (2 * _YEAR, _DAY, "d", 0, ""),
    (8 * _YEAR, _YEAR, "y", _DAY, "d"),
)


def human_duration(seconds: float) -> str:
    """`5s`, `2m30s`, `17m`, `3h5m`, `2d4h`, `400d`, `3y20d`."""
    whole = int(seconds)
    if whole < 0:
        return "0s" if whole >= -1 else "<invalid>"
    for below, first, first_unit, second, second_unit in _STEPS:
        if whole < below:
            return _two(whole // first, first_unit, whole % first // second if second else 0, second_unit)
    return f"{whole // _YEAR}y"


def _two(first: int, first_unit: str, second: int, second_unit: str) -> str:
    return f"{first}{first_unit}{second}{second_unit}" if second else f"{first}{first_unit}"


def epoch_seconds(text: Any) -> float | None:
    """A metav1.Time or MicroTime as seconds since the epoch."""
    if not isinstance(text, str):
        return None
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return None


def age(text: Any, now_seconds: float) -> str:
    """How long ago a timestamp was; `<unknown>` where there is none."""
    then = epoch_seconds(text)
    return "<unknown>" if then is None else human_duration(now_seconds - then)
