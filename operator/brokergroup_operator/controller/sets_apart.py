"""A master that counts on another SyncStateSet than the record's: it is told its own again, by renewing its reign.

A Java master takes a slave out of its own set as soon as their link breaks, and asks the controller afterwards (5.5.0). Where the
shrink floor refuses that, the two stay apart: it goes on from its own set, so what it proposes when slaves have caught up is refused
as well, hundreds of times a second; nobody joins any more, and it acknowledges by sets that the record does not know. It takes
a set only under a higher epoch, and RenewMaster raises both. One such proposal proves nothing, it may have been queued: only what
is said again under the same epochs, for longer than a master needs to learn the set by its own poll (1004).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import structlog

from controller_core.codes import ControllerCode
from controller_core.requests import RenewMaster
from controller_core.sync_state import counts_on_another_set

if TYPE_CHECKING:
    from brokergroup_operator.controller.group import Group
    from brokergroup_operator.controller.settings import PlaneSettings
    from controller_core.decision import Decision
    from controller_core.model import BrokerGroupRecord
    from controller_core.requests import AlterSyncStateSet

log = structlog.get_logger(__name__)


class SetsApart:
    """Remembers, for each group, under which epochs its master was refused for counting on another set, and since when."""

    def __init__(self, settings: PlaneSettings) -> None:
        self._settings = settings
        self._since: WeakKeyDictionary[Group, tuple[tuple[int, int], float]] = WeakKeyDictionary()

    async def answered(self, group: Group, wanted: AlterSyncStateSet, decision: Decision) -> None:
        """A 1001 was decided on the record as the store has it; renews the reign of a master that goes on counting otherwise."""
        record = group.record
        if decision.code == ControllerCode.SUCCESS:
            self._since.pop(group, None)
        elif record is not None and counts_on_another_set(record, wanted) and self._goes_on(group, record):
            del self._since[group]
            log.warning(
                "the master counts on another set: told its own again by a new epoch",
                group=str(group.key),
                proposed=sorted(wanted.sync_state_set),
                recorded=sorted(record.sync_state_set),
            )
            master = wanted.master_broker_id or 0
            await group.decide(
                RenewMaster(broker_name=record.broker_name, broker_id=master, master_epoch=record.master_epoch)
            )

    def _goes_on(self, group: Group, record: BrokerGroupRecord) -> bool:
        now_seconds = asyncio.get_running_loop().time()
        epochs = (record.master_epoch, record.sync_state_set_epoch)
        noted = self._since.get(group)
        if noted is None or noted[0] != epochs:
            self._since[group] = (epochs, now_seconds)
            return False
        return now_seconds - noted[1] >= self._settings.set_apart_seconds and group.master_change is None
