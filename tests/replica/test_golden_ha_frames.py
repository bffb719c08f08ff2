"""The recorded HA links of Java brokers 5.5.0, replayed from either side: what ours sends is what Java sent, byte for byte.

In the slave's place ours is fed the recorded master's frames and has to send the recorded slave's; in the master's place it is fed
the recorded slave's frames and has to send the recorded master's. The clock is the recording's. What may differ is listed by
name, frame by frame, with the bytes that ours sends instead; nothing else may, and whatever is listed has to occur.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from rocketmq_replica.ha.frames import Handshake, MasterFrameReader, Transfer
from rocketmq_replica.ha.links import MasterLink, SlaveLink
from tests.replica.stores import open_store

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rocketmq_replica.log.message_store import MessageStore

RECORDED: list[dict[str, Any]] = [
    json.loads(line) for line in (Path(__file__).parent / "recordings" / "ha_frames.jsonl").read_text().splitlines()
]
CONNECTIONS = sorted({frame["conn"] for frame in RECORDED})
# Java repeats itself every 5 s; the recording proxy's clock shows 4.99 s now and then.
IDLE_SECONDS = 4.9


@dataclass(frozen=True)
class Deviation:
    """One frame of the recorded master that ours words differently: the same bytes of the log, another label or offset."""

    name: str
    offset: int
    epoch: int
    epoch_start_offset: int


DEVIATIONS = {
    # Java's log has no offset before its first file is made, and says -1; ours says where the first byte will be.
    (6, 1): Deviation("keepalive of an empty log", 0, 1, 0),
    # A.6: Java switches to the next epoch before it builds the header of the last bytes of an epoch.
    (50, 2): Deviation("last bytes of an epoch under the next one's label", 0, 1, 0),
    # Java goes on with the label of the last bytes it sent; ours names the epoch that the next byte belongs to.
    (50, 4): Deviation("keepalive at the end of an epoch", 2294, 3, 2294),
    (65, 3): Deviation("keepalive at the end of an epoch", 2836, 7, 2836),
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
def store(tmp_path: Path) -> Iterator[MessageStore]:
    each = open_store(tmp_path, 1 << 16)
    yield each
    each.close()


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
    deviation = DEVIATIONS.get(place)
    if deviation is None:
        return frame
    [recorded] = MasterFrameReader().feed(frame)
    assert isinstance(recorded, Transfer)
    ours = Transfer(
        deviation.offset, deviation.epoch, deviation.epoch_start_offset, recorded.confirm_offset, recorded.body
    ).encode()
    assert ours != frame, f"{deviation.name}: listed, and no deviation"
    return ours
