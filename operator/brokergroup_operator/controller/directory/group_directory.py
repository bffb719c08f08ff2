"""Which BrokerGroup a brokerName means, which pod speaks from an address, and what the group's owner wants.

The wire names a group by brokerName only, and a caller by its IP address only. That address is a fact with an age (safety rule
8): it decides which pod's reservation a new broker may claim, and keeps one group's pods from speaking for another's.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from brokergroup_operator.api.brokergroup import Signature
from brokergroup_operator.api.failover_fields import FailoverSpec
from brokergroup_operator.controller.directory.pods import Peer, PodIndex, PodPlace, Table
from brokergroup_operator.records.store import GroupKey
from controller_core.settings import ControllerSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from rocketmq_remoting.signature import Credentials

# As of a BrokerGroup that does not say it.
DEFAULT_FENCE_TIMEOUT_SECONDS = FailoverSpec().times.fence_milliseconds / 1000
LONGEST_NAME = 255
MOST_GROUPS = 10_000
# Of names that no broker has registered under: there is nothing to lose of the one that was not heard for longest.
MOST_UNREGISTERED = 1_000


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
    fence_timeout_seconds: float = DEFAULT_FENCE_TIMEOUT_SECONDS
    # The longest silence after which a fence in one of the group's pods has killed its broker, by the times with which that pod was
    # made; 0 where no pod has such a fence.
    told_fence_seconds: float = 0.0
    # Why an election may be trusted where the fence confirmed nothing; empty: it may not.
    unconfirmed_trust: str = ""
    # How long a lost master is waited for before another one is elected.
    failover_delay_seconds: float = 0.0
    # It is being deleted or hibernated: members go one by one on purpose, and no master is elected.
    deleting: bool = False
    # Only hibernated: it will be woken.
    hibernated: bool = False
    signature: Signature = Signature.ACCEPTED
    # The key with which the group's brokers sign (innerClientAuthenticationCredentials), and this plane its requests to them; and
    # the name of its Secret.
    credentials: Credentials | None = None
    credentials_secret: str | None = None
    # Any caller that reaches the port may speak for brokers that are no pods: RocketMQ's own way, for the standalone controller.
    open: bool = False
    # Where brokers serve their log; None: at the port above their own.
    ha_port: int | None = None
    # Brokers are known by addresses that are not their pods' own (``places.py``); and whether they serve the log at the pods' own.
    translated: bool = False
    log_at_pods: bool = False
    # The pods that are known by such addresses, by their names.
    places: Mapping[str, PodPlace] = field(default_factory=dict)
    # Of these, the ones that were removed by force: their brokers may run on (`places.own_address`).
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


class GroupDirectory(ABC):
    """Which group a name means, and which pod an address. `revision` counts the changes of `bindings`."""

    def __init__(self) -> None:
        self.revision = 0
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

    async def stop(self) -> None:  # noqa: B027
        """Stop learning."""

    @abstractmethod
    def bindings(self) -> list[GroupBinding]:
        """Return every group known now."""

    @abstractmethod
    def binding(self, key: GroupKey) -> GroupBinding | None:
        """Return the group of this key."""

    @abstractmethod
    def find(self, broker_name: str, *, cluster_name: str = "", peer: Peer | None = None) -> GroupBinding | None:
        """Return the group a request is about; None if there is none, or the names fit several and the peer does not decide."""

    @abstractmethod
    def is_name_server(self, address: str) -> bool:
        """Whether any group names this address (host:port) as one of its NameServers."""

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
        key = GroupKey(namespace, "")
        # The group of each brokerName is this one under its name.
        self.template = GroupBinding(key=key, cluster_name="", broker_name="", open=open_groups, **wishes)
        self._bindings: dict[GroupKey, GroupBinding] = {}
        # The one that was asked about last stands last.
        self._unregistered: dict[GroupKey, GroupBinding] = {}

    def bindings(self) -> list[GroupBinding]:
        return [*self._bindings.values(), *self._unregistered.values()]

    def binding(self, key: GroupKey) -> GroupBinding | None:
        return self._bindings.get(key) or self._unregistered.get(key)

    def find(self, broker_name: str, *, cluster_name: str = "", peer: Peer | None = None) -> GroupBinding | None:  # noqa: ARG002
        """Return the group of this name; its cluster is what the first caller says. The number of names is bounded."""
        if not broker_name or len(broker_name) > LONGEST_NAME:
            return None
        key = GroupKey(self.template.key.namespace, broker_name)
        names = self._bindings if key in self._bindings else self._unregistered
        binding = names.get(key)
        if binding is None and len(self._bindings) >= MOST_GROUPS:
            return None
        if binding is None or (cluster_name and not binding.cluster_name):
            binding = replace(self.template, key=key, cluster_name=cluster_name, broker_name=broker_name)
            names[key] = binding
            self.revision += 1
        if names is self._unregistered:
            names[key] = names.pop(key)  # the last to be dropped from now on
            if len(names) > MOST_UNREGISTERED:
                gone = next(iter(names))
                del names[gone]
                self.revision += 1
                for callback in self.on_given_way:
                    callback(gone)
        return binding

    def registered(self, binding: GroupBinding) -> None:
        """Keep it from now on, also if it was dropped while its record was read."""
        if binding.key not in self._bindings:
            self._bindings[binding.key] = self._unregistered.pop(binding.key, binding)
            self.revision += 1

    def is_name_server(self, address: str) -> bool:
        return address in self.template.name_servers
