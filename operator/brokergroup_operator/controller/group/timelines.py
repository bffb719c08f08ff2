"""The timelines of changes of master: begun and ended. Then `Incidents` keeps them."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import structlog

from brokergroup_operator.controller.group.changes import is_unclean
from brokergroup_operator.observe.timeline import FailoverTimeline, Kind, Outcome, Step, Trigger

if TYPE_CHECKING:
    from brokergroup_operator.controller.group.group import Group
    from controller_core.decision import Decision
    from controller_core.model import BrokerGroupRecord

log = structlog.get_logger(__name__)


def new_timeline(
    group: Group, record: BrokerGroupRecord, master: int | None, trigger: Trigger, *evidence: str
) -> FailoverTimeline:
    trigger = trigger_now(group, trigger)
    # Of a waking group's master the last sign of life does not count: it ended on purpose.
    entry = group.table.entry(master) if master is not None and trigger is not Trigger.WOKEN else None
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


def trigger_now(group: Group, trigger: Trigger) -> Trigger:
    """Return the trigger of a change of master: the master of a waking group was not lost."""
    return Trigger.WOKEN if group.waking.wakes and trigger is not Trigger.REQUESTED else trigger


def masterless_timeline(group: Group, record: BrokerGroupRecord) -> FailoverTimeline:
    """Return the incident of a group that was found without a master, from the time when it had none."""
    lost = record.master_broker_id
    if lost is not None and record.master_process_lost:
        group.crash_loops.master_lost(lost, record.master_epoch, asyncio.get_running_loop().time())
    evidence = f"a new process of master {lost} registered" if lost is not None else "the group has no master"
    timeline = new_timeline(group, record, lost, Trigger.MASTERLESS, evidence)
    timeline.last_sign_of_life_seconds = group.incidents.masterless_since_seconds
    return timeline


def note_election(group: Group, timeline: FailoverTimeline, decision: Decision) -> None:
    """Note the master that a durable decision has elected, and notify observers."""
    assert decision.record is not None
    timeline.to_broker_id = decision.record.master_broker_id
    timeline.epoch_after = decision.record.master_epoch
    timeline.change_id = decision.record.change_id
    timeline.unclean = is_unclean(decision)
    group.observer.master_committed(timeline)


def withdraw(group: Group, timeline: FailoverTimeline, why: str) -> None:
    """End a change of master in which this plane committed nothing: no incident. The plane that did commit reports the change."""
    timeline.outcome = Outcome.CANCELLED
    log.info(f"{timeline.kind.value} withdrawn", group=str(group.key), why=why, evidence=timeline.evidence)
    group.incidents.ends(timeline)
    group.observer.failover_withdrawn(timeline)
    group.changed()


def finish(group: Group, timeline: FailoverTimeline, outcome: Outcome | None = None) -> None:
    """End a change of master of this plane. Without `outcome`, by whether the new master has confirmed its role."""
    timeline.outcome = outcome or timeline.told_outcome
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
    group.observer.master_changed(timeline)
    group.changed()
