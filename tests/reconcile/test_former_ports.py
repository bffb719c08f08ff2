"""While a change of address goes from member to member, each is reached where its pod is known; later only where it is wished."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from brokergroup_operator.api import names
from brokergroup_operator.kube.resources import SERVICES
from brokergroup_operator.reconcile.evaluate import evaluate
from brokergroup_operator.reconcile.plan import ApplyObject
from brokergroup_operator.reconcile.render.addressing import address_is_lost, build_member_service, place_of
from brokergroup_operator.reconcile.render.former_ports import with_former_ports
from brokergroup_operator.reconcile.render.pods import build_pod
from tests.reconcile import builders as b
from tests.reconcile.test_addressing import WISHES, settled

if TYPE_CHECKING:
    from brokergroup_operator.api.brokergroup import BrokerGroup
    from brokergroup_operator.reconcile.see.observed import Observed

SERVICE_IP, NODE_PORT, LOAD_BALANCER = (WISHES[one] for one in ("ServiceIP", "NodePort", "LoadBalancer"))
JAVA = {"implementation": "rocketmq"}


def of(network: dict[str, Any], **spec: Any) -> BrokerGroup:
    return b.group(network=network, **JAVA | spec)


def stored(service: dict[str, Any]) -> dict[str, Any]:
    """As the API server gives it back, and its load balancer has an address."""
    kept = b.stored(service)
    kept["spec"]["clusterIP"] = "10.96.0.2"
    ingress = [{"ip": "203.0.113.2"}] if kept["spec"]["type"] == "LoadBalancer" else []
    return kept | {"status": {"loadBalancer": {"ingress": ingress}}}


def member_service(group: BrokerGroup) -> dict[str, Any]:
    return build_member_service(group, b.member(2), slot=1)


def pod_of(group: BrokerGroup, service: dict[str, Any]) -> dict[str, Any]:
    place = place_of(group, b.member(2), b.by_name(service))
    assert place is not None
    assert not place.missing
    return build_pod(group, b.member(2), b.SETTINGS, place=place)


def moved(before: BrokerGroup, after: BrokerGroup) -> dict[str, Any]:
    """The Service of a member whose pod was started before the change."""
    there = stored(member_service(before))
    return with_former_ports(member_service(after), there, pod_of(before, there))


def shown(service: dict[str, Any]) -> dict[str, Any]:
    """Type, and of each port number, protocol and node port by its name; whither it leads is asserted here."""
    for port in service["spec"]["ports"]:
        assert port["targetPort"] == port["name"].removeprefix("former-")
    ports = {
        one["name"]: f"{one['port']}/{one['protocol']}" + (f" at {one['nodePort']}" if "nodePort" in one else "")
        for one in service["spec"]["ports"]
    }
    return {"type": service["spec"]["type"]} | ports


SERVICE_IP_PORTS = {"broker": "10911/TCP", "fast": "10909/TCP", "ha": "10912/TCP", "fence": "10913/UDP"}
NODE_PORT_PORTS = {"broker": "30107/TCP at 30107", "fast": "30105/TCP at 30105", "fence": "30109/UDP at 30109"}
CHANGES: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "ServiceIP to NodePort": (
        SERVICE_IP,
        NODE_PORT,
        # All within the member's own five: no number that another member is about to ask for.
        {"type": "NodePort"}
        | NODE_PORT_PORTS
        | {
            "former-broker": "10911/TCP at 30106",
            "former-fast": "10909/TCP at 30108",
            "former-ha": "10912/TCP at 30109",
            "former-fence": "10913/UDP at 30105",
        },
    ),
    "NodePort to ServiceIP": (
        NODE_PORT,
        SERVICE_IP,
        # Nothing else, the log above all, is opened on the nodes meanwhile.
        {
            "type": "NodePort",
            "former-broker": "30107/TCP at 30107",
            "former-fast": "30105/TCP at 30105",
            "former-fence": "30109/UDP at 30109",
        },
    ),
    "ServiceIP to LoadBalancer": (
        SERVICE_IP,
        LOAD_BALANCER,
        {"type": "LoadBalancer", "broker": "10911/TCP", "fast": "10909/TCP", "former-ha": "10912/TCP"},
    ),
    "LoadBalancer to ServiceIP": (
        LOAD_BALANCER,
        SERVICE_IP,
        {"type": "LoadBalancer", "broker": "10911/TCP", "fast": "10909/TCP"},
    ),
    "NodePort to LoadBalancer": (
        NODE_PORT,
        LOAD_BALANCER,
        {
            "type": "LoadBalancer",
            "broker": "10911/TCP",
            "fast": "10909/TCP",
            "former-broker": "30107/TCP at 30107",
            "former-fast": "30105/TCP at 30105",
        },
    ),
    "LoadBalancer to NodePort": (
        LOAD_BALANCER,
        NODE_PORT,
        {
            "type": "LoadBalancer",
            "broker": "30107/TCP at 30107",
            "fast": "30105/TCP at 30105",
            "former-broker": "10911/TCP at 30106",
            "former-fast": "10909/TCP at 30108",
        },
    ),
    "other node ports": (
        NODE_PORT,
        NODE_PORT | {"firstNodePort": 30200},
        {
            "type": "NodePort",
            "broker": "30207/TCP at 30207",
            "fast": "30205/TCP at 30205",
            "fence": "30209/UDP at 30209",
            "former-broker": "30107/TCP at 30107",
            "former-fast": "30105/TCP at 30105",
            "former-fence": "30109/UDP at 30109",
        },
    ),
    "another port to listen on": (
        SERVICE_IP,
        SERVICE_IP | {"listenPort": 20911},
        {
            "type": "ClusterIP",
            "broker": "20911/TCP",
            "fast": "20909/TCP",
            "ha": "10912/TCP",
            "fence": "20913/UDP",
            "former-broker": "10911/TCP",
            "former-fast": "10909/TCP",
            "former-fence": "10913/UDP",
        },
    ),
    "another port for the log": (
        SERVICE_IP,
        SERVICE_IP | {"haPort": 20912},
        {"type": "ClusterIP"} | SERVICE_IP_PORTS | {"ha": "20912/TCP", "former-ha": "10912/TCP"},
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_both_lead_to_a_pod_that_waits_for_its_turn(change: str) -> None:
    before, after, expected = CHANGES[change]
    service = moved(of(before), of(after))
    assert shown(service) == expected
    numbers = [(port["port"], port["protocol"]) for port in service["spec"]["ports"]]
    assert len(set(numbers)) == len(numbers), "by these the API server merges them"
    assert ("externalTrafficPolicy" in service["spec"]) is (service["spec"]["type"] == "NodePort")


@pytest.mark.parametrize("change", CHANGES)
def test_nothing_more_is_done_until_the_pod_is_another_one(change: str) -> None:
    before, after, _ = CHANGES[change]
    there, pod = stored(moved(of(before), of(after))), pod_of(of(before), stored(member_service(of(before))))
    there["status"] = {"loadBalancer": {"ingress": [{"ip": "203.0.113.2"}]}} if "LoadBalancer" in change else {}
    wanted = member_service(of(after))
    assert with_former_ports(wanted, there, pod) == moved(of(before), of(after))
    assert with_former_ports(wanted, there, None) == wanted
    assert with_former_ports(wanted, there, pod_of(of(after), there)) == wanted


@pytest.mark.parametrize("network", [SERVICE_IP, NODE_PORT, LOAD_BALANCER], ids=lambda one: str(one["addressing"]))
def test_without_a_change_there_is_nothing_to_keep(network: dict[str, Any]) -> None:
    there = stored(member_service(of(network)))
    wanted = member_service(of(network))
    assert with_former_ports(wanted, there, pod_of(of(network), there)) == wanted
    assert with_former_ports(wanted, None, pod_of(of(network), there)) == wanted, "its ClusterIP is asked for first"
    plain = build_pod(of({}), b.member(2), b.SETTINGS)
    assert with_former_ports(wanted, there, plain) == wanted, "it is known by its own address"


def test_a_change_of_mind_keeps_what_the_pod_is_known_by_and_not_what_was_wished_meanwhile() -> None:
    first = stored(member_service(of(SERVICE_IP)))
    pod = pod_of(of(SERVICE_IP), first)
    second = stored(with_former_ports(member_service(of(NODE_PORT)), first, pod))
    third = with_former_ports(member_service(of(SERVICE_IP | {"listenPort": 20911})), second, pod)
    assert shown(third) == CHANGES["another port to listen on"][2]


def test_a_port_of_a_users_own_container_is_none_of_the_services() -> None:
    there = stored(member_service(of(SERVICE_IP)))
    pod = pod_of(of(SERVICE_IP), there)
    sidecar = {"name": "mine", "ports": [{"name": names.PORT_HA, "containerPort": 7777}]}
    pod = pod | {"spec": pod["spec"] | {"containers": [sidecar, *pod["spec"]["containers"]]}}
    service = with_former_ports(member_service(of(NODE_PORT)), there, pod)
    assert "7777/TCP" not in " ".join(shown(service).values())


def test_a_pod_that_another_service_made_known_gets_nothing() -> None:
    there = stored(member_service(of(SERVICE_IP)))
    pod = pod_of(of(SERVICE_IP), there)
    there["spec"]["clusterIP"] = "10.96.9.9"
    assert with_former_ports(member_service(of(NODE_PORT)), there, pod) == member_service(of(NODE_PORT))


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (
            SERVICE_IP,
            SERVICE_IP | {"listenPort": 10913},
            {"broker": "10913 broker", "fast": "10911 broker", "former-fast": "10909 fast", "ha": "10912 ha"},
        ),
        (
            NODE_PORT,
            NODE_PORT | {"firstNodePort": 30098},
            {"broker": "30105 fast", "fast": "30103 fast", "former-broker": "30107 broker"},
        ),
    ],
    ids=["it listens where the next one is fast", "it is fast where the next one listens"],
)
def test_a_number_leads_where_the_pod_that_is_there_listens(
    before: dict[str, Any], after: dict[str, Any], expected: dict[str, str]
) -> None:
    """Of the wished Service it has the name all the same: by that the member's node ports are told."""
    service = moved(of(before), of(after))
    led = {port["name"]: f"{port['port']} {port['targetPort']}" for port in service["spec"]["ports"]}
    assert {name: led[name] for name in expected} == expected
    assert not any(port["nodePort"] != port["port"] for port in service["spec"]["ports"] if "nodePort" in port)


