"""What the replica calls durable is on the disk, also if an fsync fails, is late or overtaken; also in drawn lives.

The disk is made faulty where the operating system is called (``os.fsync``, ``os.fdatasync``), never in the code under test.
"""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from typing import TYPE_CHECKING

import pytest

from rocketmq_replica.broker import now
from rocketmq_replica.log import disk
from rocketmq_replica.log.disk import StoreFileError
from rocketmq_replica.log.log_flusher import Flush, LogFlusher
from rocketmq_replica.role_change import GroupInfo
from rocketmq_replica.upkeep import SaveLoop
from tests.replica.faulty_lives import live
from tests.replica.stores import damage, log_of, open_store
from tests.replica.test_crash_safety import FILE_BYTES, Replica

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


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
    store = open_store(tmp_path, FILE_BYTES)
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
        open_store(tmp_path, FILE_BYTES)
    assert str(path) in str(refused.value)
    assert path.read_bytes() == damaged, "the file is kept as it was found"
    path.write_bytes(whole)
    store = open_store(tmp_path, FILE_BYTES)  # repaired
    assert store.max_offset == ends[3]
    store.close()


def test_damage_above_what_was_confirmed_is_cut(tmp_path: Path) -> None:
    replica, ends = master(tmp_path, 4)
    replica.store.confirm_offset = ends[1]
    replica.store.close()
    damage(tmp_path / "commitlog" / f"{0:020d}", ends[2] + 90)
    store = open_store(tmp_path, FILE_BYTES)
    assert (store.max_offset, store.confirm_offset) == (ends[2], ends[1])
    store.close()


def test_a_truncation_below_what_was_confirmed_is_no_damage(tmp_path: Path) -> None:
    replica, ends = master(tmp_path, 4)
    replica.store.confirm_offset = ends[3]
    replica.store.save_checkpoint()
    replica.store.truncate(ends[1])
    replica.store.abandon()  # no checkpoint is saved at this end
    store = open_store(tmp_path, FILE_BYTES)
    assert (store.max_offset, log_of(store)[ends[1] :]) == (ends[1], b"")
    assert ends[3] < FILE_BYTES
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
