"""Pods and peers of both families: which pod speaks, where it is reached, and whose a link is, however an address is written."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from brokergroup_operator.api import names
from brokergroup_operator.controller.directory.group_directory import GroupBinding, Peer, PodPlace
from brokergroup_operator.controller.directory.kubernetes_binding import (
    PodIndex,
    binding_of,
    has_ip_of,
    is_at,
    place_of,
    pod_ip,
)
from brokergroup_operator.controller.directory.kubernetes_directory import KubernetesDirectory
from brokergroup_operator.controller.directory.places import (
    ha_address_of,
    level_members,
    process_address,
    respelled,
    unlinked,
)
from brokergroup_operator.controller.peers.services import dial
from brokergroup_operator.controller.settings import PlaneSettings, effective_configuration
from brokergroup_operator.fence.watchman import told_by
from brokergroup_operator.kube.client import WatchEvent
from brokergroup_operator.kube.pods import pod_ips
from brokergroup_operator.kube.resources import PODS
from rocketmq_remoting.address import Address
from rocketmq_remoting.broker_protocol import HAConnectionRuntimeInfo, HARuntimeInfoBody
from rocketmq_remoting.client import RemotingClient
from rocketmq_remoting.codes import RequestCode, ResponseCode
from rocketmq_remoting.command import request
from rocketmq_remoting.controller_protocol import BrokerReplicasInfoBody, ReplicaIdentity, ReplicasInfo
from rocketmq_remoting.handler import not_supported
from rocketmq_remoting.server import RemotingServer
from tests.controller.conftest import KEY, StartPlane, record_of
from tests.controller.test_kubernetes_parts import api, create_pod
from tests.support.fake_broker import CLUSTER, NAME
from tests.support.pods_directory import PodsDirectory
from tests.support.quiet_handler import QuietHandler

if TYPE_CHECKING:
    from brokergroup_operator.kube.client import KubernetesApi
    from rocketmq_remoting.command import RemotingCommand
    from rocketmq_remoting.connection import RemotingConnection

__all__ = ["api"]


def pod(
    *ips: str, family: str = "", known_by: str = "", nodes: tuple[str, ...] = (), name: str = "bn-1"
) -> dict[str, Any]:
    """A pod with these addresses, the cluster's own first."""
    env = [{"name": names.ENVIRONMENT_IP_FAMILY, "value": family}] if family else []
    annotations = {names.ANNOTATION_ADDRESS: known_by} if known_by else {}
    labels = {names.LABEL_BROKER_GROUP: KEY.name}
    status = {"podIP": ips[0], "podIPs": [{"ip": one} for one in ips]} if ips else {}
    node = {"hostIP": nodes[0], "hostIPs": [{"ip": one} for one in nodes]} if nodes else {}
    return {
        "metadata": {"namespace": KEY.namespace, "name": name, "labels": labels, "annotations": annotations},
        "spec": {"containers": [{"name": names.CONTAINER_BROKER, "env": env}]},
        "status": status | node,
    }


def test_a_pod_has_all_its_addresses_and_its_broker_the_one_of_the_family() -> None:
    assert pod_ips(pod("10.0.0.1", "FD00:0::5")) == ("10.0.0.1", "fd00::5")
    assert pod_ip(pod("10.0.0.1", "fd00::5")) == "10.0.0.1"
    assert pod_ip(pod("10.0.0.1", "fd00::5", family="IPv6")) == "fd00::5"
    assert pod_ip(pod("10.0.0.1", family="IPv6")) == "10.0.0.1"
    assert (pod_ips(pod()), pod_ip(pod())) == ((), "")


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("[fd00::5]:10911", True),
        ("fd00:0:0:0:0:0:0:5:10911", True),
        ("10.0.0.1:10911", True),
        ("[::ffff:10.0.0.1]:10911", True),
        ("[fd00::6]:10911", False),
        ("[fd02::9]:10911", False),
    ],
)
def test_a_pod_is_at_each_of_its_addresses(address: str, *, expected: bool) -> None:
    assert has_ip_of(pod("10.0.0.1", "fd00::5"), address) is is_at(pod("10.0.0.1", "fd00::5"), address) is expected
    assert not is_at(pod(), address), "it has not begun"


def test_a_pod_is_known_by_the_address_of_its_service_or_of_its_node_in_the_family() -> None:
    of_service = place_of(pod("fd00::5", known_by="[FD02:0::9]:10911"))
    assert of_service == PodPlace(ip="fd00::5", address="[fd02::9]:10911")
    nodes = ("192.168.0.3", "fd01::3")
    of_node = place_of(pod("10.0.0.1", "fd00::5", family="IPv6", known_by=":30102", nodes=nodes))
    assert of_node == PodPlace(ip="fd00::5", address="[fd01::3]:30102")
    assert place_of(pod("10.0.0.1", known_by=":30102", nodes=nodes)) == PodPlace(
        ip="10.0.0.1", address="192.168.0.3:30102"
    )
    assert is_at(pod("fd00::5", known_by="[fd02::9]:10911"), "[fd02::9]:10911")


