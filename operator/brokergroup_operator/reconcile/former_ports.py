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
from brokergroup_operator.api.pod_fields import NODE_PORTS_EACH, Addressing
from brokergroup_operator.reconcile import observed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from brokergroup_operator.api.bounds import JsonObject

PREFIX: Final = "former-"
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
    ports = {(port["port"], port["protocol"]): port for port in spec["ports"]}
    for port in _of_pod(pod, known):
        key, number = (port["port"], port["protocol"]), port["port"]
        kept_port = ports.get(key, port | {"name": PREFIX + port["name"]})
        ports[key] = kept_port | ({"nodePort": number} if known is Addressing.NODE_PORT else {})
    kept = [port for port in ports.values() if kind != "LoadBalancer" or port["protocol"] == "TCP"]
    if spec["type"] == "NodePort":
        kept = _numbered(kept, {port["name"]: port.get("nodePort") for port in there["spec"].get("ports") or []})
    policy = {"externalTrafficPolicy": "Local"} if kind == "NodePort" else {}
    rest = {key: value for key, value in spec.items() if key != "externalTrafficPolicy"}
    return wanted | {"spec": rest | {"type": kind, "ports": kept} | policy}


def known_by(there: JsonObject | None, pod: JsonObject | None) -> Addressing | None:
    """How the pod is known; None where this Service has no part in it."""
    host, _, port = address_of(pod).rpartition(":")
    if there is None or not port:
        return None
    if not host:
        return Addressing.NODE_PORT
    if host == cluster_ip(there):
        return Addressing.SERVICE_IP
    return Addressing.LOAD_BALANCER if host in ingresses(there) else None


def address_of(pod: JsonObject | None) -> str:
    """Host and port by which the pod is known, where these are not its own; no host where it is its node's."""
    return observed.annotations_of(pod or {}).get(names.ANNOTATION_ADDRESS, "")


def cluster_ip(service: JsonObject) -> str:
    """The Service's own address, or the empty text."""
    address = str(service["spec"].get("clusterIP") or "")
    return "" if address == "None" else address


def ingresses(service: JsonObject) -> list[str]:
    """Addresses and names that a load balancer was given."""
    given = ((service.get("status") or {}).get("loadBalancer") or {}).get("ingress") or []
    return [str(one.get("ip") or one.get("hostname") or "") for one in given]


def _type_of(wanted: str, known: Addressing) -> str:
    """The type that gives the member its new address and does not take its present one."""
    if known is Addressing.LOAD_BALANCER:
        return "LoadBalancer"
    return "NodePort" if known is Addressing.NODE_PORT and wanted == "ClusterIP" else wanted


def _of_pod(pod: JsonObject, known: Addressing) -> Iterator[JsonObject]:
    ours = (names.CONTAINER_BROKER, names.CONTAINER_FENCE)
    for container in (one for one in pod["spec"]["containers"] if one["name"] in ours):
        for port in container.get("ports") or []:
            if (name := port.get("name")) in PORTS[known]:
                protocol = port.get("protocol", "TCP")
                yield {"name": name, "port": port["containerPort"], "targetPort": name, "protocol": protocol}


def _numbered(ports: list[JsonObject], present: dict[str, int | None]) -> list[JsonObject]:
    """With a node port for each: of those that have none, what they have already, or one that is left of the member's five.

    Left to the API server they could be given a number that another member of the group is about to ask for.
    """
    own = next(port["nodePort"] for port in ports if port["name"] == names.PORT_BROKER)
    first = own - names.FAST_PORT_OFFSET
    taken = {(port.get("nodePort"), port["protocol"]) for port in ports}
    numbered = []
    for port in ports:
        number = port.get("nodePort") or present.get(port["name"]) or _free(first, port["protocol"], taken)
        taken.add((number, port["protocol"]))
        numbered.append(port | {"nodePort": number})
    return numbered


def _free(first: int, protocol: str, taken: set[tuple[int | None, str]]) -> int:
    """A fence's number serves TCP too, and a broker's UDP: at most three and one are looked for."""
    return next(number for number in range(first, first + NODE_PORTS_EACH) if (number, protocol) not in taken)
