"""Which group a brokerName means: two groups of one name, groups unknown for a while, and names without a broker."""

from __future__ import annotations

import asyncio
import gc
from typing import TYPE_CHECKING, Any

import pytest

from brokergroup_operator.controller.directory import group_directory
from brokergroup_operator.controller.directory.group_directory import FixedDirectory, GroupBinding
from brokergroup_operator.controller.directory.pods import Peer
from brokergroup_operator.controller.group.group import Group
from brokergroup_operator.controller.settings import SecuritySettings
from brokergroup_operator.controller.wire.request_handler import ConnectionNotes
from brokergroup_operator.kube.resources import BROKER_GROUPS, NAMESPACES
from brokergroup_operator.records.file import FileRecordStore
from brokergroup_operator.records.memory import MemoryRecordStore
from brokergroup_operator.records.store import GroupKey
from controller_core.model import BrokerGroupRecord, Replica
from rocketmq_remoting.client import RemotingClient
from rocketmq_remoting.codes import RequestCode, ResponseCode
from rocketmq_remoting.command import RemotingCommand, request
from rocketmq_remoting.controller_protocol import BrokerReplicasInfoBody, encode_broker_names
from tests.controller.cluster import Cluster, create_group, create_pod
from tests.controller.conftest import StartPlane, group_of, snapshot_of
from tests.controller.world import LOOSE, World, ask, stored_in
from tests.support.fake_broker import eventually

if TYPE_CHECKING:
    from pathlib import Path

    from brokergroup_operator.controller.directory.kubernetes_directory import KubernetesDirectory
    from brokergroup_operator.controller.plane import ControllerPlane
    from brokergroup_operator.kube.client import KubernetesApi

FIRST, TWIN, STAGING = GroupKey("default", "first"), GroupKey("default", "twin"), GroupKey("staging", "first")
NAMED: dict[str, Any] = {"clusterName": "DefaultCluster", "brokerName": "first"}
NO_PERMISSION = 16
REPLICAS = {
    one: Replica(broker_id=one, register_check_code=f"code-{one}", address=f"127.64.2.{one}:10911", registered=True)
    for one in (1, 2)
}
RECORD = BrokerGroupRecord(
    cluster_name="DefaultCluster",
    broker_name="first",
    next_broker_id=3,
    replicas=REPLICAS,
    master_broker_id=1,
    master_epoch=4,
    sync_state_set=frozenset({1, 2}),
    sync_state_set_epoch=5,
)


def pod_of(key: GroupKey) -> Peer:
    return Peer(namespace=key.namespace, pod_name=f"{key.name}-1", group=key)


async def met(directory: KubernetesDirectory, *keys: GroupKey) -> list[GroupBinding]:
    """Return the groups once the watch has delivered them."""
    found = [await eventually(lambda key=key: directory.binding(key), within_seconds=30) for key in keys]  # type: ignore[misc]
    return [one for one in found if one is not None]


async def test_of_one_namespace_the_first_is_meant_and_shown_to_the_twins_pods(
    api: KubernetesApi, directory: KubernetesDirectory
) -> None:
    await create_group(api, "first", begun=True)
    await create_group(api, "twin", brokerName="first")
    first, _ = await met(directory, FIRST, TWIN)
    for cluster in ("", "DefaultCluster"):
        for peer in (None, pod_of(FIRST), pod_of(TWIN), Peer(namespace="elsewhere", pod_name="shell")):
            assert directory.find("first", cluster_name=cluster, peer=peer) is first, (cluster, peer)
    assert directory.find("first", cluster_name="Other") is None
    await api.delete(BROKER_GROUPS, "first", namespace="default")
    merge = {"metadata": {"finalizers": None}}
    await api.patch(BROKER_GROUPS, "first", merge, namespace="default")
    [twin] = await met(directory, TWIN)
    await eventually(lambda: directory.find("first", peer=pod_of(TWIN)) is twin, what="the name to be the twin's")


