"""Histories of a scraped gauge, drawn: long calm stretches, short outages, lost scrapes, silence, stale markers, duplicates."""

from __future__ import annotations

import math
import random
from typing import TYPE_CHECKING

from hypothesis import strategies as st

if TYPE_CHECKING:
    from tests.sla.reference import Sample

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


@st.composite
def histories(draw: st.DrawFn, series: str) -> list[Sample]:
    """The samples of one series, in the order of time."""
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
    """The samples of many series in any order: one Spark job checks them all."""
    samples = [sample for number in range(size) for sample in draw(histories(f'up{{n="{number:03}"}}'))]
    random.Random(draw(st.integers(0, 1000))).shuffle(samples)
    return samples
