"""The log on disk: files, blanks, real truncation, recovery from every torn tail; what is called durable is there.

The disk is made faulty where the operating system is called (``os.fsync``, ``os.fdatasync``), never in the code under test.
"""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
import random
import shutil
import threading
from typing import TYPE_CHECKING

import pytest

from rocketmq_remoting.message_record import BLANK_MAGIC
from rocketmq_replica.broker import now
from rocketmq_replica.log import disk
from rocketmq_replica.log.commit_log import CommitLog
from rocketmq_replica.log.disk import StoreFileError
from rocketmq_replica.log.log_flusher import Flush, LogFlusher
from rocketmq_replica.role_change import GroupInfo
from rocketmq_replica.upkeep import SaveLoop
from tests.replica.faulty_lives import live
from tests.replica.stores import FILE_BYTES, damage, log_of, open_store, put
from tests.replica.test_crash_safety import FILE_BYTES as LIFE_FILE_BYTES
from tests.replica.test_crash_safety import Replica

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from rocketmq_replica.log.message_store import MessageStore
    from tests.replica.stores import Stores


def test_records_never_cross_a_file_and_the_rest_is_a_blank(tmp_path: Path, stores: Stores) -> None:
    store = stores.open()
    ends = [put(store, b"x" * 300) for _ in range(40)]
    assert max(ends) > 3 * FILE_BYTES
    data = log_of(store)
    blanks = data.count(BLANK_MAGIC.to_bytes(4, "big", signed=True))
    assert blanks == max(ends) // FILE_BYTES
    for first, second in itertools.pairwise(ends):
        start = second - (ends[1] - ends[0])
        assert start in (first, first + FILE_BYTES - first % FILE_BYTES)
    assert sorted(path.name for path in (tmp_path / "commitlog").iterdir()) == [
        f"{number * FILE_BYTES:020d}" for number in range(max(ends) // FILE_BYTES + 1)
    ]
    assert {path.stat().st_size for path in (tmp_path / "commitlog").iterdir()} == {FILE_BYTES}


def test_what_was_closed_is_read_again(stores: Stores) -> None:
    """Also what was never confirmed: no number is given twice (upstream #7689)."""
    store = stores.open()
    for number in range(40):
        put(store, b"x" * number * 10, queue_id=number % 3)
    data, end = log_of(store), store.max_offset
    store = stores.reopen()
    assert (store.recovery.end_offset, store.recovery.reason) == (end, "")
    assert log_of(store) == data
    assert [store.queues.queue("T", queue_id).next_offset for queue_id in range(3)] == [14, 13, 13]


@pytest.mark.parametrize("properties", [b"", b"k\x01v\x02"])
@pytest.mark.parametrize("body", [b"", b"hello", bytes(10)])
def test_a_tail_torn_at_any_byte_is_cut_to_the_whole_records_before_it(
    tmp_path: Path, stores: Stores, properties: bytes, body: bytes
) -> None:
    store = stores.open()
    keep = put(store, b"keep")
    end = put(store, body, properties=properties)
    stores.close()
    path = tmp_path / "commitlog" / f"{0:020d}"
    whole = path.read_bytes()
    trailing_zeros = len(whole[keep:end]) - len(whole[keep:end].rstrip(b"\0"))
    for torn_at in range(keep, end - trailing_zeros):
        path.write_bytes(whole[:torn_at].ljust(FILE_BYTES, b"\0"))
        store = stores.open()
        assert store.recovery.end_offset == keep, f"torn at byte {torn_at - keep} of {end - keep}"
        assert bool(store.recovery.reason) == (torn_at - keep > 3), "a begun record is reported"
        assert store.queues.queue("T", 0).next_offset == 1
        stores.close()
        assert path.read_bytes() == whole[:keep].ljust(FILE_BYTES, b"\0"), "what was cut is gone from the disk"


def test_garbage_in_the_middle_cuts_there_and_drops_later_files(tmp_path: Path, stores: Stores) -> None:
    store = stores.open()
    ends = [put(store, b"x" * 300) for _ in range(40)]
    stores.close()
    path = tmp_path / "commitlog" / f"{0:020d}"
    damage(path, ends[1] + 90)
    shutil.rmtree(tmp_path / "indexed")  # with it only the last file would be read
    store = stores.open()
    assert store.recovery.end_offset == ends[1]
    assert "CRC" in store.recovery.reason
    assert [each.name for each in (tmp_path / "commitlog").iterdir()] == [f"{0:020d}"]
    put(store, b"goes on")


def test_truncation_zeroes_the_disk(tmp_path: Path, stores: Stores) -> None:
    """Upstream #10666: else the cut bytes come back after a crash."""
    store = stores.open()
    ends = [put(store, b"x" * 300) for _ in range(40)]
    before = log_of(store)
    store.truncate(ends[2])
    assert store.max_offset == ends[2]
    path = tmp_path / "commitlog" / f"{0:020d}"
    assert path.read_bytes() == before[: ends[2]].ljust(FILE_BYTES, b"\0")
    assert [each.name for each in (tmp_path / "commitlog").iterdir()] == [path.name]
    assert store.queues.queue("T", 0).next_offset == 3
    again = [put(store, b"x" * 300) for _ in range(37)]
    assert again == ends[3:]
    assert log_of(store) == before


def test_truncation_to_nothing_forgets_the_epochs_too(tmp_path: Path, stores: Stores) -> None:
    store = stores.open()
    store.begin_epoch(1)
    put(store, b"a")
    store.begin_epoch(2)
    store.truncate(0)
    store.forget_epochs_after(0)
    assert not (tmp_path / "epochFileCheckpoint").exists()
    assert store.epochs.entries == ()
    store = stores.reopen()
    assert (store.max_offset, store.epochs.entries) == (0, ())


def test_a_new_master_cuts_the_half_record_at_its_end(stores: Stores) -> None:
    master = stores.open("m")
    first = put(master, b"first")
    put(master, b"second")
    data = log_of(master)
    slave = stores.open("s")
    slave.append_replicated(0, data[:-3])
    slave.confirm_offset = first
    assert slave.cut_to_whole_record() == first
    assert slave.max_offset == first
    slave.begin_epoch(7)
    put(slave, b"other")
    slave = stores.reopen("s")
    assert slave.queues.queue("T", 0).next_offset == 2
    assert slave.recovery.reason == ""
    assert slave.epochs.entries[0].start_offset == first


def test_bad_bytes_from_a_master_are_not_written(stores: Stores) -> None:
    master = stores.open("m")
    put(master, b"first")
    data = bytearray(log_of(master))
    data[90] ^= 1
    slave = stores.open("s")
    with pytest.raises(ValueError, match="CRC"):
        slave.append_replicated(0, bytes(data))
    assert slave.max_offset == 0
    slave.append_replicated(0, log_of(master))
    assert slave.max_offset == master.max_offset


def test_a_full_disk_keeps_what_is_there_and_goes_on_when_there_is_room(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    master, slave = stores.open("m"), stores.open("s")
    put(master, b"first")
    half = master.max_offset // 2
    data = log_of(master)
    slave.append_replicated(0, data[:half])
    room = [True]
    pwrite = os.pwrite

    def sometimes_full(descriptor: int, content: bytes, position: int) -> int:
        if not room[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        return pwrite(descriptor, content, position)

    monkeypatch.setattr(os, "pwrite", sometimes_full)
    room[0] = False
    with pytest.raises(OSError, match="No space"):
        slave.append_replicated(half, data[half:])
    with pytest.raises(OSError, match="No space"):
        put(master, b"second")
    assert (slave.max_offset, master.max_offset) == (half, len(data))
    room[0] = True
    slave.append_replicated(half, data[half:])
    put(master, b"second")
    slave.append_replicated(len(data), log_of(master)[len(data) :])
    assert log_of(slave) == log_of(master)
    assert slave.queues.queue("T", 0).next_offset == master.queues.queue("T", 0).next_offset == 2


def test_an_empty_slave_may_begin_at_a_later_file(stores: Stores) -> None:
    master = stores.open("m")
    while master.max_offset < 2 * FILE_BYTES:
        put(master, b"x" * 200)
    put(master, b"last")
    slave = stores.open("s")
    slave.append_replicated(2 * FILE_BYTES, master.log.read(2 * FILE_BYTES, FILE_BYTES))
    assert (slave.log.min_offset, slave.max_offset) == (2 * FILE_BYTES, master.max_offset)
    slave = stores.reopen("s")
    assert (slave.log.min_offset, slave.max_offset) == (2 * FILE_BYTES, master.max_offset)
    stores.close("s")
    other = stores.open("t")
    with pytest.raises(StoreFileError, match="no multiple of mappedFileSizeCommitLog"):
        other.append_replicated(100, b"x")


def test_files_of_another_size_are_refused(stores: Stores) -> None:
    store = stores.open()
    put(store, b"a")
    stores.close()
    with pytest.raises(StoreFileError, match=r"has 4096 bytes, mappedFileSizeCommitLog says 8192"):
        stores.open(file_size_bytes=8192)


def test_consumers_see_nothing_above_the_confirm_offset(stores: Stores) -> None:
    store = stores.open()
    ends = [put(store, b"x") for _ in range(5)]
    queue = store.queues.queue("T", 0)
    for confirmed, visible in ((0, 0), (ends[0] - 1, 0), (ends[0], 1), (ends[3] + 5, 4), (ends[4], 5)):
        store.confirm_offset = confirmed
        assert queue.visible_end(store.confirm_offset) == visible


def test_the_confirm_offset_survives_and_is_clamped_to_the_log(stores: Stores) -> None:
    store = stores.open()
    ends = [put(store, b"x") for _ in range(3)]
    store.confirm_offset = ends[1]
    store = stores.reopen()
    assert store.confirm_offset == ends[1]
    store.confirm_offset = ends[2]
    store.save_checkpoint()
    store.truncate(ends[0])
    assert store.confirm_offset == ends[0]


def test_what_was_once_confirmed_is_known_after_any_restart(tmp_path: Path, stores: Stores) -> None:
    """A log of which nothing was ever confirmed may be cut to nothing for a master without common history; this one may not."""
    store = stores.open()
    end = put(store, b"x")
    assert store.never_confirmed
    store.confirm_offset = end
    assert not open_copy(tmp_path, tmp_path.parent / f"{tmp_path.name}-killed").never_confirmed
    store = stores.reopen()
    assert not store.never_confirmed


def open_copy(root: Path, copy: Path) -> MessageStore:
    """What a process finds that starts where another one was killed."""
    shutil.copytree(root, copy)
    store = open_store(copy)
    store.close()
    return store


def test_a_record_boundary_is_recognised(stores: Stores) -> None:
    store = stores.open()
    ends = [put(store, b"x" * 300) for _ in range(12)]
    for boundary in (0, *ends):
        assert store.is_record_boundary(boundary)
    for other in (1, ends[0] - 1, ends[0] + 1, ends[-1] + 1):
        assert not store.is_record_boundary(other)


def test_what_is_sent_to_slaves_is_what_was_written_whatever_is_cut_or_filled(tmp_path: Path) -> None:
    """``read_to_send`` answers from memory and has to agree with the file at every place, after every kind of change."""
    draw = random.Random(7)
    log = CommitLog(tmp_path, file_size_bytes=4096)
    log.recover(lambda _offset, _entry: None)
    for _ in range(300):
        match draw.choice(["append", "append", "append", "big", "fill", "cut"]):
            case "append":
                log.append(draw.randbytes(draw.randint(1, 200)))
            case "big":
                log.append(draw.randbytes(draw.randint(3000, 9000)))
            case "fill" if log.space_left_in_file() >= 8:
                log.fill_file()
            case "cut":
                log.truncate(draw.randint(max(log.max_offset - 500, 0), log.max_offset))
        for offset in (draw.randint(0, log.max_offset), max(log.max_offset - draw.randint(0, 300), 0)):
            limit = draw.randint(1, 5000)
            assert log.read_to_send(offset, limit) == log.read(offset, limit), offset
    log.close()


SELF = 7
EIO = OSError(errno.EIO, "Input/output error")


class Syncs:
    """Stands in for fsync and fdatasync: each can fail once, or wait until the test lets it through."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.failures = 0
        self.gate: threading.Event | None = None
        self.reached = threading.Event()
        for name in ("fsync", "fdatasync"):
            monkeypatch.setattr(os, name, self._wrapped(getattr(os, name)))

    def _wrapped(self, real: Callable[[int], None]) -> Callable[[int], None]:
        def sync(descriptor: int) -> None:
            gate = self.gate
            if gate is not None and threading.current_thread() is not threading.main_thread():
                self.reached.set()
                assert gate.wait(20)
            if self.failures:
                self.failures -= 1
                raise EIO
            real(descriptor)

        return sync


def master(folder: Path, messages: int = 1) -> tuple[Replica, list[int]]:
    """A master of epoch 1, and where the log ended after each of its messages."""
    replica, ends = Replica(folder), []
    replica.broker.broker_id = SELF
    replica.role(SELF, 1)
    for _ in range(messages):
        replica.put(1)
        ends.append(replica.store.max_offset)
    return replica, ends


@pytest.fixture
def syncs(monkeypatch: pytest.MonkeyPatch) -> Syncs:
    return Syncs(monkeypatch)


def test_a_failed_fsync_in_a_role_change_is_never_forgotten(tmp_path: Path, syncs: Syncs) -> None:
    replica, _ = master(tmp_path)
    syncs.failures = 1
    replica.roles.apply(GroupInfo(2, SELF, "127.0.0.1:10911", frozenset({SELF}), 2), now())
    durable = replica.store.log.flushed_offset
    assert durable < replica.store.max_offset
    with pytest.raises(OSError, match="Input/output error"):
        replica.store.flush()  # the kernel would say yes: it dropped the pages and thinks them clean
    assert replica.store.log.flushed_offset == durable
    replica.store.abandon()


def test_a_second_flush_waits_for_the_first_and_shares_its_failure(tmp_path: Path, syncs: Syncs) -> None:
    replica, _ = master(tmp_path)
    durable = replica.store.log.flushed_offset

    async def both() -> None:
        saves = SaveLoop(replica.broker, replica.offsets)
        syncs.gate = threading.Event()
        first = asyncio.create_task(saves.flush())
        await asyncio.to_thread(syncs.reached.wait, 20)
        assert replica.store.log.flushed_offset == durable
        syncs.failures = 1
        asyncio.get_running_loop().call_later(0.05, syncs.gate.set)
        second = asyncio.create_task(asyncio.to_thread(replica.store.flush))
        results = await asyncio.gather(first, second, return_exceptions=True)
        assert all(isinstance(result, OSError) for result in results), results

    asyncio.run(both())
    assert replica.store.log.flushed_offset == durable
    replica.store.abandon()


def test_a_flush_that_a_truncation_overtook_says_nothing_of_the_new_bytes(tmp_path: Path, syncs: Syncs) -> None:
    replica, [*_, end] = master(tmp_path, 4)

    async def overtaken() -> None:
        saves = SaveLoop(replica.broker, replica.offsets)
        syncs.gate = threading.Event()
        flush = asyncio.create_task(saves.flush())
        await asyncio.to_thread(syncs.reached.wait, 20)
        syncs.gate.set()
        syncs.reached.clear()
        replica.store.truncate(0)
        for _ in range(4):
            replica.put(1)
        await flush

    asyncio.run(overtaken())
    assert replica.store.max_offset == end
    assert replica.store.log.flushed_offset == 0
    replica.store.flush()
    assert replica.store.log.flushed_offset == end
    replica.store.close()


def test_two_savers_of_the_checkpoint_do_not_meet(tmp_path: Path, syncs: Syncs) -> None:
    replica, _ = master(tmp_path)
    store = replica.store
    store.flush()

    async def both() -> None:
        syncs.gate = threading.Event()
        first = asyncio.create_task(asyncio.to_thread(store.save_checkpoint))
        await asyncio.to_thread(syncs.reached.wait, 20)
        store.confirm_offset = store.max_offset  # the first confirmation of a life saves, here and now
        second = asyncio.create_task(asyncio.to_thread(store.save_checkpoint))
        await asyncio.sleep(0.05)
        syncs.gate.set()
        assert list(await asyncio.gather(first, second, return_exceptions=True)) == [None, None]

    asyncio.run(both())
    end = store.max_offset
    store.abandon()
    store = open_store(tmp_path, LIFE_FILE_BYTES)
    assert store.confirm_offset == end, "the older content did not replace the newer one"
    store.close()


def test_damage_below_what_was_confirmed_and_durable_stops_the_start_and_changes_nothing(tmp_path: Path) -> None:
    replica, ends = master(tmp_path, 4)
    replica.store.confirm_offset = ends[2]
    replica.store.close()
    path = tmp_path / "commitlog" / f"{0:020d}"
    whole = path.read_bytes()
    damage(path, ends[0] + 90)
    damaged = path.read_bytes()
    with pytest.raises(StoreFileError, match=rf"offset {ends[0]}.*below {ends[2]}.*confirmed") as refused:
        open_store(tmp_path, LIFE_FILE_BYTES)
    assert str(path) in str(refused.value)
    assert path.read_bytes() == damaged, "the file is kept as it was found"
    path.write_bytes(whole)
    store = open_store(tmp_path, LIFE_FILE_BYTES)  # repaired
    assert store.max_offset == ends[3]
    store.close()


def test_damage_above_what_was_confirmed_is_cut(tmp_path: Path) -> None:
    replica, ends = master(tmp_path, 4)
    replica.store.confirm_offset = ends[1]
    replica.store.close()
    damage(tmp_path / "commitlog" / f"{0:020d}", ends[2] + 90)
    store = open_store(tmp_path, LIFE_FILE_BYTES)
    assert (store.max_offset, store.confirm_offset) == (ends[2], ends[1])
    store.close()


def test_a_truncation_below_what_was_confirmed_is_no_damage(tmp_path: Path) -> None:
    replica, ends = master(tmp_path, 4)
    replica.store.confirm_offset = ends[3]
    replica.store.save_checkpoint()
    replica.store.truncate(ends[1])
    replica.store.abandon()  # no checkpoint is saved at this end
    store = open_store(tmp_path, LIFE_FILE_BYTES)
    assert (store.max_offset, log_of(store)[ends[1] :]) == (ends[1], b"")
    assert ends[3] < LIFE_FILE_BYTES
    store.close()


LIVES = 200


def test_what_was_promised_is_there_after_every_life(tmp_path: Path) -> None:
    lives = [live(seed, tmp_path / "life") for seed in range(LIVES)]
    assert sum(life.acknowledged for life in lives) > LIVES
    assert sum(life.faults for life in lives) > LIVES / 2


def _finishes_whatever_was_cut(self: LogFlusher, flush: Flush) -> None:
    self.durable_offset = max(self.durable_offset, flush.end_offset)
    self._dirty.clear()


def _forgets_failures(self: LogFlusher, flush: Flush) -> None:
    for descriptor in flush.descriptors:
        try:
            disk.sync_data(descriptor)
        except OSError:
            self._dirty.clear()


@pytest.mark.parametrize(
    ("name", "wrong"), [("finish", _finishes_whatever_was_cut), ("run", _forgets_failures)], ids=["cut", "failed"]
)
def test_a_flusher_that_promises_too_much_is_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, wrong: object
) -> None:
    monkeypatch.setattr(LogFlusher, name, wrong)
    with pytest.raises(AssertionError, match="--seed"):
        [live(seed, tmp_path / "life") for seed in range(LIVES)]
