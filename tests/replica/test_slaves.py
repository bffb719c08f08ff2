"""Every code a send can be answered with; slaves: learners, late ones, those that serve reads or lag."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import threading
from typing import TYPE_CHECKING, Any

import pytest

from rocketmq_remoting.client_protocol import BatchedMessage, encode_batch
from rocketmq_remoting.codes import RequestCode, ResponseCode
from rocketmq_remoting.message_record import MAX_PROPERTIES_BYTES, decode_records
from rocketmq_replica.broker import Role
from rocketmq_replica.ha.links import FlowMeter
from rocketmq_replica.log import disk
from rocketmq_replica.log.log_flusher import Flush
from rocketmq_replica.sync_state import Proposal, SlaveProgress, SyncState
from tests.replica.support import Lab, RunningReplica, numbered, send_fields
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from pathlib import Path

    from rocketmq_remoting.command import RemotingCommand
    from tests.replica.support import Client

Row = tuple[dict[str, object], dict[str, str], bytes, int, str]


def row(
    code: int, remark: str = "", *, keys: dict[str, object] | None = None, body: bytes = b"x", topic: str = "Topic",
    **fields: Any,
) -> Row:  # fmt: skip
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


async def set_slave_timeout(lab: Lab, master: RunningReplica, ms: int) -> None:
    """For the sends after it: short where none of the acknowledgements comes, long where one must come on a busy machine."""
    await lab.client.ask(master, RequestCode.UPDATE_BROKER_CONFIG, body=b"slaveTimeout=%d\n" % ms)


async def with_a_waiting_send(lab: Lab) -> tuple[RunningReplica, RunningReplica, asyncio.Task[RemotingCommand]]:
    """A pair whose slave has left, and a send that waits for it."""
    master, slave = await group_then(lab, slaveTimeout=60_000)
    slave.process.ha_client.leave()
    waiting = asyncio.create_task(lab.client.send(master, b"waits", timeout_seconds=30.0))
    term = master.term
    await eventually(lambda: term.waiting_count == 1)
    return master, slave, waiting


async def test_a_send_that_waits_for_nothing_does_not_wait_for_a_slave(lab: Lab) -> None:
    master, _, waiting = await with_a_waiting_send(lab)
    answer = await lab.client.send(master, b"does not", properties="WAIT\x01false\x02")
    assert answer.code == ResponseCode.SUCCESS
    assert not waiting.done()
    await set_slave_timeout(lab, master, 100)
    answer = await lab.client.send(master, b"a shorter wait")
    assert answer.code == ResponseCode.FLUSH_SLAVE_TIMEOUT
    assert not waiting.done(), "the one before it has a deadline of its own"
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)


async def test_with_sync_flush_a_slave_acknowledges_what_is_on_its_disk(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    master, slave = await group_then(lab, slaveTimeout=60_000, flushDiskType="SYNC_FLUSH")
    await lab.client.store(master, b"on both disks")
    store = slave.process.store
    assert store.log.flushed_offset == store.max_offset == master.process.store.max_offset
    with monkeypatch.context() as patch:
        patch.setattr(store.log.flusher, "begin", lambda _end: Flush(-1, 0, ()))
        await set_slave_timeout(lab, master, 100)
        answer = await lab.client.send(master, b"in the slave's memory only")
    assert store.max_offset == master.process.store.max_offset
    assert answer.code == ResponseCode.FLUSH_SLAVE_TIMEOUT
    await set_slave_timeout(lab, master, 60_000)
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
        await set_slave_timeout(lab, master, 60_000)
        await lab.client.store(master, b"x")


async def test_a_term_that_ends_answers_14(lab: Lab) -> None:
    master, slave, waiting = await with_a_waiting_send(lab)
    await lab.controller.elect(slave.broker_id, master.broker_id)
    answer = await waiting
    assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert "may or may not have survived" in (answer.remark or "")


SUCCESS = ResponseCode.SUCCESS


async def test_a_learner_has_every_byte_and_is_never_in_the_set(lab: Lab) -> None:
    master, member = await lab.pair()
    learner = await lab.start("r3", asyncLearner="true")
    await eventually(lambda: learner.process.ha_client.linked)
    await lab.client.store(master, *numbered(30))
    await eventually(lambda: learner.log == master.log)
    status = await lab.client.status(master)
    assert sorted(link.in_sync for link in status.ha_connection_info) == [False, True]
    assert lab.controller.members == {1, 2}
    await learner.stop()
    await lab.client.store(master, b"without waiting for it")
    assert lab.controller.members == {1, 2}
    assert member.role == "SLAVE"


async def test_an_empty_slave_that_wants_the_last_file_only_begins_there(lab: Lab) -> None:
    master = await lab.master()
    await lab.client.store(master, *[b"x" * 5000] * 40)
    log = master.process.store.log
    last_file = log.max_offset - log.max_offset % log.file_size_bytes
    assert last_file > 0
    late = await lab.join("r2", syncFromLastFile="true")
    await lab.client.store(master, b"to both")
    await eventually(lambda: late.process.store.max_offset == log.max_offset)
    assert late.process.store.log.min_offset == last_file
    size = log.max_offset - last_file
    assert late.process.store.log.read(last_file, size) == log.read(last_file, size)


@pytest.mark.parametrize("enabled", [True, False])
async def test_a_slave_serves_reads_if_its_configuration_says_so(lab: Lab, enabled: bool) -> None:
    master, slave = await lab.pair(slaveReadEnable=str(enabled).lower())
    await lab.client.store(master, *numbered(5))
    if not enabled:
        assert (await lab.client.pull(slave, 0)).code == ResponseCode.SYSTEM_BUSY
        return
    await slave.process.metadata.copy()
    await eventually(lambda: slave.process.store.confirm_offset == master.process.store.max_offset)
    assert await lab.client.bodies(slave) == numbered(5)
    slave.process.ha_client.leave()  # the next keepalive would raise it again
    slave.process.store._confirm_offset = decode_records((await lab.client.pull(slave, 0)).body or b"")[
        3
    ].physical_offset
    held_back = decode_records((await lab.client.pull(slave, 0)).body or b"")
    assert [each.body for each in held_back] == [b"0", b"1", b"2"], "nothing above what is confirmed"
    answer = await lab.client.send(slave, b"no")
    assert answer.code == ResponseCode.SYSTEM_BUSY
    assert (answer.remark or "").startswith("[REJECTREQUEST]system busy")


@pytest.mark.parametrize("then", [Role.SLAVE, Role.MASTER])
async def test_a_role_change_stops_writes_first_and_closes_links_then(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, then: Role
) -> None:
    """With links closed first, the old master alone could acknowledge a send."""
    one, two = await lab.pair()
    changing = one if then is Role.SLAVE else two
    broker = changing.process.broker
    seen: list[tuple[bool, Role]] = []
    close_links, leave = changing.process.ha_server.close_links, changing.process.ha_client.leave
    begin_epoch = broker.store.begin_epoch
    epochs_begun: list[int] = []

    def closing() -> None:
        seen.append((broker.term is None, broker.role))
        close_links()

    def leaving() -> None:
        seen.append((broker.term is None, broker.role))
        leave()

    def beginning(epoch: int) -> None:
        assert not changing.process.ha_server.connections, "the epoch begins without a linked slave"
        assert changing.process.ha_client.connection is None
        epochs_begun.append(epoch)
        begin_epoch(epoch)

    monkeypatch.setattr(changing.process.ha_server, "close_links", closing)
    monkeypatch.setattr(changing.process.ha_client, "leave", leaving)
    monkeypatch.setattr(broker.store, "begin_epoch", beginning)
    await lab.controller.elect(2, changing.broker_id)
    assert seen
    assert all(state == (True, Role.FENCED) for state in seen[:2])
    assert broker.role is then
    assert epochs_begun == ([2] if then is Role.MASTER else [])


async def test_the_old_form_of_a_send_is_taken_too(lab: Lab) -> None:
    """10, with the long names; 310 and 320 have tests of their own."""
    master = await lab.master()
    fields = {
        "producerGroup": "PG", "topic": "Topic", "defaultTopic": "TBW102", "defaultTopicQueueNums": "4", "queueId": "1",
        "sysFlag": "0", "bornTimestamp": "1", "flag": "0", "properties": "",
    }  # fmt: skip
    answer = await lab.client.ask(master, RequestCode.SEND_MESSAGE, body=b"old", ext_fields=fields)
    assert answer.code == SUCCESS
    assert (answer.ext_fields or {})["queueId"] == "1"
    assert await lab.client.bodies(master, queue_id=1) == [b"old"]


async def offset(client: Client, replica: RunningReplica, code: int, **fields: str) -> int:
    answer = await client.ask(replica, code, ext_fields={"topic": "Topic", "queueId": "0"} | fields)
    assert answer.code == SUCCESS
    return int((answer.ext_fields or {})["offset"])


async def test_the_bounds_of_a_queue_and_the_search_by_time(lab: Lab) -> None:
    master = await lab.master()
    assert await offset(lab.client, master, RequestCode.GET_MAX_OFFSET) == 0
    await lab.client.store(master, *numbered(3))
    assert await offset(lab.client, master, RequestCode.GET_MAX_OFFSET) == 3
    assert await offset(lab.client, master, RequestCode.GET_MIN_OFFSET) == 0
    stored = decode_records((await lab.client.pull(master, 0)).body or b"")
    last = stored[-1].store_timestamp_ms
    search = RequestCode.SEARCH_OFFSET_BY_TIMESTAMP
    assert await offset(lab.client, master, search, timestamp="0") == 0
    first_of_the_last_millisecond = next(
        number for number, each in enumerate(stored) if each.store_timestamp_ms == last
    )
    assert await offset(lab.client, master, search, timestamp=str(last)) == first_of_the_last_millisecond
    assert await offset(lab.client, master, search, timestamp=str(last + 1)) == 3


@pytest.mark.parametrize("flush", ["SYNC_FLUSH", "ASYNC_FLUSH"])
async def test_a_failed_fsync_ends_the_replica_and_nothing_more_is_written(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, flush: str
) -> None:
    master = await lab.master(flushDiskType=flush)
    await lab.client.store(master, b"held")
    checkpoint = tmp_path / "r1" / "checkpoint"
    before = checkpoint.read_bytes() if checkpoint.exists() else None

    def failing(descriptor: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(disk, "sync_data", failing)
    answer = await lab.client.send(master, b"not on the disk")
    if flush == "SYNC_FLUSH":
        assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE, "it may or may not survive"
    with pytest.raises(ExceptionGroup) as raised:
        await master.task
    assert raised.group_contains(OSError, match="Input/output error")
    assert (checkpoint.read_bytes() if checkpoint.exists() else None) == before, "it would name bytes that are nowhere"
    monkeypatch.undo()
    again = await lab.master()
    assert (await lab.client.pull_all(again))[0].body == b"held"


async def test_recovery_says_where_it_cut_and_why(lab: Lab, caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    replica = await lab.master()
    await lab.client.store(replica, *numbered(3))
    third = (await lab.client.pull_all(replica))[2].physical_offset
    await replica.stop()
    # Without it nothing is known to have been confirmed here; what was is not cut (tests/replica/test_durability.py).
    (tmp_path / "r1" / "checkpoint").unlink()
    with (tmp_path / "r1" / "commitlog" / f"{0:020d}").open("r+b") as log:
        log.seek(third + 88)  # the body: its CRC is wrong now
        log.write(b"?")
    with caplog.at_level(logging.ERROR):
        again = await lab.master()
    assert f"recovery cut the log at {third}: record at offset {third}: " in caplog.text
    assert "CRC" in caplog.text
    assert await lab.client.bodies(again) == [b"0", b"1"]


async def test_a_promoted_slave_confirms_all_it_holds(lab: Lab) -> None:
    """004: the master sent [40-100] and died before the slave heard that 100 was confirmed; the senders were answered."""
    one, two = await lab.pair()
    await lab.client.store(one, *(b"message %d" % number for number in range(10)))
    store = two.process.store
    await eventually(lambda: store.max_offset == one.process.store.max_offset)
    await one.stop()
    store.confirm_offset = store.max_offset * 4 // 10
    assert store.confirm_offset < store.max_offset
    await lab.change_master(two)
    assert store.confirm_offset == store.max_offset
    assert await lab.client.bodies(two) == [b"message %d" % n for n in range(10)]


def test_a_link_reports_the_bytes_of_its_last_whole_second() -> None:
    flow = FlowMeter(10.0)
    flow.add(300, 10.2)
    flow.add(200, 10.9)
    assert flow.bytes_in_last_second(10.95) == 0, "no second has ended"
    assert flow.bytes_in_last_second(11.0) == 500
    flow.add(70, 11.5)
    assert flow.bytes_in_last_second(11.9) == 500
    assert flow.bytes_in_last_second(12.1) == 70
    assert flow.bytes_in_last_second(14.0) == 0, "it has been idle since"


async def test_both_ends_of_a_link_report_how_fast_it_is(lab: Lab) -> None:
    """004: replication speed; it was always 0."""
    one, two = await lab.pair()
    seen: list[tuple[int, int]] = []

    async def ask() -> bool:
        await lab.client.send(one, b"x" * 4000)
        master = await lab.client.status(one)
        slave = await lab.client.status(two)
        (link,) = master.ha_connection_info
        seen.append((link.transferred_byte_in_second, slave.ha_client_runtime_info.transferred_byte_in_second))
        return min(seen[-1]) >= 4000

    while not await ask():
        assert len(seen) < 100_000, seen[-3:]


JAVAS_GAP_BYTES = 256 << 20


@pytest.mark.parametrize("behind_bytes", [1, JAVAS_GAP_BYTES, 4 * JAVAS_GAP_BYTES])
def test_in_sync_is_judged_by_time_and_not_by_bytes(behind_bytes: int) -> None:
    """004 allows either. Java's `haMaxGapNotInSync` is read by DefaultHAService alone; with a controller, time decides (000)."""
    state = SyncState(own_id=1, members=frozenset({1, 2}), set_epoch=5, epoch_start_offset=0, replicated_offset=0)
    slave = SlaveProgress(2, linked_at_seconds=0.0)
    state.link_opened(slave)
    state.acknowledged(slave, 100, max_offset=100, now_seconds=10.0)
    end = 100 + behind_bytes
    slave.sent(end, 10.5)
    state.tick(max_offset=end, now_seconds=20.0)
    assert state.advance(max_offset=end, now_seconds=20.0) == 100
    assert state.propose(now_seconds=25.0, allowed_lag_seconds=15.0) is None, "in time, however many bytes it lacks"
    assert state.propose(now_seconds=25.1, allowed_lag_seconds=15.0) == Proposal(frozenset({1}), 5)


async def test_a_slave_behind_javas_gap_is_in_sync_and_its_lag_in_bytes_is_reported(lab: Lab) -> None:
    keys = {"haMaxGapNotInSync": 1, "allAckInSyncStateSet": "false", "haMaxTimeSlaveNotCatchup": 600_000}
    one, two = await lab.pair(**keys)
    connection = two.process.ha_client.connection
    assert connection is not None
    held: list[bytes] = []

    def hold(data: bytes, *, now_seconds: float) -> bytes:
        held.append(data)
        return b""

    connection.link.receive = hold  # type: ignore[method-assign] # a slave whose disk takes nothing for a while
    before = one.process.store.max_offset
    await lab.client.store(one, b"x" * 5000)
    lacks = one.process.store.max_offset - before
    assert lacks > 5000
    status = await lab.client.status(one)
    (link,) = status.ha_connection_info
    assert (link.in_sync, link.diff, status.in_sync_slave_nums) == (True, lacks, 1)
    assert lab.controller.members == {1, 2}
    await eventually(lambda: b"x" * 5000 in b"".join(held))
