"""Where samples come from: one name for each form of an export, and the reader that belongs to it.

Without Spark until a reader is used, so that a command line can be checked before anything heavy is loaded.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from metric_names import (
    CREATED_TIMESTAMP_SECONDS,
    FAILOVER_PHASE_SECONDS,
    FAILOVERS_TOTAL,
    GROUP_LABELS,
    GROUP_WRITABLE,
    MEMBER_PLACE,
    REPLICA_LAG_BYTES,
    SYNC_STATE_SET_SIZE,
    UNAVAILABLE_SECONDS_TOTAL,
    UNCLEAN_ELECTIONS_TOTAL,
    VOTING_REPLICAS,
)
from sla_reports.connection import NO_OPTIONS, Access, address_of, credentials_of, shown

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from sla_reports.readers.samples import Samples

# A report needs what held just before its window and just after it: more than any usual gap limit.
MARGIN_MS = 600_000
_LABEL_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
# Values of most change seldom, so their runs are few.
REPORT_METRICS = (
    GROUP_WRITABLE, CREATED_TIMESTAMP_SECONDS, MEMBER_PLACE, SYNC_STATE_SET_SIZE, UNAVAILABLE_SECONDS_TOTAL, FAILOVERS_TOTAL,
    VOTING_REPLICAS, UNCLEAN_ELECTIONS_TOTAL, f"{FAILOVER_PHASE_SECONDS}_bucket",
)  # fmt: skip
# What is asked of a server, and stands in an export: also the gauge that is not made into runs (`greatest_lag_bytes`).
READ_METRICS = (*REPORT_METRICS, REPLICA_LAG_BYTES)


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
    access: Access = NO_OPTIONS
    # Take answers that lack something, and report what they lack.
    accept_partial: bool = False
    # With the form runs: the daily table, a folder or s3://bucket/path.
    table: str = ""

    @property
    def shown_url(self) -> str:
        """The address without what may be a password."""
        return address_of(self.url).url

    @property
    def shown_name(self) -> str:
        """The name of the source, for a message."""
        return ", ".join(path.name for path in self.paths) or self.table or self.shown_url


def origin_of(
    form: str, paths: Sequence[str | Path], url: str | None, *, start_ms: int | None = None, end_ms: int | None = None,
    access: Access = NO_OPTIONS, accept_partial: bool = False,
) -> Origin:  # fmt: skip
    """Check the options of a command that name the samples. Raises SourceError, ConnectionOptionError."""
    if form not in list(Form):
        raise SourceError(f"from: {form!r}; expected one of {', '.join(Form)}")
    told = Form(form)
    if told is not Form.HTTP:
        if given := access.given():
            raise SourceError(f"{given[0]}: given with --from {told}; expected it only with --from http")
        return replace(_of_files(told, paths, url, start_ms), accept_partial=accept_partial)
    if paths:
        raise SourceError(f"export: {paths[0]}; expected none with --from http, which asks the server of --url")
    if url is None:
        raise SourceError("url: missing; expected http://host:port or https://host:port with --from http")
    # Before Spark starts, what its workers would find out a minute later.
    credentials_of(access, address_of(url)).tls()
    if start_ms is None or end_ms is None:
        raise SourceError("period: missing; expected one with --from http, as 2026-10: a server has no first sample")
    return Origin(told, url=url, start_ms=start_ms, end_ms=end_ms, access=access, accept_partial=accept_partial)


def _of_files(told: Form, paths: Sequence[str | Path], url: str | None, start_ms: int | None) -> Origin:
    if url is not None:
        raise SourceError(f"url: {shown(url)}; expected no address with --from {told}, only with --from http")
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


def replica_labels_named(names: Sequence[str]) -> list[str]:
    """Check the labels by which copies differ. Raises SourceError if one is no label name, or a label of the identity."""
    for name in names:
        if not _LABEL_NAME.fullmatch(name):
            raise SourceError(f"replica-label: {name!r}; expected a label's name, as receive_replica")
        if name.removeprefix("exported_") in GROUP_LABELS:
            raise SourceError(f"replica-label: {name}; expected none of {', '.join(GROUP_LABELS)}: they name the group")
    return list(dict.fromkeys(names))


def labels_matched(texts: Sequence[str]) -> dict[str, str]:
    """Parse texts as `region=eu` into names and values. Raises SourceError."""
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not _LABEL_NAME.fullmatch(name) or not equals or not value:
            raise SourceError(f"match: {text!r}; expected label=value, as region=eu")
        if found.setdefault(name, value) != value:
            raise SourceError(f"match: {text!r} beside {name}={found[name]}; expected one value of a label")
    return found


def samples_of(spark: "SparkSession", origin: Origin, metrics: Sequence[str]) -> "Samples":
    """Read the samples of `metrics`; all others are passed over and counted. A server is asked once: its answer is cached.

    Raises ExportFormatError.
    """
    from sla_reports.readers import json_forms, lake, text  # noqa: PLC0415
    from sla_reports.readers.samples import Selection  # noqa: PLC0415

    selection = Selection(frozenset(metrics), origin.accept_partial)
    readers = {
        Form.OPENMETRICS: text.read_openmetrics, Form.TSDB_DUMP: text.read_tsdb_dump, Form.QUERY_RANGE: json_forms.read_answers,
        Form.VICTORIAMETRICS: json_forms.read_victoriametrics,
    }  # fmt: skip
    if origin.form in readers:
        return readers[origin.form](spark, origin.paths, selection=selection)
    if origin.form is Form.LAKE:
        return lake.read(spark, origin.paths[0])
    if origin.form is Form.HTTP:
        return _of_server(spark, origin, metrics)
    raise SourceError("from: runs; expected a form that has samples, and not a table that was made of them")


def _of_server(spark: "SparkSession", origin: Origin, metrics: Sequence[str]) -> "Samples":
    from sla_reports.readers import prometheus  # noqa: PLC0415
    from sla_reports.readers.samples import readable_errors  # noqa: PLC0415

    options = origin.access.as_options()
    if origin.accept_partial:
        options["accept_partial"] = "true"
    with readable_errors():
        told = prometheus.read(
            spark, origin.url, start_ms=origin.start_ms, end_ms=origin.end_ms, match=metrics, **options
        )
        # The reduction and the lag read it; a server is asked once.
        told.frame.cache()
    return told
