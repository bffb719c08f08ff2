"""What clients may ask beyond sending and pulling, and what is refused with the code that says so."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from rocketmq_remoting.codes import RequestCode, ResponseCode
from rocketmq_remoting.message_record import decode_record
from rocketmq_replica.clients.consumers import EXPIRY_SECONDS, QueueLocks
from tests.replica.support import Client, FakeController, RunningReplica, Starter, send_fields, start_master

if TYPE_CHECKING:
    from rocketmq_remoting.command import RemotingCommand
    from rocketmq_remoting.message_record import StoredMessage

DOCUMENT = Path(__file__).parents[2] / "docs" / "reference" / "replica.md"


@pytest.fixture
async def one(start: Starter, controller: FakeController) -> RunningReplica:
    return await start_master(start, messageDelayLevel="0s")


def documented_as_unsupported() -> set[int]:
    """Every number in the middle column of the table of what is not supported."""
    table = DOCUMENT.read_text().partition("## What it does not do")[2].partition("\n## ")[0]
    rows = re.findall(r"^\|[^|]+\|([^|]+)\|[^|]+\|$", table, re.MULTILINE)
    return {int(number) for row in rows for number in re.findall(r"\b\d+\b", row) if "sent by" not in row}


async def test_what_the_document_calls_unsupported_is_answered_so(one: RunningReplica, client: Client) -> None:
    codes = documented_as_unsupported()
    assert len(codes) > 20
    others = {int(code) for code in RequestCode} - one.process.dispatcher.codes
    for code in sorted(codes | others):
        answer = await client.ask(one.address, code, body=b"{}")
        assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED, code
    assert not codes & one.process.dispatcher.codes


async def test_what_the_document_calls_supported_is_what_is_handled(one: RunningReplica) -> None:
    text = DOCUMENT.read_text()
    sentence = text[text.index("Supported: ") : text.index("\n\n", text.index("Supported: "))]
    codes = {int(number) for number in re.findall(r"\b\d+\b", sentence)}
    codes |= set(range(28, 37))
    assert codes == {int(code) for code in one.process.dispatcher.codes}


@pytest.mark.parametrize(
    ("properties", "sys_flag", "remark"),
    [
        ("DELAY\x013\x02", 0, "DELAY=3"),
        ("a\x01b\x02TIMER_DELIVER_MS\x0199\x02", 0, "TIMER_DELIVER_MS=99"),
        ("TRAN_MSG\x01true\x02", 0, "transactional"),
        ("", 4, "transactional"),
    ],
)
async def test_a_message_that_would_have_to_be_kept_back_is_refused(
    one: RunningReplica, client: Client, properties: str, sys_flag: int, remark: str
) -> None:
    fields = send_fields(properties=properties, f=str(sys_flag))
    end = one.process.store.max_offset
    answer = await client.ask(one.address, RequestCode.SEND_MESSAGE_V2, ext_fields=fields, body=b"x")
    assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    assert remark in (answer.remark or "")
    assert one.process.store.max_offset == end
    harmless = "MY_DELAY\x013\x02DELAY\x010\x02"
    assert (await client.send(one.address, b"x", properties=harmless)).code == ResponseCode.SUCCESS


async def test_a_message_is_viewed_by_its_offset(
    one: RunningReplica, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    await client.send(one.address, b"first")
    await client.send(one.address, b"second")
    place = one.process.store.queues.queue("Topic", 0).locate(1)
    assert place is not None

    async def view(offset: object) -> RemotingCommand:
        return await client.ask(one.address, RequestCode.VIEW_MESSAGE_BY_ID, ext_fields={"offset": str(offset)})

    answer = await view(place[0])
    assert decode_record(answer.body or b"").body == b"second"
    for offset in (place[0] + 1, -1, one.process.store.max_offset, "x"):
        assert (await view(offset)).code == ResponseCode.SYSTEM_ERROR
    monkeypatch.setattr(one.process.broker, "settle", lambda: None)  # a tick would raise it again
    one.process.store.confirm_offset = place[0]
    assert (await view(place[0])).code == ResponseCode.SYSTEM_ERROR, "consumers do not see it yet either"


async def test_the_earliest_store_time(one: RunningReplica, client: Client) -> None:
    fields = {"topic": "Topic", "queueId": "0"}
    answer = await client.ask(one.address, RequestCode.GET_EARLIEST_MSG_STORETIME, ext_fields=fields)
    assert answer.ext_fields == {"timestamp": "-1"}
    await client.send(one.address, b"x")
    stored = (await client.pull_all(one.address))[0].store_timestamp_ms
    answer = await client.ask(one.address, RequestCode.GET_EARLIEST_MSG_STORETIME, ext_fields=fields)
    assert answer.ext_fields == {"timestamp": str(stored)}


async def arrived(one: RunningReplica, client: Client, topic: str, count: int) -> list[StoredMessage]:
    async with asyncio.timeout(15):
        while len(found := await client.pull_all(one.address, topic=topic)) < count:  # noqa: ASYNC110 - by the wire
            await asyncio.sleep(0.01)
    return found


async def test_what_was_not_consumed_comes_again_and_ends_with_the_dead_letters(
    one: RunningReplica, client: Client
) -> None:
    assert (await client.send(one.address, b"hard to consume", properties="k\x01v\x02", h="5", g="77")).code == 0
    first = (await client.pull_all(one.address))[0]
    assert (await client.send_back(one.address, first.physical_offset)).code == ResponseCode.SUCCESS
    again = (await arrived(one, client, "%RETRY%CG", 1))[0]
    assert (again.body, again.reconsume_times, again.flag, again.born_timestamp_ms) == (first.body, 1, 5, 77)
    assert again.properties["RETRY_TOPIC"] == "Topic"
    assert again.properties["ORIGIN_MESSAGE_ID"] == first.message_id
    assert (
        await client.send_back(one.address, again.physical_offset, maxReconsumeTimes="1")
    ).code == ResponseCode.SUCCESS
    dead = (await client.pull_all(one.address, topic="%DLQ%CG"))[0]
    assert (dead.body, dead.properties["DLQ_ORIGIN_TOPIC"]) == (first.body, "Topic")
    assert dead.properties["DLQ_ORIGIN_MESSAGE_ID"] == first.message_id
    assert (await client.send_back(one.address, first.physical_offset, level=-1)).code == ResponseCode.SUCCESS
    assert len(await client.pull_all(one.address, topic="%DLQ%CG")) == 2


async def test_a_group_says_how_often_a_message_comes_again(one: RunningReplica, client: Client) -> None:
    """A Java master's table, copied by a slave that is master now."""
    await client.send(one.address, b"hard to consume")
    first = (await client.pull_all(one.address))[0]
    groups = one.process.metadata._metadata.groups
    groups.replace_all({"subscriptionGroupTable": {"CG": {"groupName": "CG", "retryMaxTimes": 1}}})
    assert (await client.send_back(one.address, first.physical_offset)).code == ResponseCode.SUCCESS
    again = (await arrived(one, client, "%RETRY%CG", 1))[0]
    assert (await client.send_back(one.address, again.physical_offset)).code == ResponseCode.SUCCESS
    assert len(await client.pull_all(one.address, topic="%RETRY%CG")) == 1
    assert len(await client.pull_all(one.address, topic="%DLQ%CG")) == 1


