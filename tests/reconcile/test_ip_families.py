"""spec.network.ipFamilies: on every Service that we make, and by which of its addresses a broker and its fence go."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from brokergroup_operator.api.rocketmq_cluster import RocketMQCluster
from brokergroup_operator.fence.settings import FenceSettings, FenceSettingsError, fence_of, own_address
from brokergroup_operator.reconcile.clusters.parts import broker_groups, name_servers, proxies
from brokergroup_operator.reconcile.other_groups import BrokerNames, key_of
from brokergroup_operator.reconcile.render.addressing import address_is_lost, address_of, build_member_service, place_of
from brokergroup_operator.reconcile.render.broker_config import broker_conf
from brokergroup_operator.reconcile.render.children import build_master_service, build_members_service
from brokergroup_operator.reconcile.render.containers import command
from brokergroup_operator.reconcile.render.pods import build_pod
from brokergroup_operator.reconcile.settings import ReconcileSettings
from rocketmq_remoting.address import Address
from tests.reconcile import builders as b

if TYPE_CHECKING:
    from pathlib import Path

BOTH = {"ipFamilies": ["IPv6", "IPv4"], "ipFamilyPolicy": "PreferDualStack"}
ADDRESSINGS: dict[str, dict[str, Any]] = {
    "PodIP": {},
    "ServiceIP": {"addressing": "ServiceIP"},
    "NodePort": {"addressing": "NodePort", "firstNodePort": 30100},
    "LoadBalancer": {"addressing": "LoadBalancer"},
    "HostNetwork": {"addressing": "HostNetwork"},
}
# As a kubelet fills them in for a pod of both families whose cluster prefers IPv4.
OF_BOTH = {
    "POD_IP": "10.0.0.1",
    "POD_IPS": "10.0.0.1,fd00::5",
    "NODE_IPS": "192.168.0.3,fd01::3",
    "LISTEN_PORT": "30102",
}


def families_of(service: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in service["spec"].items() if key.startswith("ipFamil")}


@pytest.mark.parametrize("addressing", ["ServiceIP", "NodePort", "LoadBalancer"])
@pytest.mark.parametrize("wish", [{}, BOTH, {"ipFamilies": ["IPv6"]}, {"ipFamilyPolicy": "RequireDualStack"}])
def test_every_service_of_a_group_has_the_families_that_the_group_names(addressing: str, wish: dict[str, Any]) -> None:
    of = b.group(network={**ADDRESSINGS[addressing], **wish})
    for service in (build_members_service(of), build_master_service(of), build_member_service(of, b.member(1), slot=0)):
        assert families_of(service) == wish


def cluster(**spec: Any) -> RocketMQCluster:
    metadata = {"name": "shop", "namespace": "mq", "uid": "u"}
    return msgspec.convert({"metadata": metadata, "spec": {"proxy": {}, **spec}}, RocketMQCluster)


@pytest.mark.parametrize("wish", [{}, BOTH, {"ipFamilies": ["IPv6"]}])
def test_so_has_every_service_of_a_cluster_and_each_of_its_groups(wish: dict[str, Any]) -> None:
    of = cluster(network=wish)
    services = [one for one in (*name_servers(of, b.SETTINGS), *proxies(of, b.SETTINGS)) if one["kind"] == "Service"]
    assert [families_of(one) for one in services] == [wish] * 3
    defaulted = {"network": {"addressing": "PodIP", "ipFamilies": [], "listenPort": 10911}}
    [group] = broker_groups(of, {"spec": {"brokerGroups": {"template": defaulted}}})
    assert group["spec"]["network"] == defaulted["network"] | wish


def test_a_group_of_a_cluster_that_names_its_own_families_keeps_them() -> None:
    template = {"network": {"ipFamilies": ["IPv4"]}}
    [group] = broker_groups(cluster(network=BOTH), {"spec": {"brokerGroups": {"template": template}}})
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
        (
            {"ipFamilies": ["IPv4"]},
            OF_BOTH | {"POD_IP": "fd00::5", "POD_IPS": "fd00::5,10.0.0.1"},
            "10.0.0.1",
            "10.0.0.1",
        ),
        ({"ipFamilies": ["IPv6"]}, OF_BOTH | {"POD_IPS": "10.0.0.1"}, "10.0.0.1", "10.0.0.1"),
        (
            ADDRESSINGS["NodePort"] | {"ipFamilies": ["IPv6"]},
            OF_BOTH | {"BROKER_HOST": "192.168.0.3"},
            "[fd01::3]",
            "[fd00::5]",
        ),
        (
            ADDRESSINGS["ServiceIP"] | {"ipFamilies": ["IPv6"]},
            OF_BOTH | {"BROKER_HOST": "fd02::9"},
            "[fd02::9]",
            "[fd02::9]",
        ),
        (ADDRESSINGS["LoadBalancer"], OF_BOTH | {"BROKER_HOST": "mq.example.org"}, "mq.example.org", "10.0.0.1"),
    ],
)
def test_a_java_broker_is_known_by_the_address_of_its_family_in_brackets(
    tmp_path: Path, network: dict[str, Any], environment: dict[str, str], known: str, log: str
) -> None:
    conf = started(tmp_path, environment, **network)
    assert (conf["brokerIP1"], conf["brokerIP2"]) == (known, log)
    assert conf["storePathRootDir"] == "/store"


def fence_environment(environment: dict[str, str], **network: Any) -> dict[str, str]:
    """The fence's variables as a kubelet fills them in."""
    of = build_pod(b.group(implementation="Java", network=network), b.member(2), b.SETTINGS)
    fence = next(one for one in of["spec"]["containers"] if one["name"] == "fence")
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
            ADDRESSINGS["NodePort"] | {"ipFamilies": ["IPv6"]},
            OF_BOTH | {"BROKER_HOST": "192.168.0.3"},
            "[fd01::3]:10911",
            "[fd00::5]:10911",
        ),
    ],
)
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


