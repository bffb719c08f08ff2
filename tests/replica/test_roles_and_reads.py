"""Learners, slaves that begin late or serve reads, the order of a role change, a disk that fails, and what clients ask besides."""

from __future__ import annotations

import errno
import logging
import os
from typing import TYPE_CHECKING

import pytest

from rocketmq_remoting.codes import RequestCode, ResponseCode
from rocketmq_remoting.message_record import decode_records
from rocketmq_replica.broker import Role
from rocketmq_replica.log import disk
from tests.replica.support import (
    Client,
    FakeController,
    RunningReplica,
    Starter,
    eventually,
    start_master,
    start_pair,
)

if TYPE_CHECKING:
    from pathlib import Path

SUCCESS = ResponseCode.SUCCESS


async def test_a_learner_has_every_byte_and_is_never_in_the_set(
    start: Starter, controller: FakeController, client: Client
) -> None:
    master, member = await start_pair(start, controller)
    learner = await start("r3", asyncLearner="true")
    await eventually(lambda: learner.process.ha_client.linked)
    for number in range(30):
        assert (await client.send(master.address, b"%d" % number)).code == SUCCESS
    await eventually(lambda: learner.log == master.log)
    status = await client.status(master.address)
    assert sorted(link.in_sync for link in status.ha_connection_info) == [False, True]
    assert controller.members == {1, 2}
    await learner.stop()
    assert (await client.send(master.address, b"nobody waits for it")).code == SUCCESS
    assert controller.members == {1, 2}
    assert member.role == "SLAVE"


async def test_an_empty_slave_that_wants_the_last_file_only_begins_there(
    start: Starter, controller: FakeController, client: Client
) -> None:
    master = await start_master(start)
    for _ in range(40):
        assert (await client.send(master.address, b"x" * 5000)).code == SUCCESS
    log = master.process.store.log
    last_file = log.max_offset - log.max_offset % log.file_size_bytes
    assert last_file > 0
    late = await start("r2", syncFromLastFile="true")
    await eventually(lambda: controller.members == {1, 2})
    assert (await client.send(master.address, b"to both")).code == SUCCESS
    await eventually(lambda: late.process.store.max_offset == log.max_offset)
    assert late.process.store.log.min_offset == last_file
    size = log.max_offset - last_file
    assert late.process.store.log.read(last_file, size) == log.read(last_file, size)


@pytest.mark.parametrize("enabled", [True, False])
async def test_a_slave_serves_reads_where_it_is_told_to(
    start: Starter, controller: FakeController, client: Client, enabled: bool
) -> None:
    master, slave = await start_pair(start, controller, slaveReadEnable=str(enabled).lower())
    for number in range(5):
        assert (await client.send(master.address, b"%d" % number)).code == SUCCESS
    if not enabled:
        assert (await client.pull(slave.address, 0)).code == ResponseCode.SYSTEM_BUSY
        return
    await slave.process.metadata.copy()
    await eventually(lambda: slave.process.store.confirm_offset == master.process.store.max_offset)
    assert [each.body for each in await client.pull_all(slave.address)] == [b"%d" % number for number in range(5)]
    slave.process.ha_client.leave()  # the next keepalive would raise it again
    slave.process.store._confirm_offset = decode_records((await client.pull(slave.address, 0)).body or b"")[
        3
    ].physical_offset
    held_back = decode_records((await client.pull(slave.address, 0)).body or b"")
    assert [each.body for each in held_back] == [b"0", b"1", b"2"], "nothing above what is confirmed"
    assert (await client.send(slave.address, b"no")).code == ResponseCode.SYSTEM_BUSY


@pytest.mark.parametrize("then", [Role.SLAVE, Role.MASTER])
async def test_a_role_change_stops_writes_first_and_closes_links_then(
    start: Starter, controller: FakeController, client: Client, monkeypatch: pytest.MonkeyPatch, then: Role
) -> None:
    """With links closed first a send could be acknowledged by nobody but the old master."""
    one, two = await start_pair(start, controller)
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
        assert not changing.process.ha_server.connections, "the epoch begins when nobody is linked"
        assert changing.process.ha_client.connection is None
        epochs_begun.append(epoch)
        begin_epoch(epoch)

    monkeypatch.setattr(changing.process.ha_server, "close_links", closing)
    monkeypatch.setattr(changing.process.ha_client, "leave", leaving)
    monkeypatch.setattr(broker.store, "begin_epoch", beginning)
    controller.decide(2)
    await controller.notify(changing.broker_id)
    assert seen
    assert all(state == (True, Role.FENCED) for state in seen[:2])
    assert broker.role is then
    assert epochs_begun == ([2] if then is Role.MASTER else [])


