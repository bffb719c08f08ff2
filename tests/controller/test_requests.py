"""Requests over the wire: the golden vectors, callers that send for another pod's member, and the standalone controller."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from brokergroup_operator.controller.detect.api_contact import ApiContact
from brokergroup_operator.controller.directory.pods import Peer
from brokergroup_operator.controller.peers.broker_calls import live_minimum
from brokergroup_operator.controller.settings import PlaneSettings
from brokergroup_operator.controller.standalone import StandaloneSettings, run_standalone
from brokergroup_operator.fence.watchman import API_SILENCE, CONTROLLERS, api_silence_in
from brokergroup_operator.kube.errors import ApiUnavailableError
from rocketmq_remoting.client import RemotingClient
from rocketmq_remoting.codes import RequestCode, ResponseCode
from rocketmq_remoting.command import RemotingCommand, request
from rocketmq_remoting.controller_protocol import SyncStateSetBody
from rocketmq_remoting.errors import RemotingError
from tests.controller.conftest import StartPlane, record_of, snapshot_of
from tests.controller.world import KEY, LOOSE, Store, World, ask
from tests.support.fake_broker import CLUSTER, NAME, FakeGroup, eventually
from tests.support.virtual_loop import VirtualLoop

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from brokergroup_operator.controller.plane import ControllerPlane


class Asker:
    """One broker-like connection to a plane."""

    def __init__(self, plane: ControllerPlane, client: RemotingClient) -> None:
        self._plane = plane
        self._client = client

    async def __call__(self, code: int, body: object = None, **fields: object) -> RemotingCommand:
        encoded = None if body is None else json.dumps(body).encode()
        ext_fields = {name: str(value) for name, value in fields.items()} or None
        command = request(code, ext_fields=ext_fields, body=encoded)
        return await self._client.invoke(self._plane.address, command, timeout_seconds=3.0)


def fields_of(answer: RemotingCommand) -> dict[str, str]:
    return dict(answer.ext_fields or {})


def body_of(answer: RemotingCommand) -> Any:
    return json.loads(answer.body or b"null")


async def test_a_poll_that_is_answered_after_its_connection_has_closed_leaves_nothing_behind(
    client: RemotingClient, start_plane: StartPlane
) -> None:
    store = Store()
    plane = await start_plane(store)
    store.reading.clear()
    command = request(RequestCode.CONTROLLER_GET_REPLICA_INFO, ext_fields={"clusterName": CLUSTER, "brokerName": NAME})
    poll = asyncio.create_task(client.invoke(plane.address, command, timeout_seconds=5.0))
    await eventually(lambda: store.waiting > 0, what="the look-up of the record")
    await client.close()
    with pytest.raises(RemotingError):
        await poll
    await eventually(lambda: bool(plane._server._lost_in_flight), what="the end of the connection")
    (connection,) = plane._server._lost_in_flight
    store.reading.set()
    await eventually(lambda: not connection.in_flight, what="the answer")
    assert not plane.handler._connections


@pytest.mark.real_time
async def test_the_golden_vectors_hold_over_the_wire(client: RemotingClient, start_plane: StartPlane) -> None:  # noqa: PLR0915 - one story, in its order
    """Each form of a request and of an answer. The other codes are those of the core: tests/core/traces/golden_vectors.txt."""
    plane = await start_plane(heartbeat_timeout_seconds=30.0)
    ask = Asker(plane, client)
    both = {"clusterName": "cl", "brokerName": "bn"}

    async def alter(master: int, epoch: int, members: list[int], set_epoch: int) -> RemotingCommand:
        return await ask(
            1001,
            {"syncStateSet": members, "syncStateSetEpoch": set_epoch},
            brokerName="bn",
            masterBrokerId=master,
            masterEpoch=epoch,
        )

    async def elect(broker_id: int, *, designate: bool) -> RemotingCommand:
        return await ask(1002, **both, brokerId=broker_id, designateElect=str(designate).lower())

    # An empty store.
    answer = await ask(1012, **both)
    assert (answer.code, fields_of(answer)) == (0, both | {"nextBrokerId": "1"})
    answer = await ask(1013, **both, appliedBrokerId=2, registerCheckCode="1.1.1.1:1;100")
    assert (answer.code, fields_of(answer)) == (2014, both)
    answer = await ask(1004, brokerName="bn")
    assert (answer.code, answer.ext_fields) == (2008, {})
    answer = await ask(1003, **both, brokerId=1, brokerAddress="1.1.1.1:1")
    assert (answer.code, fields_of(answer)) == (2010, both)
    answer = await elect(1, designate=False)
    assert (answer.code, answer.ext_fields) == (2010, {})
    answer = await alter(1, 1, [1], 1)
    assert (answer.code, fields_of(answer)) == (2013, {"newSyncStateSetEpoch": "0"})
    answer = await ask(1006, ["bn"])
    assert (answer.code, answer.ext_fields, body_of(answer)) == (0, None, {"replicasInfoTable": {}})
    answer = await ask(1006)
    assert (answer.code, answer.remark) == (1, "not set any response code")
    assert (await ask(1011, brokerName="bn")).code == 2009

    # The first broker.
    assert (await ask(1013, **both, appliedBrokerId=1, registerCheckCode="1.1.1.1:1;100")).code == 0
    assert (await ask(1013, **both, appliedBrokerId=1, registerCheckCode="1.1.1.2:1;200")).code == 2014
    assert fields_of(await ask(1012, **both))["nextBrokerId"] == "2"
    answer = await ask(1004, brokerName="bn")
    assert (answer.code, fields_of(answer)) == (0, {"masterEpoch": "0"})
    assert body_of(answer) == {"syncStateSet": [], "syncStateSetEpoch": 0}
    answer = await ask(1003, **both, brokerId=1, brokerAddress="1.1.1.9:1")
    assert (answer.code, fields_of(answer)) == (0, both)
    assert body_of(answer) == {"syncStateSet": [], "syncStateSetEpoch": 0}
    assert (await ask(1003, **both, brokerId=7, brokerAddress="1.1.1.9:1")).code == 2010
    answer = await ask(904, **both, brokerAddr="1.1.1.9:1")
    assert (answer.code, answer.remark) == (2005, "Heart beat with empty brokerId")
    answer = await ask(904, **both, brokerId=1, brokerAddr="1.1.1.9:1", epoch=0, maxOffset=10)
    assert (answer.code, answer.remark) == (0, "Heart beat success")
    answer = await elect(1, designate=False)
    first_master = {"masterBrokerId": "1", "masterAddress": "1.1.1.9:1", "masterEpoch": "1", "syncStateSetEpoch": "1"}
    assert (answer.code, fields_of(answer)) == (0, first_master)
    members = {"brokerAddrs": {"1": "1.1.1.9:1"}, "brokerName": "bn", "cluster": "cl"}
    # Both shapes in one body: brokers read the first, mqadmin electMaster the second.
    assert body_of(answer) == {"brokerMemberGroup": members, "syncStateSet": [1]} | members
    answer = await elect(1, designate=False)
    assert (answer.code, fields_of(answer), body_of(answer)) == (2011, first_master, {"syncStateSet": [1]})

    # The second broker. (Java answers a register of the master with its own epoch; safety rule 6 takes it for a new process and
    # grants a new epoch: shown in the trace of the core.)
    assert (await ask(1013, **both, appliedBrokerId=2, registerCheckCode="1.1.1.2:1;200")).code == 0
    answer = await ask(1003, **both, brokerId=2, brokerAddress="1.1.1.2:1")
    assert (answer.code, fields_of(answer)) == (0, both | first_master)
    await ask(904, **both, brokerId=2, brokerAddr="1.1.1.2:1", epoch=1, maxOffset=9)
    assert (await ask(1013, **both, appliedBrokerId=3, registerCheckCode="1.1.1.3:1;300")).code == 0
    assert fields_of(await ask(1012, **both))["nextBrokerId"] == "4"
    answer = await alter(1, 1, [1, 2], 1)
    assert (answer.code, fields_of(answer)) == (0, {"newSyncStateSetEpoch": "2"})
    assert body_of(answer) == {"syncStateSet": [1, 2], "syncStateSetEpoch": 2}
    assert (await elect(3, designate=True)).code == 2012

    # Cleaning.
    assert (await ask(1011, **both, brokerControllerIdsToClean="2", isCleanLivingBroker="false")).code == 2009
    assert (await ask(1011, **both, brokerControllerIdsToClean="3", isCleanLivingBroker="false")).code == 0
    assert fields_of(await ask(1012, **both))["nextBrokerId"] == "4"

    # 1006 of a living group.
    table = body_of(await ask(1006, ["bn", "unknown"]))["replicasInfoTable"]
    assert list(table) == ["bn"]
    assert table["bn"]["masterBrokerId"] == 1
    assert [replica["brokerId"] for replica in table["bn"]["inSyncReplicas"]] == [1, 2]
    assert all(replica["alive"] for replica in table["bn"]["inSyncReplicas"])
    assert table["bn"]["notInSyncReplicas"] == []

    # Requests that are not for a controller, and refused ones.
    answer = await ask(1005)
    assert answer.code == 0
    assert fields_of(answer)["controllerLeaderAddress"] == plane.address
    assert fields_of(answer)["isLeader"] == "true"
    assert fields_of(answer)["peers"] == f"n0:{plane.address};"
    assert (await ask(1009)).code == 16
    assert (await ask(1010)).code == 16
    answer = await ask(1007)
    assert (answer.code, answer.remark) == (3, " request type 1007 not supported")
    answer = await ask(1001, brokerName="bn", masterBrokerId=1, masterEpoch=1)  # without a body
    assert answer.code == 1


async def test_the_answer_to_a_fence_lists_all_controllers(client: RemotingClient, start_plane: StartPlane) -> None:
    """The pod knows only the controllers of its creation time (docs/adr/0019); Java clients ignore the field."""
    planes = ("operator-0:9878", "operator-1:9878")
    for peers, expected in ((planes, {CONTROLLERS: ";".join(planes)}), ((), {})):
        answer = await Asker(await start_plane(peer_addresses=peers), client)(1006, ["bn"])
        assert (answer.code, fields_of(answer)) == (0, expected)


async def test_the_answer_to_a_fence_says_for_how_long_the_api_was_not_reached(
    client: RemotingClient, start_plane: StartPlane
) -> None:
    """Without it a plane that is cut off with a master keeps that master alive, while another plane elects (docs/adr/0008)."""

    async def read() -> None:
        if not reached:
            raise ApiUnavailableError("cut off")

    reached = True
    clock = asyncio.get_running_loop().time
    contact = ApiContact(read, clock=clock)
    ask_plane = Asker(await start_plane(contact=contact), client)

    async def said() -> float:
        return api_silence_in(await ask_plane(1006, ["bn"]))

    assert fields_of(await ask_plane(1006, ["bn"])) == {API_SILENCE: "2147483647"}, "this process never reached it"
    contact.start()
    await asyncio.sleep(1.2)
    assert await said() == pytest.approx(0.2, abs=0.01)
    reached = False
    cut_at = clock()
    await asyncio.sleep(30.0)
    assert cut_at - 0.5 <= clock() - await said() <= cut_at
    await contact.stop()


# ---- Only its own pod may send requests for a member that belongs to a pod.

STRANGER = "127.64.8.9"


@pytest.fixture
async def pods(group: World) -> AsyncIterator[tuple[ControllerPlane, RemotingClient]]:
    """Three brokers, each in its own pod, under a plane; and a client in a fourth pod with the group's label.

    For strangers and other groups' pods see tests/security/test_every_code.py.
    """
    plane, directory = await group.plane(), group.directory
    directory.find(NAME, cluster_name=CLUSTER)
    for number in range(1, 4):
        host = f"127.64.8.{number}"
        directory.introduce(host, Peer(namespace="standalone", pod_name=f"{NAME}-{number}", group=KEY))
        await group.broker(host=host)
    directory.introduce(STRANGER, Peer(namespace="standalone", pod_name=f"{NAME}-9", group=KEY))
    await eventually(lambda: group.brokers[1].sync_state_set == {1, 2, 3}, what="three members in sync")
    impostor = RemotingClient(local_host=STRANGER)
    yield plane, impostor
    await impostor.close()


async def test_nobody_else_speaks_for_a_member(group: World, pods: tuple[ControllerPlane, RemotingClient]) -> None:
    """A forged 1003 would report the master's process as gone, and replace it in the record."""
    plane, impostor = pods
    record, third = record_of(plane), group.brokers[3]
    fewer = SyncStateSetBody(frozenset({1, 2}), record.sync_state_set_epoch).encode()
    send = partial(ask, plane.address, client=impostor)
    refused = [
        await send(RequestCode.CONTROLLER_REGISTER_BROKER, brokerId=1, brokerAddress=f"{STRANGER}:10911"),
        await send(
            RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET, fewer, masterBrokerId=1, masterEpoch=record.master_epoch
        ),
        await send(RequestCode.CONTROLLER_ELECT_MASTER, brokerId=2, designateElect="false"),
        # A pod registers its own address only.
        await third.ask(RequestCode.CONTROLLER_REGISTER_BROKER, brokerId=3, brokerAddress=group.brokers[1].address),
    ]
    assert [answer.code for answer in refused] == [ResponseCode.NO_PERMISSION] * 4
    after = record_of(plane)
    assert (after.granted_master_id, after.address_of(1)) == (1, group.brokers[1].address)
    assert after.sync_state_set == {1, 2, 3}
    # Nor does another pod keep a dead member alive.
    await third.kill()
    beat: dict[str, Any] = {
        "brokerId": 3,
        "brokerAddr": third.address,
        "epoch": 1,
        "maxOffset": 99,
        "confirmOffset": 99,
    }

    async def forged_and_gone() -> bool:
        answer = await send(RequestCode.BROKER_HEARTBEAT, **beat, heartbeatTimeoutMills=60_000)
        assert answer.code == ResponseCode.NO_PERMISSION
        return 3 not in snapshot_of(plane).live

    await eventually(forged_and_gone, what="broker 3 counts as dead")


