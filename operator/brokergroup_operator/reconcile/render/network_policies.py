"""NetworkPolicies of brokers, NameServers and proxies: which sources may open which port of each. Pure.

Ingress only, and by port numbers: those are immutable, while pods that an older operator made lack some of the names. The
kubelet's probes need no rule: a NetworkPolicy never closes a pod to its own node. A namespace is the border of trust: each of its
pods may carry the label of a member. The operator is known by its namespace too, since a pod of any namespace may carry its label.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from brokergroup_operator.api import names, pod_fence
from brokergroup_operator.kube.resources import NETWORK_POLICIES
from brokergroup_operator.reconcile import identity
from brokergroup_operator.reconcile.render import addressing
from brokergroup_operator.reconcile.render.children import made

if TYPE_CHECKING:
    from collections.abc import Sequence

    from brokergroup_operator.api.bounds import JsonObject
    from brokergroup_operator.api.brokergroup import BrokerGroup
    from brokergroup_operator.api.network_fields import NetworkSpec
    from brokergroup_operator.api.policy_fields import NetworkPolicyPeer
    from brokergroup_operator.reconcile.settings import ReconcileSettings

# Kubernetes' own, on every namespace.
NAMESPACE_NAME: Final = "kubernetes.io/metadata.name"


def of_group(group: BrokerGroup, settings: ReconcileSettings) -> JsonObject | None:
    """The policy of a group's pods; None where the spec asks for none."""
    network, monitoring = group.spec.network, group.spec.monitoring
    if (policy := network.policy) is None:
        return None
    members = pods(identity.selector_labels(group))
    admitted = [members, operator(settings)]
    rules = [
        rule([tcp(network.ha_port)], [members]),
        rule(_client_ports(network), sources(policy.clients_from, beside=admitted)),
    ]
    if of_proxy := addressing.proxy_ports(group.spec):
        # Neither the other members nor the operator dial a Proxy.
        rules.append(rule([tcp(port) for port in of_proxy.values()], sources(policy.clients_from, beside=[])))
    if pod_fence.wanted(group.spec):
        rules.append(rule([_fence_port(network)], admitted))
    if monitoring.exporter:
        rules.append(rule([tcp(monitoring.port)], sources(policy.metrics_from, beside=[])))
    name = names.network_policy_name(identity.name_of(group))
    return made(group, NETWORK_POLICIES, name, spec=policy_spec(identity.selector_labels(group), rules))


def policy_spec(selected: dict[str, str], rules: Sequence[JsonObject | None]) -> JsonObject:
    """The spec of a policy about the pods with these labels: what no rule admits is closed."""
    spec: JsonObject = {"podSelector": {"matchLabels": selected}, "policyTypes": ["Ingress"]}
    admitting = [one for one in rules if one is not None]
    # An API server drops an empty list, which would then be drift in every pass.
    return spec | ({"ingress": admitting} if admitting else {})


def rule(ports: list[JsonObject], peers: list[JsonObject] | None) -> JsonObject | None:
    """These ports for these sources. None for the sources: for every one; without any source there is no rule."""
    if peers is None:
        return {"ports": ports}
    # To Kubernetes an empty `from` admits every source.
    return {"ports": ports, "from": peers} if peers else None


def sources(asked: Sequence[NetworkPolicyPeer] | None, *, beside: list[JsonObject]) -> list[JsonObject] | None:
    """What the spec asks for, and `beside` it; None where the spec leaves it open to every source."""
    if asked is None:
        return None
    return [*beside, *(msgspec.to_builtins(one) for one in asked)]


def pods(labels: dict[str, str]) -> JsonObject:
    """Pods of the policy's own namespace."""
    return {"podSelector": {"matchLabels": labels}}


def operator(settings: ReconcileSettings) -> JsonObject:
    """The operator's pods: in its own namespace where it is known, which is that of its Lease."""
    election = settings.leader_election
    namespace = {"matchLabels": {NAMESPACE_NAME: election.namespace}} if election is not None else {}
    return pods({names.LABEL_COMPONENT: names.COMPONENT_OPERATOR}) | {"namespaceSelector": namespace}


def _client_ports(network: NetworkSpec) -> list[JsonObject]:
    """A broker's own port and its fast port, from which a Java slave copies topics and offsets."""
    return [tcp(network.listen_port), tcp(network.listen_port - names.FAST_PORT_OFFSET)]


def _fence_port(network: NetworkSpec) -> JsonObject:
    return {"port": network.listen_port + names.FENCE_PORT_OFFSET, "protocol": "UDP"}


def tcp(number: int) -> JsonObject:
    return {"port": number, "protocol": "TCP"}
