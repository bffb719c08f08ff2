"""Making the brokers agree with the record, for as long as it takes: the level-triggered half of every role change.

The sequences tell each member once, in the right order. The keeper looks at what is so, and tells again whatever is not:

* a live member that has not answered 1008 for the record's epoch (its answer was lost, it came later, or this process died between
  commit and telling and was started again);
* a live slave without a link to the master (``links.py``);
* a broker that acknowledges nothing because a switchover died between two steps and left ``minInSyncReplicas=99`` behind.

A settled group (everybody told, everybody in the SyncStateSet) costs next to nothing: now and then its master is asked for its
links, and everybody for the configuration.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import structlog

from brokergroup_operator.controller.broker_calls import (
    FENCING_MIN_IN_SYNC_REPLICAS,
    BrokerCallError,
)
from brokergroup_operator.controller.election_premises import could_have_been_heard
from brokergroup_operator.controller.role_sequence import is_outdated, live_members

if TYPE_CHECKING:
    from brokergroup_operator.controller.broker_calls import BrokerCalls
    from brokergroup_operator.controller.group import Group
    from brokergroup_operator.controller.links import Links
    from brokergroup_operator.controller.role_sequence import RoleSequence
    from brokergroup_operator.controller.settings import PlaneSettings
    from brokergroup_operator.records.store import GroupKey
    from controller_core.model import BrokerGroupRecord
    from rocketmq_remoting.bodies import HARuntimeInfoBody

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Care:
    """What the keeper remembers of one group between two looks."""

    task: asyncio.Task[None] | None = None
    next_look_seconds: float = 0.0
    # When a leftover of a switchover was first seen at a broker.
    leftover_since_seconds: dict[int, float] = field(default_factory=dict)
    # Members that could not be asked: not before this time, and how long to wait after the next failure.
    retry_seconds: dict[int, float] = field(default_factory=dict)
    retry_patience_seconds: dict[int, float] = field(default_factory=dict)
    epoch: int = 0
    look_at_configuration_seconds: float = 0.0
    unsettled_since_seconds: float = 0.0


class Keeper:
    """Cares for all groups; woken by the plane's tick."""

    def __init__(self, *, calls: BrokerCalls, sequence: RoleSequence, links: Links, settings: PlaneSettings) -> None:
        self._calls = calls
        self._links = links
        self._sequence = sequence
        self._settings = settings
        self._cares: dict[GroupKey, _Care] = {}

    def look_at(self, group: Group) -> bool:
        """Begin to repair if something is not as recorded and nobody else is at work; returns whether all is as recorded."""
        record = group.record
        if record is None or record.granted_master_id is None or group.master_change is not None:
            return False
        now_seconds = asyncio.get_running_loop().time()
        if now_seconds < group.keeper_quiet_until_seconds or not group.is_live(record.granted_master_id):
            return False
        care = self._cares.setdefault(group.key, _Care())
        if care.task is not None or now_seconds < care.next_look_seconds:
            return False
        members = live_members(group, record)
        if self._is_settled(group, record, members):
            care.unsettled_since_seconds = 0.0
            if now_seconds >= care.look_at_configuration_seconds:
                # Another plane may have died in the middle of a switchover, and left a master that acknowledges nothing.
                pause_seconds = self._settings.configuration_check_seconds
                care.look_at_configuration_seconds = now_seconds + pause_seconds
                group.configuration_checked.clear()
            return not self._links.look_at(group, record)
        care.task = asyncio.create_task(self._repair(group, record, care), name=f"rmq:keeper {group.key}")
        care.task.add_done_callback(lambda task: self._ended(group, care, task))
        return False

    async def stop(self) -> None:
        """Stop repairing."""
        tasks = [care.task for care in self._cares.values() if care.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._links.stop()

    def _is_settled(self, group: Group, record: BrokerGroupRecord, members: list[int]) -> bool:
        expected = [broker_id for broker_id in members if broker_id not in group.binding.settings.never_elect]
        return (
            all(group.told.get(broker_id) == record.master_epoch for broker_id in members)
            and all(broker_id in record.sync_state_set for broker_id in expected)
            and all(broker_id in group.configuration_checked for broker_id in members)
        )

    def _ended(self, group: Group, care: _Care, task: asyncio.Task[None]) -> None:
        care.task = None
        now_seconds = asyncio.get_running_loop().time()
        if not care.unsettled_since_seconds:
            care.unsettled_since_seconds = now_seconds
        settling = now_seconds - care.unsettled_since_seconds < self._settings.settling_seconds
        care.next_look_seconds = now_seconds + (
            self._settings.keeper_poll_seconds if settling else self._settings.keeper_slow_poll_seconds
        )
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("repair failed, the next look begins again", group=str(group.key), error=repr(error))

    async def _repair(self, group: Group, record: BrokerGroupRecord, care: _Care) -> None:
        if care.epoch != record.master_epoch:
            care.epoch = record.master_epoch
            care.retry_seconds.clear()
            care.retry_patience_seconds.clear()
            care.unsettled_since_seconds = 0.0
        now_seconds = asyncio.get_running_loop().time()
        members = [
            broker_id
            for broker_id in live_members(group, record)
            if care.retry_seconds.get(broker_id, 0.0) <= now_seconds
        ]
        await self._check_configuration(group, record, members, care)
        await self._tell_the_untold(group, record, members)
        self._note_failures(group, record, members, care)
        if not is_outdated(group, record):
            await self._links.check(group, record)

    # ---- who has not been told

    def _note_failures(self, group: Group, record: BrokerGroupRecord, members: list[int], care: _Care) -> None:
        """Ask a member that could not be reached less and less often: it may be starting, with its port still closed."""
        for broker_id in members:
            if group.told.get(broker_id) == record.master_epoch:
                care.retry_seconds.pop(broker_id, None)
                care.retry_patience_seconds.pop(broker_id, None)
                continue
            patience_seconds = care.retry_patience_seconds.get(broker_id, self._settings.keeper_poll_seconds)
            care.retry_seconds[broker_id] = asyncio.get_running_loop().time() + patience_seconds
            care.retry_patience_seconds[broker_id] = min(
                2 * patience_seconds, self._settings.keeper_longest_retry_seconds
            )

    async def _tell_the_untold(self, group: Group, record: BrokerGroupRecord, members: list[int]) -> None:
        """1008 to everybody who has not answered it: a master that should be none first, then the others and the new one."""
        untold = [broker_id for broker_id in members if group.told.get(broker_id) != record.master_epoch]
        if not untold or await self._unheard_acts_as_master(group, record):
            return
        statuses = await self._ha_statuses(record, untold)
        stale = [
            broker_id
            for broker_id, status in statuses.items()
            if status.master and broker_id != record.master_broker_id
        ]
        for broker_id in stale:
            await self._sequence.tell(group, record, broker_id)
        master_status = statuses.get(record.master_broker_id or 0)
        if stale or (master_status is not None and not master_status.master):
            # The change was committed and never told: the NameServers know nothing of it either.
            live = group.live()
            gone = [
                address
                for broker_id in record.replicas
                if broker_id in stale or broker_id not in live
                if (address := record.address_of(broker_id)) is not None
            ]
            await self._sequence.unregister(group, record, tuple(gone))
        await asyncio.gather(
            *(self._tell_and_confirm(group, record, broker_id) for broker_id in untold if broker_id not in stale)
        )
        for broker_id in untold:
            if broker_id != record.master_broker_id and group.told.get(broker_id) == record.master_epoch:
                await self._sequence.push_ha_address(group, record, broker_id)

    async def _unheard_acts_as_master(self, group: Group, record: BrokerGroupRecord) -> bool:
        """Whether a replica that this controller has not heard yet still acts as master: then nobody is told before it.

        After a restart members are heard one after the other. A slave that follows the new master while the old one goes on with
        a third lets that pair acknowledge what the new master has not (hole C). It will be heard,
        or could have been, soon; longer than that nothing waits for an address that may have changed hands.
        """
        heard = group.table.entries(str(group.key))
        unheard = [one.broker_id for one in record.replicas.values() if one.registered and one.broker_id not in heard]
        if not unheard or could_have_been_heard(group, self._settings):
            return False
        return any(status.master for status in (await self._ha_statuses(record, unheard)).values())

    async def _tell_and_confirm(self, group: Group, record: BrokerGroupRecord, broker_id: int) -> None:
        if broker_id == record.master_broker_id:
            await self._sequence.tell_master(group, record)
        else:
            await self._sequence.tell(group, record, broker_id)

    async def _ha_statuses(self, record: BrokerGroupRecord, broker_ids: list[int]) -> dict[int, HARuntimeInfoBody]:
        async def status_of(broker_id: int) -> HARuntimeInfoBody | None:
            address = record.address_of(broker_id)
            try:
                return await self._calls.ha_status(address) if address is not None else None
            except BrokerCallError:
                return None  # a slave without an HA client answers code 1

        found = await asyncio.gather(*(status_of(broker_id) for broker_id in broker_ids))
        return {broker_id: status for broker_id, status in zip(broker_ids, found, strict=True) if status is not None}

    # ---- what a dead switchover left behind

    async def _check_configuration(
        self, group: Group, record: BrokerGroupRecord, members: list[int], care: _Care
    ) -> None:
        """26 once for each broker process; a leftover is repaired when it has stood for longer than any switchover lasts."""
        for broker_id in members:
            address = record.address_of(broker_id)
            if broker_id in group.configuration_checked or address is None:
                continue
            try:
                value = await self._calls.min_in_sync_replicas(address)
                if value == FENCING_MIN_IN_SYNC_REPLICAS:
                    # Who is put to sleep must not acknowledge on its way down (reconcile/hibernation.py), however long that takes.
                    if group.is_leaving or not self._is_leftover(broker_id, care):
                        continue
                    value = group.binding.settings.min_in_sync_replicas
                    await self._calls.set_min_in_sync_replicas(address, value)
                    log.warning("leftover of a switchover repaired", group=str(group.key), broker_id=broker_id)
                if value is not None:
                    group.minimums[broker_id] = value
            except BrokerCallError as error:
                log.warning("configuration unknown", group=str(group.key), broker_id=broker_id, error=str(error))
                continue
            care.leftover_since_seconds.pop(broker_id, None)
            group.configuration_checked.add(broker_id)

    def _is_leftover(self, broker_id: int, care: _Care) -> bool:
        """Another controller plane may be in the middle of a switchover: only what stays is a leftover."""
        now_seconds = asyncio.get_running_loop().time()
        since_seconds = care.leftover_since_seconds.setdefault(broker_id, now_seconds)
        return now_seconds - since_seconds >= self._settings.leftover_fence_seconds
