"""Which controller a replica asks: the first that names a leader, without waiting for those that are cut off."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

import pytest

from rocketmq_remoting.codes import RequestCode
from rocketmq_remoting.controller_protocol import (
    GetMetaDataResponseHeader,
    GetReplicaInfoResponseHeader,
    SyncStateSetBody,
)
from rocketmq_remoting.errors import RemotingTimeoutError
from rocketmq_replica.configuration import parse_configuration
from rocketmq_replica.controller.client import (
    ControllerClient,
    ControllerOutcomeUnknownError,
    ControllerUnreachableError,
)
from tests.replica.support import FakeController, Starter, configuration_text, eventually, fresh_address

if TYPE_CHECKING:
    from pathlib import Path

    from rocketmq_remoting.client import RemotingClient
    from rocketmq_remoting.command import RemotingCommand

A, B, C = "127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"


class Controllers:
    """Three of them. Those in ``cut_off`` answer nothing before the test says that their time is over."""

    def __init__(self) -> None:
        self.cut_off: set[str] = set()
        self.time_is_over = asyncio.Event()
        self.asked: list[tuple[str, int]] = []

    async def invoke(self, address: str, command: RemotingCommand, *, timeout_seconds: float) -> RemotingCommand:
        self.asked.append((address, command.code))
        if address in self.cut_off:
            await self.time_is_over.wait()
            raise RemotingTimeoutError(f"{address}: no answer within {timeout_seconds} s")
        if command.code == RequestCode.CONTROLLER_GET_METADATA_INFO:
            fields = GetMetaDataResponseHeader(controller_leader_address=address, is_leader=True)
            return command.answer(0, ext_fields=fields.encode())
        info = GetReplicaInfoResponseHeader(master_broker_id=1, master_address="127.0.0.1:9", master_epoch=4)
        body = SyncStateSetBody(sync_state_set=frozenset({1}), sync_state_set_epoch=7)
        return command.answer(0, ext_fields=info.encode(), body=body.encode())

    def client(self, folder: Path) -> ControllerClient:
        configuration = parse_configuration(configuration_text(folder, ";".join((A, B, C)), fresh_address()), {})
        return ControllerClient(cast("RemotingClient", self), configuration, now_ms=lambda: 0)


@pytest.mark.parametrize("cut_off", [{A}, {A, B}, {B, C}, {A, C}])
async def test_those_that_are_cut_off_are_not_waited_for(cut_off: set[str], tmp_path: Path) -> None:
    controllers = Controllers()
    controllers.cut_off = cut_off
    client = controllers.client(tmp_path)
    async with asyncio.timeout(15):
        assert (await client.replica_info()).master_epoch == 4
    assert controllers.asked[-1] == (min({A, B, C} - cut_off), RequestCode.CONTROLLER_GET_REPLICA_INFO)
    controllers.time_is_over.set()
    await eventually(lambda: not client._asked)


async def test_where_all_are_cut_off_the_error_says_what_each_of_them_did(tmp_path: Path) -> None:
    controllers = Controllers()
    controllers.cut_off = {A, B, C}
    asking = asyncio.create_task(controllers.client(tmp_path).replica_info())
    await eventually(lambda: len(controllers.asked) == 3)
    controllers.time_is_over.set()
    with pytest.raises(ControllerUnreachableError, match=f"{A}: no answer.*{B}: no answer.*{C}: no answer"):
        await asking


async def test_after_a_change_of_master_the_leader_is_looked_for_anew(tmp_path: Path) -> None:
    """A node was cut off: the old master, and the controller that our requests went to."""
    controllers = Controllers()
    client = controllers.client(tmp_path)
    await client.replica_info()
    [leader] = {address for address, code in controllers.asked if code == RequestCode.CONTROLLER_GET_REPLICA_INFO}
    controllers.cut_off = {leader}
    client.forget_leader()
    async with asyncio.timeout(15):
        assert (await client.replica_info()).master_epoch == 4


async def test_what_was_asked_of_a_leader_that_is_cut_off_has_an_unknown_outcome(tmp_path: Path) -> None:
    controllers = Controllers()
    client = controllers.client(tmp_path)
    await client.replica_info()
    controllers.cut_off = {A, B, C}
    controllers.time_is_over.set()
    with pytest.raises(ControllerOutcomeUnknownError):
        await client.replica_info()


async def test_1008_has_the_leader_looked_for_anew(
    start: Starter, controller: FakeController, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = await start("r1")
    await eventually(lambda: one.role == "MASTER")
    forgotten: list[bool] = []
    monkeypatch.setattr(one.process.controller, "forget_leader", lambda: forgotten.append(True))
    controller.decide(1)
    await controller.notify(1)
    assert forgotten
