"""Keeping the log within bounds: retention, full disks, what a start need not read again, and damage that is found at read."""

from __future__ import annotations

import errno
import itertools
import os
import shutil
from typing import TYPE_CHECKING

import pytest

from brokergroup_operator.backup.files import UNFINISHED
from rocketmq_remoting.codes import ResponseCode
from rocketmq_remoting.message_record import MessageRecordError, decode_records
from rocketmq_replica.log import commit_log, disk
from rocketmq_replica.log.retention import (
    ENOUGH_FREE_BYTES,
    MOST_FILES_AT_ONCE,
    DiskSpace,
    LogFileFacts,
    RetentionPolicy,
    files_to_delete,
    is_full,
)
from tests.replica.stores import FILE_BYTES, damage, linked, log_of, message, open_store, put
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from rocketmq_replica.log.message_store import MessageStore
    from tests.replica.stores import Stores
    from tests.replica.support import Lab

HOUR = 3600.0
NOW = 1000 * HOUR
EMPTY_DISK = DiskSpace(10.0, 10 * ENOUGH_FREE_BYTES)


def files(*ages_hours: float) -> list[LogFileFacts]:
    return [LogFileFacts(n * 100, n * 100 + 100, NOW - age * HOUR) for n, age in enumerate(ages_hours)]


def deleted(
    facts: list[LogFileFacts], *, policy: RetentionPolicy | None = None, space: DiskSpace = EMPTY_DISK,
    barrier: int = 1 << 60, hour: int = 4,
) -> int:  # fmt: skip
    return files_to_delete(
        facts, policy or RetentionPolicy(), space, barrier_offset=barrier, now_seconds=NOW, local_hour=hour
    )


def test_expired_files_go_at_their_hour_from_the_oldest_on_and_never_the_last() -> None:
    assert deleted(files()) == 0
    assert deleted(files(100)) == 0
    assert deleted(files(100, 90, 80)) == 2
    assert deleted(files(100, 90, 80), hour=5) == 0
    assert deleted(files(100, 71, 90, 1)) == 1, "a younger file in between stays, and everything after it"
    assert deleted(files(*[100] * 50)) == MOST_FILES_AT_ONCE
    assert (
        deleted(files(3, 2, 1), policy=RetentionPolicy(reserved_hours=1, delete_hours=frozenset({4, 5})), hour=5) == 2
    )


def test_no_file_is_deleted_that_a_slave_may_still_read() -> None:
    full = DiskSpace(99.0, 1)
    for barrier, expected in ((0, 0), (99, 0), (100, 1), (250, 2), (400, 3)):
        assert deleted(files(100, 100, 100, 100), barrier=barrier) == expected
        assert deleted(files(1, 1, 1, 1), space=full, barrier=barrier) == expected


def test_a_limit_in_bytes_holds_at_any_hour() -> None:
    policy = RetentionPolicy(max_bytes=250)
    assert deleted(files(0, 0, 0, 0), policy=policy, hour=12) == 2
    assert deleted(files(0, 0), policy=policy, hour=12) == 0
    assert deleted(files(0, 0), policy=RetentionPolicy(max_bytes=1), hour=12) == 1


@pytest.mark.parametrize(
    ("used", "free", "of_old", "of_young", "full"),
    [
        (74.0, 1, 0, 0, False),
        (75.0, 1, 3, 0, False),
        (85.0, 1, 3, 3, False),
        (90.0, 1, 3, 3, True),
        (99.0, ENOUGH_FREE_BYTES, 0, 0, False),
    ],
)
def test_a_full_disk_makes_it_eager(used: float, free: int, of_old: int, of_young: int, *, full: bool) -> None:
    space = DiskSpace(used, free)
    assert deleted(files(100, 100, 100, 100), space=space, hour=12) == of_old
    assert deleted(files(1, 1, 1, 1), space=space, hour=12) == of_young
    assert is_full(RetentionPolicy(), space) is full


