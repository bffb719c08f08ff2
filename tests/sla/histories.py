"""Histories of a scraped gauge, drawn: long calm stretches, short outages, lost scrapes, silence, stale markers, duplicates."""

from __future__ import annotations

import math
import random
from itertools import groupby, pairwise
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from sla_reports.reduction.runs import HOUR_MS, Longer, even_distance
from sla_reports.series import series_text
from sla_reports.states.entities import Fleet
from sla_reports.states.spans import CONFLICT, Run, by_series, gap_limit_ms

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

INTERVAL_MS = 1_000
START_MS = 1_763_700_000_000
_VALUES = st.sampled_from([1.0, 1.0, 1.0, 0.0, 3.0, math.nan])
_STRETCHES = st.tuples(
    _VALUES,
    st.one_of(st.integers(1, 5), st.integers(50, 200)),  # samples
    st.sampled_from([0, 0, 0, 1, 2, 7, 300]),  # scrapes lost after them
    st.sampled_from([0, 0, 499, -499, 20]),  # how far the clock of the scrapes jumps
    st.sampled_from([None, None, None, 1.0, 0.0, math.nan]),  # a second sample at the last one's time
)
Sample = tuple[str, int, float]


def series_of(metric: str, group: str = "orders", **more: str) -> str:
    """Return the series of a group of the cluster c."""
    return series_text(metric, {"namespace": "default", "cluster": "c", "broker_group": group, **more})


def batches_of(samples: list[Sample], rows: int = 1 << 20) -> Iterator[pa.RecordBatch]:
    """Yield the samples in batches of this many rows, as a day's files do."""
    for begin in range(0, len(samples), rows):
        series, ts_ms, values = zip(*samples[begin : begin + rows], strict=True)
        yield pa.record_batch({"series": pa.array(series).dictionary_encode(), "ts_ms": ts_ms, "value": values})


def fleet_of(samples: Iterable[Sample], step_ms: int) -> Fleet:
    """Return a report's fleet of samples that came every `step_ms`."""
    gap_ms = gap_limit_ms(step_ms)
    return Fleet(by_series(runs_of(samples, gap_ms)), gap_ms=gap_ms)


@st.composite
def histories(draw: st.DrawFn, series: str) -> list[Sample]:
    """Draw the samples of one series, in the order of time."""
    at_ms = START_MS + draw(st.integers(0, 90_000))
    samples: list[Sample] = []
    for value, count, lost, jump_ms, second in draw(st.lists(_STRETCHES, min_size=1, max_size=6)):
        for _ in range(count):
            samples.append((series, at_ms, value))
            at_ms += INTERVAL_MS
        if second is not None:
            samples.append((series, at_ms - INTERVAL_MS, second))
        at_ms += lost * INTERVAL_MS + jump_ms
    return samples


@st.composite
def fleets(draw: st.DrawFn, size: int) -> list[Sample]:
    """Draw the samples of many series in any order: one Spark job checks them all."""
    samples = [sample for number in range(size) for sample in draw(histories(f'up{{n="{number:03}"}}'))]
    random.Random(draw(st.integers(0, 1000))).shuffle(samples)
    return samples


def instants(samples: Iterable[Sample]) -> list[tuple[str, int, float | None, int]]:
    """Return one entry for each (series, time): the value, or CONFLICT if there are several, and the number of samples."""
    ordered = sorted(samples, key=lambda sample: sample[:2])
    found = []
    for (series, ts_ms), same in groupby(ordered, key=lambda sample: sample[:2]):
        values = [value for _, _, value in same]
        known = {value for value in values if not math.isnan(value)}
        one = None if not known else known.pop() if len(known) == 1 else CONFLICT
        found.append((series, ts_ms, one, len(values)))
    return found


def runs_of(samples: Iterable[Sample], gap_ms: int) -> list[Run]:
    """Return the runs of all series, by a loop over every sample."""
    runs: list[Run] = []
    for series, ts_ms, value, n in instants(samples):
        last = runs[-1] if runs else None
        if last and last.series == series and last.value == value and ts_ms - last.end_ms <= gap_ms:
            runs[-1] = Run(series, value, last.start_ms, ts_ms, last.n + n)
        else:
            runs.append(Run(series, value, ts_ms, ts_ms, n))
    return runs


def state_at(at_ms: int, seen: list[tuple[int, float | None]], end_ms: int, gap_ms: int) -> str:
    """Return the state by the rule: the last sample holds until the next one or the window's end, unless that is too far away."""
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
    """Return up, down and unknown of each series and, as `any` and `all`, of all together, by every piece between two samples."""
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


def longer_hours(samples: Iterable[Sample], usual_ms: int) -> dict[str, tuple[Longer, ...]]:
    """Return each series' hours whose samples are even and further apart than the usual gap limit."""
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
