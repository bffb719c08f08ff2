"""Addresses of members: a pod's IP may be reused (safety rule 8), a Service or a node may front the pod, IPv4 and IPv6."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast
from unittest import mock

import pytest

from brokergroup_operator.api import names
from brokergroup_operator.controller.directory import pods
from brokergroup_operator.controller.directory.group_directory import GroupBinding
from brokergroup_operator.controller.directory.kubernetes_directory import KubernetesDirectory
from brokergroup_operator.controller.directory.pods import Peer, PodIndex, PodPlace, has_ip_of, is_at, place_of, pod_ip
from brokergroup_operator.controller.group.groups import PROOF_SECONDS, ReceiverCheck
from brokergroup_operator.controller.group.notes import AddressNotes
from brokergroup_operator.controller.peers.broker_calls import BrokerCallError
from brokergroup_operator.controller.peers.services import dial
from brokergroup_operator.controller.settings import PlaneSettings, effective_configuration
from brokergroup_operator.controller.upkeep.links import respelled
from brokergroup_operator.fence.watchman import told_by
from brokergroup_operator.kube.client import KubernetesApi, WatchEvent
from brokergroup_operator.kube.pods import pod_ips
from brokergroup_operator.kube.resources import PODS
from brokergroup_operator.observe.group_view import BrokerUnreachableError
from brokergroup_operator.records.store import GroupKey
from controller_core.model import BrokerGroupRecord, Replica
from rocketmq_remoting.address import Address
from rocketmq_remoting.client import RemotingClient
from rocketmq_remoting.codes import RequestCode, ResponseCode
from rocketmq_remoting.command import RemotingCommand, request
from rocketmq_remoting.controller_protocol import BrokerReplicasInfoBody, ReplicaIdentity, ReplicasInfo
from rocketmq_remoting.handler import not_supported
from rocketmq_remoting.server import RemotingServer
from tests.controller.cluster import create_pod
from tests.controller.conftest import StartPlane, group_of, record_of
from tests.controller.world import KEY, World, ask
from tests.support.fake_broker import CLUSTER, NAME, eventually
from tests.support.pods_directory import PodsDirectory
from tests.support.quiet_handler import QuietHandler

if TYPE_CHECKING:
    from rocketmq_remoting.connection import RemotingConnection


def _pod(number: int) -> Peer:
    return Peer(namespace=KEY.namespace, pod_name=f"{KEY.name}-{number}", group=KEY)


async def test_an_address_that_changed_hands_is_told_nothing(group: World) -> None:
    plane = await group.plane()
    hosts = [f"127.64.8.{number}" for number in (11, 12, 13)]
    for number, host in enumerate(hosts, start=1):
        group.directory.introduce(host, _pod(number))
    brokers = [await group.broker(host=host) for host in hosts]
    await eventually(lambda: brokers[0].sync_state_set == {1, 2, 3}, what="three in sync")
    group.directory.introduce(hosts[2], Peer(namespace="other", pod_name="web-0"))
    group.journal.clear()
    with pytest.raises(BrokerUnreachableError, match="belongs to pod other/web-0 now"):
        await plane.set_broker_config(KEY, 3, {"a": "b"})
    await plane.switch_master(KEY, to_broker_id=2)
    assert not [line for line in group.journal if line in ("1008 to 3", "906 to 3")]
    group.directory.introduce(hosts[2], _pod(3))
    await eventually(lambda: brokers[1].sync_state_set == {1, 2, 3}, what="3 to be told when it is known again")


async def test_where_the_channel_proves_nothing_the_broker_is_asked_once_whose_it_is(
    group: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As behind NAT: no member's heartbeats come from its address.
    monkeypatch.setattr(AddressNotes, "heard_from", lambda self, broker_id, host: None)
    plane, (first, second, third) = await group.three_under()
    await eventually(lambda: RequestCode.GET_BROKER_CONFIG in third.asked, what="the first look")
    await asyncio.sleep(0.2)
    for broker in (first, second, third):
        broker.asked.clear()
    await plane.set_broker_config(KEY, 2, {"a": "1"})
    await plane.set_broker_config(KEY, 2, {"a": "2"})
    assert second.asked.count(RequestCode.UPDATE_BROKER_CONFIG) == 2
    third.config["brokerName"] = "another"
    group_of(plane).addresses.proven.pop(3, None)
    with pytest.raises(BrokerUnreachableError, match="says that it is 'another'"):
        await plane.set_broker_config(KEY, 3, {"a": "1"})
    assert RequestCode.UPDATE_BROKER_CONFIG not in third.asked


SERVICE = "10.96.0.3:10911"


class Behind:
    """The parts of a group behind Services that the check reads, and the broker's answer about its own identity."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        replicas = {3: Replica(3, "c", SERVICE, reserved_for="orders-3", registered=True)}
        record = BrokerGroupRecord("blue", "orders", 4, replicas, 3, 1, frozenset({3}), 1)
        self.key = GroupKey("shop", "orders")
        self.bindings = {self.key: self.bound("orders-3", "10.1.0.3")}
        self.group = SimpleNamespace(
            key=self.key,
            record=record,
            addresses=AddressNotes(),
            identity=lambda broker_id: broker_id,
            table=SimpleNamespace(entry=lambda _: SimpleNamespace(connection_id=7)),
            is_live=lambda _: True,
        )
        self.says = {"brokerName": "orders", "brokerClusterName": "blue", "brokerId": "0"}
        self.asked = 0
        self.seconds = 100.0
        directory = SimpleNamespace(
            pods_known_by=lambda address: {
                (binding.key, pod)
                for binding in self.bindings.values()
                for pod, place in binding.places.items()
                if place.address == address
            },
            pods=SimpleNamespace(peer_at=lambda _: None, hosts=lambda _: {}),
        )
        groups = SimpleNamespace(members_at=lambda address: [(self.group, 3)] if address == SERVICE else [])
        self._check = ReceiverCheck(groups, directory)  # type: ignore[arg-type]
        monkeypatch.setattr(
            "brokergroup_operator.controller.group.groups.asyncio.get_running_loop",
            lambda: SimpleNamespace(time=lambda: self.seconds),
        )

    def bound(self, pod: str, ip: str, *, key: GroupKey | None = None) -> GroupBinding:
        places = {pod: PodPlace(ip=ip, address=SERVICE)}
        return GroupBinding(
            key=key or self.key, cluster_name="blue", broker_name="orders", translated=True, places=places
        )

    async def why_not(self) -> str | None:
        self.group.binding = self.bindings[self.key]

        async def ask() -> dict[str, str]:
            self.asked += 1
            return self.says

        return await self._check(SERVICE, ask)


