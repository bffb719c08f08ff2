"""Changes of master as incidents: when one begins, what ends it, and which plane reports it.

A timeline is created when a change begins, is found or is taken over. Its incident stays open until enough members are in sync
to acknowledge a write and what is watched of the recovery (`upkeep/recovery_watch.py`) was seen or given up, or until its age
limit. Its change stays in the record until then: the plane that goes on with the change, or supersedes it, reports the incident
under the same id. It may be reported twice; readers of the logs merge by id.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import time
from typing import TYPE_CHECKING

import structlog

from brokergroup_operator.observe.timeline import Cause, FailoverTimeline, Kind, Outcome, Step, Trigger
from controller_core.change import MOVES_A_LIVING_MASTER
from controller_core.events import ChangeWritten, MasterElected
from controller_core.plan import ChangeKind

if TYPE_CHECKING:
    from brokergroup_operator.controller.directory.group_directory import GroupBinding
    from brokergroup_operator.controller.group.group import Group
    from brokergroup_operator.controller.group.own_changes import OwnChanges
    from brokergroup_operator.controller.settings import PlaneSettings
    from brokergroup_operator.observe.observer import Observer
    from controller_core.decision import Decision
    from controller_core.model import BrokerGroupRecord
    from controller_core.plan import Change

log = structlog.get_logger(__name__)

# Outcomes that a late confirmation by the new master turns into COMPLETED.
_OPEN_OUTCOMES = frozenset({Outcome.RUNNING, Outcome.INCOMPLETE})


# The timelines: created, noted, ended.


def masterless_timeline(group: Group, record: BrokerGroupRecord) -> FailoverTimeline:
    """Return the incident of a group that was found without a master, from the time when it had none."""
    lost = record.master_broker_id
    if lost is not None and record.master_process_lost:
        group.crash_loops.master_lost(lost, record.master_epoch, asyncio.get_running_loop().time())
    evidence = f"a new process of master {lost} registered" if lost is not None else "the group has no master"
    timeline = new_timeline(group, record, lost, Trigger.MASTERLESS, evidence)
    timeline.last_sign_of_life_seconds = group.changes.masterless_since_seconds
    return timeline


def withdraw(group: Group, timeline: FailoverTimeline, why: str) -> None:
    """End a change of master in which this plane committed nothing: no incident. The plane that did commit reports the change."""
    timeline.outcome = Outcome.CANCELLED
    log.info(f"{timeline.kind.value} withdrawn", group=str(group.key), why=why, evidence=timeline.evidence)
    group.changes.begins(None)
    group.incidents.observer.failover_withdrawn(timeline)
    group.changed()


def finish(group: Group, timeline: FailoverTimeline, outcome: Outcome | None = None) -> None:
    """End a change of master of this plane. Without `outcome`, by whether the new master has confirmed its role."""
    told = Outcome.COMPLETED if Step.ROLE_CHANGED in timeline.steps else Outcome.INCOMPLETE
    timeline.outcome = told if outcome is None else outcome
    group.changes.ended(timeline)
    group.open_incident(timeline)
    log.info(
        f"{timeline.kind.value} ended",
        group=str(group.key),
        outcome=timeline.outcome.value,
        trigger=timeline.trigger.value,
        steps=timeline.milliseconds(),
        to=timeline.to_broker_id,
        epoch=timeline.epoch_after,
    )
    group.incidents.observer.master_changed(timeline)
    group.changed()


def timeline_of(group: Group, change: Change) -> FailoverTimeline:
    """Return the incident of a change that another plane began, as far as the plan shows it."""
    timeline = FailoverTimeline(
        group=group.key,
        cluster_name=group.binding.cluster_name,
        broker_name=group.binding.broker_name,
        kind=Kind.SWITCHOVER if change.kind in MOVES_A_LIVING_MASTER else Kind.FAILOVER,
        trigger=_trigger(change),
        from_broker_id=change.from_broker_id,
        epoch_before=change.before.master_epoch if change.before is not None else 0,
        started_at_unix_seconds=_unix_seconds(change.started_at),
        change_id=change.id,
        evidence=[f"taken over from {change.carried_out_by}", *([change.cause] if change.cause else [])],
        unfenced=change.unfenced,
        facts=group.binding.member_facts.get(change.from_broker_id or 0, {}),
    )
    timeline.to_broker_id, timeline.epoch_after = change.to_broker_id, change.epoch
    if change.cause in set(Cause):
        timeline.planned_cause = Cause(change.cause)
    age_seconds = max(0.0, time.time() - timeline.started_at_unix_seconds)
    timeline.reach(Step.DETECTED, time.monotonic() - age_seconds)
    return timeline


def _trigger(change: Change) -> Trigger:
    if change.kind in MOVES_A_LIVING_MASTER or change.kind is ChangeKind.ELECT:
        return Trigger.REQUESTED
    return Trigger(change.cause) if change.cause in set(Trigger) else Trigger.MASTERLESS


def _unix_seconds(text: str) -> float:
    try:
        return dt.datetime.fromisoformat(text).timestamp()
    except ValueError:
        return time.time()


def note_election(group: Group, timeline: FailoverTimeline, decision: Decision) -> None:
    assert decision.record is not None
    timeline.to_broker_id = decision.record.master_broker_id
    timeline.epoch_after = decision.record.master_epoch
    timeline.change_id = decision.record.change_id
    timeline.unclean = is_unclean(decision)
    group.incidents.observer.master_committed(timeline)


def trigger_now(group: Group, trigger: Trigger) -> Trigger:
    """Return the trigger of a change of master: the master of a waking group was not lost."""
    return Trigger.WOKEN if group.waking.wakes and trigger is not Trigger.REQUESTED else trigger


def new_timeline(
    group: Group, record: BrokerGroupRecord, master: int | None, trigger: Trigger, *evidence: str
) -> FailoverTimeline:
    """Return an incident that begins now.

    The last sign of life of a waking group's master does not count: it ended on purpose.
    """
    trigger = trigger_now(group, trigger)
    was_lost = trigger is not Trigger.WOKEN
    entry = group.table.entry(master) if master is not None and was_lost else None
    return FailoverTimeline(
        group=group.key,
        cluster_name=record.cluster_name,
        broker_name=record.broker_name,
        kind=Kind.FAILOVER,
        trigger=trigger,
        from_broker_id=master,
        epoch_before=record.master_epoch,
        started_at_unix_seconds=time.time(),
        evidence=list(evidence),
        last_sign_of_life_seconds=entry.last_seen_seconds if entry is not None else None,
        facts=group.binding.member_facts.get(master or 0, {}),
        steps={Step.DETECTED: time.monotonic()},
    )


# The open incident of a group.


class Incidents:
    """The open incident of one group, if there is one."""

    def __init__(self, observer: Observer) -> None:
        self.observer = observer
        self._open: FailoverTimeline | None = None
        self._awaited: frozenset[Step] = frozenset()
        self._told_of: int | None = None
        # Changes of other planes that this one has superseded, and whose incidents it must report (takeover.py).
        self.superseded: list[Change] = []

    @property
    def recovering(self) -> tuple[FailoverTimeline, frozenset[Step]] | None:
        """The open incident whose new master has confirmed its role, and the steps still awaited; None if there is no such."""
        if self._open is None or Step.ROLE_CHANGED not in self._open.steps or not self._awaited:
            return None
        return self._open, self._awaited

    @property
    def is_open(self) -> bool:
        return self._open is not None

    def has(self, change_id: int) -> bool:
        """Whether this plane reports that change, or has just reported it."""
        return change_id in (self._told_of, self._open.change_id if self._open is not None else None)

    def open(self, timeline: FailoverTimeline, *, awaited: frozenset[Step] = frozenset()) -> None:
        """Keep a timeline open until enough members are in sync again and the awaited steps were seen, or ``close`` ends it."""
        self.close()
        self._open, self._awaited = timeline, awaited
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
        self.observer.incident_closed(timeline)

    def moved_by_another(self, was: BrokerGroupRecord | None, now: BrokerGroupRecord | None) -> None:
        """Another plane wrote the record. If it took the change over, it reports the incident, and this plane does not.

        If it superseded the change it may die before it reports, or leave that to this plane. So this plane reports as well.
        """
        timeline, before = self._open, was.change if was is not None else None
        if timeline is None or now is None:
            return
        if before is not None and before.id == timeline.change_id and before.goes_on_in(now.change):
            if now.change is not None and now.change.carried_out_by != before.carried_out_by:
                self._open = None
                self.observer.failover_withdrawn(timeline)
            return
        if _is_elected_after(timeline, now):
            self.close()

    def role_changed(self, epoch: int) -> None:
        """The new master of this epoch confirmed its role."""
        timeline = self._open
        # A master that says so late was given up on by then: its incident counted as incomplete until now.
        if timeline is not None and timeline.outcome in _OPEN_OUTCOMES and timeline.epoch_after == epoch:
            timeline.reach(Step.ROLE_CHANGED, time.monotonic())
            timeline.outcome = Outcome.COMPLETED
            self.observer.master_changed(timeline)

    def in_sync(self) -> None:
        """A write can be acknowledged again, as far as the set goes."""
        if self._open is not None and Step.ROLE_CHANGED in self._open.steps:
            self._open.reach(Step.IN_SYNC, time.monotonic())
            self._close_if_recovered()

    def saw(self, timeline: FailoverTimeline, step: Step, at_seconds: float) -> None:
        """An awaited step was seen at that time of the monotonic clock."""
        if self._open is timeline and step in self._awaited:
            timeline.reach(step, at_seconds)
            self.await_no_longer(timeline, step)

    def await_no_longer(self, timeline: FailoverTimeline, *steps: Step) -> None:
        """Do not wait for these steps any more, seen or not."""
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
    if not settings.recovery_watch_seconds:
        return frozenset()
    awaited = {Step.INDEX_CAUGHT_UP}
    if binding.name_servers:
        awaited.add(Step.ROUTE_VISIBLE)
    if binding.canary:
        awaited.add(Step.FIRST_ACK)
    return frozenset(awaited)


def is_left_untold(was: Change | None, decision: Decision, changes: OwnChanges, incidents: Incidents) -> bool:
    """Whether a decision of this plane has superseded another plane's change: this plane then reports its incident."""
    now = decision.record.change if decision.record is not None else None
    return (
        was is not None
        and has_incident(was)
        and not was.goes_on_in(now)
        and not any(isinstance(event, ChangeWritten) and event.change is None for event in decision.events)
        and was.key not in changes.carried_out
        and not incidents.has(was.id)
    )


def has_incident(change: Change) -> bool:
    """Whether the change is one: not a first election, a cure, or a change that was given up."""
    replaces = change.before is not None and change.before.master_epoch > 0
    return replaces and change.is_decided and change.kind is not ChangeKind.CURE


def is_unclean(decision: Decision) -> bool:
    """Whether the elected member may lack what was acknowledged."""
    return any(isinstance(event, MasterElected) and event.unclean for event in decision.events)
