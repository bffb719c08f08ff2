"""The life of a replica, cut off at every single operation it ever does to its disk, in every way the disk may be left.

The whole journal of a life is enumerated: for every prefix of it every image a power cut could leave (``crashing_disk.py``)
is started again, and so is every image that a second power cut during that start could leave. `make test` samples only the
bytes at which a write is torn. After each start:

* the replica has the id it was given, and applies for no second one;
* its log is a prefix of what it had written, ends at a record boundary, and holds everything that was flushed;
* every record lies in the epoch that wrote it, and no epoch begins beyond the end;
* it takes messages again, and nothing has to be cut at the next start.
"""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from rocketmq_remoting.message_record import EntryKind, MessageRecordError, decode_record, inspect_entry
from rocketmq_replica.broker import Broker, now
from rocketmq_replica.configuration import parse_configuration
from rocketmq_replica.controller.client import ControllerClient, ControllerError
from rocketmq_replica.controller.replicas_manager import IdentityFiles, ReplicasManager
from rocketmq_replica.controller.roles import Roles
from rocketmq_replica.log import commit_log
from rocketmq_replica.role_change import BrokerIdentity, GroupInfo
from rocketmq_replica.tables import ConsumerOffsets
from rocketmq_replica.topics import Topic, Topics
from tests.replica import stores
from tests.replica.crashing_disk import (
    DiskModel,
    Image,
    Operation,
    Recorder,
    SyncFile,
    SyncFolder,
    crashes,
    materialize,
    recording,
)
from tests.replica.stores import handshake, log_of, open_store
from tests.support.draws import WHOLE

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from rocketmq_replica.ha.client import HaClient
    from rocketmq_replica.ha.server import HaServer
    from rocketmq_replica.log.message_store import MessageStore, NewMessage

pytestmark = pytest.mark.timeout(600)

FILE_BYTES = 1024
ROOT = "data/store"  # two folders deep: the names of folders can be lost too


# HA links that are never dialled.
NO_LINKS = SimpleNamespace(linked=False, **dict.fromkeys(("follow", "leave", "close_links", "wake"), lambda *_: None))


@dataclass
class Grants:
    """The controller's side of an application for a broker id."""

    recorder: Recorder | None = None
    granted: dict[int, str] = field(default_factory=dict)
    granted_at: int = 1 << 60
    answers_lost: int = 1

    async def next_broker_id(self) -> int:
        return 7 + len(self.granted)

    async def apply_broker_id(self, identity: BrokerIdentity) -> None:
        if identity.broker_id not in self.granted:
            assert identity.broker_id == 7 + len(self.granted)
            self.granted[identity.broker_id] = identity.register_check_code
            if self.recorder is not None:
                self.granted_at = len(self.recorder.journal)
        assert self.granted[identity.broker_id] == identity.register_check_code
        if self.answers_lost:
            self.answers_lost -= 1
            raise ControllerError("the answer is lost")


@dataclass(frozen=True)
class Snapshot:
    """What a replica had at one moment."""

    log: bytes
    flushed_offset: int
    topics: frozenset[str]
    consumed: int