async def test_nobody_makes_the_controller_forget_pods_alive_or_dead(
    group: World, pods: tuple[ControllerPlane, RemotingClient]
) -> None:
    """1011 with isCleanLivingBroker would make the controller forget a whole group; the dead pods have the data."""
    plane, impostor = pods
    send = partial(ask, plane.address, RequestCode.CLEAN_BROKER_DATA, client=impostor)
    assert (await send(isCleanLivingBroker="true")).code == ResponseCode.NO_PERMISSION
    assert [one for one in record_of(plane).replicas if record_of(plane).claimed_replica(one)] == [1, 2, 3]
    for broker in group.brokers.values():
        await broker.kill()

    def nobody_leads() -> bool:
        seen = snapshot_of(plane)
        return not seen.live and record_of(plane).granted_master_id is None and not seen.in_progress

    await eventually(nobody_leads, what="all are dead, and known to be")
    assert record_of(plane).sync_state_set
    for broker_id in record_of(plane).sync_state_set:
        assert (await send(brokerControllerIdsToClean=broker_id)).code == ResponseCode.NO_PERMISSION


async def test_a_broker_before_5_1_1_is_answered_what_it_lacks(client: RemotingClient, group: World) -> None:
    """It sends no brokerId, asks again every 5 s on its connection, and logs the answer; one Event says it beside the group."""
    plane, _ = await group.three_under()
    before, fields = record_of(plane), {"clusterName": CLUSTER, "brokerName": NAME, "brokerAddress": "127.0.0.1:10911"}
    for _ in range(3):
        old = request(RequestCode.CONTROLLER_REGISTER_BROKER, ext_fields=fields)
        answer = await client.invoke(plane.address, old, timeout_seconds=3.0)
        assert answer.code == ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED
        assert "brokers before 5.1.1" in str(answer.remark)
        assert "expected RocketMQ 5.1.1 or later, and not 5.1.2" in str(answer.remark)
    assert group.notes.too_old == ["127.0.0.1"]
    assert record_of(plane) == before


