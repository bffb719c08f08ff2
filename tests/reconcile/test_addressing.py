"""The address of each member: its Service, its pod, what a pod waits for, and `spec.network.ipFamilies`."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from brokergroup_operator.api import names
from brokergroup_operator.fence.settings import FenceSettings, FenceSettingsError, fence_of, own_address
from brokergroup_operator.kube.resources import PODS, SERVICES
from brokergroup_operator.reconcile.clusters.parts import broker_groups, name_servers, proxies
from brokergroup_operator.reconcile.other_groups import BrokerNames, key_of
from brokergroup_operator.reconcile.plan import ApplyObject, DeleteObject
from brokergroup_operator.reconcile.render.addressing import (
    address_is_lost,
    address_of,
    build_member_service,
    node_port_slots,
    place_of,
)
from brokergroup_operator.reconcile.render.broker_config import broker_conf, broker_properties
from brokergroup_operator.reconcile.render.children import build_master_service, build_members_service
from brokergroup_operator.reconcile.render.containers import command
from brokergroup_operator.reconcile.render.pods import build_pod
from brokergroup_operator.reconcile.see import foreign
from brokergroup_operator.reconcile.see.observed import Observed
from brokergroup_operator.reconcile.settings import ReconcileSettings
from rocketmq_remoting.address import Address
from tests.reconcile import builders as b
from tests.reconcile import cases as c
from tests.reconcile.cases import compare, run

if TYPE_CHECKING:
    from pathlib import Path


# Those by which a member has a Service of its own.
WISHES: dict[str, dict[str, Any]] = {
    "ServiceIP": {"addressing": "ServiceIP"},
    "NodePort": {"addressing": "NodePort", "firstNodePort": 30100},
    "LoadBalancer": {"addressing": "LoadBalancer"},
}


def given(
    addressing: str, broker_id: int, *, slot: int | None = None, ready: bool = True, **spec: Any
) -> dict[str, Any]:
    """The member's Service as the API server gives it back; not `ready`: before it has an address."""
    of = b.group(network=WISHES[addressing], **spec)
    service = b.stored(build_member_service(of, b.member(broker_id), slot=broker_id - 1 if slot is None else slot))
    service["spec"]["clusterIP"] = f"10.96.0.{broker_id}" if ready or addressing != "ServiceIP" else ""
    ingress = [{"ip": f"203.0.113.{broker_id}"}] if ready and addressing == "LoadBalancer" else []
    service["status"] = {"loadBalancer": {"ingress": ingress}}
    return service


def new_group(addressing: str, *services: dict[str, Any]) -> Observed:
    kept = b.reserved(1, 2, 3)
    wish = WISHES[addressing]
    return Observed(
        group=b.group(network=wish),
        group_object=b.group_object(network=wish),
        record=kept,
        snapshot=b.snapshot(kept, live=()),
        services=b.by_name(*services),
    )


def with_services(seen: Observed, *services: dict[str, Any]) -> Observed:
    return b.changed(seen, services={**seen.services, **b.by_name(*services)})


def without_services(seen: Observed, *names_of_services: str) -> Observed:
    return b.changed(seen, services=b.without(seen.services, *names_of_services))


def all_given(addressing: str, *ids: int) -> list[dict[str, Any]]:
    return [given(addressing, one) for one in ids or (1, 2, 3)]


def settled(addressing: str) -> Observed:
    seen = b.settled(network=WISHES[addressing])
    pods = {}
    for broker_id, service in enumerate(all_given(addressing), start=1):
        pod = b.running_pod(seen.group, broker_id, role="master" if broker_id == 1 else "slave")
        place = place_of(seen.group, b.member(broker_id), b.by_name(service))
        made = build_pod(seen.group, b.member(broker_id), b.SETTINGS, place=place)
        pod["metadata"]["annotations"] |= made["metadata"]["annotations"]
        pods[pod["metadata"]["name"]] = pod | {"spec": made["spec"] | {"nodeName": "node-1"}}
    return b.changed(with_services(seen, *all_given(addressing)), pods=pods)


@pytest.mark.parametrize("addressing", WISHES)
def test_nothing_is_done_to_a_settled_group(addressing: str) -> None:
    assert [line for line in map(c.describe, run(settled(addressing)).actions) if line != "status"] == []


