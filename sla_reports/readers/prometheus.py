"""`spark.read.format("prometheus")` and `spark.readStream.format("prometheus")`: the samples of a live server.

A query is asked in slices of time times shards of a label's values; a task has some of them, and the driver only plans. The caller
fixes the end, so a task that is tried again asks for the same. Filters on `series` and `ts_ms` narrow what is asked for.

Options: `url`; `start_ms` and `end_ms` ([start, end), UTC); `match`, selectors one a line (they must not overlap); `slice_hours`
(24); `shard_label` and `shards` (1); `tasks`, the most there may be; `timeout_seconds` (120); `accept_partial`; those of
`Access.as_options`. A stream has no `end_ms`, but `lag_seconds` (30) and `most_hours_per_batch` (24).
"""

import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
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

from metric_names import PREFIX
from sla_reports.connection import access_of
from sla_reports.readers.prometheus_api import Server
from sla_reports.readers.samples import SAMPLE_SCHEMA, Noted, Samples, lacking_in
from sla_reports.series import SeriesFormatError, escaped, parse_series
from sla_reports.session import TASKS_PER_CORE

if TYPE_CHECKING:
    from pyspark.sql.streaming.datasource import ReadLimit
    from pyspark.sql.types import StructType

NAME: Final = "prometheus"
_HOUR_MS: Final = 3_600_000
_ROWS_PER_BATCH: Final = 200_000
_MOST_PUSHED_SERIES: Final = 16
_SELECTOR: Final = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)?\s*(?:\{(.*)\})?", re.DOTALL)
_END: Final = "end_ms"


class OptionError(ValueError):
    """An option of the source is missing or wrong; says which and what was expected."""


def read(
    spark: SparkSession, url: str, *, start_ms: int, end_ms: int, match: Sequence[str] = (), **options: str | float
) -> Samples:
    """Return the server's samples in [start, end); the other options are those of the source. An answer is whole or an error.

    With the option `accept_partial` it may lack something; the frame should be cached then, for `noted` reads it once more.
    """
    spark.dataSource.register(PrometheusSource)
    tasks = TASKS_PER_CORE * spark.sparkContext.defaultParallelism
    texts = {"url": url, "start_ms": start_ms, "end_ms": end_ms, "match": "\n".join(match), "tasks": tasks, **options}
    frame = spark.read.format(NAME).options(**{name: str(value) for name, value in texts.items()}).load()
    is_whole = not options.get("accept_partial")
    return Samples(frame, partial(Noted, 0) if is_whole else partial(lacking_in, frame))


@dataclass(frozen=True, slots=True)
class Query:
    """What is asked for, and how it is divided."""

    server: Server
    matchers: tuple[str, ...]
    start_ms: int
    end_ms: int
    slice_ms: int
    shard_label: str
    shards: int
    # The most there may be; 0: one for each slice.
    tasks: int = 0


@dataclass(frozen=True, slots=True)
class Slice:
    """What is asked for at once."""

    selector: str
    start_ms: int
    end_ms: int


class Task(InputPartition):
    """The slices that one task asks for, one after another."""

    def __init__(self, slices: Sequence[Slice]) -> None:
        super().__init__(None)
        self.slices = slices


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
        start_ms, end_ms = query.start_ms, query.end_ms
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
                self._query = replace(query, start_ms=max(start_ms, ts_ms))
            case GreaterThan(("ts_ms",), int(ts_ms)):
                self._query = replace(query, start_ms=max(start_ms, ts_ms + 1))
            case LessThan(("ts_ms",), int(ts_ms)):
                self._query = replace(query, end_ms=min(end_ms, ts_ms))
            case LessThanOrEqual(("ts_ms",), int(ts_ms)):
                self._query = replace(query, end_ms=min(end_ms, ts_ms + 1))
            case EqualTo(("ts_ms",), int(ts_ms)):
                self._query = replace(query, start_ms=max(start_ms, ts_ms), end_ms=min(end_ms, ts_ms + 1))

    def _push_series(self, texts: list[Any]) -> None:
        try:
            found = [parse_series(text) for text in texts]
        except SeriesFormatError:
            return  # no series has such a text: Spark's own filter says so
        self._series = tuple(
            ",".join(f'{name}="{escaped(value)}"' for name, value in (("__name__", one.metric), *one.labels))
            for one in found
        )


class PrometheusStreamReader(DataSourceStreamReader):
    """New samples as the server gets them, for a live view. The offset is a time: each batch reads [last end, now - lag).

    The lag is the guard against late scrapes: a sample has the time at which its scrape began, and is there only after it has
    ended. The stream never sees what comes later than the lag; the monthly report reads the range again and is the truth.
    """

    def __init__(self, query: Query, options: Mapping[str, str]) -> None:
        self._query = query
        self._lag_ms = int(_number_of(options, "lag_seconds", 30.0) * 1000)
        self._most_ms = int(_number_of(options, "most_hours_per_batch", 24.0, least=1 / 3600) * _HOUR_MS)
        self._first_ms = int(_number_of(options, "start_ms", 0.0)) or self._readable_ms()

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


