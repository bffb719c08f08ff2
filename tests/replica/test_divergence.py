"""Logs that went apart, and how they come together again: random histories, and upstream's cases by name.

The naive reference knows every replica's whole log. A slave that follows a master must be left with exactly the records the two
logs have in common: one byte more would be a diverged log, one record less would throw away what may be acknowledged.
"""

from __future__ import annotations

import tempfile
from itertools import pairwise
from pathlib import Path

from hypothesis import example, given, settings
from hypothesis import strategies as st

from rocketmq_remoting.message_record import encode_blank
from rocketmq_replica.ha.frames import Handshake, HandshakeAnswer, MasterFrameReader, Transfer
from rocketmq_replica.ha.links import MasterLink, SlaveLink
from rocketmq_replica.log.epochs import DivergedLogError, EpochCache
from tests.replica.stores import handshake, log_of, open_store, put
from tests.replica.test_crash_safety import boundaries
from tests.support.draws import examples

FILE_BYTES = 1024


class Group:
    """Three replicas with real stores and real links, and for each what the naive reference says it holds."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.stores = [open_store(root / str(number), FILE_BYTES) for number in range(3)]
        self.epoch = 0
        self.master = 0

    def elect(self, number: int) -> None:
        """Anybody may be elected, also one that lacks what others have: then the logs diverge."""
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
        # The blank at the end of a file is the same, whoever wrote it in which epoch; it is no record.
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


def test_9689_a_master_elected_again_goes_on_labelling_live_links(tmp_path: Path) -> None:
    master, slave = open_store(tmp_path / "m"), open_store(tmp_path / "s")
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
    master.close()
    slave.close()


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
