"""What the `prometheus` source asks for, from its options, and how that is divided among tasks.

A query is for a slice of time and a shard of a label's values, and a task has one or some of them. Whoever asks fixes both ends, so
the same options always ask for the same.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from metric_names import PREFIX
from sla_reports.connection import access_of
from sla_reports.readers.prometheus_api import Server

_HOUR_MS: Final = 3_600_000
_ROWS_PER_BATCH: Final = 200_000
_SELECTOR: Final = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)?\s*(?:\{(.*)\})?", re.DOTALL)


class OptionError(ValueError):
    """An option of the source is missing or wrong; says which and what was expected."""


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


def query_tasks(query: Query, series: tuple[str, ...] = ()) -> list[InputPartition]:
    """The slices of the query, divided among tasks; none if there is nothing to ask for."""
    slices = _slices(query, series)
    count = min(len(slices), query.tasks or len(slices))
    return [Task(slices[len(slices) * n // count : len(slices) * (n + 1) // count]) for n in range(count)]


def _slices(query: Query, series: tuple[str, ...]) -> list[Slice]:
    """Slices begin at whole multiples of their length, so that they are the same for any start."""
    selectors = [
        "{" + ",".join(part for part in (matchers, one, shard) if part) + "}"
        for matchers in query.matchers
        for one in (series or ("",))
        for shard in _shards(query, matchers)
    ]
    found: list[Slice] = []
    begin_ms = query.start_ms
    while begin_ms < query.end_ms:
        end_ms = min(query.end_ms, (begin_ms // query.slice_ms + 1) * query.slice_ms)
        found += [Slice(selector, begin_ms, end_ms) for selector in selectors]
        begin_ms = end_ms
    return found


def read_task(server: Server, task: InputPartition) -> Iterator[pa.RecordBatch]:
    """The samples of one task."""
    assert isinstance(task, Task)
    for one in task.slices:
        for batch in server.samples(one.selector, one.start_ms, one.end_ms):
            for offset in range(0, len(batch), _ROWS_PER_BATCH):
                yield batch.slice(offset, _ROWS_PER_BATCH)


def _shards(query: Query, matchers: str) -> list[str]:
    """Matchers that divide the series between them; the first takes those without the label."""
    if query.shards <= 1 or query.end_ms <= query.start_ms:
        return [""]
    values = sorted(query.server.label_values(query.shard_label, f"{{{matchers}}}", query.start_ms, query.end_ms))
    shards = [values[number :: query.shards] for number in range(min(query.shards, max(1, len(values))))]
    texts = ["|".join(re.escape(value) for value in shard) for shard in shards]
    texts[0] = f"|{texts[0]}"
    return [f'{query.shard_label}=~"{quoted(text)}"' for text in texts]


def query_of(options: Mapping[str, str], *, needs_end: bool) -> Query:
    """The query that the options ask for. Raises OptionError or ConnectionOptionError."""
    timeout_seconds = number_of(options, "timeout_seconds", 120.0, least=1.0)
    accept_partial = options.get("accept_partial", "").lower() == "true"
    server = Server(_text(options, "url"), timeout_seconds, access_of(options), accept_partial=accept_partial)
    start_ms, end_ms = int(number_of(options, "start_ms", None)) if needs_end else 0, 0
    if needs_end:
        end_ms = int(number_of(options, "end_ms", None))
        if end_ms <= start_ms:
            raise OptionError(f"end_ms: {end_ms} is not after start_ms {start_ms}; expected [start, end)")
    shards = int(number_of(options, "shards", 1, least=1))
    if shards > 1 and not options.get("shard_label"):
        raise OptionError(f"shards: {shards} without shard_label; expected a label to divide by, such as broker_group")
    selectors = [line.strip() for line in options.get("match", "").splitlines() if line.strip()]
    matchers = tuple(map(_matchers_of, selectors)) or (f'__name__=~"{PREFIX}.+"',)
    slice_ms = int(number_of(options, "slice_hours", 24.0, least=1 / 3600) * _HOUR_MS)
    tasks = int(number_of(options, "tasks", 0, least=1))
    return Query(server, matchers, start_ms, end_ms, slice_ms, options.get("shard_label", ""), shards, tasks)


def _matchers_of(selector: str) -> str:
    found = _SELECTOR.fullmatch(selector)
    if found is None or not (found[1] or (found[2] or "").strip()):
        raise OptionError(
            f'match: {selector!r} is no selector; expected metric, metric{{label="value"}} or {{label="value"}}'
        )
    parts = [f'__name__="{found[1]}"'] if found[1] else []
    return ",".join([*parts, *([found[2].strip().rstrip(",")] if (found[2] or "").strip() else [])])


def _text(options: Mapping[str, str], name: str) -> str:
    value = options.get(name, "")
    if not value:
        raise OptionError(f"{name}: missing; expected a value")
    return value


def number_of(options: Mapping[str, str], name: str, default: float | None, *, least: float = 0) -> float:
    """A number among the options. Raises OptionError."""
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


def quoted(value: str) -> str:
    """A text as it stands between double quotes in PromQL."""
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