def read_task(server: Server, task: InputPartition) -> Iterator[pa.RecordBatch]:
    """Yield the samples of one task."""
    assert isinstance(task, Task)
    for one in task.slices:
        for batch in server.samples(one.selector, one.start_ms, one.end_ms):
            for offset in range(0, len(batch), _ROWS_PER_BATCH):
                yield batch.slice(offset, _ROWS_PER_BATCH)


def query_tasks(query: Query, series: tuple[str, ...] = ()) -> list[InputPartition]:
    """Return the slices of the query, divided among tasks; none if there is nothing to ask for.

    Slices begin at whole multiples of their length, so that they are the same for any start.
    """
    selectors = [
        "{" + ",".join(part for part in (matchers, one, shard) if part) + "}"
        for matchers in query.matchers
        for one in (series or ("",))
        for shard in _shards(query, matchers)
    ]
    slices: list[Slice] = []
    begin_ms = query.start_ms
    while begin_ms < query.end_ms:
        end_ms = min(query.end_ms, (begin_ms // query.slice_ms + 1) * query.slice_ms)
        slices += [Slice(selector, begin_ms, end_ms) for selector in selectors]
        begin_ms = end_ms
    count = min(len(slices), query.tasks or len(slices))
    return [Task(slices[len(slices) * n // count : len(slices) * (n + 1) // count]) for n in range(count)]


def _shards(query: Query, matchers: str) -> list[str]:
    """Matchers that divide the series between them; the first takes those without the label."""
    if query.shards <= 1 or query.end_ms <= query.start_ms:
        return [""]
    values = sorted(query.server.label_values(query.shard_label, f"{{{matchers}}}", query.start_ms, query.end_ms))
    shards = [values[number :: query.shards] for number in range(min(query.shards, max(1, len(values))))]
    texts = ["|".join(re.escape(value) for value in shard) for shard in shards]
    texts[0] = f"|{texts[0]}"
    return [f'{query.shard_label}=~"{escaped(text)}"' for text in texts]


def query_of(options: Mapping[str, str], *, needs_end: bool) -> Query:
    """Return the query that the options ask for. Raises OptionError or ConnectionOptionError."""
    timeout_seconds = _number_of(options, "timeout_seconds", 120.0, least=1.0)
    if not (url := options.get("url", "")):
        raise OptionError("url: missing; expected a value")
    accept_partial = options.get("accept_partial", "").lower() == "true"
    server = Server(url, timeout_seconds, access_of(options), accept_partial=accept_partial)
    start_ms = end_ms = 0
    if needs_end:
        start_ms, end_ms = (int(_number_of(options, name, None)) for name in ("start_ms", "end_ms"))
        if end_ms <= start_ms:
            raise OptionError(f"end_ms: {end_ms} is not after start_ms {start_ms}; expected [start, end)")
    shards = int(_number_of(options, "shards", 1, least=1))
    if shards > 1 and not options.get("shard_label"):
        raise OptionError(f"shards: {shards} without shard_label; expected a label to divide by, such as broker_group")
    selectors = [line.strip() for line in options.get("match", "").splitlines() if line.strip()]
    matchers = tuple(map(_matchers_of, selectors)) or (f'__name__=~"{PREFIX}.+"',)
    slice_ms = int(_number_of(options, "slice_hours", 24.0, least=1 / 3600) * _HOUR_MS)
    tasks = int(_number_of(options, "tasks", 0, least=1))
    return Query(server, matchers, start_ms, end_ms, slice_ms, options.get("shard_label", ""), shards, tasks)


def _matchers_of(selector: str) -> str:
    found = _SELECTOR.fullmatch(selector)
    inside = (found[2] or "").strip() if found else ""
    if found is None or not (found[1] or inside):
        raise OptionError(
            f'match: {selector!r} is no selector; expected metric, metric{{label="value"}} or {{label="value"}}'
        )
    return ",".join([f'__name__="{found[1]}"'] * bool(found[1]) + [inside.rstrip(",")] * bool(inside))


def _number_of(options: Mapping[str, str], name: str, default: float | None, *, least: float = 0) -> float:
    """Return a number among the options. Raises OptionError."""
    text = options.get(name, "")
    if not text and default is not None:
        return default
    try:
        value = float(text)
    except ValueError as error:
        raise OptionError(f"{name}: {text!r} is no number; expected one") from error
    if value < least:
        raise OptionError(f"{name}: {text}; expected {least:g} or more")
    return value
