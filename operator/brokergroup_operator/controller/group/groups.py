"""Every group that the directory has declared or a broker has named to this plane, and which member is at an address."""

from __future__ import annotations

import asyncio
from functools import partial
from heapq import heappop, heappush
from itertools import count
from typing import TYPE_CHECKING, Final

from brokergroup_operator.controller.directory.pods import Peer, Table
from brokergroup_operator.controller.group.group import Group
from rocketmq_remoting.address import host_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping

    from brokergroup_operator.controller.directory.group_directory import GroupBinding, GroupDirectory
    from brokergroup_operator.controller.settings import PlaneSettings
    from brokergroup_operator.observe.observer import Observer
    from brokergroup_operator.records.store import GroupKey, RecordStore
    from controller_core.model import BrokerGroupRecord
    from rocketmq_remoting.signature import Credentials

PROOF_SECONDS: Final = 10.0


class Groups:
    """The registry. Groups may be met while it is iterated."""

    def __init__(
        self,
        *,
        store: RecordStore,
        directory: GroupDirectory,
        settings: PlaneSettings,
        observer: Observer,
        on_change: Callable[[Group], None],
    ) -> None:
        self._directory, self._on_change = directory, on_change
        self._due = DueGroups()
        self._new_group = partial(
            Group, store=store, settings=settings, observer=observer, on_change=self._changed, on_wake=self._due.add
        )
        # The members that the records have at each address; and the record by which each group's stand there.
        self._members_at: Table[str, tuple[Group, int], None] = Table()
        self._indexed: dict[GroupKey, BrokerGroupRecord] = {}
        self._groups: dict[GroupKey, Group] = {}
        self._met_revision = -1
        directory.on_given_way.append(self._forget)

    def __iter__(self) -> Iterator[Group]:
        return iter(list(self._groups.values()))

    def get(self, key: GroupKey) -> Group | None:
        """Return the group of this key, if it is declared in the directory now."""
        binding = self._directory.binding(key)
        return self.meet(binding) if binding is not None else None

    def find(self, broker_name: str, *, cluster_name: str = "", peer: Peer | None = None) -> Group | None:
        binding = self._directory.find(broker_name, cluster_name=cluster_name, peer=peer)
        return self.meet(binding) if binding is not None else None

    def meet(self, binding: GroupBinding) -> Group:
        if (group := self._groups.get(binding.key)) is None:
            group = self._groups[binding.key] = self._new_group(binding)
            self._due.add(group)
        elif group.binding is not binding:
            group.bind(binding)
        return group

    def due(self, now_seconds: float) -> Iterator[Group]:
        """Yield the groups that a tick has to look at: all that do not rest. Groups may be met and forgotten meanwhile."""
        for group in self._due.take(now_seconds):
            if self._groups.get(group.key) is group:
                yield group
            else:
                self._due.drop(group)

    def meet_all(self) -> None:
        """Meet every group of the directory, and forget those that are declared no more; a no-op unless the directory changed."""
        if (revision := self._directory.revision) == self._met_revision:
            return
        for binding in self._directory.bindings():
            self.meet(binding)
        undeclared = [group for key, group in self._groups.items() if self._directory.binding(key) is None]
        for group in undeclared:
            group.undeclared()
            if group.master_change is None:
                self._forget(group.key)
        if all(group.key not in self._groups for group in undeclared):
            self._met_revision = revision

    def members_at(self, address: str) -> list[tuple[Group, int]]:
        """Return the members, by group and broker id, that the records have at this address: those that are alive first."""
        return sorted(self._members_at.get(address, {}), key=lambda one: not one[0].is_live(one[1]))

    def credentials_at(self, address: str) -> Credentials | None:
        """Return the key for requests to a broker at this address: of the group whose member there is alive, else of any."""
        keys = (group.binding.credentials for group, _ in self.members_at(address))
        return next((key for key in keys if key is not None), None)

    def dialled_at(self, address: str) -> str:
        """Return where to dial the broker that is known by this address: at the pod's own, if it lives and was removed by force."""
        found = self.members_at(address)
        return (_own_address_of_living(*found[0], address) if found else None) or address

    def _forget(self, key: GroupKey) -> None:
        if (group := self._groups.pop(key, None)) is not None:
            group.undeclared()
            self._index(group, None)

    def _changed(self, group: Group) -> None:
        if group.record is not None and group.record.has_registered:
            self._directory.registered(group.binding)
        if self._groups.get(group.key) is group:  # and not one that is declared no more, whose last tasks still run
            self._index(group, group.record)
        self._on_change(group)

    def _index(self, group: Group, record: BrokerGroupRecord | None) -> None:
        before = self._indexed.pop(group.key, None)
        if record is not None:
            self._indexed[group.key] = record
        if before is record:
            return
        for replica in before.replicas.values() if before is not None else ():
            self._members_at.drop(replica.address, (group, replica.broker_id))
        for replica in record.replicas.values() if record is not None else ():
            self._members_at.put(replica.address, (group, replica.broker_id), None)


