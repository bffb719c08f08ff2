"""A master that counts on another SyncStateSet than the record's: it is answered the record's, under the next set epoch.

A Java master takes a slave out of its own set as soon as their link breaks, and asks the controller afterwards (5.5.0). Where
that question was lost, or was refused (the shrink floor does, where the spec names a version that asks first), the two stay
apart: it goes on from its own set, so what it proposes when slaves have caught up is refused as well, hundreds of times a
second; nobody joins any more, and it acknowledges by sets that the record does not know. It takes a set only under a higher
epoch.

From the record's set it can only grow; a dead member would then keep everybody else out, so the set grows around it.

One such proposal proves nothing, it may have been queued. Only what is said again under the same epochs counts, for longer than
a master needs to learn the set by its own poll (1004).
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import structlog

from controller_core.codes import ControllerCode
from controller_core.sync_state import counts_on_another_set, only_the_dead_stop_it

if TYPE_CHECKING:
    from brokergroup_operator.controller.group.group import Group
    from brokergroup_operator.controller.settings import PlaneSettings
    from controller_core.decision import Decision
    from controller_core.model import BrokerGroupRecord
    from controller_core.requests import AlterSyncStateSet

log = structlog.get_logger(__name__)

# Under which epochs a master was refused, and whether for the dead.
_Refused = tuple[int, int, bool]


class SetsApart:
    """Remembers for each group what its master was refused for, and since when."""

    def __init__(self, settings: PlaneSettings) -> None:
        self._settings = settings
        self._since: WeakKeyDictionary[Group, tuple[_Refused, float]] = WeakKeyDictionary()

    async def answered(self, group: Group, wanted: AlterSyncStateSet, decision: Decision) -> Decision:
        """A 1001 was decided on the record as the store has it; returns what is decided in the end."""
        record = group.record
        if decision.code == ControllerCode.SUCCESS or record is None:
            self._since.pop(group, None)
        elif counts_on_another_set(record, wanted):
            if self._goes_on(group, record, for_the_dead=False):
                log.warning(
                    "the master counts on another set, and is told the record's",
                    group=str(group.key),
                    proposed=sorted(wanted.sync_state_set),
                    recorded=sorted(record.sync_state_set),
                )
                return await group.decide(replace(wanted, said_again=True))
        elif only_the_dead_stop_it(record, wanted, group.live()) and self._goes_on(group, record, for_the_dead=True):
            return await group.decide(replace(wanted, said_again=True))
        return decision

    def _goes_on(self, group: Group, record: BrokerGroupRecord, *, for_the_dead: bool) -> bool:
        now_seconds = asyncio.get_running_loop().time()
        refused = (record.master_epoch, record.sync_state_set_epoch, for_the_dead)
        noted = self._since.get(group)
        if noted is None or noted[0] != refused:
            self._since[group] = (refused, now_seconds)
            return False
        if (
            now_seconds - noted[1] < self._settings.set_apart_seconds
            or group.master_change is not None
            or group.is_changing
        ):
            return False
        del self._since[group]
        return True
