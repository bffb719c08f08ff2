"""Reads how far a broker's topics reach and how far they are read: 1007, 28, 21, 43, 45, 202, 300, 907, 26, 1007, in this order.

A topic costs one request, and one more if it ever had a message; so many go out at once that a broker's admin threads are not held
up for long. The other members of the SyncStateSet are asked for their topics (21).
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
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
# Of a whole look, however many topics there are.
_LOOK_SECONDS: Final = 120.0
# With one of these, a Java 5.5.0 broker keeps messages where no request counts them: timers, half messages and popped messages in
# a RocksDB of its own, and light queues (LMQ) that are no topics.
_UNCOUNTED: Final = (
    "enableLmq",
    "enableMultiDispatch",
    "popConsumerKVServiceEnable",
    "timerRocksDBEnable",
    "transRocksDBEnable",
)
# 28: messages for the timer wheel that it has not read yet, those in it, and what is due and not delivered. A broker whose wheel is
# off answers 0 for each.
_TIMERS: Final = ("timerOffsetBehind", "timerCongestNum", "timerReadBehind")
# So long a closed Java broker must go on refusing sends (startAcceptSendRequestTimeStamp), by this plane's clock.
_REFUSES_SECONDS: Final = 30.0


@dataclass(frozen=True, kw_only=True)
class OffsetReader:
    """Reads at one broker, the master of `record`; `hosts`: from which host each other member of its SyncStateSet is linked."""

    calls: BrokerCalls
    address: str
    record: BrokerGroupRecord
    hosts: dict[int, str]

    async def read(self) -> GroupOffsets:
        """Raise BrokerCallError if a broker does not answer in time, is not master, or has another epoch than the record."""
        try:
            async with asyncio.timeout(_LOOK_SECONDS):
                return await self._read()
        except TimeoutError as error:
            raise BrokerCallError(f"{self.address}: its offsets took more than {_LOOK_SECONDS:.0f} s") from error

    async def _read(self) -> GroupOffsets:
        read_at_unix_seconds, begins = time.time(), await self._log_end()
        numbers = await self.calls.runtime_numbers(self.address)
        metadata = await self.calls.metadata(self.address)
        delayed = await self.calls.delay_offsets(self.address)
        topics = await self._topics(metadata)
        elsewhere = await self._topics_elsewhere()
        level = await self._all_have_it()
        last = await self.calls.runtime_numbers(self.address)
        # Late: a broker that was opened meanwhile is not closed. Behind it only the end of the log, with all that came in so far.
        shown = await self.calls.broker_config(self.address)
        ends = await self._log_end()
        is_whole = last.get("dispatchBehindBytes", 0) == 0 and last.get("confirmOffset", ends) == ends
        booted_ms = last.get("bootTimestamp")
        return GroupOffsets(
            master_id=self.record.master_broker_id or 0,
            epoch=self.record.master_epoch,
            cluster_name=self.record.cluster_name,
            read_at_unix_seconds=read_at_unix_seconds,
            takes_sends=bool(_permission(shown) & _WRITE),
            acknowledges=_acknowledges(shown),
            log_end=ends,
            steady=begins == ends and level and is_whole,
            booted_at_unix_seconds=None if booted_ms is None else booted_ms / 1000,
            topics=topics,
            missing_topics=elsewhere - metadata.topics.keys(),
            consumed=metadata.offsets,
            delayed=delayed,
            timers=_timers(shown, numbers),
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
        """Whether every member of the SyncStateSet has the whole log. Raise BrokerCallError if the broker acts as slave."""
        status = await self.calls.ha_status(self.address)
        if not status.master:
            raise BrokerCallError(f"{self.address}: 907 says that it is no master")
        return broker_calls.all_have_the_log(self.hosts, status)

    async def _topics_elsewhere(self) -> frozenset[str]:
        """The topics of the other members of the SyncStateSet. Raise BrokerCallError if one does not answer."""
        found: frozenset[str] = frozenset()
        for broker_id in sorted(self.hosts):
            if (address := self.record.address_of(broker_id)) is None:
                raise BrokerCallError(f"the address of broker {broker_id} is not known")
            found |= await self.calls.topic_names(address)
        return found

    async def _topics(self, metadata: Metadata) -> dict[str, TopicOffsets]:
        limit, committed = asyncio.Semaphore(_AT_ONCE), _committed(metadata.offsets)

        async def read(topic: str) -> TopicOffsets | None:
            async with limit:
                return await self._topic(topic, _queues_of(metadata, topic), committed.get(topic, {}))

        try:
            async with asyncio.TaskGroup() as group:
                tasks = {name: group.create_task(read(name)) for name in sorted(metadata.topics)}
        except ExceptionGroup as failed:
            # The other requests are cancelled by then; the first failure says enough.
            raise failed.exceptions[0] from failed
        return {name: one for name, task in tasks.items() if (one := task.result()) is not None}

    async def _topic(self, topic: str, queues: int, committed: Mapping[str, frozenset[int]]) -> TopicOffsets | None:
        """None for a topic without a message in any queue so far, or that was deleted meanwhile."""
        try:
            offsets = await self.calls.topic_stats(self.address, topic)
        except NoSuchTopicError:
            return None
        if missing := set(range(queues)) - offsets.keys():
            raise BrokerCallError(f"{self.address}: 202 of topic {topic} lacks queue {min(missing)}")
        used, read = _used(offsets), frozenset[int]().union(*committed.values())
        unlisted = tuple(sorted(read - offsets.keys()))
        if not used and not unlisted:
            return None
        # 300 also for groups that subscribe and have no offset yet.
        readers = await self.calls.topic_readers(self.address, topic)
        return TopicOffsets(queues=used, readers=readers | committed.keys(), unlisted=unlisted)


def _committed(offsets: Mapping[str, Mapping[int, int]]) -> dict[str, dict[str, frozenset[int]]]:
    """By topic: the consumer groups with an offset, and of which queues."""
    found: dict[str, dict[str, frozenset[int]]] = defaultdict(dict)
    for key, queues in offsets.items():
        topic, _, group = key.partition("@")
        found[topic][group] = frozenset(queue_id for queue_id in queues if queue_id >= 0)
    return found


def _used(offsets: Mapping[int, QueueOffsets]) -> dict[int, QueueOffsets]:
    return {queue_id: one for queue_id, one in offsets.items() if one.maximum > 0}


def _queues_of(metadata: Metadata, topic: str) -> int:
    read, write, _ = metadata.topics[topic]
    return max(count for count in (read, write, 0) if isinstance(count, int))


def _timers(shown: Mapping[str, str], numbers: Mapping[str, int]) -> int | None:
    if shown.get("timerWheelEnable") != "true" or not numbers.keys() >= set(_TIMERS):
        return None
    return sum(numbers[name] for name in _TIMERS)


def _acknowledges(shown: Mapping[str, str]) -> bool:
    if broker_calls.live_minimum(shown) != broker_calls.FENCING_MIN_IN_SYNC_REPLICAS:
        return True
    # A Java broker acknowledges a send with WAIT=false whatever the minimum is, unless it refuses all sends.
    refuses_seconds = broker_calls.refuses_sends_seconds(shown)
    return refuses_seconds is not None and refuses_seconds < _REFUSES_SECONDS


def _permission(shown: Mapping[str, str]) -> int:
    """What the broker permits its clients, as read (4) and write (2); everything if it does not say."""
    text = shown.get("brokerPermission", "")
    return int(text) if text.isascii() and text.isdecimal() and len(text) == 1 else _WRITE
