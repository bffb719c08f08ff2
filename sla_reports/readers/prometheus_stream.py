"""`spark.readStream.format("prometheus")`: new samples as the server gets them, for a live view.

The offset is a time: each batch reads [last end, now - lag). The lag is the guard against late scrapes: a sample has the time
at which its scrape began, and is there only after it has ended. What comes later than the lag is never seen by the stream; the
monthly report reads the range again and is the truth.

Options: those of the batch source without `end_ms`; `start_ms` (now, if it is left out); `lag_seconds` (30);
`most_hours_per_batch` (24).
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from sla_reports.readers.prometheus_query import Query, number_of, query_tasks, read_task

if TYPE_CHECKING:
    from pyspark.sql.streaming.datasource import ReadLimit

_END: Final = "end_ms"


class PrometheusStreamReader(DataSourceStreamReader):
    """One query's stream."""

    def __init__(self, query: Query, options: Mapping[str, str]) -> None:
        self._query = query
        self._lag_ms = int(number_of(options, "lag_seconds", 30.0) * 1000)
        self._most_ms = int(number_of(options, "most_hours_per_batch", 24.0, least=1 / 3600) * 3_600_000)
        self._first_ms = int(number_of(options, "start_ms", 0.0)) or self._readable_ms()

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        return {_END: self._first_ms}

    def latestOffset(self, start: dict[str, Any], limit: "ReadLimit") -> dict[str, int]:  # noqa: ARG002, N802
        begin_ms = int(start[_END])
        return {_END: max(begin_ms, min(self._readable_ms(), begin_ms + self._most_ms))}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return query_tasks(replace(self._query, start_ms=int(start[_END]), end_ms=int(end[_END])))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_task(self._query.server, partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing is kept on the server."""

    def stop(self) -> None:
        """Nothing is open."""

    def _readable_ms(self) -> int:
        return time.time_ns() // 1_000_000 - self._lag_ms
