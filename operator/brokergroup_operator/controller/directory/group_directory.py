"""Which BrokerGroup a brokerName means, which pod speaks from an address, and what the group's owner wants.

The wire names a group by brokerName only, and a caller by its IP address only. That address is a fact with an age (safety rule
8): it decides which pod's reservation a new broker may claim, and keeps one group's pods from speaking for another's.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import msgspec
import structlog

from brokergroup_operator.api import broker_keys, durability, names, pod_fence
from brokergroup_operator.api.backup_fields import BROKER_IDS_SINCE, EPOCHS_SINCE, begun_above
from brokergroup_operator.api.brokergroup import BrokerGroup, BrokerGroupSpec, Signature
from brokergroup_operator.api.brokergroup_status import Reason
from brokergroup_operator.api.failover_fields import FailoverSpec, UncleanElection
from brokergroup_operator.api.network_fields import Addressing
from brokergroup_operator.api.service_names import as_brokers_mean
from brokergroup_operator.controller.directory.pods import Peer, PodIndex, PodPlace, Table
from brokergroup_operator.controller.peers.broker_calls import BrokerCallError
from brokergroup_operator.kube.pods import label_of
from brokergroup_operator.kube.reflector import ObjectKey, key_of
from brokergroup_operator.records.store import GroupKey
from controller_core.settings import POLICIES, ControllerSettings
from rocketmq_remoting.address import EXPECTED, heard_address, host_of, join_address

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from brokergroup_operator.api.tls_fields import TlsMode
    from brokergroup_operator.kube.client import JsonObject
    from controller_core.model import BrokerGroupRecord
    from rocketmq_remoting.signature import Credentials

MOST_GROUPS = 10_000
# Of names that no broker has registered under: there is nothing to lose of the one that was not heard for longest.
MOST_UNREGISTERED = 1_000

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupBinding:
    """A broker group as its owner declared it, reduced to what the controller plane needs."""

    key: GroupKey
    cluster_name: str
    broker_name: str
    settings: ControllerSettings = field(default_factory=ControllerSettings)
    name_servers: tuple[str, ...] = ()
    # None: the timeout of the broker's own heartbeat.
    heartbeat_timeout_seconds: float | None = None
    fence_timeout_seconds: float = FailoverSpec().times.fence_milliseconds / 1000
    # The longest silence after which a fence in one of the group's pods has killed its broker, by the times with which that pod was
    # made; 0 where no pod has such a fence.
    told_fence_seconds: float = 0.0
    # Why an election may be trusted where the fence confirmed nothing; empty: it may not.
    unconfirmed_trust: str = ""
    failover_delay_seconds: float = 0.0
    # It is being deleted or hibernated: members go one by one on purpose, and no master is elected.
    deleting: bool = False
    # Only hibernated: it will be woken.
    hibernated: bool = False
    # A Retire is about to delete it: its brokers acknowledge nothing on purpose, as long as that takes.
    closed: bool = False
    signature: Signature = Signature.ACCEPTED
    # The key with which the group's brokers sign (innerClientAuthenticationCredentials), and this plane its requests to them; and
    # its Secret.
    credentials: Credentials | None = None
    credentials_secret: ObjectKey | None = None
    # How its NameServers are reached, and its brokers where they are no pods; a pod has its own mode. None: without TLS.
    tls: TlsMode | None = None
    # Any caller that reaches the port may speak for brokers that are no pods: RocketMQ's own way, for the standalone controller.
    open: bool = False
    # Where brokers serve their log; None: at the port above their own.
    ha_port: int | None = None
    # Brokers are known by addresses that are not their pods' own (spec.network.addressing); and whether they serve the log at the
    # pods' own.
    translated: bool = False
    log_at_pods: bool = False
    # These pods by their names.
    places: Mapping[str, PodPlace] = field(default_factory=dict)
    # Of these, the ones that were removed by force: their brokers may run on (`own_address`).
    removed_places: Mapping[str, PodPlace] = field(default_factory=dict)
    # Where pods are that are being deleted and whose processes still have time: a host; or host and port, where a pod is known by
    # an address that is not its own. And of these, the own addresses of pods that were removed by force: a second or two.
    leaving_hosts: frozenset[str] = frozenset()
    removed_hosts: frozenset[str] = frozenset()
    # The disks of its brokers go with their pods.
    ephemeral: bool = False
    # Whether a message a second is sent to it (``upkeep/recovery_watch.py``).
    canary: bool = False
    # Which keys of broker.conf are read back from its brokers.
    watched_keys: frozenset[str] = frozenset()
    # Its tenant; and what is known of each member, by names of `metric_names.MEMBER_FACTS`.
    tenant: str = ""
    member_facts: Mapping[int, Mapping[str, str]] = field(default_factory=dict)

    @property
    def pod_fence_seconds(self) -> float:
        """After this silence the fence in a master's pod has killed it: by the spec, or by longer times of an older pod."""
        return max((self.heartbeat_timeout_seconds or 0.0) + self.fence_timeout_seconds, self.told_fence_seconds)

    # With spec.network.addressing the record knows a member by the address that it advertises, which the pod carries as an
    # annotation. Its connections come from the pod, and only the pod's own port shows whether the process is dead: a Service
    # without an endpoint refuses also while the broker lives.

    def advertises(self, pod_name: str, address: str) -> bool:
        """Whether this pod of the group is known by this address, although the address is not its own."""
        place = self.places.get(pod_name)
        return place is not None and place.address == address

    def pod_ip_behind(self, address: str) -> str | None:
        """Return the pod behind this address, if there is exactly one."""
        found = {place.ip for place in self.places.values() if place.address == address}
        return found.pop() if len(found) == 1 else None

    def hosts_of_links(self, record: BrokerGroupRecord, broker_ids: Iterable[int]) -> dict[int, str]:
        """Return the host from which each member's connections come: a master's links (907) carry no broker id."""
        addresses = {broker_id: record.address_of(broker_id) or "" for broker_id in broker_ids}
        return {one: self.pod_ip_behind(address) or host_of(address) for one, address in addresses.items()}

    def probe_address(self, address: str, channel_host: str | None) -> str | None:
        """Return where a refused connection proves that this process does not listen any more; None if nothing can be asked.

        A new pod has the address of the one before it. Another host is perhaps a node that translates addresses: it refuses also
        while the broker lives.
        """
        if self.translated and channel_host and channel_host != self.pod_ip_behind(address):
            return self.own_address(address, channel_host)
        return self.process_address(address, channel_host)

    def own_address(self, address: str, channel_host: str) -> str | None:
        """Return the pod's own address of the process that was heard from this host; None unless its pod was removed by force: it
        is the old process's as long as the API gives it to no other pod.
        """
        removed = (place.ip for place in self.removed_places.values() if place.address == address)
        return self.process_address(address, channel_host) if channel_host in removed else None

    def process_address(self, address: str, channel_host: str | None) -> str | None:
        """Return the address that tells this process from its successor behind the same address; None if it was not heard."""
        if not self.translated:
            return address
        return join_address(channel_host, address.rpartition(":")[2]) if channel_host else None

    def ha_address_of(self, address: str) -> str:
        """Return where the broker at this address serves its log; raise `BrokerCallError` for an invalid address."""
        if (found := heard_address(address)) is None:
            raise BrokerCallError(f"address {address!r}: expected {EXPECTED}")
        host = (self.pod_ip_behind(address) if self.log_at_pods else None) or found.host
        return join_address(host, self.ha_port or found.port + 1)