async def test_two_that_both_live_are_told_apart_by_the_pod_that_asks(
    api: KubernetesApi, directory: KubernetesDirectory
) -> None:
    """An earlier operator let both groups start: neither of them may lose its controller."""
    for key in (FIRST, TWIN):
        await create_group(api, key.name, begun=True, brokerName="first")
    stored = {key: (await api.get(BROKER_GROUPS, key.name, namespace="default"))["metadata"] for key in (FIRST, TWIN)}
    # Created in the same second: the uid decides.
    older, younger = await met(
        directory, *sorted(stored, key=lambda key: (stored[key]["creationTimestamp"], stored[key]["uid"]))
    )
    assert directory.find("first", peer=pod_of(younger.key)) is older, "its brokers never registered: it has to wait"
    directory.registered(younger)
    assert directory.find("first", peer=pod_of(younger.key)) is younger
    assert directory.find("first") is younger, "only it has messages"
    directory.registered(older)
    assert directory.find("first", peer=pod_of(older.key)) is older
    assert directory.find("first", peer=pod_of(younger.key)) is younger
    assert directory.find("first") is older, "without a pod the older one is meant"


@pytest.mark.parametrize(
    ("servers", "of_staging"),
    [
        pytest.param(("ns.infra:9876", "ns.infra.svc:9876"), FIRST, id="one NameServer"),
        pytest.param(("ns:9876", "ns:9876"), STAGING, id="a NameServer in each namespace"),
        pytest.param(None, STAGING, id="no NameServer"),
    ],
)
async def test_of_two_namespaces_each_has_its_own_unless_they_share_a_name_server(
    api: KubernetesApi, directory: KubernetesDirectory, servers: tuple[str, str] | None, of_staging: GroupKey
) -> None:
    await api.create(NAMESPACES, {"metadata": {"name": "staging"}})
    one, other = servers or (None, None)
    await create_group(api, "first", begun=True, nameServers=[one] if one else [])
    await create_group(api, "first", namespace="staging", nameServers=[other] if other else [])
    first, _ = await met(directory, FIRST, STAGING)
    found = directory.find("first", cluster_name="DefaultCluster", peer=pod_of(STAGING))
    assert found is not None
    assert found.key == of_staging
    assert directory.find("first", peer=pod_of(FIRST)) is first
    without_peer = directory.find("first")
    assert without_peer is (first if of_staging == FIRST else None), (
        "without a pod two groups of one name are indistinguishable"
    )


async def test_nothing_that_a_twins_pod_sends_touches_the_holder(
    client: RemotingClient, api: KubernetesApi, directory: KubernetesDirectory, start_plane: StartPlane
) -> None:
    store = MemoryRecordStore()
    await store.commit(FIRST, RECORD, None)
    await create_group(api, "first", begun=True)
    await create_group(api, "twin", brokerName="first")
    await create_pod(api, "twin-1", address="127.0.0.1", group="twin")
    plane = await start_plane(store, directory=directory, tick_seconds=3600.0)
    await eventually(lambda: directory.pods.peer_at("127.0.0.1"))
    await met(directory, FIRST, TWIN)
    before = await stored_in(store, FIRST)
    own = NAMED | {"brokerId": "1", "brokerAddress": "127.0.0.1:10911", "brokerAddr": "127.0.0.1:10911"}
    asked = {
        RequestCode.BROKER_HEARTBEAT: own | {"epoch": "9", "maxOffset": "0", "confirmOffset": "0"},
        RequestCode.CONTROLLER_REGISTER_BROKER: own,
        RequestCode.CONTROLLER_ELECT_MASTER: own | {"designateElect": "false"},
        RequestCode.CONTROLLER_GET_NEXT_BROKER_ID: NAMED,
        RequestCode.CONTROLLER_APPLY_BROKER_ID: NAMED | {"appliedBrokerId": "3", "registerCheckCode": "x"},
    }
    for code, fields in asked.items():
        answer = await ask(plane.address, code, client=client, **fields)
        assert answer.code == NO_PERMISSION, (code, answer)
        told = "pod default/twin-1 does not speak for group default/first, which has brokerName 'first'"
        assert answer.remark == told, code
    body = encode_broker_names(["first"])
    answer = await client.invoke(
        plane.address, request(RequestCode.CONTROLLER_GET_SYNC_STATE_DATA, body=body), timeout_seconds=5
    )
    table = BrokerReplicasInfoBody.decode(answer.body).replicas_info_table
    assert table["first"].master_broker_id == 1
    assert (await stored_in(store, FIRST)).record == before.record
    assert await store.read(TWIN) is None
    assert group_of(plane, FIRST).live() == {}, "its heartbeat was not heard"


# ---- A running master that polls while its group is unknown keeps its mastership when the group is recreated (issue 30, 4).


