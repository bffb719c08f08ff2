"""Lives of a replica on a disk that fails, drawn from a seed: writes fail or are torn, fsyncs fail, and the power goes anywhere.

    make faulty-lives                                                 # 10,000; prints the first bad seed as a command, exit 1
    python -m tests.replica.faulty_lives --lives 1 --seed 4711        # one of them again

A life is a row of processes on one disk. Each is master or slave, stores, flushes (a flush is begun, run and finished in three
steps with others between them), is truncated by another master, saves checkpoints, and ends: killed, or by a power cut between
any two operations on the disk. A failed fsync drops what it should have written, and the next one succeeds, as on Linux. Two things
are judged:

* When an offset is promised (a send is acknowledged under SYNC_FLUSH, a slave acknowledges) the bytes below it are durable *then*.
* After the last end a process on a good disk starts, and its log begins with everything that was promised.

Another master that takes over holds what was promised and may lack or differ in the rest, as an election guarantees.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import json
import logging
import os
import random
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from rocketmq_replica.broker import now
from rocketmq_replica.ha.frames import HaFrameError
from rocketmq_replica.log.disk import StoreFileError
from rocketmq_replica.log.epochs import DivergedLogError
from rocketmq_replica.master_term import Outcome
from rocketmq_replica.role_change import GroupInfo
from tests.replica.crashing_disk import Data, DiskModel, Operation, Recorder, materialize
from tests.replica.stores import handshake, log_of
from tests.replica.test_crash_safety import (
    ROOT,
    OtherMaster,
    Replica,
    boundaries,
    boundary_at_or_below,
    index_all,
    message,
)

if TYPE_CHECKING:
    from rocketmq_replica.ha.links import SlaveLink
    from rocketmq_replica.log.log_flusher import Flush

SELF, OTHER = 7, 8
_STEPS = 40


class PowerCutError(BaseException):
    """The machine is off. Nothing of the product may catch it."""


class _Journal(list[Operation]):
    """Applies what is written down at once."""

    def __init__(self, model: DiskModel) -> None:
        super().__init__()
        self._model = model

    def append(self, operation: Operation) -> None:
        self._model.apply(operation)


class FaultyDisk(Recorder):
    """Each operation on a file of the replica may fail, and the power may go before any of them."""

    def __init__(
        self, root: Path, model: DiskModel, draw: random.Random, *, fault_rate: float, cut_rate: float
    ) -> None:
        super().__init__(root, model)
        self.model = model
        self.journal = _Journal(model)
        self._draw = draw
        self._fault_rate = fault_rate
        self._cut_rate = cut_rate
        self.faults = 0

    def _is_ours(self, descriptor: int) -> bool:
        return os.fstat(descriptor).st_ino in self._files

    def _meet(self) -> bool:
        """The power may go now; whether this operation is to fail."""
        if self._draw.random() < self._cut_rate:
            raise PowerCutError
        fails = self._draw.random() < self._fault_rate
        self.faults += fails
        return fails

    def _fail(self) -> OSError:
        number = self._draw.choice((errno.EIO, errno.EIO, errno.ENOSPC))
        return OSError(number, os.strerror(number))

    def create_file(self, path: Path) -> int:
        if path.is_relative_to(self.root) and self._meet():
            raise self._fail()
        return super().create_file(path)

    def write_at(self, descriptor: int, data: bytes | memoryview, position: int) -> None:
        if self._is_ours(descriptor) and self._meet():
            super().write_at(descriptor, memoryview(data)[: self._draw.randrange(len(data) + 1)], position)
            raise self._fail()
        super().write_at(descriptor, data, position)

    def set_size(self, descriptor: int, size_bytes: int) -> None:
        if self._is_ours(descriptor) and self._meet():
            raise self._fail()
        super().set_size(descriptor, size_bytes)

    def _sync(self, kind: str, descriptor: int) -> None:
        if self._is_ours(descriptor) and self._meet():
            file = self._files[os.fstat(descriptor).st_ino]
            for operation in [each for each in self.model.pending if isinstance(each, Data) and each.file == file]:
                if self._draw.random() < 0.5:
                    self.model._persist([operation])
                else:
                    self.model.pending.remove(operation)  # it looks clean, and never reaches the disk
            raise self._fail()
        super()._sync(kind, descriptor)

    def rename(self, old: Path, new: Path) -> None:
        if self._meet():
            raise self._fail()
        super().rename(old, new)

    def unlink(self, path: Path) -> None:
        if path.is_relative_to(self.root) and self._meet():
            raise self._fail()
        super().unlink(path)

    def sync_folder(self, folder: Path) -> None:
        if folder.is_relative_to(self.root) and self._meet():
            raise self._fail()
        super().sync_folder(folder)

    def durable_log(self) -> bytes:
        """What stands in the log if the power goes now and takes everything that was not synced."""
        image = self.model.image([])
        files = sorted((name, content) for name, content in image.items() if "/commitlog/" in name)
        return b"".join(content or b"" for _, content in files)

    def after_power_cut(self) -> DiskModel:
        """Some of what was pending is there, the last write perhaps in part."""
        kept = [each for each in self.model.pending if self._draw.random() < 0.5]
        if kept and isinstance(kept[-1], Data) and kept[-1].content:
            last = kept.pop()
            assert isinstance(last, Data)
            assert last.content is not None
            kept.append(Data(last.file, last.position, last.content[: self._draw.randrange(len(last.content) + 1)]))
        return DiskModel.of(self.model.image(kept))


class Life:
    """One seed."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.draw = random.Random(seed)
        self.folder = folder
        self.root = folder / "disk"
        self.epoch = 0
        self.promised = b""
        self.acknowledged = self.faults = self.ends = 0
        self.others = 0
        self.story: list[str] = []

    def run(self) -> None:
        """AssertionError says what was promised and is not there."""
        model = DiskModel()
        materialize({}, self.root)
        for _ in range(self.draw.randint(1, 3)):
            disk = FaultyDisk(
                self.root, model, self.draw, fault_rate=self.draw.choice((0.0, 0.02, 0.1)),
                cut_rate=self.draw.choice((0.0, 0.003, 0.02)),
            )  # fmt: skip
            model = self._process(disk)
            self.faults += disk.faults
            self.ends += 1
            materialize(model.image(model.pending), self.root)
        self._judge(FaultyDisk(self.root, model, self.draw, fault_rate=0.0, cut_rate=0.0))

    def _process(self, disk: FaultyDisk) -> DiskModel:
        """One process from its start to its end; the disk it leaves."""
        with pytest.MonkeyPatch.context() as patch:
            disk.install(patch)
            process: _Process | None = None
            power_cut = False
            try:
                process = _Process(self, disk)
                process.term()
                for _ in range(_STEPS):
                    process.step()
            except PowerCutError:
                power_cut = True
            except (OSError, StoreFileError, HaFrameError) as error:
                if not disk.faults:
                    raise AssertionError(f"without a fault: {error!r}") from error
                self.story.append(f"ended by {error!r}")
            if process is not None:
                process.abandon()
        if power_cut or self.draw.random() < 0.5:
            self.story.append("POWER CUT")
            return disk.after_power_cut()
        self.story.append("KILLED")
        return disk.model

    def _judge(self, disk: FaultyDisk) -> None:
        with pytest.MonkeyPatch.context() as patch:
            disk.install(patch)
            replica = Replica(self.root / ROOT)
            log = log_of(replica.store)
            epochs = replica.store.epochs.entries
            replica.store.abandon()
        assert log.startswith(self.promised), f"{len(self.promised)} bytes were promised, the log has {len(log)}"
        assert boundaries(log)[-1] == len(log), "the log ends inside a record"
        assert all(entry.start_offset <= len(log) for entry in epochs), f"an epoch begins beyond the end: {epochs}"


