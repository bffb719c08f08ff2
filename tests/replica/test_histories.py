"""Histories of three logs that go apart and come together, with marks of deleted topics.

No diverged byte and no deleted message is kept, and nothing else is thrown away or hidden.

A slave must be left with exactly the records that its log and its master's have in common. Marks are copied by another way than the
log, before or after the bytes that they are about, also from a broker that is not master yet.
"""

from __future__ import annotations

import re
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rocketmq_remoting.codes import RequestCode, ResponseCode
from rocketmq_remoting.command import request
from rocketmq_remoting.message_record import encode_blank
from rocketmq_replica.clients.metadata_requests import TopicRequests
from rocketmq_replica.ha.frames import Handshake, HandshakeAnswer, MasterFrameReader, Transfer
from rocketmq_replica.ha.links import MasterLink, SlaveLink
from rocketmq_replica.log.epochs import DivergedLogError, EpochCache
from rocketmq_replica.topics import Topic
from tests.replica.crashing_disk import crashes, materialize, recording
from tests.replica.stores import handshake, linked, log_of, open_store, put
from tests.replica.test_crash_safety import ROOT, Replica, boundaries
from tests.replica.test_deleted_topics import shown
from tests.support.draws import examples

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from rocketmq_replica.log.side_files import Deletion
    from tests.replica.crashing_disk import Recorder
    from tests.replica.stores import Stores


FILE_BYTES = 1024