@pytest.fixture
def behind(monkeypatch: pytest.MonkeyPatch) -> Behind:
    return Behind(monkeypatch)


async def test_a_word_is_good_for_a_while_and_for_the_pod_that_gave_it(behind: Behind) -> None:
    """A Service can be recreated, and its address become another broker's, while the heartbeats' connection stays open."""
    assert [await behind.why_not(), await behind.why_not()] == [None, None]
    assert behind.asked == 1
    behind.bindings[behind.key] = behind.bound("orders-3", "10.1.0.9")
    assert await behind.why_not() is None
    assert behind.asked == 2, "another pod is behind it"
    behind.seconds += PROOF_SECONDS
    behind.says["brokerName"] = "payments"
    assert "says that it is 'payments'" in str(await behind.why_not())


@pytest.mark.parametrize(
    ("says", "why"),
    [
        ({"brokerId": "3"}, None),
        ({"brokerId": "-1"}, None),
        ({"brokerId": "2"}, "says that it is broker 2, not broker 3"),
        ({"brokerClusterName": "green"}, "of cluster 'green', not of 'blue'"),
    ],
)
async def test_the_word_names_cluster_and_id_too(behind: Behind, says: dict[str, str], why: str | None) -> None:
    behind.says |= says
    told = await behind.why_not()
    assert told is None if why is None else why in str(told)


