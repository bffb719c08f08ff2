"""Messages that consumers send back wait for their level and come again, over restarts and failovers."""

from __future__ import annotations

import shutil

import pytest

from rocketmq_remoting.client_protocol import BatchedMessage, ConsumerSendMsgBackRequestHeader, encode_batch
from rocketmq_remoting.codes import RequestCode, ResponseCode
from rocketmq_remoting.message_record import Host, StoredMessage
from rocketmq_replica.broker import wall_clock_ms
from rocketmq_replica.clients.delayed_delivery import SCHEDULE_TOPIC, DelayedDelivery
from rocketmq_replica.clients.send_requests import destination
from rocketmq_replica.property_values import delay_levels
from tests.replica.support import Client, Lab, RunningReplica, send_fields
from tests.support.waiting import eventually

RETRY_TOPIC = "%RETRY%CG"
NEVER = "2h"


async def retried(client: Client, replica: RunningReplica) -> list[bytes]:
    return await client.bodies(replica, topic=RETRY_TOPIC)


async def until_retried(client: Client, replica: RunningReplica, expected: list[bytes]) -> None:
    async def they_came() -> bool:
        return await retried(client, replica) == expected

    await eventually(they_came)


@pytest.mark.parametrize(
    ("asked", "times", "level"), [(0, 0, 3), (0, 4, 7), (2, 0, 2), (18, 9, 18)], ids=["first", "later", "asked", "last"]
)
def test_the_level_is_javas(asked: int, times: int, level: int) -> None:
    header = ConsumerSendMsgBackRequestHeader(group="CG", delay_level=asked)
    here = Host("127.0.0.1", 1)
    message = StoredMessage("T", b"", 0, 0, 0, 0, 0, 0, here, 0, here, times, 0, b"", 100)
    assert destination(message, header).delay_level == level


async def test_a_message_sent_back_waits_for_its_level_and_not_longer(lab: Lab) -> None:
    one = await lab.master(messageDelayLevel=f"{NEVER} 1h")
    await lab.client.send(one, b"again")
    assert (await lab.client.send_back(one, 0, level=1)).code == ResponseCode.SUCCESS
    assert (await lab.client.send_back(one, 0, level=2)).code == ResponseCode.SUCCESS
    assert await retried(lab.client, one) == []
    waits = [(await lab.client.pull_all(one, topic=SCHEDULE_TOPIC, queue_id=level))[0] for level in (0, 1)]
    assert [each.properties["REAL_TOPIC"] for each in waits] == [RETRY_TOPIC, RETRY_TOPIC]
    delayed: DelayedDelivery = one.process.delayed
    delayed.deliver(now_ms=waits[1].store_timestamp_ms + 3_600_000 - 1)
    assert await retried(lab.client, one) == []
    delayed.deliver(now_ms=waits[1].store_timestamp_ms + 3_600_000)
    assert await retried(lab.client, one) == [b"again"]
    delayed.deliver(now_ms=waits[0].store_timestamp_ms + 7_200_000)
    found = await lab.client.pull_all(one, topic=RETRY_TOPIC)
    assert [(each.body, each.reconsume_times, "DELAY" in each.properties) for each in found] == [
        (b"again", 1, False)
    ] * 2


async def test_a_message_that_a_consumer_sends_to_its_retry_topic_waits_too(lab: Lab) -> None:
    one = await lab.master(messageDelayLevel=NEVER)
    properties = "DELAY\x011\x02RETRY_TOPIC\x01T\x02"
    answer = await lab.client.send(one, b"x", topic=RETRY_TOPIC, properties=properties)
    assert answer.code == ResponseCode.SUCCESS
    assert await retried(lab.client, one) == []
    assert len(await lab.client.pull_all(one, topic=SCHEDULE_TOPIC)) == 1


async def test_a_batch_is_no_retry(lab: Lab) -> None:
    """As in Java: a batch's messages might wait in several queues."""
    one = await lab.master()
    fields = send_fields(RETRY_TOPIC, m="true")
    body = encode_batch([BatchedMessage(0, b"x", b""), BatchedMessage(0, b"y", b"")])
    answer = await lab.client.ask(one, RequestCode.SEND_BATCH_MESSAGE, ext_fields=fields, body=body)
    assert (answer.code, answer.remark) == (13, "batch request does not support retry group")


async def test_the_next_process_delivers_from_where_the_last_one_stopped(lab: Lab) -> None:
    one = await lab.master(messageDelayLevel="0s")
    await lab.client.send(one, b"first")
    await lab.client.send_back(one, 0, level=1)
    await until_retried(lab.client, one, [b"first"])
    await eventually(lambda: one.process.delayed._offsets.get(1) == 1)
    await one.stop()
    again = await lab.master(messageDelayLevel="0s")
    await lab.client.send(again, b"second")
    second = (await lab.client.pull_all(again))[1]
    await lab.client.send_back(again, second.physical_offset, level=1)
    await until_retried(lab.client, again, [b"first", b"second"])


async def test_nothing_counts_as_delivered_before_it_is_confirmed(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second copy is lost with a master that had no slave: the offset must not say that it was delivered."""
    one = await lab.master(messageDelayLevel=NEVER)
    await lab.client.send(one, b"again")
    await lab.client.send_back(one, 0, level=1)
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
    assert await retried(lab.client, one) == [b"again"]


async def test_another_master_delivers_waiting_messages(lab: Lab) -> None:
    one = await lab.master(messageDelayLevel=NEVER)
    two = await lab.join("r2", messageDelayLevel="0s")
    await lab.client.send(one, b"again")
    assert (await lab.client.send_back(one, 0, level=1)).code == ResponseCode.SUCCESS
    await lab.fail_over(one, two)
    await eventually(lambda: two.process.broker.topics.find(RETRY_TOPIC))
    await until_retried(lab.client, two, [b"again"])


@pytest.mark.parametrize("delivered", [0, 1])
async def test_a_master_with_fewer_waiting_messages_than_the_lost_one_delivers_each_that_it_takes(
    lab: Lab, delivered: int
) -> None:
    """The copied offset lies beyond the queue: messages that are stored from now on would count as delivered."""
    one, two = await lab.pair(messageDelayLevel=NEVER)
    await lab.client.store(one, b"again")
    for _ in range(delivered):
        assert (await lab.client.send_back(one, 0, level=1)).code == ResponseCode.SUCCESS
    two.process.delayed._offsets.replace({"offsetTable": {"1": 7}})
    await one.stop()
    await lab.change_master(two)
    for _ in range(2):
        assert (await lab.client.send_back(two, 0, level=1)).code == ResponseCode.SUCCESS
    shutil.copytree(lab.folder / "r2", lab.folder / "killed")
    await two.stop()
    two = await lab.start("killed", messageDelayLevel="0s")
    await eventually(lambda: two.process.manager.is_registered)
    await lab.change_master(two)
    await eventually(lambda: two.process.broker.topics.find(RETRY_TOPIC))
    await until_retried(lab.client, two, [b"again", b"again"])


@pytest.mark.parametrize("value", ["", "5", "1x", "s", "1s " * 65, "-1s"])
def test_invalid_delays_are_refused(value: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        delay_levels(value)
