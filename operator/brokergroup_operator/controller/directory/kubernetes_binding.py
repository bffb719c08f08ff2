"""From a BrokerGroup, its pods and nodes to what the controller plane needs. Pure.

A broker id belongs to a pod by the record's reservation, not by the pod's name: a pod whose disk was wiped comes back under a
new id. The reconcile plane writes the id on the pod's label. Facts of members are empty where they are not known: the operator
may lack the right to read nodes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import structlog

import metric_names
from brokergroup_operator.api import names
from brokergroup_operator.api.broker_keys import watched_keys
from brokergroup_operator.api.brokergroup import BrokerGroup, BrokerGroupSpec
from brokergroup_operator.api.durability import acknowledgement_rule, masters_shrink_first
from brokergroup_operator.api.failover_fields import UncleanElection
from brokergroup_operator.api.names import AnnotationError, accepted_epoch
from brokergroup_operator.api.network_fields import Addressing
from brokergroup_operator.api.pod_fence import trust_without_confirmation
from brokergroup_operator.controller.directory.group_directory import GroupBinding, Peer, PodPlace, SignaturePolicy
from brokergroup_operator.kube.reflector import key_of
from brokergroup_operator.observe.timeline import OUT_OF_MEMORY_WORD
from brokergroup_operator.records.store import GroupKey
from controller_core.settings import Adoption, ControllerSettings
from rocketmq_remoting.address import (
    heard_address,
    host_of,
    ip_of_family,
    is_ip,
    join_address,
    one_spelling,
    plain_host,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from brokergroup_operator.kube.client import JsonObject


log = structlog.get_logger(__name__)


def binding_of(obj: JsonObject) -> GroupBinding:
    """Reduce a BrokerGroup to its binding, without credentials and zones.

    Raise `msgspec.ValidationError` for an invalid one.
    """
    group = msgspec.convert(obj, BrokerGroup)
    namespace, name = key_of(obj)
    spec = group.spec
    minimum = spec.failover.minimum_heartbeat_timeout_milliseconds
    return GroupBinding(
        key=GroupKey(namespace, name),
        cluster_name=spec.broker_cluster_name,
        broker_name=spec.broker_name or name,
        settings=_settings_of(spec, up_to_epoch=_accepted_epoch(obj)),
        name_servers=tuple(_as_brokers_mean(address, namespace) for address in spec.name_servers),
        heartbeat_timeout_seconds=spec.failover.heartbeat_timeout_milliseconds / 1000,
        minimum_heartbeat_timeout_seconds=None if minimum is None else minimum / 1000,
        fence_timeout_seconds=spec.failover.fence_timeout_milliseconds / 1000,
        unconfirmed_trust=trust_without_confirmation(spec),
        failover_delay_seconds=float(spec.failover.delay_seconds),
        deleting="deletionTimestamp" in obj["metadata"] or spec.maintenance.hibernated,
        hibernated=spec.maintenance.hibernated,
        signature=SignaturePolicy(spec.security.signature.value),
        ha_port=spec.network.ha_port,
        translated=spec.network.addressing.has_member_services,
        ephemeral=spec.storage.ephemeral is not None,
        canary=spec.monitoring.canary.enabled,
        watched_keys=watched_keys(spec),
        log_at_pods=spec.network.addressing in {Addressing.NODE_PORT, Addressing.LOAD_BALANCER},
    )


def _as_brokers_mean(address: str, namespace: str) -> str:
    """A name without a dot is a Service in the brokers' namespace; from the operator's pod it would be one in its own."""
    found = heard_address(address)
    if found is None or is_ip(found.host) or "." in found.host or found.host == "localhost":
        return one_spelling(address)
    return join_address(f"{found.host}.{namespace}", found.port)


def credentials_secret_of(obj: JsonObject) -> str | None:
    """Return the name of the group's Secret."""
    name = ((obj.get("spec") or {}).get("security") or {}).get("credentialsSecretName")
    return str(name) if name else None


def _accepted_epoch(obj: JsonObject) -> int:
    try:
        return accepted_epoch(obj) or 0
    except AnnotationError as error:
        log.warning("annotation ignored", group="/".join(key_of(obj)), error=str(error))
        return 0


def _settings_of(spec: BrokerGroupSpec, *, up_to_epoch: int) -> ControllerSettings:
    rule = acknowledgement_rule(spec)
    return ControllerSettings(
        unclean_election_allowed=spec.failover.unclean_election is UncleanElection.ALLOWED,
        shrink_floor=rule.shrink_floor,
        masters_shrink_first=masters_shrink_first(spec),
        min_in_sync_replicas=rule.minimum_in_sync,
        election_priorities={item.broker_id: item.priority for item in spec.failover.priorities},
        preferred_zones=tuple(spec.failover.preferred_zones),
        election_policy=spec.failover.election_policy,
        expected_replicas=spec.replicas,
        accepted_epoch=up_to_epoch,
        adoption=Adoption.KNOWN_REQUESTERS,
    )


def peer_of(pod: JsonObject) -> Peer:
    """Return the pod as a peer."""
    namespace, name = key_of(pod)
    group = _labels(pod).get(names.LABEL_BROKER_GROUP)
    return Peer(namespace=namespace, pod_name=name, group=GroupKey(namespace, group) if group else None)