def test_a_deleted_service_is_made_again_and_the_pod_restarted_only_for_another_address() -> None:
    seen = settled("ServiceIP")
    gone = without_services(seen, "orders-2")
    assert set(c.applied(gone, "Service")) == {"orders-2"}
    assert c.told(gone, "UpToDate")[0] == "True"
    another = given("ServiceIP", 2)
    another["spec"]["clusterIP"] = "10.96.9.9"
    assert "orders-2 (PodChanged)" in c.told(with_services(seen, another), "UpToDate")[2]


def deleted_services(seen: Observed) -> list[str]:
    return [one.name for one in c.actions(seen, DeleteObject) if one.resource == SERVICES]


def test_a_members_service_goes_after_its_pod() -> None:
    of_leaver = with_services(settled("ServiceIP"), given("ServiceIP", 4))
    assert deleted_services(of_leaver) == ["orders-4"]
    pods = {**of_leaver.pods, "orders-4": of_leaver.pods["orders-3"]}
    assert deleted_services(b.changed(of_leaver, pods=pods)) == [], "its pod is known by it"


def of_a_user(addressing: str) -> dict[str, Any]:
    """A Service of a member's name that a person made, with our group's label on it."""
    labels = {names.LABEL_BROKER_GROUP: b.KEY.name, "app": "mine"}
    metadata = {"name": "orders-1", "namespace": b.KEY.namespace, "uid": "a-user's", "labels": labels}
    return given(addressing, 1) | {"metadata": metadata}


def test_a_users_service_is_not_deleted_though_our_label_is_on_it() -> None:
    assert deleted_services(with_services(b.settled(), of_a_user("LoadBalancer"))) == []


@pytest.mark.parametrize("addressing", WISHES)
def test_no_member_is_known_by_the_address_of_a_users_service(addressing: str) -> None:
    seen = new_group(addressing, of_a_user(addressing), *all_given(addressing, 2, 3))
    assert set(c.applied(seen, "Pod")) == {"orders-2", "orders-3"}
    assert "Service orders-1 is none of this group's" in c.told(seen, "Reconciling")[2]


@pytest.mark.parametrize("addressing", WISHES)
@pytest.mark.parametrize("implementation", ["Java", "Python"])
def test_member_service_and_pod(addressing: str, implementation: str) -> None:
    service = given(addressing, 2, implementation=implementation)
    of = b.group(implementation=implementation, network=WISHES[addressing])
    place = place_of(of, b.member(2), b.by_name(service))
    pod = build_pod(of, b.member(2), b.SETTINGS, place=place)
    shown = [build_member_service(of, b.member(2), slot=1), pod]
    compare(
        f"{addressing.lower()}-{implementation.lower()}.yaml", yaml.safe_dump_all(shown, sort_keys=False, width=120)
    )


@pytest.mark.parametrize("addressing", WISHES)
def test_a_pod_waits_for_the_address_that_it_must_know(addressing: str) -> None:
    """First the Services, then their addresses, then the pods; and meanwhile the group says what it waits for."""
    members = {"orders-1", "orders-2", "orders-3"}
    first = new_group(addressing)
    assert members < set(c.applied(first, "Service"))
    assert c.applied(first, "Pod") == {}
    assert c.condition(first, "Reconciling") == ("True", "WaitingForAddress")
    assert run(first).look_again_seconds is not None

    if addressing != "NodePort":
        second = new_group(addressing, *(given(addressing, one, ready=False) for one in (1, 2, 3)))
        assert c.applied(second, "Pod") == {}
        assert "orders-1 has no" in c.told(second, "Reconciling")[2]

    third = new_group(addressing, *all_given(addressing))
    assert set(c.applied(third, "Pod")) == members
    assert c.told(third, "Reconciling")[1] == "CreatingMembers"


@pytest.mark.parametrize(
    ("addressing", "expected"),
    [("ServiceIP", "10.96.0.2:10911"), ("NodePort", ":30107"), ("LoadBalancer", "203.0.113.2:10911")],
)
def test_the_pod_carries_the_address_by_which_it_is_known(addressing: str, expected: str) -> None:
    pod = c.applied(new_group(addressing, *all_given(addressing)), "Pod")["orders-2"]
    assert pod["metadata"]["annotations"][names.ANNOTATION_ADDRESS] == expected