class Group:
    """Three replicas with real stores and real links, and for each what the naive reference says it holds."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.stores = [open_store(root / str(number), FILE_BYTES) for number in range(3)]
        self.epoch = 0
        self.master = 0

    def elect(self, number: int) -> None:
        """Elect any replica, also one that lacks what others have: then the logs diverge."""
        self.epoch += 1
        self.master = number
        self.stores[number].cut_to_whole_record()
        self.stores[number].begin_epoch(self.epoch)

    def write(self, count: int) -> None:
        for _ in range(count):
            put(self.stores[self.master], b"%d" % self.epoch * 20)

    def restart(self, number: int) -> None:
        self.stores[number].close()
        self.stores[number] = open_store(self.root / str(number), FILE_BYTES)

    def follow(self, number: int, limit_bytes: int) -> None:
        """One link from handshake to ``limit_bytes`` of transfer, compared with the reference."""
        if number == self.master:
            return
        master, slave = self.stores[self.master], self.stores[number]
        theirs, ours = log_of(master), log_of(slave)
        try:
            source, link, acknowledgement = handshake(master, slave, broker_id=number + 1)
        except DivergedLogError:
            assert log_of(slave) == ours, "what cannot be aligned is left alone"
            return
        common = common_prefix(theirs, ours)
        assert slave.max_offset <= common, "a diverged byte was kept"
        if common < len(ours):
            common = max(each for each in boundaries(ours) if each <= common)
        thrown_away = ours[slave.max_offset : common]
        # The padding at the end of a file is no record, and the same in every epoch.
        assert not thrown_away or thrown_away == encode_blank(len(thrown_away)), "a common record was thrown away"
        source.receive(acknowledgement, now_seconds=0.0)
        data = b"".join(source.frames(confirm_offset=0, now_seconds=0.0, limit_bytes=1 << 20))
        link.receive(data[:limit_bytes], now_seconds=0.0)
        assert theirs.startswith(log_of(slave))
        if limit_bytes >= len(data):
            assert log_of(slave) == theirs

    def close(self) -> None:
        for store in self.stores:
            store.close()


def common_prefix(left: bytes, right: bytes) -> int:
    end = min(len(left), len(right))
    return next((index for index in range(end) if left[index] != right[index]), end)


_STEP = st.one_of(
    st.tuples(st.just("elect"), st.integers(0, 2)),
    st.tuples(st.just("write"), st.integers(1, 6)),
    st.tuples(st.just("follow"), st.integers(0, 2), st.sampled_from([0, 36, 100, 250, 1000, 1 << 20])),
    st.tuples(st.just("restart"), st.integers(0, 2)),
)


@settings(max_examples=examples(120))
@example([("write", 8), ("follow", 2, 1000), ("write", 1), ("elect", 2), ("write", 1)])  # each wrote the same blank
@given(st.lists(_STEP, max_size=30))
def test_any_history_ends_with_the_common_prefix(steps: list[tuple[object, ...]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        group = Group(Path(folder))
        try:
            group.elect(0)
            for name, *arguments in steps:
                getattr(group, str(name))(*arguments)
            for number in range(3):
                group.follow(number, 1 << 20)
        finally:
            group.close()


def test_9689_a_master_elected_again_goes_on_labelling_live_links(stores: Stores) -> None:
    master, slave = stores.open("m"), stores.open("s")
    master.begin_epoch(1)
    put(master, b"one")
    link = SlaveLink(slave, handshake=Handshake(2), now_seconds=0.0)
    source = MasterLink(master, now_seconds=0.0, keepalive_seconds=0.0)

    def pump() -> list[HandshakeAnswer | Transfer]:
        data = b"".join(source.frames(confirm_offset=0, now_seconds=0.0, limit_bytes=1 << 20))
        source.receive(link.receive(data, now_seconds=0.0), now_seconds=0.0)
        return list(MasterFrameReader().feed(data))

    source.receive(link.introduction(), now_seconds=0.0)
    pump()
    pump()
    for epoch in (2, 3):
        begins = master.max_offset
        master.begin_epoch(epoch)
        assert source.keepalive(confirm_offset=0, now_seconds=1.0) is not None or epoch == 2
        put(master, b"more")
        labels = {(frame.epoch, frame.epoch_start_offset) for frame in pump() if isinstance(frame, Transfer)}
        assert labels == {(epoch, begins)}
    assert slave.epochs.entries == master.epochs.entries
    assert log_of(slave) == log_of(master)


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 5)), max_size=12))
def test_the_epoch_list_is_strictly_ordered_whatever_is_appended(appended: list[tuple[int, int]]) -> None:
    cache = EpochCache()
    for epoch, start in appended:
        cache.append(epoch, start)
        entries = cache.entries
        assert all(
            left.epoch < right.epoch and left.start_offset < right.start_offset == left.end_offset
            for left, right in pairwise(entries)
        )


def test_a_link_that_comes_back_takes_no_deletion_away(stores: Stores) -> None:
    """A slave that was away copies the marks first, then its link is made, behind what was deleted."""
    master, slave = stores.open("master"), stores.open("slave")
    master.begin_epoch(1)
    put(master, b"first", topic="Other")
    linked(master, slave)
    for _ in range(3):
        put(master, b"old")
    master.delete_topic("T")
    put(master, b"new")
    slave.take_deleted_topics(master.deleted_topics)
    linked(master, slave)
    assert shown(slave) == shown(master) == [3]
    slave.begin_epoch(2)
    assert shown(slave) == [3], "it is master now, and had copied the deletion"
    slave = stores.reopen("slave")
    assert shown(slave) == [3]


class Life:
    """A master makes a topic, writes, deletes it, makes it again, writes: cut off at each operation on its disk."""

    OLD, NEW = 2, 1

    def __init__(self, root: Path, recorder: Recorder) -> None:
        self.recorder = recorder
        self.ends: dict[str, int] = {}
        replica = Replica(root / ROOT)
        replica.broker.broker_id = 7
        replica.role(7, 1)
        topics, store = replica.broker.topics, replica.store
        self._did("begun")
        topics.put(Topic("T", 1, 1), now_ms=2)
        for _ in range(self.OLD):
            replica.put(1)
        store.flush()
        replica.settle()
        self._did("written")
        deletion = request(RequestCode.DELETE_TOPIC_IN_BROKER, ext_fields={"topic": "T"})
        handler = TopicRequests(replica.broker, replica.offsets, on_changed=lambda: None, on_deleted=lambda: None)
        assert handler.delete(deletion).code == ResponseCode.SUCCESS
        self._did("deleted")
        topics.put(Topic("T", 1, 1), now_ms=4)
        self._did("made again")
        for _ in range(self.NEW):
            replica.put(1)
        store.flush()
        self._did("written again")
        store.close()

    def _did(self, what: str) -> None:
        self.ends[what] = len(self.recorder.journal)

    def judge(self, point: int, folder: Path) -> None:
        """Start what a crash after this operation left, and go on with it as master."""
        replica = Replica(folder / ROOT)
        replica.broker.broker_id = 7
        topics, store = replica.broker.topics, replica.store
        there, listed = shown(store), topics.find("T") is not None
        old, new = [one for one in there if one < self.OLD], [one for one in there if one >= self.OLD]
        if self.ends["written"] <= point:
            assert old in ([], list(range(self.OLD))), "all of it or nothing"
        if self.ends["deleted"] <= point:
            assert not old, "deleted, and there"
        if self.ends["written"] <= point < self.ends["written again"]:
            assert listed or not there, "messages of a topic that is not there"
        if self.ends["deleted"] == point:
            assert not listed
        if point >= self.ends["written again"]:
            assert len(new) == self.NEW, "written after the deletion, and hidden"
        replica.role(7, 99)
        assert topics.find("T") is not None or not listed
        store.delete_topic("T")
        topics.delete("T", now_ms=5)
        assert (shown(store), list(store.queues.names())) == ([], [])
        number = store.queues.queue("T", 0).next_offset
        replica.put(99)
        assert shown(store) == [number]
        store.close()


def judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, skips: Callable[[str], bool]) -> tuple[int, int]:
    """How many operations this life has, and how many starts were looked at; AssertionError for the first bad one."""
    with recording(tmp_path / "life", monkeypatch, skips) as recorder:
        life = Life(recorder.root, recorder)
    seen = set()
    ends = life.ends.values()
    for point, what, image in crashes(recorder.journal):
        key = (frozenset(image.items()), tuple(end <= point for end in ends), point in ends)
        if key in seen:
            continue
        seen.add(key)
        materialize(image, tmp_path / "crashed")
        try:
            life.judge(point, tmp_path / "crashed")
        except Exception as error:
            raise AssertionError(f"operation {point}, {what}, {life.ends}: {error!r}") from error
    return len(recorder.journal), len(seen)


@pytest.mark.sampled
def test_every_crash_point_of_a_topic_that_is_deleted_and_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    operations, starts = judged(tmp_path, monkeypatch, lambda _sync: False)
    assert starts > operations


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("skipped", "complaint"),
    [
        (r"file .*/deletedTopics.json\.writing", "no table of deleted topics"),
        (r"names data/store/config", "deleted, and there|messages of a topic that is not there"),
    ],
)
def test_a_mark_that_is_not_synced_is_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, skipped: str, complaint: str
) -> None:
    with pytest.raises(AssertionError, match=complaint):
        judged(tmp_path, monkeypatch, lambda sync: re.fullmatch(skipped, sync) is not None)


class Marked(Group):
    """Three replicas; which records of T each deletion was about, by its mark."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.deleted: dict[Deletion, frozenset[tuple[int, bytes]]] = {}
        self.aligned: set[int] = set()
        self.answers: list[tuple[int, Mapping[str, Deletion]]] = []
        self.elect(0)

    def records(self, number: int, *, visible: bool | None = None) -> frozenset[tuple[int, bytes]]:
        """What a log has of T, each with where it stands; only what consumers see, or do not see."""
        store = self.stores[number]
        if (queue := store.queues.find("T", 0)) is None:
            return frozenset()
        here = [(queue._offsets[index], queue._sizes[index], index >= queue._hidden) for index in range(len(queue))]
        return frozenset(
            (offset, bytes(store.log.read(offset, size)))
            for offset, size, seen in here
            if size > 0 and visible in (None, seen)
        )

    def elect(self, number: int) -> None:
        """Of those that followed this master: its log, or a beginning of it."""
        if number == self.master or number in self.aligned or not self.epoch:
            super().elect(number)
            self.aligned = set()

    def follow(self, number: int, limit_bytes: int) -> None:
        super().follow(number, limit_bytes)
        self.aligned.add(number)

    def delete(self) -> None:
        store, were = self.stores[self.master], self.records(self.master)
        store.delete_topic("T")
        if (mark := store.deleted_topics.get("T")) is not None:
            self.deleted[mark] = self.deleted.get(mark, frozenset()) | were
        assert not self.records(self.master, visible=True)

    def ask(self, number: int) -> None:
        """21 to a replica: the answer is read later."""
        self.answers.append((number, dict(self.stores[number].deleted_topics)))

    def copy(self, number: int) -> None:
        """A slave takes an answer of the broker that is its master now, from before its election or after it."""
        answers = [marks for asked, marks in self.answers if asked == self.master]
        if answers and number in self.aligned:
            self.stores[number].take_deleted_topics(answers[-1])

    def check(self) -> None:
        everything = frozenset[tuple[int, bytes]]().union(*self.deleted.values())
        for number, store in enumerate(self.stores):
            assert self.records(number, visible=False) <= everything, f"{number} hides messages that were not deleted"
            if (mark := store.deleted_topics.get("T")) is not None:
                left = self.records(number, visible=True) & self.deleted[mark]
                assert not left, f"{number} has the mark {mark}, and shows what was deleted"


