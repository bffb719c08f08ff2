"""BrokerGroup.spec.network: by which addresses and ports brokers are reached, and the IP families of their Services."""

from enum import StrEnum
from typing import Annotated, ClassVar

from msgspec import Meta, Struct

from brokergroup_operator.api import bounds
from brokergroup_operator.api.policy_fields import ClusterPolicySpec, GroupPolicySpec
from brokergroup_operator.api.rules import Rule, immutable_optional

# A member's ports with addressing NodePort: its fast port, its own and its fence's, and what lies between.
NODE_PORTS_EACH = 5


class IPFamily(StrEnum):
    """As Kubernetes has it."""

    IPV4 = "IPv4"
    IPV6 = "IPv6"


class IPFamilyPolicy(StrEnum):
    """As Kubernetes has it."""

    SINGLE_STACK = "SingleStack"
    PREFER_DUAL_STACK = "PreferDualStack"
    REQUIRE_DUAL_STACK = "RequireDualStack"


class IPFamiliesSpec(Struct, frozen=True, rename="camel", kw_only=True):
    """The IP families of Services."""

    ip_families: Annotated[
        list[IPFamily],
        Meta(
            max_length=2,
            description="IP families of the group's Services, as in a Service: [IPv4], [IPv6] or both. The first is also the"
            " family of the address by which each broker is known, and is immutable once given. Absent: the"
            " cluster's first family.",
            extra_json_schema=bounds.ATOMIC_LIST,
        ),
    ] = []
    ip_family_policy: Annotated[
        IPFamilyPolicy | None,
        Meta(
            description="Whether the Services have one IP family or two, as in a Service. It can be changed, not removed: a"
            " Service keeps its policy. Absent: Kubernetes' default for a Service."
        ),
    ] = None

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "size(self.ipFamilies) < 2 || self.ipFamilies[0] != self.ipFamilies[1]",
            "ipFamilies must not name one family twice",
            field_path=".ipFamilies",
        ),
        Rule(
            "size(self.ipFamilies) < 2 || !has(self.ipFamilyPolicy) || self.ipFamilyPolicy != 'SingleStack'",
            "ipFamilyPolicy SingleStack has one family: name one in ipFamilies, or choose PreferDualStack or RequireDualStack",
            field_path=".ipFamilyPolicy",
        ),
        Rule(
            "size(oldSelf.ipFamilies) == 0 || (size(self.ipFamilies) > 0 && self.ipFamilies[0] == oldSelf.ipFamilies[0])",
            "the first of ipFamilies is immutable: Kubernetes keeps the first family of a Service",
            field_path=".ipFamilies",
        ),
        Rule(
            "!has(oldSelf.ipFamilyPolicy) || has(self.ipFamilyPolicy)",
            "ipFamilyPolicy can't be taken away, for a Service keeps the one it has: name SingleStack, Kubernetes' own default",
            field_path=".ipFamilyPolicy",
        ),
    )

    @property
    def broker_family(self) -> str:
        """The family of the address by which a broker is known; empty where the cluster's own counts."""
        return self.ip_families[0].value if self.ip_families else ""

    def on_services(self) -> bounds.JsonObject:
        """What the spec of each Service gets; nothing where nothing is asked for."""
        families = {"ipFamilies": [one.value for one in self.ip_families]} if self.ip_families else {}
        return families | ({"ipFamilyPolicy": self.ip_family_policy.value} if self.ip_family_policy else {})


class ClusterNetworkSpec(IPFamiliesSpec, frozen=True, rename="camel", kw_only=True):
    """The IP families of Services, and the NetworkPolicies of NameServers, proxies and brokers."""

    policy: Annotated[
        ClusterPolicySpec | None,
        Meta(
            description="Given, also empty: NameServers, proxies, and the groups whose template names no policy, each get a"
            " NetworkPolicy that admits exactly what they need. Absent: none; the operator deletes those that it"
            " made. The Kubernetes cluster's network must enforce NetworkPolicies."
        ),
    ] = None


class Addressing(StrEnum):
    """By which address brokers are known to clients, to each other and to the controller."""

    POD_IP = "PodIP"
    SERVICE_IP = "ServiceIP"
    HOST_NETWORK = "HostNetwork"
    NODE_PORT = "NodePort"
    LOAD_BALANCER = "LoadBalancer"

    @property
    def has_member_services(self) -> bool:
        """Whether each member has a Service of its own, and is known by an address that is not its pod's."""
        return self in {Addressing.SERVICE_IP, Addressing.NODE_PORT, Addressing.LOAD_BALANCER}


