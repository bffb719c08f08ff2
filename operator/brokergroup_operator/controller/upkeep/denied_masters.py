"""A master by the record that denies it: it was told another role under an epoch that no controller of ours committed.

A 1008 of a stranger, or of a stale controller, with an epoch far above the record's makes a Java broker deaf: it ignores every
epoch that is not above its own, and answers 0 all the same. Its heartbeats do not show it, for a slave's epoch file keeps the
epoch under which its data was written; its own 907 does. A group whose master denies its role is not `writable`. A master that
denies it for `denied_master_seconds` is told again under an epoch as far above the record's as one may jump (safety rule 3). If
it denies its role under that epoch too, another member is elected (`Failover.replace_deaf`). Where no other can lead, the next
jump follows.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import structlog

from brokergroup_operator.controller.peers.services import Part
from brokergroup_operator.records.store import RecordStoreError
from controller_core.requests import RenewMaster

if TYPE_CHECKING:
    from brokergroup_operator.controller.change.failover import Failover
    from brokergroup_operator.controller.group.group import Group
    from brokergroup_operator.controller.peers.services import Services
    from controller_core.model import BrokerGroupRecord

log = structlog.get_logger(__name__)


class DeniedMasters(Part):
    """Takes what masters say of themselves (907)."""

    def __init__(self, services: Services, failover: Failover) -> None:
        super().__init__(services)
        self._failover = failover
        # Under which epoch, and since when, the master of a group has denied its role.
        self._since: WeakKeyDictionary[Group, tuple[int, float]] = WeakKeyDictionary()
        # The master for which the epoch was raised, until it says that it is master.
        self._raised_for: WeakKeyDictionary[Group, int] = WeakKeyDictionary()

    async def said(self, group: Group, record: BrokerGroupRecord, *, is_master: bool) -> None:
        """The recorded master's own word; raises the epoch if it goes on denying."""
        master, epoch = record.granted_master_id, record.master_epoch
        if master is None or group.changes.told.get(master) != epoch:
            return  # it has not answered this plane's 1008: a change of roles is under way
        group.master_said(epoch, is_master=is_master)
        if is_master:
            self._since.pop(group, None)
            self._raised_for.pop(group, None)
            return
        now_seconds = asyncio.get_running_loop().time()
        since_epoch, since_seconds = self._since.get(group, (0, 0.0))
        if since_epoch != epoch:
            self._since[group] = (epoch, now_seconds)
            return
        patience_seconds = self._settings.denied_master_seconds * (1 + self._planes.rank(group.key))
        if now_seconds - since_seconds < patience_seconds or group.master_change is not None:
            return
        if self._raised_for.get(group) == master and self._failover.replace_deaf(group, record, master):
            return
        self._raised_for[group] = master
        await self._raise(group, record, master)

    async def _raise(self, group: Group, record: BrokerGroupRecord, master: int) -> None:
        wanted = RenewMaster(
            broker_name=record.broker_name,
            broker_id=master,
            master_epoch=record.master_epoch,
            epochs=group.binding.settings.max_epoch_jump,
        )
        try:
            decision = await group.decide(wanted)
        except RecordStoreError as error:
            log.warning("epoch not raised yet", group=str(group.key), broker_id=master, error=str(error))
            return
        log.error(
            "the master denies its role, it was told an epoch that no controller committed: the epoch is raised",
            group=str(group.key),
            broker_id=master,
            why=decision.why,
        )
