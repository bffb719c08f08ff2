"""Every code a send can be answered with, and whether the message is kept then."""

from __future__ import annotations

import asyncio
import threading

import pytest

from rocketmq_remoting.client_protocol import BatchedMessage, encode_batch
from rocketmq_remoting.codes import RequestCode, ResponseCode
from rocketmq_remoting.message_record import MAX_PROPERTIES_BYTES
from rocketmq_replica.log import disk
from rocketmq_replica.log.log_flusher import Flush
from tests.replica.support import (
    Client,
    FakeController,
    RunningReplica,
    Starter,
    eventually,
    send_fields,
    start_master,
    start_pair,
)

Refusal = tuple[int, str]
_TABLE: dict[str, tuple[dict[str, object], dict[str, str], bytes, Refusal]] = {
    "stored": ({}, send_fields(), b"x", (ResponseCode.SUCCESS, "")),
    "stored without waiting": ({}, send_fields(properties="WAIT\x01false\x02"), b"x", (ResponseCode.SUCCESS, "")),
    "body too large": ({"maxMessageSize": 10}, send_fields(), b"x" * 11, (ResponseCode.MESSAGE_ILLEGAL, "limit 10")),
    "record larger than a file": ({}, send_fields(), b"x" * 66_000, (ResponseCode.MESSAGE_ILLEGAL, "log files have")),
    "properties too large": (
        {},
        send_fields(properties="k\x01" + "v" * MAX_PROPERTIES_BYTES),
        b"x",
        (ResponseCode.MESSAGE_ILLEGAL, "properties"),
    ),
    "bad topic": ({}, send_fields("a b"), b"x", (ResponseCode.MESSAGE_ILLEGAL, "expected letters")),
    "no topic": ({}, send_fields(""), b"x", (ResponseCode.MESSAGE_ILLEGAL, "expected 1 to")),
    "any queue": ({}, send_fields(queue_id=-1), b"x", (ResponseCode.SUCCESS, "")),
    "no such topic": (
        {"autoCreateTopicEnable": "false"},
        send_fields(),
        b"x",
        (ResponseCode.TOPIC_NOT_EXIST, "not exist"),
    ),
    "read only": ({"brokerPermission": 4}, send_fields(), b"x", (ResponseCode.NO_PERMISSION, "permission")),
    "bad queue": ({}, send_fields(queue_id=9), b"x", (ResponseCode.SYSTEM_ERROR, "queueId[9]")),
    "too few in sync": (
        {"minInSyncReplicas": 2},
        send_fields(),
        b"x",
        (ResponseCode.SYSTEM_ERROR, "in-sync replicas not enough"),
    ),
}


@pytest.mark.parametrize("name", _TABLE)
async def test_a_master_alone(start: Starter, controller: FakeController, client: Client, name: str) -> None:
    keys, fields, body, (code, remark) = _TABLE[name]
    master = await start_master(start, **keys)
    end = master.process.store.max_offset
    answer = await client.ask(master.address, RequestCode.SEND_MESSAGE_V2, ext_fields=fields, body=body)
    assert answer.code == code, answer.remark
    assert remark in (answer.remark or "")
    assert (master.process.store.max_offset > end) is (code == ResponseCode.SUCCESS)
    assert code != ResponseCode.SUCCESS or 0 <= int((answer.ext_fields or {})["queueId"]) < 4


async def test_a_batch_is_refused_as_a_whole(start: Starter, controller: FakeController, client: Client) -> None:
    master = await start_master(start)
    body = encode_batch([BatchedMessage(0, b"fits", b""), BatchedMessage(0, b"x" * 66_000, b"")])
    answer = await client.ask(
        master.address, RequestCode.SEND_BATCH_MESSAGE, ext_fields=send_fields(m="true"), body=body
    )
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert master.process.store.max_offset == 0


async def test_a_slave_rejects_before_looking(start: Starter, controller: FakeController, client: Client) -> None:
    _, slave = await start_pair(start, controller)
    answer = await client.send(slave.address, b"x")
    assert answer.code == ResponseCode.SYSTEM_BUSY
    assert (answer.remark or "").startswith("[REJECTREQUEST]system busy")


