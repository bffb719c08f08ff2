"""Log lines of the demo's own process go to a file: what the libraries in it say must not break into the screen."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import structlog


@contextmanager
def logging_to(file: Path) -> Iterator[None]:
    """For the length of a block everything logged here, by structlog or by the standard library, is a line of the file."""
    file.parent.mkdir(parents=True, exist_ok=True)
    root = logging.getLogger()
    before = structlog.get_config()
    with file.open("a", encoding="utf-8", buffering=1) as target:
        handler = logging.StreamHandler(target)
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        root.addHandler(handler)
        structlog.configure(
            processors=[
                structlog.processors.add_log_level,
                structlog.processors.TimeStamper(fmt="iso", utc=True),
                structlog.processors.format_exc_info,
                structlog.dev.ConsoleRenderer(colors=False),
            ],
            logger_factory=structlog.WriteLoggerFactory(target),
        )
        try:
            yield
        finally:
            structlog.configure(**before)
            root.removeHandler(handler)
