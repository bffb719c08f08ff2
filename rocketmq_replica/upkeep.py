"""Work on the disk while the replica runs: flush the log, save tables, delete old log files, index full ones.

fsync runs in a thread. With SYNC_FLUSH a message is acknowledged after it, and sends that arrive during one fsync share the next.
An error of ``log/log_flusher.py`` ends the process. A full disk does not: tables are saved when there is space again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING

from rocketmq_replica.broker import Role
from rocketmq_replica.log.disk import is_no_space
from rocketmq_replica.log.retention import files_to_delete, is_full

if TYPE_CHECKING:
    from collections.abc import Callable

    from rocketmq_replica.broker import Broker
    from rocketmq_replica.tables import ConsumerOffsets, DelayOffsets


logger = logging.getLogger(__name__)

_FLUSH_EVERY_SECONDS = 0.5
_SAVE_EVERY_SECONDS = 5.0


class SaveLoop:
    """Flushes the log and saves the tables, at regular intervals or when an answer waits for the flush."""

    def __init__(self, broker: Broker, *tables: ConsumerOffsets | DelayOffsets) -> None:
        self._broker = broker
        self._tables = tables
        self._wanted = asyncio.Event()
        self._in_thread: asyncio.Task[None] | None = None

    def flush_soon(self) -> None:
        """Flush soon: an answer waits for it."""
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
        """After ``run`` was cancelled: wait for the thread, then save the remaining changes."""
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
        """Make the log durable in a thread, then release its waiters. After a LogFlushError this process must end."""
        log = self._broker.store.log
        flush = log.flusher.begin(log.max_offset)
        if flush.descriptors:
            await self._run_in_thread(log.flusher.run, flush)
        log.flusher.finish(flush)
        self._broker.settle()
        self._broker.on_flushed()

    async def _save_topics(self) -> None:
        """Save new topics. On a full disk this is retried until there is space."""
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


_PERIOD_SECONDS = 5.0


class Upkeep:
    """Watches the disk space, deletes old log files, and indexes full ones, every few seconds."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._in_thread: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            try:
                self.look(now_seconds=time.time(), local_hour=time.localtime().tm_hour)
                await self._index()
            except OSError as error:
                if not is_no_space(error):
                    raise
                logger.warning("upkeep of the log waits for disk space: %s", error.strerror)
            await asyncio.sleep(_PERIOD_SECONDS)

    def look(self, *, now_seconds: float, local_hour: int) -> None:
        """Check whether the disk is full, and delete expired log files."""
        broker = self._broker
        log = broker.store.log
        space = log.space()
        full = is_full(broker.retention, space)
        if full != bool(broker.disk_full):
            logger.warning("the disk is %s: %.0f %% used", "full" if full else "not full any more", space.used_percent)
        broker.disk_full = f"the broker's disk is full [CL: {space.used_percent / 100:.2f}]" if full else ""
        count = files_to_delete(
            log.files(),
            broker.retention,
            space,
            barrier_offset=self.barrier_offset(),
            now_seconds=now_seconds,
            local_hour=local_hour,
        )
        if count:
            broker.store.delete_oldest_files(count)
            logger.info("deleted %d files of the log, it begins at %d", count, log.min_offset)

    def barrier_offset(self) -> int:
        """Return the barrier of deletion: the log from here on may still be read.

        Consumers read up to the confirm offset, each slave from its last acknowledgement, and a member of the SyncStateSet without
        a link from anywhere.
        """
        broker = self._broker
        if broker.role is Role.FENCED:
            return 0
        needed = [broker.store.confirm_offset]
        if broker.term is not None:
            state = broker.term.sync_state
            needed += [slave.ack_offset for slave in state.links.values()]
            if state.waited_for - state.links.keys() - {state.own_id}:
                needed.append(0)
        return max(min(needed), 0)

    async def stop(self) -> None:
        """After ``run`` was cancelled: wait for the thread."""
        if self._in_thread is not None:
            await asyncio.gather(self._in_thread, return_exceptions=True)

    async def _index(self) -> None:
        store = self._broker.store
        while (to_index := store.next_to_index()) is not None:
            self._in_thread = asyncio.create_task(asyncio.to_thread(store.index.write, *to_index))
            await asyncio.shield(self._in_thread)
