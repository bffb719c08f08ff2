"""A controller that stops says so (1500) to whoever understands it, serves the others, and lets nobody new in."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from rocketmq_remoting.client import RemotingClient
from rocketmq_remoting.codes import RequestCode, ResponseCode
from rocketmq_remoting.command import MQ_VERSION_5_5_0, RemotingCommand, request
from rocketmq_remoting.errors import RemotingConnectError
from tests.support.fake_broker import CLUSTER, NAME, FakeGroup

if TYPE_CHECKING:
    from tests.controller.conftest import StartPlane

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


async def test_what_is_being_handled_when_the_plane_stops_is_still_answered(start_plane: StartPlane) -> None:
    plane = await start_plane()
    client = RemotingClient()
    asked = [
        asyncio.create_task(client.invoke(plane.address, replica_info(version=0), timeout_seconds=5)) for _ in range(50)
    ]
    await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
    await plane.stop()
    codes = {(await one).code for one in asked}
    assert codes <= {ResponseCode.SUCCESS, ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST}
    await client.close()
