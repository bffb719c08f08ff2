"""By which address each member is known, and the Service that gives it one (spec.network.addressing). Pure.

| addressing   | clients, controller (brokerIP1)        | slaves (brokerIP2)   | listens on            |
|--------------|----------------------------------------|----------------------|-----------------------|
| PodIP        | the pod's IP                           | the pod's IP         | listenPort            |
| HostNetwork  | the node's IP, which is the pod's      | the same             | listenPort            |
| ServiceIP    | the member's ClusterIP Service         | the same Service     | listenPort            |
| NodePort     | the IP of the pod's node               | the pod's IP         | a node port of its own |
| LoadBalancer | what the member's Service was given    | the pod's IP         | listenPort            |

A broker advertises the port that it listens on, so it can't listen on another one than it is reached at: that is why a member's
node ports are chosen here and not by the API server. A pod that must know its address is made only once it has one.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

from msgspec.structs import replace

from brokergroup_operator.api import names, pod_fence
from brokergroup_operator.api.bounds import MAX_REPLICAS
from brokergroup_operator.api.brokergroup import Implementation
from brokergroup_operator.api.network_fields import NODE_PORTS_EACH, Addressing
from brokergroup_operator.api.proxy_fields import PROXY_PORTS
from brokergroup_operator.kube.resources import SERVICES
from brokergroup_operator.reconcile import identity
from brokergroup_operator.reconcile.plan import Action, ApplyObject, DeleteObject
from brokergroup_operator.reconcile.see import foreign, observed
from brokergroup_operator.reconcile.see.members import membership
from rocketmq_remoting.address import is_ip, join_address, plain_host

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from brokergroup_operator.api.bounds import JsonObject
    from brokergroup_operator.api.brokergroup import BrokerGroup, BrokerGroupSpec
    from brokergroup_operator.reconcile.identity import Member
    from brokergroup_operator.reconcile.see.observed import Observed


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a member is reached. `host` is empty where only the pod will know it: the address of its node."""

    host: str = ""
    port: int
    # Why there is no address yet; the pod waits for it.
    missing: str = ""

    @property
    def text(self) -> str:
        """As the pod's annotation has it."""
        return join_address(self.host, self.port)


def known_host(spec: BrokerGroupSpec) -> str:
    """The variable with the host by which others know the broker."""
    return names.ENVIRONMENT_BROKER_HOST if spec.network.addressing.has_member_services else "POD_IP"


def pod_addresses(spec: BrokerGroupSpec) -> list[JsonObject]:
    """Variables with the pod's address; where the group names a family, all addresses and which one it uses."""
    own = [from_field("POD_IP", "status.podIP")]
    if not spec.network.broker_family:
        return own
    family = {"name": names.ENVIRONMENT_IP_FAMILY, "value": spec.network.broker_family}
    return [*own, from_field(names.ENVIRONMENT_POD_IPS, "status.podIPs"), family]


def own_hosts(spec: BrokerGroupSpec, variable: str) -> str:
    """The variable with all addresses of which `variable` has the first; the same one where the group names no family."""
    all_of = {"POD_IP": names.ENVIRONMENT_POD_IPS}
    if spec.network.addressing is Addressing.NODE_PORT:
        all_of[names.ENVIRONMENT_BROKER_HOST] = names.ENVIRONMENT_NODE_IPS
    return all_of.get(variable, variable) if spec.network.broker_family else variable


def environment(spec: BrokerGroupSpec, place: Place | None) -> list[JsonObject]:
    """What a container needs beside its pod's own address; nothing where that is the one."""
    addressing = spec.network.addressing
    if not addressing.has_member_services:
        return []
    if addressing is not Addressing.NODE_PORT:
        return [{"name": names.ENVIRONMENT_BROKER_HOST, "value": place.host if place else ""}]
    all_of_node = [from_field(names.ENVIRONMENT_NODE_IPS, "status.hostIPs")] if spec.network.broker_family else []
    return [
        from_field(names.ENVIRONMENT_BROKER_HOST, "status.hostIP"),
        *all_of_node,
        {"name": names.ENVIRONMENT_LISTEN_PORT, "value": str(place.port if place else spec.network.listen_port)},
    ]


def from_field(name: str, path: str) -> JsonObject:
    """A variable with what the API server knows of the pod."""
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def proxy_ports(spec: BrokerGroupSpec) -> Mapping[str, int]:
    """The ports of the Proxy in the broker's process; none where it has none."""
    return {} if spec.local_proxy is None else PROXY_PORTS