def filled(stores: Stores, name: str = "") -> MessageStore:
    """60 messages of two epochs in several files, all confirmed."""
    store = stores.open(name)
    store.begin_epoch(1)
    for number in range(60):
        if number == 20:
            store.begin_epoch(2)
        put(store, b"x" * 200, queue_id=number % 3, topic="once" if number == 0 else "T")
    store.confirm_offset = store.max_offset
    return store


def next_offsets(store: MessageStore) -> dict[tuple[str, int], int]:
    return store.queues.next_offsets()


def test_deleted_files_take_their_messages_but_no_number_with_them(stores: Stores) -> None:
    store = filled(stores)
    numbers, data = next_offsets(store), log_of(store)
    store.delete_oldest_files(2)
    assert store.log.min_offset == 2 * FILE_BYTES
    assert log_of(store) == data[2 * FILE_BYTES :]
    assert next_offsets(store) == numbers
    assert [entry.epoch for entry in store.epochs.entries] == [2]
    queue = store.queues.queue("T", 0)
    place = queue.locate(queue.min_offset)
    assert queue.min_offset > 0
    assert place is not None
    assert place[0] >= 2 * FILE_BYTES
    for _ in range(2):
        store = stores.reopen()
        assert next_offsets(store) == numbers, "also of the queue that has no message left"
        assert store.queues.queue("T", 0).min_offset == queue.min_offset
        assert store.recovery.reason == ""


def test_the_last_file_is_never_deleted(stores: Stores) -> None:
    store = filled(stores)
    count = len(store.log.files())
    store.delete_oldest_files(count)
    assert len(store.log.files()) == count
    store.delete_oldest_files(count - 1)
    assert len(store.log.files()) == 1
    put(store, b"goes on")


