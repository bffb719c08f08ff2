"""Reads how far a broker's topics reach and how far they are read: 26, 28, 43, 21, 45, 202, 300, 907, 1007, in this order.

A topic costs one request, and one more if it ever had a message; so many go out at once that a broker's admin threads are not held
up for long.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from brokergroup_operator.controller.peers import broker_calls
from brokergroup_operator.controller.peers.broker_calls import BrokerCallError, NoSuchTopicError
from brokergroup_operator.observe.group_offsets import GroupOffsets, TopicOffsets

if TYPE_CHECKING:
    from collections.abc import Mapping

    from brokergroup_operator.controller.peers.broker_calls import BrokerCalls, Metadata
    from controller_core.model import BrokerGroupRecord
    from rocketmq_remoting.broker_protocol import QueueOffsets

_AT_ONCE: Final = 16
_WRITE: Final = 2
# With one of these, a Java 5.5.0 broker keeps messages in a RocksDB of its own: timers, half messages, popped messages.
_UNCOUNTED: Final = ("popConsumerKVServiceEnable", "timerRocksDBEnable", "transRocksDBEnable")
# 28: messages for the timer wheel that it has not read yet, those in it, and what is due and not delivered.
_TIMERS: Final = ("timerOffsetBehind", "timerCongestNum", "timerReadBehind")


@dataclass(frozen=True, kw_only=True)
class OffsetReader:
    """Reads at one broker, the master of `record`."""

    calls: BrokerCalls
    address: str
    record: BrokerGroupRecord

    async def read(self) -> GroupOffsets:
        """Raise BrokerCallError if the broker does not answer, is not master, or has another epoch than the record."""
        read_at_unix_seconds, begins = time.time(), await self._log_end()
        shown = await self.calls.broker_config(self.address)
        numbers = await self.calls.runtime_numbers(self.address)
        metadata = await self.calls.metadata(self.address)
        delayed = await self.calls.delay_offsets(self.address)
        topics = await self._topics(metadata)
        level = await self._all_have_it()
        behind = (await self.calls.runtime_numbers(self.address)).get("dispatchBehindBytes", 0)
        ends = await self._log_end()
        return GroupOffsets(
            master_id=self.record.master_broker_id or 0,
            epoch=self.record.master_epoch,
            cluster_name=self.record.cluster_name,
            read_at_unix_seconds=read_at_unix_seconds,
            takes_sends=bool(_permission(shown) & _WRITE),
            acknowledges=broker_calls.live_minimum(shown) != broker_calls.FENCING_MIN_IN_SYNC_REPLICAS,
            log_end=ends,
            steady=begins == ends and level and behind == 0,
            topics=topics,
            consumed=metadata.offsets,
            delayed=delayed,
            timers=sum(numbers[name] for name in _TIMERS) if numbers.keys() >= set(_TIMERS) else None,
            uncounted=tuple(key for key in _UNCOUNTED if shown.get(key) == "true"),
        )

    async def _log_end(self) -> int:
        record = self.record
        master_id = record.master_broker_id or 0
        found = await self.calls.end_of_log(self.address, record.cluster_name, record.broker_name, master_id)
        if found is None:
            raise BrokerCallError(f"{self.address}: 1007 has no answer of broker {master_id}")
        epoch, end = found
        if epoch != record.master_epoch:
            raise BrokerCallError(f"{self.address}: its log is of epoch {epoch}, expected {record.master_epoch}")
        return end

    async def _all_have_it(self) -> bool:
        """Whether no slave that is linked lacks anything. Raise BrokerCallError if the broker does not act as master."""
        status = await self.calls.ha_status(self.address)
        if not status.master:
            raise BrokerCallError(f"{self.address}: 907 says that it is no master")
        return all(link.diff == 0 for link in status.ha_connection_info)

    async def _topics(self, metadata: Metadata) -> dict[str, TopicOffsets]:
        limit = asyncio.Semaphore(_AT_ONCE)

        async def read(topic: str) -> TopicOffsets | None:
            async with limit:
                return await self._topic(topic, _queues_of(metadata, topic))

        names = sorted(metadata.topics)
        found = await asyncio.gather(*map(read, names))
        return {name: one for name, one in zip(names, found, strict=True) if one is not None}

    async def _topic(self, topic: str, queues: int) -> TopicOffsets | None:
        """None for a topic without a message in any queue so far, or that was deleted meanwhile."""
        try:
            offsets = await self.calls.topic_stats(self.address, topic)
        except NoSuchTopicError:
            return None
        if missing := set(range(queues)) - offsets.keys():
            raise BrokerCallError(f"{self.address}: 202 of topic {topic} lacks queue {min(missing)}")
        if not (used := _used(offsets)):
            return None
        return TopicOffsets(queues=used, readers=await self.calls.topic_readers(self.address, topic))


def _used(offsets: Mapping[int, QueueOffsets]) -> dict[int, QueueOffsets]:
    return {queue_id: one for queue_id, one in offsets.items() if one.maximum > 0}


def _queues_of(metadata: Metadata, topic: str) -> int:
    read, write, _ = metadata.topics[topic]
    return max(count for count in (read, write, 0) if isinstance(count, int))


def _permission(shown: Mapping[str, str]) -> int:
    """What the broker permits its clients, as read (4) and write (2); everything if it does not say."""
    text = shown.get("brokerPermission", "")
    return int(text) if text.isascii() and text.isdecimal() and len(text) == 1 else _WRITE