def test_whoever_connects_from_either_address_is_the_pod_until_it_goes() -> None:
    index, both = PodIndex(), pod("10.0.0.1", "fd00::5")
    index.take(WatchEvent("ADDED", both))
    peer = Peer(namespace=KEY.namespace, pod_name="bn-1", group=KEY)
    assert index.peer_at("10.0.0.1") == index.peer_at("fd00::5") == peer
    assert index.has_both_families()
    index.take(WatchEvent("MODIFIED", pod("10.0.0.2", "fd00::6")))
    assert index.peer_at("10.0.0.1") is index.peer_at("fd00::5") is None
    assert index.peer_at("fd00::6") == peer
    index.take(WatchEvent("DELETED", pod("10.0.0.2", "fd00::6")))
    assert index.peer_at("10.0.0.2") is index.peer_at("fd00::6") is None


def test_a_pod_that_was_removed_by_force_was_where_its_broker_is_known() -> None:
    index, both = PodIndex(), pod("10.0.0.1", "fd00::5", family="IPv6")
    index.take(WatchEvent("ADDED", both))
    index.take(WatchEvent("DELETED", both))
    assert index.removed_hosts(KEY) == index.leaving_hosts(KEY) == {"fd00::5"}
    index.take(WatchEvent("ADDED", pod("10.0.0.1", name="other-1")))
    assert index.removed_hosts(KEY) == frozenset(), "one of its addresses is another pod's"


class CountingApi:
    """Lists these pods, and notes by what it was asked to select them."""

    def __init__(self, *pods: dict[str, Any]) -> None:
        self.pods = list(pods)
        self.asked: list[str] = []

    async def list(self, *_: Any, field_selector: str, **__: Any) -> SimpleNamespace:
        self.asked.append(field_selector)
        await asyncio.sleep(0)
        return SimpleNamespace(items=self.pods if not field_selector else [])


async def test_peers_that_are_no_pods_cost_one_list_of_all_together() -> None:
    """In a cluster of two families each stranger was looked for among all pods."""
    api = CountingApi(pod("10.0.0.1", "fd00::5"))
    directory = KubernetesDirectory(cast("KubernetesApi", api))
    directory._on_pod(WatchEvent("ADDED", pod("10.0.0.9", "fd00::9", name="bn-9")))
    strangers = [f"fd07::{number:x}" for number in range(1, 40)]
    found = await asyncio.gather(*(directory.peer(host) for host in (*strangers, "fd00::5")))
    assert found == [*(None for _ in strangers), Peer(namespace=KEY.namespace, pod_name="bn-1", group=KEY)]
    assert api.asked.count("") == 1
    assert len(api.asked) == 41


async def test_a_pod_is_found_by_its_second_address_also_before_the_watch_has_told(api: KubernetesApi) -> None:
    """The API selects pods by status.podIP alone, which is their first."""
    await create_pod(api, "orders-1", address="10.0.0.1")
    both = {"status": {"podIPs": [{"ip": "10.0.0.1"}, {"ip": "fd00::5"}]}}
    await api.patch(PODS, "orders-1", both, namespace="default", subresource="status", timeout_seconds=60.0)
    directory = KubernetesDirectory(api)  # not started: it has no watch
    assert await directory.peer("fd00::5") is None, "one family, as far as it knows: not asked for"
    directory._index.take(WatchEvent("ADDED", pod("10.0.0.9", "fd00::9", name="bn-9")))
    directory._unknown_until_seconds.clear()
    found = await directory.peer("fd00::5")
    assert found is not None
    assert found.pod_name == "orders-1"


@pytest.mark.parametrize(
    "written",
    ["/[fd00:0:0:0:0:0:0:5]:40001", "/fd00:0:0:0:0:0:0:5:40001", "[fd00::5]:40001", "/fd00::5:40001"],
)
def test_a_link_is_the_slaves_however_its_master_prints_the_address(written: str) -> None:
    status = HARuntimeInfoBody(master=True, ha_connection_info=(HAConnectionRuntimeInfo(addr=written, diff=0),))
    assert unlinked({2: "fd00::5"}, status) == []
    assert unlinked({2: "fd00::6"}, status) == [2]
    assert level_members({2: "fd00::5"}, [2], status) == frozenset({2})


def test_an_ipv4_slave_of_a_dual_stack_master_is_linked() -> None:
    mapped = HAConnectionRuntimeInfo(addr="/[::ffff:10.0.0.1]:40001")
    assert unlinked({2: "10.0.0.1"}, HARuntimeInfoBody(master=True, ha_connection_info=(mapped,))) == []


@pytest.mark.parametrize(
    ("told", "dialled"),
    [
        ("[FD00:0::10]:9876", "[fd00::10]:9876"),
        ("[::1]:9876", "[::1]:9876"),
        ("[::ffff:10.0.0.1]:9876", "10.0.0.1:9876"),
        ("ns.mq.svc.cluster.local.:9876", "ns.mq.svc.cluster.local.:9876"),
        ("ns:9876", "ns.default:9876"),
    ],
)
def test_a_name_server_by_an_ipv6_address_is_no_service_of_the_namespace(told: str, dialled: str) -> None:
    obj = {"metadata": {"namespace": "default", "name": "orders"}, "spec": {"nameServers": [told]}}
    assert binding_of(obj).name_servers == (dialled,)