def test_a_full_disk_gives_way_to_the_deletion_of_its_oldest_files(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The queue offsets have to be written first, and had no room: no file was ever deleted, and the disk stayed full."""
    store = filled(stores)
    while (to_index := store.next_to_index()) is not None:
        store.index.write(*to_index)
    numbers, first = next_offsets(store), store.queues.queue("T", 0).min_offset
    real_unlink, real_write = disk.unlink, disk.write_at
    room = 0

    def unlink(path: Path) -> None:
        nonlocal room
        room += path.stat().st_size
        real_unlink(path)

    def write_at(descriptor: int, data: bytes, position: int) -> None:
        if len(data) > room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real_write(descriptor, data, position)

    monkeypatch.setattr(disk, "unlink", unlink)
    monkeypatch.setattr(disk, "write_at", write_at)
    store.delete_oldest_files(2)
    assert store.log.min_offset == 2 * FILE_BYTES
    assert store.queues.queue("T", 0).min_offset > first
    assert next_offsets(stores.reopen()) == numbers


def scanned(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Which files a start reads record by record."""
    starts: list[int] = []
    real = commit_log.CommitLog._scan_file

    def scan(log: commit_log.CommitLog, view: memoryview, start: int, on_record: object) -> tuple[int, str]:
        starts.append(start)
        return real(log, view, start, on_record)  # type: ignore[arg-type]

    monkeypatch.setattr(commit_log.CommitLog, "_scan_file", scan)
    return starts


def test_a_start_reads_the_last_file_only_and_knows_as_much_as_one_that_reads_all(
    tmp_path: Path, stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = filled(stores)
    names = list(store.queues.names())
    places = {
        name: [store.queues.queue(*name).locate(n) for n in range(store.queues.queue(*name).next_offset)]
        for name in names
    }
    stores.close()
    starts = scanned(monkeypatch)
    for wipe_index in (False, True):
        if wipe_index:
            for path in (tmp_path / "indexed").iterdir():
                path.unlink()
        starts.clear()
        store = stores.open()
        count = len(store.log.files())
        assert count > 3
        assert starts == ([n * FILE_BYTES for n in range(count)] if wipe_index else [(count - 1) * FILE_BYTES])
        for name in names:
            queue = store.queues.queue(*name)
            assert [queue.locate(number) for number in range(queue.next_offset)] == places[name]
            assert queue.first_stored_at_or_after(2) == 0
        stores.close()
    assert len(list((tmp_path / "indexed").iterdir())) == count - 1, "what was lost is written again"


@pytest.mark.parametrize("how", ["cut", "flipped", "empty", "not json", "of another log"])
def test_an_index_that_cannot_be_believed_is_not(
    tmp_path: Path, stores: Stores, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    store = filled(stores, "a")
    numbers = next_offsets(store)
    stores.close("a")
    path = tmp_path / "a" / "indexed" / f"{FILE_BYTES:020d}"
    content = bytearray(path.read_bytes())
    if how == "cut":
        del content[-1]
    elif how == "flipped":
        content[-9] ^= 1
    elif how == "empty":
        content.clear()
    elif how == "not json":
        content[0] = 0
    else:
        other = stores.open("b")
        for _ in range(60):
            put(other, b"y" * 200, topic="U")
        stores.close("b")
        content[:] = (tmp_path / "b" / "indexed" / path.name).read_bytes()
    path.write_bytes(content)
    starts = scanned(monkeypatch)
    store = stores.open("a")
    assert FILE_BYTES in starts
    assert 0 not in starts
    assert next_offsets(store) == numbers


def test_truncation_deletes_the_indexes_it_cuts_into_first(tmp_path: Path, stores: Stores) -> None:
    store = filled(stores)
    store = stores.reopen()
    at = store.queues.queue("T", 0).locate(10)
    assert at is not None
    to_index = (0, store.queues.parts(0, FILE_BYTES), store.index.generation)
    store.truncate(at[0])
    assert sorted(int(path.name) for path in (tmp_path / "indexed").iterdir()) == list(
        range(0, at[0] - FILE_BYTES + 1, FILE_BYTES)
    )
    store.truncate(0)
    store.index.write(*to_index)  # a thread that was late
    assert list((tmp_path / "indexed").iterdir()) == []


def test_damage_below_the_last_file_is_found_when_it_is_read(tmp_path: Path, stores: Stores) -> None:
    store = filled(stores)
    place = store.queues.queue("T", 1).locate(0)
    assert place is not None
    stores.close()
    damage(tmp_path / "commitlog" / f"{0:020d}", place[0] + 90)
    store = stores.open()
    assert store.recovery.reason == ""
    with pytest.raises(MessageRecordError, match="CRC"):
        store.read_record(*place)
    with pytest.raises(MessageRecordError, match="8 of"):
        store.read_record(FILE_BYTES, 8)


async def test_a_damaged_record_is_named_and_never_handed_out(lab: Lab) -> None:
    replica = await lab.master()
    await lab.client.store(replica, *(b"%d" % number * 50 for number in range(3)))
    place = replica.process.store.queues.queue("Topic", 0).locate(1)
    assert place is not None
    damage(replica.process.configuration.commit_log_folder / f"{0:020d}", place[0] + 90)
    answer = await lab.client.pull(replica, 0)
    assert [message.body for message in decode_records(answer.body or b"")] == [b"0" * 50]
    answer = await lab.client.pull(replica, 1)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert f"offset {place[0]}" in (answer.remark or "")
    assert not answer.body
    assert (await lab.client.pull(replica, 2)).code == 0


async def test_a_full_disk_refuses_with_14_and_serves_what_it_has(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    replica = await lab.master()
    await lab.client.store(replica, b"kept")
    space = DiskSpace(95.0, 1000)
    monkeypatch.setattr(commit_log.CommitLog, "space", lambda _log: space)
    replica.process.upkeep.look(now_seconds=0.0, local_hour=0)
    answer = await lab.client.send(replica, b"refused")
    assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert "disk is full [CL: 0.95]" in (answer.remark or "")
    assert await lab.client.bodies(replica) == [b"kept"]
    space = DiskSpace(50.0, 1000)
    replica.process.upkeep.look(now_seconds=0.0, local_hour=0)
    await lab.client.store(replica, b"goes on")


async def test_no_space_left_anywhere_ends_nothing(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Appends, a new topic, offsets, the checkpoint, a role change: refused or tried again, and the process lives."""
    old, new = await lab.pair()
    await lab.client.store(old, b"kept")
    real = {name: getattr(disk, name) for name in ("write_at", "set_size", "create_file")}

    def full(*_arguments: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    for name in real:
        monkeypatch.setattr(disk, name, full)
    monkeypatch.setattr(disk, "empty_file", full)
    assert (await lab.client.send(old, b"refused")).code == ResponseCode.SERVICE_NOT_AVAILABLE
    answer = await lab.client.send(old, b"refused", topic="New")
    assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert "No space" in (answer.remark or "")
    old.process.pulls._offsets.put("G", "Topic", 0, 1)
    await old.process.save_loop._save_if_there_is_room()
    await lab.controller.elect(new.broker_id, new.broker_id)
    assert new.role == "FENCED", "an epoch that cannot be written down is no epoch"
    monkeypatch.undo()
    await lab.controller.notify(new.broker_id)
    assert new.role == "MASTER"
    await lab.rejoin(old)
    await lab.client.store(new, b"goes on")
    assert await lab.client.bodies(new) == [b"kept", b"goes on"]
    assert old.log == new.log
    content = old.process.pulls._offsets.take_changes()
    assert content is None or b'"Topic@G"' in content.content
    assert not any(replica.task.done() for replica in (old, new))


def full_after(written_bytes: int) -> Callable[[int, bytes, int], None]:
    """Stands in for ``disk.write_at`` of a disk that takes only the first bytes of a write."""

    def write_at(descriptor: int, data: bytes, position: int) -> None:
        os.pwrite(descriptor, memoryview(data)[:written_bytes], position)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    return write_at


def test_what_a_failed_write_left_is_not_found_again_behind_the_next_record(
    tmp_path: Path, stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Part of a refused batch is on the disk: whole records, at the offsets where the next messages of that size end."""
    store = stores.open()
    size = put(store, b"first")
    batch = [message(b"no %d!" % number) for number in range(4)]
    with monkeypatch.context() as patch:
        patch.setattr(disk, "write_at", full_after(3 * size + 10))
        with pytest.raises(OSError, match="No space"):
            store.put_all(batch, store_timestamp_ms=2)
    assert put(store, b"again") == 2 * size
    shutil.copytree(tmp_path, crashed := tmp_path.parent / f"{tmp_path.name}-killed")
    found = open_store(crashed)
    try:
        assert found.max_offset == 2 * size, "a slave has other bytes there, or may get them from the next master"
        assert log_of(found) == log_of(store)
    finally:
        found.close()


def test_what_a_failed_write_left_in_the_next_file_is_not_found_again(
    tmp_path: Path, stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slave's write of several files fails in the second one; then this replica is the master, and writes other bytes."""
    master, slave = stores.open("m"), stores.open("s")
    while master.log.space_left_in_file() > 1200:
        put(master, b"x" * 300)
    slave.append_replicated(0, log_of(master))
    begin = slave.max_offset
    for _ in range(6):
        put(master, b"x" * 300)
    real = disk.write_at
    writes = iter((real, full_after(1000)))

    def write_at(descriptor: int, data: bytes, position: int) -> None:
        next(writes)(descriptor, data, position)

    with monkeypatch.context() as patch:
        patch.setattr(disk, "write_at", write_at)
        with pytest.raises(OSError, match="No space"):
            slave.append_replicated(begin, log_of(master, begin))
    assert slave.max_offset == begin
    while slave.max_offset < FILE_BYTES:
        put(slave, b"y" * 300)
    shutil.copytree(tmp_path / "s", tmp_path / "killed")
    found = stores.open("killed")
    assert log_of(found) == log_of(slave)


@pytest.mark.parametrize(("failing", "at_call"), [("create_file", 0), ("write_at", 1)])
def test_a_master_whose_write_failed_at_the_end_of_a_file_can_follow_the_next_master(
    stores: Stores, monkeypatch: pytest.MonkeyPatch, failing: str, at_call: int
) -> None:
    """The blank at the end of the file is there, and the message that was to follow it is not."""
    old, new = stores.open("old"), stores.open("new")
    old.begin_epoch(1)
    while old.log.space_left_in_file() > 400:
        put(old, b"x" * 200)
    real, calls = getattr(disk, failing), itertools.count()

    def fail(*arguments: object) -> object:
        if next(calls) == at_call:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(disk, failing, fail)
        with pytest.raises(OSError, match="No space"):
            put(old, b"x" * 400)
    assert old.max_offset == FILE_BYTES
    linked(old, new)
    assert new.max_offset == FILE_BYTES
    new.begin_epoch(2)
    put(new, b"y" * 200)
    linked(new, old)
    assert log_of(old) == log_of(new)


def test_a_new_file_that_could_not_be_removed_again_is_made_again(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk fails between the creation of the file and its size, and while the file is removed; then it works again."""
    store = stores.open()

    def fail(*_arguments: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    with monkeypatch.context() as patch:
        patch.setattr(disk, "set_size", fail)
        patch.setattr(disk, "unlink", fail)
        with pytest.raises(OSError, match="Read-only"):
            put(store, b"refused")
    put(store, b"goes on")
    store = stores.reopen()
    assert store.queues.end("T", 0) == 1


async def test_what_a_linked_slave_or_an_absent_member_may_need_stays(lab: Lab) -> None:
    master, slave = await lab.pair(mappedFileSizeCommitLog=4096)
    await lab.client.store(master, *[b"x" * 500] * 30)
    end = master.process.store.max_offset
    assert master.process.upkeep.barrier_offset() == end
    term = master.term
    link = term.sync_state.links[slave.broker_id]
    link.ack_offset = 5000
    assert master.process.upkeep.barrier_offset() == 5000
    link.ack_offset = -1
    assert master.process.upkeep.barrier_offset() == 0
    del term.sync_state.links[slave.broker_id]
    assert master.process.upkeep.barrier_offset() == 0, "it may come back from anywhere"
    term.sync_state.links[slave.broker_id] = link
    link.ack_offset = end
    await lab.client.ask(master, 25, body=b"fileReservedTime=1")
    for replica in (master, slave):
        replica.process.broker.retention = RetentionPolicy(max_bytes=8192)
        await eventually(lambda: replica.process.upkeep.barrier_offset() >= end)  # noqa: B023 - awaited here
        replica.process.upkeep.look(now_seconds=0.0, local_hour=0)
        assert replica.process.store.log.min_offset == end - end % 4096 - 4096
    await lab.client.store(master, b"goes on")
    answer = await lab.client.pull(master, 0)
    assert answer.code == ResponseCode.PULL_OFFSET_MOVED
    queue = master.process.store.queues.queue("Topic", 0)
    assert int((answer.ext_fields or {})["nextBeginOffset"]) == queue.min_offset > 0


@pytest.mark.parametrize("folder", ["", "commitlog"])
def test_part_of_a_backup_is_not_started_on(stores: Stores, folder: str) -> None:
    filled(stores, "restored")
    stores.close("restored")
    mark = stores.root / "restored" / folder / UNFINISHED
    mark.touch()
    before = sorted((stores.root / "restored").rglob("*"))
    with pytest.raises(disk.StoreFileError, match="a backup was copied here only in part"):
        stores.open("restored")
    assert sorted((stores.root / "restored").rglob("*")) == before
    mark.unlink()
    assert stores.open("restored").max_offset > 0


def test_a_lock_that_a_restore_holds_is_not_taken(stores: Stores) -> None:
    """Until a restore is whole, `lock` is a folder: brokers of any command and version fail to open it."""
    (stores.root / "restored" / "lock").mkdir(parents=True)
    with pytest.raises(disk.StoreFileError, match="lock: "):
        stores.open("restored")
