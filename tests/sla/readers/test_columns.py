"""Columns become rows of their frame either way: one a sample, or one a series with its samples in it."""

from __future__ import annotations

import numpy as np
import pytest

from sla_reports.readers import columns as under_test
from sla_reports.readers.columns import Columns


@pytest.mark.parametrize("most", [1, 3, 1 << 16])
@pytest.mark.parametrize("codes", [[0, 0, 0, 1, 1], [1, 0, 2, 1, 0, 2, 1], [2] * 7, []])
def test_packed_rows_hold_each_sample_once_and_in_order(
    codes: list[int], most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(under_test, "_SAMPLES_A_ROW", most)
    count = len(codes)
    made = Columns(["a", "b", "c"], np.array(codes, np.int32), np.arange(count) + 7, np.arange(count) / 2)
    packed = made.packed().to_pylist()
    found = [(row["series"], one["ts_ms"], one["value"]) for row in packed for one in row["samples"]]
    expected = [(row["series"], row["ts_ms"], row["value"]) for row in made.rows().to_pylist()]
    assert found == sorted(expected)
    assert all(len(row["samples"]) <= most for row in packed)
    kept = made.where(np.array(codes, np.int32) == 1)
    assert kept.rows().to_pylist() == [row for row in made.rows().to_pylist() if row["series"] == "b"]
