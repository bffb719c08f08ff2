"""From a BrokerGroup, its pods and nodes to what the controller plane needs. Pure.

A broker id belongs to a pod by the record's reservation, not by the pod's name: a pod whose disk was wiped comes back under a
new id. The reconcile plane writes the id on the pod's label. Facts of members are empty where they are not known: the operator
may lack the right to read nodes.

`PodIndex` holds the pods of all groups as the watch last reported. A container reported terminated stays evidence of that
process's death after its pod went, until a pod has the address again.
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
from brokergroup_operator.api.durability import acknowledgement_rule, masters_shrink_first, with_durability
from brokergroup_operator.api.failover_fields import UncleanElection
from brokergroup_operator.api.names import AnnotationError, accepted_epoch
from brokergroup_operator.api.network_fields import Addressing
from brokergroup_operator.api.pod_fence import trust_without_confirmation
from brokergroup_operator.controller.directory.group_directory import GroupBinding, Peer, PodPlace
from brokergroup_operator.kube.pods import host_ips, pod_ips
from brokergroup_operator.kube.reflector import ObjectKey, key_of
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
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from brokergroup_operator.kube.client import JsonObject, WatchEvent


log = structlog.get_logger(__name__)


def binding_of(obj: JsonObject) -> GroupBinding:
    """Reduce a BrokerGroup to its binding, without credentials and zones.

    Raise `msgspec.ValidationError` for an invalid one.
    """
    group = with_durability(msgspec.convert(obj, BrokerGroup))
    namespace, name = key_of(obj)
    spec = group.spec
    times = spec.failover.times
    return GroupBinding(
        key=GroupKey(namespace, name),
        cluster_name=spec.broker_cluster_name,
        broker_name=spec.broker_name or name,
        settings=_settings_of(spec, up_to_epoch=_accepted_epoch(obj)),
        name_servers=tuple(_as_brokers_mean(address, namespace) for address in spec.name_servers),
        heartbeat_timeout_seconds=times.heartbeat_timeout_milliseconds / 1000,
        fence_timeout_seconds=times.fence_milliseconds / 1000,
        unconfirmed_trust=trust_without_confirmation(spec),
        failover_delay_seconds=float(spec.failover.delay_seconds),
        deleting="deletionTimestamp" in obj["metadata"] or spec.maintenance.hibernated,
        hibernated=spec.maintenance.hibernated,
        signature=spec.security.signature,
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
    reference = ((obj.get("spec") or {}).get("security") or {}).get("credentialsSecretRef") or {}
    return str(reference["name"]) if reference.get("name") else None


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


def place_of(pod: JsonObject) -> PodPlace | None:
    """Return where it is, if its broker is known by another address than the pod's own."""
    text = str((pod["metadata"].get("annotations") or {}).get(names.ANNOTATION_ADDRESS, ""))
    if text.startswith(":"):
        node = ip_of_family(",".join(host_ips(pod)), _family_of(pod))
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


