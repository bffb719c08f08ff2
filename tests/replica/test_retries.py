"""What consumers send back comes again after its delay, over restarts and failovers: twice perhaps, never not at all."""

from __future__ import annotations

import asyncio
import json

import pytest

from rocketmq_remoting.client_protocol import BatchedMessage, ConsumerSendMsgBackRequestHeader, encode_batch
from rocketmq_remoting.codes import RequestCode, ResponseCode
from rocketmq_remoting.message_record import Host, StoredMessage, decode_records
from rocketmq_replica.broker import wall_clock_ms
from rocketmq_replica.clients import read_requests
from rocketmq_replica.clients.delayed_delivery import SCHEDULE_TOPIC, DelayedDelivery
from rocketmq_replica.clients.send_requests import destination
from rocketmq_replica.property_values import delay_levels
from tests.replica.support import (
    Client,
    FakeController,
    RunningReplica,
    Starter,
    change_master,
    eventually,
    send_fields,
    start_master,
)

RETRY_TOPIC = "%RETRY%CG"
NEVER = "2h"


async def retried(client: Client, replica: RunningReplica) -> list[bytes]:
    return [message.body for message in await client.pull_all(replica.address, topic=RETRY_TOPIC)]


async def until_retried(client: Client, replica: RunningReplica, expected: list[bytes]) -> None:
    async with asyncio.timeout(15):
        while await retried(client, replica) != expected:  # noqa: ASYNC110 - another process, as it were
            await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    ("asked", "times", "level"), [(0, 0, 3), (0, 4, 7), (2, 0, 2), (18, 9, 18)], ids=["first", "later", "asked", "last"]
)
def test_the_level_is_javas(asked: int, times: int, level: int) -> None:
    header = ConsumerSendMsgBackRequestHeader(group="CG", delay_level=asked)
    here = Host("127.0.0.1", 1)
    message = StoredMessage("T", b"", 0, 0, 0, 0, 0, 0, here, 0, here, times, 0, b"", 100)
    assert destination(message, header).delay_level == level


async def test_it_waits_for_its_level_and_not_longer(
    start: Starter, controller: FakeController, client: Client
) -> None:
    one = await start_master(start, messageDelayLevel=f"{NEVER} 1h")
    await client.send(one.address, b"again")
    assert (await client.send_back(one.address, 0, level=1)).code == ResponseCode.SUCCESS
    assert (await client.send_back(one.address, 0, level=2)).code == ResponseCode.SUCCESS
    assert await retried(client, one) == []
    waits = [(await client.pull_all(one.address, topic=SCHEDULE_TOPIC, queue_id=level))[0] for level in (0, 1)]
    assert [each.properties["REAL_TOPIC"] for each in waits] == [RETRY_TOPIC, RETRY_TOPIC]
    delayed: DelayedDelivery = one.process.delayed
    delayed.deliver(now_ms=waits[1].store_timestamp_ms + 3_600_000 - 1)
    assert await retried(client, one) == []
    delayed.deliver(now_ms=waits[1].store_timestamp_ms + 3_600_000)
    assert await retried(client, one) == [b"again"]
    delayed.deliver(now_ms=waits[0].store_timestamp_ms + 7_200_000)
    found = await client.pull_all(one.address, topic=RETRY_TOPIC)
    assert [(each.body, each.reconsume_times, "DELAY" in each.properties) for each in found] == [
        (b"again", 1, False)
    ] * 2


async def test_a_consumer_that_sends_it_itself_waits_too(
    start: Starter, controller: FakeController, client: Client
) -> None:
    one = await start_master(start, messageDelayLevel=NEVER)
    properties = "DELAY\x011\x02RETRY_TOPIC\x01T\x02"
    answer = await client.send(one.address, b"x", topic=RETRY_TOPIC, properties=properties)
    assert answer.code == ResponseCode.SUCCESS
    assert await retried(client, one) == []
    assert len(await client.pull_all(one.address, topic=SCHEDULE_TOPIC)) == 1


async def test_a_batch_is_no_retry(start: Starter, controller: FakeController, client: Client) -> None:
    """As in Java: its messages might wait in several queues."""
    one = await start_master(start)
    fields = send_fields(RETRY_TOPIC, m="true")
    body = encode_batch([BatchedMessage(0, b"x", b""), BatchedMessage(0, b"y", b"")])
    answer = await client.ask(one.address, RequestCode.SEND_BATCH_MESSAGE, ext_fields=fields, body=body)
    assert (answer.code, answer.remark) == (13, "batch request does not support retry group")


async def test_the_next_process_goes_on_where_it_was(
    start: Starter, controller: FakeController, client: Client
) -> None:
    one = await start_master(start, messageDelayLevel="0s")
    await client.send(one.address, b"first")
    await client.send_back(one.address, 0, level=1)
    await until_retried(client, one, [b"first"])
    await eventually(lambda: one.process.delayed._offsets.get(1) == 1)
    await one.stop()
    again = await start_master(start, messageDelayLevel="0s")
    await client.send(again.address, b"second")
    second = (await client.pull_all(again.address))[1]
    await client.send_back(again.address, second.physical_offset, level=1)
    await until_retried(client, again, [b"first", b"second"])


