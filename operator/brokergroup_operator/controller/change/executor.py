"""Carries out what `controller_core.change` says is next: the only place that tells brokers of roles
(`test_one_module_tells_brokers_of_roles`).

A *course* is one change of master while this plane carries it out, or one attempt to make the brokers agree with the record.
Callers wait until it is *settled*: the new master was told, and what must be restored was. The rest goes on beside.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import structlog

from brokergroup_operator.controller.group.elections import is_outdated, live_members
from brokergroup_operator.controller.peers.broker_calls import BrokerCallError
from brokergroup_operator.controller.peers.services import BackgroundTasks, Part, Services, wait_at_most
from brokergroup_operator.kube.errors import Backoff
from brokergroup_operator.observe.incidents import iso
from brokergroup_operator.observe.timeline import FailoverTimeline, Step
from brokergroup_operator.records.store import GroupKey, RecordStoreError, RecordUnavailableError
from controller_core import change as effects
from controller_core.model import BrokerGroupRecord, Change, ChangeKind, Phase, Replica, Restore
from controller_core.requests import EndChange, Ending

if TYPE_CHECKING:
    from brokergroup_operator.controller.group.group import Group
    from controller_core.decision import Decision

# The discard port of the broker's own host, which refuses without a way through any network.
NOWHERE = "127.0.0.1:9"
# While a silent master is fenced it may be heard again at any moment.
POLL_SECONDS = 0.02
# How often the end of a change that was told waits for its incident's end.
INCIDENT_POLL_SECONDS = 0.1
# The longest pause between the retries of a decision, whatever Retry-After the server sends.
LONGEST_RETRY_AFTER_SECONDS = 5.0

Hand = Callable[[], Awaitable[bool]]

log = structlog.get_logger(__name__)


class _Complaints(set[tuple[int, str]]):
    """Of which members, and of what, a warning was logged."""


@dataclass(slots=True, eq=False)
class Course(effects.Observed):
    """What this plane sees, has begun and has ended of one change under one epoch."""

    group: Group
    # None: no change is under way, and the brokers are told what the record says.
    key: tuple[int, str] | None
    # How the caller carries out the effects that are its own: fence, quiet, level, commit.
    hands: Mapping[type[effects.Effect], Hand] = field(default_factory=dict)
    timeline: FailoverTimeline | None = None
    epoch: int = 0
    phase: Phase | None = None
    tasks: dict[asyncio.Task[bool], effects.Effect] = field(default_factory=dict)
    settled: asyncio.Event = field(default_factory=asyncio.Event)
    # Another plane goes on with the change, and reports it.
    lost: bool = False
    # The error of a hand; the course ends as if that effect had not been confirmed.
    error: Exception | None = None

    def is_of(self, record: BrokerGroupRecord | None, own_address: str) -> bool:
        """Whether the record still asks this plane for this course."""
        if record is None:
            return False
        change = record.change
        if self.key is None:
            return not self.group.is_changing and record.master_epoch == self.epoch
        return change is not None and (change.key, change.carried_out_by) == (self.key, own_address)


class Executor(Part):
    def __init__(self, services: Services) -> None:
        super().__init__(services)
        # Courses, and what brokers were asked by one that the record has moved on from.
        self.courses, self.tails = BackgroundTasks(), BackgroundTasks()
        self._stopping = asyncio.Event()

    def plan(self, kind: ChangeKind, cause: str, *, started_at: str = "") -> Change:
        """Return the change that an election of this plane writes. `started_at` is as the record and the log show times."""
        started_at = started_at or iso(dt.datetime.fromtimestamp(time.time(), dt.UTC))
        own = self._planes.own_address
        return Change(id=0, kind=kind, phase=Phase.TELLING, carried_out_by=own, cause=cause, started_at=started_at)

    def course_of(self, group: Group, change: Change, **more: Any) -> Course:
        """Return a course of this change, to be run by this process. `more` are fields of `Course`."""
        group.changes.carried_out.add(change.key)
        return Course(group, change.key, **more)

    def may_take_over(self, group: Group, change: Change) -> bool:
        """Whether no plane seems to carry this change out: by this plane's clock it has not moved for longer than it takes."""
        own = change.carried_out_by == self._planes.own_address
        if own and change.key in group.changes.carried_out:
            return False
        # A broker asked for the election, and was answered; or this process was started again, and no other plane has its name.
        if own and (group.changes.wrote_it(change) or not self._planes.others):
            return True
        patience_seconds = self._settings.takeover_seconds
        if change.phase is Phase.QUIETING:
            patience_seconds = self._settings.takeover_quieting_seconds
        elif change.phase is Phase.FENCING:
            patience_seconds += group.binding.fence_timeout_seconds
        return group.changes.unmoved_seconds >= patience_seconds

    async def agree(self, group: Group, record: BrokerGroupRecord, due: frozenset[int]) -> None:
        """Tell these members what the record says, in order, while no change is under way."""
        await self.run(Course(group, None, epoch=record.master_epoch, due=due))

    async def run(self, course: Course) -> Course:
        """Carry a course out until it is settled, and return it; raise the error of a hand."""
        name = f"rmq:change {course.group.key}"
        task = self.courses.start(self._run(course), name, on_end=lambda _: course.settled.set())
        await course.settled.wait()
        if course.error is not None:
            raise course.error
        if task.done():
            task.result()
        return course

    async def stop(self) -> None:
        """Write the ends that are due; leave the changes under way to the next process."""
        self._stopping.set()
        if self.courses.running:
            await asyncio.wait(self.courses.running, timeout=0.5)
        await self.courses.stop()
        await self.tails.stop()

    async def _run(self, course: Course) -> None:
        try:
            await self._go_on(course)
        except asyncio.CancelledError:
            for task in course.tasks:
                task.cancel()
            raise
        finally:
            # A change whose course ended before its end was written is looked for again (`takeover.py`), also if the record does
            # not show it now: a read may have been stale (sieve, STALE_READ).
            if course.key is not None and not course.is_confirmed(effects.Forget()):
                course.group.changes.carried_out.discard(course.key)

    async def _go_on(self, course: Course) -> None:
        """Observe, begin what is next, wait; until nothing is left, or the record has moved on."""
        group = course.group
        while course.is_of(group.record, self._planes.own_address):
            record = group.record
            assert record is not None
            if course.key is None:  # a change that is over stays in the record until its end is written
                record = replace(record, change=None)
            self._observe(course, record)
            pace = effects.Pace(
                slaves_first_seconds=self._settings.slaves_first_seconds,
                slaves_first_unfenced_seconds=self._settings.slaves_first_unfenced_seconds,
                fence_seconds=group.binding.fence_timeout_seconds,
            )
            found = effects.next_effects(record, course, self._now_seconds, pace)
            if found.releases and course.key is not None:
                group.changes.release(course.key)
            for effect in found.effects:
                self._begin(course, record, effect)
            if found.settled:
                course.settled.set()
            if not course.tasks and found.until_seconds is None:
                return
            await self._wait(course, found.until_seconds)
        await self._moved_on(course)

    async def _moved_on(self, course: Course) -> None:
        """End a course from which the record has moved on: election and quieting find it out themselves, and are waited for."""
        course.lost = course.group.change is not None and course.group.change.key == course.key
        for task, effect in course.tasks.items():
            if isinstance(effect, effects.Fence | effects.Level | effects.CatchUp):
                task.cancel()
        hands = [task for task, effect in course.tasks.items() if type(effect) in course.hands]
        if hands:
            await asyncio.wait(hands)
        self._collect(course)
        for task in course.tasks:
            self.tails.keep(task)

    async def _wait(self, course: Course, until_seconds: float | None) -> None:
        timeouts_seconds = [until_seconds - self._now_seconds] if until_seconds is not None else []
        if course.phase is Phase.FENCING:
            timeouts_seconds.append(POLL_SECONDS)
        timeout_seconds = max(0.0, min(timeouts_seconds)) if timeouts_seconds else None
        if course.tasks:
            await asyncio.wait(course.tasks, timeout=timeout_seconds, return_when=asyncio.FIRST_COMPLETED)
        else:
            await asyncio.sleep(timeout_seconds or 0.0)
        self._collect(course)

    def _collect(self, course: Course) -> None:
        for task in [task for task in course.tasks if task.done()]:
            effect = course.tasks.pop(task)
            confirmed = False
            if not task.cancelled():
                error = task.exception()
                if isinstance(error, Exception):
                    course.error = course.error or error
                confirmed = error is None and task.result()
            course.ended[effect] = effects.Ended(self._now_seconds, confirmed)

    def _observe(self, course: Course, record: BrokerGroupRecord) -> None:
        group, change = course.group, record.change
        phase, old = (change.phase, change.from_broker_id) if change is not None else (None, None)
        if phase is not course.phase or not course.since_seconds:
            course.phase, course.since_seconds = phase, self._now_seconds
        course.epoch = record.master_epoch
        members, registrations = live_members(group, record), group.registrations
        course.alive = frozenset(one for one in members if not registrations.is_open(one, group.record))
        course.told = frozenset(one for one, epoch in group.changes.told.items() if epoch == record.master_epoch)
        # After a restart members are heard one after the other; later no course waits for an address that changed hands.
        course.unheard = group.not_heard_yet()
        course.fenced = old is not None and course.is_confirmed(effects.Fence(old))
        course.heard = old is not None and group.is_live(old)
        course.dead_by_pod_fence = bool(group.binding.unconfirmed_trust)

    def _begin(self, course: Course, record: BrokerGroupRecord, effect: effects.Effect) -> None:
        course.begun[effect] = self._now_seconds
        self._stamp(course, record, effect, Step.NOTIFIED)
        task = asyncio.create_task(self._do(course, record, effect), name=f"rmq:{effect} {course.group.key}")
        course.tasks[task] = effect

    @staticmethod
    def _stamp(course: Course, record: BrokerGroupRecord, effect: effects.Effect, step: Step) -> None:
        is_masters = isinstance(effect, effects.Tell) and effect.broker_id == record.master_broker_id
        if course.timeline is not None and is_masters:
            course.timeline.reach(step, time.monotonic())

    async def _do(  # noqa: PLR0911, C901 - one return per kind of effect is the plainest table there is
        self, course: Course, record: BrokerGroupRecord, effect: effects.Effect
    ) -> bool:
        group = course.group
        match effect:
            case effects.Probe():
                addresses = {one: record.address_of(one) for one in sorted(effect.broker_ids)}
                course.acting = frozenset(await self._calls.masters(addresses))
                return True
            case effects.Unregister():
                return await self._unregister(group, record, effect.broker_id)
            case effects.Tell():
                confirmed = await self._may_grant(course, record, effect) and await self.tell(group, record, effect)
                if confirmed and not effect.of_another:
                    self._stamp(course, record, effect, Step.ROLE_CHANGED)
                return confirmed
            case effects.Point():
                return await self.point(group, record, effect.broker_id, NOWHERE if effect.nowhere else None)
            case effects.CatchUp():
                return await self._caught_up(group, record, effect.broker_id)
            case effects.Prove():
                return await self._prove(group, record, effect.broker_id)
            case Restore():
                say, minimum = self._calls.set_min_in_sync_replicas, effect.min_in_sync_replicas
                # What is left behind is found by the keeper.
                return await self._said(
                    group, record, effect.broker_id, "minInSyncReplicas", lambda at: say(at, minimum)
                )
            case effects.GiveUp():
                return await self._write_end(group, course.key or (0, ""), Ending.GIVEN_UP)
            case effects.Forget():
                return await self._forget(group, course.key or (0, ""))
        hand = course.hands.get(type(effect))
        return await hand() if hand is not None else False

    async def _may_grant(self, course: Course, record: BrokerGroupRecord, effect: effects.Tell) -> bool:
        """Whether a broker that is no master by its own word may become one: by a record that was read now, not by a watch's copy
        (`test_a_plane_that_is_behind_grants_no_role`). A change of this plane is its own commit.
        """
        group, granted = course.group, record.granted_master_id
        if course.key is not None or effect.broker_id != granted or granted in (course.acting or ()):
            return True
        if not group.patience.is_over:
            return False
        try:
            now = await group.load_again()
        except RecordStoreError:
            return False
        return now is not None and (now.granted_master_id, now.master_epoch) == (granted, record.master_epoch)

    async def tell(self, group: Group, record: BrokerGroupRecord, effect: effects.Tell) -> bool:
        """Send 1008 to one member; return whether it answered. A success is noted in `group.changes`."""
        broker_id, content = effect.broker_id, record
        if is_outdated(group, record) or group.registrations.is_open(broker_id, group.record):
            return False
        if effect.of_another:
            content = _of_another_master(replace(record, master_epoch=effect.epoch), broker_id)
        say = self._calls.change_role
        answered = await self._said(group, record, broker_id, "role change", lambda at: say(at, content))
        if not answered or is_outdated(group, record):
            return False
        if not effect.of_another:
            group.changes.told[broker_id] = record.master_epoch
            if broker_id == record.master_broker_id:
                group.confirm_master(record.master_epoch)
            group.changed()
        return True

    async def point(
        self, group: Group, record: BrokerGroupRecord, broker_id: int, ha_address: str | None = None
    ) -> bool:
        """Send 906 to one slave: the master's HA address, or another one."""
        master_address = record.address_of(record.master_broker_id)
        if record.address_of(broker_id) is None or master_address is None or is_outdated(group, record):
            return False
        target = ha_address or group.binding.ha_address_of(master_address)
        return await self._said(
            group, record, broker_id, "HA address", lambda at: self._calls.push_ha_address(at, target)
        )

    @staticmethod
    async def _said(
        group: Group, record: BrokerGroupRecord, broker_id: int, what: str, say: Callable[[str], Awaitable[None]]
    ) -> bool:
        """Call `say` with a member's address, if it is known; log a warning once, and a line when it is taken after all."""
        complaints, subject, address = group.care(_Complaints), (broker_id, what), record.address_of(broker_id)
        if address is None:
            return False
        try:
            await say(address)
        except BrokerCallError as error:
            tell = log.debug if subject in complaints else log.warning
            tell("not taken", what=what, group=str(group.key), broker_id=broker_id, error=str(error))
            complaints.add(subject)
            return False
        if subject in complaints:
            complaints.discard(subject)
            log.info("taken at last", what=what, group=str(group.key), broker_id=broker_id)
        return True

    async def _caught_up(self, group: Group, record: BrokerGroupRecord, broker_id: int) -> bool:
        """Wait until every linked slave has all that the old master has; return False if it does not answer, or not in time."""
        deadline_seconds, is_late = self._now_seconds + effects.CATCH_UP_SECONDS, False
        while self._now_seconds < deadline_seconds and not is_outdated(group, record):
            status = await self._calls.ha_status_if_any(record.address_of(broker_id))
            if status is None:
                return False
            behind_bytes = max((link.diff for link in status.ha_connection_info if link.in_sync), default=0)
            if behind_bytes <= 0:
                return True
            if not is_late:
                what = "late message waited for"
                log.info(what, group=str(group.key), broker_id=broker_id, behind_bytes=behind_bytes)
            is_late = True
            await asyncio.sleep(0.005)
        return False

    async def _unregister(self, group: Group, record: BrokerGroupRecord, broker_id: int) -> bool:
        if (address := record.address_of(broker_id)) is None:
            return True
        failed = await self._calls.unregister(group.binding.name_servers, record, address)
        for server, error in failed.items():
            log.warning("not unregistered", group=str(group.key), name_server=server, error=str(error))
        return not failed

    async def _prove(self, group: Group, record: BrokerGroupRecord, broker_id: int) -> bool:
        status = await self._calls.ha_status_if_any(record.address_of(broker_id))
        if status is None or is_outdated(group, record):
            return False  # its next heartbeat, or the next look at the links, tells
        group.master_said(record.master_epoch, is_master=status.master)
        return status.master

    async def _forget(self, group: Group, key: tuple[int, str]) -> bool:
        """End the change: with the next commit, by a write of its own after `end_of_change_seconds`, or at once when its incident
        has ended; until then it stays in the record as told.
        """
        group.changes.is_over(key)
        await self._incident_ends(group, self._settings.end_of_change_seconds)
        while (change := group.change) is not None and change.key == key:
            if change.carried_out_by != self._planes.own_address:
                return False
            is_open = group.incidents.has_untold and change.is_decided
            if is_open and self._stopping.is_set():
                return False
            if not (is_open and change.is_told):
                try:
                    await self._write_end(group, key, Ending.TOLD if is_open else Ending.OVER)
                except RecordStoreError as error:  # refused, or not understood: no attempt of ours mends that
                    log.warning("end of the change not written", group=str(group.key), change=key[0], error=str(error))
                    return False
            if is_open:
                await wait_at_most(self._stopping, INCIDENT_POLL_SECONDS)
        return True

    async def _incident_ends(self, group: Group, timeout_seconds: float) -> None:
        """Wait for the incident's end, or this long without one: something else may be written meanwhile."""
        deadline_seconds, has_one = self._now_seconds + timeout_seconds, group.incidents.has_untold
        while (left_seconds := deadline_seconds - self._now_seconds) > 0 and not self._stopping.is_set():
            if has_one and not group.incidents.has_untold:
                return
            await wait_at_most(self._stopping, min(INCIDENT_POLL_SECONDS, left_seconds))

    async def _write_end(self, group: Group, key: tuple[int, str], how: Ending) -> bool:
        """Retry until the store takes it: a late election of a change that was not durably given up would depose a master that
        acknowledges again, and one that was told and is not ended would be taken over, and reported again.
        """
        request = EndChange(change_id=key[0], carried_out_by=self._planes.own_address, how=how)
        waits = f"the end of change {key[0]}"
        await decided_at_last(lambda: group.decide(request), key=group.key, waits=waits, longest_pause_seconds=1.0)
        return True


