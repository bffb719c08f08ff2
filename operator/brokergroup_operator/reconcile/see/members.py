"""Which broker ids a group's pods carry, read from the record: the record is the truth, pods and claims follow it.

An id belongs to a pod because it was reserved for that pod's name, `<group>-<brokerId>`, before the pod was created; so a
restart between reservation and creation finds the reservation and hands out no second id. A pod whose disk was wiped comes
back for a new id (rule 4) and keeps its name: the highest id that was registered for it is the one it carries. An id that was
only taken (1013) is no proof of a new disk: whatever runs in the pod can ask for one. Other replicas (brokers from elsewhere that
registered under our brokerName) are not ours to create or delete.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from brokergroup_operator.api import names
from brokergroup_operator.reconcile import identity
from brokergroup_operator.reconcile.identity import Member
from controller_core.events import ADOPTED

if TYPE_CHECKING:
    from brokergroup_operator.reconcile.see.observed import Observed
    from controller_core.model import BrokerGroupRecord, Replica


@dataclass(frozen=True, kw_only=True)
class Membership:
    """The members there are, those whose volume is gone, and the ids to reserve for new ones."""

    members: tuple[Member, ...] = ()
    volume_lost: tuple[Member, ...] = ()
    to_reserve: tuple[Member, ...] = ()


def membership(observed: Observed) -> Membership:
    group = identity.name_of(observed.group)
    ours: list[Member] = []
    lost: list[Member] = []
    for pod, replica in latest_by_pod(observed.record, group).items():
        member = Member(broker_id=replica.broker_id, pod=pod)
        # A registered id without a volume and without a pod: its log is gone. A new volume gets a new id (rule 4).
        gone = replica.registered and not _is_whole(observed, pod) and pod not in observed.pods
        (lost if gone else ours).append(member)
    ours.sort(key=lambda member: member.broker_id)
    wanted = observed.group.spec.replicas
    return Membership(
        members=tuple(ours),
        volume_lost=tuple(lost),
        to_reserve=_ids_to_reserve(observed, group, wanted - len(ours) - len(_to_be_adopted(observed, group))),
    )


def _is_whole(seen: Observed, pod: str) -> bool:
    needed = identity.claim_names(seen.group, pod)
    return bool(needed) and seen.claims.keys() >= set(needed)


def is_broken(seen: Observed, member: Member) -> bool:
    """Whether one of two volumes is gone and the other is not to be joined to a new one.

    The id lies on the store's volume, the messages on the commit log's: an empty log would come back under an id that by the record
    has every message. A lone volume takes the id with it.
    """
    replica = seen.record.replicas.get(member.broker_id) if seen.record else None
    has_two = seen.group.spec.storage.commit_log is not None
    return replica is not None and replica.registered and has_two and not _is_whole(seen, member.pod)


def latest_by_pod(record: BrokerGroupRecord | None, group: str) -> dict[str, Replica]:
    """The id that each pod of the group carries: the highest with which its broker registered, else that was reserved for it."""
    carried: dict[str, Replica] = {}
    for _, replica in sorted((record.replicas if record else {}).items()):
        pod = replica.reserved_for
        if names.broker_id_of_pod_name(group, pod) is None:
            continue
        if replica.registered or pod not in carried or not carried[pod].registered:
            carried[pod] = replica
    return carried


def taken_in_vain(record: BrokerGroupRecord | None, group: str) -> dict[int, Member]:
    """Ids that something in a pod took (1013) above the one with which the pod's broker registered, each with that pod's member."""
    carried = latest_by_pod(record, group)
    return {
        broker_id: Member(broker_id=holder.broker_id, pod=replica.reserved_for)
        for broker_id, replica in (record.replicas if record else {}).items()
        if (holder := carried.get(replica.reserved_for)) is not None and broker_id > holder.broker_id
    }


def _to_be_adopted(observed: Observed, group: str) -> list[str]:
    """Pods that run under ids which the record does not know: it was lost, and their brokers bring the ids back."""
    known = latest_by_pod(observed.record, group)
    return [
        name
        for name, pod in observed.pods.items()
        if name not in known
        and "deletionTimestamp" not in pod["metadata"]
        and (broker_id := names.broker_id_of_pod_name(group, name)) is not None
        and _may_be_adopted(observed, broker_id)
    ]


def _may_be_adopted(observed: Observed, broker_id: int) -> bool:
    """An id below the next one was cleaned on purpose, unless the record was made again from its brokers, in any order."""
    record = observed.record
    if record is None or broker_id >= record.next_broker_id:
        return True
    replicas = record.replicas.values()
    return any(one.broker_id > broker_id and one.register_check_code.endswith(f";{ADOPTED}") for one in replicas)


def _ids_to_reserve(observed: Observed, group: str, count: int) -> tuple[Member, ...]:
    """The next ids. Should another broker be faster, the reservation is refused and the next pass asks for higher ones."""
    first = observed.record.next_broker_id if observed.record else 1
    return tuple(
        Member(broker_id=broker_id, pod=names.pod_name(group, broker_id)) for broker_id in range(first, first + count)
    )
