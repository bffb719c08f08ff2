"""A controller plane reduced to what the reconcile plane asks of it, on a real record store."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec

from brokergroup_operator.observe.group_view import (
    ElectionResult,
    GroupSnapshot,
    GroupViewError,
    MemberNeededError,
    RestoredStore,
    SwitchoverRefusedError,
    SwitchoverResult,
)
from brokergroup_operator.observe.timeline import Cause
from brokergroup_operator.records.kubernetes import KubernetesRecordStore
from controller_core.model import BrokerGroupRecord, LiveReplica, Replica
from tests.support.scripted_acl import ScriptedAcl

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from brokergroup_operator.observe.group_offsets import GroupOffsets
    from brokergroup_operator.records.store import GroupKey, RecordStore, StoredRecord
    from rocketmq_remoting.acl_protocol import AccessChange, BrokerAccess
    from rocketmq_remoting.broker_protocol import SubscriptionGroupConfig, TopicConfig
    from rocketmq_remoting.tls import Validity


def led_by(key: GroupKey, broker_id: int, *, epoch: int) -> GroupSnapshot:
    """Return a group in which this broker is master and the only member."""
    record = BrokerGroupRecord(
        cluster_name="DefaultCluster", broker_name=key.name, master_broker_id=broker_id, master_epoch=epoch
    )
    return GroupSnapshot(key=key, record=record, live={}, writable=True)


def with_members(key: GroupKey, members: Collection[int], *, live: Collection[int], epoch: int = 1) -> GroupSnapshot:
    """Return a group of these registered members, of which broker 1 is master."""
    replicas = {
        one: Replica(broker_id=one, address=f"10.0.0.{one}:10911", registered=True, register_check_code="c")
        for one in members
    }
    record = BrokerGroupRecord(
        cluster_name="DefaultCluster", broker_name=key.name, replicas=replicas, master_broker_id=1, master_epoch=epoch
    )
    heard = {one: LiveReplica(broker_id=one, epoch=epoch) for one in live}
    return GroupSnapshot(key=key, record=record, live=heard, writable=True)


def registered(replica: Replica) -> Replica:
    number = replica.broker_id
    return replace(replica, register_check_code=f"code-{number}", address=f"127.64.0.{number}:10911", registered=True)


class PatientRecordStore(KubernetesRecordStore):
    """Waits longer than the store of a plane: a machine that stood still for 2 s is no fault of what is tested."""

    async def read(self, key: GroupKey, *, deadline_seconds: float = 20.0) -> StoredRecord | None:
        return await super().read(key, deadline_seconds=deadline_seconds)

    async def commit(
        self,
        key: GroupKey,
        record: BrokerGroupRecord | None,
        expected: StoredRecord | None,
        deadline_seconds: float = 20.0,
    ) -> StoredRecord | None:
        return await super().commit(key, record, expected, deadline_seconds)


class FakeGroupView:
    """Reserves ids durably, as the real one does; the test chooses the master."""

    def __init__(self, store: RecordStore) -> None:
        self.store = store
        self.snapshots: dict[GroupKey, GroupSnapshot] = {}
        # What the members' connections show, if the plane asks for client certificates.
        self.certificates: dict[int, Validity] = {}
        self.configs: dict[tuple[GroupKey, int], dict[str, str]] = {}
        self.topics: dict[tuple[GroupKey, str], TopicConfig] = {}
        self.group_offsets: dict[GroupKey, GroupOffsets] = {}
        self.topics_put: list[tuple[GroupKey, str]] = []
        self.consumer_group_tables: dict[GroupKey, dict[str, SubscriptionGroupConfig]] = {}
        self.consumer_groups_put: list[tuple[GroupKey, SubscriptionGroupConfig]] = []
        # By group and topic: the consumer groups that read it; by queue of it and reader: the offset.
        self.readers: dict[tuple[GroupKey, str], frozenset[str]] = {}
        self.first_offsets: dict[tuple[GroupKey, str, int, str], int] = {}
        self.offsets_at_once = 4096
        self.brokers: dict[tuple[GroupKey, int], ScriptedAcl] = {}
        self.causes: list[Cause] = []
        self._running: dict[GroupKey, frozenset[int]] = {}
        self._callbacks: list[Callable[[GroupKey], None]] = []

    def keys(self) -> list[GroupKey]:
        return list(self.snapshots)

    def snapshot(self, key: GroupKey) -> GroupSnapshot | None:
        return self.snapshots.get(key)

    def subscribe(self, callback: Callable[[GroupKey], None]) -> Callable[[], None]:
        self._callbacks.append(callback)
        return lambda: self._callbacks.remove(callback)

    async def wait_until_master_is_told(self, key: GroupKey, timeout_seconds: float) -> None:
        """Return at once: no change of master takes time here."""

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

    async def restore_group(self, key: GroupKey, restored: RestoredStore) -> None:
        stored = await self.store.read(key)
        record = stored.record if stored else BrokerGroupRecord(cluster_name="DefaultCluster", broker_name=key.name)
        if record.restored_from == restored.backup:
            return
        if record.replicas:
            raise GroupViewError("the record has begun")
        first = Replica(broker_id=restored.broker_id, reserved_for=restored.pod_name)
        begun = replace(
            record,
            replicas={restored.broker_id: first},
            next_broker_id=restored.broker_id + 1,
            master_epoch=restored.master_epoch,
            sync_state_set=frozenset({restored.broker_id}),
            restored_from=restored.backup,
        )
        await self.store.commit(key, begun, stored)

    async def check_metadata(self, key: GroupKey, broker_id: int) -> None:
        """Every member has all of it."""

    async def switch_master(
        self,
        key: GroupKey,
        *,
        from_broker_id: int | None = None,
        to_broker_id: int | None = None,
        deadline_seconds: float = 30.0,
        cause: Cause = Cause.PLANNED_SWITCHOVER,
    ) -> SwitchoverResult:
        """Switch to the requested broker, or to the lowest live id of the set."""
        del deadline_seconds
        self.causes.append(cause)
        stored = await self.store.read(key)
        assert stored is not None
        record = stored.record
        old = record.master_broker_id or 0
        if from_broker_id not in (None, old):
            return SwitchoverResult(from_broker_id=old, to_broker_id=old, epoch=record.master_epoch)
        able = sorted(record.sync_state_set & self.snapshots[key].live.keys() - {old})
        if not able or to_broker_id not in (None, *able):
            raise SwitchoverRefusedError(f"broker {to_broker_id or old}: no member can take over")
        new = to_broker_id or able[0]
        await self._commit(key, stored, replace(record, master_broker_id=new, master_epoch=record.master_epoch + 1))
        return SwitchoverResult(from_broker_id=old, to_broker_id=new, epoch=record.master_epoch + 1)

    async def elect(self, key: GroupKey, *, to_broker_id: int, unclean: bool) -> ElectionResult:
        raise NotImplementedError

    async def remove_member(self, key: GroupKey, broker_id: int) -> None:
        """Remove the member, unless it is live or the master."""
        stored = await self.store.read(key)
        assert stored is not None
        record = stored.record
        snapshot = self.snapshots.get(key)
        if broker_id == record.master_broker_id or (snapshot is not None and broker_id in snapshot.live):
            raise MemberNeededError(f"broker {broker_id} is master or alive")
        replicas = {one: replica for one, replica in record.replicas.items() if one != broker_id}
        in_sync = record.sync_state_set - {broker_id}
        await self._commit(key, stored, replace(record, replicas=replicas, sync_state_set=in_sync))

    async def broker_config(self, key: GroupKey, broker_id: int) -> dict[str, str]:
        return self.configs.setdefault((key, broker_id), {})

    async def set_broker_config(self, key: GroupKey, broker_id: int, values: Mapping[str, str]) -> None:
        self.configs.setdefault((key, broker_id), {}).update(values)

    async def topic(self, key: GroupKey, name: str) -> TopicConfig | None:
        return self.topics.get((key, name))

    async def offsets(self, key: GroupKey) -> GroupOffsets:
        """Return the offsets that the test set."""
        return self.group_offsets[key]

    async def put_topic(self, key: GroupKey, topic: TopicConfig) -> None:
        """Change the topic as a broker does: attributes that are not named stay."""
        known = self.topics.get((key, topic.topic_name))
        attributes = {**(known.attributes if known else {}), **topic.attributes}
        self.topics[key, topic.topic_name] = msgspec.structs.replace(topic, attributes=attributes)
        self.topics_put.append((key, topic.topic_name))

    async def consumer_groups(self, key: GroupKey, names: Collection[str]) -> dict[str, SubscriptionGroupConfig]:
        table = self.consumer_group_tables.get(key, {})
        return {name: table[name] for name in names if name in table}

    async def put_consumer_group(self, key: GroupKey, settings: SubscriptionGroupConfig) -> None:
        """Replace the settings as a broker does: what is not named has RocketMQ's default, which is not kept here."""
        self.consumer_group_tables.setdefault(key, {})[settings["groupName"]] = settings
        self.consumer_groups_put.append((key, settings))

    async def topic_readers(self, key: GroupKey, topic: str) -> frozenset[str]:
        return self.readers.get((key, topic), frozenset())

    async def put_first_offsets(
        self, key: GroupKey, topic: str, queues: range, readers: Collection[str], *, only_empty: bool
    ) -> int:
        """As a Java broker: of topics and consumer groups that it has."""
        made = self.topics[key, topic]
        assert made.write_queue_nums <= min(queues), "a queue takes no message before its readers have an offset"
        assert max(queues) < made.read_queue_nums
        assert set(readers) <= self.consumer_group_tables[key].keys()
        assert only_empty == (made.write_queue_nums > 0), "queues that a topic had before may hold messages"
        places = [(key, topic, queue_id, reader) for queue_id in queues for reader in sorted(readers)]
        missing = [place for place in places if place not in self.first_offsets]
        self.first_offsets |= dict.fromkeys(missing[: self.offsets_at_once], 0)
        return len(missing[self.offsets_at_once :])

    async def access(self, key: GroupKey, broker_id: int) -> BrokerAccess:
        return self.brokers.setdefault((key, broker_id), ScriptedAcl()).access()

    async def change_access(self, key: GroupKey, broker_id: int, changes: Sequence[AccessChange]) -> None:
        for change in changes:
            self.brokers[key, broker_id].take(change)

    async def live(self, key: GroupKey, ids: Collection[int], *, hibernated: bool = False) -> None:
        """These brokers run: they register, the best of the set leads them, and all of them catch up at once."""
        stored = await self.store.read(key)
        if stored is None:
            return
        record = stored.record
        running = frozenset(ids) & record.replicas.keys()
        replicas = {one: registered(replica) if one in running else replica for one, replica in record.replicas.items()}
        master, epoch, in_sync = record.master_broker_id, record.master_epoch, record.sync_state_set
        if master not in running and not hibernated and (able := running & (in_sync or running)):
            master, epoch, in_sync = min(able), epoch + 1, frozenset({min(able)})
        if master in running:
            in_sync = running
        changed = replace(
            record,
            replicas=replicas,
            master_broker_id=master,
            master_epoch=epoch,
            sync_state_set=in_sync,
            sync_state_set_epoch=record.sync_state_set_epoch + (in_sync != record.sync_state_set),
        )
        self._running[key] = running
        await self._commit(key, stored, changed)

    async def _commit(self, key: GroupKey, stored: StoredRecord, record: BrokerGroupRecord) -> None:
        if record != stored.record:
            await self.store.commit(key, record, stored)
        running = self._running.get(key) or frozenset(record.sync_state_set)
        live = {one: LiveReplica(broker_id=one, epoch=record.master_epoch) for one in running & record.replicas.keys()}
        self.snapshots[key] = GroupSnapshot(
            key=key,
            record=record,
            live=live,
            writable=record.master_broker_id in running,
            certificates={one: shown for one, shown in self.certificates.items() if one in live},
        )
        self.changed(key)

    async def make_master(self, key: GroupKey, master: int) -> None:
        """Let every reserved id register, and make one of them master of all."""
        stored = await self.store.read(key)
        assert stored is not None
        replicas = {broker_id: registered(replica) for broker_id, replica in stored.record.replicas.items()}
        record = replace(
            stored.record,
            replicas=replicas,
            master_broker_id=master,
            master_epoch=stored.record.master_epoch + 1,
            sync_state_set=frozenset(replicas),
            sync_state_set_epoch=stored.record.sync_state_set_epoch + 1,
        )
        self._running[key] = frozenset(replicas)
        await self._commit(key, stored, record)

    def changed(self, key: GroupKey) -> None:
        for callback in list(self._callbacks):
            callback(key)
