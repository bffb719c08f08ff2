"""Limits of frames and of connections for each caller (F33, F34), and the callers that a stopping controller turns away."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from brokergroup_operator.api.brokergroup import Signature
from brokergroup_operator.controller.directory.pods import Peer
from brokergroup_operator.controller.settings import KNOWN_BYTES, UNTIL_KNOWN_BYTES, PlaneSettings, SecuritySettings
from brokergroup_operator.controller.standalone import StandaloneSettings, _for_all_alike
from brokergroup_operator.records.store import GroupKey
from rocketmq_remoting.client import RemotingClient
from rocketmq_remoting.codes import RequestCode, ResponseCode
from rocketmq_remoting.command import MQ_VERSION_5_5_0, RemotingCommand, request
from rocketmq_remoting.controller_protocol import encode_broker_names
from rocketmq_remoting.errors import RemotingConnectError, RemotingConnectionLostError, RemotingError
from rocketmq_remoting.signature import Credentials, sign_command
from tests.support.fake_broker import CLUSTER, NAME, FakeGroup
from tests.support.pods_directory import PodsDirectory

if TYPE_CHECKING:
    from brokergroup_operator.controller.plane import ControllerPlane
    from tests.controller.conftest import StartPlane

HOST = "127.64.15.1"
GROUP = Credentials(access_key="group", secret_key="secret-of-the-group")


async def served(client: RemotingClient, plane: ControllerPlane, body_bytes: int) -> bool:
    """Whether a 1006 with a list of names of this length gets an answer."""
    names = encode_broker_names(["x" * 100 for _ in range(body_bytes // 103)])
    try:
        return (await client.invoke(plane.address, request(1006, body=names), timeout_seconds=5)).code == 0
    except RemotingConnectionLostError:
        return False


@pytest.mark.parametrize("known", [False, True], ids=["stranger", "pod"])
async def test_a_frame_of_a_stranger_is_short(start_plane: StartPlane, *, known: bool) -> None:
    directory = PodsDirectory()
    if known:
        directory.introduce(HOST, Peer(namespace="ns", pod_name="a-1", group=GroupKey("ns", "a")))
    plane = await start_plane(directory=directory)
    client = RemotingClient(local_host=HOST)
    assert await served(client, plane, UNTIL_KNOWN_BYTES - 1000)
    assert await served(client, plane, UNTIL_KNOWN_BYTES + 1000) is known
    assert await served(client, plane, KNOWN_BYTES - 1000) is known
    assert not await served(client, plane, KNOWN_BYTES + 1000)
    await client.close()


async def test_a_signature_makes_the_connection_a_known_one(start_plane: StartPlane) -> None:
    plane = await start_plane(directory=PodsDirectory(credentials=GROUP))
    client = RemotingClient(local_host=HOST)
    named = {"clusterName": "cl", "brokerName": "bn"}
    await client.invoke(plane.address, sign_command(request(1012, ext_fields=named), GROUP), timeout_seconds=5)
    assert await served(client, plane, KNOWN_BYTES - 1000)
    wrong = sign_command(request(1012, ext_fields=named), GROUP)
    other = RemotingClient(local_host=HOST)
    await other.invoke(
        plane.address, request(1012, ext_fields={**(wrong.ext_fields or {}), "brokerName": "x"}), timeout_seconds=5
    )
    assert not await served(other, plane, KNOWN_BYTES - 1000)
    await client.close()
    await other.close()


async def test_strangers_crowd_out_strangers_and_no_pod(start_plane: StartPlane) -> None:
    directory = PodsDirectory()
    directory.introduce(HOST, Peer(namespace="ns", pod_name="a-1", group=GroupKey("ns", "a")))
    security = SecuritySettings(max_unknown_connections=8, max_unknown_connections_per_host=4)
    plane = await start_plane(directory=directory, security=security)
    hosts = ["127.64.15.7", "127.64.15.8", "127.64.15.9"]
    crowd = [RemotingClient(local_host=host, connect_timeout_seconds=2) for host in hosts for _ in range(6)]

    async def stands(client: RemotingClient) -> bool:
        try:
            return (await client.invoke(plane.address, request(1005), timeout_seconds=5)).code == 0
        except RemotingError:
            return False

    standing = [await stands(client) for client in crowd]
    assert standing == [True] * 4 + [False] * 2 + [True] * 4 + [False] * 2 + [False] * 6
    pods = [RemotingClient(local_host=HOST) for _ in range(20)]
    assert all(await asyncio.gather(*(stands(client) for client in pods)))
    for client in (*crowd, *pods):
        await client.close()


def test_the_controller_alone_treats_all_alike_unless_they_sign() -> None:
    alike = _for_all_alike(StandaloneSettings()).security
    assert alike.frame_limits.max_frame_bytes == KNOWN_BYTES
    assert alike.frame_limits.max_frame_bytes_until_known is None
    assert alike.max_unknown_connections is None
    signing = StandaloneSettings(signature=Signature.REQUIRED, broker_credentials=GROUP)
    assert _for_all_alike(signing) == PlaneSettings()


# ---- A stopping controller answers 1500 to callers that know this code, serves the others, and accepts no new connection.

MQ_VERSION_5_3_1 = 475


def replica_info(*, version: int, oneway: bool = False) -> RemotingCommand:
    ext_fields = {"clusterName": CLUSTER, "brokerName": NAME}
    return request(RequestCode.CONTROLLER_GET_REPLICA_INFO, ext_fields=ext_fields, version=version, oneway=oneway)


@pytest.mark.real_time
async def test_a_stopping_plane_sends_those_away_who_understand_it(start_plane: StartPlane) -> None:
    plane = await start_plane(drain_seconds=2.0)
    fakes = FakeGroup(plane.address)
    await fakes.three()
    client, late = RemotingClient(), RemotingClient(connect_timeout_seconds=0.5)

    async def answer(version: int, code: int | None = None) -> int:
        command = replica_info(version=version) if code is None else request(code, version=version)
        return (await client.invoke(plane.address, command, timeout_seconds=5)).code

    assert await answer(MQ_VERSION_5_5_0) == ResponseCode.SUCCESS
    stopping = asyncio.create_task(plane.stop())
    async with asyncio.timeout(5):
        while await answer(MQ_VERSION_5_5_0) != ResponseCode.GO_AWAY:
            pass
    assert await answer(MQ_VERSION_5_3_1) == ResponseCode.SUCCESS
    assert await answer(0) == ResponseCode.SUCCESS
    assert await answer(MQ_VERSION_5_5_0, RequestCode.CONTROLLER_GET_METADATA_INFO) == ResponseCode.GO_AWAY
    with pytest.raises(RemotingConnectError):
        await late.invoke(plane.address, replica_info(version=0), timeout_seconds=2)
    await stopping
    assert not client.is_connected(plane.address)
    await client.close()
    await late.close()
    await fakes.stop()


async def test_what_is_being_handled_when_the_plane_stops_is_still_answered(
    client: RemotingClient, start_plane: StartPlane
) -> None:
    plane = await start_plane()
    asked = [
        asyncio.create_task(client.invoke(plane.address, replica_info(version=0), timeout_seconds=5)) for _ in range(50)
    ]
    await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
    await plane.stop()
    codes = {(await one).code for one in asked}
    assert codes <= {ResponseCode.SUCCESS, ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST}