def test_a_python_replicas_fence_and_broker_are_told_the_family() -> None:
    of = build_pod(b.group(network={"ipFamilies": ["IPv6"]}), b.member(2), b.SETTINGS)
    broker = next(one for one in of["spec"]["containers"] if one["name"] == "broker")
    told = {one["name"]: one.get("value") or one["valueFrom"]["fieldRef"]["fieldPath"] for one in broker["env"][:3]}
    assert told == {"POD_IP": "status.podIP", "POD_IPS": "status.podIPs", "POD_IP_FAMILY": "IPv6"}
    assert "listenAddress=${LISTEN_IP}" in broker_conf(b.group(network={"ipFamilies": ["IPv6"]}), b.SETTINGS)
    assert "listenAddress" not in broker_conf(b.group(), b.SETTINGS)


def test_a_service_of_ipv6_gives_its_member_an_address_in_brackets() -> None:
    of = b.group(network=ADDRESSINGS["ServiceIP"])
    service = b.stored(build_member_service(of, b.member(1), slot=0))
    service["spec"]["clusterIP"] = "fd02:0::9"
    place = place_of(of, b.member(1), {"orders-1": service})
    assert place is not None
    assert place.text == "[fd02::9]:10911"
    pod = build_pod(of, b.member(1), b.SETTINGS, place=place)
    assert address_of(pod) == ("fd02::9", 10911)
    seen = b.changed(b.settled(), services={"orders-1": service}, pods={"orders-1": pod})
    assert not address_is_lost(seen, b.member(1))


@pytest.mark.parametrize("address", ["fd00::10:9878", "[::1]", "a:0", "a", "[fd00::10]:99999", "10.0.0.300:1"])
def test_the_operator_renders_no_controller_address_that_is_none(address: str) -> None:
    with pytest.raises(ValueError, match=r"controller_addresses is .*, expected "):
        ReconcileSettings(controller_addresses=(address,))


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
    groups = [
        {
            "metadata": {"namespace": namespace, "name": "orders", "creationTimestamp": f"2026-11-2{age}T00:00:00Z"},
            "spec": {"nameServers": [server]},
        }
        for age, (namespace, server) in enumerate((("first", one), ("second", other)))
    ]
    names.keep_only(groups, ())
    assert bool(names.taken(key_of(groups[1]))) is shared
    assert names.taken(key_of(groups[0])) == ""
