"""Every code a send can be answered with, and whether the message is kept then."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from rocketmq_remoting.client_protocol import BatchedMessage, encode_batch
from rocketmq_remoting.codes import RequestCode, ResponseCode
from rocketmq_remoting.message_record import MAX_PROPERTIES_BYTES
from rocketmq_replica.log import disk
from rocketmq_replica.log.log_flusher import Flush
from tests.replica.support import Lab, RunningReplica, send_fields
from tests.support.waiting import eventually

Row = tuple[dict[str, object], dict[str, str], bytes, int, str]


def row(
    code: int,
    remark: str = "",
    *,
    keys: dict[str, object] | None = None,
    body: bytes = b"x",
    topic: str = "Topic",
    **fields: Any,
) -> Row:
    """Keys of broker.conf, a send, and what it is answered."""
    return keys or {}, send_fields(topic, **fields), body, code, remark


ILLEGAL = ResponseCode.MESSAGE_ILLEGAL
_TABLE: dict[str, Row] = {
    "stored": row(ResponseCode.SUCCESS),
    "stored without waiting": row(ResponseCode.SUCCESS, properties="WAIT\x01false\x02"),
    "body too large": row(ILLEGAL, "limit 10", keys={"maxMessageSize": 10}, body=b"x" * 11),
    "record larger than a file": row(ILLEGAL, "log files have", body=b"x" * 66_000),
    "properties too large": row(ILLEGAL, "properties", properties="k\x01" + "v" * MAX_PROPERTIES_BYTES),
    "bad topic": row(ILLEGAL, "expected letters", topic="a b"),
    "no topic": row(ILLEGAL, "expected 1 to", topic=""),
    "any queue": row(ResponseCode.SUCCESS, queue_id=-1),
    "no such topic": row(ResponseCode.TOPIC_NOT_EXIST, "not exist", keys={"autoCreateTopicEnable": "false"}),
    "read only": row(ResponseCode.NO_PERMISSION, "permission", keys={"brokerPermission": 4}),
    "bad queue": row(ResponseCode.SYSTEM_ERROR, "queueId[9]", queue_id=9),
    "too few in sync": row(ResponseCode.SYSTEM_ERROR, "in-sync replicas not enough", keys={"minInSyncReplicas": 2}),
}


@pytest.mark.parametrize("name", _TABLE)
async def test_a_master_alone(lab: Lab, name: str) -> None:
    keys, fields, body, code, remark = _TABLE[name]
    master = await lab.master(**keys)
    end = master.process.store.max_offset
    answer = await lab.client.ask(master, RequestCode.SEND_MESSAGE_V2, ext_fields=fields, body=body)
    assert answer.code == code, answer.remark
    assert remark in (answer.remark or "")
    assert (master.process.store.max_offset > end) is (code == ResponseCode.SUCCESS)
    assert code != ResponseCode.SUCCESS or 0 <= int((answer.ext_fields or {})["queueId"]) < 4


async def test_a_batch_is_refused_as_a_whole(lab: Lab) -> None:
    master = await lab.master()
    body = encode_batch([BatchedMessage(0, b"fits", b""), BatchedMessage(0, b"x" * 66_000, b"")])
    answer = await lab.client.ask(master, RequestCode.SEND_BATCH_MESSAGE, ext_fields=send_fields(m="true"), body=body)
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert master.process.store.max_offset == 0


def hold_disk(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """A disk whose flushes of data wait for the event."""
    released, real = threading.Event(), disk.sync_data

    def sync_data(descriptor: int) -> None:
        released.wait(20)
        real(descriptor)

    monkeypatch.setattr(disk, "sync_data", sync_data)
    return released


async def test_a_disk_that_is_too_slow_is_10_after_its_own_time(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """The replicas' time (slaveTimeout) is over long before: the disk still has until syncFlushTimeout."""
    keys = {"flushDiskType": "SYNC_FLUSH", "slaveTimeout": 1, "syncFlushTimeout": 400}
    master = await lab.master(**keys)
    released = hold_disk(monkeypatch)
    try:
        end = master.process.store.max_offset
        sending = asyncio.create_task(lab.client.send(master, b"slow"))
        await eventually(lambda: master.process.store.max_offset > end)
        assert master.term.waiting_count == 1
        assert (await sending).code == ResponseCode.FLUSH_DISK_TIMEOUT
    finally:
        released.set()
    await eventually(lambda: master.process.store.log.flushed_offset == master.process.store.max_offset)
    assert await lab.client.bodies(master) == [b"slow"]