def test_node_ports_are_kept_and_a_free_five_is_taken() -> None:
    """Member 2 has the first five by accident: no other member gets them, and it keeps them."""
    made = c.applied(new_group("NodePort", given("NodePort", 2, slot=0)), "Service")
    ports = {name: {port["name"]: port.get("nodePort") for port in one["spec"]["ports"]} for name, one in made.items()}
    assert ports["orders-1"] == {"broker": 30107, "fast": 30105}
    assert ports["orders-3"] == {"broker": 30112, "fast": 30110}
    assert "orders-2" not in made


def test_a_broker_listens_where_it_is_reached() -> None:
    of = b.group(network=WISHES["NodePort"], implementation="Java")
    place = place_of(of, b.member(1), b.by_name(given("NodePort", 1, implementation="Java")))
    pod = build_pod(of, b.member(1), b.SETTINGS, place=place)
    broker = pod["spec"]["containers"][0]
    expected = {"broker": 30102, "ha": 10912, "fast": 30100}
    assert {port["name"]: port["containerPort"] for port in broker["ports"]} == expected
    assert broker["readinessProbe"]["tcpSocket"]["port"] == 30102
    assert {"name": "LISTEN_PORT", "value": "30102"} in broker["env"]
    assert broker_properties("orders", of.spec, b.SETTINGS)["listenPort"] == "${LISTEN_PORT}"


def test_a_load_balancer_with_a_name_serves_java_brokers_alone() -> None:
    for implementation, waits in (("Python", True), ("Java", False)):
        service = given("LoadBalancer", 1, implementation=implementation)
        service["status"]["loadBalancer"]["ingress"] = [{"hostname": "lb-1.example.org"}]
        of = b.group(network=WISHES["LoadBalancer"], implementation=implementation)
        place = place_of(of, b.member(1), b.by_name(service))
        assert place is not None
        assert bool(place.missing) is waits, place


def test_host_network() -> None:
    """apache/rocketmq-operator #202: with hostNetwork the registered address was wrong."""
    of = b.group(network={"addressing": "HostNetwork"}, antiAffinity={"type": "Required"})
    pod = build_pod(of, b.member(1), b.SETTINGS)
    assert pod["spec"]["hostNetwork"] is True
    assert pod["spec"]["dnsPolicy"] == "ClusterFirstWithHostNet"
    assert names.ANNOTATION_ADDRESS not in pod["metadata"]["annotations"]
    assert broker_properties("orders", of.spec, b.SETTINGS)["brokerIP1"] == "${POD_IP}"


def test_a_pod_stands_on_the_service_that_gives_it_its_address() -> None:
    pod = c.applied(new_group("ServiceIP", *all_given("ServiceIP")), "Pod")["orders-2"]
    assert ("Service", "orders-2") in set(foreign.stands_on(PODS, pod))
    assert "Service" not in {kind for kind, _ in foreign.stands_on(PODS, build_pod(b.group(), b.member(2), b.SETTINGS))}


def test_a_service_that_is_made_again_gets_the_address_by_which_its_member_is_known() -> None:
    seen = settled("ServiceIP")
    [again] = [one for one in c.actions(without_services(seen, "orders-1"), ApplyObject) if one.resource == SERVICES]
    assert again.object["spec"]["clusterIP"] == "10.96.0.1"
    assert again.otherwise is not None, "another Service may have taken it"
    assert "clusterIP" not in again.otherwise["spec"]
    made = again.object | {"metadata": again.object["metadata"] | {"uid": "made-again"}}
    assert not c.applied(with_services(seen, made), "Service"), "asking for the address is no other wish"
    made["spec"] = made["spec"] | {"publishNotReadyAddresses": False}
    changed = c.applied(with_services(seen, made), "Service")["orders-1"]
    assert changed["spec"]["clusterIP"] == "10.96.0.1", "what is owned is not let go of"


def test_a_service_that_is_made_again_gets_the_node_ports_by_which_its_member_is_known() -> None:
    seen = settled("NodePort")
    made = c.applied(without_services(seen, "orders-1", "orders-2", "orders-3"), "Service")
    # Without a word of the pods they would be dealt out from the first on; the second one is looked at alone.
    assert made["orders-2"]["spec"]["ports"][0]["nodePort"] == 30107
    pods = {"orders-1": seen.pods["orders-2"], "orders-2": seen.pods["orders-1"]}
    slots = node_port_slots(seen.group, ["orders-1", "orders-2", "orders-3"], {}, pods)
    assert slots == {"orders-1": 1, "orders-2": 0, "orders-3": 2}


