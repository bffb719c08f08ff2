"""Refusals, counted by whoever counts answers, told in the log: seldom, however many there are."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog

if TYPE_CHECKING:
    from rocketmq_remoting.command import RemotingCommand
    from rocketmq_remoting.connection import RemotingConnection

WINDOW_SECONDS = 60.0
LINES_PER_WINDOW = 10

log = structlog.get_logger(__name__)


class RefusalLog:
    """Some lines a minute; how many were left out is said when the next minute begins."""

    def __init__(self) -> None:
        self._window_ends_seconds = 0.0
        self._told = 0
        self._left_out = 0

    def note(self, request: RemotingCommand, connection: RemotingConnection, reason: str) -> None:
        """Tell of one refusal, if this minute's lines are not used up."""
        now_seconds = asyncio.get_running_loop().time()
        if now_seconds >= self._window_ends_seconds:
            if self._left_out:
                log.warning("more requests were refused", left_out=self._left_out)
            self._window_ends_seconds = now_seconds + WINDOW_SECONDS
            self._told = self._left_out = 0
        if self._told >= LINES_PER_WINDOW:
            self._left_out += 1
            return
        self._told += 1
        log.warning("request refused", code=request.code, peer=connection.peer_host, reason=reason)