def hold_disk(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """A disk whose flushes of data wait for the event."""
    released, real = threading.Event(), disk.sync_data

    def sync_data(descriptor: int) -> None:
        released.wait(20)
        real(descriptor)

    monkeypatch.setattr(disk, "sync_data", sync_data)
    return released


async def test_a_disk_that_is_too_slow_is_10_after_its_own_time(
    start: Starter, controller: FakeController, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The replicas' time (slaveTimeout) is over long before: the disk still has until syncFlushTimeout."""
    keys = {"flushDiskType": "SYNC_FLUSH", "slaveTimeout": 1, "syncFlushTimeout": 400}
    master = await start_master(start, **keys)
    released = hold_disk(monkeypatch)
    try:
        end = master.process.store.max_offset
        sending = asyncio.create_task(client.send(master.address, b"slow"))
        await eventually(lambda: master.process.store.max_offset > end)
        assert master.term.waiting_count == 1
        assert (await sending).code == ResponseCode.FLUSH_DISK_TIMEOUT
    finally:
        released.set()
    await eventually(lambda: master.process.store.log.flushed_offset == master.process.store.max_offset)
    assert [message.body for message in await client.pull_all(master.address)] == [b"slow"]


async def test_a_disk_that_makes_it_after_the_replicas_time_is_0(
    start: Starter, controller: FakeController, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = {"flushDiskType": "SYNC_FLUSH", "slaveTimeout": 1, "syncFlushTimeout": 20_000}
    master = await start_master(start, **keys)
    released = hold_disk(monkeypatch)
    sending = asyncio.create_task(client.send(master.address, b"slow", timeout_seconds=15.0))
    term = master.term
    await eventually(lambda: term.waiting_count == 1 and (term.next_deadline_seconds() or 0) > 1)
    released.set()
    assert (await sending).code == ResponseCode.SUCCESS


async def test_a_slave_that_is_too_slow_is_12_and_the_message_is_kept(
    start: Starter, controller: FakeController, client: Client
) -> None:
    master, slave = await group_then(start, controller, slaveTimeout=200)
    slave.process.ha_client.leave()
    end = master.process.store.max_offset
    answer = await client.send(master.address, b"alone")
    assert answer.code == ResponseCode.FLUSH_SLAVE_TIMEOUT
    assert answer.ext_fields
    assert "msgId" in answer.ext_fields
    assert master.process.store.max_offset > end


async def group_then(
    start: Starter, controller: FakeController, **keys: object
) -> tuple[RunningReplica, RunningReplica]:
    """A pair whose set the controller does not shrink any more."""
    found = await start_pair(start, controller, **keys)
    controller.refused[RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET] = ResponseCode.CONTROLLER_BROKER_NOT_ALIVE
    return found


async def test_who_waits_for_nothing_does_not_wait_for_a_slave(
    start: Starter, controller: FakeController, client: Client
) -> None:
    master, slave = await group_then(start, controller, slaveTimeout=60_000)
    slave.process.ha_client.leave()
    waiting = asyncio.create_task(client.send(master.address, b"waits", timeout_seconds=30.0))
    term = master.term
    await eventually(lambda: term.waiting_count == 1)
    answer = await client.send(master.address, b"does not", properties="WAIT\x01false\x02")
    assert answer.code == ResponseCode.SUCCESS
    assert not waiting.done()
    await client.ask(master.address, RequestCode.UPDATE_BROKER_CONFIG, body=b"slaveTimeout=100\n")
    answer = await client.send(master.address, b"a shorter wait")
    assert answer.code == ResponseCode.FLUSH_SLAVE_TIMEOUT
    assert not waiting.done(), "the one before it has a deadline of its own"
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)


async def test_with_sync_flush_a_slave_acknowledges_what_is_on_its_disk(
    start: Starter, controller: FakeController, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    master, slave = await group_then(start, controller, slaveTimeout=300, flushDiskType="SYNC_FLUSH")
    assert (await client.send(master.address, b"on both disks")).code == ResponseCode.SUCCESS
    store = slave.process.store
    assert store.log.flushed_offset == store.max_offset == master.process.store.max_offset
    with monkeypatch.context() as patch:
        patch.setattr(store.log.flusher, "begin", lambda _end: Flush(-1, 0, ()))
        answer = await client.send(master.address, b"in the slave's memory only")
    assert store.max_offset == master.process.store.max_offset
    assert answer.code == ResponseCode.FLUSH_SLAVE_TIMEOUT
    assert (await client.send(master.address, b"on both disks again")).code == ResponseCode.SUCCESS


@pytest.mark.parametrize("outsider", ["learner", "not a member"])
async def test_acknowledgements_of_others_than_members_count_for_nothing(
    start: Starter, controller: FakeController, client: Client, outsider: str
) -> None:
    keys = {"slaveTimeout": 300, "allAckInSyncStateSet": "false", "inSyncReplicas": 2}
    master = await start_master(start, **keys)
    controller.refused[RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET] = ResponseCode.CONTROLLER_BROKER_NOT_ALIVE
    slave = await start("r2", **keys, asyncLearner="true" if outsider == "learner" else "false")
    await eventually(lambda: slave.process.ha_client.linked)
    answer = await client.send(master.address, b"x")
    await eventually(lambda: slave.process.store.max_offset == master.process.store.max_offset)
    assert answer.code == ResponseCode.FLUSH_SLAVE_TIMEOUT
    if outsider == "not a member":
        controller.refused.clear()
        await eventually(lambda: controller.members == {1, 2})
        assert (await client.send(master.address, b"x")).code == ResponseCode.SUCCESS


async def test_a_term_that_ends_answers_14(start: Starter, controller: FakeController, client: Client) -> None:
    master, slave = await group_then(start, controller, slaveTimeout=60_000)
    slave.process.ha_client.leave()
    sending = asyncio.create_task(client.send(master.address, b"x", timeout_seconds=30.0))
    term = master.term
    await eventually(lambda: term.waiting_count == 1)
    controller.decide(slave.broker_id)
    await controller.notify(master.broker_id)
    answer = await sending
    assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert "may or may not have survived" in (answer.remark or "")