# ---- The standalone controller: its settings, and records that survive a restart.

BOTH = {"clusterName": "c", "brokerName": "bn"}


@pytest.mark.real_time
async def test_ids_outlive_the_standalone_controller(tmp_path: Path, unused_tcp_port: int) -> None:
    plane = PlaneSettings(listen_host="127.0.0.1", listen_port=unused_tcp_port)
    settings = StandaloneSettings(plane=plane, store=f"file:{tmp_path / 'records'}")
    address = f"127.0.0.1:{unused_tcp_port}"

    async def ask(client: RemotingClient, code: int, **fields: str) -> RemotingCommand | None:
        try:
            return await client.invoke(address, request(code, ext_fields=BOTH | fields), timeout_seconds=2.0)
        except RemotingError:
            return None

    for expected in ("1", "2"):
        stop, client = asyncio.Event(), RemotingClient()
        running = asyncio.create_task(run_standalone(settings, stop))
        answer = await eventually(partial(ask, client, 1012), what="the controller to answer")
        assert answer.ext_fields["nextBrokerId"] == expected
        await ask(client, 1013, appliedBrokerId=expected, registerCheckCode=f"127.0.0.1:{expected};1")
        await client.close()
        stop.set()
        await running


async def test_a_wildcard_is_no_address_to_tell_brokers(start_plane: StartPlane) -> None:
    """1005 would answer 0.0.0.0, and brokers would dial themselves (issue 9082 is the same mistake with 127.0.0.1)."""
    with pytest.raises(ValueError, match="advertise_address"):
        await start_plane(listen_host="0.0.0.0")