async def decided_at_last(
    decide: Callable[[], Awaitable[Decision]], *, key: GroupKey, waits: str, longest_pause_seconds: float = 0.5
) -> Decision:
    """Return the decision, retried with backoff while the store is away. `waits` names it in the log.

    A refused or corrupt record and a premise that is gone are raised: no later attempt mends them.
    """
    backoff = Backoff(0.05, longest_pause_seconds)
    while True:
        try:
            return await decide()
        except RecordUnavailableError as error:
            log.warning(f"{waits} waits for the record store", group=str(key), error=str(error))
            retry_after_seconds = min(error.retry_after_seconds, LONGEST_RETRY_AFTER_SECONDS)
        await asyncio.sleep(backoff.next_seconds(retry_after_seconds))


def _of_another_master(record: BrokerGroupRecord, told: int) -> BrokerGroupRecord:
    """Return the record with another member as master; in a group of two an unused id at the same address."""
    others = [one for one in record.replicas if one not in (told, record.master_broker_id) and record.address_of(one)]
    if others:
        return replace(record, master_broker_id=others[0])
    made_up, address = record.next_broker_id, record.address_of(record.master_broker_id) or ""
    replicas = {**record.replicas, made_up: Replica(made_up, f"{address};cure", address)}
    return replace(record, master_broker_id=made_up, replicas=replicas)
