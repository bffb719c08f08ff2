"""Kubernetes' NetworkPolicies, evaluated as networking.k8s.io/v1 describes them: may this source open that port of this pod?"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Json = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """A pod with its labels, or where `labels` is None an address outside of Kubernetes."""

    namespace: str = "shop"
    namespace_labels: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] | None = None
    address: str = "10.0.0.1"


def admits(policies: Sequence[Json], source: Endpoint, target: Endpoint, port: int, protocol: str) -> bool:
    """A pod that no policy selects is open; one that some select admits what one of their rules admits."""
    selecting = [
        one["spec"]
        for one in policies
        if one["metadata"]["namespace"] == target.namespace
        and selects(one["spec"]["podSelector"], target.labels)
        and "Ingress" in one["spec"]["policyTypes"]
    ]
    rules = [rule for spec in selecting for rule in spec.get("ingress") or ()]
    return not selecting or any(_has_port(rule, port, protocol) and _is_from(rule, source, target) for rule in rules)


def selects(selector: Json, labels: Mapping[str, str] | None) -> bool:
    if labels is None:
        return False
    given = all(labels.get(key) == value for key, value in (selector.get("matchLabels") or {}).items())
    return given and all(_holds(one, labels) for one in selector.get("matchExpressions") or ())


def _holds(requirement: Json, labels: Mapping[str, str]) -> bool:
    value = labels.get(requirement["key"])
    match requirement["operator"]:
        case "In":
            return value in requirement["values"]
        case "NotIn":
            return value not in requirement["values"]
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
    raise ValueError(requirement["operator"])


def _has_port(rule: Json, port: int, protocol: str) -> bool:
    ports = rule.get("ports")
    if not ports:
        return True
    return any(
        one.get("protocol", "TCP") == protocol and one["port"] <= port <= one.get("endPort", one["port"])
        for one in ports
    )


def _is_from(rule: Json, source: Endpoint, target: Endpoint) -> bool:
    peers = rule.get("from")
    return not peers or any(_is_peer(peer, source, target) for peer in peers)


def _is_peer(peer: Json, source: Endpoint, target: Endpoint) -> bool:
    if (block := peer.get("ipBlock")) is not None:
        address = ipaddress.ip_address(source.address)
        left_out = any(address in ipaddress.ip_network(one) for one in block.get("except") or ())
        return address in ipaddress.ip_network(block["cidr"]) and not left_out
    if source.labels is None:
        return False
    if (namespaces := peer.get("namespaceSelector")) is None:
        in_namespace = source.namespace == target.namespace
    else:
        in_namespace = selects(namespaces, source.namespace_labels)
    return in_namespace and selects(peer.get("podSelector") or {}, source.labels)