@pytest.mark.parametrize("addressing", WISHES)
def test_a_master_whose_address_is_lost_is_restarted_and_not_asked_to_hand_over(addressing: str) -> None:
    """No broker has the recorded address: a switchover would call it for ever, and heartbeats prevent a failover."""
    assert c.steps(of_lost_address(addressing)) == ["replace orders-1"]


def of_lost_address(addressing: str) -> Observed:
    """The master's Service was made again, and has another address."""
    another = given(addressing, 1, slot=7)
    another["spec"]["clusterIP"] = "10.96.9.9"
    another["status"] = {"loadBalancer": {"ingress": [{"ip": "203.0.113.99"}]}}
    return with_services(settled(addressing), another)


def test_a_master_whose_address_is_lost_waits_for_no_window() -> None:
    window = {"days": ["Sun"], "start": "02:00", "durationMinutes": 60}
    spec = {"network": WISHES["ServiceIP"], "updateStrategy": {"windows": [window]}}
    seen = replace(c.wishing(of_lost_address("ServiceIP"), **spec), now=b.NOW)
    assert c.steps(seen) == ["replace orders-1"]
    assert c.steps(c.outdated(seen, "orders-2")) == ["replace orders-1"], "and alone"


def test_a_master_that_is_known_by_its_address_still_hands_over() -> None:
    assert c.steps(c.outdated(settled("ServiceIP"), "orders-1")) == ["switch orders-1"]


ADDRESSES = ["", ":", ":abc", "host", ":-1", ":\u00b2", ":1e3", "30107", f":{'9' * 5000}", "a:b:c"]


@pytest.mark.parametrize("address", ADDRESSES)
def test_an_annotation_that_is_no_address_ends_no_pass(address: str) -> None:
    """Any user with the right to write pods may write it."""

    def write(pod: dict[str, Any]) -> None:
        pod["metadata"]["annotations"][names.ANNOTATION_ADDRESS] = address

    assert not c.applied(c.with_pods(settled("NodePort"), write, "orders-2"), "Service")


BOTH = {"ipFamilies": ["IPv6", "IPv4"], "ipFamilyPolicy": "PreferDualStack"}
# As a kubelet fills them in for a pod of both families whose cluster prefers IPv4.
POD_IPS = {"POD_IP": "10.0.0.1", "POD_IPS": "10.0.0.1,fd00::5"}
OF_BOTH = POD_IPS | {"NODE_IPS": "192.168.0.3,fd01::3", "LISTEN_PORT": "30102"}


def families_of(service: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in service["spec"].items() if key.startswith("ipFamil")}


@pytest.mark.parametrize("addressing", WISHES)
@pytest.mark.parametrize("wish", [{}, BOTH, {"ipFamilies": ["IPv6"]}, {"ipFamilyPolicy": "RequireDualStack"}])
def test_every_service_of_a_group_has_the_families_that_the_group_names(addressing: str, wish: dict[str, Any]) -> None:
    of = b.group(network={**WISHES[addressing], **wish})
    for service in (build_members_service(of), build_master_service(of), build_member_service(of, b.member(1), slot=0)):
        assert families_of(service) == wish


@pytest.mark.parametrize("wish", [{}, BOTH, {"ipFamilies": ["IPv6"]}])
def test_so_has_every_service_of_a_cluster_and_each_of_its_groups(wish: dict[str, Any]) -> None:
    of = b.cluster(proxy={}, network=wish)
    services = [one for one in (*name_servers(of, b.SETTINGS), *proxies(of, b.SETTINGS)) if one["kind"] == "Service"]
    assert [families_of(one) for one in services] == [wish] * 3
    defaulted = {"network": {"addressing": "PodIP", "ipFamilies": [], "listenPort": 10911}}
    [group] = broker_groups(of, {"spec": {"brokerGroups": {"template": defaulted}}})
    assert group["spec"]["network"] == defaulted["network"] | wish


def test_a_group_of_a_cluster_that_names_its_own_families_keeps_them() -> None:
    template = {"network": {"ipFamilies": ["IPv4"]}}
    [group] = broker_groups(b.cluster(network=BOTH), {"spec": {"brokerGroups": {"template": template}}})
    assert group["spec"]["network"] == {"ipFamilies": ["IPv4"], "ipFamilyPolicy": "PreferDualStack"}


