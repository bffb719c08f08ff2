"""What the changes of master of a group have in common: the questions before an election, and the timelines that they keep.

The questions neither wait nor write.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import structlog

from brokergroup_operator.controller.group.changes import is_unclean
from brokergroup_operator.observe.timeline import FailoverTimeline, Kind, Outcome, Step, Trigger
from controller_core.decision import ControllerCode, Decision
from controller_core.holdings import epoch_seen_above
from controller_core.step import step
from rocketmq_remoting.address import host_of

if TYPE_CHECKING:
    from brokergroup_operator.controller.group.group import Group
    from controller_core.model import BrokerGroupRecord
    from controller_core.requests import ElectMaster

log = structlog.get_logger(__name__)


def process_lost(group: Group, master: int) -> bool:
    """Whether this master's process is gone: a new one registered under its id."""
    record = group.record
    return record is not None and record.master_broker_id == master and record.master_process_lost


def members_leaving(group: Group) -> frozenset[int]:
    """Return the members whose pods are being deleted."""
    return _members_at(group, group.binding.leaving_hosts) | members_removed(group)


def members_removed(group: Group) -> frozenset[int]:
    """Return those whose pods were removed by force. Where a Service is the address, the host of the heartbeats tells."""
    record, hosts, heard_from = group.record, group.binding.removed_hosts, group.addresses.channel_hosts
    if record is None or not group.binding.translated:
        return _members_at(group, hosts)
    return frozenset(one for one in record.replicas if heard_from.get(one) in hosts)


def _members_at(group: Group, hosts: frozenset[str]) -> frozenset[int]:
    record = group.record
    if record is None or not hosts:
        return frozenset()
    found = {one: record.address_of(one) or "" for one in record.replicas}
    return frozenset(one for one, address in found.items() if {address, host_of(address)} & hosts)


def but_the_unsteady(group: Group, wanted: ElectMaster) -> ElectMaster:
    """Return the request, passing over members that crash again and again or are about to go, if another can lead."""
    if wanted.designate_elect:
        return wanted
    penalised, leaving = group.crash_loops.penalised(asyncio.get_running_loop().time()), members_leaving(group)
    for unsteady in (penalised | leaving, leaving, penalised):
        others = replace(wanted, passed_over=wanted.passed_over | unsteady)
        if unsteady and step(group.record, others, group.live(), group.binding.settings).code == ControllerCode.SUCCESS:
            return others
    return wanted


def may_be_too_early(group: Group, record: BrokerGroupRecord, wanted: ElectMaster) -> bool:
    """Whether a member asks for itself, and none can be elected on what was heard so far."""
    if wanted.designate_elect or record.claimed_replica(wanted.broker_id) is None:
        return False
    return step(record, wanted, group.live(), group.binding.settings).code != ControllerCode.SUCCESS


def may_have_acting_masters(group: Group, record: BrokerGroupRecord) -> bool:
    """Whether living brokers may act as masters although the record names none: it went back in time, or one was deposed."""
    return group.recovery.deposed_in_office or (record.is_first_election and record.master_epoch > 0)


def replaces_no_master(group: Group, wanted: ElectMaster, now: BrokerGroupRecord | None) -> bool:
    """Whether a caller's ElectMaster, decided on this record now, replaces no granted master."""
    if now is not None and group.holdings.epoch_jump is None and epoch_seen_above(now, group.live()) is not None:
        return False  # the record went back in time: first find the acting master
    master = now.granted_master_id if now is not None else None
    if master is None:
        return True
    if not group.is_live(master):
        return False
    designated = wanted.designate_elect and wanted.broker_id not in (None, -1, master)
    return not designated or step(now, wanted, group.live(), group.binding.settings).code != ControllerCode.SUCCESS


def is_outdated(group: Group, record: BrokerGroupRecord) -> bool:
    """Whether the group has moved on to another epoch than this record's."""
    current = group.record
    return current is None or current.master_epoch != record.master_epoch


def live_members(group: Group, record: BrokerGroupRecord) -> list[int]:
    """Return the members that are alive and where the record says they are (safety rule 8)."""
    live = group.live().items()
    return [one for one, heard in live if (at := record.address_of(one)) is not None and heard.address in ("", at)]


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