async def test_without_a_fence_a_frozen_master_is_replaced_and_the_promise_withdrawn(start_plane: StartPlane) -> None:
    plane = await start_plane()
    group = FakeGroup(plane.address)
    first, _, _ = await group.three()
    first.freeze()
    (key,) = plane.keys()
    await eventually(lambda: record_of(plane, key).unfenced, what="the failover to be told as unfenced")
    await eventually(lambda: record_of(plane, key).master_epoch == 2)
    await group.stop()


# ---- A broker's own values are not trusted: it may be faulty, or an attacker's.


@pytest.mark.parametrize(
    ("said", "expected"),
    [("2", 2), ("2147483647", 2147483647), *((one, None) for one in ("9" * 5000, "99999999999", "-1", "\u0662", ""))],
)
def test_a_minimum_that_is_no_number_of_java_is_none(said: str, expected: int | None) -> None:
    """5000 digits raised a ValueError out of the keeper: Python refuses to read more than 4300."""
    assert live_minimum({"minInSyncReplicas": said}) == expected


def test_a_broker_that_says_nothing() -> None:
    assert live_minimum({}) is None


# ---- The rig itself: a killed scripted broker is silent; a mark on a parameter selects virtual or real time.


async def test_who_is_killed_while_frozen_never_answers(client: RemotingClient, group: World) -> None:
    """Such an answer showed the plane a master that had just been fenced as still alive."""
    await group.plane(settings=LOOSE)
    broker = await group.broker(minimum=1)
    broker.freeze()
    asking = asyncio.create_task(
        client.invoke(broker.address, request(RequestCode.GET_BROKER_CONFIG), timeout_seconds=10.0)
    )
    await eventually(lambda: broker.waiting, what="the request to be there")
    await broker.kill()
    with pytest.raises(RemotingError):
        await asking


@pytest.mark.parametrize(
    ("kind", "is_virtual"), [pytest.param("java", False, marks=pytest.mark.real_time), ("ours", True)]
)
async def test_a_mark_on_a_parameter_decides_the_time(kind: str, *, is_virtual: bool) -> None:
    assert isinstance(asyncio.get_running_loop(), VirtualLoop) is is_virtual, kind