class Replica:
    """The parts of a replica that touch the disk, put together as ``process.py`` does, without sockets."""

    def __init__(self, root: Path) -> None:
        text = (
            f"brokerName=broker-a\ncontrollerAddr=127.0.0.1:1\nstorePathRootDir={root}\n"
            f"mappedFileSizeCommitLog={FILE_BYTES}\nflushDiskType=SYNC_FLUSH\n"
        )
        configuration = parse_configuration(text, {})
        self.identity = IdentityFiles(
            configuration.identity_file, cluster_name="DefaultCluster", broker_name="broker-a"
        )
        self.offsets = ConsumerOffsets(root / "config" / "consumerOffset.json")
        topics = Topics(root / "config" / "topics.json", system_topics=("broker-a",), queue_count=1, now_ms=1)
        self.store = open_store(root, FILE_BYTES)
        self.broker = Broker(configuration, self.store, topics)
        self.roles = Roles(
            self.broker,
            ha_server=cast("HaServer", NO_LINKS),
            ha_client=cast("HaClient", NO_LINKS),
            on_changed=lambda: None,
        )

    def take_identity(self, grants: Grants) -> None:
        manager = ReplicasManager(self.broker, self.roles, cast("ControllerClient", grants), self.identity)

        async def until_known() -> None:
            for _ in range(6):
                start = manager._begin()
                if start.identity is not None:
                    self.broker.broker_id = start.identity.broker_id
                    return
                with contextlib.suppress(ControllerError):
                    await manager._ask(start)
            raise AssertionError("no id")

        with pytest.raises(StopIteration):  # nothing in it waits, so it needs no loop
            until_known().send(None)

    def role(self, master_id: int, epoch: int) -> None:
        assert self.roles.apply(GroupInfo(epoch, master_id, "127.0.0.1:10911", frozenset({master_id}), epoch), now())

    def put(self, epoch: int, body_bytes: int = 20) -> None:
        """A message whose body names the epoch that wrote it."""
        self.broker.put_all([message(epoch, body_bytes)])

    def settle(self) -> None:
        self.broker.settle()

    def snapshot(self) -> Snapshot:
        return Snapshot(
            log_of(self.store),
            self.store.log.flushed_offset,
            frozenset(topic.name for topic in self.broker.topics.all()),
            self.offsets.get("G", "T", 0) or 0,
        )


def message(epoch: int, body_bytes: int = 20) -> NewMessage:
    return stores.message(epoch.to_bytes(4, "big") + b"x" * body_bytes)


class OtherMaster:
    """Another replica, on a disk of its own that loses nothing."""

    def __init__(self, root: Path) -> None:
        self.store = open_store(root, FILE_BYTES)

    def put(self, epoch: int, count: int) -> None:
        for _ in range(count):
            self.store.put(message(epoch, 60), store_timestamp_ms=3)

    def feed(self, slave: MessageStore, limit_bytes: int = 1 << 20) -> None:
        """One link from the handshake to the end of what there is, or a part of it: then in pieces that split records."""
        master, link, acknowledgement = handshake(self.store, slave, broker_id=7)
        master.receive(acknowledgement, now_seconds=0.0)
        down = b"".join(master.frames(confirm_offset=self.store.max_offset, now_seconds=0.0, limit_bytes=1 << 20))
        link.receive(down[:limit_bytes], now_seconds=0.0)


@dataclass
class Life:
    """A scripted life under the recorder: where each step began and ended in the journal, and what there was then."""

    root: Path
    recorder: Recorder
    grants: Grants = field(default_factory=Grants)
    steps: list[tuple[str, int, int, Snapshot, Snapshot]] = field(default_factory=list)
    now: Snapshot = field(default_factory=lambda: Snapshot(b"", 0, frozenset(), 0))

    def step(self, name: str, do: Callable[[], object], replica: Callable[[], Replica | None]) -> None:
        start = len(self.recorder.journal)
        do()
        there = replica()
        after = self.now if there is None else there.snapshot()
        self.steps.append((name, start, len(self.recorder.journal), self.now, after))
        self.now = after

    def expectation(self, point: int) -> tuple[str, Snapshot, Snapshot]:
        """The step that a crash at this point of the journal interrupts; between two steps: the first, done."""
        for name, start, end, before, after in self.steps:
            if start <= point < end:
                return name, before, after
            if point == end:
                return f"after {name}", after, after
        raise AssertionError(point)