def is_closed(obj: JsonObject) -> bool:
    """Whether a Retire keeps every broker of this BrokerGroup from acknowledging."""
    return names.ANNOTATION_CLOSED_BY in (obj["metadata"].get("annotations") or {})


def binding_of(obj: JsonObject) -> GroupBinding:
    """Reduce a BrokerGroup to its binding, without what its pods, nodes and Secret add. `msgspec.ValidationError` if invalid."""
    group = durability.with_durability(msgspec.convert(obj, BrokerGroup))
    namespace, name = key_of(obj)
    spec = group.spec
    times, secret = spec.failover.times, spec.security.credentials_secret_name
    return GroupBinding(
        key=GroupKey(namespace, name),
        cluster_name=spec.broker_cluster_name,
        broker_name=spec.broker_name or name,
        settings=_settings_of(
            spec,
            up_to_epoch=_accepted_epoch(obj),
            begun=begun_above(obj) if spec.bootstrap is not None else None,
            running=group.status.version if group.status is not None else None,
        ),
        name_servers=tuple(as_brokers_mean(address, namespace) for address in spec.name_servers),
        tls=spec.tls.mode if spec.tls is not None else None,
        heartbeat_timeout_seconds=times.heartbeat_timeout_milliseconds / 1000,
        fence_timeout_seconds=times.fence_milliseconds / 1000,
        unconfirmed_trust=pod_fence.trust_without_confirmation(spec),
        failover_delay_seconds=float(spec.failover.delay_seconds),
        deleting="deletionTimestamp" in obj["metadata"] or spec.maintenance.hibernated,
        hibernated=spec.maintenance.hibernated,
        closed=is_closed(obj),
        signature=spec.security.signature,
        credentials_secret=(namespace, secret) if secret else None,
        ha_port=spec.network.ha_port,
        translated=spec.network.addressing.has_member_services,
        ephemeral=spec.storage.ephemeral is not None,
        canary=spec.monitoring.canary.enabled and not _is_retiring(obj),
        watched_keys=broker_keys.watched_keys(spec),
        tenant=label_of(obj, names.LABEL_TENANT),
        log_at_pods=spec.network.addressing in {Addressing.NODE_PORT, Addressing.LOAD_BALANCER},
    )


