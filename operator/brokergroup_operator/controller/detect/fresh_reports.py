"""What the living members hold now: asked of them (1007) after a loss, because a heartbeat may be a second old.

Where the SyncStateSet is in doubt, the core elects only by reports that were made after the master's loss
(`controller_core/election.py`). Two heartbeats would bring them too; the answer to a question does so in milliseconds. A member
that gives neither is waited for as long as a silent one, and not for ever.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from brokergroup_operator.controller.group.election_premises import silence_seconds
from brokergroup_operator.controller.peers.services import Part, doubled, is_running

if TYPE_CHECKING:
    from brokergroup_operator.controller.group.group import Group

POLL_SECONDS = 0.02
# A member that did not answer is asked again after pauses that double.
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.25, 2.0
# Of all groups. When a whole cluster has no masters, the others wait for their turn.
MOST_QUESTIONS = 64


@dataclass(slots=True)
class _Question:
    """Of one member: after which loss, the one under way, and when it may be asked again."""

    lost_seconds: float | None
    task: asyncio.Task[None] | None = None
    times: int = 0
    not_before_seconds: float = 0.0


class _Questions(dict[int, _Question]):
    """Those of one group, by broker id."""


class FreshReports(Part):
    """Asks the members of all groups."""

    _under_way = 0

    def ask(self, group: Group) -> list[asyncio.Task[None]]:
        """Begin to ask those whose reports are older than the master's loss; return the questions under way."""
        stale, now_seconds, asking = _stale(group), self._now_seconds, group.care(_Questions)
        for broker_id, address in stale.items():
            question = asking.get(broker_id)
            if question is None or question.lost_seconds != group.table.lost_seconds:
                question = asking[broker_id] = _Question(group.table.lost_seconds)
            may_ask = now_seconds >= question.not_before_seconds and self._under_way < MOST_QUESTIONS
            if may_ask and not is_running(question.task):
                self._under_way += 1
                work = self._ask(group, broker_id, address, question)
                question.task = self._tasks.start(work, f"rmq:report {group.key}", on_end=self._ended)
        tasks = (asking[broker_id].task for broker_id in stale)
        return [task for task in tasks if task is not None and not task.done()]

    def _ended(self, _: asyncio.Task[None]) -> None:
        self._under_way -= 1

    async def gather(self, group: Group, timeout_seconds: float) -> None:
        """Return when every living member was heard after the master's loss, or after this long."""
        deadline_seconds = self._now_seconds + timeout_seconds
        while _stale(group) and self._now_seconds < deadline_seconds:
            if questions := self.ask(group):
                await asyncio.wait(questions, timeout=POLL_SECONDS)
            else:
                await asyncio.sleep(POLL_SECONDS)

    def are_heard_out(self, group: Group) -> bool:
        """Whether the members have had the time of a silent one to report since the master's loss."""
        lost_seconds = group.table.lost_seconds
        return lost_seconds is not None and self._now_seconds - lost_seconds >= silence_seconds(group, self._settings)

    async def _ask(self, group: Group, broker_id: int, address: str, question: _Question) -> None:
        before, record, binding = group.table.entry(broker_id), group.record, group.binding
        report = await self._calls.end_of_log(address, binding.cluster_name, binding.broker_name, broker_id)
        if report is None:
            pause_seconds = doubled(FIRST_PAUSE_SECONDS, question.times, LONGEST_PAUSE_SECONDS)
            question.not_before_seconds = self._now_seconds + pause_seconds
            question.times += 1
            return
        question.times = 0
        # Not if the member was heard meanwhile, the master was lost again, or another one elected: it may be older than that.
        if group.table.entry(broker_id) is before and group.record is record:
            group.table.reported(broker_id, epoch=report[0], max_offset=report[1])
            group.changed()


def _stale(group: Group) -> dict[int, str]:
    """Return the living members that may lead and whose reports are older than the master's loss, and where they are."""
    record, settings = group.record, group.binding.settings
    if record is None:
        return {}
    return {
        broker_id: address
        for broker_id, replica in group.live().items()
        if not (replica.fresh and replica.has_reported)
        and settings.may_be_master(broker_id)
        and (address := record.address_of(broker_id)) is not None
    }
