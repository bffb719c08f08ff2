"""A controller plane reduced to what the reconcile plane asks of it, on a real record store."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from brokergroup_operator.observe.group_view import GroupSnapshot, GroupViewError
from controller_core.model import BrokerGroupRecord, LiveReplica, Replica

if TYPE_CHECKING:
    from collections.abc import Callable

    from brokergroup_operator.records.store import GroupKey, RecordStore


class FakeGroupView:
    """Reserves ids durably, as the real one does; who is master is told by the test."""

    def __init__(self, store: RecordStore) -> None:
        self.store = store
        self.snapshots: dict[GroupKey, GroupSnapshot] = {}
        self._callbacks: list[Callable[[GroupKey], None]] = []

    def keys(self) -> list[GroupKey]:
        return list(self.snapshots)

    def snapshot(self, key: GroupKey) -> GroupSnapshot | None:
        return self.snapshots.get(key)

    def subscribe(self, callback: Callable[[GroupKey], None]) -> Callable[[], None]:
        self._callbacks.append(callback)
        return lambda: self._callbacks.remove(callback)

    async def reserve_broker_id(self, key: GroupKey, pod_name: str, *, broker_id: int | None = None) -> int:
        stored = await self.store.read(key)
        record = stored.record if stored else BrokerGroupRecord(cluster_name="DefaultCluster", broker_name=key.name)
        for replica in record.replicas.values():
            if replica.reserved_for == pod_name:
                return replica.broker_id
        if broker_id not in (None, record.next_broker_id):
            raise GroupViewError(f"broker id {broker_id} is not the next one")
        broker_id = record.next_broker_id
        changed = replace(
            record,
            next_broker_id=broker_id + 1,
            replicas={**record.replicas, broker_id: Replica(broker_id=broker_id, reserved_for=pod_name)},
        )
        await self.store.commit(key, changed, stored)
        return broker_id

    async def switch_master_away(self, key: GroupKey, broker_id: int) -> int | None:
        raise NotImplementedError

    async def elect(self, key: GroupKey, master: int) -> None:
        """Let every reserved id register, and make one of them master of all."""
        stored = await self.store.read(key)
        assert stored is not None
        replicas = {
            broker_id: replace(
                replica, register_check_code=f"code-{broker_id}", address=f"127.64.0.{broker_id}:10911", registered=True
            )
            for broker_id, replica in stored.record.replicas.items()
        }
        record = replace(
            stored.record,
            replicas=replicas,
            master_broker_id=master,
            master_epoch=stored.record.master_epoch + 1,
            sync_state_set=frozenset(replicas),
            sync_state_set_epoch=stored.record.sync_state_set_epoch + 1,
        )
        await self.store.commit(key, record, stored)
        live = {broker_id: LiveReplica(broker_id=broker_id, epoch=record.master_epoch) for broker_id in replicas}
        self.snapshots[key] = GroupSnapshot(key=key, record=record, live=live, writable=True)
        self.changed(key)

    def changed(self, key: GroupKey) -> None:
        for callback in list(self._callbacks):
            callback(key)
