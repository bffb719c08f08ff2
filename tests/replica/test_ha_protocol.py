"""AutoSwitchHA: frames byte for byte, the consistent point, recorded links of Java brokers 5.5.0 from either side.

In the slave's place ours is fed the recorded master's frames and has to send the recorded slave's, and the other way round, by the
clock of the recording. What may differ is listed by frame, with the bytes that ours sends; whatever is listed has to occur.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketmq_replica.ha.frames import (
    MAX_BODY_BYTES,
    Acknowledgement,
    HaFrameError,
    Handshake,
    HandshakeAnswer,
    MasterFrameReader,
    SlaveFrameReader,
    Transfer,
)
from rocketmq_replica.ha.links import MasterLink, SlaveIntroduced, SlaveLink
from rocketmq_replica.log.epochs import ConsistentPoint, DivergedLogError, EpochCache, EpochEntry, consistent_point
from tests.replica.stores import linked, put

if TYPE_CHECKING:
    from rocketmq_replica.log.message_store import MessageStore
    from tests.replica.stores import Stores


RECORDED: list[dict[str, Any]] = [
    json.loads(line) for line in (Path(__file__).parent / "recordings" / "ha_frames.jsonl").read_text().splitlines()
]

FILE_BYTES = 1 << 16
EPOCHS = (EpochEntry(1, 0, 1000), EpochEntry(2, 1000))
VECTORS = [
    (Handshake(2), "00000001 0000 0000 0000000000000002"),
    (Handshake(2, sync_from_last_file=True, async_learner=True), "00000001 0001 0001 0000000000000002"),
    (HandshakeAnswer(2048, 2, EPOCHS),
     "00000001 00000018 0000000000000800 00000002 00000001 0000000000000000 00000002 00000000000003e8"),
    (Transfer(2048, 2, 1000, 2000, b"hello"),
     "00000002 00000005 0000000000000800 00000002 00000000000003e8 00000000000007d0 68656c6c6f"),
    (Acknowledgement(2053), "00000002 0000000000000805"),
    (Transfer(2053, 2, 1000, 2053), "00000002 00000000 0000000000000805 00000002 00000000000003e8 0000000000000805"),
]  # fmt: skip


@pytest.mark.parametrize(("frame", "text"), VECTORS)
def test_frames_have_the_reference_bytes(
    frame: Handshake | Acknowledgement | HandshakeAnswer | Transfer, text: str
) -> None:
    raw = bytes.fromhex(text)
    assert frame.encode() == raw
    reader = SlaveFrameReader() if isinstance(frame, Handshake | Acknowledgement) else MasterFrameReader()
    assert reader.feed(raw) == [frame]


@pytest.mark.parametrize("chunk", [1, 3, 17, 1 << 20])
def test_recorded_links_decode_and_encode_to_the_same_bytes(chunk: int) -> None:
    for direction, new_reader in (("s2m", SlaveFrameReader), ("m2s", MasterFrameReader)):
        for connection in {frame["conn"] for frame in RECORDED}:
            recorded = [frame for frame in RECORDED if frame["conn"] == connection and frame["dir"] == direction]
            stream = b"".join(bytes.fromhex(frame["hex"]) for frame in recorded)
            reader = new_reader()
            frames = [frame for at in range(0, len(stream), chunk) for frame in reader.feed(stream[at : at + chunk])]
            assert len(frames) == len(recorded) > 0
            assert b"".join(frame.encode() for frame in frames) == stream


@pytest.mark.parametrize("text", ["00000000", "00000003 0000000000000000", "7fffffff"])
def test_other_states_close_the_link(text: str) -> None:
    raw = bytes.fromhex(text).ljust(40, b"\0")
    with pytest.raises(HaFrameError, match="expected 1"):
        SlaveFrameReader().feed(raw)
    with pytest.raises(HaFrameError, match="expected 1"):
        MasterFrameReader().feed(raw)


@pytest.mark.parametrize("size", ["ffffffff", "00400001"])
def test_impossible_body_sizes_close_the_link(size: str) -> None:
    with pytest.raises(HaFrameError, match="a body of"):
        MasterFrameReader().feed(bytes.fromhex("00000002" + size).ljust(40, b"\0"))


def test_an_empty_slave_gets_everything_in_frames_that_cross_nothing(stores: Stores) -> None:
    master, slave = stores.open("m", FILE_BYTES), stores.open("s", FILE_BYTES)
    for epoch in (1, 2, 4):
        master.begin_epoch(epoch)
        for _ in range(40):
            put(master, b"x" * 1000)
    link = MasterLink(master, now_seconds=0.0, keepalive_seconds=5.0)
    (event,) = link.receive(Handshake(2).encode(), now_seconds=0.0)
    assert isinstance(event, SlaveIntroduced)
    assert len(link.frames(confirm_offset=0, now_seconds=0.0, limit_bytes=1 << 20)) == 1, "nothing before the first ack"
    link.receive(Acknowledgement(0).encode(), now_seconds=0.0)
    reader = MasterFrameReader()
    transfers = reader.feed(b"".join(link.frames(confirm_offset=7, now_seconds=0.0, limit_bytes=1 << 24)))
    ends = {entry.end_offset for entry in master.epochs.entries}
    for transfer in transfers:
        assert isinstance(transfer, Transfer)
        assert 0 < len(transfer.body) <= MAX_BODY_BYTES
        last = transfer.offset + len(transfer.body)
        assert transfer.offset // (1 << 16) == (last - 1) // (1 << 16)
        assert not any(transfer.offset < end < last for end in ends)
        entry = master.epochs.find_by_offset(transfer.offset)
        assert entry is not None
        assert (transfer.epoch, transfer.epoch_start_offset) == (entry.epoch, entry.start_offset)
    linked(master, slave)
    assert slave.max_offset == master.max_offset
    assert slave.epochs.entries == master.epochs.entries


def test_a_slave_that_acknowledges_one_part_of_many_has_not_caught_up(stores: Stores) -> None:
    """What it has to acknowledge is the end of the log at the time of the sending, not the end of what was sent."""
    master = stores.open("m", FILE_BYTES)
    master.begin_epoch(1)
    for _ in range(40):
        put(master, b"x" * 1000)
    link = MasterLink(master, now_seconds=0.0, keepalive_seconds=5.0)
    link.receive(Handshake(2).encode(), now_seconds=0.0)
    link.frames(confirm_offset=0, now_seconds=0.0, limit_bytes=0)
    link.receive(Acknowledgement(0).encode(), now_seconds=0.0)
    [transfer] = MasterFrameReader().feed(b"".join(link.frames(confirm_offset=0, now_seconds=1.0, limit_bytes=1000)))
    assert isinstance(transfer, Transfer)
    assert transfer.offset + len(transfer.body) < master.max_offset
    assert link.progress is not None
    assert list(link.progress.marks) == [(master.max_offset, 1.0)]


def test_keepalives_carry_the_next_offset_and_repeat_the_acknowledgement(stores: Stores) -> None:
    master, slave = stores.open("m", FILE_BYTES), stores.open("s", FILE_BYTES)
    master.begin_epoch(1)
    end = put(master, b"one")
    master_link, slave_link = linked(master, slave)
    assert master_link.keepalive(confirm_offset=end, now_seconds=4.9) is None
    frame = master_link.keepalive(confirm_offset=end, now_seconds=5.0)
    assert frame == Transfer(end, 1, 0, end).encode()
    assert slave_link.receive(frame, now_seconds=5.0) == b""
    assert slave.confirm_offset == end
    assert slave_link.keepalive(now_seconds=4.9, interval_seconds=5.0) == b""
    assert slave_link.keepalive(now_seconds=5.0, interval_seconds=5.0) == Acknowledgement(end).encode()


def test_bytes_for_another_offset_drop_the_link(stores: Stores) -> None:
    slave = stores.open(file_size_bytes=FILE_BYTES)
    slave.begin_epoch(1)
    put(slave, b"one")
    link = SlaveLink(slave, handshake=Handshake(2), now_seconds=0.0)
    link.receive(HandshakeAnswer(slave.max_offset, 1, slave.epochs.entries).encode(), now_seconds=0.0)
    with pytest.raises(HaFrameError, match="this log ends at"):
        link.receive(Transfer(slave.max_offset + 1, 1, 0, 0).encode(), now_seconds=0.0)


def point(
    local: list[tuple[int, int]], local_end: int, master: list[tuple[int, int]], master_end: int, confirm: int = 0
) -> ConsistentPoint:
    def entries(pairs: list[tuple[int, int]]) -> tuple[EpochEntry, ...]:
        cache = EpochCache()
        for epoch, start in pairs:
            assert cache.append(epoch, start)
        return cache.entries

    return consistent_point(
        local=entries(local), master=entries(master), local_max_offset=local_end, master_max_offset=master_end,
        never_confirmed=not confirm,
    )  # fmt: skip


# The examples of the specification (seeds 000 and 004) with its own numbers, then others.
@pytest.mark.parametrize(
    ("local", "local_end", "master", "master_end", "cut_at", "last_epoch"),
    [
        # 004: both end at 2500, the slave began epoch 8 at 2250
        ([(6, 200), (7, 1200), (8, 2250)], 2500, [(6, 200), (7, 1200), (8, 2500)], 2500, 2250, 7),
        # 000 (1): A had 1000, B had 900 and was elected
        ([(0, 0)], 1000, [(0, 0), (1, 900)], 1100, 900, 0),
        # 000 (2): A lost 900-1000 by an asynchronous flush, B had 1000
        ([(0, 0)], 900, [(0, 0), (1, 1000)], 1100, 900, 0),
        # 000 (3): B had all 1200 of epoch 1 that C wrote on from
        ([(0, 0), (1, 900)], 1200, [(0, 0), (1, 900), (2, 1200)], 1300, 1200, 1),
        # 000 (4): A slept through epoch 1
        ([(0, 0)], 1000, [(0, 0), (1, 900), (2, 1200)], 1300, 900, 0),
        # 000 (5): B wrote epoch 1 to 900, A was elected with 800 of it; C likewise, which had begun an epoch of its own
        ([(0, 0), (1, 500)], 900, [(0, 0), (1, 500), (2, 800)], 1000, 800, 1),
        ([(0, 0), (1, 500), (2, 850)], 1000, [(0, 0), (1, 500), (3, 800)], 1000, 800, 1),
        # 000 (6): epochs 1 and 2 both began at 1000
        ([(0, 0), (1, 1000)], 1200, [(0, 0), (2, 1000)], 1100, 1000, 0),
        ([], 0, [(1, 0)], 100, 0, -1),
        ([(1, 0)], 150, [(1, 0)], 100, 100, 1),
        ([(1, 0), (2, 100)], 300, [(1, 0), (3, 150)], 200, 100, 1),
        ([(2, 100)], 300, [(1, 0), (2, 100), (4, 250)], 400, 250, 2),
        ([(1, 0)], 120, [(2, 0)], 500, 0, -1),
        ([(1, 0), (2, 200)], 150, [(1, 0), (2, 200)], 500, 150, 2),
        # A Java master that was elected twice without a byte in between knows nothing of the later epoch (upstream #9942).
        ([(1, 0), (3, 100)], 100, [(1, 0), (2, 100)], 300, 100, 1),
    ],
)
def test_the_consistent_point(
    local: list[tuple[int, int]], local_end: int, master: list[tuple[int, int]], master_end: int,
    cut_at: int, last_epoch: int,
) -> None:  # fmt: skip
    found = point(local, local_end, master, master_end, confirm=cut_at)
    assert (found.offset, found.last_common_epoch) == (cut_at, last_epoch)


@pytest.mark.parametrize(
    ("local", "local_end", "master", "master_end", "confirm"),
    [
        ([], 100, [(1, 0)], 100, 0),
        ([(1, 0), (3, 100)], 150, [(1, 0), (2, 100)], 300, 0),
        ([(1, 0)], 100, [], 0, 0),
        ([(2, 50)], 100, [(3, 60)], 200, 0),
        ([(1, 0)], 120, [(2, 0)], 500, 60),
    ],
    ids=["bytes without epochs", "older master", "empty master", "nothing in common", "confirmed bytes would go"],
)
def test_no_consistent_point_is_not_guessed(
    local: list[tuple[int, int]], local_end: int, master: list[tuple[int, int]], master_end: int, confirm: int
) -> None:
    with pytest.raises(DivergedLogError):
        point(local, local_end, master, master_end, confirm)


@given(st.data())
def test_the_consistent_point_is_the_longest_common_prefix_of_any_two_lives(data: st.DataObject) -> None:
    """Two replicas of one group: random terms, lengths and cuts, each byte known by (epoch that wrote it)."""
    logs: list[list[int]] = [[], []]
    caches = [EpochCache(), EpochCache()]
    for epoch in range(1, data.draw(st.integers(1, 8)) + 1):
        writer = data.draw(st.integers(0, 1))
        other = 1 - writer
        caches[writer].append(epoch, len(logs[writer]))
        logs[writer] += [epoch] * data.draw(st.integers(0, 4))
        if data.draw(st.booleans()):
            replicate(logs, caches, writer, other, data.draw(st.integers(0, 10)))
    master = 0 if caches[0].last_epoch >= caches[1].last_epoch else 1
    slave = 1 - master
    best = best_point(logs, caches, slave, master)
    found = None if best is None else best.offset
    common = 0
    while common < min(map(len, logs)) and logs[0][common] == logs[1][common]:
        common += 1
    assert found is None or found <= common
    if found is not None:
        assert found == common


def best_point(logs: list[list[int]], caches: list[EpochCache], slave: int, master: int) -> ConsistentPoint | None:
    try:
        return consistent_point(
            local=caches[slave].entries, master=caches[master].entries, local_max_offset=len(logs[slave]),
            master_max_offset=len(logs[master]), never_confirmed=True,
        )  # fmt: skip
    except DivergedLogError:
        return None


def replicate(logs: list[list[int]], caches: list[EpochCache], master: int, slave: int, count: int) -> None:
    """What a slave does on a link, byte by byte."""
    found = best_point(logs, caches, slave, master)
    if found is None:
        return
    del logs[slave][found.offset :]
    caches[slave].drop_from_epoch(found.last_common_epoch + 1)
    for _ in range(count):
        offset = len(logs[slave])
        if offset >= len(logs[master]):
            break
        entry = caches[master].find_by_offset(offset)
        assert entry is not None
        caches[slave].append(entry.epoch, entry.start_offset)
        logs[slave].append(logs[master][offset])


CONNECTIONS = sorted({frame["conn"] for frame in RECORDED})
# Java repeats itself every 5 s; the recording proxy's clock shows 4.99 s now and then.
IDLE_SECONDS = 4.9


# Frames of the recorded master that ours words differently, by connection and number: the same bytes of the log, with another
# offset, epoch and beginning of the epoch.
DEVIATIONS = {
    # A keepalive of an empty log: Java's has no offset before its first file is made, and says -1; ours: of the first byte.
    (6, 1): (0, 1, 0),
    # A.6: Java switches to the next epoch before it builds the header of the last bytes of an epoch.
    (50, 2): (0, 1, 0),
    # A keepalive at an epoch's end: Java goes on with the label of the last bytes it sent; ours names that of the next byte.
    (50, 4): (2294, 3, 2294),
    (65, 3): (2836, 7, 2836),
}


def frames_of(connection: int) -> list[dict[str, Any]]:
    return [frame for frame in RECORDED if frame["conn"] == connection]


def raw(frame: dict[str, Any]) -> bytes:
    return bytes.fromhex(frame["hex"])


def recorded_log() -> bytes:
    """Every byte of the recorded group's log."""
    log = bytearray()
    for frame in sorted(RECORDED, key=lambda frame: frame.get("offset", -1)):
        if frame["type"] == "transfer" and frame["bodySize"] and frame["offset"] == len(log):
            log += raw(frame)[36:]
    return bytes(log)


