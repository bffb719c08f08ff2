"""A controller plane reduced to what operations ask of it: it changes masters in the record, and answers as the test says."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from brokergroup_operator.observe.group_offsets import GroupOffsets, TopicOffsets
from brokergroup_operator.observe.group_view import (
    ElectionResult,
    GroupSnapshot,
    SwitchoverRefusedError,
    SwitchoverResult,
)
from brokergroup_operator.observe.timeline import Cause
from brokergroup_operator.records.kubernetes import KubernetesRecordStore
from controller_core.model import BrokerGroupRecord, LiveReplica
from rocketmq_remoting.broker_protocol import QueueOffsets

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from brokergroup_operator.kube.client import KubernetesApi
    from brokergroup_operator.records.store import GroupKey


class RecordView:
    """Changes masters in the record, at once and durably; refuses or fails as often as the test sets."""

    def __init__(self, operator: KubernetesApi, hands: KubernetesApi, key: GroupKey) -> None:
        self.key = key
        self.store = KubernetesRecordStore(operator)
        self._store_of_the_hands = KubernetesRecordStore(hands)
        self.refusals: list[Exception] = []
        self.asked: list[tuple[int | None, int | None]] = []
        # Whether the master serves writes.
        self.writable = True
        # Members without heartbeats.
        self.silent: set[int] = set()
        # What the master says of its topics, and how often it was asked.
        self.group_offsets: Callable[[], GroupOffsets] = everything_read
        self.looks = 0
        # What happens while the master is asked.
        self.before_answer: Callable[[], Awaitable[None]] = _nothing
        self.given: dict[int, dict[str, str]] = {}
        self._record: BrokerGroupRecord | None = None

    def keys(self) -> list[GroupKey]:
        return [self.key]

    def snapshot(self, key: GroupKey) -> GroupSnapshot | None:
        if key != self.key or self._record is None:
            return None
        live = {
            number: LiveReplica(broker_id=number, epoch=self._record.master_epoch, confirm_offset=70)
            for number in self._record.replicas
        }
        live = {number: replica for number, replica in live.items() if number not in self.silent}
        return GroupSnapshot(key=key, record=self._record, live=live, writable=self.writable)

    def subscribe(self, callback: Callable[[GroupKey], None]) -> Callable[[], None]:
        return lambda: None

    async def write(self, change: Callable[[BrokerGroupRecord], BrokerGroupRecord]) -> BrokerGroupRecord:
        """Write the record as another writer would; every member is alive."""
        return await self._write(self._store_of_the_hands, change)

    async def _write(
        self, store: KubernetesRecordStore, change: Callable[[BrokerGroupRecord], BrokerGroupRecord]
    ) -> BrokerGroupRecord:
        stored = await store.read(self.key)
        before = stored.record if stored else BrokerGroupRecord(cluster_name="c", broker_name=self.key.name)
        after = change(before)
        await store.commit(self.key, after, stored)
        self._record = after
        return after

    async def switch_master(
        self,
        key: GroupKey,
        *,
        from_broker_id: int | None = None,
        to_broker_id: int | None = None,
        deadline_seconds: float = 30.0,
        cause: Cause = Cause.PLANNED_SWITCHOVER,
    ) -> SwitchoverResult:
        assert cause is Cause.PLANNED_SWITCHOVER
        assert key == self.key
        assert deadline_seconds > 0
        self.asked.append((from_broker_id, to_broker_id))
        if self.refusals:
            raise self.refusals.pop(0)
        stored = await self.store.read(key)
        assert stored is not None
        if stored.record.master_broker_id != from_broker_id:
            raise SwitchoverRefusedError(f"broker {from_broker_id} is not master")
        to = to_broker_id or min(stored.record.sync_state_set - {from_broker_id})
        record = await self._write(self.store, lambda before: elected(before, to))
        return SwitchoverResult(
            from_broker_id=from_broker_id or 0,
            to_broker_id=to,
            epoch=record.master_epoch,
            milliseconds=12.0,
            phases={"committed": 7.0},
        )

    async def check_metadata(self, key: GroupKey, broker_id: int) -> None:
        """Every member has all of it."""
        assert key == self.key
        assert broker_id in (1, 2, 3)

    async def elect(self, key: GroupKey, *, to_broker_id: int, unclean: bool) -> ElectionResult:
        assert unclean
        record = await self._write(self.store, lambda before: elected(before, to_broker_id))
        return ElectionResult(
            to_broker_id=to_broker_id, epoch=record.master_epoch, unclean=True, milliseconds=5.0, confirmed=True
        )

    async def set_broker_config(self, key: GroupKey, broker_id: int, values: dict[str, str]) -> None:
        assert key == self.key
        self.given.setdefault(broker_id, {}).update(values)

    async def offsets(self, key: GroupKey) -> GroupOffsets:
        assert key == self.key
        self.looks += 1
        await self.before_answer()
        return self.group_offsets()


async def _nothing() -> None:
    """Nothing happens meanwhile."""


def everything_read() -> GroupOffsets:
    """What the master of a closed group says in which everything is read."""
    queues = {0: QueueOffsets(minimum=0, maximum=5)}
    return GroupOffsets(
        master_id=1,
        epoch=1,
        cluster_name="DefaultCluster",
        read_at_unix_seconds=time.time(),
        takes_sends=False,
        acknowledges=False,
        log_end=1000,
        steady=True,
        topics={"t": TopicOffsets(queues=queues, readers=frozenset({"a"}))},
        consumed={"t@a": {0: 5}},
    )


def elected(record: BrokerGroupRecord, to: int) -> BrokerGroupRecord:
    return replace(
        record,
        master_broker_id=to,
        master_epoch=record.master_epoch + 1,
        sync_state_set=frozenset(record.replicas),
        sync_state_set_epoch=record.sync_state_set_epoch + 1,
    )