def started(folder: Path, environment: dict[str, str], **network: Any) -> dict[str, str]:
    """What the start of a Java broker makes of broker.conf, by the shell itself."""
    of = b.group(implementation="Java", network=network)
    (folder / "broker.conf").write_text(broker_conf(of, b.SETTINGS), encoding="utf-8")
    script = command(of.spec)[2].partition(" && exec java")[0]
    places = {"CONFIG_DIR": str(folder), "RUN_DIR": str(folder / "run"), "STORE_DIR": "/store"}
    (folder / "run").mkdir()
    subprocess.run(["sh", "-c", script], env={"PATH": "/usr/bin:/bin", **places, **environment}, check=True)
    lines = (folder / "run" / "broker.conf").read_text(encoding="utf-8").splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


@pytest.mark.parametrize(
    ("network", "environment", "known", "log"),
    [
        ({}, {"POD_IP": "10.0.0.1"}, "10.0.0.1", "10.0.0.1"),
        ({}, {"POD_IP": "fd00::5"}, "fd00::5", "fd00::5"),  # as before: no group restarts by an upgrade
        ({"ipFamilies": ["IPv6"]}, OF_BOTH, "[fd00::5]", "[fd00::5]"),
        ({"ipFamilies": ["IPv4", "IPv6"]}, OF_BOTH, "10.0.0.1", "10.0.0.1"),
        ({"ipFamilies": ["IPv4"]}, OF_BOTH | {"POD_IP": "fd00::5", "POD_IPS": "fd00::5,10.0.0.1"}, "10.0.0.1", "10.0.0.1"),
        ({"ipFamilies": ["IPv6"]}, OF_BOTH | {"POD_IPS": "10.0.0.1"}, "10.0.0.1", "10.0.0.1"),
        (WISHES["NodePort"] | {"ipFamilies": ["IPv6"]}, OF_BOTH | {"BROKER_HOST": "192.168.0.3"}, "[fd01::3]", "[fd00::5]"),
        (WISHES["ServiceIP"] | {"ipFamilies": ["IPv6"]}, OF_BOTH | {"BROKER_HOST": "fd02::9"}, "[fd02::9]", "[fd02::9]"),
        (WISHES["LoadBalancer"], OF_BOTH | {"BROKER_HOST": "mq.example.org"}, "mq.example.org", "10.0.0.1"),
    ],
)  # fmt: skip
def test_a_java_broker_is_known_by_the_address_of_its_family_in_brackets(
    tmp_path: Path, network: dict[str, Any], environment: dict[str, str], known: str, log: str
) -> None:
    conf = started(tmp_path, environment, **network)
    assert (conf["brokerIP1"], conf["brokerIP2"]) == (known, log)
    assert conf["storePathRootDir"] == "/store"


def fence_environment(environment: dict[str, str], **network: Any) -> dict[str, str]:
    """The fence's variables as a kubelet fills them in."""
    of = build_pod(b.group(implementation="Java", network=network), b.member(2), b.SETTINGS)
    fence = b.containers(of)["fence"]
    found: dict[str, str] = {}
    from_status = {"podIP": "POD_IP", "podIPs": "POD_IPS", "hostIPs": "NODE_IPS", "hostIP": "BROKER_HOST"}
    for entry in fence["env"]:
        value = entry.get("value")
        if value is None:
            path = entry["valueFrom"]["fieldRef"]["fieldPath"]
            value = environment.get(from_status.get(path.removeprefix("status."), ""), "uid")
        for name, known in found.items():
            value = value.replace(f"$({name})", known)
        found[entry["name"]] = value
    return found