async def poll(client: RemotingClient, plane: str) -> RemotingCommand:
    return await ask(plane, RequestCode.CONTROLLER_GET_REPLICA_INFO, client=client, **NAMED)


async def register_at(client: RemotingClient, plane: str, broker_id: int) -> RemotingCommand:
    own = NAMED | {"brokerAddress": f"127.64.2.{broker_id}:10911"}
    return await ask(plane, RequestCode.CONTROLLER_REGISTER_BROKER, client=client, brokerId=broker_id, **own)


@pytest.mark.parametrize(
    ("broker_id", "polls"), [(1, True), (1, False), (2, True)], ids=["running master", "started master", "slave"]
)
async def test_the_registration_after_a_poll_is_of_the_process_that_runs(
    client: RemotingClient, cluster: Cluster, start_plane: StartPlane, broker_id: int, polls: bool
) -> None:
    store = MemoryRecordStore()
    await store.commit(FIRST, RECORD, None)
    await create_pod(cluster.api, f"first-{broker_id}", address="127.0.0.1", group="first")
    await cluster.meets("127.0.0.1")
    plane = await start_plane(store, directory=cluster.directory, tick_seconds=3600.0)

    async def granted() -> int | None:
        return (await stored_in(store, FIRST)).record.granted_master_id

    if polls:
        unknown = await poll(client, plane.address)
        assert unknown.code == ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST
    await create_group(cluster.api, "first", begun=True)
    await met(cluster.directory, FIRST)
    answer = await register_at(client, plane.address, broker_id)
    if (broker_id, polls) != (1, True):
        assert (answer.code, await granted()) == (ResponseCode.SUCCESS, 1 if broker_id == 2 else None)
        return
    assert answer.code != ResponseCode.SUCCESS
    assert (await stored_in(store, FIRST)).record == RECORD
    polled = await poll(client, plane.address)
    assert (polled.code, (polled.ext_fields or {}).get("masterBrokerId")) == (ResponseCode.SUCCESS, "1")
    # One poll counts as one registration: the next one on this connection comes from a new process.
    assert (await register_at(client, plane.address, 1)).code == ResponseCode.SUCCESS
    assert await granted() is None


async def test_what_is_kept_of_a_connection_is_bounded_and_ends_with_it(
    client: RemotingClient, start_plane: StartPlane
) -> None:
    notes = ConnectionNotes()
    for number in range(10_000):
        notes.told_unknown(f"made-up-{number}")
    assert sum(notes.registers_because_of_poll(f"made-up-{number}") for number in range(10_000)) == 100
    plane = await start_plane()
    await poll(client, plane.address)
    assert [one.unknown for one in plane.handler._connections.values()] == [{"first"}]
    await client.close()
    await eventually(lambda: not plane.handler._connections, what="the connection to be forgotten")


# ---- The controller alone takes any brokerName: names that no broker registers under fill no table, no disk and no log (issue 20).

FEW = 20


async def ask_about(
    client: RemotingClient, plane: ControllerPlane, code: int, name: str, **fields: Any
) -> RemotingCommand:
    return await ask(plane.address, code, client=client, brokerName=name, **fields)


async def apply(client: RemotingClient, plane: ControllerPlane, name: str, broker_id: int = 1) -> int:
    code = f"127.0.0.1:{broker_id};1"
    return (await ask_about(client, plane, 1013, name, appliedBrokerId=broker_id, registerCheckCode=code)).code


async def next_id(client: RemotingClient, plane: ControllerPlane, name: str) -> str:
    return ((await ask_about(client, plane, 1012, name)).ext_fields or {})["nextBrokerId"]


async def register(client: RemotingClient, plane: ControllerPlane, name: str, broker_id: int = 1) -> int:
    address = f"127.0.0.1:{broker_id}"
    return (await ask_about(client, plane, 1003, name, brokerId=broker_id, brokerAddress=address)).code


def test_made_up_names_take_no_real_groups_place() -> None:
    directory = FixedDirectory()
    for number in range(5 * group_directory.MOST_UNREGISTERED):
        directory.find(f"made-up-{number}")
    assert directory.find("orders") is not None
    assert len(directory.bindings()) <= group_directory.MOST_UNREGISTERED


