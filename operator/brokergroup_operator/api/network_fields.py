"""BrokerGroup.spec.network: by which addresses and ports brokers are reached, and the IP families of their Services."""

from enum import StrEnum
from typing import Annotated, ClassVar

from msgspec import Meta, Struct

from brokergroup_operator.api import bounds
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
            description="The families of the Services, as in a Service, and of what is known by an address of a pod or a node:"
            " the first one given. Absent: the cluster's own first family. The first one stays as it is once it is given.",
            extra_json_schema=bounds.ATOMIC_LIST,
        ),
    ] = []
    ip_family_policy: Annotated[
        IPFamilyPolicy | None,
        Meta(
            description="Whether the Services have both families, as in a Service. Absent: what Kubernetes makes of it. Once it is"
            " given it can be changed, not taken away: a Service keeps the one it has."
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
    """How brokers are reached."""

    addressing: Annotated[
        Addressing,
        Meta(
            description="PodIP: brokers are known by the address of their pod. It changes with every start; a broker's identity"
            " does not: that is its broker id, and the operator follows the address."
            " ServiceIP: each member has a ClusterIP Service of its own, named as its pod, and is known by that address for ever;"
            " message ids and routes that clients hold stay right over restarts."
            " HostNetwork: the pods use their node's network and address; one member a node (antiAffinity Required), and"
            " only signed requests (security.signature Required): whatever runs on the node has that address too."
            " NodePort: each member has a NodePort Service; it is known by its node's address and a port of its own (see"
            " firstNodePort). LoadBalancer: each member has a Service of type LoadBalancer and is known by what that is given;"
            " its pod is made once there is an address. With both, slaves reach the master's log at its pod's address."
        ),
    ] = Addressing.POD_IP
    first_node_port: Annotated[
        Annotated[int, Meta(ge=30_000, le=32_767 - bounds.MAX_REPLICAS * NODE_PORTS_EACH)] | None,
        Meta(
            description="Given with addressing NodePort, absent otherwise: where the group's node ports begin."
            " Each member takes the next five for itself"
            " (the first is its fast port, the third the broker's, the fifth the fence's by UDP), and its broker listens on the"
            " same number, because a broker advertises the port that it listens on; listenPort is not used then. Keep"
            " 80 ports free (5 for each of 16), and open them to clients."
        ),
    ] = None
    listen_port: Annotated[
        int,
        Meta(
            ge=1027,
            le=65_533,
            description="Where clients and the controller reach a broker. RocketMQ also takes the port two below it (the fast"
            " port), and the fence in the pod the UDP port two above it.",
        ),
    ] = 10911
    ha_port: Annotated[
        int,
        Meta(ge=1024, le=65_535, description="Where slaves reach the master's log."),
    ] = 10912

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
        *(
            immutable_optional(
                name,
                f"{name} is immutable: clients, message ids and slaves hold the address. To change it, delete the group"
                " (its claims stay, storage.retention.whenDeleted Retain) and create it with the new value",
            )
            for name in ("addressing", "firstNodePort", "listenPort", "haPort")
        ),
    )
