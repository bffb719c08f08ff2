"""Limits on what a peer costs: time, requests and bytes of a connection, bytes of all connections, lines in the log."""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from functools import lru_cache, wraps
from typing import TYPE_CHECKING, Final, TypeVar

from rocketmq_remoting.codec import FrameLimits

if TYPE_CHECKING:
    import logging
    from collections.abc import Callable

Result = TypeVar("Result")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionSettings:
    """Limits of one connection; all connections of a server or client share them."""

    limits: FrameLimits = dataclasses.field(default_factory=FrameLimits)
    idle_timeout_seconds: float = 120.0
    """The connection is closed after this time without a byte in either direction (Java: 120 s on both sides)."""
    frame_timeout_seconds: float = 15.0
    """A frame must arrive completely within this time from its first byte."""
    max_in_flight: int = 1024
    """Requests of this peer handled at the same time."""
    budget: ByteBudget | None = None
    """Bytes of incomplete frames, shared by all connections of a server. None on a client, which chose its peers."""


class ByteBudget:
    """Bytes of incomplete frames over all connections of a server: in total and per host.

    A frame may have 16 MiB and a host a thousand connections: half a frame on each would be 8 GiB without a single request.
    """

    def __init__(self, *, max_bytes: int, max_bytes_per_host: int) -> None:
        self._max_bytes = max_bytes
        self._max_bytes_per_host = max_bytes_per_host
        self._per_host: Counter[str] = Counter()
        self.held_bytes = 0

    def change(self, host: str, by_bytes: int) -> str | None:
        """Add to the bytes of ``host``. Return why its connection must be closed if they are too many, else None."""
        self.held_bytes += by_bytes
        self._per_host[host] += by_bytes
        if not self._per_host[host]:
            del self._per_host[host]
        if by_bytes <= 0:
            return None
        if self._per_host[host] > self._max_bytes_per_host:
            return f"{self._per_host[host]} bytes of unfinished frames of one host, expected at most {self._max_bytes_per_host}"
        if self.held_bytes > self._max_bytes:
            return f"{self.held_bytes} bytes of unfinished frames of all hosts, expected at most {self._max_bytes}"
        return None


REMEMBERED_TEXTS: Final = 4096
LONGEST_REMEMBERED: Final = 300
"""Longer than any address, DNS name or number."""


def remembered(read: Callable[[str], Result]) -> Callable[[str], Result]:
    """Remember what a pure function made of the last texts that peers sent, of short ones alone: a peer chooses the length."""
    cached = lru_cache(maxsize=REMEMBERED_TEXTS)(read)

    @wraps(read)
    def of_text(text: str) -> Result:
        return cached(text) if len(text) <= LONGEST_REMEMBERED else read(text)

    return of_text


WINDOW_SECONDS: Final = 60.0
LINES_PER_WINDOW: Final = 30
MAX_CHARACTERS: Final = 2000


class LineLimit:
    """So many log lines a minute, and the count of those left out."""

    def __init__(self, most_lines: int) -> None:
        self._most_lines = most_lines
        self._window_ends_seconds = 0.0
        self._taken = 0
        self._left_out = 0

    def take(self, now_seconds: float) -> int | None:
        """Take a line; None if none is left in this minute. Return how many were left out, if this is a new minute's first."""
        left_out = 0
        if now_seconds >= self._window_ends_seconds:
            self._window_ends_seconds = now_seconds + WINDOW_SECONDS
            left_out, self._taken, self._left_out = self._left_out, 0, 0
        if self._taken >= self._most_lines:
            self._left_out += 1
            return None
        self._taken += 1
        return left_out


class PeerLog:
    """Warnings about peers, at most 30 lines a minute for one logger: a hostile peer cannot fill the log.

    Unprintable characters are escaped, because names and errors come from the peer: none of them may begin a line of its own.
    """

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._limit = LineLimit(LINES_PER_WINDOW)

    def warning(self, message: str, *arguments: object) -> None:
        """Log the warning while lines are left in this minute. The next minute begins with the number of those left out."""
        left_out = self._limit.take(time.monotonic())
        if left_out is None:
            return
        if left_out:
            self._logger.warning("%d more warnings about peers were left out", left_out)
        self._logger.warning("%s", one_line(message % arguments))


def one_line(text: str) -> str:
    """Return the text as one log line: unprintable characters escaped, at most ``MAX_CHARACTERS``."""
    text = text[:MAX_CHARACTERS]
    return text if text.isprintable() else "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)
