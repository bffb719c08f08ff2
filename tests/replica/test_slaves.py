"""Slaves: learners, late ones, those that serve reads or lag; the order of a role change; a disk that fails.

Examples of the specification (seeds 000 and 004); where a log is cut: `test_ha_protocol.py`.
"""

from __future__ import annotations

import errno
import logging
import os
from typing import TYPE_CHECKING

import pytest

from rocketmq_remoting.codes import RequestCode, ResponseCode
from rocketmq_remoting.message_record import decode_records
from rocketmq_replica.broker import Role
from rocketmq_replica.ha.links import FlowMeter
from rocketmq_replica.log import disk
from rocketmq_replica.sync_state import Proposal, SlaveProgress, SyncState
from tests.replica.support import numbered
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from pathlib import Path

    from tests.replica.support import Client, Lab, RunningReplica


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
        "producerGroup": "PG",
        "topic": "Topic",
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": "4",
        "queueId": "1",
        "sysFlag": "0",
        "bornTimestamp": "1",
        "flag": "0",
        "properties": "",
    }
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
