"""What brokers are told by a controller that grants nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from brokergroup_operator.migrate.quiet_controller import QuietController
from rocketmq_remoting.client import RemotingClient
from rocketmq_remoting.codes import RequestCode, ResponseCode
from rocketmq_remoting.command import RemotingCommand, request
from rocketmq_remoting.controller_protocol import BrokerHeartbeatRequestHeader, GetMetaDataResponseHeader
from tests.support.fake_broker import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

GRANTS = [1001, 1002, 1003, 1004, 1006, 1011, 1012, 1013]


@pytest.fixture
async def quiet() -> AsyncIterator[QuietController]:
    controller = QuietController(leader="java:9878")
    await controller.start("127.0.0.1", 0)
    yield controller
    await controller.stop()


@pytest.fixture
async def client() -> AsyncIterator[RemotingClient]:
    made = RemotingClient()
    yield made
    await made.close()


def heartbeat(broker_id: int | None = 1) -> RemotingCommand:
    header = BrokerHeartbeatRequestHeader(
        cluster_name="cl", broker_name="bn", broker_addr="h:1", broker_id=broker_id, epoch=4, max_offset=77
    )
    return request(RequestCode.BROKER_HEARTBEAT, ext_fields=header.encode())


@pytest.mark.parametrize("code", GRANTS)
async def test_whatever_grants_is_for_the_leader(quiet: QuietController, client: RemotingClient, code: int) -> None:
    fields = {"clusterName": "cl", "brokerName": "bn", "brokerId": "1"}
    answer = await client.invoke(quiet.address, request(code, ext_fields=fields), timeout_seconds=3.0)
    assert answer.code == ResponseCode.CONTROLLER_NOT_LEADER


@pytest.mark.parametrize("code", [1009, 1010])
async def test_nobody_configures_it(quiet: QuietController, client: RemotingClient, code: int) -> None:
    answer = await client.invoke(quiet.address, request(code), timeout_seconds=3.0)
    assert answer.code == ResponseCode.NO_PERMISSION


async def test_it_names_the_leader_it_was_told_of_or_nobody(quiet: QuietController, client: RemotingClient) -> None:
    asked = request(RequestCode.CONTROLLER_GET_METADATA_INFO)
    answer = await client.invoke(quiet.address, asked, timeout_seconds=3.0)
    assert GetMetaDataResponseHeader.decode(answer.ext_fields).controller_leader_address == "java:9878"
    quiet.leader = None
    answer = await client.invoke(quiet.address, asked, timeout_seconds=3.0)
    assert "controllerLeaderAddress" not in (answer.ext_fields or {}), "a broker would take an empty one for an answer"


async def test_a_broker_is_heard_while_its_connection_stands(quiet: QuietController, client: RemotingClient) -> None:
    assert (await client.invoke(quiet.address, heartbeat(), timeout_seconds=3.0)).code == 0
    assert (await client.invoke(quiet.address, heartbeat(), timeout_seconds=3.0)).code == 0
    assert quiet.heard("bn")[1].address == "h:1"
    assert quiet.live("bn")[1].max_offset == 77
    assert quiet.heartbeats("bn") == 2
    client.disconnect(quiet.address)
    await eventually(lambda: not quiet.heard("bn"), what="the end of the connection noticed")
    assert quiet.heartbeats("bn") == 2


async def test_a_heartbeat_without_an_id_is_refused(quiet: QuietController, client: RemotingClient) -> None:
    answer = await client.invoke(quiet.address, heartbeat(None), timeout_seconds=3.0)
    assert answer.code == ResponseCode.CONTROLLER_INVALID_REQUEST
