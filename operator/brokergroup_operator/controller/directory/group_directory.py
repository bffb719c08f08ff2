"""Which BrokerGroup a brokerName belongs to, whose process speaks from an address, and what its owner wants.

The wire names a group by brokerName only, and a caller by its IP address only. The directory knows the rest: in Kubernetes from
the BrokerGroups and the pods (``kubernetes_directory.py``), standing alone from nothing at all (``FixedDirectory``: every
brokerName is a group of its own).

A peer's address is a fact with an age (safety rule 8): it tells which pod's reservation a new broker may claim, and keeps one
group's pods from speaking for another's. It is never an identity that grants a mastership.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Protocol

from brokergroup_operator.api.brokergroup import FailoverSpec
from brokergroup_operator.records.store import GroupKey
from controller_core.settings import ControllerSettings
from rocketmq_remoting.signature import Credentials

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = [
    "Credentials",
    "FixedDirectory",
    "GroupBinding",
    "GroupDirectory",
    "MemberGone",
    "Peer",
    "PodPlace",
    "SignaturePolicy",
]

# As of a BrokerGroup that does not say it.
DEFAULT_FENCE_TIMEOUT_SECONDS = FailoverSpec().fence_timeout_milliseconds / 1000
LONGEST_NAME = 255
MOST_GROUPS = 10_000
# Of names that no broker has registered under: there is nothing to lose of the one that was not heard for longest.
MOST_UNREGISTERED = 1_000


class SignaturePolicy(Enum):
    """What a group's controller requests must carry."""

    OFF = "Off"
    """Signatures are not looked at: whoever speaks is known by the address of his pod or not at all."""
    ACCEPTED = "Accepted"
    """A right signature is one way of being known; a wrong one is refused; none is left to the address."""
    REQUIRED = "Required"
    """Only signed requests are heard, heartbeats included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodPlace:
    """Where a pod is, and by which address (host:port) its broker is known."""

    ip: str
    address: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupBinding:
    """A broker group as its owner declared it, reduced to what the controller plane needs."""

    key: GroupKey
    cluster_name: str
    broker_name: str
    settings: ControllerSettings = field(default_factory=ControllerSettings)
    name_servers: tuple[str, ...] = ()
    # None: as long as the broker's own heartbeat says.
    heartbeat_timeout_seconds: float | None = None
    # Silence may count sooner than that, as soon as a broker's own rhythm says so, but never sooner than this. None: it never does.
    minimum_heartbeat_timeout_seconds: float | None = None
    fence_timeout_seconds: float = DEFAULT_FENCE_TIMEOUT_SECONDS
    # The longest silence after which a fence in one of the group's pods has killed its broker, by the times with which that pod was
    # made; 0 where no pod has such a fence.
    told_fence_seconds: float = 0.0
    # Why an election may be trusted where the fence confirmed nothing; empty: it may not.
    unconfirmed_trust: str = ""
    # How long a lost master is waited for before another one is elected.
    failover_delay_seconds: float = 0.0
    # Its owner is deleting it, or puts it to sleep: members go one by one on purpose, and nobody is elected for it.
    deleting: bool = False
    # Only the latter: it will be woken.
    hibernated: bool = False
    signature: SignaturePolicy = SignaturePolicy.ACCEPTED
    # Whom the group's brokers sign as (innerClientAuthenticationCredentials), and how our own requests to them are signed.
    credentials: Credentials | None = None
    # Whoever reaches the port may speak for those of its brokers that are no pods: RocketMQ's own way, for the controller alone.
    open: bool = False
    # Where brokers serve their log; None: at the port above their own.
    ha_port: int | None = None
    # Brokers are known by addresses that are not their pods' own (``places.py``); and the log is served at the pods' all the same.
    translated: bool = False
    log_at_pods: bool = False
    # The pods that are known so, by their names.
    places: Mapping[str, PodPlace] = field(default_factory=dict)
    # Of these, the ones that were removed by force, as they were: their brokers may run on (``places.own_address``).
    removed_places: Mapping[str, PodPlace] = field(default_factory=dict)
    # The disks of its brokers go with their pods.
    ephemeral: bool = False
    # Whether a message a second is sent to it (``upkeep/canary.py``).
    canary: bool = False
    # Which keys of broker.conf are read back from its brokers.
    watched_keys: frozenset[str] = frozenset()
    # Whom it is for; and what is known of each member, by names of ``metric_names.MEMBER_FACTS``.
    tenant: str = ""
    member_facts: Mapping[int, Mapping[str, str]] = field(default_factory=dict)

    @property
    def shortest_heartbeat_timeout_seconds(self) -> float | None:
        """The shortest silence that may count as death; None: as long as the broker's own heartbeat says."""
        return self.minimum_heartbeat_timeout_seconds or self.heartbeat_timeout_seconds

    @property
    def pod_fence_seconds(self) -> float:
        """After this silence the fence in a master's pod has killed it: by the spec, or by longer times of an older pod."""
        return max(
            (self.shortest_heartbeat_timeout_seconds or 0.0) + self.fence_timeout_seconds, self.told_fence_seconds
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """The pod that speaks from an address."""

    namespace: str
    pod_name: str
    group: GroupKey | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberGone:
    """The container of a member was reported terminated, or its pod is gone."""

    key: GroupKey
    broker_id: int
    how: str


class GroupDirectory(Protocol):
    """Which group a name means, and which pod an address."""

    revision: int
    """Counts the changes of ``bindings``: as long as it stays, each of them is what it was."""

    async def start(self) -> None:
        """Begin to learn; returns when the first picture is complete."""
        ...

    async def stop(self) -> None:
        """Stop learning."""
        ...

    def bindings(self) -> list[GroupBinding]:
        """Every group known now."""
        ...

    def binding(self, key: GroupKey) -> GroupBinding | None:
        """The group of this key."""
        ...

    def find(self, broker_name: str, *, cluster_name: str = "", peer: Peer | None = None) -> GroupBinding | None:
        """The group a request is about; None where there is none, or where the names fit several and the peer does not tell."""
        ...

    def known_peer(self, host: str) -> Peer | None:
        """The pod that owns this address, as far as is known here."""
        ...

    async def peer(self, host: str) -> Peer | None:
        """The same, looked up where it is not known here."""
        ...

    def is_terminated(self, key: GroupKey, broker_id: int, *, address: str) -> str | None:
        """How we know that the member's process at this address is dead (its container ended); None if we do not know."""
        ...

    def subscribe_gone(self, callback: Callable[[MemberGone], None]) -> None:
        """Be told when a member's process is reported dead."""
        ...

    def pod_hosts(self, key: GroupKey) -> dict[str, str]:
        """The address of each of the group's pods that has one, by the pod's name."""
        ...

    def is_name_server(self, address: str) -> bool:
        """Whether any group names this address (host:port) as one of its NameServers."""
        ...

    def pods_known_by(self, address: str) -> set[tuple[GroupKey, str]]:
        """The pods, by group and name, that are known by this address (host:port) although it is not their own."""
        ...

    def leaving_hosts(self, key: GroupKey) -> frozenset[str]:
        """Where the group's pods that are being deleted, and whose processes still have time, are known to be.

        A host; or host and port, where a pod is known by an address that is not its own.
        """
        ...

    def removed_hosts(self, key: GroupKey) -> frozenset[str]:
        """The own addresses of pods that were removed by force: their processes have a second or two."""
        ...

    def subscribe_leaving(self, callback: Callable[[GroupKey], None]) -> None:
        """Be told when ``leaving_hosts`` of a group has changed."""
        ...

    def registered(self, binding: GroupBinding) -> None:
        """Hear that a broker of this group is registered by its record."""
        ...

    def subscribe_given_way(self, callback: Callable[[GroupKey], None]) -> None:
        """Be told at once when a name that no broker has registered under has given way to others."""
        ...


class FixedDirectory:
    """No directory at all: each brokerName is a group in one namespace, all with the same wishes. For tests and standalone.

    Any caller that reaches the port may make up names. A name is a group, and kept, once its record has a registered broker;
    of the others the one that was not asked about for longest gives way. Nothing durable goes with it: a record stays in its store
    (ids are never given again), and is read when the name is heard again. What may become durable: `access/callers.py`.
    """

    def __init__(  # noqa: PLR0913 - one for each wish of a group
        self,
        *,
        namespace: str = "standalone",
        settings: ControllerSettings | None = None,
        name_servers: tuple[str, ...] = (),
        canary: bool = False,
        heartbeat_timeout_seconds: float | None = None,
        fence_timeout_seconds: float = DEFAULT_FENCE_TIMEOUT_SECONDS,
        unconfirmed_trust: str = "",
        open_groups: bool = True,
        signature: SignaturePolicy = SignaturePolicy.ACCEPTED,
        credentials: Credentials | None = None,
        failover_delay_seconds: float = 0.0,
    ) -> None:
        self._open_groups = open_groups
        self._failover_delay_seconds = failover_delay_seconds
        self._signature = signature
        self._credentials = credentials
        self._namespace = namespace
        self._settings = settings or ControllerSettings()
        self._name_servers = name_servers
        self._canary = canary
        self._heartbeat_timeout_seconds = heartbeat_timeout_seconds
        self._fence_timeout_seconds = fence_timeout_seconds
        self._unconfirmed_trust = unconfirmed_trust
        self.revision = 0
        self._bindings: dict[GroupKey, GroupBinding] = {}
        # The one that was asked about last stands last.
        self._unregistered: dict[GroupKey, GroupBinding] = {}
        self._given_way_callbacks: list[Callable[[GroupKey], None]] = []
        self._peers: dict[str, Peer] = {}
        self._terminated: dict[tuple[GroupKey, int], tuple[str, str]] = {}
        self._gone_callbacks: list[Callable[[MemberGone], None]] = []
        self._leaving: dict[GroupKey, frozenset[str]] = {}
        self._removed: dict[GroupKey, frozenset[str]] = {}
        self._leaving_callbacks: list[Callable[[GroupKey], None]] = []

    async def start(self) -> None:
        """Nothing to learn."""

    async def stop(self) -> None:
        """Nothing to stop."""

    def bindings(self) -> list[GroupBinding]:
        """Every brokerName with a registered broker, and those that were asked about last."""
        return [*self._bindings.values(), *self._unregistered.values()]

    def binding(self, key: GroupKey) -> GroupBinding | None:
        """The group of this key, if its brokerName is kept."""
        return self._bindings.get(key) or self._unregistered.get(key)

    def find(self, broker_name: str, *, cluster_name: str = "", peer: Peer | None = None) -> GroupBinding | None:  # noqa: ARG002
        """Any brokerName is a group; its cluster is what the first caller says. Nobody fills the memory with names."""
        if not broker_name or len(broker_name) > LONGEST_NAME:
            return None
        key = GroupKey(self._namespace, broker_name)
        names = self._bindings if key in self._bindings else self._unregistered
        binding = names.get(key)
        if binding is None and len(self._bindings) >= MOST_GROUPS:
            return None
        if binding is None or (cluster_name and not binding.cluster_name):
            binding = self._new_binding(key, cluster_name)
            names[key] = binding
            self.revision += 1
        if names is self._unregistered:
            self._heard_again(key, binding)
        return binding

    def _new_binding(self, key: GroupKey, cluster_name: str) -> GroupBinding:
        return GroupBinding(
            key=key,
            cluster_name=cluster_name,
            broker_name=key.name,
            settings=self._settings,
            name_servers=self._name_servers,
            canary=self._canary,
            heartbeat_timeout_seconds=self._heartbeat_timeout_seconds,
            fence_timeout_seconds=self._fence_timeout_seconds,
            unconfirmed_trust=self._unconfirmed_trust,
            failover_delay_seconds=self._failover_delay_seconds,
            open=self._open_groups,
            signature=self._signature,
            credentials=self._credentials,
        )

    def _heard_again(self, key: GroupKey, binding: GroupBinding) -> None:
        """It is the last to give way now; the first one does, where there are too many."""
        del self._unregistered[key]
        self._unregistered[key] = binding
        if len(self._unregistered) <= MOST_UNREGISTERED:
            return
        gone = next(iter(self._unregistered))
        del self._unregistered[gone]
        self.revision += 1
        for callback in self._given_way_callbacks:
            callback(gone)

    def registered(self, binding: GroupBinding) -> None:
        """Keep it from now on, also if it gave way while its record was read."""
        if binding.key not in self._bindings:
            self._bindings[binding.key] = self._unregistered.pop(binding.key, binding)
            self.revision += 1

    def subscribe_given_way(self, callback: Callable[[GroupKey], None]) -> None:
        """Be told by ``find``."""
        self._given_way_callbacks.append(callback)

    def known_peer(self, host: str) -> Peer | None:
        """Only who was introduced by ``introduce``."""
        return self._peers.get(host)

    async def peer(self, host: str) -> Peer | None:
        """Only who was introduced by ``introduce``."""
        return self._peers.get(host)

    def is_terminated(self, key: GroupKey, broker_id: int, *, address: str) -> str | None:
        """What ``report_terminated`` was told."""
        ended_at, how = self._terminated.get((key, broker_id), ("", ""))
        return how if ended_at == address else None

    def subscribe_gone(self, callback: Callable[[MemberGone], None]) -> None:
        """Be told by ``report_terminated``."""
        self._gone_callbacks.append(callback)

    def pod_hosts(self, key: GroupKey) -> dict[str, str]:
        """Who was introduced by ``introduce``."""
        return {peer.pod_name: host for host, peer in self._peers.items() if peer.group == key}

    def is_name_server(self, address: str) -> bool:
        """Whether it is one of those that every group here names."""
        return address in self._name_servers

    def pods_known_by(self, address: str) -> set[tuple[GroupKey, str]]:  # noqa: ARG002 - every pod here has its own address
        """None."""
        return set()

    def leaving_hosts(self, key: GroupKey) -> frozenset[str]:
        """What ``report_leaving`` was told."""
        return self._leaving.get(key, frozenset())

    def subscribe_leaving(self, callback: Callable[[GroupKey], None]) -> None:
        """Be told by ``report_leaving``."""
        self._leaving_callbacks.append(callback)

    def removed_hosts(self, key: GroupKey) -> frozenset[str]:
        """What ``report_leaving`` was told to be removed by force."""
        return self._removed.get(key, frozenset())

    def report_leaving(self, key: GroupKey, *hosts: str, by_force: bool = False) -> None:
        """Say which hosts' pods are being deleted."""
        self._leaving[key] = frozenset(hosts)
        self._removed[key] = frozenset(hosts if by_force else ())
        for callback in self._leaving_callbacks:
            callback(key)

    def introduce(self, host: str, peer: Peer) -> None:
        """Say whose address this is."""
        self._peers[host] = peer

    def report_terminated(
        self, key: GroupKey, broker_id: int, *, address: str, how: str = "container terminated"
    ) -> None:
        """Say that a member's process at this address is dead."""
        self._terminated[key, broker_id] = (address, how)
        for callback in self._gone_callbacks:
            callback(MemberGone(key=key, broker_id=broker_id, how=how))