async def test_nothing_counts_as_delivered_before_it_is_confirmed(
    start: Starter, controller: FakeController, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second copy is lost with a master that nobody followed: the offset must not say that it was delivered."""
    one = await start_master(start, messageDelayLevel=NEVER)
    await client.send(one.address, b"again")
    await client.send_back(one.address, 0, level=1)
    store = one.process.store
    confirmed = store.confirm_offset
    late = wall_clock_ms() + 10 * 3_600_000
    monkeypatch.setattr(one.process.broker, "stored_without_waiting", lambda: None)  # nothing is settled in this moment
    assert not one.process.delayed.deliver(now_ms=late)
    assert store.max_offset > confirmed == store.confirm_offset
    assert one.process.delayed._offsets.get(1) == 0
    one.process.broker.settle()
    store.flush()
    one.process.delayed.deliver(now_ms=late)
    assert one.process.delayed._offsets.get(1) == 1
    assert await retried(client, one) == [b"again"]


async def test_another_master_delivers_what_waits(start: Starter, controller: FakeController, client: Client) -> None:
    one = await start_master(start, messageDelayLevel=NEVER)
    two = await start("r2", messageDelayLevel="0s")
    await eventually(lambda: controller.members == {1, 2})
    await client.send(one.address, b"again")
    assert (await client.send_back(one.address, 0, level=1)).code == ResponseCode.SUCCESS
    await one.stop()
    await change_master(controller, two)
    await eventually(lambda: two.process.broker.topics.find(RETRY_TOPIC))
    await until_retried(client, two, [b"again"])


@pytest.mark.parametrize("value", ["", "5", "1x", "s", "1s " * 65, "-1s"])
def test_delays_that_are_none_are_refused(value: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        delay_levels(value)


async def beat(client: Client, replica: RunningReplica, tags: list[str], version: int) -> None:
    text = "||".join(tags) or "*"
    subscription = {
        "topic": "Topic",
        "subString": text,
        "tagsSet": tags,
        "subVersion": version,
        "expressionType": "TAG",
    }
    body = {"clientID": "c", "consumerDataSet": [{"groupName": "CG", "subscriptionDataSet": [subscription]}]}
    answer = await client.ask(replica.address, RequestCode.HEART_BEAT, body=json.dumps(body).encode())
    assert answer.code == ResponseCode.SUCCESS


async def test_a_pull_without_a_subscription_goes_by_the_heartbeat(
    start: Starter, controller: FakeController, client: Client
) -> None:
    """As Java's push consumers pull: bit 4 of sysFlag is not set."""
    one = await start_master(start)
    for number, tag in enumerate(("red", "blue", "red", "green")):
        await client.send(one.address, b"%d" % number, properties=f"TAGS\x01{tag}\x02")

    async def pulled(sys_flag: int = 0) -> bytes:
        answer = await client.pull(one.address, 0, sysFlag=str(sys_flag), subscription="green")
        return b"".join(each.body for each in decode_records(answer.body or b""))

    assert await pulled(sys_flag=4) == b"3"
    await beat(client, one, ["red"], 5)
    assert await pulled() == b"02"
    assert await pulled(sys_flag=4) == b"3"
    await beat(client, one, ["blue"], 4)
    assert await pulled() == b"02", "an older word than what is known"
    await beat(client, one, [], 6)
    assert await pulled() == b"0123"


async def test_messages_are_found_by_key(start: Starter, controller: FakeController, client: Client) -> None:
    one = await start_master(start)
    for number in range(10):
        properties = f"KEYS\x01even{number % 2} k{number}\x02UNIQ_KEY\x01U{number}\x02"
        answer = await client.send(one.address, b"%d" % number, queue_id=number % 4, properties=properties)
        assert answer.code == ResponseCode.SUCCESS

    async def found(key: str, **more: str) -> tuple[int, set[bytes]]:
        fields = {"topic": "Topic", "key": key, "maxNum": "32", "beginTimestamp": "0", "endTimestamp": str(2**63 - 1)}
        answer = await client.ask(one.address, RequestCode.QUERY_MESSAGE, ext_fields=fields | more)
        return answer.code, {each.body for each in decode_records(answer.body or b"")}

    assert await found("k7") == (0, {b"7"})
    assert await found("even0") == (0, {b"0", b"2", b"4", b"6", b"8"})
    assert await found("U3", _UNIQUE_KEY_QUERY="true") == (0, {b"3"})
    assert (await found("even1", maxNum="2"))[0] == 0
    assert len((await found("even1", maxNum="2"))[1]) == 2
    assert await found("U3") == (ResponseCode.QUERY_NOT_FOUND, set())
    assert await found("k7", endTimestamp="1") == (ResponseCode.QUERY_NOT_FOUND, set())
    assert await found("k7", topic="Other") == (ResponseCode.QUERY_NOT_FOUND, set())
    assert (await found(""))[0] == ResponseCode.SYSTEM_ERROR


async def test_a_query_that_would_read_too_much_says_so(
    start: Starter, controller: FakeController, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read_requests, "MOST_READ", 2)
    one = await start_master(start)
    for _ in range(3):
        await client.send(one.address, b"x")
    fields = {"topic": "Topic", "key": "k", "maxNum": "1"}
    answer = await client.ask(one.address, RequestCode.QUERY_MESSAGE, ext_fields=fields)
    assert (answer.code, answer.remark) == (1, "more than 2 messages of Topic in this time: ask for a shorter one")