def broker_id_of(pod: JsonObject) -> int | None:
    """Return the broker id of the pod; None for a pod that is no member of a group."""
    label = _labels(pod).get(names.LABEL_BROKER_ID, "")
    if label.isascii() and label.isdecimal() and label != "0":
        return int(label)
    group = _labels(pod).get(names.LABEL_BROKER_GROUP)
    return names.broker_id_of_pod_name(group, str(pod["metadata"]["name"])) if group else None


def pod_ip(pod: JsonObject) -> str:
    """Return the address that its broker uses, or the empty text: of several the one of the family that the pod was given."""
    return ip_of_family(",".join(pod_ips(pod)), _family_of(pod))


def pod_ips(pod: JsonObject) -> tuple[str, ...]:
    """Return all its addresses in one spelling. A pod of both families has two, and its connections come from either."""
    return _ips(pod, "podIP")


def place_of(pod: JsonObject) -> PodPlace | None:
    """Return where it is, if its broker is known by another address than the pod's own."""
    text = str((pod["metadata"].get("annotations") or {}).get(names.ANNOTATION_ADDRESS, ""))
    if text.startswith(":"):
        node = ip_of_family(",".join(_ips(pod, "hostIP")), _family_of(pod))
        text = join_address(node, text[1:]) if node else ""
    return PodPlace(ip=pod_ip(pod), address=one_spelling(text)) if text else None


def is_at(pod: JsonObject, address: str) -> bool:
    """Whether the pod's broker is the one at this address (host:port): the one by which it is known, or its pod's own."""
    if not pod_ips(pod):
        return False  # it has not started: another pod had the address
    place = place_of(pod)
    return (place is not None and place.address == address) or has_ip_of(pod, address)


def has_ip_of(pod: JsonObject, address: str) -> bool:
    """Whether this is the pod's own address (host:port), which tells it from its successor behind the same Service."""
    return host_of(address) in pod_ips(pod)


def node_of(pod: JsonObject) -> str:
    """Return the node where it runs, or the empty text."""
    return str((pod.get("spec") or {}).get("nodeName") or "")


def is_over(pod: JsonObject) -> bool:
    """Whether nothing of it will run again."""
    return pod.get("status", {}).get("phase") in ("Failed", "Succeeded")


def restarts(pod: JsonObject) -> int:
    """How often its broker was started again."""
    return int(_broker_status(pod).get("restartCount", 0))


def termination(pod: JsonObject) -> str | None:
    """Return how the broker's last process ended, or None while one may run."""
    status = _broker_status(pod)
    state = status.get("state") or {}
    terminated = state.get("terminated")
    if "waiting" in state:  # between two processes (CrashLoopBackOff): the last one has ended, the next has not begun
        terminated = (status.get("lastState") or {}).get("terminated")
    if terminated:
        # The kubelet's word tells a kill for memory from any other one.
        word = f"{terminated['reason']}, " if terminated.get("reason") == OUT_OF_MEMORY_WORD else ""
        return f"container terminated ({word}exit code {terminated.get('exitCode')})"
    return f"pod {pod['status']['phase']}" if is_over(pod) else None


def is_leaving(pod: JsonObject) -> bool:
    """Whether it is being deleted and its broker still has time to hand over. Without grace it has none."""
    metadata = pod["metadata"]
    has_time = metadata.get("deletionGracePeriodSeconds") != 0
    return "deletionTimestamp" in metadata and has_time and termination(pod) is None


def _ips(pod: JsonObject, field: str) -> tuple[str, ...]:
    status = pod.get("status", {})
    given = [status.get(field), *(one.get("ip") for one in status.get(f"{field}s") or [])]
    return tuple(dict.fromkeys(plain_host(str(one)) for one in given if one))


def _family_of(pod: JsonObject) -> str:
    """Return the IP family that the pod's broker was given (spec.network.ipFamilies), or the empty text."""
    containers = (pod.get("spec") or {}).get("containers") or []
    entries = (
        entry for one in containers if one.get("name") == names.CONTAINER_BROKER for entry in one.get("env") or []
    )
    return next((str(one.get("value") or "") for one in entries if one.get("name") == names.ENVIRONMENT_IP_FAMILY), "")


def _labels(obj: JsonObject) -> dict[str, str]:
    labels: dict[str, str] = obj["metadata"].get("labels") or {}
    return labels


def _broker_status(pod: JsonObject) -> dict[str, Any]:
    for status in pod.get("status", {}).get("containerStatuses") or []:
        if status.get("name") == names.CONTAINER_BROKER:
            found: dict[str, Any] = status
            return found
    return {}


@dataclass(frozen=True, slots=True)
class NodePlace:
    """Zone and rack by the node's labels."""

    zone: str = ""
    rack: str = ""


def place_of_node(node: JsonObject) -> NodePlace:
    """Return the node's place."""
    return NodePlace(_label(node, names.LABEL_ZONE), _label(node, names.LABEL_RACK))


def tenant_of(group_object: JsonObject) -> str:
    """Return the tenant by the label of the BrokerGroup."""
    return _label(group_object, names.LABEL_TENANT)


def member_facts(
    before: Mapping[int, Mapping[str, str]],
    pods: Iterable[JsonObject],
    nodes: Mapping[str, NodePlace | None],
    tenant: str,
) -> dict[int, Mapping[str, str]]:
    """Return the facts of each member by its id; of a member whose pod is gone those from `before`, for its incident."""
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
