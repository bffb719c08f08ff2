"""Writes the master's consumer offsets at slaves that do not copy them.

A slave of RocketMQ 5.5.0 copies none once a consumer has pulled from its master: the answer to 43 then has a table of pull offsets
which the slave can't skip (apache/rocketmq #10284). The answer itself is right, and is read here. A slave accepts an offset by 15
as a master does, and keeps it on its disk. As in Java's own copy the master's value replaces a lower and a higher one: a person may
have reset it. A write that arrives late makes consumers receive some messages again, and skip none (ADR 33).
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import structlog

from brokergroup_operator.controller.peers.broker_calls import BrokerCallError, NotPermittedError, RefusedError
from brokergroup_operator.controller.peers.services import Part

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from brokergroup_operator.controller.group.group import Group
    from brokergroup_operator.controller.peers.metadata import Metadata, Offsets
    from controller_core.model import BrokerGroupRecord

# At one slave at once; the rest follows at the next look.
MOST_OFFSETS = 2000
IN_FLIGHT = 16
# A broker that refuses more than these takes none.
MOST_REFUSALS = 32

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class OffsetWrite:
    """The offset that this consumer group is to read next in one queue."""

    topic: str
    group: str
    queue_id: int
    offset: int
    # The broker has no offset of this group and topic yet. Java loses one of two such that come at once (`commitOffset`).
    is_first: bool = False


@dataclass(slots=True)
class _Care:
    epoch: int = 0
    # By slave, the offsets that it had after the last write. Once it has others, it copies by itself.
    left: dict[int, Offsets] = field(default_factory=dict)
    reported: set[int] = field(default_factory=set)


def offsets_to_write(master: Offsets, slave: Metadata) -> list[OffsetWrite]:
    """Return what gives the slave its master's offsets, in order: those that it lacks, then those furthest from the master's.

    Of a group and topic that it has no offset of, one queue comes before all others. Without topics and groups that the slave does
    not have: it refuses their offsets.
    """
    found: list[tuple[bool, bool, int, OffsetWrite]] = []
    for name, queues in sorted(master.items()):
        topic, _, group = name.partition("@")
        if topic not in slave.topics or group not in slave.groups:
            continue
        has, is_first = slave.offsets.get(name, {}), name not in slave.offsets
        for queue_id, offset in sorted(queues.items()):
            if has.get(queue_id) != offset:
                distance = abs(offset - has.get(queue_id, 0))
                write = OffsetWrite(topic, group, queue_id, offset, is_first)
                found.append((not is_first, queue_id in has, -distance, write))
                is_first = False
    return [write for *_, write in sorted(found, key=lambda one: one[:3])]


class OffsetCarrier(Part):
    """Used by the metadata guard, for one slave at a time. Nothing of it is on the path of a failover."""

    def copies_none(self, group: Group, record: BrokerGroupRecord, broker_id: int) -> bool:
        """Whether offsets were written at this slave under this master, and it has not copied any since, as far as is known."""
        return broker_id in self._care_of(group, record).left

    async def carry(
        self,
        group: Group,
        record: BrokerGroupRecord,
        broker_id: int,
        own: Metadata,
        *,
        is_behind: bool,
        may_write: Callable[[], bool],
    ) -> Metadata:
        """Write the master's offsets at this slave if it does not copy them; return what it has then, `own` if none was written.

        It copies none if it lacks some (`is_behind`), or has just those that were left there. `own` was read right before.
        `may_write` says whether it still is a slave of this master.
        """
        care = self._care_of(group, record)
        left = care.left.pop(broker_id, None)
        if not (is_behind or left == own.offsets) or not may_write():
            return own
        offsets = await self._written(group, record, broker_id, own, may_write)
        if offsets is None:
            return own
        care.left[broker_id] = offsets
        if offsets == own.offsets:
            return own
        if left == own.offsets and broker_id not in care.reported:
            care.reported.add(broker_id)
            self._observer.offsets_carried(group.key, broker_id)
        return replace(own, offsets=offsets)

    def _care_of(self, group: Group, record: BrokerGroupRecord) -> _Care:
        care = group.care(_Care)
        if care.epoch != record.master_epoch:
            care.epoch = record.master_epoch
            care.left.clear()
            care.reported.clear()
        return care

    async def _written(
        self, group: Group, record: BrokerGroupRecord, broker_id: int, own: Metadata, may_write: Callable[[], bool]
    ) -> Offsets | None:
        """Return the offsets that the slave has now; None if it or its master does not answer."""
        master, slave = record.address_of(record.granted_master_id), record.address_of(broker_id)
        if master is None or slave is None:
            return None
        its_log = log.bind(group=str(group.key), broker_id=broker_id)
        try:
            # Read after the slave's: where the master's is lower, it was lowered there.
            writes = offsets_to_write(await self._calls.consumer_offsets(master), own)[:MOST_OFFSETS]
            if not writes:
                return own.offsets
            await self._calls.config_of_slave(slave)
            written = await self._write(slave, writes, may_write)
            its_log.debug("consumer offsets written at a slave", written=written, wanted=len(writes))
            return await self._calls.consumer_offsets(slave)
        except BrokerCallError as error:
            its_log.info("consumer offsets not written at a slave", error=str(error))
            return None

    async def _write(self, slave: str, writes: Sequence[OffsetWrite], may_write: Callable[[], bool]) -> int:
        """Return how many were accepted; raise `BrokerCallError` if the broker does not answer, or permits none."""
        written, sent, ends_at_seconds = 0, 0, self._now_seconds + self._settings.metadata_deadline_seconds
        while sent < len(writes) and may_write() and self._now_seconds < ends_at_seconds:
            some = [one for one in writes[sent : sent + IN_FLIGHT] if one.is_first == writes[sent].is_first]
            written += sum(await asyncio.gather(*(self._is_accepted(slave, one) for one in some)))
            sent += len(some)
            if sent - written > MOST_REFUSALS:
                break
        return written

    async def _is_accepted(self, slave: str, one: OffsetWrite) -> bool:
        try:
            await self._calls.commit_offset(
                slave, topic=one.topic, queue_id=one.queue_id, group=one.group, offset=one.offset
            )
        except NotPermittedError:
            raise
        except RefusedError as error:
            log.debug("consumer offset refused", address=slave, offset=one, error=str(error))
            return False
        return True