class PodIndex:
    """Fed with every event of the pod watch (`take`)."""

    def __init__(self) -> None:
        self._pods: dict[ObjectKey, JsonObject] = {}
        self._by_group: dict[GroupKey, dict[str, JsonObject]] = {}
        self._with_two_addresses = 0
        # The pods at each address: several, where pods share their node's.
        self._by_address: dict[str, set[Peer]] = {}
        # The pods of each group whose end was reported before they went, by name, and how they ended.
        self._ended: dict[GroupKey, dict[str, tuple[JsonObject, str]]] = {}
        # The pods of each group that were removed by force while their brokers ran, by name, and the addresses of each.
        self._removed: dict[GroupKey, dict[str, tuple[str, ...]]] = {}
        # Of these, the ones that were known by another address than their own: until a pod has their own again.
        self._removed_places: dict[GroupKey, dict[str, PodPlace]] = {}

    def of_group(self, key: GroupKey) -> Mapping[str, JsonObject]:
        """Return the group's pods by name."""
        return self._by_group.get(key, {})

    def all(self) -> list[JsonObject]:
        """Return every pod of every group."""
        return list(self._pods.values())

    def has_both_families(self) -> bool:
        """Whether a pod has a second address, for which the API cannot be asked (it selects by status.podIP only)."""
        return self._with_two_addresses > 0

    def is_known_address(self, host: str) -> bool:
        """Whether any pod has this address."""
        return host in self._by_address

    def peer_at(self, host: str) -> Peer | None:
        """Return the pod with this address; None if several share it."""
        found = self._by_address.get(host, ())
        return next(iter(found)) if len(found) == 1 else None

    def hosts(self, key: GroupKey) -> dict[str, str]:
        """Return the address of each of the group's pods that has one, by the pod's name."""
        return {name: pod_ip(pod) for name, pod in self.of_group(key).items() if pod_ip(pod) and not is_over(pod)}

    def leaving_hosts(self, key: GroupKey) -> frozenset[str]:
        """Return where the group's pods are that are being deleted and whose brokers still run, pods removed by force included."""
        leaving = (_known_by(pod) for pod in self.of_group(key).values() if is_leaving(pod) and pod_ip(pod))
        return self.removed_hosts(key).union(leaving)

    def removed_hosts(self, key: GroupKey) -> frozenset[str]:
        """Return the own addresses of the group's pods that were removed by force while their brokers ran."""
        return frozenset(addresses[0] for addresses in self._removed.get(key, {}).values())

    def removed_places(self, key: GroupKey) -> Mapping[str, PodPlace]:
        """Return the group's pods, by name, that were removed by force and known by another address, until a pod has theirs."""
        return self._removed_places.get(key, {})

    def groups_with_removed_pods(self) -> frozenset[GroupKey]:
        """Return the groups of which a pod was removed by force: a pod of another group may get its address."""
        return frozenset(self._removed).union(self._removed_places)

    def termination_at(self, key: GroupKey, address: str) -> str | None:
        """Return how the process at this address (host:port) ended, if that was reported; None while one may run there."""
        at_address = [termination(pod) for pod in self.of_group(key).values() if is_at(pod, address)]
        if at_address:
            return None if None in at_address else at_address[0]
        ended = self._ended.get(key, {})
        return next((how for pod, how in ended.values() if is_at(pod, address)), None)

    def take(self, event: WatchEvent) -> JsonObject | None:
        """Take an event of a pod; return the pod as it was before, None for a new one."""
        pod = event.object
        previous = self._pods.pop(key_of(pod), None)
        if previous is not None:
            self._remove(previous)
        if event.type != "DELETED":
            self._add(pod)
        elif (group := peer_of(pod).group) is not None:
            # A pod that was removed by force vanishes before its process: only a reported end counts.
            if (how := termination(pod)) is not None:
                self._ended.setdefault(group, {})[key_of(pod)[1]] = (pod, how)
            elif addresses := _own_first(pod):
                self._removed.setdefault(group, {})[key_of(pod)[1]] = addresses
                if (place := place_of(pod)) is not None:
                    self._removed_places.setdefault(group, {})[key_of(pod)[1]] = place
        return previous

    def _add(self, pod: JsonObject) -> None:
        peer, addresses = peer_of(pod), pod_ips(pod)
        self._pods[key_of(pod)] = pod
        self._with_two_addresses += len(addresses) > 1
        if peer.group is not None:
            self._by_group.setdefault(peer.group, {})[peer.pod_name] = pod
        if not addresses:
            return
        for address in addresses if not is_over(pod) else ():
            # A new pod may have the address of one that is just going; only pods of a node's network share one.
            shares = (pod.get("spec") or {}).get("hostNetwork")
            self._by_address[address] = (self._by_address.get(address, set()) if shares else set()) | {peer}
        self._forget_ends(pod)
        self._forget_removed(pod)

    def _remove(self, pod: JsonObject) -> None:
        peer, addresses = peer_of(pod), pod_ips(pod)
        self._with_two_addresses -= len(addresses) > 1
        for address in addresses:
            there = self._by_address.get(address)
            if there is not None:
                there.discard(peer)
                if not there:
                    del self._by_address[address]
        if peer.group is not None:
            own = self._by_group.get(peer.group, {})
            own.pop(peer.pod_name, None)
            if not own:
                self._by_group.pop(peer.group, None)

    def _forget_ends(self, pod: JsonObject) -> None:
        """An address that has a pod again says nothing any more about the pod that had it."""
        for group, ended in list(self._ended.items()):
            for name in [name for name, (one, _) in ended.items() if _share_an_address(one, pod)]:
                del ended[name]
            if not ended:
                del self._ended[group]

    def _forget_removed(self, pod: JsonObject) -> None:
        """A pod with an address replaces the one of its name before it, and the one that had this address."""
        peer, addresses = peer_of(pod), set(pod_ips(pod))
        for group, removed in list(self._removed.items()):
            for name, those in list(removed.items()):
                if not addresses.isdisjoint(those) or (group, name) == (peer.group, peer.pod_name):
                    del removed[name]
            if not removed:
                del self._removed[group]
        for group, places in list(self._removed_places.items()):
            for name in [name for name, place in places.items() if place.ip in addresses]:
                del places[name]
            if not places:
                del self._removed_places[group]


def _own_first(pod: JsonObject) -> tuple[str, ...]:
    """Return all addresses of the pod, first the one that its broker uses."""
    own = pod_ip(pod)
    return (own, *(one for one in pod_ips(pod) if one != own)) if own else ()


def _known_by(pod: JsonObject) -> str:
    place = place_of(pod)
    return pod_ip(pod) if place is None else place.address


def _share_an_address(one: JsonObject, other: JsonObject) -> bool:
    places = place_of(one), place_of(other)
    if None in places:
        return places == (None, None) and not set(pod_ips(one)).isdisjoint(pod_ips(other))
    return places[0] is not None and places[1] is not None and places[0].address == places[1].address
