"""One text for one series, `metric{label="value",...}`, so that every reader names the same series the same.

Labels are sorted by name; a label with an empty value is no label (Prometheus says so) and is left out; a series without labels is
the metric's name alone. Values are escaped as in OpenMetrics: backslash, double quote and line feed. Names are the classic ones
(metrics may hold colons); a series with other names is refused, for none of ours is one.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql import Column
from pyspark.sql import functions as sql

_METRIC = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_VALUE = r'((?:[^"\\]|\\.)*)'
_LABEL = re.compile(rf'([a-zA-Z_][a-zA-Z0-9_]*)="{_VALUE}"', re.DOTALL)
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_ESCAPED = {"\\": "\\", '"': '"', "n": "\n"}


class SeriesFormatError(ValueError):
    """A text is no series, or a name can't stand in one; says which and what was expected."""


@dataclass(frozen=True, slots=True)
class Series:
    """A metric and its labels, sorted by name, none of them empty."""

    metric: str
    labels: tuple[tuple[str, str], ...]

    def label(self, name: str) -> str:
        """Return the label's value; empty if the series has no such label."""
        return dict(self.labels).get(name, "")

    def own_label(self, name: str) -> str:
        """Return the operator's label: a Prometheus without `honorLabels` renames it to `exported_…` and sets its own."""
        return self.label(f"exported_{name}") or self.label(name)


def series_text(metric: str, labels: Mapping[str, str]) -> str:
    """Return the canonical text of a series. Raises SeriesFormatError for a name that is not a classic one."""
    if not _METRIC.fullmatch(metric):
        raise SeriesFormatError(f"metric name {metric!r}: expected letters, digits, '_' and ':', not a digit first")
    for name in labels:
        if not _LABEL_NAME.fullmatch(name):
            raise SeriesFormatError(f"label name {name!r} of {metric}: expected letters, digits and '_'")
    pairs = ",".join(f'{name}="{escaped(labels[name])}"' for name in sorted(labels) if labels[name] != "")
    return f"{metric}{{{pairs}}}" if pairs else metric


def parse_series(text: str) -> Series:
    """Parse a series' text, which need not be canonical (other order, a trailing comma). Raises SeriesFormatError."""
    metric, brace, rest = text.partition("{")
    if not _METRIC.fullmatch(metric) or (brace and not rest.endswith("}")):
        raise SeriesFormatError(f'series {text!r}: expected metric{{label="value",...}}')
    labels: dict[str, str] = {}
    body, at = rest[:-1], 0
    while at < len(body):
        found = _LABEL.match(body, at)
        if found is None or (found.end() < len(body) and body[found.end()] != ","):
            raise SeriesFormatError(f'series {text!r}: expected label="value" at {body[at : at + 30]!r}')
        name, value = found.groups()
        if name in labels:
            raise SeriesFormatError(f"series {text!r}: label {name} stands twice")
        labels[name] = _unescape(value, text)
        at = found.end() + 1
    return Series(metric, tuple(sorted((name, value) for name, value in labels.items() if value != "")))


def canonical(text: str) -> str:
    """Return the canonical text of a series that is written in another order or with empty labels."""
    series = parse_series(text)
    return series_text(series.metric, dict(series.labels))


def unescaped(value: str) -> str:
    """Undo OpenMetrics's escapes in a label's value. Raises SeriesFormatError."""
    return _unescape(value, value)


def metric_column(series: Column) -> Column:
    """The metric's name of a canonical text, in the JVM."""
    return sql.substring_index(series, "{", 1)


def labels_column(series: Column) -> Column:
    """The labels of a canonical text as a map, in the JVM."""
    pattern = sql.lit(_LABEL.pattern)
    return sql.map_from_arrays(
        sql.regexp_extract_all(series, pattern, 1),
        sql.transform(sql.regexp_extract_all(series, pattern, 2), _unescaped),
    )


def escaped(value: str) -> str:
    """Return a text as it stands between double quotes, in a series and in PromQL."""
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _unescape(value: str, text: str) -> str:
    def one(found: re.Match[str]) -> str:
        if found[1] not in _ESCAPED:
            raise SeriesFormatError(f'series {text!r}: escape {found[0]!r}; expected one of \\\\ \\" \\n')
        return _ESCAPED[found[1]]

    return _ESCAPE.sub(one, value)


def _unescaped(value: Column) -> Column:
    # Cut at escaped backslashes first: a backslash that is left then begins one of the other two escapes.
    parts = sql.split(value, r"\\\\")
    line_feeds = sql.transform(
        parts, lambda part: sql.replace(sql.replace(part, sql.lit('\\"'), sql.lit('"')), sql.lit("\\n"), sql.lit("\n"))
    )
    return sql.array_join(line_feeds, "\\")
