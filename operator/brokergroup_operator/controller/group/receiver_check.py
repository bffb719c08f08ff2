"""Where a member is dialled, and whether an address may still be used for it: asked before a broker there is told anything
(safety rule 8).

Before a broker is *told* anything (1008, 906, 25) it must be the one that is meant. That is proven by its own channel: its
heartbeats come, on an open connection, from the very host of that address. Where the host cannot be the same (an address
that is translated, a Service) the broker is asked whose it is (26), and its word is good for ``PROOF_SECONDS``, on that
connection, as long as the same pod is behind the address: a Service that is made again gives no sign of it here. An address
that the API has given to another pod, or that another pod is known by, proves the contrary, whatever the record says.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from brokergroup_operator.controller.directory.places import own_address, pod_ip_behind
from brokergroup_operator.controller.group.addresses import Proof
from brokergroup_operator.observe.group_view import AddressSource
from rocketmq_remoting.address import host_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from brokergroup_operator.controller.directory.group_directory import GroupDirectory
    from brokergroup_operator.controller.group.group import Group
    from brokergroup_operator.controller.group.groups import Groups

PROOF_SECONDS: Final = 10.0


class Whereabouts:
    """Called with the address by which a broker is known: where to dial it. That is the same address, but for one case.

    A process whose pod was removed by force is dialled at the pod's own address, for its Service leads elsewhere. Only a living
    member, on the open connection of its heartbeats, is dialled so: from that host the process of this member speaks, and no other
    one (safety rule 8). As soon as it is silent, or the next process of the member has registered, the known address counts again.
    """

    def __init__(self, groups: Groups) -> None:
        self._groups = groups

    def __call__(self, address: str) -> str:
        """Where to dial."""
        found = _member_at(self._groups, address)
        return address if found is None else (_own_address_of_living(*found, address) or address)


class ReceiverCheck:
    """Called with an address before a broker there is told anything; says why not, or None."""

    def __init__(self, groups: Groups, directory: GroupDirectory) -> None:
        self._groups = groups
        self._directory = directory

    async def __call__(self, address: str, ask: Callable[[], Awaitable[dict[str, str]]]) -> str | None:
        """Whether the broker at this address is the member that the record has there. `ask` asks it for its configuration."""
        found = _member_at(self._groups, address)
        if found is None:
            return None  # no member: nothing is known that could be wrong
        group, broker_id = found
        own = _own_address_of_living(group, broker_id, address)
        host = host_of(own or address)
        if own is None and (owner := self._other_pod(group, broker_id, address)) is not None:
            return f"{address} belongs to pod {owner} now, not to broker {broker_id} of {group.key}"
        entry = group.table.entry(group.identity(broker_id))
        if entry is None or (connection_id := entry.connection_id) is None:
            return _other_than(group, broker_id, address, await ask())
        if group.addresses.channel_hosts.get(broker_id) == host:
            return None
        now_seconds = asyncio.get_running_loop().time()
        proof = Proof(address, connection_id, pod_ip_behind(group.binding, address))
        before, proven_seconds = group.addresses.proven.get(broker_id, (None, 0.0))
        if before == proof and now_seconds - proven_seconds < PROOF_SECONDS:
            return None
        if (why := _other_than(group, broker_id, address, await ask())) is None:
            group.addresses.proven[broker_id] = (proof, now_seconds)
        return why

    def _other_pod(self, group: Group, broker_id: int, address: str) -> str | None:
        """The pod that has this address, if the member has a pod and it is another one that is elsewhere."""
        replica = group.record.replicas.get(broker_id) if group.record is not None else None
        if replica is None or not replica.reserved_for:
            return None
        own, host = (group.key, replica.reserved_for), host_of(address)
        known = self._directory.pods_known_by(address)
        if known:  # where both are known by it, they are asked
            return None if own in known else next(f"{key.namespace}/{pod}" for key, pod in sorted(known, key=str))
        owner = self._directory.known_peer(host)
        if owner is None or (owner.group, owner.pod_name) == own:
            return None
        if self._directory.pod_hosts(group.key).get(replica.reserved_for) == host:
            return None  # both are there: the pods of a node share its address
        return f"{owner.namespace}/{owner.pod_name}"


def _member_at(groups: Groups, address: str) -> tuple[Group, int] | None:
    """The member that the records have there; of several groups that believe so, the one whose member is alive."""
    return max(groups.members_at(address), key=lambda one: one[0].is_live(one[1]), default=None)


def _own_address_of_living(group: Group, broker_id: int, address: str) -> str | None:
    """Where the member's process listens, if it lives and its pod was removed by force."""
    entry = group.table.entry(group.identity(broker_id))
    if not group.binding.removed_places or entry is None or entry.connection_id is None or not group.is_live(broker_id):
        return None
    return own_address(group.binding, address, group.addresses.channel_hosts.get(broker_id, ""))


def _other_than(group: Group, broker_id: int, address: str, said: Mapping[str, str]) -> str | None:
    """Why the broker that says this of itself is not the member.

    Of a pod's broker we wrote the cluster's name, and the id is the controller's; a master says 0.
    """
    if (name := said.get("brokerName")) != group.binding.broker_name:
        return f"{address} says that it is {name!r}, not broker {broker_id} of {group.binding.broker_name!r}"
    record = group.record
    replica = record.replicas.get(broker_id) if record is not None else None
    if record is None or replica is None or not replica.reserved_for:
        return None
    if (cluster := said.get("brokerClusterName", record.cluster_name)) != record.cluster_name:
        return f"{address} says that it is of cluster {cluster!r}, not of {record.cluster_name!r}"
    own = said.get("brokerId", "")
    if own.isascii() and own.isdecimal() and int(own) not in (0, broker_id):
        return f"{address} says that it is broker {own}, not broker {broker_id} of {group.binding.broker_name!r}"
    return None


def note_pods(group: Group, directory: GroupDirectory) -> None:
    """Take down where the pod watch says that the members are."""
    record, now_seconds = group.record, asyncio.get_running_loop().time()
    if record is None:
        return
    hosts = directory.pod_hosts(group.key)
    for broker_id, replica in record.replicas.items():
        if replica.reserved_for:
            group.addresses.note(broker_id, AddressSource.POD, hosts.get(replica.reserved_for, ""), now_seconds)
