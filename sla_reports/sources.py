"""Where samples come from: one name for each form of an export, and the reader that belongs to it.

Without Spark until a reader is used, so that a command line can be checked before anything heavy is loaded.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# A report needs what held just before its window and just after it: more than any usual gap limit.
MARGIN_MS = 600_000


class Form(StrEnum):
    """The forms of an export; `runs` is the table that `sla backfill` writes."""

    HTTP = "http"
    OPENMETRICS = "openmetrics"
    VICTORIAMETRICS = "victoriametrics"
    TSDB_DUMP = "tsdb-dump"
    QUERY_RANGE = "query-range"
    LAKE = "lake"
    RUNS = "runs"


class SourceError(ValueError):
    """What is to be read is not said fully, or twice; names the member, its value and what was expected."""


class TableError(Exception):
    """A place is no daily table that this version can read, or cannot be written; says what was expected."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Samples to read: files in a form, or a server's in [start_ms, end_ms)."""

    form: Form
    paths: Sequence[Path] = ()
    url: str = ""
    start_ms: int = 0
    end_ms: int = 0
    bearer_token_file: Path | None = None
    # With the form runs: the daily table, a folder or s3://bucket/path.
    table: str = ""

    @property
    def shown_url(self) -> str:
        """The address without what may be a password."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def origin_of(
    form: str, paths: Sequence[str | Path], url: str | None, *, start_ms: int | None = None, end_ms: int | None = None,
    bearer_token_file: Path | None = None,
) -> Origin:  # fmt: skip
    """What the options of a command say. Raises SourceError."""
    if form not in list(Form):
        raise SourceError(f"from: {form!r}; expected one of {', '.join(Form)}")
    told = Form(form)
    if told is not Form.HTTP:
        return _of_files(told, paths, url, start_ms)
    if paths:
        raise SourceError(f"export: {paths[0]}; expected none with --from http, which asks the server of --url")
    if url is None or urlsplit(url).scheme not in {"http", "https"}:
        raise SourceError(f"url: {_shown(url)}; expected http://host:port or https://host:port with --from http")
    if start_ms is None or end_ms is None:
        raise SourceError("period: missing; expected one with --from http, as 2026-10: a server has no first sample")
    return Origin(told, url=url, start_ms=start_ms, end_ms=end_ms, bearer_token_file=bearer_token_file)


def _of_files(told: Form, paths: Sequence[str | Path], url: str | None, start_ms: int | None) -> Origin:
    if url is not None:
        raise SourceError(f"url: {_shown(url)}; expected no address with --from {told}, only with --from http")
    if not paths:
        raise SourceError(f"export: missing; expected a file or folder in the form {told}")
    if told in {Form.LAKE, Form.RUNS} and len(paths) > 1:
        raise SourceError(f"export: {len(paths)} paths; expected one folder with --from {told}")
    if told is Form.RUNS and start_ms is None:
        raise SourceError("period: missing; expected one with --from runs, as 2026-10: a table holds many")
    if told is Form.RUNS:
        return Origin(told, table=str(paths[0]))
    # Executors have working folders of their own.
    return Origin(told, tuple(Path(path).absolute() for path in paths))


def _shown(url: str | None) -> str:
    """What stands before an @ may be a password."""
    if url is None:
        return "missing"
    _, at, rest = url.rpartition("@")
    return repr(f"...@{rest}" if at else url)


def samples_of(spark: "SparkSession", origin: Origin, metrics: Sequence[str]) -> "DataFrame":
    """The frame of samples. Of a server only `metrics` are asked for, once: its answer is kept. Raises ExportFormatError."""
    from sla_reports.readers import lake, openmetrics, query_range, tsdb_dump, victoriametrics  # noqa: PLC0415

    match origin.form:
        case Form.HTTP:
            return _of_server(spark, origin, metrics)
        case Form.LAKE:
            return lake.read(spark, origin.paths[0]).frame
        case Form.OPENMETRICS:
            return openmetrics.read(spark, origin.paths).frame
        case Form.VICTORIAMETRICS:
            return victoriametrics.read(spark, origin.paths).frame
        case Form.TSDB_DUMP:
            return tsdb_dump.read(spark, origin.paths).frame
        case Form.QUERY_RANGE:
            return query_range.read(spark, origin.paths).frame
        case Form.RUNS:
            raise SourceError("from: runs; expected a form that has samples, and not a table that was made of them")


def _of_server(spark: "SparkSession", origin: Origin, metrics: Sequence[str]) -> "DataFrame":
    from sla_reports.readers import prometheus  # noqa: PLC0415
    from sla_reports.readers.errors import readable_errors  # noqa: PLC0415

    options = {"bearer_token_file": str(origin.bearer_token_file)} if origin.bearer_token_file else {}
    with readable_errors():
        told = prometheus.read(
            spark, origin.url, start_ms=origin.start_ms, end_ms=origin.end_ms, match=metrics, **options
        )
        # The reduction reads mixed cells twice; a server is asked once.
        return told.frame.cache()