LOG = recorded_log()


@pytest.fixture
def store(stores: Stores) -> MessageStore:
    return stores.open(file_size_bytes=FILE_BYTES)


def fill(store: MessageStore, end: int) -> None:
    """Write the recorded log on, up to an offset."""
    if store.max_offset < end:
        store.append_replicated(store.max_offset, LOG[store.max_offset : end])


def prepare(store: MessageStore, epochs: list[list[int]], end: int) -> None:
    """A store as the recorded broker's was: its epochs, and the log up to an offset."""
    for epoch, start in epochs:
        fill(store, start)
        store.begin_epoch(epoch)
    fill(store, end)


def answer_of(frames: list[dict[str, Any]]) -> dict[str, Any]:
    return next(frame for frame in frames if frame["dir"] == "m2s" and frame["type"] == "handshake")


@pytest.mark.parametrize("connection", CONNECTIONS)
def test_in_the_slaves_place_ours_sends_what_the_java_slave_sent(store: MessageStore, connection: int) -> None:
    frames = frames_of(connection)
    began_at = next(frame["maxOffset"] for frame in frames if frame["type"] == "ack")
    prepare(store, [entry for entry in answer_of(frames)["epochs"] if entry[1] < began_at], began_at)
    introduction = frames[0]
    link = SlaveLink(store, handshake=Handshake(introduction["slaveBrokerId"]), now_seconds=introduction["t"])
    ours, theirs = [link.introduction()], [raw(introduction)]
    for frame in frames[1:]:
        if frame["dir"] == "m2s":
            ours.append(link.receive(raw(frame), now_seconds=frame["t"]))
        else:
            theirs.append(raw(frame))
            # Nothing had to be acknowledged: it only repeats itself.
            if len(theirs) > len(b"".join(ours[1:])) // 12 + 1:
                ours.append(link.keepalive(now_seconds=frame["t"], interval_seconds=IDLE_SECONDS))
    assert b"".join(ours) == b"".join(theirs)
    last = max(frame["offset"] + frame["bodySize"] for frame in frames if frame["type"] == "transfer")
    assert store.log.read(0, 1 << 16) == LOG[:last]
    assert store.epochs.last_epoch == max(frame["epoch"] for frame in frames if frame["type"] == "transfer")