# Of an address; Python reads no number that is much longer.
MOST_DIGITS = 5
# Which ports of a pod its Service leads to. Few load balancers carry TCP and UDP at once; behind a node slaves dial pods.
PORTS = {
    Addressing.SERVICE_IP: (names.PORT_BROKER, names.PORT_FAST, names.PORT_HA, names.PORT_FENCE, *PROXY_PORTS),
    Addressing.NODE_PORT: (names.PORT_BROKER, names.PORT_FAST, names.PORT_FENCE),
    Addressing.LOAD_BALANCER: (names.PORT_BROKER, names.PORT_FAST, *PROXY_PORTS),
}
# Of the five node ports of a member, the broker's own; its fast port comes before it, its fence's after.
BROKER_PLACE = names.FAST_PORT_OFFSET


def place_of(group: BrokerGroup, member: Member, services: Mapping[str, JsonObject]) -> Place | None:
    """The member's address, where it is not its pod's own."""
    addressing, port = group.spec.network.addressing, group.spec.network.listen_port
    if not addressing.has_member_services:
        return None
    service, host, missing = services.get(member.pod), "", ""
    by_service = addressing is Addressing.SERVICE_IP
    if service is None or observed.being_deleted(service):
        missing = "does not exist yet"
    elif not foreign.is_ours(service, {"metadata": group.metadata}):
        missing = "is none of this group's"
    elif addressing is Addressing.NODE_PORT:
        if (slot := _slot_of(group, service)) is not None:
            return Place(port=_node_port(group, slot))
        missing = "has no node port of this group yet"
    elif not (host := cluster_ip(service) if by_service else next(iter(ingresses(service)), "")):
        missing = f"has no {'cluster IP' if by_service else 'address of its load balancer'} yet"
    elif not is_ip(host) and group.spec.implementation is Implementation.PYTHON:
        # A message id holds an IP address, and a Java broker looks its own up.
        host, missing = "", f"was given the name {host}; a Python replica needs an IP address"
    return Place(host=host, port=port, missing=f"Service {member.pod} {missing}" if missing else "")


def as_placed(group: BrokerGroup, place: Place | None) -> BrokerGroup:
    """The group as the member's pod sees it: its own port."""
    if place is None or place.port == group.spec.network.listen_port:
        return group
    network = replace(group.spec.network, listen_port=place.port)
    return replace(group, spec=replace(group.spec, network=network))


def service_actions(seen: Observed) -> Iterator[Action]:
    """Make and keep the Service of each member; delete those of members that have left."""
    group, members = seen.group, membership(seen).with_pods
    if group.spec.network.addressing.has_member_services:
        slots = node_port_slots(group, [member.pod for member in members], seen.services, seen.pods)
        for member in members:
            wanted = build_member_service(group, member, slot=slots[member.pod])
            for action in foreign.apply_if_drifted(SERVICES, seen.services, wanted):
                yield _where_it_was(action, seen, member)
    yield from _surplus(seen)


def _where_it_was(action: Action, seen: Observed, member: Member) -> Action:
    """A Service keeps its address. One that is made again gets that by which the member is known, if it is still free."""
    service = seen.services.get(member.pod)
    if service is not None:
        host = cluster_ip(service)
    elif seen.group.spec.network.addressing is Addressing.SERVICE_IP:
        host, _ = address_of(seen.pods.get(member.pod)) or ("", 0)
    else:
        return action
    if not isinstance(action, ApplyObject) or not is_ip(host):
        return action
    there = action.object | {"spec": action.object["spec"] | {"clusterIP": host}}
    return dataclasses.replace(action, object=there, otherwise=action.object)


def address_is_lost(seen: Observed, member: Member) -> bool:
    """Whether the pod is known by an address that its Service no longer has: connections fail, and its heartbeats go on."""
    pod, service = seen.pods.get(member.pod), seen.services.get(member.pod)
    address = address_of(pod)
    if address is None or service is None or observed.being_deleted(service):
        return False
    host, port = address
    return host not in {cluster_ip(service), *ingresses(service)} if host else port not in node_ports(service)


def address_of(pod: JsonObject | None) -> tuple[str, int] | None:
    """Host (empty: its node's) and port by which the pod is known, if not its own. None where the annotation has no address."""
    host, colon, port = observed.annotations_of(pod or {}).get(names.ANNOTATION_ADDRESS, "").rpartition(":")
    is_number = port.isascii() and port.isdecimal() and len(port) <= MOST_DIGITS
    return (plain_host(host), int(port)) if colon and is_number else None


def node_ports(service: JsonObject) -> set[int]:
    return {port["nodePort"] for port in service["spec"].get("ports") or [] if port.get("nodePort")}


def cluster_ip(service: JsonObject) -> str:
    address = str(service["spec"].get("clusterIP") or "")
    return "" if address == "None" else plain_host(address)


