"""A group is retired: it takes no more sends, is read to its end, and is deleted. No acknowledged message is left unread.

The producer goes on with another group once it is refused, as RocketMQ's does; the consumer commits what it has read.
"""

from __future__ import annotations

import asyncio
import itertools
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio

from brokergroup_operator.demo.client import DemoProducer, Ledger, numbered_message, read_keys
from brokergroup_operator.kube.errors import NotFoundError
from brokergroup_operator.kube.resources import (
    BROKER_GROUP_OPERATIONS,
    BROKER_GROUPS,
    PERSISTENT_VOLUME_CLAIMS,
)
from rocketmq_remoting.client import RemotingClient
from rocketmq_remoting.codes import RequestCode, ResponseCode
from rocketmq_remoting.command import request
from rocketmq_remoting.errors import RemotingError
from rocketmq_remoting.message_record import decode_records
from tests.e2e.house import NAMESPACE, QUEUES, TOPIC, WholeGroup, eventually, open_house, whole_group
from tests.support.one_request import answer_to

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from brokergroup_operator.demo.processes import ChildProcess

pytestmark = [pytest.mark.longer, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(600)]

READERS = "readers"


@dataclass
class Scene:
    """A group to retire, another one that stays, and their operator."""

    orders: WholeGroup
    spare: WholeGroup
    operator: ChildProcess

    async def retire(self, name: str, **section: Any) -> None:
        spec = {"brokerGroupRef": {"name": "orders"}, "type": "Retire", "retire": section}
        await self.orders.house.create(BROKER_GROUP_OPERATIONS, name, spec)

    async def status(self, name: str) -> dict[str, Any]:
        found = await self.orders.house.api.get(BROKER_GROUP_OPERATIONS, name, namespace=NAMESPACE)
        return dict(found.get("status") or {})

    async def until(self, name: str, wanted: Any, what: str) -> dict[str, Any]:
        """Return the operation's status once it is as wanted."""
        status: dict[str, Any] = {}

        async def look() -> bool:
            nonlocal status
            status = await self.status(name)
            return bool(wanted(status))

        end = asyncio.get_running_loop().time() + 300  # a new process has 120 s
        while not await look():
            assert asyncio.get_running_loop().time() < end, f"{what}: {status}\n{self.orders.story()}"
            await asyncio.sleep(0.1)
        return status


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def scene(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Scene]:
    async with open_house(tmp_path_factory.mktemp("retire")) as house:
        operator = await house.start_operator()
        await house.create_group("orders", replicas=3)
        await house.create_group("spare", replicas=1, durability="Available")
        async with (
            whole_group(house, "orders", replicas=3) as orders,
            whole_group(house, "spare", replicas=1) as spare,
        ):
            await orders.until_settled()
            await spare.until_settled()
            yield Scene(orders, spare, operator)


@dataclass
class Consumer:
    """Reads a topic of a group at its master and commits behind what it has read, again after a change of master."""

    group: WholeGroup
    keys: set[str] = field(default_factory=set)

    async def run(self) -> None:
        client = RemotingClient()
        try:
            while True:
                for queue_id in range(QUEUES):
                    with suppress(RemotingError):
                        await self._read(client, queue_id)
                await asyncio.sleep(0.05)
        finally:
            await client.close()

    async def _read(self, client: RemotingClient, queue_id: int) -> None:
        address = self.group.seen.master_address()
        if address is None:
            return
        of_queue = {"consumerGroup": READERS, "topic": TOPIC, "queueId": str(queue_id)}
        asked = request(RequestCode.QUERY_CONSUMER_OFFSET, ext_fields=of_queue | {"setZeroIfNotFound": "true"})
        known = await client.invoke(address, asked, timeout_seconds=2.0)
        offset = int((known.ext_fields or {}).get("offset", "0"))
        pull = of_queue | {
            "queueOffset": str(offset), "maxMsgNums": "32", "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0",
            "subscription": "*", "subVersion": "0", "expressionType": "TAG",
        }  # fmt: skip
        answer = await client.invoke(address, request(RequestCode.PULL_MESSAGE, ext_fields=pull), timeout_seconds=2.0)
        if answer.code != ResponseCode.SUCCESS or not answer.body:
            return
        self.keys.update(message.body.split(b".", 1)[0].decode() for message in decode_records(answer.body))
        read = of_queue | {"commitOffset": (answer.ext_fields or {})["nextBeginOffset"]}
        await client.invoke(address, request(RequestCode.UPDATE_CONSUMER_OFFSET, ext_fields=read), timeout_seconds=2.0)


