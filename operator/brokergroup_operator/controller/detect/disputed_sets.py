"""A master whose 1001 shows that it and the record disagree (safety rule 3; `controller_core/sync_state.py`).

Java refuses each such request, and so does the core. One request proves nothing: it may have been queued, or be a stray frame.
If the same master says the same again for a while, the record is changed so that both agree:

* the 1001 knows a commit that the record has forgotten (a record restored from an older copy): the epoch is raised above it;
* the master proposes from another set than the record's, because an earlier 1001 of it was lost or refused (Java 5.5.0 shrinks its
  own set first). It is answered the record's set under the next set epoch, the only thing it takes a set from;
* only dead members of the set keep others out: the set grows around them.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import structlog

from controller_core.decision import ControllerCode
from controller_core.sync_state import believes_in_more, counts_on_another_set, only_the_dead_stop_it

if TYPE_CHECKING:
    from brokergroup_operator.controller.group.group import Group
    from brokergroup_operator.controller.settings import PlaneSettings
    from controller_core.decision import Decision
    from controller_core.requests import AlterSyncStateSet, ReportAhead

log = structlog.get_logger(__name__)


class DisputedSets:
    """Remembers for each group what was refused, and since when."""

    def __init__(self, settings: PlaneSettings) -> None:
        self._settings = settings
        # By replica: what it says that the record does not have.
        self._ahead: WeakKeyDictionary[Group, dict[int, tuple[ReportAhead, float]]] = WeakKeyDictionary()
        # Under which epochs the master was refused, and whether for dead members.
        self._apart: WeakKeyDictionary[Group, tuple[tuple[int, int, bool], float]] = WeakKeyDictionary()

    async def answered(self, group: Group, wanted: AlterSyncStateSet, decision: Decision) -> Decision:
        """Return the decision in the end, after this one on the record as the store has it."""
        await self._raise_if_ahead(group, wanted, refused=decision.code != ControllerCode.SUCCESS)
        record = group.record
        if decision.code == ControllerCode.SUCCESS or record is None:
            self._apart.pop(group, None)
            return decision
        is_apart = counts_on_another_set(record, wanted)
        if not is_apart and not only_the_dead_stop_it(record, wanted, group.live()):
            return decision
        if not self._was_refused_long_enough(group, for_the_dead=not is_apart):
            return decision
        if is_apart:
            log.warning(
                "the master proposes from another set, and is answered the record's",
                group=str(group.key),
                proposed=sorted(wanted.sync_state_set),
                recorded=sorted(record.sync_state_set),
            )
        return await group.decide(replace(wanted, said_again=True))

    async def _raise_if_ahead(self, group: Group, wanted: AlterSyncStateSet, *, refused: bool) -> None:
        said = self._ahead.setdefault(group, {})
        ahead = believes_in_more(group.record, wanted, group.binding.settings) if refused else None
        if ahead is None:
            said.pop(wanted.master_broker_id or 0, None)
            return
        now_seconds = asyncio.get_running_loop().time()
        before, since_seconds = said.get(ahead.broker_id, (None, now_seconds))
        if before != ahead:
            said[ahead.broker_id] = (ahead, now_seconds)
            log.warning("a 1001 knows more than the record", group=str(group.key), believed=ahead)
        elif now_seconds - since_seconds >= self._settings.believed_again_seconds:
            del said[ahead.broker_id]
            await group.decide(ahead)

    def _was_refused_long_enough(self, group: Group, *, for_the_dead: bool) -> bool:
        """Whether it was refused for the same for longer than a master needs to learn the set by its own poll (1004)."""
        record, now_seconds = group.record, asyncio.get_running_loop().time()
        assert record is not None
        refused = (record.master_epoch, record.sync_state_set_epoch, for_the_dead)
        before, since_seconds = self._apart.get(group, (None, now_seconds))
        if before != refused:
            self._apart[group] = (refused, now_seconds)
            return False
        too_early = now_seconds - since_seconds < self._settings.set_apart_seconds
        if too_early or group.master_change is not None or group.is_changing:
            return False
        del self._apart[group]
        return True
