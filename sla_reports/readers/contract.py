"""What every reader hands out, and how it tells of what it could not read.

Out comes a frame of samples: `series` (canonical text, see `sla_reports.series`), `ts_ms` (UTC, the scrape's own), `value`. A
stale marker ("the series ended here") is a NaN; so whoever uses samples takes every NaN as "unknown from here". VictoriaMetrics
tells stale markers from other NaN, and its reader keeps the bits (STALE_NAN_BITS), but Spark makes all NaN one as soon as it
shuffles or stores a row. Text forms write NaN for both. Prometheus's HTTP API leaves stale markers out.

What is no sample is an anomaly, never a wrong number. A strict reader fails at the first one, with the file and the line. With
`skip_broken` it leaves the anomaly out of the samples and tells of it in a second frame.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from pyspark.sql import DataFrame

SAMPLE_SCHEMA: Final = "series string, ts_ms long, value double"
ANOMALY_SCHEMA: Final = "file string, line long, kind string, detail string"

STALE_NAN_BITS: Final = 0x7FF0000000000002
# A timestamp outside of these is in the wrong unit: seconds taken for milliseconds are in 1970, the other way round after 50000.
EARLIEST_TS_MS: Final = 946_684_800_000  # 2000-01-01
LATEST_TS_MS: Final = 4_102_444_800_000  # 2100-01-01


class AnomalyKind(StrEnum):
    """What can be wrong with a piece of an export."""

    NOT_A_SAMPLE = "not_a_sample"
    NOT_A_NUMBER = "not_a_number"
    NOT_A_TIMESTAMP = "not_a_timestamp"
    NO_TIMESTAMP = "no_timestamp"
    WRONG_TIME_UNIT = "wrong_time_unit"
    NOT_UTF8 = "not_utf8"
    TRUNCATED = "truncated"
    MISSING_EOF = "missing_eof"
    AFTER_EOF = "after_eof"
    LENGTH_MISMATCH = "length_mismatch"
    NOT_AN_ANSWER = "not_an_answer"
    PARTIAL_ANSWER = "partial_answer"
    CONFLICTING_DUPLICATE = "conflicting_duplicate"
    EQUAL_DUPLICATE = "equal_duplicate"


class ExportFormatError(Exception):
    """An export can't be read as what it should be; the message names the file, the line and what was expected."""


@dataclass(frozen=True, slots=True)
class Anomaly:
    """One thing that is no sample. `line` counts from 1; 0 where the form has no lines."""

    file: str
    line: int
    kind: AnomalyKind
    detail: str

    def as_error(self) -> ExportFormatError:
        """For a reader that is strict."""
        where = f"{self.file}:{self.line}" if self.line else self.file
        return ExportFormatError(f"{where}: {self.kind.value}: {self.detail}")


@dataclass(frozen=True, slots=True)
class Noted:
    """What was left out without an error: how many series of other applications (None: not counted), and what answers lacked."""

    foreign_series: int | None
    lacks: tuple[str, ...] = ()


NOT_COUNTED: Final = Noted(None)


def nothing_noted() -> Noted:
    """Of a source that counts nothing."""
    return NOT_COUNTED


@dataclass(frozen=True, slots=True)
class Samples:
    """What a reader hands out. Both frames are lazy; `anomalies` reads the export once more.

    `frame` has the columns of SAMPLE_SCHEMA, in no order, with whatever duplicates the export has (`duplicates.py` takes them
    out). `anomalies` has those of ANOMALY_SCHEMA and is empty for a strict reader, whose `frame` fails instead: see `errors.py`.
    `noted` is known after an action on the frame.
    """

    frame: DataFrame
    anomalies: DataFrame
    noted: Callable[[], Noted] = nothing_noted

    def counts(self) -> dict[str, int]:
        """How many anomalies of each kind there are, for the report."""
        return {row["kind"]: row["count"] for row in self.anomalies.groupBy("kind").count().orderBy("kind").collect()}