def live(root: Path, elsewhere: Path, recorder: Recorder) -> Life:  # noqa: PLR0915 - a life is a list of steps
    """Start, register, append, replicate, change roles, truncate, forget everything, shut down."""
    life = Life(root, recorder)
    life.grants.recorder = recorder
    held: list[Replica] = []
    other = OtherMaster(elsewhere)

    def step(name: str, do: Callable[[], object]) -> None:
        life.step(name, do, lambda: held[-1] if held else None)

    def start() -> None:
        held.append(Replica(root / ROOT))

    def forget_all() -> None:
        store.truncate(0)
        store.forget_epochs_after(0)

    def shut_down() -> None:
        held.pop().store.close()

    step("start", start)
    replica = held[-1]
    store = replica.store
    step("register", lambda: replica.take_identity(life.grants))
    step("become master, epoch 1", lambda: replica.role(7, 1))
    step("create a topic", lambda: replica.broker.topics.put(Topic("T", 1, 1), now_ms=2))
    for number in range(3):
        step(f"put {number}", lambda: replica.put(1))
        step(f"flush {number}", store.flush)
        step(f"confirm {number}", replica.settle)
    other.store.begin_epoch(1)
    other.store.append_replicated(0, log_of(store))
    for number in range(8):  # into the second file, unflushed
        step(f"put unflushed {number}", lambda: replica.put(1, 60))
    step("flush into the second file", store.flush)
    step("index the first file", lambda: index_all(store))
    step("save consumer offsets", lambda: save_offset(replica, 3))
    step("save the checkpoint", store.save_checkpoint)
    other.store.begin_epoch(2)
    other.put(2, 4)
    step("become slave, epoch 2", lambda: replica.role(8, 2))
    step("truncate and replicate", lambda: other.feed(store))
    step("flush as slave", store.flush)
    other.put(2, 2)
    step("replicate half a record", lambda: other.feed(store, limit_bytes=36 + 150))
    step("become master, epoch 3", lambda: replica.role(7, 3))
    step("become master again, epoch 4", lambda: replica.role(7, 4))
    step("put in epoch 4", lambda: replica.put(4))
    step("flush in epoch 4", store.flush)
    step("truncate to nothing", forget_all)
    step("become slave, epoch 5", lambda: replica.role(8, 5))
    other.store.begin_epoch(5)
    other.put(5, 2)
    step("replicate from the beginning", lambda: other.feed(store))
    step("flush from the beginning", store.flush)
    step("shut down", shut_down)
    step("start again", start)
    step("shut down again", shut_down)
    other.store.close()
    return life


def index_all(store: MessageStore) -> None:
    while (to_index := store.next_to_index()) is not None:
        store.index.write(*to_index)


def save_offset(replica: Replica, offset: int) -> None:
    replica.offsets.put("G", "T", 0, offset)
    content = replica.offsets.take_changes()
    assert content is not None
    replica.offsets.write(content)


def boundaries(log: bytes) -> list[int]:
    """Where records and blanks end, from 0 on."""
    found, offset = [0], 0
    while offset < len(log):
        end = min(len(log), offset - offset % FILE_BYTES + FILE_BYTES)
        try:
            entry = inspect_entry(log, offset, end, physical_offset=offset)
        except MessageRecordError:
            break
        if offset + entry.size_bytes > len(log):
            break
        offset += entry.size_bytes
        found.append(offset)
    return found


def boundary_at_or_below(log: bytes, offset: int) -> int:
    return max(each for each in boundaries(log) if each <= offset)


