"""What heartbeats say of disks, compared with the record at every beat (safety rules 2 and 3).

A heartbeat costs one comparison (`report_is_news`). News are committed as `ReportHoldings`, built after the record was read, so
that the table knows which seats that record has: at once if a member has less than it had, has it again, or knows a higher
epoch than the record; marks of all members together, every `mark_pause_seconds`. A failed commit is retried by the next
heartbeat after the store's pause. An epoch too far above the record stops the group's elections until its owner accepts it or
no living broker reports it any more.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog

from brokergroup_operator.controller.peers.services import Part, is_running
from brokergroup_operator.records.store import RecordStoreError
from controller_core.decision import ReportHoldingsAnswer
from controller_core.holdings import News, report_is_news
from controller_core.recovery import waiting_jump
from controller_core.requests import ReportHoldings

if TYPE_CHECKING:
    from collections.abc import Callable

    from brokergroup_operator.controller.detect.recovery import Recovery
    from brokergroup_operator.controller.group.group import Group
    from brokergroup_operator.controller.peers.services import Services

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
