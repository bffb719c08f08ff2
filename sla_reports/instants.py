"""An instant as a sentence tells it."""

import datetime as dt


def utc(at_ms: int) -> str:
    """In UTC, to the second."""
    return dt.datetime.fromtimestamp(at_ms / 1000, dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
