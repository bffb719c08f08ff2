"""Moving a master off a pod that is about to go, before it goes.

A Java master that gets a SIGTERM leaves its group without a master for some 9 s (issue 6.3); a switchover costs a quarter of one.
So as soon as a pod is being deleted (evicted, drained, deleted by hand) its mastership is moved in order, and again while it is
still master there. Every controller plane does so, the others a while after the first, since several would get in each other's
way. A pod that is deleted by force is gone from the API at once; a kubelet leaves its broker one to three seconds all the same,
and most moves take less. A fence's deletion is a kill: that is a failover's business.

Where a Service is the member's address, that one leads to the removed pod no more, and perhaps to the next one already. So the old
process is called at its own address (``group/addresses.py``), and only as long as it is heard from there. It acknowledges nothing
before the election is committed, or the move ends: the same process is made quiet, found level and asked whether it is quiet
still, and the registration of the next process ends its mastership in the record, so that the commit's premise is gone.

Nobody is made to wait for this: where no other member can lead, the broker ends as master and the failover does what can be done.
The broker's preStop holds its SIGTERM back meanwhile (``fence/``).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog

from brokergroup_operator.controller.group.election_premises import members_leaving, members_removed
from brokergroup_operator.controller.peers.services import Part, is_running
from brokergroup_operator.observe.group_view import GroupViewError
from brokergroup_operator.observe.timeline import Cause
from brokergroup_operator.records.store import RecordStoreError

if TYPE_CHECKING:
    from brokergroup_operator.controller.change.switchover import Switchover
    from brokergroup_operator.controller.group.group import Group
    from brokergroup_operator.controller.peers.services import Services
    from brokergroup_operator.records.store import GroupKey

log = structlog.get_logger(__name__)


class Drain(Part):
    """Watches all groups for masters that are about to go; woken by the plane's tick and by the pod watch."""

    def __init__(self, services: Services, switchover: Switchover) -> None:
        super().__init__(services)
        self._switchover = switchover
        self._moves: dict[GroupKey, asyncio.Task[None]] = {}
        self._not_before_seconds: dict[GroupKey, float] = {}

    def look_at(self, group: Group) -> None:
        """Begin to move the master if its pod is about to go and nobody is at it. Cheap."""
        master = group.granted_master_id
        if master is None or master not in members_leaving(group) or group.is_leaving:
            self._not_before_seconds.pop(group.key, None)
            return
        if group.master_change is not None or is_running(self._moves.get(group.key)) or not group.is_live(master):
            return
        now_seconds = asyncio.get_running_loop().time()
        turn_seconds = self._planes.rank(group.key) * self._settings.drain_rank_delay_seconds
        if now_seconds < self._not_before_seconds.setdefault(group.key, now_seconds + turn_seconds):
            return
        self._moves[group.key] = self._tasks.start(self._move(group, master), f"rmq:drain {group.key}")

    async def _move(self, group: Group, master: int) -> None:
        log.info("master's pod is about to go: moved first", group=str(group.key), broker_id=master)
        try:
            result = await self._switchover.move(
                group,
                from_broker_id=master,
                to_broker_id=None,
                deadline_seconds=self._settings.switchover_deadline_seconds,
                only_staying=True,
                # A failover a moment later would lose what the next master lacks all the same.
                waits_for_metadata=master not in members_removed(group),
                cause=Cause.DRAIN,
            )
        except (GroupViewError, RecordStoreError) as error:
            log.warning("master about to go and not moved yet", group=str(group.key), error=str(error))
            pause_seconds = self._settings.drain_again_seconds
            self._not_before_seconds[group.key] = asyncio.get_running_loop().time() + pause_seconds
            return
        log.info("master moved off its pod", group=str(group.key), to=result.to_broker_id, epoch=result.epoch)