async def test_an_address_that_another_groups_pod_is_known_by_is_told_nothing(behind: Behind) -> None:
    other = GroupKey("shop", "payments")
    behind.bindings[other] = behind.bound("payments-1", "10.1.0.8", key=other)
    assert await behind.why_not() is None, "both have this advertised address: the broker's answer decides"
    assert behind.asked == 1
    behind.bindings[behind.key] = replace(behind.bindings[behind.key], places={})
    assert "belongs to pod shop/payments-1 now" in str(await behind.why_not())


# ---- Members behind a Service or a node: which pod is behind the address, and what a dead or new pod proves about the process.

SHOP = GroupKey("shop", "orders")
KNOWN, IP = "10.96.0.1:10911", "10.1.0.7"


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


def binding(**fields: Any) -> GroupBinding:
    return GroupBinding(key=SHOP, cluster_name="c", broker_name="orders", **fields)


def translated(**fields: Any) -> GroupBinding:
    return binding(translated=True, places={"orders-1": PodPlace(ip=IP, address=KNOWN)}, **fields)


# The node's addresses, the cluster's own family first.
NODE = ("192.168.0.3", "fd01::3")


@pytest.mark.parametrize(
    ("of", "place"),
    [
        (pod(IP), None),
        (pod(IP, known_by=KNOWN), PodPlace(ip=IP, address=KNOWN)),
        (pod(IP, known_by=":30102", nodes=NODE), PodPlace(ip=IP, address="192.168.0.3:30102")),
        (pod(IP, known_by=":30102"), None),  # not placed on a node yet
        (pod("fd00::5", known_by="[FD02:0::9]:10911"), PodPlace(ip="fd00::5", address="[fd02::9]:10911")),
        (pod(IP, "fd00::5", family="IPv6", known_by=":30102", nodes=NODE), PodPlace(ip="fd00::5", address="[fd01::3]:30102")),
    ],
    ids=range(6),
)  # fmt: skip
def test_a_pod_is_where_it_says_that_it_is_known(of: dict[str, Any], place: PodPlace | None) -> None:
    assert place_of(of) == place


@pytest.mark.parametrize(
    ("of", "address", "expected"),
    [
        (pod(IP), "10.1.0.7:10911", True),
        (pod(IP), "10.1.0.8:10911", False),
        (pod(IP, known_by=KNOWN), KNOWN, True),
        # By its own address too: the plane looks for a process by that one, as its pod may have been recreated.
        (pod(IP, known_by=KNOWN), "10.1.0.7:10911", True),
        (pod("10.1.0.8", known_by=KNOWN), "10.1.0.7:10911", False),
        # The port distinguishes two members behind one node.
        (pod(IP, known_by=":30102", nodes=NODE), "192.168.0.3:30102", True),
        (pod(IP, known_by=":30107", nodes=NODE), "192.168.0.3:30102", False),
        # The pod before it had the same address: a pod that has not started does not prove that one's process dead.
        (pod(known_by=KNOWN), KNOWN, False),
        (pod(), "10.1.0.7:10911", False),
        (pod("fd00::5", known_by="[fd02::9]:10911"), "[fd02::9]:10911", True),
        (pod(IP, "fd00::5"), "[fd00::5]:10911", True),
        (pod(IP, "fd00::5"), "fd00:0:0:0:0:0:0:5:10911", True),
        (pod(IP, "fd00::5"), "10.1.0.7:10911", True),
        (pod(IP, "fd00::5"), "[::ffff:10.1.0.7]:10911", True),
        (pod(IP, "fd00::5"), "[fd00::6]:10911", False),
        (pod(IP, "fd00::5"), "[fd02::9]:10911", False),
    ],
    ids=range(16),
)
def test_who_is_at_an_address(of: dict[str, Any], address: str, *, expected: bool) -> None:
    assert is_at(of, address) is expected
    if not of["metadata"]["annotations"]:
        assert has_ip_of(of, address) is expected


