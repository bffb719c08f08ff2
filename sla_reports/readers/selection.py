"""Which series a reader hands out, and what it passes over: series of other metrics, and answers that lack something.

An export of a whole server holds series of other applications, in forms that no metric of ours has: native histograms, names of
any UTF-8, numbers that are none. They are counted, and nothing of them is an error. Without `metrics` every series is handed
out.
"""

import hashlib
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
from pyspark import Accumulator, SparkContext
from pyspark.accumulators import AccumulatorParam
from pyspark.sql import DataFrame
from pyspark.sql import functions as sql

from metric_names import PREFIX
from sla_reports.readers.samples import Noted
from sla_reports.series import SeriesFormatError, metric_column, parse_series, series_text

# The metric of a row that tells what an answer lacked.
LACKING: Final = "sla_answer_lacks"
_NAME: Final = "__name__"
_CLASSIC_LABEL: Final = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_BARE_NAME: Final = re.compile(r"[\w:.\-/\\]+")
_ITEM: Final = re.compile(
    r'\s*(?:"((?:[^"\\]|\\.)*)"|([^\s"=,{}]+))\s*(?:=\s*"((?:[^"\\]|\\.)*)")?\s*(,|(?=\}))', re.DOTALL
)
_NUMBER: Final = re.compile(r"[+-]?(?:\d|\.\d|inf|nan)", re.IGNORECASE)
_MOST_LACKS: Final = 20


@dataclass(slots=True)
class Selection:
    """What is wanted, and what a task has passed over so far. Each task has its own copy."""

    metrics: frozenset[str] = frozenset()
    accept_partial: bool = False
    foreign: set[str] = field(default_factory=set)
    lacks: set[str] = field(default_factory=set)

    def passes_over(self, metric: str, series: str) -> bool:
        """Whether a series is of no wanted metric. One of another application is counted then; `series` tells it from others."""
        if not self.metrics or metric in self.metrics:
            return False
        # The operator exports more than a report reads: that is none of another application.
        if not metric.startswith(PREFIX):
            self.foreign.add(series)
        return True

    def passes_over_labels(self, metric: Mapping[str, Any]) -> bool:
        """The same of the labels of a JSON form."""
        return self.passes_over(str(metric.get(_NAME, "")), str(sorted(metric.items())) if self.metrics else "")

    def passes_over_text(self, text: str) -> bool:
        """The same of a line of a text form that cannot be read: only if the metric it is of is plain to see."""
        parts = parts_of(text)
        if parts is None or not self.metrics:
            return False
        # A sample without labels has a number in it; a message in the middle of an export has none.
        rest = text[parts.end :].split()
        if not rest or (not parts.has_labels and not any(_NUMBER.match(word) or word[0] == "{" for word in rest)):
            return False
        return self.passes_over(parts.metric, text[: parts.end])


@dataclass(frozen=True, slots=True)
class Parts:
    """A series as any tool may write it. `labels` as they stand, escapes not undone; `end` is where the series ends."""

    metric: str
    labels: tuple[tuple[str, str], ...]
    end: int
    has_labels: bool
    # Whether a name is quoted, as Prometheus 3 writes names that are not classic ones.
    has_quoted_name: bool
    is_whole: bool


def parts_of(text: str) -> Parts | None:
    """The parts of the series that a line begins with; None if it names no metric."""
    bare = _BARE_NAME.match(text)
    metric, at = (bare[0], bare.end()) if bare else ("", 0)
    if not text.startswith("{", at):
        return Parts(metric, (), at, has_labels=False, has_quoted_name=False, is_whole=True) if metric else None
    labels: list[tuple[str, str]] = []
    quoted = False
    at += 1
    while not text.startswith("}", at):
        item = _ITEM.match(text, at)
        if item is None:
            break
        quoted |= item[1] is not None
        if item[3] is None:
            metric = metric or item[1] or ""
        elif item[1] is None and item[2] == _NAME:
            metric = metric or item[3]
        else:
            labels.append((item[1] if item[2] is None else item[2], item[3]))
        at = item.end()
    is_whole = text.startswith("}", at)
    end = at + 1 if is_whole else at
    return (
        Parts(metric, tuple(labels), end, has_labels=True, has_quoted_name=quoted, is_whole=is_whole)
        if metric
        else None
    )


def name_of(metric: Mapping[str, Any]) -> str:
    """The canonical text of a series' labels; a label name of any UTF-8 as Prometheus escapes it. Raises SeriesFormatError."""
    labels: dict[str, str] = {}
    for name, value in metric.items():
        if not isinstance(value, str):
            raise SeriesFormatError(f"label {name}: {value!r}; expected a text")
        escaped = _escaped(name)
        if escaped in labels:
            raise SeriesFormatError(f"label {name}: stands twice, also as {escaped}; expected each label once")
        labels[escaped] = value
    return series_text(labels.pop(_NAME, ""), labels)


def _escaped(name: str) -> str:
    """Prometheus's escaping scheme `values`: k8s.pod is U__k8s_2e_pod. No two names become one."""
    if _CLASSIC_LABEL.fullmatch(name) or not name:
        return name
    letters = ["__" if one == "_" else one if one.isascii() and one.isalnum() else f"_{ord(one):x}_" for one in name]
    return f"U__{''.join(letters)}"


def lacking_rows(lacks: Collection[str], ts_ms: int) -> pa.RecordBatch:
    """What answers of a server lacked, as rows among its samples: a Python source has no other way back to the driver."""
    series = [series_text(LACKING, {"warning": text}) for text in sorted(lacks)]
    columns = [
        pa.array(series, pa.string()),
        pa.array([ts_ms] * len(series), pa.int64()),
        pa.array([1.0] * len(series)),
    ]
    return pa.RecordBatch.from_arrays(columns, names=["series", "ts_ms", "value"])


def lacking_in(frame: DataFrame) -> Noted:
    """What `lacking_rows` says in a frame; one action. A server is asked for the wanted metrics alone: none is passed over."""
    rows = frame.where(metric_column(sql.col("series")) == LACKING).select("series").distinct().collect()
    lacks = sorted(parse_series(row["series"]).label("warning") for row in rows)
    return Noted(0, tuple(lacks[:_MOST_LACKS]))


class Notes:
    """Gathers on the driver what the tasks have passed over; tasks that run twice tell the same."""

    def __init__(self, context: SparkContext) -> None:
        self._told: Accumulator[set[tuple[str, str]]] = context.accumulator(set(), _Union())

    def add(self, selection: Selection) -> None:
        """In a task, at its end."""
        self._told.add(
            {
                ("foreign", hashlib.blake2b(one.encode(errors="replace"), digest_size=8).hexdigest())
                for one in selection.foreign
            }
            | {("lacks", one) for one in selection.lacks}
        )

    def told(self) -> Noted:
        """After an action: how many series were passed over, and what answers lacked."""
        found = self._told.value
        lacks = sorted(text for kind, text in found if kind == "lacks")
        return Noted(sum(kind == "foreign" for kind, _ in found), tuple(lacks[:_MOST_LACKS]))


class _Union(AccumulatorParam[set[tuple[str, str]]]):
    def zero(self, value: set[tuple[str, str]]) -> set[tuple[str, str]]:  # noqa: ARG002 - Spark's signature
        return set()

    def addInPlace(self, value1: set[tuple[str, str]], value2: set[tuple[str, str]]) -> set[tuple[str, str]]:  # noqa: N802
        value1 |= value2
        return value1
