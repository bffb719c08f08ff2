"""What Retire rests on, at unmodified Java 5.5.0 brokers: routes without the write permission, and how far topics are read."""

from __future__ import annotations

import asyncio
import json
import time
from typing import TYPE_CHECKING, Any

import pytest

from brokergroup_operator.controller.settings import SecuritySettings
from brokergroup_operator.reconcile.decide import unread
from rocketmq_remoting.broker_protocol import TopicRouteBody
from rocketmq_remoting.codes import RequestCode, ResponseCode
from rocketmq_remoting.command import MQ_VERSION_5_5_0, request
from tests.real.test_java_security import plane_with
from tests.support.java_rig import KEY, eventually, record_of

if TYPE_CHECKING:
    from brokergroup_operator.controller.plane import ControllerPlane
    from rocketmq_remoting.client import RemotingClient
    from tests.support.java_rig import JavaRig

pytestmark = [pytest.mark.real("java", "rocketmq"), pytest.mark.timeout(420)]

TOPIC, GROUP = "orders", "readers"
POP_MESSAGE, POP_SECONDS = 200050, 5
TRANSACTION_PREPARED = 4


class Clients:
    """A producer and a consumer at the master of the record."""

    def __init__(self, plane: ControllerPlane, client: RemotingClient) -> None:
        self._plane, self._client = plane, client

    @property
    def master(self) -> str:
        record = record_of(self._plane)
        return str(record.address_of(record.granted_master_id))

    async def ask(self, code: int, *, body: bytes | None = None, **fields: str) -> tuple[int, dict[str, str]]:
        command = request(code, ext_fields=fields, body=body)
        answer = await self._client.invoke(self.master, command, timeout_seconds=10.0)
        return answer.code, dict(answer.ext_fields or {})

    async def send(self, topic: str = TOPIC, *, properties: str = "", sys_flag: int = 0) -> int:
        """Return the code of the answer to a send to queue 0."""
        now = str(time.time_ns() // 1_000_000)
        fields = {
            "a": "producers", "b": topic, "c": "TBW102", "d": "1", "e": "0", "f": str(sys_flag), "g": now, "h": "0",
            "i": f"UNIQ_KEY\x01{now}\x02{properties}", "j": "0", "k": "false", "m": "false",
        }  # fmt: skip
        code, _ = await self.ask(RequestCode.SEND_MESSAGE_V2, body=b"m", **fields)
        return code

    async def create_group(self) -> None:
        body = json.dumps({"groupName": GROUP}).encode()
        code, _ = await self.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)
        assert code == ResponseCode.SUCCESS

    async def commit(self, offset: int, *, topic: str = TOPIC, group: str = GROUP) -> None:
        code, _ = await self.ask(
            RequestCode.UPDATE_CONSUMER_OFFSET, consumerGroup=group, topic=topic, queueId="0", commitOffset=str(offset)
        )
        assert code == ResponseCode.SUCCESS

    async def pop(self, topic: str) -> int:
        now = str(time.time_ns() // 1_000_000)
        code, _ = await self.ask(
            POP_MESSAGE, consumerGroup=GROUP, topic=topic, queueId="0", maxMsgNums="1", invisibleTime=str(POP_SECONDS * 1000),
            pollTime="1000", bornTime=now, initMode="0", expType="TAG", exp="*", order="false",
        )  # fmt: skip
        return code

    async def route_permission(self, name_server: str) -> int:
        command = request(
            RequestCode.GET_ROUTEINFO_BY_TOPIC,
            ext_fields={"topic": TOPIC, "acceptStandardJsonOnly": "true"},
            version=MQ_VERSION_5_5_0,
        )
        answer = await self._client.invoke(name_server, command, timeout_seconds=5.0)
        return TopicRouteBody.decode(answer.body).queue_datas[0].perm


async def test_a_java_group_becomes_read_only_and_says_what_is_unread(rig: JavaRig, client: RemotingClient) -> None:
    name_server = rig.start_name_server().address
    async with plane_with(SecuritySettings(), name_server=name_server) as plane:
        await rig.start_pair(plane, timerWheelEnable="true")
        clients = Clients(plane, client)

        async def sent() -> bool:
            return await clients.send() == ResponseCode.SUCCESS

        await eventually(sent, "the master to take sends", within_seconds=30)
        await check_reading(plane, clients)
        await check_permission(plane, clients, name_server)


async def told(plane: ControllerPlane, **how: Any) -> str:
    offsets = await plane.offsets(KEY)
    return unread.described(unread.unread_topics(offsets, **how))


async def reads(plane: ControllerPlane, text: str, *, within_seconds: float = 20.0, **how: Any) -> None:
    """Wait until that is what keeps the group: a message is in its queue, and a copy at the slave, a moment after its answer."""
    said = ""

    async def is_so() -> bool:
        nonlocal said
        said = await told(plane, **how)
        return said == text and (await plane.offsets(KEY)).steady

    try:
        await eventually(is_so, repr(text), within_seconds=within_seconds)
    except AssertionError as error:
        error.add_note(f"the last look: {said!r}")
        raise


async def names(plane: ControllerPlane, part: str) -> None:
    """Wait until this is among what keeps the group."""

    async def is_named() -> bool:
        return part in await told(plane)

    await eventually(is_named, repr(part), within_seconds=20)


async def check_reading(plane: ControllerPlane, clients: Clients) -> None:
    await reads(plane, f"topic {TOPIC}: 1 messages in 1 queue that no consumer group reads")
    assert await clients.send() == ResponseCode.SUCCESS
    await clients.create_group()
    await clients.commit(1)
    await reads(plane, f"topic {TOPIC}: 1 messages in 1 queue, unread by {GROUP} (1)")
    await clients.commit(2)
    await reads(plane, "")
    assert unread.settle_seconds(await plane.offsets(KEY)) == unread.SETTLE_SECONDS, "nothing was popped yet"

    assert await clients.send(properties="DELAY\x013\x02") == ResponseCode.SUCCESS
    await names(plane, "that are delivered later")
    await reads(plane, f"topic {TOPIC}: 1 messages in 1 queue, unread by {GROUP} (1)", within_seconds=40)
    await clients.commit(3)
    await reads(plane, "")

    assert await clients.send(properties="TIMER_DELAY_SEC\x0110\x02") == ResponseCode.SUCCESS
    await reads(plane, "topic rmq_sys_wheel_timer: 1 messages in 1 queue that are delivered later")
    await reads(plane, f"topic {TOPIC}: 1 messages in 1 queue, unread by {GROUP} (1)", within_seconds=40)
    await clients.commit(4)
    await reads(plane, "")

    assert await clients.send("popped") == ResponseCode.SUCCESS
    assert await clients.pop("popped") == ResponseCode.SUCCESS
    await reads(plane, "")
    assert unread.settle_seconds(await plane.offsets(KEY)) == unread.SETTLE_SECONDS_WITH_POP, (
        "it is in no queue and no timer yet"
    )
    retry = f"topic %RETRY%{GROUP}_popped: 1 messages in 1 queue, unread by {GROUP} (1)"
    await reads(plane, retry, within_seconds=unread.SETTLE_SECONDS_WITH_POP)
    await reads(plane, "", abandoned=[f"%RETRY%{GROUP}_popped"])

    prepared = "TRAN_MSG\x01true\x02PGROUP\x01producers\x02"
    assert await clients.send(properties=prepared, sys_flag=TRANSACTION_PREPARED) == ResponseCode.SUCCESS
    await names(plane, "topic RMQ_SYS_TRANS_HALF_TOPIC: 1 messages in 1 queue")


async def check_permission(plane: ControllerPlane, clients: Clients, name_server: str) -> None:
    members = sorted(record_of(plane).replicas)
    for broker_id in members:
        await plane.set_broker_config(KEY, broker_id, {"brokerPermission": "4"})

    async def has_left_the_route() -> bool:
        return await clients.route_permission(name_server) == 4

    await eventually(has_left_the_route, "the topic's route without the write permission", within_seconds=20)
    read_only = await plane.offsets(KEY)
    assert not read_only.takes_sends
    booted = read_only.booted_at_unix_seconds
    assert booted is not None, "28 lacks a runtime that can be read"
    assert 0.0 <= read_only.read_at_unix_seconds - booted < 3_600.0
    assert await clients.send() == ResponseCode.SUCCESS, "5.5.0 itself refuses only sends to ordered topics"
    for broker_id in members:
        await plane.set_broker_config(KEY, broker_id, {"minInSyncReplicas": "99"})
    assert await clients.send() not in (ResponseCode.SUCCESS, ResponseCode.NO_PERMISSION)
    assert await clients.send(properties="WAIT\x01false\x02") == ResponseCode.SUCCESS, "5.5.0 asks no slave for it"
    assert (await plane.offsets(KEY)).acknowledges, "so the minimum alone closes no Java group"
    refuses_until = str(int(time.time() + 30 * 86_400) * 1000)
    for broker_id in members:
        await plane.set_broker_config(KEY, broker_id, {"startAcceptSendRequestTimeStamp": refuses_until})
    assert await clients.send(properties="WAIT\x01false\x02") != ResponseCode.SUCCESS
    closed = await plane.offsets(KEY)
    assert not closed.acknowledges
    await asyncio.sleep(1.0)
    assert (await plane.offsets(KEY)).log_end == closed.log_end, "a refused send is not stored"
