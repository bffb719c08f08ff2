"""The changes of master of one group as this plane knows them: its own part, which it may lose, and the incidents.

An incident stays open until enough members are in sync and what is watched of the recovery (`upkeep/recovery_watch.py`) was seen
or given up, or until its age limit. Its change stays in the record until then: the plane that goes on with the change, or
supersedes it, reports the incident under the same id. It may be reported twice; readers of the logs merge by id.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import time
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import structlog

from brokergroup_operator.controller.peers.services import Patience, wait_at_most
from brokergroup_operator.observe.timeline import Cause, FailoverTimeline, Kind, Outcome, Step, Trigger
from controller_core.change import MOVES_A_LIVING_MASTER
from controller_core.decision import ChangeWritten, Decision, MasterElected, apply_events
from controller_core.model import BrokerGroupRecord, Change, ChangeKind, Phase

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from brokergroup_operator.controller.directory.group_directory import GroupBinding
    from brokergroup_operator.controller.settings import PlaneSettings
    from brokergroup_operator.observe.observer import Observer

# For how long others leave the event loop to a new master's report of its set (1001): without it nothing is acknowledged.
IN_SYNC_SECONDS = 0.1
ChangeKey = tuple[int, str]
# No change has this key: ids begin with 1.
_NO_CHANGE: ChangeKey = (0, "")

log = structlog.get_logger(__name__)


class OwnChanges:
    """This plane's part in the changes of one group. Times are those of the event loop."""

    def __init__(self, settings: PlaneSettings, *, look_soon: Callable[[], None], changed: Callable[[], None]) -> None:
        self._settings, self._look_soon, self._changed = settings, look_soon, changed
        # The failover, switchover or takeover that runs here.
        self.task: asyncio.Task[None] | None = None
        self._only_tells = self._only_looks = False
        # With a store that refuses a change, or holds a record that is corrupt.
        self.refusals = Patience(first_seconds=0.5, longest_seconds=30.0)
        # Under which epoch each member has answered 1008 in this process's life.
        self.told: dict[int, int] = {}
        # The changes that this process carries out, or has.
        self.carried_out: set[ChangeKey] = set()
        # The one that a commit of this process brought into the record last, or its election; the one whose new state 1004 may
        # tell; and the one of which all is done but its end in the record.
        self._written_here = self._released = self.over = _NO_CHANGE
        self._seen: tuple[Change | None, float] = (None, self._now)
        self._left_alone_until_seconds = 0.0

    @property
    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    @property
    def has_begun(self) -> bool:
        """Whether a change is under way here: a doubt of the master alone is none."""
        return self.task is not None and not self._only_looks

    def run(
        self,
        work: Coroutine[None, None, None],
        name: str,
        *,
        decided: asyncio.Future[Decision] | None = None,
        only_tells: bool = False,
        looks_first: bool = False,
    ) -> None:
        """Run this failover, switchover or takeover. What `looks_first` may begin no change at all.

        An error before the election is `decided` goes to that future's caller.
        """

        def ended(done: asyncio.Task[None]) -> None:
            self.task, self._only_tells = None, False
            error = None if done.cancelled() else done.exception()
            if decided is not None and not decided.done():
                if error is None:
                    decided.cancel()
                else:
                    decided.set_exception(error)
            elif error is not None:
                log.error("change of master not finished, the next look goes on", task=name, error=repr(error))
            if self._only_looks:
                self._look_soon()  # a plane that never hears the master doubts it ten times a second
            else:
                self._changed()

        self.task, self._only_tells, self._only_looks = asyncio.create_task(work, name=name), only_tells, looks_first
        self.task.add_done_callback(ended)

    def begins(self) -> None:
        """Note that what was only a look begins a change."""
        self._only_looks = False

    def may_begin(self) -> bool:
        """Whether a change of master may be begun: none runs here, and the store has not just refused one."""
        return self.task is None and self.refusals.is_over

    async def wait_for_end(self, timeout_seconds: float) -> None:
        if self.task is not None:
            await asyncio.wait([self.task], timeout=max(0.0, timeout_seconds))

    async def leave_off_telling(self) -> None:
        """Stop telling an election that this plane wrote for a broker: a person's election supersedes it."""
        if self.task is not None and self._only_tells:
            self.task.cancel()
            await asyncio.wait([self.task])
            await asyncio.sleep(0)  # its callback clears `task`

    def leave_alone(self, seconds: float) -> None:
        """Begin nothing for this long: another plane, or a broker that was just answered, is about to do it."""
        self._left_alone_until_seconds = self._now + seconds

    @property
    def is_left_alone(self) -> bool:
        return self._now < self._left_alone_until_seconds

    def wrote(self, change: Change) -> None:
        """Note that a commit of this process brought this change, or its election, into the record."""
        self._written_here = change.key

    def wrote_it(self, change: Change) -> bool:
        return change.key == self._written_here

    def elected(self, change: Change | None) -> bool:
        """Whether this plane wrote that election: what is left is telling, which a person's election supersedes."""
        return change is not None and change.is_decided and self.wrote_it(change)

    def release(self, key: ChangeKey) -> None:
        """1004 may answer the new state of this change."""
        self._released = key

    def is_over(self, key: ChangeKey) -> None:
        """Let the end of this change go with the next commit: nothing else is left to do."""
        self.over = key

    def with_the_end(self, decision: Decision, *, is_reported: bool) -> Decision:
        """Add the end of that change to a decision: it then costs no write of its own."""
        after = decision.record
        change = after.change if after is not None else None
        if not decision.changed or after is None or change is None or change.key != self.over:
            return decision
        end = ChangeWritten(change=None if is_reported else change.told)
        if end.change == change:
            return decision
        return replace(decision, events=(*decision.events, end), record=apply_events(after, (end,)))

    def saw(self, change: Change | None) -> None:
        if change != self._seen[0]:
            self._seen = (change, self._now)

    @property
    def unmoved_seconds(self) -> float:
        """How long the change under way has not moved, by this plane's own clock."""
        return self._now - self._seen[1]

    def record_to_tell(self, record: BrokerGroupRecord | None) -> BrokerGroupRecord | None:
        """Return what 1004 may answer: the state of before, until the brokers were told in order, or `hold_back_seconds`."""
        change = record.change if record is not None else None
        if record is None or change is None or change.phase is not Phase.TELLING or change.key == self._released:
            return record
        return record if self.unmoved_seconds >= self._settings.hold_back_seconds else record.as_told_before


