"""The whole reduction on plain lists, slow and plain on purpose: what Spark is compared with."""

from __future__ import annotations

import math
from itertools import groupby, pairwise
from typing import TYPE_CHECKING

from sla_reports.reduction.runs import CONFLICT, Run

if TYPE_CHECKING:
    from collections.abc import Iterable

Sample = tuple[str, int, float]


def instants(samples: Iterable[Sample]) -> list[tuple[str, int, float | None, int]]:
    """One entry a (series, time): the known value, CONFLICT where there are several, and how many samples there were."""
    ordered = sorted(samples, key=lambda sample: sample[:2])
    found = []
    for (series, ts_ms), same in groupby(ordered, key=lambda sample: sample[:2]):
        values = [value for _, _, value in same]
        known = {value for value in values if not math.isnan(value)}
        one = None if not known else known.pop() if len(known) == 1 else CONFLICT
        found.append((series, ts_ms, one, len(values)))
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


def state_at(at_ms: int, seen: list[tuple[int, float | None]], end_ms: int, gap_ms: int) -> str:
    """The rule in words: the last sample holds until the next one or the window's end, unless that is too far away."""
    before = [sample for sample in seen if sample[0] <= at_ms]
    after = min((sample[0] for sample in seen if sample[0] > at_ms), default=end_ms)
    if not before or before[-1][1] is None or after - before[-1][0] > gap_ms:
        return "unknown"
    if before[-1][1] == CONFLICT:
        return "disputed"
    return "up" if before[-1][1] >= 1 else "down"


def milliseconds_by_state(
    lines: dict[str, list[Sample]], window: tuple[int, int], gap_ms: int
) -> dict[str, dict[str, int]]:
    """Up, down and unknown of each series and, as `any` and `all`, of all together: every piece between two samples is asked."""
    start_ms, end_ms = window
    seen = {name: [(at_ms, value) for _, at_ms, value, _ in instants(samples)] for name, samples in lines.items()}
    edges = sorted({start_ms, end_ms, *(at for line in seen.values() for at, _ in line if start_ms < at < end_ms)})
    told = {name: {"up": 0, "down": 0, "unknown": 0, "disputed": 0} for name in (*lines, "any", "all")}
    for low, high in pairwise(edges):
        states = {name: state_at(low, line, end_ms, gap_ms) for name, line in seen.items()}
        found = set(states.values())
        states["any"] = next((one for one in ("up", "unknown", "disputed") if one in found), "down")
        states["all"] = next((one for one in ("down", "unknown", "disputed") if one in found), "up")
        for name, state in states.items():
            told[name][state] += high - low
    return told