@pytest.mark.parametrize(
    ("network", "environment", "broker", "local"),
    [
        ({}, {"POD_IP": "10.0.0.1"}, "10.0.0.1:10911", "10.0.0.1:10911"),
        ({}, {"POD_IP": "fd00::5"}, "[fd00::5]:10911", "[fd00::5]:10911"),
        ({"ipFamilies": ["IPv6"]}, OF_BOTH, "[fd00::5]:10911", "[fd00::5]:10911"),
        ({"ipFamilies": ["IPv4", "IPv6"]}, OF_BOTH, "10.0.0.1:10911", "10.0.0.1:10911"),
        (
            WISHES["NodePort"] | {"ipFamilies": ["IPv6"]}, OF_BOTH | {"BROKER_HOST": "192.168.0.3"}, "[fd01::3]:10911",
            "[fd00::5]:10911",
        ),
    ],
)  # fmt: skip
def test_its_fence_goes_by_the_same_addresses(
    network: dict[str, Any], environment: dict[str, str], broker: str, local: str
) -> None:
    settings = FenceSettings.from_environment(fence_environment(environment, **network))
    assert (str(settings.broker_address), str(settings.local_address)) == (broker, local)
    assert str(fence_of(settings.local_address)).endswith(":10913")
    assert settings.controllers == tuple(Address.parse(one, "f") for one in b.SETTINGS.controller_addresses)


@pytest.mark.parametrize("text", ["fd00::5", "fd00::5:", "[fd00::5]", ":10911", "fd00::5:99999"])
def test_a_fence_without_an_address_says_which_variable(text: str) -> None:
    with pytest.raises(FenceSettingsError, match=r"FENCE_LOCAL_ADDRESS is .*, expected host:port"):
        own_address({"FENCE_LOCAL_ADDRESS": text}, "FENCE_LOCAL_ADDRESS")


def test_a_python_replicas_fence_and_broker_get_the_family() -> None:
    of = build_pod(b.group(network={"ipFamilies": ["IPv6"]}), b.member(2), b.SETTINGS)
    broker = b.containers(of)["broker"]
    told = {one["name"]: one.get("value") or one["valueFrom"]["fieldRef"]["fieldPath"] for one in broker["env"][:3]}
    assert told == {"POD_IP": "status.podIP", "POD_IPS": "status.podIPs", "POD_IP_FAMILY": "IPv6"}
    assert "listenAddress=${LISTEN_IP}" in broker_conf(b.group(network={"ipFamilies": ["IPv6"]}), b.SETTINGS)
    assert "listenAddress" not in broker_conf(b.group(), b.SETTINGS)


def test_a_service_of_ipv6_gives_its_member_an_address_in_brackets() -> None:
    of = b.group(network=WISHES["ServiceIP"])
    service = b.stored(build_member_service(of, b.member(1), slot=0))
    service["spec"]["clusterIP"] = "fd02:0::9"
    place = place_of(of, b.member(1), {"orders-1": service})
    assert place is not None
    assert place.text == "[fd02::9]:10911"
    pod = build_pod(of, b.member(1), b.SETTINGS, place=place)
    assert address_of(pod) == ("fd02::9", 10911)
    seen = b.changed(b.settled(), services={"orders-1": service}, pods={"orders-1": pod})
    assert not address_is_lost(seen, b.member(1))


NO_CONTROLLERS = (
    "", "operator", ":9878", "operator:http", "fd00::10:9878", "[::1]", "a:0", "a", "[fd00::10]:99999", "10.0.0.300:1",
)  # fmt: skip


@pytest.mark.parametrize("address", NO_CONTROLLERS)
def test_the_operator_renders_no_controller_address_that_is_none(address: str) -> None:
    with pytest.raises(ValueError, match=r"controller_addresses is .*, expected "):
        ReconcileSettings(controller_addresses=(address,) if address else ())


@pytest.mark.parametrize(
    ("one", "other", "shared"),
    [
        ("[fd00::10]:9876", "[FD00:0:0::10]:9876", True),
        ("[::ffff:10.0.0.1]:9876", "10.0.0.1:9876", True),
        ("[fd00::10]:9876", "[fd00::11]:9876", False),
        ("[fd00::10]:9876", "[fd00::10]:9877", False),
    ],
)
def test_one_name_at_one_name_server_is_found_however_its_address_is_written(
    one: str, other: str, *, shared: bool
) -> None:
    names = BrokerNames()
    groups: list[dict[str, Any]] = []
    for age, server in enumerate((one, other)):
        made = {"namespace": f"n{age}", "name": "orders", "creationTimestamp": f"2026-11-2{age}T00:00:00Z"}
        groups.append({"metadata": made, "spec": {"nameServers": [server]}})
    names.keep_only(groups, ())
    assert bool(names.taken(key_of(groups[1]))) is shared
    assert names.taken(key_of(groups[0])) == ""
