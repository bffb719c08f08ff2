"""Consumer groups: bounded, notified of members (40); what they send back comes again, over restarts and failovers."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import threading
from typing import TYPE_CHECKING, Any

import pytest

from rocketmq_remoting.client import RemotingClient
from rocketmq_remoting.client_protocol import (
    BatchedMessage,
    ConsumerSendMsgBackRequestHeader,
    NotifyConsumerIdsChangedRequestHeader,
    encode_batch,
)
from rocketmq_remoting.codes import RequestCode, ResponseCode
from rocketmq_remoting.command import RemotingCommand, request
from rocketmq_remoting.errors import RemotingError
from rocketmq_remoting.message_record import Host, StoredMessage, decode_records
from rocketmq_replica import topics
from rocketmq_replica.broker import wall_clock_ms
from rocketmq_replica.clients import consumers as consumers_module
from rocketmq_replica.clients import read_requests
from rocketmq_replica.clients.client_requests import MAX_GROUPS_OF_ONE_CLIENT
from rocketmq_replica.clients.consumers import CLIENT_EXPIRY_SECONDS, Clients
from rocketmq_replica.clients.delayed_delivery import SCHEDULE_TOPIC, DelayedDelivery
from rocketmq_replica.clients.send_requests import destination
from rocketmq_replica.ha.client import HaClient
from rocketmq_replica.ha.metadata_sync import MetadataSync
from rocketmq_replica.property_values import delay_levels
from tests.replica.support import Client, Lab, RunningReplica, send_fields
from tests.support.quiet_handler import QuietHandler
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from pathlib import Path

    from rocketmq_remoting.connection import RemotingConnection


@pytest.fixture
async def one(lab: Lab) -> RunningReplica:
    return await lab.master()


async def beat(client: Client, replica: RunningReplica, groups: list[str]) -> RemotingCommand:
    body = {"clientID": "c", "consumerDataSet": [{"groupName": group} for group in groups]}
    return await client.ask(replica, RequestCode.HEART_BEAT, body=json.dumps(body).encode())


class Syncs:
    """The names of the threads that called fsync."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.on_the_loop = self.elsewhere = 0
        real = os.fsync

        def fsync(descriptor: int) -> None:
            if threading.current_thread() is threading.main_thread():
                self.on_the_loop += 1
            else:
                self.elsewhere += 1
            real(descriptor)

        monkeypatch.setattr(os, "fsync", fsync)


async def test_a_heartbeat_of_thousands_of_groups_is_refused_and_costs_nothing(lab: Lab, one: RunningReplica) -> None:
    before = one.process.broker.topics.all()
    answer = await beat(lab.client, one, [f"g{number}" for number in range(2000)])
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark == f"heartbeat: 2000 consumer groups, expected at most {MAX_GROUPS_OF_ONE_CLIENT}"
    assert one.process.broker.topics.all() == before