def test_links_are_known_by_the_hosts_of_pods() -> None:
    replicas = {
        1: Replica(1, "a", KNOWN, reserved_for="orders-1", registered=True),
        2: Replica(2, "b", "10.1.0.9:10911", reserved_for="orders-2", registered=True),
    }
    record = BrokerGroupRecord("c", "orders", 3, replicas, 1, 1, frozenset({1, 2}), 1)
    assert translated().hosts_of_links(record, [1, 2]) == {1: "10.1.0.7", 2: "10.1.0.9"}
    assert binding().hosts_of_links(record, [1]) == {1: "10.96.0.1"}


def test_a_refusal_counts_only_where_the_process_itself_listened() -> None:
    """A Service without an endpoint refuses connections even while the broker lives."""
    assert binding().probe_address("10.1.0.7:10911", None) == "10.1.0.7:10911"
    assert translated().probe_address(KNOWN, "10.1.0.7") == "10.1.0.7:10911"
    assert translated().probe_address(KNOWN, "10.1.0.5") is None, "that process was in another pod"
    assert translated().probe_address(KNOWN, "192.168.0.3") is None, (
        "a node that translates addresses refuses the connection"
    )
    assert translated().probe_address(KNOWN, None) is None


def test_a_process_is_looked_for_at_the_pod_that_it_was_heard_from() -> None:
    assert binding().process_address("10.1.0.7:10911", "10.1.0.9") == "10.1.0.7:10911"
    assert translated().process_address(KNOWN, "10.1.0.5") == "10.1.0.5:10911"
    assert translated().process_address(KNOWN, None) is None


SIX = "[fd01::3]:30102"
DUAL = {"bn-1": PodPlace(ip="fd00::5", address=SIX)}


@pytest.mark.parametrize(
    ("of", "address", "expected"),
    [
        (binding(), KNOWN, "10.96.0.1:10912"),
        (binding(ha_port=12000), KNOWN, "10.96.0.1:12000"),
        (translated(ha_port=10912), KNOWN, "10.96.0.1:10912"),
        (translated(ha_port=10912, log_at_pods=True), KNOWN, "10.1.0.7:10912"),
        (binding(), "[fd00::5]:10911", "[fd00::5]:10912"),
        (binding(translated=True, places=DUAL, log_at_pods=True, ha_port=10912), SIX, "[fd00::5]:10912"),
    ],
    ids=range(6),
)
def test_where_the_log_is_served(of: GroupBinding, address: str, expected: str) -> None:
    assert of.ha_address_of(address) == expected
    with pytest.raises(BrokerCallError, match="expected host:port"):
        of.ha_address_of("somewhere")


def test_addresses_of_a_broker_are_made_with_brackets() -> None:
    assert binding(translated=True, places=DUAL).process_address(SIX, "fd00::5") == "[fd00::5]:30102"
    assert respelled("[fd00::5]:10911") == "[fd00::5]:010911"
    shown = effective_configuration(PlaneSettings(listen_host="::"), advertise_address="[fd00::1]:9878")
    assert (shown["listenPort"], shown["controllerDLegerPeers"]) == ("9878", "n0-[fd00::1]:9878")


def test_a_pod_registers_the_address_that_it_carries_and_no_other() -> None:
    assert translated().advertises("orders-1", KNOWN)
    assert not translated().advertises("orders-1", "10.96.0.2:10911")
    assert not translated().advertises("orders-2", KNOWN)


# ---- Both address families: which pod a connection comes from, and one text for each spelling of an address.


