"""What a member is, for the words of metrics and of the incident log: where it runs, in which version, and for whom. Pure.

Facts are empty where nobody says them: zone and rack are labels of the node, which the operator may not be allowed to read; the
version is a label of the pod; the tenant one of the BrokerGroup.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import metric_names
from brokergroup_operator.api import names
from brokergroup_operator.controller.directory.kubernetes_binding import broker_id_of, node_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from brokergroup_operator.kube.client import JsonObject


@dataclass(frozen=True, slots=True)
class NodePlace:
    """Where a node says it is."""

    zone: str = ""
    rack: str = ""


def place_of_node(node: JsonObject) -> NodePlace:
    """By its labels."""
    return NodePlace(_label(node, names.LABEL_ZONE), _label(node, names.LABEL_RACK))


def tenant_of(group_object: JsonObject) -> str:
    """Whom the group is for, by the label of the BrokerGroup."""
    return _label(group_object, names.LABEL_TENANT)


def member_facts(
    before: Mapping[int, Mapping[str, str]],
    pods: Iterable[JsonObject],
    nodes: Mapping[str, NodePlace | None],
    tenant: str,
) -> dict[int, Mapping[str, str]]:
    """The facts of each member by its id; of one whose pod is gone those from `before`, for it may be asked why it went."""
    found = dict(before)
    for pod in pods:
        broker_id, node = broker_id_of(pod), node_of(pod)
        if broker_id is None or not node:
            continue
        place = nodes.get(node) or NodePlace()
        facts = {
            metric_names.LABEL_NODE: node,
            metric_names.LABEL_ZONE: place.zone,
            metric_names.LABEL_RACK: place.rack,
            metric_names.LABEL_VERSION: _label(pod, names.LABEL_APP_VERSION),
            metric_names.LABEL_TENANT: tenant,
        }
        found[broker_id] = {name: value for name, value in facts.items() if value}
    return found


def _label(obj: JsonObject, name: str) -> str:
    return str((obj["metadata"].get("labels") or {}).get(name, ""))
