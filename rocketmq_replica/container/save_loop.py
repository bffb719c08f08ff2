"""Getting things onto the disk while the replica runs: the log, the confirm offset, the consumers' offsets.

fsync runs in a thread. With SYNC_FLUSH a message is acknowledged after it; sends that arrive during one fsync share the next.
What is durable ``log/log_flusher.py`` says; its error ends the process here. A full disk ends nothing: what cannot be saved now is
saved when there is room.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from rocketmq_replica.log.durable_files import is_no_space

if TYPE_CHECKING:
    from collections.abc import Callable

    from rocketmq_replica.metadata.consumer_groups import ConsumerOffsets
    from rocketmq_replica.metadata.delay_offsets import DelayOffsets
    from rocketmq_replica.term.broker import Broker

logger = logging.getLogger(__name__)

_FLUSH_EVERY_SECONDS = 0.5
_SAVE_EVERY_SECONDS = 5.0


class SaveLoop:
    """Flushes now and then, or as soon as an answer waits for it."""

    def __init__(self, broker: Broker, *tables: ConsumerOffsets | DelayOffsets) -> None:
        """Nothing is written before ``run``."""
        self._broker = broker
        self._tables = tables
        self._wanted = asyncio.Event()
        self._in_thread: asyncio.Task[None] | None = None

    def flush_soon(self) -> None:
        """An answer waits for the flush."""
        self._wanted.set()

    async def run(self) -> None:
        """Until cancelled."""
        loop = asyncio.get_running_loop()
        next_save = loop.time() + _SAVE_EVERY_SECONDS
        while True:
            try:
                async with asyncio.timeout(_FLUSH_EVERY_SECONDS):
                    await self._wanted.wait()
            except TimeoutError:
                pass
            self._wanted.clear()
            await self.flush()
            await self._save_topics()
            if loop.time() >= next_save:
                next_save = loop.time() + _SAVE_EVERY_SECONDS
                await self._save_if_there_is_room()

    async def stop(self) -> None:
        """After ``run`` was cancelled: let a thread finish, then write what is left, here and now."""
        if self._in_thread is not None:
            await asyncio.gather(self._in_thread, return_exceptions=True)
        topics = self._broker.topics.take_changes()
        if topics is not None:
            self._broker.topics.write(topics)
        for table in self._tables:
            content = table.take_changes()
            if content is not None:
                table.write(content)

    async def flush(self) -> None:
        """Make the log durable up to its end, in a thread, and tell who waits for it. LogFlushError: this process has to end."""
        log = self._broker.store.log
        flush = log.flusher.begin(log.max_offset)
        if flush.descriptors:
            await self._run_in_thread(log.flusher.run, flush)
        log.flusher.finish(flush)
        self._broker.settle()
        self._broker.on_flushed()

    async def _save_topics(self) -> None:
        """Once for all that were made since the last time; on a full disk again and again until there is room."""
        changes = self._broker.topics.take_changes()
        if changes is None:
            return
        try:
            await self._run_in_thread(self._broker.topics.write, changes)
        except OSError as error:
            if not is_no_space(error):
                raise
            logger.warning("topics are not saved: %s", error.strerror)

    async def _save_if_there_is_room(self) -> None:
        try:
            await self._save()
        except OSError as error:
            if not is_no_space(error):
                raise
            logger.warning("offsets and checkpoint are not saved: %s", error.strerror)

    async def _save(self) -> None:
        for table in self._tables:
            content = table.take_changes()
            if content is not None:
                await self._run_in_thread(table.write, content)
        await self._run_in_thread(self._broker.store.save_checkpoint)

    async def _run_in_thread(self, function: Callable[..., None], *arguments: object) -> None:
        self._in_thread = asyncio.create_task(asyncio.to_thread(function, *arguments))
        await asyncio.shield(self._in_thread)