class DueGroups:
    """Which groups the next tick looks at: those that do not rest. A tick costs what is due in it, not what groups there are."""

    def __init__(self) -> None:
        # In the order in which they became due.
        self._due: dict[Group, None] = {}
        # By the end of the rest. A group that was woken and rests again stands in it twice, until its first rest is over.
        self._resting: list[tuple[float, int, Group]] = []
        self._rests = count()

    def add(self, group: Group) -> None:
        self._due[group] = None

    def drop(self, group: Group) -> None:
        self._due.pop(group, None)

    def take(self, now_seconds: float) -> list[Group]:
        """Return those that are due, and put away those that rest since they were last taken."""
        while self._resting and self._resting[0][0] <= now_seconds:
            self.add(heappop(self._resting)[2])
        for group in list(self._due):
            if (until_seconds := group.rests_until_seconds) > now_seconds:
                del self._due[group]
                heappush(self._resting, (until_seconds, next(self._rests), group))
        return list(self._due)


class ReceiverCheck:
    """Called before the broker at an address is changed (1008, 906, 25); returns why not, or None (safety rule 8).

    The member's own heartbeats, on an open connection from the host of that address, prove that it is the one meant. If the
    host cannot be the same (a Service, a translated address), `ask` brings its configuration (26), which counts for
    `PROOF_SECONDS` on that connection while the same pod is behind the address.
    """

    def __init__(self, groups: Groups, directory: GroupDirectory) -> None:
        self._groups, self._directory = groups, directory

    async def __call__(self, address: str, ask: Callable[[], Awaitable[dict[str, str]]]) -> str | None:
        found = self._groups.members_at(address)
        if not found:
            return None  # no member: nothing is known that could be wrong
        group, broker_id = found[0]
        own = _own_address_of_living(group, broker_id, address)
        host = host_of(own or address)
        if own is None and (owner := self._other_pod(group, broker_id, address)) is not None:
            return f"{address} belongs to pod {owner} now, not to broker {broker_id} of {group.key}"
        entry = group.table.entry(broker_id)
        if entry is None or (connection_id := entry.connection_id) is None:
            return _other_than(group, broker_id, address, await ask())
        if group.addresses.channel_hosts.get(broker_id) == host:
            return None
        now_seconds = asyncio.get_running_loop().time()
        proof = (address, connection_id, group.binding.pod_ip_behind(address))
        before, proven_seconds = group.addresses.proven.get(broker_id, (None, 0.0))
        if before == proof and now_seconds - proven_seconds < PROOF_SECONDS:
            return None
        if (why := _other_than(group, broker_id, address, await ask())) is None:
            group.addresses.proven[broker_id] = (proof, now_seconds)
        return why

    def _other_pod(self, group: Group, broker_id: int, address: str) -> str | None:
        """Return the pod that has this address, if the member has a pod and it is another one, elsewhere."""
        replica = group.record.replicas.get(broker_id) if group.record is not None else None
        if replica is None or not replica.reserved_for:
            return None
        own, host = (group.key, replica.reserved_for), host_of(address)
        known = self._directory.pods_known_by(address)
        if known:  # where both are known by it, they are asked
            return None if own in known else next(f"{key.namespace}/{pod}" for key, pod in sorted(known, key=str))
        owner = self._directory.pods.peer_at(host)
        if owner is None or (owner.group, owner.pod_name) == own:
            return None
        if self._directory.pods.hosts(group.key).get(replica.reserved_for) == host:
            return None  # both are there: the pods of a node share its address
        return f"{owner.namespace}/{owner.pod_name}"


def _own_address_of_living(group: Group, broker_id: int, address: str) -> str | None:
    """Return where the member's process listens, if it lives and its pod was removed by force."""
    entry = group.table.entry(broker_id)
    if not group.binding.removed_places or entry is None or entry.connection_id is None or not group.is_live(broker_id):
        return None
    return group.binding.own_address(address, group.addresses.channel_hosts.get(broker_id, ""))


def _other_than(group: Group, broker_id: int, address: str, said: Mapping[str, str]) -> str | None:
    """Return why the broker that reports this configuration is not the member. A master reports the id 0."""
    if (name := said.get("brokerName")) != group.binding.broker_name:
        return f"{address} says that it is {name!r}, not broker {broker_id} of {group.binding.broker_name!r}"
    record = group.record
    if record is None or broker_id not in record.replicas or not record.replicas[broker_id].reserved_for:
        return None
    if (cluster := said.get("brokerClusterName", record.cluster_name)) != record.cluster_name:
        return f"{address} says that it is of cluster {cluster!r}, not of {record.cluster_name!r}"
    own = said.get("brokerId", "")
    if own.isascii() and own.isdecimal() and int(own) not in (0, broker_id):
        return f"{address} says that it is broker {own}, not broker {broker_id} of {group.binding.broker_name!r}"
    return None
