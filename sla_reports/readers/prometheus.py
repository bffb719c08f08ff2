"""`spark.read.format("prometheus")`: the samples of a live server, in slices of time times shards of a label's values.

Each task asks for its slices itself; the driver only plans. The end is fixed by the one who asks, so a task that is tried again
asks for the same. Few large slices are cheapest: a day each is a good size. A task costs more than a small slice, so `read`
makes some tasks for each core, of several slices each. Filters on `series` and `ts_ms` narrow what is asked for, and are also given
back to Spark, which looks at every row again.

Options: `url`; `start_ms` and `end_ms` ([start, end), UTC); `match`, selectors one a line (they must not overlap), all of our
metrics if it is left out; `slice_hours` (24); `shard_label` and `shards` (1); `tasks`, the most there may be (one a slice);
`timeout_seconds` (120); `accept_partial`; those of `connection.Access.as_options`.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)

from sla_reports.readers.contract import SAMPLE_SCHEMA, Noted, Samples
from sla_reports.readers.lines import no_anomalies
from sla_reports.readers.prometheus_query import Query, Task, query_of, query_tasks, quoted, read_task
from sla_reports.readers.prometheus_stream import PrometheusStreamReader
from sla_reports.readers.selection import lacking_in
from sla_reports.series import SeriesFormatError, parse_series
from sla_reports.tasks import TASKS_PER_CORE

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

NAME: Final = "prometheus"
_MOST_PUSHED_SERIES: Final = 16


def read(
    spark: SparkSession, url: str, *, start_ms: int, end_ms: int, match: Sequence[str] = (), **options: str | float
) -> Samples:
    """The server's samples in [start, end). The other options are those of the source. A server's answer is whole or an error.

    With the option `accept_partial` it may lack something; the frame should be cached then, for `noted` reads it once more.
    """
    spark.dataSource.register(PrometheusSource)
    tasks = TASKS_PER_CORE * spark.sparkContext.defaultParallelism
    texts = {"url": url, "start_ms": start_ms, "end_ms": end_ms, "match": "\n".join(match), "tasks": tasks, **options}
    frame = spark.read.format(NAME).options(**{name: str(value) for name, value in texts.items()}).load()
    is_whole = not options.get("accept_partial")
    return Samples(frame, no_anomalies(spark), partial(Noted, 0) if is_whole else partial(lacking_in, frame))


class PrometheusSource(DataSource):
    """Registered as `prometheus`."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> str:
        return SAMPLE_SCHEMA

    def reader(self, schema: "StructType") -> "PrometheusReader":  # noqa: ARG002
        return PrometheusReader(query_of(self.options, needs_end=True))

    def streamReader(self, schema: "StructType") -> DataSourceStreamReader:  # noqa: ARG002, N802 - Spark's name
        return PrometheusStreamReader(query_of(self.options, needs_end=False), self.options)


class PrometheusReader(DataSourceReader):
    """Plans on the driver, reads on the workers."""

    def __init__(self, query: Query) -> None:
        self._query = query
        self._series: tuple[str, ...] = ()

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        for one in filters:
            self._narrow(one)
            yield one

    def partitions(self) -> Sequence[InputPartition]:
        # Of no task at all Spark makes one that is not ours.
        return query_tasks(self._query, self._series) or [Task(())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_task(self._query.server, partition)

    def _narrow(self, one: Filter) -> None:
        query = self._query
        match one:
            case EqualTo(("series",), str(series)):
                self._push_series([series])
            case In(("series",), several) if len(several) <= _MOST_PUSHED_SERIES:
                self._push_series(list(several))
            case StringStartsWith(("series",), str(begin)):
                name, brace, _ = begin.partition("{")
                matcher = f'__name__="{name}"' if brace else f'__name__=~"{re.escape(name)}.*"'.replace("\\", "\\\\")
                self._query = replace(query, matchers=tuple(f"{known},{matcher}" for known in query.matchers))
            case GreaterThanOrEqual(("ts_ms",), int(ts_ms)):
                self._query = replace(query, start_ms=max(query.start_ms, ts_ms))
            case GreaterThan(("ts_ms",), int(ts_ms)):
                self._query = replace(query, start_ms=max(query.start_ms, ts_ms + 1))
            case LessThan(("ts_ms",), int(ts_ms)):
                self._query = replace(query, end_ms=min(query.end_ms, ts_ms))
            case LessThanOrEqual(("ts_ms",), int(ts_ms)):
                self._query = replace(query, end_ms=min(query.end_ms, ts_ms + 1))
            case EqualTo(("ts_ms",), int(ts_ms)):
                start_ms, end_ms = max(query.start_ms, ts_ms), min(query.end_ms, ts_ms + 1)
                self._query = replace(query, start_ms=start_ms, end_ms=end_ms)

    def _push_series(self, texts: list[Any]) -> None:
        try:
            found = [parse_series(text) for text in texts]
        except SeriesFormatError:
            return  # no series has such a text: Spark's own filter says so
        self._series = tuple(
            ",".join(f'{name}="{quoted(value)}"' for name, value in (("__name__", one.metric), *one.labels))
            for one in found
        )