_ANY = st.one_of(
    st.tuples(st.sampled_from(["elect", "ask", "copy", "restart"]), st.integers(0, 2)),
    st.tuples(st.just("write"), st.integers(1, 6)),
    st.tuples(st.just("delete")),
    st.tuples(st.just("follow"), st.integers(0, 2), st.sampled_from([0, 100, 1000, 1 << 20])),
)


# A slave with the mark, and not with all that it is about, is elected and writes there; another one copies the mark from it.
_BEHIND: list[tuple[Any, ...]] = [
    ("write", 2), ("follow", 1, 1 << 20), ("follow", 2, 1 << 20), ("write", 5), ("delete",), ("ask", 0), ("copy", 1),
    ("elect", 1), ("write", 6), ("ask", 1), ("follow", 2, 1 << 20), ("copy", 2), ("restart", 2), ("elect", 2),
    ("follow", 0, 1 << 20),
]  # fmt: skip


@settings(max_examples=examples(50))
@example(_BEHIND)
@given(st.lists(_ANY, max_size=40))
def test_in_any_history_what_was_deleted_is_hidden_and_nothing_else(steps: list[tuple[Any, ...]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        group = Marked(Path(folder))
        try:
            for name, *arguments in steps:
                getattr(group, name)(*arguments)
                group.check()
        finally:
            group.close()
