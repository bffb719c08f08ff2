"""Three replicas, a controller, and what must never happen to an acknowledged message."""

from __future__ import annotations

import asyncio
import contextlib

from rocketmq_remoting.codes import RequestCode, ResponseCode
from tests.replica.support import (
    Client,
    FakeController,
    Starter,
    eventually,
    start_group,
    start_master,
)


async def send_many(client: Client, address: str, first: int, count: int) -> list[bytes]:
    bodies = [b"message %d " % number + b"x" * (number * 7 % 400) for number in range(first, first + count)]
    answers = await asyncio.gather(*(client.send(address, body) for body in bodies))
    assert {answer.code for answer in answers} == {ResponseCode.SUCCESS}
    return bodies


async def test_nothing_acknowledged_is_lost_over_a_failover_and_the_old_master_is_cut_and_follows(
    start: Starter, controller: FakeController, client: Client
) -> None:
    one, two, three = await start_group(start, controller)
    acknowledged = await send_many(client, one.address, 0, 50)

    # The slaves vanish from the master's sight; what it stores now is on its disk alone, and must not be acknowledged.
    two.process.ha_client.leave()
    three.process.ha_client.leave()
    controller.refused[RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET] = ResponseCode.CONTROLLER_BROKER_NOT_ALIVE
    lonely = [asyncio.create_task(client.send(one.address, b"only on the old master %d" % n)) for n in range(5)]
    await eventually(lambda: one.term.waiting_count == 5)
    assert not any(task.done() for task in lonely)
    old_end = one.process.store.max_offset

    controller.refused = {RequestCode.CONTROLLER_GET_REPLICA_INFO: ResponseCode.SYSTEM_ERROR}
    controller.decide(two.broker_id)
    assert (await controller.notify(two.broker_id)).code == ResponseCode.SUCCESS
    assert two.role == "MASTER"
    assert (await controller.notify(three.broker_id)).code == ResponseCode.SUCCESS
    await eventually(lambda: controller.members == {two.broker_id, three.broker_id})
    acknowledged += await send_many(client, two.address, 100, 50)

    controller.refused.clear()
    answer = await controller.notify(one.broker_id)
    assert answer.code == ResponseCode.SUCCESS
    assert one.role == "SLAVE"
    codes = {(await task).code for task in lonely}
    assert codes == {ResponseCode.SERVICE_NOT_AVAILABLE}
    await eventually(lambda: controller.members == {1, 2, 3})
    acknowledged += await send_many(client, two.address, 200, 50)

    assert one.process.store.max_offset == two.process.store.max_offset > old_end
    assert one.log == two.log == three.log
    assert [message.body for message in await client.pull_all(two.address)] == acknowledged
    assert [entry.epoch for entry in one.process.store.epochs.entries] == [1, 2]
    assert one.process.store.epochs.entries == two.process.store.epochs.entries


async def test_the_whole_group_restarts_and_keeps_everything(
    start: Starter, controller: FakeController, client: Client
) -> None:
    one, two, three = await start_group(start, controller)
    bodies = await send_many(client, one.address, 0, 30)
    for replica in (three, two, one):
        await replica.stop()
    controller.decide(2)
    two = await start("r2")
    one = await start("r1")
    three = await start("r3")
    await eventually(lambda: controller.members == {1, 2, 3})
    assert (one.role, two.role, three.role) == ("SLAVE", "MASTER", "SLAVE")
    assert [message.body for message in await client.pull_all(two.address)] == bodies
    assert one.log == two.log == three.log


async def test_a_held_pull_is_answered_by_the_next_message(
    start: Starter, controller: FakeController, client: Client
) -> None:
    one = await start_master(start)
    await send_many(client, one.address, 0, 1)
    pull = asyncio.create_task(client.pull(one.address, 1, suspend_ms=8000))
    await eventually(lambda: one.process.pulls._held)
    assert not pull.done()
    await client.send(one.address, b"the next one")
    answer = await pull
    assert answer.code == ResponseCode.SUCCESS
    assert b"the next one" in (answer.body or b"")
    assert (await client.pull(one.address, 0, topic="Nowhere")).code == ResponseCode.TOPIC_NOT_EXIST
    assert (await client.pull(one.address, 99)).code == ResponseCode.PULL_OFFSET_MOVED


async def test_a_slave_serves_no_slave(start: Starter, controller: FakeController, client: Client) -> None:
    _one, two = await start_group(start, controller, count=2)
    reader, writer = await asyncio.open_connection(*two.process.configuration.ha_address.split(":"))
    writer.write(bytes.fromhex("00000001000000000000000000000009"))
    async with asyncio.timeout(5):
        with contextlib.suppress(ConnectionResetError):
            assert await reader.read() == b""
    writer.close()