def _is_retiring(obj: JsonObject) -> bool:
    """Whether the group takes no sends since a Retire runs: a canary would only be refused, and reported."""
    conditions = (obj.get("status") or {}).get("conditions") or []
    return any(one.get("reason") == Reason.RETIRING.value for one in conditions)


def _accepted_epoch(obj: JsonObject) -> int:
    try:
        return names.accepted_epoch(obj) or 0
    except names.AnnotationError as error:
        log.warning("annotation ignored", group="/".join(key_of(obj)), error=str(error))
        return 0


def _settings_of(
    spec: BrokerGroupSpec, *, up_to_epoch: int, begun: tuple[int, int] | None, running: str | None
) -> ControllerSettings:
    """`begun`: the epoch and the broker id above which the group began with a backup, far above a record that was lost."""
    rule, policy = durability.acknowledgement_rule(spec), spec.failover.election_policy
    if policy not in POLICIES:
        expected = ", ".join(POLICIES)
        raise msgspec.ValidationError(f"spec.failover.electionPolicy is {policy!r}, expected one of {expected}")
    return ControllerSettings(
        unclean_election_allowed=spec.failover.unclean_election is UncleanElection.ALLOWED,
        shrink_floor=rule.shrink_floor,
        masters_shrink_first=durability.masters_shrink_first(spec, running=running),
        min_in_sync_replicas=rule.minimum_in_sync,
        election_priorities={item.broker_id: item.priority for item in spec.failover.priorities},
        preferred_zones=tuple(spec.failover.preferred_zones),
        election_policy=policy,
        expected_replicas=spec.replicas,
        accepted_epoch=max(up_to_epoch, begun[0] + EPOCHS_SINCE if begun is not None else 0),
        max_ids_of_restored=begun[1] + BROKER_IDS_SINCE if begun is not None else 0,
    )