async def test_many_groups_are_saved_once_and_not_on_the_event_loop(
    lab: Lab, one: RunningReplica, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    groups = [f"g{number}" for number in range(MAX_GROUPS_OF_ONE_CLIENT)]
    await asyncio.sleep(0)
    syncs = Syncs(monkeypatch)
    assert (await beat(lab.client, one, groups)).code == ResponseCode.SUCCESS
    path = tmp_path / "r1" / "config" / "topics.json"
    await eventually(lambda: path.exists() and f"%RETRY%{groups[-1]}" in path.read_text())
    assert syncs.on_the_loop == 0
    assert 0 < syncs.elsewhere < 20


async def test_groups_and_topics_are_bounded_in_all(
    lab: Lab, one: RunningReplica, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumers_module, "MAX_GROUPS", 3)
    assert (await beat(lab.client, one, ["a", "b"])).code == ResponseCode.SUCCESS
    refused = await beat(lab.client, one, ["a", "c", "d"])
    assert (refused.code, refused.remark) == (
        ResponseCode.SYSTEM_ERROR,
        "heartbeat: 2 new consumer groups beside 2, expected at most 3",
    )
    assert (await beat(lab.client, one, ["a", "b", "c"])).code == ResponseCode.SUCCESS
    monkeypatch.setattr(topics, "MAX_TOPICS", len(one.process.broker.topics.all()))
    refused = await lab.client.send(one, b"x", topic="OneTooMany")
    assert refused.code == ResponseCode.SYSTEM_ERROR
    assert "expected at most" in (refused.remark or "")


@pytest.mark.parametrize("group", ["", "a b", "line\nbreak", "x" * 300])
async def test_what_is_no_name_is_no_group(lab: Lab, one: RunningReplica, group: str) -> None:
    answer = await beat(lab.client, one, ["good", group])
    assert answer.code == ResponseCode.SYSTEM_ERROR
    expected = f"groupName {group[:50]!r}: its retry topic" if group else "a consumer group without groupName"
    assert (answer.remark or "").startswith(f"heartbeat: {expected}")
    assert one.process.broker.topics.find("%RETRY%good") is None


class Consumer(QuietHandler):
    """A client with a connection of its own that remembers which of its groups changed."""

    def __init__(self, name: str, address: str) -> None:
        self.name = name
        self.address = address
        self.notified_of: list[str | None] = []
        self.remoting = RemotingClient(request_handler=self)

    async def beat(self, *groups: str) -> None:
        consumers = [{"groupName": group} for group in groups]
        body = {"clientID": self.name, "producerDataSet": [], "consumerDataSet": consumers}
        await self.ask(RequestCode.HEART_BEAT, body=json.dumps(body).encode())

    async def leave(self, group: str) -> None:
        await self.ask(RequestCode.UNREGISTER_CLIENT, ext_fields={"clientID": self.name, "consumerGroup": group})

    async def ask(self, code: int, **what: Any) -> None:
        answer = await self.remoting.invoke(self.address, request(code, **what), timeout_seconds=5.0)
        assert answer.code == ResponseCode.SUCCESS, answer

    def handle(self, request: RemotingCommand, connection: RemotingConnection) -> None:
        assert request.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED
        assert request.is_oneway
        self.notified_of.append(NotifyConsumerIdsChangedRequestHeader.decode(request.ext_fields).consumer_group)


async def test_members_of_a_group_are_notified_of_joins_and_leaves_and_of_nothing_else(
    lab: Lab, one: RunningReplica
) -> None:
    first, second, other = consumers = [Consumer(name, one.address) for name in ("one", "two", "other")]
    await other.beat("Others")
    await eventually(lambda: other.notified_of == ["Others"])
    await first.beat("CG")
    await eventually(lambda: first.notified_of == ["CG"])
    await second.beat("CG")
    await eventually(lambda: (first.notified_of, second.notified_of) == (["CG"] * 2, ["CG"]))
    assert other.notified_of == ["Others"], "a consumer of another group"

    await first.beat("CG")
    await second.beat("CG", "Second")
    await eventually(lambda: second.notified_of == ["CG", "Second"])
    assert first.notified_of == ["CG"] * 2, "a heartbeat of a member changes nothing"

    await second.leave("CG")
    await eventually(lambda: first.notified_of == ["CG"] * 3)
    await second.leave("CG")
    await second.leave("Unknown")
    await first.beat("CG")
    assert (first.notified_of, second.notified_of) == (["CG"] * 3, ["CG", "Second"])

    await second.beat("CG", "Second")
    await eventually(lambda: first.notified_of == ["CG"] * 4)
    await second.remoting.close()
    await eventually(lambda: first.notified_of == ["CG"] * 5)
    code = RequestCode.GET_CONSUMER_LIST_BY_GROUP
    assert (await lab.client.table(one, code, consumerGroup="CG"))["consumerIdList"] == ["one"]
    assert (await lab.client.ask(one, code, ext_fields={"consumerGroup": "Unknown"})).code == ResponseCode.SYSTEM_ERROR
    for each in consumers:
        await each.remoting.close()


def test_a_client_that_spoke_over_another_connection_since_stays() -> None:
    clients = Clients()
    old, new = object(), object()
    assert clients.heartbeat("one", ["G"], old, now_seconds=0.0) == {"G"}  # type: ignore[arg-type]
    assert clients.heartbeat("one", ["G"], new, now_seconds=1.0) == set()  # type: ignore[arg-type]
    assert clients.connection_closed(old) == set()  # type: ignore[arg-type]
    assert clients.members("G", now_seconds=1.0) == ("one",)
    assert clients.connection_closed(new) == {"G"}  # type: ignore[arg-type]
    assert clients.members("G", now_seconds=1.0) == ()


def test_a_client_without_heartbeats_for_too_long_is_a_new_member() -> None:
    clients = Clients()
    connection: Any = object()
    clients.heartbeat("one", ["G"], connection, now_seconds=0.0)
    assert clients.heartbeat("one", ["G"], connection, now_seconds=CLIENT_EXPIRY_SECONDS) == set()
    assert clients.heartbeat("one", ["G"], connection, now_seconds=2 * CLIENT_EXPIRY_SECONDS + 1) == {"G"}


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


async def test_a_consumer_that_sends_it_itself_waits_too(lab: Lab) -> None:
    one = await lab.master(messageDelayLevel=NEVER)
    properties = "DELAY\x011\x02RETRY_TOPIC\x01T\x02"
    answer = await lab.client.send(one, b"x", topic=RETRY_TOPIC, properties=properties)
    assert answer.code == ResponseCode.SUCCESS
    assert await retried(lab.client, one) == []
    assert len(await lab.client.pull_all(one, topic=SCHEDULE_TOPIC)) == 1


async def test_a_batch_is_no_retry(lab: Lab) -> None:
    """As in Java: its messages might wait in several queues."""
    one = await lab.master()
    fields = send_fields(RETRY_TOPIC, m="true")
    body = encode_batch([BatchedMessage(0, b"x", b""), BatchedMessage(0, b"y", b"")])
    answer = await lab.client.ask(one, RequestCode.SEND_BATCH_MESSAGE, ext_fields=fields, body=body)
    assert (answer.code, answer.remark) == (13, "batch request does not support retry group")


async def test_the_next_process_goes_on_where_it_was(lab: Lab) -> None:
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


async def test_another_master_delivers_what_waits(lab: Lab) -> None:
    one = await lab.master(messageDelayLevel=NEVER)
    two = await lab.join("r2", messageDelayLevel="0s")
    await lab.client.send(one, b"again")
    assert (await lab.client.send_back(one, 0, level=1)).code == ResponseCode.SUCCESS
    await lab.fail_over(one, two)
    await eventually(lambda: two.process.broker.topics.find(RETRY_TOPIC))
    await until_retried(lab.client, two, [b"again"])


def forget_old_files(replica: RunningReplica) -> None:
    """Let retention delete every file but the last."""
    store = replica.process.store
    store.delete_oldest_files(len(store.log.files()) - 1)


async def filled_after(lab: Lab, *bodies: bytes) -> RunningReplica:
    """A master whose topic had these messages, in files that are deleted."""
    one = await lab.master(mappedFileSizeCommitLog=4096)
    await lab.client.store(one, *bodies)
    await lab.client.store(one, *[b"x" * 1000] * 8, topic="Busy")
    forget_old_files(one)
    return one


async def test_a_rebuilt_member_gives_no_queue_offset_again(lab: Lab) -> None:
    """Its log begins with the master's oldest file, which has no message of this topic; its consumer read them long ago."""
    one = await filled_after(lab, b"first", b"second")
    assert await lab.client.commit(one, 2) == ResponseCode.SUCCESS
    two = await lab.join("r2", mappedFileSizeCommitLog=4096)
    await two.process.metadata.copy()
    await lab.fail_over(one, two)
    await lab.client.store(two, b"third")
    answer = await lab.client.pull(two, 2)
    assert [each.body for each in decode_records(answer.body or b"")] == [b"third"]
    await two.stop()
    two = await lab.start("r2", mappedFileSizeCommitLog=4096)
    assert two.process.store.queues.end("Topic", 0) == 3


@pytest.mark.parametrize("unanswered", [0, 1])
async def test_a_rebuilt_member_that_is_elected_at_once_gives_no_queue_offset_again(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, unanswered: int
) -> None:
    """Before its first regular copy of the tables."""
    one = await filled_after(lab, b"first", b"second")
    monkeypatch.setattr(MetadataSync, "run", lambda _: asyncio.Event().wait())
    ask, asked = MetadataSync._ask, 0

    async def answered_later(*arguments: Any) -> object:
        nonlocal asked
        asked += 1
        if asked <= unanswered:
            raise RemotingError("no answer")
        return await ask(*arguments)

    monkeypatch.setattr(MetadataSync, "_ask", answered_later)
    two = await lab.join("r2", mappedFileSizeCommitLog=4096)
    await lab.fail_over(one, two)
    await lab.client.store(two, b"third")
    assert two.process.store.queues.end("Topic", 0) == 3


async def test_a_slave_that_cannot_link_copies_the_tables_once(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MetadataSync, "run", lambda _: asyncio.Event().wait())
    dialled, copied, copy = 0, 0, MetadataSync.copy

    async def nowhere(_self: HaClient, _address: str) -> bool:
        nonlocal dialled
        dialled += 1
        return False

    async def count(self: MetadataSync) -> None:
        nonlocal copied
        copied += 1
        await copy(self)

    monkeypatch.setattr(HaClient, "_follow_once", nowhere)
    monkeypatch.setattr(MetadataSync, "copy", count)
    await lab.master()
    await lab.start("r2")
    await eventually(lambda: dialled > 2)
    assert copied == 1


async def test_a_rebuilt_member_keeps_the_queue_offsets_over_a_restart(lab: Lab) -> None:
    await filled_after(lab, b"first", b"second")
    two = await lab.join("r2", mappedFileSizeCommitLog=4096)
    await two.process.metadata.copy()
    await two.stop()
    two = await lab.start("r2", mappedFileSizeCommitLog=4096)
    assert two.process.store.queues.end("Topic", 0) == 2


async def test_queue_offsets_are_sent_once_to_each_slave_that_asks_for_them(lab: Lab) -> None:
    """There may be many thousand, and topics are read every 5 s, by operators and Java slaves too."""
    one = await filled_after(lab, b"first", b"second")
    assert "nextOffsets" not in await lab.client.table(one, RequestCode.GET_ALL_TOPIC_CONFIG)
    two = await lab.join("r2", mappedFileSizeCommitLog=4096)
    await two.process.metadata.copy()
    assert two.process.store.queues.end("Topic", 0) == 2
    queues, asked = one.process.store.queues, 0
    real = queues.ended

    def ended() -> dict[tuple[str, int], int]:
        nonlocal asked
        asked += 1
        return real()

    queues.ended = ended  # type: ignore[method-assign]
    await two.process.metadata.copy()
    assert asked == 0
    await lab.controller.elect(one.broker_id, one.broker_id)
    await lab.controller.notify(two.broker_id)
    await eventually(lambda: two.process.broker.master == one.process.broker.master)
    await two.process.metadata.copy()
    assert asked == 1, "it may be another master"


@pytest.mark.parametrize("rows", [{}, [["T", 0]], [[1, 0, 1]], [["T", -1, 1]], [["T", 0, -1]], [["T", 0, "1"]]])
async def test_queue_offsets_of_a_master_that_are_none_are_not_taken(lab: Lab, rows: object) -> None:
    one, two = await lab.pair()
    document = await lab.client.table(one, RequestCode.GET_ALL_TOPIC_CONFIG)
    with pytest.raises(ValueError, match="nextOffsets: expected"):
        two.process.metadata._take_topics(document | {"nextOffsets": rows})
    assert two.process.store.queues.next_offsets() == {}


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
def test_delays_that_are_none_are_refused(value: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        delay_levels(value)


async def subscribe(client: Client, replica: RunningReplica, tags: list[str], version: int) -> None:
    text = "||".join(tags) or "*"
    subscription = {
        "topic": "Topic", "subString": text, "tagsSet": tags, "subVersion": version, "expressionType": "TAG",
    }  # fmt: skip
    body = {"clientID": "c", "consumerDataSet": [{"groupName": "CG", "subscriptionDataSet": [subscription]}]}
    answer = await client.ask(replica, RequestCode.HEART_BEAT, body=json.dumps(body).encode())
    assert answer.code == ResponseCode.SUCCESS


async def test_a_pull_without_a_subscription_goes_by_the_heartbeat(lab: Lab) -> None:
    """As Java's push consumers pull: bit 4 of sysFlag is not set."""
    one = await lab.master()
    for number, tag in enumerate(("red", "blue", "red", "green")):
        await lab.client.send(one, b"%d" % number, properties=f"TAGS\x01{tag}\x02")

    async def pulled(sys_flag: int = 0) -> bytes:
        answer = await lab.client.pull(one, 0, sysFlag=str(sys_flag), subscription="green")
        return b"".join(each.body for each in decode_records(answer.body or b""))

    assert await pulled(sys_flag=4) == b"3"
    await subscribe(lab.client, one, ["red"], 5)
    assert await pulled() == b"02"
    assert await pulled(sys_flag=4) == b"3"
    await subscribe(lab.client, one, ["blue"], 4)
    assert await pulled() == b"02", "an older word than what is known"
    await subscribe(lab.client, one, [], 6)
    assert await pulled() == b"0123"


async def test_messages_are_found_by_key(lab: Lab) -> None:
    one = await lab.master()
    for number in range(10):
        properties = f"KEYS\x01even{number % 2} k{number}\x02UNIQ_KEY\x01U{number}\x02"
        answer = await lab.client.send(one, b"%d" % number, queue_id=number % 4, properties=properties)
        assert answer.code == ResponseCode.SUCCESS

    async def found(key: str, **more: str) -> tuple[int, set[bytes]]:
        fields = {"topic": "Topic", "key": key, "maxNum": "32", "beginTimestamp": "0", "endTimestamp": str(2**63 - 1)}
        answer = await lab.client.ask(one, RequestCode.QUERY_MESSAGE, ext_fields=fields | more)
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


async def test_a_query_that_would_read_too_much_says_so(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_requests, "MOST_READ", 2)
    one = await lab.master()
    for _ in range(3):
        await lab.client.send(one, b"x")
    fields = {"topic": "Topic", "key": "k", "maxNum": "1"}
    answer = await lab.client.ask(one, RequestCode.QUERY_MESSAGE, ext_fields=fields)
    assert (answer.code, answer.remark) == (1, "more than 2 messages of Topic in this time: ask for a shorter one")