def test_a_pod_has_all_its_addresses_and_its_broker_the_one_of_the_family() -> None:
    assert pod_ips(pod("10.0.0.1", "FD00:0::5")) == ("10.0.0.1", "fd00::5")
    assert pod_ip(pod("10.0.0.1", "fd00::5")) == "10.0.0.1"
    assert pod_ip(pod("10.0.0.1", "fd00::5", family="IPv6")) == "fd00::5"
    assert pod_ip(pod("10.0.0.1", family="IPv6")) == "10.0.0.1"
    assert (pod_ips(pod()), pod_ip(pod())) == ((), "")


def test_whoever_connects_from_either_address_is_the_pod_until_it_goes() -> None:
    index, both = PodIndex(), pod("10.0.0.1", "fd00::5")
    index.take(WatchEvent("ADDED", both))
    assert index.peer_at("10.0.0.1") == index.peer_at("fd00::5") == _pod(1)
    assert index.with_two_addresses == 1
    index.take(WatchEvent("MODIFIED", pod("10.0.0.2", "fd00::6")))
    assert index.peer_at("10.0.0.1") is index.peer_at("fd00::5") is None
    assert index.peer_at("fd00::6") == _pod(1)
    index.take(WatchEvent("DELETED", pod("10.0.0.2", "fd00::6")))
    assert index.peer_at("10.0.0.2") is index.peer_at("fd00::6") is None


def test_a_pod_that_was_removed_by_force_was_where_its_broker_is_known() -> None:
    index, both = PodIndex(), pod("10.0.0.1", "fd00::5", family="IPv6")
    index.take(WatchEvent("ADDED", both))
    index.take(WatchEvent("DELETED", both))
    assert index.removed_hosts(KEY) == index.leaving_hosts(KEY) == {"10.0.0.1", "fd00::5"}
    index.take(WatchEvent("ADDED", pod("10.0.0.1", name="other-1")))
    assert index.removed_hosts(KEY) == frozenset(), "one of its addresses is another pod's"


def test_an_event_of_a_pod_costs_the_same_however_many_pods_went_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each event had been compared with every pod that ever went: 0.55 s of a blocked loop after 30,000."""
    index = PodIndex()
    for number in range(100):
        gone = pod(f"10.0.1.{number}", name=f"bn-{number + 1}")
        if number % 2:
            gone["status"]["phase"] = "Failed"
        index.take(WatchEvent("ADDED", gone))
        index.take(WatchEvent("DELETED", gone))
    assert len(index.removed_hosts(KEY)) == 50
    read = mock.Mock(side_effect=pod_ips)
    monkeypatch.setattr(pods, "pod_ips", read)
    index.take(WatchEvent("ADDED", pod("10.0.0.1", name="other-1")))
    assert read.call_count < 10


class CountingApi:
    """Lists these pods, and records the selector of each list request."""

    def __init__(self, *pods: dict[str, Any]) -> None:
        self.pods = list(pods)
        self.asked: list[str] = []

    async def list(self, *_: Any, field_selector: str, **__: Any) -> SimpleNamespace:
        self.asked.append(field_selector)
        await asyncio.sleep(0)
        return SimpleNamespace(items=self.pods if not field_selector else [])


async def test_peers_that_are_no_pods_cost_one_list_of_all_together() -> None:
    """In a dual-stack cluster each unknown peer had cost one list of all pods."""
    api = CountingApi(pod("10.0.0.1", "fd00::5"))
    directory = KubernetesDirectory(cast("KubernetesApi", api))
    directory._on_pod(WatchEvent("ADDED", pod("10.0.0.9", "fd00::9", name="bn-9")))
    strangers = [f"fd07::{number:x}" for number in range(1, 40)]
    found = await asyncio.gather(*(directory.peer(host) for host in (*strangers, "fd00::5")))
    assert found == [*(None for _ in strangers), _pod(1)]
    assert api.asked.count("") == 1
    assert len(api.asked) == 41


async def test_a_pod_is_found_by_its_second_address_also_before_the_watch_has_told(api: KubernetesApi) -> None:
    """The API selects pods by status.podIP only, which is a pod's first address."""
    await create_pod(api, "orders-1", address="10.0.0.1")
    both = {"status": {"podIPs": [{"ip": "10.0.0.1"}, {"ip": "fd00::5"}]}}
    await api.patch(PODS, "orders-1", both, namespace="default", subresource="status", timeout_seconds=60.0)
    directory = KubernetesDirectory(api)  # not started: it has no watch
    assert await directory.peer("fd00::5") is None, "a single-stack cluster as far as it knows: no look-up"
    directory.pods.take(WatchEvent("ADDED", pod("10.0.0.9", "fd00::9", name="bn-9")))
    directory._unknown_until_seconds.clear()
    found = await directory.peer("fd00::5")
    assert found is not None
    assert found.pod_name == "orders-1"


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
    """A server that gets no requests."""

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


