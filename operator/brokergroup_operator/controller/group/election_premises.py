"""Questions about a group and its record before an election. Nothing here waits or writes."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

from controller_core.decision import ControllerCode
from controller_core.holdings import epoch_seen_above
from controller_core.step import step
from rocketmq_remoting.address import host_of

if TYPE_CHECKING:
    from brokergroup_operator.controller.group.group import Group
    from brokergroup_operator.controller.settings import PlaneSettings
    from controller_core.model import BrokerGroupRecord
    from controller_core.requests import ElectMaster


def silence_seconds(group: Group, settings: PlaneSettings) -> float:
    return group.binding.heartbeat_timeout_seconds or settings.heartbeat_timeout_seconds


def could_have_been_heard(group: Group, settings: PlaneSettings) -> bool:
    """Whether this plane has known the group for long enough to have heard every living member."""
    met_for_seconds = asyncio.get_running_loop().time() - group.met_seconds
    return met_for_seconds >= silence_seconds(group, settings) + settings.broker_rescan_seconds


def unheard_members(group: Group, settings: PlaneSettings) -> frozenset[int]:
    """Return the registered members that this plane has not heard yet, while it may be too new to have heard them."""
    record, heard = group.record, group.table.entries()
    if record is None or could_have_been_heard(group, settings):
        return frozenset()
    return frozenset(one.broker_id for one in record.replicas.values() if one.registered and one.broker_id not in heard)


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
