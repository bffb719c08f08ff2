"""How many bytes of frames that have not arrived whole all connections of a server may hold, of one host and together.

A frame may have 16 MiB, and a host a thousand connections: half a frame on each of them would be 8 GiB, without a single request.
"""

from __future__ import annotations

from collections import Counter


class ByteBudget:
    """Counts what is held; says when a host, or all of them, hold too much."""

    def __init__(self, *, max_bytes: int, max_bytes_per_host: int) -> None:
        """Nothing is held."""
        self._max_bytes = max_bytes
        self._max_bytes_per_host = max_bytes_per_host
        self._per_host: Counter[str] = Counter()
        self.held_bytes = 0

    def change(self, host: str, by_bytes: int) -> str | None:
        """A connection of ``host`` holds so many bytes more, or fewer; why it has to be closed, if that is too much."""
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
