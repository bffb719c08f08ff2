"""Looking after the disk while the replica runs: how full it is, which log files may go, which full ones have no index yet.

What is decided is in ``log/retention.py``; here is who must still be able to read: consumers above the confirm offset,
every slave from what it last acknowledged, and a member of the SyncStateSet that is not linked from wherever it may be.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING

from rocketmq_replica.log.durable_files import is_no_space
from rocketmq_replica.log.retention import files_to_delete, is_full
from rocketmq_replica.term.broker import Role

if TYPE_CHECKING:
    from rocketmq_replica.term.broker import Broker

logger = logging.getLogger(__name__)

_PERIOD_SECONDS = 5.0


class Upkeep:
    """One look every few seconds."""

    def __init__(self, broker: Broker) -> None:
        """Nothing is looked at before ``run``."""
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
                logger.warning("upkeep of the log waits for room: %s", error.strerror)
            await asyncio.sleep(_PERIOD_SECONDS)

    def look(self, *, now_seconds: float, local_hour: int) -> None:
        """Say whether the disk is full, and delete what may go."""
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
        """What lies at or above this somebody may still want to read."""
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
        """After ``run`` was cancelled: let a thread finish."""
        if self._in_thread is not None:
            await asyncio.gather(self._in_thread, return_exceptions=True)

    async def _index(self) -> None:
        store = self._broker.store
        while (to_index := store.next_to_index()) is not None:
            self._in_thread = asyncio.create_task(asyncio.to_thread(store.index.write, *to_index))
            await asyncio.shield(self._in_thread)