async def test_what_is_kept_of_made_up_names_has_a_bound(
    client: RemotingClient, group: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests of every kind, and heartbeats over one connection, name them; the real group and its master stay."""
    monkeypatch.setattr(group_directory, "MOST_UNREGISTERED", FEW)
    others = kept_groups()  # from earlier tests
    store = MemoryRecordStore()
    plane, _ = await group.three_under(store, settings=LOOSE)
    names = [f"made-up-{number}" for number in range(5 * FEW)]
    await client.invoke(plane.address, request(1006, body=encode_broker_names(names)), timeout_seconds=5)
    for name in names:
        await ask_about(client, plane, 1012, name)
        await ask_about(client, plane, 1004, name, brokerAddress="127.0.0.1:1")
        beat = {"brokerAddr": "127.0.0.1:1", "brokerId": "1", "heartbeatTimeoutMills": "5000", "epoch": "1"}
        await ask_about(client, plane, 904, name, **beat)
    real = GroupKey("standalone", group.name)
    assert len(names_of(plane)) <= FEW + 1
    assert set(store._records) == {real}
    assert snapshot_of(plane, real).writable
    await eventually(lambda: kept_groups() - others <= FEW + 1, what="the groups that gave way to be let go")


def names_of(plane: ControllerPlane) -> set[str]:
    return {key.name for key in plane.keys()}  # noqa: SIM118 - a GroupView is no mapping


def kept_groups() -> int:
    gc.collect()
    return sum(isinstance(one, Group) for one in gc.get_objects())


async def test_an_address_begins_so_many_names_until_brokers_register(start_plane: StartPlane) -> None:
    store = MemoryRecordStore()
    plane = await start_plane(store, security=SecuritySettings(max_new_names_per_host=3))
    client, neighbour = RemotingClient(local_host="127.64.16.1"), RemotingClient(local_host="127.64.16.2")
    assert [await apply(client, plane, f"a-{number}") for number in range(5)] == [0, 0, 0, 16, 16]
    assert len(store._records) == 3
    assert await apply(client, plane, "a-0", 2) == 0  # a known name may continue
    assert await apply(client, plane, "a-5", 7) == 16  # and a request without effect takes no place either
    assert await apply(neighbour, plane, "a-3") == 0
    assert await register(client, plane, "a-0") == 0
    assert [await apply(client, plane, "a-4"), await apply(client, plane, "a-5")] == [0, 16]
    await client.close()
    await neighbour.close()


@pytest.mark.real_time
async def test_the_ids_of_a_name_that_gave_way_are_not_given_again(
    client: RemotingClient, start_plane: StartPlane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its broker wrote the id to its disk at the answer to 1013, and may register with it days later."""
    monkeypatch.setattr(group_directory, "MOST_UNREGISTERED", FEW)
    store = FileRecordStore(tmp_path)
    plane = await start_plane(store)
    assert await apply(client, plane, "late") == 0
    for number in range(2 * FEW):
        await ask_about(client, plane, 1012, f"made-up-{number}")
    assert "late" not in names_of(plane)
    assert len(store._turns) <= FEW + 1
    assert await next_id(client, plane, "late") == "2"
    assert await register(client, plane, "late") == 0
    for number in range(2 * FEW):
        await ask_about(client, plane, 1012, f"made-up-{number}")
    assert "late" in names_of(plane)


async def test_a_group_whose_record_is_read_late_is_a_group_all_the_same(
    start_plane: StartPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A restarted controller knows a group by its record, even if the name was evicted while the record was read."""
    monkeypatch.setattr(group_directory, "MOST_UNREGISTERED", FEW)
    store, client = MemoryRecordStore(), RemotingClient()
    before = await start_plane(store)
    await apply(client, before, "orders")
    await register(client, before, "orders")
    plane = await start_plane(store)
    await asyncio.gather(
        ask_about(client, plane, 1004, "orders"), *(ask_about(client, plane, 1004, f"x-{n}") for n in range(60))
    )
    await eventually(lambda: "orders" in names_of(plane), what="the group to be met")
    for number in range(2 * FEW):
        await ask_about(client, plane, 1012, f"made-up-{number}")
    assert "orders" in names_of(plane)
    await client.close()


def test_a_name_is_escaped_where_it_is_told() -> None:
    assert str(GroupKey("ns", "orders-é")) == "ns/orders-é"
    assert str(GroupKey("ns", "a\x1b[31mb\nlevel=error\u202e")) == r"ns/a\x1b[31mb\nlevel=error\u202e"
    assert str(GroupKey("ns", "a\\x1b")) != str(GroupKey("ns", "a\x1b"))
