"""What the living members hold now: asked of them (1007) after a loss, because a heartbeat may be a second old.

Where the SyncStateSet is in doubt, the core elects only by reports that were made after the loss (`controller_core/election.py`).
Two heartbeats would bring them too; the answer to a question does so in milliseconds. Brokers of other makers may not know
1007: their heartbeats count.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from brokergroup_operator.controller.peers.services import Part

if TYPE_CHECKING:
    from brokergroup_operator.controller.group.group import Group

POLL_SECONDS = 0.02
ASK_AGAIN_SECONDS = 0.25


class _Asking:
    """After which loss this group's members were asked, and when they may be asked again."""

    losses = 0
    not_before_seconds = 0.0


class FreshReports(Part):
    """Asks the members of all groups."""

    def ask(self, group: Group) -> list[asyncio.Task[None]]:
        """Begin to ask those whose reports are older than the last loss; return the questions. Cheap if there are none."""
        asking, losses, now_seconds = group.care(_Asking), group.table.losses, asyncio.get_running_loop().time()
        if asking.losses == losses and now_seconds < asking.not_before_seconds:
            return []
        stale = _stale(group)
        if stale:
            asking.losses, asking.not_before_seconds = losses, now_seconds + ASK_AGAIN_SECONDS
        return [
            self._tasks.start(self._ask(group, broker_id, address), f"rmq:report {group.key}")
            for broker_id, address in stale.items()
        ]

    async def gather(self, group: Group, timeout_seconds: float) -> None:
        """Return when every living member was heard after the last loss, or after this long."""
        clock = asyncio.get_running_loop().time
        deadline_seconds = clock() + timeout_seconds
        while _stale(group) and clock() < deadline_seconds:
            if questions := self.ask(group):
                await asyncio.wait(questions, timeout=POLL_SECONDS)
            else:
                await asyncio.sleep(POLL_SECONDS)

    async def _ask(self, group: Group, broker_id: int, address: str) -> None:
        losses = group.table.losses
        report = await self._calls.end_of_log(address, group.binding.broker_name, broker_id)
        if report is not None and losses == group.table.losses:
            group.table.reported(broker_id, epoch=report[0], max_offset=report[1])
            group.changed()


def _stale(group: Group) -> dict[int, str]:
    """Return the living members whose reports are older than the last loss, and where they are."""
    record = group.record
    if record is None:
        return {}
    return {
        broker_id: address
        for broker_id, replica in group.live().items()
        if not (replica.fresh and replica.has_reported) and (address := record.address_of(broker_id)) is not None
    }
