"""Connections that carry JSON lines: a broker's log to its slaves, a client's messages to a broker."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from collections.abc import Callable


class LineConnection(asyncio.Protocol):
    """One end of a connection; calls `on_line` for each line and `on_end` at its end."""

    def __init__(
        self, on_line: Callable[[LineConnection, dict[str, Any]], None], on_end: Callable[[LineConnection], None]
    ) -> None:
        self._on_line = on_line
        self._on_end = on_end
        self._transport: asyncio.Transport | None = None
        self._rest = b""
        self.ended = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended.set()
        self._on_end(self)

    def data_received(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._on_line(self, json.loads(line))

    @property
    def peer(self) -> tuple[str, int]:
        """Return host and port of the other end."""
        assert self._transport is not None
        found: tuple[str, int] = self._transport.get_extra_info("peername")
        return found

    @property
    def peer_process(self) -> str:
        """Return the process at the other end."""
        return str(cast("Any", self._transport).peer.process)

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def send(self, **line: Any) -> None:
        if self._transport is not None:
            self._transport.write(json.dumps(line).encode() + b"\n")

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()