class GroupDirectory(ABC):
    """Which group a name means, and which pod an address. `revision` counts the changes of `bindings`."""

    def __init__(self) -> None:
        self.revision = 0
        self._bindings: dict[GroupKey, GroupBinding] = {}
        # Empty where brokers are no pods.
        self.pods = PodIndex()
        self._known_by: Table[str, tuple[GroupKey, str], None] = Table()
        # Called when a member's process is reported dead; when `leaving_hosts` or `removed_hosts` of a group have changed; and at
        # once when a name that no broker has registered under was dropped for others.
        self.on_gone: list[Callable[[GroupKey, int], None]] = []
        self.on_leaving: list[Callable[[GroupKey], None]] = []
        self.on_given_way: list[Callable[[GroupKey], None]] = []

    async def start(self) -> None:  # noqa: B027 - there may be nothing to learn
        """Begin to learn; return when the first picture is complete."""

    async def stop(self) -> None: ...  # noqa: B027

    def bindings(self) -> list[GroupBinding]:
        return list(self._bindings.values())

    def binding(self, key: GroupKey) -> GroupBinding | None:
        return self._bindings.get(key)

    async def binding_now(self, key: GroupKey) -> GroupBinding | None:
        """Return what the group's owner wants at this moment, not by a watch's copy; None if that is not known."""
        return self._bindings.get(key)

    @abstractmethod
    def find(self, broker_name: str, *, cluster_name: str = "", peer: Peer | None = None) -> GroupBinding | None:
        """Return the group a request is about; None if there is none, or the names fit several and the peer does not decide."""

    @abstractmethod
    def is_name_server(self, address: str) -> bool:
        """Whether any group names this address (host:port) as one of its NameServers."""

    @abstractmethod
    def tls_at(self, address: str) -> TlsMode | None:
        """Return how the broker or NameServer at this address (host:port) is reached; None: without TLS."""

    @abstractmethod
    def registered(self, binding: GroupBinding) -> None:
        """Note that the record of this group has a registered broker."""

    async def peer(self, host: str) -> Peer | None:
        """Return the pod that owns this address, looked up if it is not known here."""
        return self.pods.peer_at(host)

    def pods_known_by(self, address: str) -> Collection[tuple[GroupKey, str]]:
        """Return the pods, by group and name, that are known by this address (host:port) although it is not their own."""
        return self._known_by.get(address, {})


class FixedDirectory(GroupDirectory):
    """Each brokerName is a group in one namespace, all with the same settings: the standalone controller's.

    Callers may invent names. A name is kept once its record has a registered broker; of the others the one that was not asked
    about for longest is dropped from memory, and read from the store when it is heard again. `NewNames` limits what is stored.
    """

    def __init__(self, *, namespace: str = "standalone", open_groups: bool = True, **wishes: Any) -> None:
        """`wishes` are fields of every group's binding."""
        super().__init__()
        # The group of each brokerName is this one under its name.
        self.template = GroupBinding(
            key=GroupKey(namespace, ""), cluster_name="", broker_name="", open=open_groups, **wishes
        )
        # The groups without a registered broker; the one that was asked about last stands last.
        self._unregistered: dict[GroupKey, None] = {}

    def find(self, broker_name: str, *, cluster_name: str = "", peer: Peer | None = None) -> GroupBinding | None:  # noqa: ARG002
        """Return the group of this name; its cluster is what the first caller says. The number of names is bounded."""
        if not broker_name or len(broker_name) > 255:
            return None
        key = GroupKey(self.template.key.namespace, broker_name)
        if (binding := self._bindings.get(key)) is None:
            if len(self._bindings) - len(self._unregistered) >= MOST_GROUPS:
                return None
            self._unregistered[key] = None
        if binding is None or (cluster_name and not binding.cluster_name):
            binding = replace(self.template, key=key, cluster_name=cluster_name, broker_name=broker_name)
            self._bindings[key] = binding
            self.revision += 1
        if key in self._unregistered:
            self._unregistered[key] = self._unregistered.pop(key)  # the last to be dropped from now on
            if len(self._unregistered) > MOST_UNREGISTERED:
                gone = next(iter(self._unregistered))
                del self._unregistered[gone], self._bindings[gone]
                self.revision += 1
                for callback in self.on_given_way:
                    callback(gone)
        return binding

    def registered(self, binding: GroupBinding) -> None:
        """Keep it from now on, also if it was dropped while its record was read."""
        if binding.key not in self._bindings or binding.key in self._unregistered:
            self._unregistered.pop(binding.key, None)
            self._bindings.setdefault(binding.key, binding)
            self.revision += 1

    def is_name_server(self, address: str) -> bool:
        return address in self.template.name_servers

    def tls_at(self, address: str) -> TlsMode | None:  # noqa: ARG002
        return self.template.tls