class NetworkSpec(IPFamiliesSpec, frozen=True, rename="camel", kw_only=True):
    """The addresses and ports of the brokers. `addressing` and the ports are immutable."""

    addressing: Annotated[
        Addressing,
        Meta(
            description="The address by which clients, the other brokers and the operator know a broker. PodIP: the pod's IP,"
            " which changes with each new pod; clients find the new one at the NameServer. ServiceIP: the"
            " ClusterIP of a Service per member, which stays, so message ids and routes that clients hold stay"
            " valid. HostNetwork: the node's IP and network; one member per node (antiAffinity Required), and"
            " signed requests (security.signature Required), because other processes of the node share the"
            " address. NodePort: the node's IP and a port of the member's own (firstNodePort). LoadBalancer: the"
            " address of a Service of type LoadBalancer per member; the pod is created once it has one. With"
            " NodePort and LoadBalancer slaves copy the log at the pod's IP. Immutable."
        ),
    ] = Addressing.POD_IP
    first_node_port: Annotated[
        Annotated[int, Meta(ge=30_000, le=32_767 - bounds.MAX_REPLICAS * NODE_PORTS_EACH)] | None,
        Meta(
            description="First node port of the group. Given with addressing NodePort, and with no other. Each member takes"
            " five ports from here on: the first is its fast port, the third the broker's own (TCP), the fifth the"
            " fence's (UDP); the broker listens on the same number, and listenPort is unused. Keep 80 ports free"
            " from here on (5 for each of 16 members), and open to clients."
        ),
    ] = None
    listen_port: Annotated[
        int,
        Meta(
            ge=1027,
            le=65_533,
            description="TCP port on which clients and the operator reach a broker. The broker also listens two ports below"
            " it (RocketMQ's fast port), and the fence on the UDP port two above it.",
        ),
    ] = 10911
    ha_port: Annotated[
        int,
        Meta(ge=1024, le=65_535, description="TCP port from which slaves copy the master's log."),
    ] = 10912
    policy: Annotated[
        GroupPolicySpec | None,
        Meta(
            description="Given, also empty: the pods get a NetworkPolicy. It admits members to haPort, members and the"
            " operator to the fences, and clientsFrom too to the ports for clients. Absent: none; the operator deletes the"
            " one that it made. The Kubernetes cluster's network must enforce NetworkPolicies. Refused with"
            " addressing HostNetwork, to which none applies, and with NodePort and LoadBalancer, where members"
            " reach each other at nodes, which may change the source's address."
        ),
    ] = None

    RULES: ClassVar[tuple[Rule, ...]] = (
        *IPFamiliesSpec.RULES,
        Rule(
            "!(self.haPort in [self.listenPort - 2, self.listenPort, self.listenPort + 2])",
            "haPort must not be listenPort, nor the fast port two below it, nor the fence's port two above it",
            field_path=".haPort",
        ),
        Rule(
            "(self.addressing == 'NodePort') == has(self.firstNodePort)",
            "firstNodePort belongs to addressing NodePort, and to it alone: each member needs a port that is known before"
            " its broker starts",
            field_path=".firstNodePort",
            reason="FieldValueRequired",
        ),
        Rule(
            "!has(self.policy) || self.addressing != 'HostNetwork'",
            "policy has no effect with addressing HostNetwork: a NetworkPolicy does not apply to a node's own network."
            " Close the node's ports by its firewall, and leave policy out",
            field_path=".policy",
        ),
        Rule(
            "!has(self.policy) || !(self.addressing in ['NodePort', 'LoadBalancer'])",
            "policy does not work with addressing NodePort and LoadBalancer: members, fences and the operator reach a member"
            " at a node, which may change the source's address, so that no label matches. Close the ports by a"
            " firewall, and leave policy out",
            field_path=".policy",
        ),
        *(
            immutable_optional(
                name,
                f"{name} is immutable: clients, message ids and slaves hold the address. To change it, delete the group"
                " (its claims stay, storage.retention.whenDeleted Retain) and create it with the new value",
            )
            for name in ("addressing", "firstNodePort", "listenPort", "haPort")
        ),
    )