@dataclass
class Judge:
    """Starts replicas on what crashes left, and compares."""

    life: Life
    folder: Path
    monkeypatch: pytest.MonkeyPatch
    skips: Callable[[str], bool] = lambda _sync: False
    seen: set[object] = field(default_factory=set)
    starts: int = 0

    def power_cuts(self, model: DiskModel, last: Operation | None, point: int, *, deeper: bool, floor: int = 0) -> None:
        """Every disk that losing the power now can leave is started; with ``deeper``, cut off during that start again."""
        _, before, after = self.life.expectation(point)
        granted = point >= self.life.grants.granted_at
        for what, image in model.images(last):
            again = deeper and not what.startswith("torn at")
            key = (frozenset(image.items()), before, after, granted, floor, deeper)
            if key not in self.seen:
                self.seen.add(key)
                self.start(DiskModel.of(image), image, point, what, deeper=again, floor=floor)

    def kill(self, model: DiskModel, point: int) -> None:
        """The process is killed, nothing is lost, the next one starts, and *then* the power goes."""
        self.start(model.copy(), model.image(model.pending), point, "killed", deeper=True, floor=0)

    def start(self, model: DiskModel, image: Image, point: int, what: str, *, deeper: bool, floor: int) -> None:
        name, before, after = self.life.expectation(point)
        self.starts += 1
        materialize(image, self.folder)
        recorder = Recorder(self.folder, model, skips=self.skips)
        recorder.install(self.monkeypatch)
        try:
            replica = Replica(self.folder / ROOT)
            try:
                replica.take_identity(self._grants(point))
                self._compare(replica, before, after, floor)
                started = len(recorder.journal)
                flushed = replica.store.log.flushed_offset
                self._go_on(replica)
            finally:
                replica.store.close()
            self._nothing_to_cut()
        except Exception as error:
            raise AssertionError(f"{name}, operation {point}, {what}: {error!r}") from error
        if deeper and (model.pending or any(_writes(operation) for operation in recorder.journal[:started])):
            for operation in recorder.journal[:started]:
                model.apply(operation)
                if _writes(operation):
                    self.power_cuts(model, operation, point, deeper=False, floor=floor)
            self.power_cuts(model, None, point, deeper=False, floor=max(floor, flushed))

    def _grants(self, point: int) -> Grants:
        """The controller as it was at the crash."""
        granted = self.life.grants.granted if point >= self.life.grants.granted_at else {}
        return Grants(granted=dict(granted), answers_lost=0)

    def _compare(self, replica: Replica, before: Snapshot, after: Snapshot, floor: int) -> None:
        store = replica.store
        log = log_of(store)
        assert replica.broker.broker_id == 7
        assert any(each.log.startswith(log) for each in (before, after)), "the log is no prefix of what was written"
        whole = [boundary_at_or_below(each.log, each.flushed_offset) for each in (before, after)]
        assert len(log) >= max(min(whole), floor), f"the log ends at {len(log)}, flushed was {min(whole)}, {floor}"
        assert boundaries(log)[-1] == len(log), "the log ends inside a record"
        assert store.confirm_offset <= len(log)
        for offset in boundaries(log)[:-1]:
            if inspect_entry(log, offset, len(log), physical_offset=offset).kind is EntryKind.RECORD:
                entry = store.epochs.find_by_offset(offset)
                wrote = int.from_bytes(decode_record(log, offset).body[:4], "big")
                assert entry is not None, f"offset {offset} lies in no epoch: {store.epochs.entries}"
                assert entry.epoch == wrote, f"offset {offset} of epoch {wrote} lies in {entry}"
        assert all(entry.start_offset <= len(log) for entry in store.epochs.entries)
        topics = {topic.name for topic in replica.broker.topics.all()}
        assert topics >= before.topics & after.topics
        assert (replica.offsets.get("G", "T", 0) or 0) in (before.consumed, after.consumed)

    def _go_on(self, replica: Replica) -> None:
        replica.role(7, 99)
        replica.put(99)
        replica.store.flush()

    def _nothing_to_cut(self) -> None:
        store = open_store(self.folder / ROOT, FILE_BYTES)
        assert store.recovery.reason == ""
        assert store.epochs.last_epoch == 99
        store.close()


def _writes(operation: Operation) -> bool:
    return not isinstance(operation, SyncFile | SyncFolder)