class _Process:
    """One process: a replica, its flushes under way, and the link of a slave."""

    def __init__(self, life: Life, disk: FaultyDisk) -> None:
        self.life, self.disk, self.draw = life, disk, life.draw
        self.replica = Replica(life.root / ROOT)
        self.replica.broker.broker_id = SELF
        self.store = self.replica.store
        self.begun: list[Flush] = []
        self.ran: list[Flush] = []
        self.link: SlaveLink | None = None
        self.down = b""

    def step(self) -> None:
        steps = [self.put, self.put, self.begin, self.run, self.finish, self.settle] * 3
        steps += [self.flush, self.checkpoint, self.index, self.term, self.follow, self.feed, self.feed, self.feed]
        chosen = self.draw.choice(steps)
        self.life.story.append(chosen.__name__)
        chosen()
        if self.store.log.flusher.failed:
            self.store.flush()  # as the save loop does next: it ends the process
            raise AssertionError("a flush succeeded after one had failed")

    def put(self) -> None:
        term = self.replica.broker.term
        if term is None:
            return
        try:
            stored = self.store.put(message(self.life.epoch, self.draw.choice((0, 20, 200))), store_timestamp_ms=3)
        except OSError:
            return  # the producer gets an error
        end = stored.end_offset
        term.wait(lambda outcome: self._outcome(outcome, end), end_offset=end, deadline_seconds=float("inf"))

    def _outcome(self, outcome: Outcome, end_offset: int) -> None:
        if outcome is Outcome.STORED:
            self.life.acknowledged += 1
            self._promise(end_offset)

    def _promise(self, end_offset: int) -> None:
        log = log_of(self.store)
        promised = log[: boundary_at_or_below(log, min(end_offset, len(log)))]
        assert end_offset <= len(log), f"{end_offset} promised, the log ends at {len(log)}"
        assert self.disk.durable_log().startswith(promised), f"{end_offset} promised, not all of it is durable"
        if len(promised) > len(self.life.promised):
            self.life.promised = promised

    def begin(self) -> None:
        if len(self.begun) + len(self.ran) < 2:
            self.begun.append(self.store.log.flusher.begin(self.store.max_offset))

    def run(self) -> None:
        if self.begun:
            flush = self.begun.pop(0)
            self.store.log.flusher.run(flush)
            self.ran.append(flush)

    def finish(self) -> None:
        if self.ran:
            self.store.log.flusher.finish(self.ran.pop(0))

    def flush(self) -> None:
        self.store.flush()

    def settle(self) -> None:
        self.replica.broker.settle()
        if self.link is not None and (acknowledgement := self.link.flushed(now_seconds=0.0)):
            self._acknowledged(acknowledgement)

    def _acknowledged(self, acknowledgement: bytes) -> None:
        self._promise(int.from_bytes(acknowledgement[-8:], "big"))

    def checkpoint(self) -> None:
        with contextlib.suppress(OSError):
            self.store.save_checkpoint()

    def index(self) -> None:
        with contextlib.suppress(OSError):
            index_all(self.store)

    def term(self) -> None:
        self.life.epoch += 1
        self.link = None
        self.replica.roles.apply(GroupInfo(self.life.epoch, SELF, "h:1", frozenset({SELF}), self.life.epoch), now())

    def follow(self) -> None:
        """Another master was elected: it has what was promised, and goes on in its own way."""
        self.life.epoch += 1
        self.link = None
        taken = self.replica.roles.apply(
            GroupInfo(self.life.epoch, OTHER, "h:2", frozenset({OTHER}), self.life.epoch), now()
        )
        if taken:
            other = self._other_master()
            try:
                self._connect(other)
            except DivergedLogError:
                pass  # nothing in common can be shown: it says so, and cuts nothing
            finally:
                other.store.close()

    def _other_master(self) -> OtherMaster:
        self.life.others += 1
        log = log_of(self.store)
        least = len(self.life.promised)
        shared = self.draw.choice([each for each in boundaries(log) if each >= least])
        other = OtherMaster(self.life.folder / f"other-{self.life.others}")
        for entry in self.store.epochs.entries:
            if entry.start_offset <= shared:
                other.store.begin_epoch(entry.epoch)
                part = log[entry.start_offset : min(entry.end_offset, shared)]
                if part:
                    other.store.append_replicated(entry.start_offset, part)
        other.store.begin_epoch(self.life.epoch)
        other.put(self.life.epoch, self.draw.randint(0, 6))
        return other

    def _connect(self, other: OtherMaster) -> None:
        master, link, acknowledgement = handshake(other.store, self.store, broker_id=SELF, sync_flush=True)
        self._acknowledged(acknowledgement)
        master.receive(acknowledgement, now_seconds=0.0)
        confirm = self.draw.choice((0, other.store.max_offset))
        self.down = b"".join(master.frames(confirm_offset=confirm, now_seconds=0.0, limit_bytes=1 << 20))
        self.link = link

    def feed(self) -> None:
        if self.link is None or not self.down:
            return
        size = self.draw.choice((len(self.down), self.draw.randint(1, len(self.down))))
        part, self.down = self.down[:size], self.down[size:]
        try:
            acknowledgement = self.link.receive(part, now_seconds=0.0)
        except OSError:
            self.link = None  # the link is closed
            return
        if acknowledgement:
            self._acknowledged(acknowledgement)

    def abandon(self) -> None:
        for flush in self.begun:
            for descriptor in flush.descriptors:
                os.close(descriptor)
        self.store.abandon()


def live(seed: int, folder: Path) -> Life:
    """One life to its end; AssertionError with its story if it breaks a promise."""
    life = Life(seed, folder)
    try:
        life.run()
    except Exception as error:
        story = "\n  ".join(life.story)
        raise AssertionError(
            f"python -m tests.replica.faulty_lives --lives 1 --seed {seed}: {error!r}\n  {story}"
        ) from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return life


def main() -> int:
    """Many lives; one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lives", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0, help="the first")
    arguments = parser.parse_args()
    logging.disable()
    acknowledged = faults = processes = lives = 0
    with tempfile.TemporaryDirectory(prefix="faulty-lives-") as folder:
        for seed in range(arguments.seed, arguments.seed + arguments.lives):
            try:
                life = live(seed, Path(folder) / "life")
            except AssertionError as error:
                print(error, file=sys.stderr)
                print(json.dumps({"lives": lives + 1, "lost": 1, "seed": seed}))
                return 1
            lives += 1
            acknowledged, faults, processes = (
                acknowledged + life.acknowledged,
                faults + life.faults,
                processes + life.ends,
            )
    print(
        json.dumps({"lives": lives, "processes": processes, "acknowledged": acknowledged, "faults": faults, "lost": 0})
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