async def test_the_old_form_of_a_send_is_taken_too(start: Starter, client: Client) -> None:
    """10, with the long names; 310 and 320 have tests of their own."""
    master = await start_master(start)
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
    answer = await client.ask(master.address, RequestCode.SEND_MESSAGE, body=b"old", ext_fields=fields)
    assert answer.code == SUCCESS
    assert (answer.ext_fields or {})["queueId"] == "1"
    assert [each.body for each in await client.pull_all(master.address, queue_id=1)] == [b"old"]


async def offset(client: Client, replica: RunningReplica, code: int, **fields: str) -> int:
    answer = await client.ask(replica.address, code, ext_fields={"topic": "Topic", "queueId": "0"} | fields)
    assert answer.code == SUCCESS
    return int((answer.ext_fields or {})["offset"])


async def test_the_bounds_of_a_queue_and_the_search_by_time(start: Starter, client: Client) -> None:
    master = await start_master(start)
    assert await offset(client, master, RequestCode.GET_MAX_OFFSET) == 0
    for number in range(3):
        assert (await client.send(master.address, b"%d" % number)).code == SUCCESS
    assert await offset(client, master, RequestCode.GET_MAX_OFFSET) == 3
    assert await offset(client, master, RequestCode.GET_MIN_OFFSET) == 0
    stored = decode_records((await client.pull(master.address, 0)).body or b"")
    last = stored[-1].store_timestamp_ms
    search = RequestCode.SEARCH_OFFSET_BY_TIMESTAMP
    assert await offset(client, master, search, timestamp="0") == 0
    first_of_the_last_millisecond = next(
        number for number, each in enumerate(stored) if each.store_timestamp_ms == last
    )
    assert await offset(client, master, search, timestamp=str(last)) == first_of_the_last_millisecond
    assert await offset(client, master, search, timestamp=str(last + 1)) == 3


@pytest.mark.parametrize("flush", ["SYNC_FLUSH", "ASYNC_FLUSH"])
async def test_a_failed_fsync_ends_the_replica_and_nothing_more_is_written(
    start: Starter, client: Client, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, flush: str
) -> None:
    master = await start_master(start, flushDiskType=flush)
    assert (await client.send(master.address, b"held")).code == SUCCESS
    checkpoint = tmp_path / "r1" / "checkpoint"
    before = checkpoint.read_bytes() if checkpoint.exists() else None

    def failing(descriptor: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(disk, "sync_data", failing)
    answer = await client.send(master.address, b"not on the disk")
    if flush == "SYNC_FLUSH":
        assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE, "it may or may not survive"
    with pytest.raises(ExceptionGroup) as raised:
        await master.task
    assert raised.group_contains(OSError, match="Input/output error")
    assert (checkpoint.read_bytes() if checkpoint.exists() else None) == before, "it would speak of bytes nobody has"
    monkeypatch.undo()
    again = await start_master(start)
    assert (await client.pull_all(again.address))[0].body == b"held"


async def test_recovery_says_where_it_cut_and_why(
    start: Starter, client: Client, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    replica = await start_master(start)
    for number in range(3):
        assert (await client.send(replica.address, b"%d" % number)).code == SUCCESS
    third = (await client.pull_all(replica.address))[2].physical_offset
    await replica.stop()
    # Without it nothing is known to have been confirmed here; what was is not cut (tests/replica/test_durability.py).
    (tmp_path / "r1" / "checkpoint").unlink()
    with (tmp_path / "r1" / "commitlog" / f"{0:020d}").open("r+b") as log:
        log.seek(third + 88)  # the body: its CRC is wrong now
        log.write(b"?")
    with caplog.at_level(logging.ERROR):
        again = await start_master(start)
    assert f"recovery cut the log at {third}: record at offset {third}: " in caplog.text
    assert "CRC" in caplog.text
    assert [each.body for each in await client.pull_all(again.address)] == [b"0", b"1"]
