"""Which broker ids are cleaned from the record because their disk is gone for good. Pure.

An id dies with its volume: a pod that comes back on an empty disk gets a new id (rule 4), and so does the member that
follows a lost claim. The old id stays in the record until as many members as the spec wants are in sync, because as long as it
holds a seat it says that a copy is missing. Without a master it goes earlier if it holds no seat: while it is in the record and
unheard no eligible replica is elected, and no process will ever report under it.

A sidecar may take an id (1013) while the pod's broker lives on under a lower one; so does a broker whose disk comes back later. No
broker uses such an id. It is cleaned when the pod's broker is in the SyncStateSet: the broker lost its seat when the id was taken
(rule 2), so it was heard since. Where an operation names the id, it is cleaned as soon as the pod's broker is heard.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from brokergroup_operator.api.brokergroup_status import Reason
from brokergroup_operator.reconcile import identity
from brokergroup_operator.reconcile.decide.scale_in import named
from brokergroup_operator.reconcile.see.members import taken_in_vain
from brokergroup_operator.reconcile.steps import Step, Verb

if TYPE_CHECKING:
    from collections.abc import Mapping

    from brokergroup_operator.reconcile.identity import Member
    from brokergroup_operator.reconcile.see.members import Membership
    from brokergroup_operator.reconcile.see.observed import Observed
    from brokergroup_operator.reconcile.see.standing import Standing


def dead_ids(seen: Observed, members: Membership) -> list[Member]:
    """Ids that a pod of ours carried and whose disk is gone, lowest first."""
    record = seen.record
    if record is None:
        return []
    superseded = [
        identity.Member(broker_id=broker_id, pod=record.replicas[broker_id].reserved_for)
        for broker_id in record.superseded
    ]
    return sorted([*superseded, *members.volume_lost], key=lambda member: member.broker_id)


def forgetting_step(seen: Observed, members: Membership, standings: Mapping[int, Standing]) -> Step | None:
    """Clean one dead id, once every member that the spec wants is in sync; or when it only keeps an election waiting."""
    if seen.record is None:
        return None
    if (step := _taken_in_vain(seen, standings)) is not None:
        return step
    dead = dead_ids(seen, members)
    in_sync = [standing for standing in standings.values() if standing.in_sync]
    replaced = len(in_sync) >= seen.group.spec.replicas and not members.to_reserve
    for member in dead:
        holds_seat = member.broker_id in seen.record.seats or member.broker_id in seen.record.lost_seats
        in_the_way = seen.record.granted_master_id is None and not holds_seat and bool(seen.record.seats)
        if (replaced or in_the_way) and member.broker_id != seen.record.master_broker_id:
            return Step(
                verb=Verb.FORGET, reason=Reason.REPAIRING_MEMBERS, why="its volume is gone for good", member=member
            )
    return None


def _taken_in_vain(seen: Observed, standings: Mapping[int, Standing]) -> Step | None:
    asked_for = named(seen)
    for broker_id, holder in taken_in_vain(seen.record, identity.name_of(seen.group)).items():
        standing = standings.get(holder.broker_id)
        if standing is not None and (standing.in_sync or (asked_for == broker_id and standing.is_live)):
            return Step(
                verb=Verb.FORGET,
                reason=Reason.REPAIRING_MEMBERS,
                why=f"it was taken in vain: the broker of its pod is {holder.broker_id}",
                member=identity.Member(broker_id=broker_id, pod=holder.pod),
            )
    return None
