"""Brokers whose id or address the record does not know, taken in by the core's rules.

A Java broker with an identity file does not apply for an id again, and registers (1003) only when it starts. After the record
was lost or restored from an older copy, a running broker heartbeats under an unknown id, or from an address that the record has
forgotten. An unknown id is proposed as `AdoptBroker` (`ControllerSettings.adoption`); another address as `RegisterBroker`, if
the pod that the id is kept for reports it twice and it is not the granted master, whose registration would mean a new process.
A refusal is remembered for a while, so that not every heartbeat reads the store.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog

from brokergroup_operator.controller.group.group import PremiseGoneError
from brokergroup_operator.controller.peers.services import Part
from brokergroup_operator.records.store import RecordStoreError
from controller_core.decision import ControllerCode
from controller_core.requests import AdoptBroker, RegisterBroker

if TYPE_CHECKING:
    from brokergroup_operator.controller.group.group import Group
    from controller_core.model import BrokerGroupRecord

# A heartbeat of the last process may come after the registration of the next; two may not.
BEATS_TO_MOVE = 2

log = structlog.get_logger(__name__)


class AdoptionDesk(Part):
    """Proposes unknown brokers to the core, for all groups."""

    def heard(self, group: Group, broker_id: int, address: str, requester: str | None) -> None:
        """A heartbeat came. Cheap if all is known."""
        if not group.loaded or not address:
            return
        replica = group.record.claimed_replica(broker_id) if group.record is not None else None
        request: AdoptBroker | RegisterBroker
        if replica is None:
            request = _adoption(group, broker_id, address, requester)
        elif moved_to(group, broker_id) is not None and broker_id != group.granted_master_id:
            group.members.moved_beats[broker_id] = group.members.moved_beats.get(broker_id, 0) + 1
            if group.members.moved_beats[broker_id] < BEATS_TO_MOVE:
                return
            request = _relocation(group, broker_id, address)
        else:
            group.members.moved_beats.pop(broker_id, None)
            return
        now_seconds = asyncio.get_running_loop().time()
        if now_seconds >= group.members.not_proposed_until_seconds.get(broker_id, 0.0):
            group.members.not_proposed_until_seconds[broker_id] = now_seconds + self._settings.adoption_pause_seconds
            self._tasks.start(self._propose(group, broker_id, request), f"rmq:adopt {group.key}")

    async def _propose(self, group: Group, broker_id: int, request: AdoptBroker | RegisterBroker) -> None:
        try:
            decision = await group.decide(
                request, premise=lambda now: now is None or now.granted_master_id != broker_id
            )
        except (RecordStoreError, PremiseGoneError) as error:
            log.warning("broker not taken in yet", group=str(group.key), broker_id=broker_id, error=str(error))
            return
        if decision.code != ControllerCode.SUCCESS:
            log.warning("unknown broker not adopted", group=str(group.key), broker_id=broker_id, why=decision.why)


def moved_to(group: Group, broker_id: int) -> str | None:
    """Return where the member's own pod says it is, if the record says otherwise."""
    record, told = group.record, group.members.whereabouts.get(broker_id)
    replica = record.claimed_replica(broker_id) if record is not None else None
    return told if replica is not None and replica.reserved_for and told != replica.address else None


async def follow_the_moved(group: Group) -> None:
    """Write down where the living members are, before an election on a record that may be outdated."""
    for broker_id in sorted(group.live()):
        address = moved_to(group, broker_id)
        if address is not None and broker_id != group.granted_master_id:
            await group.decide(_relocation(group, broker_id, address), premise=_has_no_master)


def _has_no_master(now: BrokerGroupRecord | None) -> bool:
    return now is not None and now.granted_master_id is None


def _adoption(group: Group, broker_id: int, address: str, requester: str | None) -> AdoptBroker:
    return AdoptBroker(
        cluster_name=group.binding.cluster_name,
        broker_name=group.binding.broker_name,
        broker_id=broker_id,
        broker_address=address,
        requester=requester,
    )


def _relocation(group: Group, broker_id: int, address: str) -> RegisterBroker:
    replica = group.record.replicas.get(broker_id) if group.record is not None else None
    return RegisterBroker(
        cluster_name=group.binding.cluster_name,
        broker_name=group.binding.broker_name,
        broker_id=broker_id,
        broker_address=address,
        requester=replica.reserved_for if replica is not None else None,
    )