def ingresses(service: JsonObject) -> list[str]:
    given = ((service.get("status") or {}).get("loadBalancer") or {}).get("ingress") or []
    return [plain_host(str(one.get("ip") or one.get("hostname") or "")) for one in given]


def _surplus(seen: Observed) -> Iterator[Action]:
    group, has_services = identity.name_of(seen.group), seen.group.spec.network.addressing.has_member_services
    members = membership(seen)
    wanted = {member.pod for member in (*members.with_pods, *members.surplus)} if has_services else ()
    for name, service in sorted(foreign.made_here(seen, SERVICES).items()):
        of_member = names.broker_id_of_pod_name(group, name) is not None
        # The pod of a member that leaves is known by it to its end.
        used = name in wanted or names.ANNOTATION_ADDRESS in observed.annotations_of(seen.pods.get(name) or {})
        if of_member and not used and not observed.being_deleted(service):
            yield DeleteObject.of(SERVICES, service, "no member is known by it")


def build_member_service(group: BrokerGroup, member: Member, *, slot: int) -> JsonObject:
    """Also for a pod that is not ready: a broker registers, and its log is copied, before it is."""
    addressing = group.spec.network.addressing
    kinds = {Addressing.SERVICE_IP: "ClusterIP", Addressing.NODE_PORT: "NodePort"}
    spec: JsonObject = {
        "type": kinds.get(addressing, "LoadBalancer"),
        "selector": identity.selector_labels(group) | {names.LABEL_BROKER_ID: str(member.broker_id)},
        "publishNotReadyAddresses": True,
        "ports": list(_ports(group, slot)),
        **group.spec.network.on_services(),
    }
    if addressing is Addressing.NODE_PORT:
        # The pod is known by its own node: another one must not take the long way.
        spec["externalTrafficPolicy"] = "Local"
    metadata = identity.object_metadata(group, member.pod, identity.member_labels(group, member))
    return {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec}


def _ports(group: BrokerGroup, slot: int) -> Iterator[JsonObject]:
    network = group.spec.network
    by_number = network.addressing is Addressing.NODE_PORT
    own = _node_port(group, slot) if by_number else network.listen_port
    # From the fast port a Java slave copies its master's topics.
    fast = own - names.FAST_PORT_OFFSET
    numbers = {names.PORT_BROKER: own, names.PORT_FAST: fast, names.PORT_HA: network.ha_port, **proxy_ports(group.spec)}
    if pod_fence.kills_the_isolated(group.spec):
        numbers[names.PORT_FENCE] = own + names.FENCE_PORT_OFFSET
    for name in PORTS[network.addressing]:
        if (number := numbers.get(name)) is not None:
            protocol = "UDP" if name == names.PORT_FENCE else "TCP"
            port = {"name": name, "port": number, "targetPort": name, "protocol": protocol}
            yield port | ({"nodePort": number} if by_number else {})


def node_port_slots(
    group: BrokerGroup, names_of_pods: list[str], services: Mapping[str, JsonObject], pods: Mapping[str, JsonObject]
) -> dict[str, int]:
    """Which five of the group's node ports each member has: those that it has, or is known by, else the first that are free."""
    slots = {name: slot for name in services if (slot := _slot_of(group, services[name])) is not None}
    taken = set(slots.values())
    for name in names_of_pods:
        host, port = address_of(pods.get(name)) or ("", 0)
        slot = None if host else _slot_at(group, port)
        if name not in slots and slot is not None and slot < MAX_REPLICAS and slot not in taken:
            slots[name] = slot
            taken.add(slot)
    free = (slot for slot in range(MAX_REPLICAS + len(taken)) if slot not in taken)
    return slots | {name: next(free) for name in names_of_pods if name not in slots}


def _slot_of(group: BrokerGroup, service: JsonObject) -> int | None:
    """By the number that we chose: one that the API server chose is another than the port's own, and anywhere."""
    ports = service["spec"].get("ports") or []
    chosen = {port.get("name"): port["port"] for port in ports if port.get("nodePort") == port["port"]}
    return _slot_at(group, chosen.get(names.PORT_BROKER, 0))


def _slot_at(group: BrokerGroup, own: int) -> int | None:
    first = group.spec.network.first_node_port
    if first is None or own < first + BROKER_PLACE:
        return None
    slot, rest = divmod(own - BROKER_PLACE - first, NODE_PORTS_EACH)
    return slot if rest == 0 else None


def _node_port(group: BrokerGroup, slot: int) -> int:
    return (group.spec.network.first_node_port or 0) + slot * NODE_PORTS_EACH + BROKER_PLACE