def test_a_number_that_another_port_needs_now_is_not_kept() -> None:
    """Twice in the middle of a roll: what the former port has been given meanwhile is now the broker's own."""
    first = stored(member_service(of(SERVICE_IP)))
    pod = pod_of(of(SERVICE_IP), first)
    second = stored(with_former_ports(member_service(of(NODE_PORT)), first, pod))
    assert shown(second)["former-broker"] == "10911/TCP at 30106"
    third = with_former_ports(member_service(of(NODE_PORT | {"firstNodePort": 30099})), second, pod)
    assert shown(third)["broker"] == "30106/TCP at 30106"
    assert shown(third)["former-broker"] == "10911/TCP at 30105"


def test_a_pod_gets_nobody_a_node_port_that_its_service_has_not() -> None:
    """Who may write to pods may not open ports of nodes by that."""
    there = stored(member_service(of(SERVICE_IP)))
    other = stored(member_service(of(NODE_PORT)))
    assert with_former_ports(member_service(of(SERVICE_IP)), there, pod_of(of(NODE_PORT), other)) == member_service(
        of(SERVICE_IP)
    )


def moving() -> Observed:
    """Three members in full order, known by their cluster IPs; node ports are wished from now on."""
    return b.changed(
        settled("ServiceIP"), group=b.group(network=NODE_PORT), group_object=b.group_object(network=NODE_PORT)
    )


def test_a_group_that_moves_loses_no_address_and_has_all_the_new_ones() -> None:
    seen = moving()
    actions = evaluate(seen, b.SETTINGS, now=b.NOW).actions
    applied = b.by_name(*(a.object for a in actions if isinstance(a, ApplyObject) and a.resource == SERVICES))
    assert applied.keys() == seen.pods.keys()
    later = b.changed(seen, services={**seen.services, **applied})
    numbers: set[int] = set()
    for broker_id in (1, 2, 3):
        ports = applied[f"orders-{broker_id}"]["spec"]["ports"]
        assert {10911, 10909, 10912} < {port["port"] for port in ports}
        assert not address_is_lost(later, b.member(broker_id))
        place = place_of(later.group, b.member(broker_id), later.services)
        assert place is not None
        assert place.text == f":{30097 + 5 * broker_id}"
        own = {port["nodePort"] for port in ports}
        assert not own & numbers, "a number is given once in the cluster"
        numbers |= own
    assert numbers == set(range(30100, 30115))
