"""Which members are pods: spoken for by those pods alone, and forgotten by nobody (safety rule 8, ``authorization.py``)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from brokergroup_operator.controller.access.authorization import NotPermittedError
from brokergroup_operator.controller.directory.places import advertises
from controller_core.step import step
from rocketmq_remoting.address import host_of

if TYPE_CHECKING:
    from brokergroup_operator.controller.access.authorization import Caller
    from brokergroup_operator.controller.group.group import Group
    from controller_core.requests import RegisterBroker, Request


def pod_of(group: Group, broker_id: int | None) -> str:
    """The pod for which the record keeps this member's id; empty where it is kept for none."""
    replica = group.record.replicas.get(broker_id) if group.record is not None and broker_id is not None else None
    return (replica.reserved_for or "") if replica is not None else ""


def belongs_to_a_pod(group: Group, broker_id: int | None) -> bool:
    """Whether the record keeps this member's id for a pod."""
    return bool(pod_of(group, broker_id))


def refuse_elsewhere(caller: Caller, group: Group, wanted: RegisterBroker) -> None:
    """A member that belongs to a pod is where that pod is, or where the pod is known to be; behind NAT nobody can tell."""
    address = wanted.broker_address
    if caller.peer is None or not address or not belongs_to_a_pod(group, wanted.broker_id):
        return
    if host_of(address) != caller.host and not advertises(group.binding, caller.peer.pod_name, address):
        raise NotPermittedError(f"{caller} is at {caller.host}, not at {address}")


def refuse_to_forget_pods(group: Group, wanted: Request) -> None:
    """1011 forgets a living group as a whole if it says so: not one whose members are pods, not even for an administrator.

    Whoever may decide over those has the BrokerGroup for it, which would make them again. A pod's replica that is neither alive
    nor holds a seat may be forgotten.
    """
    record = group.record
    if record is None:
        return
    after = step(record, wanted, group.live(), group.binding.settings).record
    forgotten = [one for one in record.replicas if after is None or after.claimed_replica(one) is None]
    needed = sorted(
        one
        for one in forgotten
        if record.claimed_replica(one) is not None
        and belongs_to_a_pod(group, one)
        and (group.is_live(one) or one in record.seats)
    )
    if needed:
        raise NotPermittedError(
            f"brokers {needed} of group {group.key} are pods, alive or with a seat: their BrokerGroup rules them"
        )
