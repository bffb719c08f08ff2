"""A 1001 that knows more than the record: a commit was forgotten, and heartbeats need not show it (safety rule 3).

A record that went back in time, to a larger SyncStateSet say, makes a replica electable that has long been out of the set. The
master's next 1001 shows it, by a set epoch (or a master epoch) that the record does not have; Java never writes an epoch that
begins where the one before it began, so its heartbeats may show nothing. Such a request is refused with Java's code, whatever
else happens. Since one stray frame must not end a reign, the floor is raised only when the same replica says the same again a
moment later, as a broker does that believes it (``checkSyncStateSetPeriod``).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import structlog

from controller_core.codes import ControllerCode
from controller_core.sync_state import believes_in_more

if TYPE_CHECKING:
    from brokergroup_operator.controller.group.group import Group
    from brokergroup_operator.controller.settings import PlaneSettings
    from controller_core.decision import Decision
    from controller_core.requests import AlterSyncStateSet, ReportAhead

log = structlog.get_logger(__name__)


class ForgottenCommits:
    """Remembers, for each group, which replica believed in what the record does not have, and since when."""

    def __init__(self, settings: PlaneSettings) -> None:
        self._settings = settings
        self._told: WeakKeyDictionary[Group, dict[int, tuple[ReportAhead, float]]] = WeakKeyDictionary()

    async def refused(self, group: Group, wanted: AlterSyncStateSet, decision: Decision) -> None:
        """A 1001 was decided on the record as the store has it; raises the floor if it goes on knowing more."""
        told = self._told.setdefault(group, {})
        believed = None
        if decision.code != ControllerCode.SUCCESS:
            believed = believes_in_more(group.record, wanted, group.binding.settings)
        if believed is None:
            told.pop(wanted.master_broker_id or 0, None)
            return
        now_seconds = asyncio.get_running_loop().time()
        before, since_seconds = told.get(believed.broker_id, (None, now_seconds))
        if before != believed:
            told[believed.broker_id] = (believed, now_seconds)
            log.warning("a 1001 knows more than the record", group=str(group.key), believed=believed)
        elif now_seconds - since_seconds >= self._settings.believed_again_seconds:
            del told[believed.broker_id]
            await group.decide(believed)
