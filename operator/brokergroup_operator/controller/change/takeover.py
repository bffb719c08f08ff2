"""Going on with a change of master that no plane carries out any more: its plane died, or this one did and was started again.

A plane that has seen the change unmoved for a while takes it over by compare-and-set. A change that still waited for its election
is given up: a switchover was voluntary, and a silent master that is heard again needs no other one. If the master is silent here
too, the failover takes over and fences again, for the fence's whole time.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

from brokergroup_operator.controller.group.changes import has_incident, timeline_of
from brokergroup_operator.controller.group.elections import finish, withdraw
from brokergroup_operator.controller.peers.services import Part, Services, dial
from brokergroup_operator.records.store import RecordStoreError
from controller_core.decision import ControllerCode
from controller_core.model import Change, Phase
from controller_core.requests import TakeOverChange

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from brokergroup_operator.controller.change.executor import Executor
    from brokergroup_operator.controller.group.group import Group

LOOK_AGAIN_SECONDS = 0.5
# A plane whose host refuses the connection is dead. On a busy node a living plane may answer a probe too late.
PROBES = 3

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Telling:
    """How many tasks report the incident of a change of this group whose own plane may have died."""

    tasks: int = 0

    def ended(self) -> None:
        self.tasks -= 1


class Takeover(Part):
    """Looks at the changes of all groups; woken by the plane's tick."""

    def __init__(self, services: Services, executor: Executor) -> None:
        super().__init__(services)
        self._executor = executor

    def look_at(self, group: Group) -> bool:
        """Begin to go on with the group's change if no plane does; return whether one is under way. Cheap."""
        while group.incidents.superseded:
            self._look_at_incident(group, self._tell_of(group, group.incidents.superseded.pop()))
        change = group.change
        if change is None:
            return False
        is_orphan = group.loaded and self._executor.may_take_over(group, change)
        if is_orphan and change.is_told and not group.care(_Telling).tasks:
            self._look_at_incident(group, self._go_on(group, change))
        if group.is_changing and is_orphan and group.changes.may_begin() and not self._waits(group, change):
            work, only_tells = self._go_on(group, change), group.changes.elected(change)
            group.changes.run(work, f"rmq:takeover {group.key}", only_tells=only_tells)
        return group.is_changing

    def _waits(self, group: Group, change: Change) -> bool:
        """Whether an orphaned change is not to be gone on with yet, or by the failover."""
        if group.not_heard_yet():
            return True  # one of them may act as master, and would have to be told first
        master = group.granted_master_id
        if change.phase in (Phase.FENCING, Phase.TELLING) and (master is None or not group.is_live(master)):
            return True  # the master that is fenced, or is to be told, is lost here too
        # A broker that was just answered takes its role by itself.
        return change.phase is Phase.TELLING and group.changes.is_left_alone

    def _look_at_incident(self, group: Group, work: Coroutine[None, None, None]) -> None:
        telling = group.care(_Telling)
        telling.tasks += 1
        self._tasks.start(work, f"rmq:incident {group.key}", on_end=lambda _: telling.ended())

    async def _tell_of(self, group: Group, change: Change) -> None:
        """Report a change that this plane superseded, unless its own plane lives and reports it better."""
        if not await self._is_carried_out(group, change):
            group.incidents.report_superseded(change, group.binding, confirmed_epoch=group.confirmed_epoch)

    async def _go_on(self, group: Group, change: Change) -> None:
        """Take the change over, unless its plane still listens; carry it to its end, and report it."""
        if await self._is_carried_out(group, change):
            await asyncio.sleep(LOOK_AGAIN_SECONDS)
            return
        taken = await self._taken_over(group, change)
        if taken is None:
            return
        told = taken.carried_out_by == change.carried_out_by and group.incidents.has(taken.id)
        timeline = timeline_of(taken, group.binding) if has_incident(taken) and not told else None
        group.incidents.begins(timeline)
        course = self._executor.course_of(group, taken, takes_over=True, timeline=timeline)
        try:
            await self._executor.run(course)
        finally:
            group.incidents.ends(timeline)
        if timeline is not None and course.lost:
            withdraw(group, timeline, "another plane took the change over")
        elif timeline is not None:
            # A master that has confirmed a higher epoch in the same office (`RenewMaster`) has confirmed this one.
            goes_on = group.granted_master_id == taken.to_broker_id and group.confirmed_epoch > taken.epoch
            timeline.confirmed(taken.epoch if goes_on else group.confirmed_epoch, time.monotonic())
            finish(group, timeline)

    async def _is_carried_out(self, group: Group, change: Change) -> bool:
        """Whether the plane that the change names still listens: it may wait for a broker that is slow to change its role."""
        if change.carried_out_by == self._planes.own_address:
            return False
        if not change.is_told and group.changes.unmoved_seconds >= self._settings.takeover_from_living_seconds:
            return False
        for _ in range(PROBES):
            try:
                await dial(change.carried_out_by, deadline_seconds=self._settings.probe_seconds)
            except TimeoutError:
                continue
            except (OSError, ValueError):
                return False
            return True
        return False

    async def _taken_over(self, group: Group, change: Change) -> Change | None:
        """Return the change as this plane's own, by compare-and-set; None if it has moved, or the store did not take it."""
        if change.carried_out_by == self._planes.own_address:
            return change
        try:
            decision = await group.decide(TakeOverChange(change=change, carried_out_by=self._planes.own_address))
        except RecordStoreError as error:
            log.warning("change not taken over yet", group=str(group.key), change=change.id, error=str(error))
            await asyncio.sleep(group.patience.failed(error.retry_after_seconds))
            return None
        taken = decision.record.change if decision.record is not None else None
        if decision.code != ControllerCode.SUCCESS or taken is None:
            return None
        log.warning("change of master taken over", group=str(group.key), change=change.describe())
        return taken
