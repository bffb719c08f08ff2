"""Samples on their way from an export to a frame: the names of some series, and three columns.

A series' text is some hundred bytes and a sample sixteen. A text that goes with every sample costs more to hand from Python to the
JVM than all the rest of a reader does. So a reader hands over a row for each series of a block, with that series' samples in it,
and the JVM makes rows of them (`unpacked`): there the text is only pointed at, and a filter on `series` is asked once a row of
the block, not once a sample.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as sql

PACKED_SCHEMA: Final = "series string, samples array<struct<ts_ms: long, value: double>>"
# A row of the block is held whole in the JVM, at some 40 bytes a sample.
_SAMPLES_A_ROW: Final = 65_536


@dataclass(frozen=True, slots=True)
class Columns:
    """Sample i is of the series `names[codes[i]]`."""

    names: Sequence[str | None]
    codes: np.ndarray
    ts_ms: np.ndarray
    values: np.ndarray

    def __len__(self) -> int:
        return len(self.codes)

    def where(self, wanted: np.ndarray) -> "Columns":
        """Some of the samples."""
        if wanted.all():
            return self
        return Columns(self.names, self.codes[wanted], self.ts_ms[wanted], self.values[wanted])

    def rows(self) -> pa.RecordBatch:
        """As rows of SAMPLE_SCHEMA."""
        series = pa.array(self.names, pa.string()).take(pa.array(self.codes))
        return pa.RecordBatch.from_arrays(
            [series, pa.array(self.ts_ms), pa.array(self.values)], names=["series", "ts_ms", "value"]
        )

    def packed(self) -> pa.RecordBatch:
        """As rows of PACKED_SCHEMA."""
        codes, ts_ms, values = self.codes, self.ts_ms, self.values
        if (codes[1:] < codes[:-1]).any():
            order = np.argsort(codes.astype(np.uint16) if len(self.names) <= 1 << 16 else codes, kind="stable")
            codes, ts_ms, values = codes[order], ts_ms[order], values[order]
        begins = np.concatenate([[True], codes[1:] != codes[:-1]])[: len(codes)]
        begins[::_SAMPLES_A_ROW] = True
        starts = np.flatnonzero(begins)
        series = pa.array(self.names, pa.string()).take(pa.array(codes[starts]))
        offsets = pa.array(np.append(starts, len(codes)).astype(np.int32))
        samples = pa.StructArray.from_arrays([pa.array(ts_ms), pa.array(values)], names=["ts_ms", "value"])
        return pa.RecordBatch.from_arrays(
            [series, pa.ListArray.from_arrays(offsets, samples)], names=["series", "samples"]
        )


def unpacked(frame: DataFrame) -> DataFrame:
    """The rows of SAMPLE_SCHEMA in a frame of PACKED_SCHEMA."""
    return frame.select("series", sql.inline("samples"))
