"""What a member's Service keeps while its pod is known by ports that the group does not wish any more. Pure.

A Service changes at once and pods change one after the other. A pod that waits for its turn is still known by the ports that it was
started with: there its slaves copy topics and logs, clients send, and fences ask each other whether anybody hears the operator.
Without them a slave never copied its master's topics, its master was not let go of for that, and the change stood still. So the
Service has both until its pod is another one. The pod itself says which: how it is known stands in its annotation, and a broker
listens where it is reached.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from brokergroup_operator.api import names
from brokergroup_operator.api.network_fields import NODE_PORTS_EACH, Addressing
from brokergroup_operator.reconcile.see import observed
from rocketmq_remoting.address import plain_host

if TYPE_CHECKING:
    from collections.abc import Iterator

    from brokergroup_operator.api.bounds import JsonObject

PREFIX: Final = "former-"
# Of a port; Python reads no number that is much longer.
MOST_DIGITS: Final = 5
# Which ports of a pod its Service leads to. Few load balancers carry TCP and UDP at once; behind a node slaves dial pods.
PORTS: Final = {
    Addressing.SERVICE_IP: (names.PORT_BROKER, names.PORT_FAST, names.PORT_HA, names.PORT_FENCE),
    Addressing.NODE_PORT: (names.PORT_BROKER, names.PORT_FAST, names.PORT_FENCE),
    Addressing.LOAD_BALANCER: (names.PORT_BROKER, names.PORT_FAST),
}


def with_former_ports(wanted: JsonObject, there: JsonObject | None, pod: JsonObject | None) -> JsonObject:
    """The wanted Service (given with its type and ports), and in it all by which the pod is known.

    `there` is the Service as the API has it, which says whether the pod's address is one of its own.
    """
    known = known_by(there, pod)
    if known is None or there is None or pod is None:
        return wanted
    spec = wanted["spec"]
    kind = _type_of(spec["type"], known)
    new = {(port["port"], port["protocol"]): port for port in spec["ports"]}
    # Nobody dials it at the cluster IP yet. On nodes and load balancers others would find them open; the log's has no lock.
    ports = dict(new) if kind == spec["type"] or spec["type"] != "ClusterIP" else {}
    for port in _of_pod(pod, there, known):
        key, name = (port["port"], port["protocol"]), port["name"]
        # Until then the number leads where this pod listens, also where the next one listens there for something else.
        ports[key] = new.get(key, port | {"name": PREFIX + name}) | {"targetPort": name}
        if known is Addressing.NODE_PORT:
            ports[key] |= {"nodePort": port["port"]}
    kept = [port for port in ports.values() if kind != "LoadBalancer" or port["protocol"] == "TCP"]
    if not kept:
        return wanted
    if spec["type"] == "NodePort":
        kept = _numbered(kept, {port.get("name", ""): port.get("nodePort") for port in _ports_of(there)})
    policy = {"externalTrafficPolicy": "Local"} if kind == "NodePort" else {}
    rest = {key: value for key, value in spec.items() if key != "externalTrafficPolicy"}
    return wanted | {"spec": rest | {"type": kind, "ports": kept} | policy}


def known_by(there: JsonObject | None, pod: JsonObject | None) -> Addressing | None:
    """How the pod is known; None where this Service has no part in it."""
    address = address_of(pod)
    if there is None or address is None:
        return None
    host, port = address
    if not host:
        return Addressing.NODE_PORT if port in node_ports(there) else None
    if host == cluster_ip(there):
        return Addressing.SERVICE_IP
    return Addressing.LOAD_BALANCER if host in ingresses(there) else None


def address_of(pod: JsonObject | None) -> tuple[str, int] | None:
    """Host and port by which the pod is known, where these are not its own; no host where it is its node's.

    Whoever may write to the pod may write there what he likes: None where it is no address.
    """
    host, colon, port = observed.annotations_of(pod or {}).get(names.ANNOTATION_ADDRESS, "").rpartition(":")
    is_number = port.isascii() and port.isdecimal() and len(port) <= MOST_DIGITS
    return (plain_host(host), int(port)) if colon and is_number else None


def node_ports(service: JsonObject) -> set[int]:
    """The node ports that the Service has."""
    return {port["nodePort"] for port in _ports_of(service) if port.get("nodePort")}


def cluster_ip(service: JsonObject) -> str:
    """The Service's own address, or the empty text."""
    address = str(service["spec"].get("clusterIP") or "")
    return "" if address == "None" else plain_host(address)


def ingresses(service: JsonObject) -> list[str]:
    """Addresses and names that a load balancer was given."""
    given = ((service.get("status") or {}).get("loadBalancer") or {}).get("ingress") or []
    return [plain_host(str(one.get("ip") or one.get("hostname") or "")) for one in given]


def _type_of(wanted: str, known: Addressing) -> str:
    """The type that gives the member its new address and does not take its present one."""
    if known is Addressing.LOAD_BALANCER:
        return "LoadBalancer"
    return "NodePort" if known is Addressing.NODE_PORT and wanted == "ClusterIP" else wanted


def _of_pod(pod: JsonObject, there: JsonObject, known: Addressing) -> Iterator[JsonObject]:
    """The ports by which it is known, each once. Of node ports those that the Service has: a pod gets nobody another one."""
    ours, given = (names.CONTAINER_BROKER, names.CONTAINER_FENCE), node_ports(there)
    containers = (one for one in pod["spec"]["containers"] if one["name"] in ours)
    found = {port.get("name"): port for one in containers for port in one.get("ports") or []}
    for name in (one for one in PORTS[known] if one in found):
        number, protocol = found[name]["containerPort"], found[name].get("protocol", "TCP")
        if known is not Addressing.NODE_PORT or number in given:
            yield {"name": name, "port": number, "targetPort": name, "protocol": protocol}


def _numbered(ports: list[JsonObject], present: dict[str, int | None]) -> list[JsonObject]:
    """With a node port for each: of those that have none, what they have already, or one that is left of the member's five.

    Left to the API server they could be given a number that another member of the group is about to ask for. A fence's number
    serves TCP too, and a broker's UDP, so five are enough.
    """
    own = next(port["nodePort"] for port in ports if port["name"] == names.PORT_BROKER)
    first = own - names.FAST_PORT_OFFSET
    taken = {(port.get("nodePort"), port["protocol"]) for port in ports}
    numbered = []
    for port in ports:
        left = (present.get(port["name"]), *range(first, first + NODE_PORTS_EACH))
        free = (one for one in left if one and (one, port["protocol"]) not in taken)
        number = port.get("nodePort") or next(free, None)
        taken.add((number, port["protocol"]))
        numbered.append(port | ({"nodePort": number} if number else {}))
    return numbered


def _ports_of(service: JsonObject) -> list[JsonObject]:
    return list(service["spec"].get("ports") or [])