def test_addresses_of_a_broker_are_made_with_brackets() -> None:
    plain = GroupBinding(key=KEY, cluster_name="c", broker_name=NAME)
    assert ha_address_of(plain, "[fd00::5]:10911") == "[fd00::5]:10912"
    places = {"bn-1": PodPlace(ip="fd00::5", address="[fd01::3]:30102")}
    translated = GroupBinding(
        key=KEY, cluster_name="c", broker_name=NAME, translated=True, places=places, log_at_pods=True, ha_port=10912
    )
    assert ha_address_of(translated, "[fd01::3]:30102") == "[fd00::5]:10912"
    assert process_address(translated, "[fd01::3]:30102", "fd00::5") == "[fd00::5]:30102"
    assert respelled("[fd00::5]:10911") == "[fd00::5]:010911"
    shown = effective_configuration(PlaneSettings(listen_host="::"), advertise_address="[fd00::1]:9878")
    assert (shown["listenPort"], shown["controllerDLegerPeers"]) == ("9878", "n0-[fd00::1]:9878")


@pytest.mark.parametrize("registered", ["[fd00::5]:10911", "fd00:0:0:0:0:0:0:5:10911", "[FD00::5]:10911"])
def test_a_fence_knows_its_own_broker_however_that_registered(registered: str) -> None:
    identity = ReplicaIdentity(NAME, 1, registered)
    body = BrokerReplicasInfoBody(
        {NAME: ReplicasInfo(master_broker_id=1, master_epoch=3, in_sync_replicas=(identity,))}
    )
    answer = request(RequestCode.CONTROLLER_GET_SYNC_STATE_DATA).answer(ResponseCode.SUCCESS, body=body.encode())
    told = told_by(answer, NAME, Address("fd00:0::5", 10911))
    assert told is not None
    assert told.own_id == 1


class Deaf(QuietHandler):
    """A server that nobody asks anything."""

    def handle(self, command: RemotingCommand, connection: RemotingConnection) -> RemotingCommand:
        return not_supported(command)


async def test_a_probe_finds_who_listens_and_who_refuses_on_ipv6(ipv6_loopback: str) -> None:
    server = RemotingServer(Deaf())
    await server.start(ipv6_loopback, 0)
    await dial(server.address, deadline_seconds=5.0)
    await server.stop(grace_seconds=0.1)
    with pytest.raises(ConnectionRefusedError):
        await dial(server.address, deadline_seconds=5.0)
    with pytest.raises(ValueError, match="expected host:port, an IPv6 address in brackets"):
        await dial("[::1]", deadline_seconds=5.0)


@pytest.mark.real_time
@pytest.mark.parametrize("written", ["[::1]:10911", "::1:10911", "0:0:0:0:0:0:0:1:10911"])
async def test_a_pod_speaks_for_itself_whatever_its_broker_calls_its_address(
    start_plane: StartPlane, ipv6_loopback: str, written: str
) -> None:
    """As one Java broker and another write the same address; what the record holds and answers name is one text."""
    directory = PodsDirectory()
    plane = await start_plane(directory=directory, listen_host=ipv6_loopback)
    assert plane.address.startswith("[::1]:")
    directory.find(NAME, cluster_name=CLUSTER)
    directory.introduce(ipv6_loopback, Peer(namespace="standalone", pod_name=f"{NAME}-1", group=KEY))
    client = RemotingClient()

    async def ask(code: int, **fields: object) -> RemotingCommand:
        ext_fields = {"clusterName": CLUSTER, "brokerName": NAME} | {name: str(value) for name, value in fields.items()}
        return await client.invoke(plane.address, request(code, ext_fields=ext_fields), timeout_seconds=5.0)

    applied = await ask(1013, appliedBrokerId=1, registerCheckCode=f"{written};1790000000000")
    assert applied.code == 0
    assert record_of(plane).address_of(1) == "[::1]:10911"
    assert (await ask(1003, brokerId=1, brokerAddress=written)).code == 0
    beat = {"epoch": 0, "maxOffset": 0, "confirmOffset": 0, "heartbeatTimeoutMills": 10_000, "electionPriority": 1}
    assert (await ask(904, brokerId=1, brokerAddr=written, **beat)).code == 0
    elected = await ask(1002, brokerId=1, designateElect="false")
    assert (elected.ext_fields or {})["masterAddress"] == "[::1]:10911"
    # The check code itself is the broker's: it must be the same to the last character.
    assert (await ask(1013, appliedBrokerId=1, registerCheckCode=f"{written};1790000000000")).code == 0
    refused = await ask(1003, brokerId=1, brokerAddress="[fd00::9]:10911")
    assert (refused.code, "is at ::1, not at [fd00::9]:10911" in (refused.remark or "")) == (16, True)
    await client.close()