class Incidents:
    """Of one group: the change of master under way here, the open incident, and the last ones."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self.in_progress: FailoverTimeline | None = None
        self.last: dict[Kind, FailoverTimeline] = {}
        # Since when the group has had no master, and no incident covers the time (as timelines count).
        self.masterless_since_seconds: float | None = None
        self._open: FailoverTimeline | None = None
        self._awaited: frozenset[Step] = frozenset()
        self._told_of: int | None = None
        # Changes that this plane has superseded after all were told: their own planes may report them (takeover.py).
        self.superseded: list[Change] = []
        # Until when the end of the open incident's change is a moment ago; and whether enough members are in sync since.
        self._is_new_until_seconds = 0.0
        self._is_in_sync = asyncio.Event()

    @property
    def recovering(self) -> tuple[FailoverTimeline, frozenset[Step]] | None:
        """The open incident whose new master has confirmed its role, and the steps still awaited; None if there is no such."""
        if self._open is None or Step.ROLE_CHANGED not in self._open.steps or not self._awaited:
            return None
        return self._open, self._awaited

    @property
    def is_open(self) -> bool:
        return self._open is not None

    @property
    def has_untold(self) -> bool:
        """Whether the end of a change of this plane has not been reported yet."""
        return self.in_progress is not None or self.is_open

    def has(self, change_id: int) -> bool:
        """Whether this plane reports that change, or has just reported it."""
        return change_id in (self._told_of, self._open.change_id if self._open is not None else None)

    def begins(self, timeline: FailoverTimeline | None) -> None:
        self.in_progress = timeline

    def ends(self, timeline: FailoverTimeline | None) -> None:
        if self.in_progress is timeline:
            self.in_progress = None

    def masterless(self, since_seconds: float | None) -> None:
        self.masterless_since_seconds = since_seconds

    def open(self, timeline: FailoverTimeline, *, awaited: frozenset[Step] = frozenset()) -> None:
        """Keep the timeline of a change that has ended until the group has recovered."""
        self.ends(timeline)
        self.last[timeline.kind] = timeline
        self.close()
        self._open, self._awaited = timeline, awaited
        self._is_new_until_seconds = asyncio.get_running_loop().time() + IN_SYNC_SECONDS
        self._is_in_sync.clear()
        if timeline.outcome is Outcome.CANCELLED:
            self.close()

    def close(self, *, older_than_seconds: float = 0.0) -> None:
        """End the open incident as it stands, if it is that old."""
        timeline = self._open
        if timeline is None or time.monotonic() - timeline.steps[Step.DETECTED] < older_than_seconds:
            return
        self._open, self._told_of = None, timeline.change_id
        if timeline.outcome is Outcome.RUNNING:
            timeline.outcome = Outcome.INCOMPLETE
        self._observer.incident_closed(timeline)

    def moved_by_another(self, was: BrokerGroupRecord | None, now: BrokerGroupRecord | None) -> None:
        """Another plane wrote the record: one that took the change over reports the incident, and this plane does not.

        One that superseded the change may die before it reports: this plane reports as well.
        """
        timeline, before = self._open, was.change if was is not None else None
        if timeline is None or now is None:
            return
        if before is not None and before.id == timeline.change_id and before.goes_on_in(now.change):
            if now.change is not None and now.change.carried_out_by != before.carried_out_by:
                self._open = None
                self._observer.failover_withdrawn(timeline)
            return
        if _is_elected_after(timeline, now):
            self.close()

    def superseded_by(
        self, decision: Decision, was: Change, binding: GroupBinding, *, is_own: bool, confirmed_epoch: int
    ) -> None:
        """A decision of this plane followed that change. If it cut it off, its incident is reported at once: this plane may die
        before its next look. The plane that has told all the brokers reports it better, if it lives.
        """
        now = decision.record.change if decision.record is not None else None
        is_over = any(isinstance(event, ChangeWritten) and event.change is None for event in decision.events)
        is_reported = is_own or self.has(was.id)
        if not has_incident(was) or was.goes_on_in(now) or is_over:
            return
        if self._open is not None and self._open.change_id == was.id:
            self.close()
        if not is_reported and was.is_told:
            self.superseded.append(was)
        elif not is_reported:
            self.report_superseded(was, binding, confirmed_epoch=confirmed_epoch)

    def report_superseded(self, was: Change, binding: GroupBinding, *, confirmed_epoch: int) -> None:
        """Report the incident of a change that an election of this plane has cut off, as far as the plan shows it."""
        timeline = timeline_of(was, binding)
        timeline.confirmed(confirmed_epoch, time.monotonic())
        timeline.outcome = timeline.told_outcome
        self._observer.incident_closed(timeline)

    def role_changed(self, epoch: int) -> None:
        timeline = self._open
        # Or a higher one: the same master goes on (`RenewMaster`). Another election has ended this incident.
        if timeline is None or epoch < (timeline.epoch_after or 0):
            return
        # A master that says so late was given up on by then: its incident counted as incomplete until now.
        if timeline.outcome in (Outcome.RUNNING, Outcome.INCOMPLETE):
            timeline.reach(Step.ROLE_CHANGED, time.monotonic())
            timeline.outcome = Outcome.COMPLETED
            self._observer.master_changed(timeline)

    async def wait_until_in_sync(self, deadline_seconds: float) -> None:
        """Wait until enough members are in sync after a change that ended here a moment ago, until then, or until the deadline."""
        left_seconds = min(self._is_new_until_seconds, deadline_seconds) - asyncio.get_running_loop().time()
        if self._open is not None and left_seconds > 0:
            await wait_at_most(self._is_in_sync, left_seconds)

    def in_sync(self) -> None:
        self._is_in_sync.set()
        if self._open is not None and Step.ROLE_CHANGED in self._open.steps:
            self._open.reach(Step.IN_SYNC, time.monotonic())
            self._close_if_recovered()

    def saw(self, timeline: FailoverTimeline, step: Step, at_seconds: float) -> None:
        """An awaited step was seen at that time of the monotonic clock."""
        if self._open is timeline and step in self._awaited:
            timeline.reach(step, at_seconds)
            self.await_no_longer(timeline, step)

    def await_no_longer(self, timeline: FailoverTimeline, *steps: Step) -> None:
        if self._open is timeline:
            self._awaited -= frozenset(steps)
            self._close_if_recovered()

    def _close_if_recovered(self) -> None:
        if self._open is not None and Step.IN_SYNC in self._open.steps and not self._awaited:
            self.close()


def _is_elected_after(timeline: FailoverTimeline, now: BrokerGroupRecord) -> bool:
    """Whether the record has a later election. A cure and a raised epoch keep the master: they end no incident."""
    if now.granted_master_id is None or now.master_epoch <= (timeline.epoch_after or 0):
        return False
    is_cure = now.change is not None and now.change.kind is ChangeKind.CURE
    is_next_change = now.change_id > (timeline.change_id or 0) and not is_cure
    return now.granted_master_id != timeline.to_broker_id or is_next_change


def awaited_steps(binding: GroupBinding, settings: PlaneSettings) -> frozenset[Step]:
    """Return what is watched of a recovery besides the SyncStateSet. A group without NameServers has no route to watch."""
    watched = {
        Step.INDEX_CAUGHT_UP: True,
        Step.ROUTE_VISIBLE: bool(binding.name_servers),
        Step.FIRST_ACK: binding.canary,
    }
    return frozenset(step for step, is_watched in watched.items() if is_watched and settings.recovery_watch_seconds)


def has_incident(change: Change) -> bool:
    """Whether the change is one: not a first election, a cure, or a change that was given up."""
    replaces = change.before is not None and change.before.master_epoch > 0
    return replaces and change.is_decided and change.kind is not ChangeKind.CURE


def timeline_of(change: Change, binding: GroupBinding) -> FailoverTimeline:
    """Return the timeline of a change that another process began, as far as the plan shows it."""
    cause, started_at_unix_seconds = change.cause, time.time()
    is_move = change.kind in MOVES_A_LIVING_MASTER
    trigger = Trigger(cause) if cause in set(Trigger) else Trigger.MASTERLESS
    with suppress(ValueError):
        started_at_unix_seconds = dt.datetime.fromisoformat(change.started_at).timestamp()
    age_seconds = max(0.0, time.time() - started_at_unix_seconds)
    return FailoverTimeline(
        group=binding.key,
        cluster_name=binding.cluster_name,
        broker_name=binding.broker_name,
        kind=Kind.SWITCHOVER if is_move else Kind.FAILOVER,
        trigger=Trigger.REQUESTED if is_move or change.kind is ChangeKind.ELECT else trigger,
        from_broker_id=change.from_broker_id,
        to_broker_id=change.to_broker_id,
        epoch_before=change.before.master_epoch if change.before is not None else 0,
        epoch_after=change.epoch,
        started_at_unix_seconds=started_at_unix_seconds,
        change_id=change.id,
        evidence=[f"taken over from {change.carried_out_by}", *([cause] if cause else [])],
        unfenced=change.unfenced,
        planned_cause=Cause(cause) if cause in set(Cause) else Cause.PLANNED_SWITCHOVER,
        facts=binding.member_facts.get(change.from_broker_id or 0, {}),
        steps={Step.DETECTED: time.monotonic() - age_seconds},
    )


def is_unclean(decision: Decision) -> bool:
    """Whether the elected member may lack what was acknowledged."""
    return any(isinstance(event, MasterElected) and event.unclean for event in decision.events)
