"""Which broker a log line is about, where one process has several: the context of its tasks carries the name."""

from __future__ import annotations

import logging
from contextvars import ContextVar

current_broker: ContextVar[str] = ContextVar("current_broker", default="")


class BrokerNameFilter(logging.Filter):
    """Adds the field ``broker`` to every record: the name with a blank before it, or nothing."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Keep every record."""
        name = current_broker.get()
        record.broker = f" {name}" if name else ""
        return True