async def test_sending_back_is_checked(one: RunningReplica, client: Client) -> None:
    await client.send(one.address, b"x")
    for offset, fields in ((1, {}), (1 << 40, {}), (0, {"group": ""}), (0, {"group": "no such#name"})):
        answer = await client.send_back(one.address, offset, **fields)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert answer.remark


def test_queue_locks_are_exclusive_and_expire() -> None:
    locks = QueueLocks()
    assert locks.lock("G", "T", 0, "a", now_seconds=0.0)
    assert locks.lock("G", "T", 0, "a", now_seconds=1.0)
    assert not locks.lock("G", "T", 0, "b", now_seconds=1.0 + EXPIRY_SECONDS)
    assert locks.lock("other", "T", 0, "b", now_seconds=1.0)
    assert locks.lock("G", "T", 0, "b", now_seconds=1.1 + EXPIRY_SECONDS)
    locks.unlock("G", "T", 0, "a")
    assert not locks.lock("G", "T", 0, "a", now_seconds=2.0 + EXPIRY_SECONDS), "only the holder can give it back"
    locks.unlock("G", "T", 0, "b")
    assert locks.lock("G", "T", 0, "a", now_seconds=2.0 + EXPIRY_SECONDS)


def test_locks_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rocketmq_replica.clients.consumers.MOST_LOCKS", 3)
    locks = QueueLocks()
    assert all(locks.lock("G", "made up", number, "a", now_seconds=0.0) for number in range(3))
    assert not locks.lock("G", "T", 0, "b", now_seconds=1.0)
    assert locks.lock("G", "made up", 0, "a", now_seconds=1.0), "who holds one may go on"
    assert locks.lock("G", "T", 0, "b", now_seconds=1.0 + EXPIRY_SECONDS), "the others have expired"


async def test_ordered_consumers_lock_their_queues(one: RunningReplica, client: Client) -> None:
    queues: list[dict[str, Any]] = [{"topic": "T", "brokerName": "broker-a", "queueId": number} for number in (0, 1)]

    async def ask(code: int, who: str, wanted: list[dict[str, Any]]) -> RemotingCommand:
        body = {"consumerGroup": "CG", "clientId": who, "mqSet": wanted}
        return await client.ask(one.address, code, body=json.dumps(body).encode())

    async def locked(who: str, wanted: list[dict[str, Any]]) -> list[int]:
        answer = await ask(RequestCode.LOCK_BATCH_MQ, who, wanted)
        assert answer.code == ResponseCode.SUCCESS
        return [queue["queueId"] for queue in json.loads(answer.body or b"")["lockOKMQSet"]]

    assert await locked("a", queues[:1]) == [0]
    assert await locked("b", queues) == [1]
    assert (await ask(RequestCode.UNLOCK_BATCH_MQ, "a", queues)).code == ResponseCode.SUCCESS
    assert await locked("b", queues) == [0, 1]
    assert (await client.ask(one.address, RequestCode.LOCK_BATCH_MQ, body=b"[]")).code == ResponseCode.SYSTEM_ERROR