BEAT: dict[str, Any] = {"epoch": 0, "maxOffset": 0, "confirmOffset": 0, "heartbeatTimeoutMills": 10_000}
BEAT["electionPriority"] = 1


@pytest.mark.real_time
@pytest.mark.parametrize("written", ["[::1]:10911", "::1:10911", "0:0:0:0:0:0:0:1:10911"])
async def test_a_pod_speaks_for_itself_whatever_its_broker_calls_its_address(
    client: RemotingClient, start_plane: StartPlane, ipv6_loopback: str, written: str
) -> None:
    """Java brokers spell the same address differently; the record and the answers hold one spelling."""
    directory = PodsDirectory()
    plane = await start_plane(directory=directory, listen_host=ipv6_loopback)
    assert plane.address.startswith("[::1]:")
    directory.find(NAME, cluster_name=CLUSTER)
    directory.introduce(ipv6_loopback, _pod(1))
    send = partial(ask, plane.address, client=client)
    applied = await send(1013, appliedBrokerId=1, registerCheckCode=f"{written};1790000000000")
    assert applied.code == 0
    assert record_of(plane).address_of(1) == "[::1]:10911"
    assert (await send(1003, brokerId=1, brokerAddress=written)).code == 0
    assert (await send(904, brokerId=1, brokerAddr=written, **BEAT)).code == 0
    elected = await send(1002, brokerId=1, designateElect="false")
    assert (elected.ext_fields or {})["masterAddress"] == "[::1]:10911"
    # The check code belongs to the broker: it must be equal to the last character.
    assert (await send(1013, appliedBrokerId=1, registerCheckCode=f"{written};1790000000000")).code == 0
    refused = await send(1003, brokerId=1, brokerAddress="[fd00::9]:10911")
    assert (refused.code, "is at ::1, not at [fd00::9]:10911" in (refused.remark or "")) == (16, True)


@pytest.mark.real_time
async def test_a_pod_of_both_families_is_known_by_its_brokers_address_whichever_one_it_connects_from(
    start_plane: StartPlane,
) -> None:
    """A broker that is known by IPv6 dials a controller whose Service has IPv4 from the pod's other address."""
    directory = PodsDirectory()
    plane = await start_plane(directory=directory)
    directory.find(NAME, cluster_name=CLUSTER)
    directory.introduce("127.64.9.1", _pod(1))
    directory.pods.take(WatchEvent("ADDED", pod("127.64.9.1", "fd00::5", family="IPv6")))
    client = RemotingClient(local_host="127.64.9.1")
    send = partial(ask, plane.address, client=client)
    six = "[fd00::5]:10911"
    assert (await send(1013, appliedBrokerId=1, registerCheckCode=f"{six};1790000000000")).code == 0
    assert (await send(1003, brokerId=1, brokerAddress=six)).code == 0
    assert (await send(904, brokerId=1, brokerAddr=six, **BEAT)).code == 0
    assert group_of(plane).addresses.channel_hosts == {1: "fd00::5"}
    refused = await send(1003, brokerId=1, brokerAddress="[fd00::9]:10911")
    await client.close()
    assert (refused.code, "is at fd00::5, not at [fd00::9]:10911" in (refused.remark or "")) == (16, True)