async def test_a_disk_that_makes_it_after_the_replicas_time_is_0(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = {"flushDiskType": "SYNC_FLUSH", "slaveTimeout": 1, "syncFlushTimeout": 20_000}
    master = await lab.master(**keys)
    released = hold_disk(monkeypatch)
    sending = asyncio.create_task(lab.client.send(master, b"slow", timeout_seconds=15.0))
    term = master.term
    await eventually(lambda: term.waiting_count == 1 and (term.next_deadline_seconds() or 0) > 1)
    released.set()
    assert (await sending).code == ResponseCode.SUCCESS


async def test_a_slave_that_is_too_slow_is_12_and_the_message_is_kept(lab: Lab) -> None:
    master, slave = await group_then(lab, slaveTimeout=200)
    slave.process.ha_client.leave()
    end = master.process.store.max_offset
    answer = await lab.client.send(master, b"alone")
    assert answer.code == ResponseCode.FLUSH_SLAVE_TIMEOUT
    assert answer.ext_fields
    assert "msgId" in answer.ext_fields
    assert master.process.store.max_offset > end


async def group_then(lab: Lab, **keys: object) -> tuple[RunningReplica, RunningReplica]:
    """A pair whose set the controller does not shrink any more."""
    found = await lab.pair(**keys)
    lab.controller.refused[RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET] = ResponseCode.CONTROLLER_BROKER_NOT_ALIVE
    return found


async def test_a_send_that_waits_for_nothing_does_not_wait_for_a_slave(lab: Lab) -> None:
    master, slave = await group_then(lab, slaveTimeout=60_000)
    slave.process.ha_client.leave()
    waiting = asyncio.create_task(lab.client.send(master, b"waits", timeout_seconds=30.0))
    term = master.term
    await eventually(lambda: term.waiting_count == 1)
    answer = await lab.client.send(master, b"does not", properties="WAIT\x01false\x02")
    assert answer.code == ResponseCode.SUCCESS
    assert not waiting.done()
    await lab.client.ask(master, RequestCode.UPDATE_BROKER_CONFIG, body=b"slaveTimeout=100\n")
    answer = await lab.client.send(master, b"a shorter wait")
    assert answer.code == ResponseCode.FLUSH_SLAVE_TIMEOUT
    assert not waiting.done(), "the one before it has a deadline of its own"
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)


async def test_with_sync_flush_a_slave_acknowledges_what_is_on_its_disk(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    master, slave = await group_then(lab, slaveTimeout=300, flushDiskType="SYNC_FLUSH")
    await lab.client.store(master, b"on both disks")
    store = slave.process.store
    assert store.log.flushed_offset == store.max_offset == master.process.store.max_offset
    with monkeypatch.context() as patch:
        patch.setattr(store.log.flusher, "begin", lambda _end: Flush(-1, 0, ()))
        answer = await lab.client.send(master, b"in the slave's memory only")
    assert store.max_offset == master.process.store.max_offset
    assert answer.code == ResponseCode.FLUSH_SLAVE_TIMEOUT
    await lab.client.store(master, b"on both disks again")


@pytest.mark.parametrize("outsider", ["learner", "not a member"])
async def test_acknowledgements_of_others_than_members_count_for_nothing(lab: Lab, outsider: str) -> None:
    keys = {"slaveTimeout": 300, "allAckInSyncStateSet": "false", "inSyncReplicas": 2}
    master = await lab.master(**keys)
    lab.controller.refused[RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET] = ResponseCode.CONTROLLER_BROKER_NOT_ALIVE
    slave = await lab.start("r2", **keys, asyncLearner="true" if outsider == "learner" else "false")
    await eventually(lambda: slave.process.ha_client.linked)
    answer = await lab.client.send(master, b"x")
    await eventually(lambda: slave.process.store.max_offset == master.process.store.max_offset)
    assert answer.code == ResponseCode.FLUSH_SLAVE_TIMEOUT
    if outsider == "not a member":
        lab.controller.refused.clear()
        await eventually(lambda: lab.controller.members == {1, 2})
        await lab.client.store(master, b"x")


async def test_a_term_that_ends_answers_14(lab: Lab) -> None:
    master, slave = await group_then(lab, slaveTimeout=60_000)
    slave.process.ha_client.leave()
    sending = asyncio.create_task(lab.client.send(master, b"x", timeout_seconds=30.0))
    term = master.term
    await eventually(lambda: term.waiting_count == 1)
    await lab.controller.elect(slave.broker_id, master.broker_id)
    answer = await sending
    assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert "may or may not have survived" in (answer.remark or "")