@asynccontextmanager
async def consuming(group: WholeGroup) -> AsyncIterator[Consumer]:
    consumer = Consumer(group)
    task = asyncio.create_task(consumer.run())
    try:
        yield consumer
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def send(address: str, key: str) -> int:
    """Return the code that a broker answers to a send."""
    message = numbered_message(key, broker_name="orders", topic=TOPIC, queue_id=0)
    return (await answer_to(address, message, timeout_seconds=5.0)).code


def master_of(group: WholeGroup) -> str:
    address = group.seen.master_address()
    assert address is not None, group.story()
    return address


async def test_unread_messages_keep_the_group_through_a_failover_and_its_end_gives_writes_back(scene: Scene) -> None:
    orders = scene.orders
    async with orders.under_load():
        await orders.until_acknowledged()
    await scene.retire("kept")
    status = await scene.until(
        "kept", lambda it: (it.get("retirement") or {}).get("unread"), "unread messages are told"
    )
    (unread,) = status["retirement"]["unread"]
    sent = len(await read_keys(master_of(orders), TOPIC, QUEUES))
    assert (unread["topic"], unread["queues"], unread["messages"]) == (TOPIC, QUEUES, sent)
    assert (
        status["result"]["message"]
        == f"waits for topic {TOPIC}: {sent} messages in {QUEUES} queues that no consumer group reads"
    )
    assert [(one["type"], one["status"], one["reason"]) for one in status["conditions"]] == [
        ("Drained", "False", "UnreadMessages")
    ]
    before = orders.master
    assert await send(master_of(orders), "refused-1") == ResponseCode.NO_PERMISSION

    orders.kill(before)
    await orders.until(
        lambda: orders.seen.master_id not in (None, before) and orders.seen.master_address(), "another master"
    )

    async def code() -> int:
        with suppress(RemotingError):
            return await send(master_of(orders), "refused-2")
        return -1

    seen = {await code()}
    while ResponseCode.NO_PERMISSION not in seen:
        seen.add(await code())
    assert ResponseCode.SUCCESS not in seen, "the new master takes no send either"
    await orders.until(lambda: len(orders.seen.sync_state_set) == 3, "the old master is back")
    assert (await scene.status("kept"))["phase"] == "Running"

    await orders.house.api.delete(BROKER_GROUP_OPERATIONS, "kept", namespace=NAMESPACE)
    end = asyncio.get_running_loop().time() + 60
    while await code() != ResponseCode.SUCCESS:
        assert asyncio.get_running_loop().time() < end, orders.story()
        await asyncio.sleep(0.1)
    async with orders.under_load():
        await orders.until_acknowledged()
    await orders.verify()


async def test_a_group_under_load_goes_once_everything_is_read(scene: Scene) -> None:
    orders, spare, house = scene.orders, scene.spare, scene.orders.house
    ledger, stop = Ledger(), asyncio.Event()

    def route() -> str | None:
        refused = any(f"code {int(ResponseCode.NO_PERMISSION)}" in why for why in ledger.reasons)
        return (spare if refused else orders).seen.master_address()

    producer = DemoProducer(
        route=route,
        broker_name="orders",
        topic=TOPIC,
        pause_seconds=0.02,
        ledger=ledger,
        _keys=itertools.count(1_000_000),
    )
    sending = asyncio.create_task(producer.run(stop))
    try:
        async with consuming(orders) as consumer:
            await eventually(lambda: len(ledger.acknowledgements) > 30, lambda: f"sends: {ledger}")
            await scene.retire("gone")
            await scene.until(
                "gone", lambda it: (it.get("retirement") or {}).get("step") == "Closing", "everything is read"
            )
            await house.kill_operator(scene.operator)
            scene.operator = await house.start_operator()
            status = await scene.until("gone", lambda it: it.get("phase") in ("Succeeded", "Failed"), "its end")
            assert status["phase"] == "Succeeded", status
            reached = len(ledger.acknowledgements)
            await eventually(
                lambda: len(ledger.acknowledgements) > reached + 30, lambda: "sends go on with the other group"
            )
    finally:
        stop.set()
        await sending
    with pytest.raises(NotFoundError):
        await house.api.get(BROKER_GROUPS, "orders", namespace=NAMESPACE)
    claims = {
        item["metadata"]["name"] for item in (await house.api.list(PERSISTENT_VOLUME_CLAIMS, namespace=NAMESPACE)).items
    }
    assert {"orders-1", "orders-2", "orders-3"} <= claims, "storage.retention.whenDeleted is Retain"
    acknowledged = {one.key for one in ledger.acknowledgements}
    elsewhere = await read_keys(master_of(spare), TOPIC, QUEUES)
    assert acknowledged & elsewhere, "the producer went on with the other group"
    assert not acknowledged - elsewhere - consumer.keys, "acknowledged, and read by no consumer"
    earlier = {one.key for one in orders.ledger.acknowledgements}
    assert not earlier - consumer.keys
