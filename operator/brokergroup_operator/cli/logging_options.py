"""`--log-level` and `--log-format`: how the operator's process writes its log, its own lines and those of its libraries alike."""

from __future__ import annotations

import logging
import sys
from typing import Annotated, Any, Literal

import structlog
import typer

LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["text", "json"]
LogLevelOption = Annotated[LogLevel, typer.Option("--log-level", help="Lines below this level are left out")]
LogFormatOption = Annotated[
    LogFormat, typer.Option("--log-format", help="json: one object a line, with timestamp, level, event and the values")
]
# kopf reports each handler's success at INFO; it is heard from WARNING on unless details are asked for.
LIBRARIES_LEVEL = logging.WARNING


def configure_logging(level: LogLevel, log_format: LogFormat) -> None:
    """Let structlog and the standard library write to standard output, in one format."""
    threshold = logging.getLevelNamesMapping()[level.upper()]
    shared: list[Any] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    renderers: list[Any] = [structlog.dev.ConsoleRenderer(colors=sys.stdout.isatty())]
    if log_format == "json":
        renderers = [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(default=str)]
    structlog.configure(
        processors=[structlog.contextvars.merge_contextvars, *shared, *renderers],
        wrapper_class=structlog.make_filtering_bound_logger(threshold),
        logger_factory=structlog.PrintLoggerFactory(),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(sys.stdout)
    remove_meta = structlog.stdlib.ProcessorFormatter.remove_processors_meta
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.add_logger_name, *shared], processors=[remove_meta, *renderers]
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(threshold if level == "debug" else max(threshold, LIBRARIES_LEVEL))
