"""What brokers report against the record: heartbeats that tell of disks, and 1001 requests that tell of sets (safety rules 2
and 3).

A heartbeat costs one comparison (`report_is_news`). News are committed as `ReportHoldings`, built after the record was read, so
that the table knows which seats that record has: at once if a member has less than it had, has it again, or knows a higher
epoch than the record; marks of all members together, every `mark_pause_seconds`. A failed commit is retried by the next
heartbeat after the store's pause. An epoch too far above the record stops the group's elections until its owner accepts it or
no living broker reports it any more.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import structlog

from brokergroup_operator.controller.peers.services import Part, is_running
from brokergroup_operator.records.store import RecordStoreError
from controller_core.decision import ControllerCode, ReportHoldingsAnswer
from controller_core.holdings import News, report_is_news
from controller_core.recovery import waiting_jump
from controller_core.requests import ReportHoldings
from controller_core.sync_state import believes_in_more, counts_on_another_set, only_the_dead_stop_it

if TYPE_CHECKING:
    from collections.abc import Callable

    from brokergroup_operator.controller.detect.recovery import Recovery
    from brokergroup_operator.controller.group.group import Group
    from brokergroup_operator.controller.peers.services import Services
    from brokergroup_operator.controller.settings import PlaneSettings
    from controller_core.decision import Decision
    from controller_core.requests import AlterSyncStateSet, ReportAhead


log = structlog.get_logger(__name__)


class HoldingsWatch(Part):
    """Compares every heartbeat of every group; `on_news` is called after a report has changed a record."""

    def __init__(self, services: Services, *, recovery: Recovery, on_news: Callable[[Group], None]) -> None:
        super().__init__(services)
        self._recovery, self._on_news = recovery, on_news

    def heard(self, group: Group, broker_id: int) -> None:
        """Compare the heartbeat of this member that was just taken. Cheap."""
        record, holding = group.record, group.table.holding(broker_id)
        if record is None or holding is None:
            return
        news = report_is_news(record, holding, group.binding.settings)
        if news is News.JUMP or group.holdings.epoch_jump is not None:
            self._note_jump(group)
        if news in (News.NOTHING, News.JUMP) or is_running(group.holdings.report) or not group.store_may_be_asked:
            return
        now_seconds = asyncio.get_running_loop().time()
        if news is News.MARK:
            if now_seconds < group.holdings.next_mark_seconds:
                return
            group.holdings.next_mark_seconds = now_seconds + self._settings.mark_pause_seconds
        group.holdings.report = self._tasks.start(self._report(group, news), f"rmq:report {group.key}")

    async def _report(self, group: Group, news: News) -> None:
        """Report all members together: a commit costs the same."""
        if news is News.FLOOR:
            await self._recovery.find_incumbent(group)
        try:
            decision = await group.decide(lambda: _report_of(group))
        except RecordStoreError as error:
            log.warning("holdings not reported yet", group=str(group.key), error=str(error))
            group.store_failed(error)
            return
        if decision.changed and isinstance(decision.answer, ReportHoldingsAnswer):
            self._on_news(group)

    def _note_jump(self, group: Group) -> None:
        """Note an epoch that waits for a person, if a living member reports one; reported once for each epoch."""
        record = group.record
        assert record is not None
        jump = waiting_jump(record, group.live(), group.binding.settings)
        if jump == group.holdings.epoch_jump:
            return
        group.holdings.epoch_jump = jump
        if jump is not None:
            log.error(
                "epoch too far above the record: no election before it is accepted", group=str(group.key), epoch=jump
            )
            self._observer.epoch_jump(group.key, jump)
        group.changed()


def _report_of(group: Group) -> ReportHoldings:
    found = (group.table.holding(broker_id) for broker_id in sorted(group.live()))
    holdings = tuple(holding for holding in found if holding is not None)
    return ReportHoldings(broker_name=group.binding.broker_name, holdings=holdings)


class DisputedSets:
    """Changes the record if a master's 1001 shows again and again that the two disagree (`controller_core/sync_state.py`).

    Java refuses each such request, and so does the core: one proves nothing, it may have been queued, or be a stray frame. If
    the same master repeats it for a while:

    * it knows a commit that the record has forgotten (a record restored from an older copy): the epoch is raised above it;
    * it proposes from another set than the record's, because an earlier 1001 was lost or refused (Java 5.5.0 shrinks its own
      set first): it is answered the record's set under the next set epoch, the only thing it takes a set from;
    * only dead members of the set keep others out: the set grows around them.
    """

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
