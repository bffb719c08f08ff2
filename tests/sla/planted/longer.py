"""Hours at a longer interval, found in plain samples: what `intervals.ranges` tells, without Spark and of any number of hours."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from sla_reports.reduction.runs import HOUR_MS, Longer, even_distance, gap_limit_ms

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.sla.reference import Sample


def longer_hours(samples: Iterable[Sample], usual_ms: int) -> dict[str, tuple[Longer, ...]]:
    """For each series that has some: each hour whose samples are even and further apart than the usual gap limit."""
    hours: dict[tuple[str, int], list[int]] = {}
    for series, at_ms, _ in sorted(samples):
        hours.setdefault((series, at_ms // HOUR_MS), []).append(at_ms)
    found: dict[str, tuple[Longer, ...]] = {}
    for (series, hour), times in sorted(hours.items()):
        even_ms = even_distance(np.array(times))
        if even_ms > gap_limit_ms(usual_ms):
            one = Longer(hour * HOUR_MS, (hour + 1) * HOUR_MS, round(even_ms, -3))
            found[series] = (*found.get(series, ()), one)
    return found