def judged(folder: Path, monkeypatch: pytest.MonkeyPatch, skips: Callable[[str], bool]) -> tuple[int, int]:
    """How many operations a life has, and how many starts were looked at; AssertionError for the first bad one."""
    with recording(folder / "life", monkeypatch, skips) as recorder:
        life = live(recorder.root, folder / "other", recorder)
    assert (len(life.now.log), life.now.consumed, set(life.grants.granted)) == (life.now.flushed_offset, 3, {7})
    judge = Judge(life, folder / "crashed", monkeypatch, skips)
    model = DiskModel()
    judge.power_cuts(model, None, 0, deeper=True)
    for point, operation in enumerate(recorder.journal, start=1):
        model.apply(operation)
        judge.power_cuts(model, operation, point, deeper=True)
        judge.kill(model, point)
    return len(recorder.journal), judge.starts


@pytest.mark.sampled
def test_every_crash_point_of_a_life(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    operations, starts = judged(tmp_path, monkeypatch, lambda _sync: False)
    print(f"{operations} operations, {starts} starts")
    assert starts > (10 if WHOLE else 5) * operations


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("skipped", "complaint"),
    [
        (r"file .*/brokerIdentity.*\.writing", "cannot|expected"),
        pytest.param(r"file .*/epochFileCheckpoint\.writing", "epoch|expected", marks=pytest.mark.longer),
        pytest.param(r"file .*/topics.json\.writing", "no topic table", marks=pytest.mark.longer),
        (r"names data/store", "."),
        pytest.param(r"names data/store/commitlog", ".", marks=pytest.mark.longer),
        pytest.param(r"names data", ".", marks=pytest.mark.longer),
        (r"names \.", "."),
        (r"data .*/commitlog/.*", "the log ends at"),
        pytest.param(r"file .*/commitlog/.*", ".", marks=pytest.mark.longer),
    ],
)
def test_a_replica_that_forgets_to_sync_is_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, skipped: str, complaint: str
) -> None:
    with pytest.raises(AssertionError, match=complaint):
        judged(tmp_path, monkeypatch, lambda sync: re.fullmatch(skipped, sync) is not None)


@pytest.mark.sampled
def test_every_crash_point_of_deleting_old_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log begins at a file it began at before or begins at now, the rest is whole, and no queue number comes twice."""
    with recording(tmp_path / "life", monkeypatch) as recorder:
        store = open_store(recorder.root, FILE_BYTES)
        for epoch in (1, 2):
            store.begin_epoch(epoch)
            for _ in range(15):
                store.put(message(epoch), store_timestamp_ms=3)
        store.flush()
        index_all(store)
        first = len(recorder.journal)
        assert len(store.log.files()) > 3
        numbers, log = store.queues.next_offsets(), log_of(store)
        store.delete_oldest_files(3)
    begins = store.log.min_offset
    left = list(crashes(recorder.journal, start=first))
    for point, what, image in left:
        materialize(image, tmp_path / "crashed")
        Recorder(tmp_path / "crashed", DiskModel.of(image)).install(monkeypatch)
        found = open_store(tmp_path / "crashed", FILE_BYTES)
        where = f"operation {point}, {what}"
        assert found.log.min_offset in range(0, begins + 1, FILE_BYTES), where
        assert found.recovery.reason == "", where
        assert found.max_offset == len(log), where
        assert log_of(found, found.log.min_offset) == log[found.log.min_offset :], where
        assert found.queues.next_offsets() == numbers, where
        assert found.epochs.find_by_offset(found.log.min_offset) is not None, where
        last = found.log.min_offset
        found.close()
    assert len(left) > len(recorder.journal) - first
    assert last == begins == 3 * FILE_BYTES


@pytest.mark.sampled
def test_a_truncation_that_only_moves_the_end_is_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What Java does (upstream #10666): the cut bytes stay on the disk and come back behind the new ones."""
    monkeypatch.setattr(commit_log, "_zero_from", lambda _descriptor, _start, _end: None)
    with pytest.raises(AssertionError, match=r"no record|no prefix"):
        judged(tmp_path, monkeypatch, lambda _sync: False)
