"""spec.network.policy of a BrokerGroup and a RocketMQCluster: which sources the operator's NetworkPolicies admit."""

from enum import StrEnum
from typing import Annotated, ClassVar

from msgspec import Meta, Struct, field

from brokergroup_operator.api import bounds
from brokergroup_operator.api.rules import Rule, label_keys, validations

MAX_PEERS = 16
MAX_TERMS = 8
CidrText = Annotated[str, bounds.judged_by_the_api(bounds.CIDR_PATTERN, 49, 3)]


class SelectorOperator(StrEnum):
    """As in a label selector of Kubernetes."""

    IN = "In"
    NOT_IN = "NotIn"
    EXISTS = "Exists"
    DOES_NOT_EXIST = "DoesNotExist"


class SelectorRequirement(Struct, frozen=True, rename="camel", kw_only=True, omit_defaults=True):
    """One requirement, as in a label selector of Kubernetes."""

    key: Annotated[bounds.LabelKey, Meta(description="Key of the label.")]
    operator: Annotated[SelectorOperator, Meta(description="How the label's value relates to values.")]
    values: Annotated[
        list[bounds.LabelValue],
        Meta(
            max_length=16,
            description="Values, with In and NotIn; none with Exists and DoesNotExist.",
            extra_json_schema=bounds.ATOMIC_LIST,
        ),
    ] = []

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "(self.operator in ['In', 'NotIn']) == (size(self.values) > 0)",
            "values are given with operator In or NotIn, and with no other",
            field_path=".values",
        ),
    )


class LabelSelector(Struct, frozen=True, rename="camel", kw_only=True, omit_defaults=True):
    """A label selector, as Kubernetes has it. An empty one selects everything."""

    match_labels: Annotated[
        dict[str, bounds.LabelValue],
        Meta(
            max_length=MAX_TERMS,
            description="Labels that must be there with these values.",
            extra_json_schema=validations(label_keys("matchLabels")),
        ),
    ] = {}
    match_expressions: Annotated[
        list[SelectorRequirement],
        Meta(
            max_length=MAX_TERMS, description="Requirements that must all hold.", extra_json_schema=bounds.ATOMIC_LIST
        ),
    ] = []


class IPBlock(Struct, frozen=True, rename="camel", kw_only=True, omit_defaults=True):
    """A range of addresses, as in a NetworkPolicy."""

    cidr: Annotated[CidrText, Meta(description="The range, such as 192.0.2.0/24.")]
    except_: Annotated[
        list[CidrText],
        Meta(
            max_length=MAX_PEERS,
            description="Ranges within cidr, and smaller, that are left out. With another one the API server refuses the"
            " NetworkPolicy, and condition Stalled says so.",
            extra_json_schema=bounds.ATOMIC_LIST,
        ),
    ] = field(default_factory=list, name="except")


class NetworkPolicyPeer(Struct, frozen=True, rename="camel", kw_only=True, omit_defaults=True):
    """One source, as an entry of `from` in a NetworkPolicy."""

    pod_selector: Annotated[
        LabelSelector | None,
        Meta(
            description="Pods with these labels, in the namespaces of namespaceSelector, or without it in the object's own."
            " Absent: every pod of namespaceSelector."
        ),
    ] = None
    namespace_selector: Annotated[
        LabelSelector | None,
        Meta(description="Namespaces with these labels. Absent: the object's own namespace."),
    ] = None
    ip_block: Annotated[
        IPBlock | None,
        Meta(
            description="Addresses, for clients outside Kubernetes or behind a node that translates addresses. Absent: pods"
            " are meant."
        ),
    ] = None

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "has(self.ipBlock) != (has(self.podSelector) || has(self.namespaceSelector))",
            "a source is either ipBlock, or podSelector, namespaceSelector or both",
        ),
    )


Peers = Annotated[list[NetworkPolicyPeer], Meta(max_length=MAX_PEERS, extra_json_schema=bounds.ATOMIC_LIST)]
# A RocketMQCluster adds its proxies to the clients of a group.
GroupPeers = Annotated[list[NetworkPolicyPeer], Meta(max_length=MAX_PEERS + 1, extra_json_schema=bounds.ATOMIC_LIST)]
_CLIENTS_FROM = (
    "Sources that reach {what}: clients of the remoting protocol, proxies, mqadmin. Absent: every source. An empty list:"
    " {none}. For clients behind a node port or load balancer that translates addresses, name the nodes' addresses."
)


class GroupPolicySpec(Struct, frozen=True, rename="camel", kw_only=True):
    """Sources that the NetworkPolicy admits, beside the group's members and the operator."""

    clients_from: Annotated[
        GroupPeers | None,
        Meta(
            description=_CLIENTS_FROM.format(
                what="the brokers' ports for clients, and with localProxy those of its Proxies",
                none="none but the group's members, the operator, and in a RocketMQCluster its proxies; at the ports of"
                " localProxy none but the latter",
            )
        ),
    ] = None
    metrics_from: Annotated[
        Peers | None,
        Meta(
            description="Sources that reach the port of spec.monitoring.exporter. Absent: every source. An empty list: none."
        ),
    ] = None


class ClusterPolicySpec(GroupPolicySpec, frozen=True, rename="camel", kw_only=True):
    """Sources that the NetworkPolicies admit, beside the group's members at brokers, and the operator's pods."""

    clients_from: Annotated[
        Peers | None,
        Meta(
            description=_CLIENTS_FROM.format(
                what="the brokers' ports for clients, with localProxy those of its Proxies, and the NameServers",
                none="none but the group's members and the proxies at brokers, every broker of the namespace and the"
                " proxies at NameServers, and the operator at both; at the ports of localProxy none but the proxies",
            )
        ),
    ] = None

    proxy_clients_from: Annotated[
        Peers | None,
        Meta(
            description="Sources that reach the proxies of spec.proxy; clientsFrom names those of localProxy. Absent: every"
            " source. An empty list: none."
        ),
    ] = None