@pytest.mark.parametrize("connection", CONNECTIONS)
def test_in_the_masters_place_ours_sends_what_the_java_master_sent(store: MessageStore, connection: int) -> None:
    frames = frames_of(connection)
    prepare(store, answer_of(frames)["epochs"], answer_of(frames)["offset"])
    link = MasterLink(store, now_seconds=frames[0]["t"], keepalive_seconds=IDLE_SECONDS)
    ours: list[bytes] = []
    theirs: list[bytes] = []
    for frame in frames:
        if frame["dir"] == "s2m":
            link.receive(raw(frame), now_seconds=frame["t"])
            continue
        theirs.append(raw(frame))
        ours += sent_by(link, store, frame)
    expected = [deviating((connection, number), frame) for number, frame in enumerate(theirs)]
    assert b"".join(ours) == b"".join(expected)


def sent_by(link: MasterLink, store: MessageStore, frame: dict[str, Any]) -> list[bytes]:
    """What ours sends at the moment of a recorded frame, with the log and the confirm offset the recorded master had."""
    confirm_offset, now = frame.get("confirmOffset", 0), frame["t"]
    if frame["type"] == "transfer" and frame["bodySize"] == 0:
        keepalive = link.keepalive(confirm_offset=confirm_offset, now_seconds=now)
        return [] if keepalive is None else [keepalive]
    if frame["type"] == "transfer":
        fill(store, frame["offset"] + frame["bodySize"])
    return link.frames(confirm_offset=confirm_offset, now_seconds=now, limit_bytes=1 << 20)


def deviating(place: tuple[int, int], frame: bytes) -> bytes:
    """The frame as ours words it, which is the recorded one save for what is listed; that has to differ."""
    if place not in DEVIATIONS:
        return frame
    [recorded] = MasterFrameReader().feed(frame)
    assert isinstance(recorded, Transfer)
    ours = Transfer(*DEVIATIONS[place], recorded.confirm_offset, recorded.body).encode()
    assert ours != frame, f"{place}: listed, and no deviation"
    return ours
