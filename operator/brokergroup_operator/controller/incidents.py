"""Changes of master as incidents: when one begins, what ends it, and who is told.

An incident stays open after the change itself until enough members are in sync for a write to be acknowledged again, or until it
is as old as nobody waits any longer for that.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from brokergroup_operator.observe.timeline import FailoverTimeline, Kind, Outcome, Step, Trigger
from controller_core.events import MasterElected

if TYPE_CHECKING:
    from brokergroup_operator.controller.group import Group
    from brokergroup_operator.observe.observer import Observer
    from controller_core.decision import Decision
    from controller_core.model import BrokerGroupRecord

# What a master that says that it is master brings to its end.
_NOT_OVER = frozenset({Outcome.RUNNING, Outcome.INCOMPLETE})


class Incidents:
    """The open incident of one group, if there is one."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._open: FailoverTimeline | None = None

    @property
    def is_open(self) -> bool:
        """Whether one waits for its end."""
        return self._open is not None

    def open(self, timeline: FailoverTimeline) -> None:
        """Keep a timeline open until enough members are in sync again, or ``close`` ends it."""
        self.close()
        self._open = timeline
        if timeline.outcome is Outcome.CANCELLED:
            self.close()

    def close(self, *, older_than_seconds: float = 0.0) -> None:
        """End the open incident as it stands, if it is that old."""
        timeline = self._open
        if timeline is None or time.monotonic() - timeline.steps[Step.DETECTED] < older_than_seconds:
            return
        self._open = None
        if timeline.outcome is Outcome.RUNNING:
            timeline.outcome = Outcome.INCOMPLETE
        self._observer.incident_closed(timeline)

    def role_changed(self, epoch: int) -> None:
        """The new master of this epoch said that it is master."""
        timeline = self._open
        # A master that says so late was given up on by then: its incident counted as incomplete until now.
        if timeline is not None and timeline.outcome in _NOT_OVER and timeline.epoch_after == epoch:
            timeline.reach(Step.ROLE_CHANGED, time.monotonic())
            timeline.outcome = Outcome.COMPLETED
            self._observer.master_changed(timeline)

    def in_sync(self) -> None:
        """A write can be acknowledged again, as far as the set goes."""
        if self._open is not None and Step.ROLE_CHANGED in self._open.steps:
            self._open.reach(Step.IN_SYNC, time.monotonic())
            self.close()


def masterless_timeline(group: Group, record: BrokerGroupRecord) -> FailoverTimeline:
    """The incident of a group that was found without a master, from the time when it had none."""
    lost = record.master_broker_id
    if lost is not None and record.master_process_lost:
        group.crash_loops.master_lost(lost, record.master_epoch, asyncio.get_running_loop().time())
    timeline = new_timeline(group, record, lost, Trigger.MASTERLESS)
    timeline.evidence.append(
        f"a new process of master {lost} registered" if lost is not None else "the group has no master"
    )
    timeline.last_sign_of_life_seconds = group.masterless_since_seconds
    timeline.reach(Step.DETECTED, time.monotonic())
    return timeline


def withdraw(group: Group, timeline: FailoverTimeline, observer: Observer) -> None:
    """End a change of master in which this plane committed nothing: no incident. The plane that did commit tells of the change."""
    timeline.outcome = Outcome.CANCELLED
    group.in_progress = None
    observer.failover_withdrawn(timeline)
    group.changed()


def is_unclean(decision: Decision) -> bool:
    """Whether somebody is elected who may lack what was acknowledged."""
    return any(isinstance(event, MasterElected) and event.unclean for event in decision.events)


def note_election(timeline: FailoverTimeline, decision: Decision) -> None:
    """Who was elected, by a decision that is durable."""
    assert decision.record is not None
    timeline.to_broker_id = decision.record.master_broker_id
    timeline.epoch_after = decision.record.master_epoch
    timeline.unclean = is_unclean(decision)


def new_timeline(group: Group, record: BrokerGroupRecord, master: int | None, trigger: Trigger) -> FailoverTimeline:
    """An incident that begins now."""
    entry = group.table.entry(group.identity(master)) if master is not None else None
    return FailoverTimeline(
        group=group.key,
        cluster_name=record.cluster_name,
        broker_name=record.broker_name,
        kind=Kind.FAILOVER,
        trigger=trigger,
        from_broker_id=master,
        epoch_before=record.master_epoch,
        started_at_unix_seconds=time.time(),
        last_sign_of_life_seconds=entry.last_seen_seconds if entry is not None else None,
        facts=group.binding.member_facts.get(master or 0, {}),
    )
