"""Who counts as a slave: a broker id is only a number, and anybody who reaches the HA port can say it (upstream #1893, #3015)."""

from __future__ import annotations

import asyncio

import pytest

from rocketmq_remoting.codes import RequestCode, ResponseCode
from rocketmq_replica.ha.frames import Acknowledgement, Handshake
from tests.replica.support import (
    Client,
    FakeController,
    RunningReplica,
    Starter,
    eventually,
    fresh_address,
    start_master,
    start_pair,
)


class Stranger:
    """Says that it is a broker and that it holds whatever it is sent, and more."""

    def __init__(self, host: str) -> None:
        self.host = host
        self.received = b""
        self.closed = asyncio.Event()

    async def dial(self, one: RunningReplica, broker_id: int, *, at: str = "") -> None:
        host, _, port = (at or one.process.configuration.ha_address).rpartition(":")
        self._reader, self.writer = await asyncio.open_connection(host, int(port), local_addr=(self.host, 0))
        self.writer.write(Handshake(broker_id).encode())
        self._task = asyncio.create_task(self._read())

    async def _read(self) -> None:
        try:
            while data := await self._reader.read(65536):
                self.received += data
        except ConnectionError:
            pass
        self.closed.set()

    async def hang_up(self) -> None:
        self.writer.close()
        await self.closed.wait()
        await self._task


@pytest.mark.parametrize("broker_id", [2, 7])
async def test_a_stranger_is_sent_nothing_and_turned_away(
    start: Starter, controller: FakeController, broker_id: int
) -> None:
    one, _two = await start_pair(start, controller)
    stranger = Stranger(fresh_address())
    await stranger.dial(one, broker_id)
    await stranger.closed.wait()
    assert stranger.received == b""
    assert one.term.sync_state.links.keys() == {2}
    await stranger.hang_up()


async def test_behind_services_an_id_of_the_group_has_to_do(start: Starter, controller: FakeController) -> None:
    """Members are known by addresses that no connection comes from: who says no id of the group is still turned away."""
    one = await start_master(start, bindAddress=(own := fresh_address()))
    await start("r2", bindAddress=(other := fresh_address()))
    await eventually(lambda: controller.heartbeats.keys() == {1, 2})
    assert one.process.configuration.broker_ip != own
    served = f"{own}:{one.process.configuration.ha_port}"
    stranger, slave = Stranger(fresh_address()), Stranger(other)
    await stranger.dial(one, 7, at=served)
    await stranger.closed.wait()
    assert stranger.received == b""
    await slave.dial(one, 2, at=served)
    await eventually(lambda: one.term.sync_state.links.keys() == {2})
    await stranger.hang_up()
    await slave.hang_up()


async def test_a_strangers_acknowledgement_in_a_members_name_acknowledges_nothing(
    start: Starter, controller: FakeController, client: Client
) -> None:
    """While no controller answers it waits outside; its word would make one copy count as two."""
    one, two = await start_pair(start, controller, slaveTimeout=700)
    controller.silent = {
        RequestCode.CONTROLLER_GET_SYNC_STATE_DATA,
        RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET,
    }
    two.process.ha_client.leave()
    await eventually(lambda: not one.process.ha_server.connections)
    stranger = Stranger(fresh_address())
    await stranger.dial(one, 2)
    await eventually(lambda: one.process.ha_server.connections)
    send = asyncio.create_task(client.send(one.address, b"one copy"))
    await eventually(lambda: one.term.waiting_count == 1)
    stranger.writer.write(Acknowledgement(one.process.store.max_offset).encode())
    assert (await send).code == ResponseCode.FLUSH_SLAVE_TIMEOUT
    await stranger.hang_up()


async def test_a_slave_waits_outside_until_a_controller_answers(start: Starter, controller: FakeController) -> None:
    one = await start_master(start)
    controller.refused[RequestCode.CONTROLLER_GET_SYNC_STATE_DATA] = ResponseCode.SYSTEM_ERROR
    await start("r2")
    await eventually(lambda: controller.requests.count(RequestCode.CONTROLLER_GET_SYNC_STATE_DATA) > 2)
    assert not one.term.sync_state.links
    controller.refused.clear()
    await eventually(lambda: controller.members == {1, 2})
