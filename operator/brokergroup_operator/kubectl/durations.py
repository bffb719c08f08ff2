"""Durations on the command line: as kubectl takes them (Go's notation: 100s, 1m30s, 1.5h), and plain seconds."""

from __future__ import annotations

import re

import typer

UNIT_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_NUMBER = r"(?:\d+\.?\d*|\.\d+)"
_PART = re.compile(rf"({_NUMBER})(ns|us|µs|μs|ms|s|m|h)")
_PARTS = re.compile(rf"(?:{_NUMBER}(?:ns|us|µs|μs|ms|s|m|h))+", re.ASCII)
_PLAIN = re.compile(_NUMBER, re.ASCII)


def seconds(text: str | float) -> float:
    """Seconds, 0 or more. An option's default comes as a number. Raises the usage error that the command line prints."""
    stripped = str(text).strip()
    if _PLAIN.fullmatch(stripped):
        return float(stripped)
    if _PARTS.fullmatch(stripped):
        return sum(float(number) * UNIT_SECONDS[unit] for number, unit in _PART.findall(stripped))
    raise typer.BadParameter(f"{stripped!r}: expected a duration like 100s, 1m30s or 1.5h, or seconds like 100")


def whole_seconds(text: str | int) -> int:
    """The same for a field of the API, whose unit is whole seconds, 1 to 3600."""
    found = seconds(text)
    if not found.is_integer() or not 1 <= found <= 3600:
        raise typer.BadParameter(f"{str(text)!r}: expected whole seconds, 1s to 1h")
    return int(found)
