"""Requests of ours that wait for their answers, by opaque."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import asyncio

    from rocketmq_remoting.command import RemotingCommand

_MAX_OPAQUE: Final = 2**31 - 1


class PendingRequests:
    """Opaques go round in 2^31, and one that still waits is passed over: a late answer never meets another's request."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._next_opaque = 0
        self._futures: dict[int, asyncio.Future[RemotingCommand]] = {}

    def __len__(self) -> int:
        return len(self._futures)

    def take_opaque(self) -> int:
        """An opaque nobody waits for."""
        while True:
            opaque = self._next_opaque
            self._next_opaque = 0 if opaque == _MAX_OPAQUE else opaque + 1
            if opaque not in self._futures:
                return opaque

    def wait_for(self, opaque: int) -> asyncio.Future[RemotingCommand]:
        """The answer to come. Whoever asks for it calls :meth:`forget` in the end."""
        future: asyncio.Future[RemotingCommand] = self._loop.create_future()
        self._futures[opaque] = future
        return future

    def forget(self, opaque: int) -> None:
        """Nobody waits any more."""
        future = self._futures.pop(opaque)
        if future.done() and not future.cancelled():
            future.exception()  # looked at, so that asyncio does not report it when another error was faster

    def resolve(self, answer: RemotingCommand) -> bool:
        """Hand the answer to whoever waits; False when nobody does."""
        future = self._futures.get(answer.opaque)
        if future is None or future.done():
            return False
        future.set_result(answer)
        return True

    def fail_all(self, error: Exception) -> None:
        """The connection is gone: so are the answers."""
        for future in self._futures.values():
            if not future.done():
                future.set_exception(error)
