"""The verbs of `GroupView`: ids, a switchover, an election, a member's removal, a broker's configuration, topics, consumer groups
and offsets.

Each raises `GroupViewError` with the reason if it did not do it.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from brokergroup_operator.controller.group.group import Group, PremiseGoneError
from brokergroup_operator.controller.peers.broker_calls import BrokerCallError, RefusedError
from brokergroup_operator.controller.peers.offset_reader import OffsetReader
from brokergroup_operator.controller.peers.services import Part, Services
from brokergroup_operator.observe import group_view as view
from brokergroup_operator.observe.timeline import Cause, Step
from brokergroup_operator.records.store import GroupKey, RecordStoreError
from controller_core.decision import ControllerCode, ReserveBrokerIdAnswer
from controller_core.model import Mark
from controller_core.requests import ElectMaster, RemoveMember, ReserveBrokerId, RestoreGroup

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from brokergroup_operator.controller.change.failover import Failover
    from brokergroup_operator.controller.change.switchover import Switchover
    from brokergroup_operator.controller.group.groups import Groups
    from brokergroup_operator.observe.group_offsets import GroupOffsets
    from controller_core.model import BrokerGroupRecord
    from rocketmq_remoting.acl_protocol import AccessChange, BrokerAccess
    from rocketmq_remoting.broker_protocol import SubscriptionGroupConfig, TopicConfig

# So many requests take seconds. A topic of 1024 queues that 256 consumer groups read would else hold up its cluster's pass for
# minutes.
FIRST_OFFSETS_AT_ONCE: Final = 4096


class GroupVerbs(Part):
    def __init__(self, services: Services, *, groups: Groups, failover: Failover, switchover: Switchover) -> None:
        super().__init__(services)
        self._groups, self._failover, self._switchover = groups, failover, switchover

    async def wait_until_master_is_told(self, key: GroupKey, timeout_seconds: float) -> None:
        if (group := self._groups.get(key)) is not None:
            deadline_seconds = self._now_seconds + timeout_seconds
            await group.changes.wait_for_end(timeout_seconds)
            await group.incidents.wait_until_in_sync(deadline_seconds)

    async def reserve_broker_id(self, key: GroupKey, pod_name: str, *, broker_id: int | None = None) -> int:
        """Return the id reserved for this pod, reserving the next one durably if it has none."""
        with self._known(key, f": no broker id reserved for {pod_name}") as group:
            request = ReserveBrokerId(
                cluster_name=group.binding.cluster_name,
                broker_name=group.binding.broker_name,
                reserved_for=pod_name,
                broker_id=broker_id,
            )
            decision = await group.decide(request)
        assert isinstance(decision.answer, ReserveBrokerIdAnswer)
        if decision.answer.broker_id is None:
            raise view.GroupViewError(f"group {key}: {decision.remark}")
        return decision.answer.broker_id

    async def restore_group(self, key: GroupKey, restored: view.RestoredStore) -> None:
        """Begin the group's record with the store that was copied from a backup."""
        with self._known(key, f": {restored.backup} is not restored") as group:
            request = RestoreGroup(
                cluster_name=group.binding.cluster_name,
                broker_name=group.binding.broker_name,
                reserved_for=restored.pod_name,
                backup=restored.backup,
                broker_id=restored.broker_id,
                master_epoch=restored.master_epoch,
                mark=Mark(restored.broker_id, restored.held_epoch, restored.held_offset),
            )
            decision = await group.decide(request)
        if decision.code is not ControllerCode.SUCCESS:
            raise view.GroupViewError(f"group {key}: {decision.remark}")

    async def switch_master(
        self,
        key: GroupKey,
        *,
        from_broker_id: int | None = None,
        to_broker_id: int | None = None,
        deadline_seconds: float = view.SWITCHOVER_DEADLINE_SECONDS,
        cause: Cause = Cause.PLANNED_SWITCHOVER,
    ) -> view.SwitchoverResult:
        with self._known(key) as group:
            return await self._switchover.move(
                group,
                from_broker_id=from_broker_id,
                to_broker_id=to_broker_id,
                deadline_seconds=deadline_seconds,
                cause=cause,
            )

    async def elect(self, key: GroupKey, *, to_broker_id: int, unclean: bool) -> view.ElectionResult:
        """Make this member master if no master lives. A silent one is first established to be dead, and fenced."""
        with self._known(key) as group:
            await group.load()
            await self._failover.settle(group, self._settings.switchover_deadline_seconds)
            record = self._electable(group, to_broker_id)
            wanted = ElectMaster(broker_id=to_broker_id, designate_elect=True, unclean=unclean)
            timeline, decision = await self._failover.elect(group, wanted)
        if decision.code != ControllerCode.SUCCESS or decision.record is None:
            raise view.ElectionRefusedError(f"group {key}: {decision.why}")
        return view.ElectionResult(
            to_broker_id=to_broker_id,
            epoch=decision.record.master_epoch,
            unclean=decision.record.unclean_elections > record.unclean_elections,
            milliseconds=timeline.took_milliseconds,
            confirmed=Step.ROLE_CHANGED in timeline.steps,
        )

    def _electable(self, group: Group, to_broker_id: int) -> BrokerGroupRecord:
        record = group.record
        if record is None or record.claimed_replica(to_broker_id) is None:
            raise view.ElectionRefusedError(f"group {group.key} has no member {to_broker_id}")
        if (master := record.granted_master_id) is not None:
            state = "alive: a switchover moves it" if group.is_live(master) else "not known to be dead"
            raise view.ElectionRefusedError(f"group {group.key}: broker {master} is master and {state}")
        if not group.is_live(to_broker_id):
            raise view.ElectionRefusedError(f"group {group.key}: broker {to_broker_id} is not alive")
        return record

    async def check_metadata(self, key: GroupKey, broker_id: int) -> None:
        """Raise unless the member has every topic and subscription group of the master."""
        with self._known(key) as group:
            why = await self._switchover.why_incomplete(group, broker_id)
        if why:
            raise view.GroupViewError(f"group {key}: {why}")

    async def remove_member(self, key: GroupKey, broker_id: int) -> None:
        """Forget a dead member that nothing acknowledged can depend on."""
        with self._known(key, f": broker {broker_id} not removed") as group:
            await group.load()
            if broker_id in group.not_heard_yet():
                raise view.MemberNeededError(
                    f"group {key}: broker {broker_id} is not removed: it may be alive, this controller has not known the group "
                    "for long enough to have heard it"
                )
            decision = await group.decide(RemoveMember(broker_id=broker_id))
        if decision.code != ControllerCode.SUCCESS:
            raise view.MemberNeededError(f"group {key}: broker {broker_id} is not removed: {decision.why}")
        if decision.changed:
            group.table.forget(broker_id)

    async def broker_config(self, key: GroupKey, broker_id: int) -> dict[str, str]:
        """26. The answer is kept as the latest known configuration."""
        with self._known(key, f": broker {broker_id}") as group:
            asked = group.configuration.asking(broker_id)
            values = await self._calls.broker_config(self._address(group, broker_id))
        if group.configuration.heard(broker_id, values, group.binding.watched_keys, asked=asked):
            group.changed()
        return values

    async def set_broker_config(self, key: GroupKey, broker_id: int, values: Mapping[str, str]) -> None:
        """25. Not during a change of master: it would undo what keeps the old one from acknowledging."""
        with self._known(key, ": configuration is left alone") as group:
            # Not by the copy of the record: another plane may have begun a change of master a moment ago.
            await group.load_again()
        _must_be_at_rest(group, "configuration is left alone")
        try:
            await self._calls.update_broker_config(self._address(group, broker_id), values)
        except BrokerCallError as error:
            group.configuration.may_have_changed(broker_id)
            raise view.BrokerUnreachableError(f"group {key}: broker {broker_id}: {error}") from error
        group.configuration.changed(broker_id)
        group.changed()

    async def topic(self, key: GroupKey, name: str) -> TopicConfig | None:
        """351, of the master."""
        with self._known(key, f": topic {name}") as group:
            return await self._calls.topic(self._address(group, group.granted_master_id), name)

    async def offsets(self, key: GroupKey) -> GroupOffsets:
        """Read at the master of the record, which is read before and after: by a copy another plane may have elected another."""
        with self._known(key, ": offsets") as group:
            await group.load_again()
            _must_be_at_rest(group, "offsets are not read")
            record, address = group.record, self._address(group, group.granted_master_id)
            assert record is not None, "a group with a master has a record"
            others = record.sync_state_set - {record.master_broker_id}
            hosts = group.binding.hosts_of_links(record, sorted(others))
            offsets = await OffsetReader(calls=self._calls, address=address, record=record, hosts=hosts).read()
            await group.load_again()
            _must_be_at_rest(group, "offsets are not read")
            now = group.record
        if now is None or (now.granted_master_id, now.master_epoch) != (offsets.master_id, offsets.epoch):
            raise view.GroupViewError(f"group {key}: the master changed while offsets were read")
        return offsets

    async def put_topic(self, key: GroupKey, topic: TopicConfig) -> None:
        """17, of the master. Not during a change of master: the next one might not copy it."""
        with self._known(key, f": topic {topic.topic_name}") as group:
            _must_be_at_rest(group, "topics are left alone")
            await self._calls.put_topic(self._address(group, group.granted_master_id), topic)

    async def consumer_groups(self, key: GroupKey, names: Collection[str]) -> dict[str, SubscriptionGroupConfig]:
        """201, of the master."""
        with self._known(key, ": consumer groups") as group:
            return await self._calls.consumer_groups(self._address(group, group.granted_master_id), names)

    async def put_consumer_group(self, key: GroupKey, settings: SubscriptionGroupConfig) -> None:
        """200, of the master. Not during a change of master: the next one might not copy it."""
        with self._known(key, f": consumer group {settings.get('groupName')}") as group:
            _must_be_at_rest(group, "consumer groups are left alone")
            await self._calls.put_consumer_group(self._address(group, group.granted_master_id), settings)

    async def topic_readers(self, key: GroupKey, topic: str) -> frozenset[str]:
        """300, of the master."""
        with self._known(key, f": readers of topic {topic}") as group:
            return await self._calls.topic_readers(self._address(group, group.granted_master_id), topic)

    async def put_first_offsets(
        self, key: GroupKey, topic: str, queues: range, readers: Collection[str], *, only_empty: bool
    ) -> int:
        """202, 43 and 15, of the master."""
        with self._known(key, f": offsets of topic {topic}") as group:
            address = self._address(group, group.granted_master_id)
            ends = await self._calls.topic_stats(address, topic) if only_empty else {}
            wanted = [queue_id for queue_id in queues if queue_id not in ends or not ends[queue_id].maximum]
            known = await self._calls.consumer_offsets(address)
            missing = [
                (reader, queue_id)
                for reader in sorted(readers)
                for queue_id in wanted
                if queue_id not in known.get(f"{topic}@{reader}", {})
            ]
            for reader, queue_id in missing[:FIRST_OFFSETS_AT_ONCE]:
                _must_be_at_rest(group, "offsets are left alone")
                await self._calls.commit_offset(address, topic=topic, queue_id=queue_id, group=reader, offset=0)
        return len(missing[FIRST_OFFSETS_AT_ONCE:])

    async def access(self, key: GroupKey, broker_id: int) -> BrokerAccess:
        """3005 and 3010, of this member."""
        with self._known(key, f": users of broker {broker_id}") as group:
            return await self._calls.access(self._address(group, broker_id))

    async def change_access(self, key: GroupKey, broker_id: int, changes: Sequence[AccessChange]) -> None:
        """One after the other, at this member. Not during a change of master, which has the broker's time."""
        with self._known(key, f": users of broker {broker_id}") as group:
            for change in changes:
                _must_be_at_rest(group, "users are left alone")
                await self._calls.change_access(self._address(group, broker_id), change)

    @contextmanager
    def _known(self, key: GroupKey, what: str = "") -> Iterator[Group]:
        """Yield the group; raise the errors of the store and of brokers as those of `GroupView`, with `what` was wanted."""
        if (group := self._groups.get(key)) is None:
            raise view.GroupUnknownError(f"the controller plane knows no BrokerGroup {key}")
        try:
            yield group
        except RefusedError as error:
            raise view.BrokerRefusedError(f"group {key}{what}: {error}") from error
        except BrokerCallError as error:
            raise view.BrokerUnreachableError(f"group {key}{what}: {error}") from error
        except (RecordStoreError, PremiseGoneError) as error:
            raise view.GroupViewError(f"group {key}{what}: {error}") from error

    @staticmethod
    def _address(group: Group, broker_id: int | None) -> str:
        """Also of a broker that is not heard here: it may not know this plane yet. What changes it goes to no other (rule 8)."""
        if broker_id is None:
            raise view.BrokerUnreachableError(f"group {group.key} has no master")
        address = group.record.address_of(broker_id) if group.record is not None else None
        if address is None:
            raise view.BrokerUnreachableError(f"group {group.key}: the address of broker {broker_id} is not known")
        return address


def _must_be_at_rest(group: Group, so: str) -> None:
    is_quieted = group.change is not None and group.change.restore is not None  # by whichever plane
    if group.changes.has_begun or is_quieted:
        raise view.GroupViewError(f"group {group.key}: a change of master is under way, {so}")
