"""The whole reduction on plain lists, slow and plain on purpose: what Spark is compared with."""

from __future__ import annotations

import math
from itertools import groupby
from typing import TYPE_CHECKING

from sla_reports.reduction.runs import Run

if TYPE_CHECKING:
    from collections.abc import Iterable

Sample = tuple[str, int, float]


def instants(samples: Iterable[Sample]) -> list[tuple[str, int, float | None, int]]:
    """One entry a (series, time): the smallest known value, and how many samples there were."""
    ordered = sorted(samples, key=lambda sample: sample[:2])
    found = []
    for (series, ts_ms), same in groupby(ordered, key=lambda sample: sample[:2]):
        values = [value for _, _, value in same]
        known = [value for value in values if not math.isnan(value)]
        found.append((series, ts_ms, min(known) if known else None, len(values)))
    return found


def runs_of(samples: Iterable[Sample], gap_ms: int) -> list[Run]:
    """The runs of all series, by walking along every sample."""
    runs: list[Run] = []
    for series, ts_ms, value, n in instants(samples):
        last = runs[-1] if runs else None
        if last and last.series == series and last.value == value and ts_ms - last.end_ms <= gap_ms:
            runs[-1] = Run(series, value, last.start_ms, ts_ms, last.n + n)
        else:
            runs.append(Run(series, value, ts_ms, ts_ms, n))
    return runs
