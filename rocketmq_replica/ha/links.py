"""Both ends of a link between master and slave, as state machines. Pure.

The peer's bytes and the time go in, bytes for the peer come out; ``server.py`` and ``client.py`` are their sockets.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

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
from rocketmq_replica.log.epochs import DivergedLogError, consistent_point
from rocketmq_replica.sync_state import NEVER, SlaveProgress

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rocketmq_replica.log.message_store import MessageStore


MAX_EPOCHS_TO_JAVA = 1000


@dataclass(frozen=True)
class SlaveIntroduced:
    """The handshake arrived: the link belongs to this slave."""

    progress: SlaveProgress


@dataclass(frozen=True)
class SlaveAcknowledged:
    """The slave's log ends at ``offset``."""

    progress: SlaveProgress
    offset: int


class MasterLink:
    """The master's end of a link.

    It transfers nothing before the slave's first acknowledgement; a first acknowledgement of 0 means "from the beginning". A
    transfer has at most 32 KiB, never crosses the end of a log file or of an epoch, and carries the epoch of its bytes (Java labels
    the last chunk of an epoch with the next one).
    """

    def __init__(self, store: MessageStore, *, now_seconds: float, keepalive_seconds: float) -> None:
        """``store`` is only read."""
        self._store = store
        self._reader = SlaveFrameReader()
        self._keepalive_seconds = keepalive_seconds
        self._handshake: Handshake | None = None
        self._answer_due = False
        self._next_offset: int | None = None
        self._started = False
        self._last_sent_seconds = NEVER
        self.last_read_seconds = now_seconds
        self.progress: SlaveProgress | None = None
        self.flow = FlowMeter(now_seconds)

    @property
    def next_offset(self) -> int:
        """The offset of the next transfer; -1 before the first acknowledgement."""
        return -1 if self._next_offset is None else self._next_offset

    def receive(self, data: bytes, *, now_seconds: float) -> list[SlaveIntroduced | SlaveAcknowledged]:
        """Take bytes of the slave. Raise HaFrameError if they break the protocol."""
        self.last_read_seconds = now_seconds
        events: list[SlaveIntroduced | SlaveAcknowledged] = []
        for frame in self._reader.feed(data):
            if isinstance(frame, Handshake):
                events.append(self._introduce(frame, now_seconds))
            else:
                events.append(self._acknowledge(frame))
        return events

    def frames(self, *, confirm_offset: int, now_seconds: float, limit_bytes: int) -> list[bytes]:
        """Return the frames to send now, up to about ``limit_bytes``."""
        frames: list[bytes] = []
        if self._answer_due:
            self._answer_due = False
            frames.append(self._answer().encode())
        sent = 0
        while sent < limit_bytes and (transfer := self._next_transfer(confirm_offset, now_seconds)) is not None:
            frames.append(transfer.encode())
            sent += len(transfer.body)
        if frames:
            self._last_sent_seconds = now_seconds
            self.flow.add(sent, now_seconds)
        return frames

    def keepalive(self, *, confirm_offset: int, now_seconds: float) -> bytes | None:
        """Return a frame without a body if nothing was sent for the keepalive interval."""
        if self._next_offset is None or now_seconds - self._last_sent_seconds < self._keepalive_seconds:
            return None
        entry = self._store.epochs.find_by_offset(self._next_offset)
        if entry is None:
            return None
        self._last_sent_seconds = now_seconds
        return Transfer(self._next_offset, entry.epoch, entry.start_offset, confirm_offset).encode()

    @property
    def has_more(self) -> bool:
        """Whether the slave has not been sent the whole log."""
        return self._next_offset is not None and self._next_offset < self._store.max_offset

    def _introduce(self, frame: Handshake, now_seconds: float) -> SlaveIntroduced:
        if self._handshake is not None and self._handshake.broker_id != frame.broker_id:
            raise HaFrameError(f"broker {self._handshake.broker_id} introduced itself again as {frame.broker_id}")
        if frame.broker_id < 1:
            raise HaFrameError(f"slave broker id {frame.broker_id}, expected a controller-assigned id from 1")
        self._handshake = frame
        self._answer_due = True
        self._next_offset = None
        self.progress = SlaveProgress(frame.broker_id, async_learner=frame.async_learner, linked_at_seconds=now_seconds)
        return SlaveIntroduced(self.progress)

    def _acknowledge(self, frame: Acknowledgement) -> SlaveAcknowledged:
        if self._handshake is None or self.progress is None:
            raise HaFrameError("an acknowledgement before the handshake")
        if frame.max_offset > self._store.max_offset:
            raise HaFrameError(f"slave {self._handshake.broker_id} acknowledges {frame.max_offset}, above our end")
        if self._next_offset is None:
            self._next_offset = self._start_offset(frame.max_offset)
        return SlaveAcknowledged(self.progress, frame.max_offset)

    def _start_offset(self, acknowledged: int) -> int:
        if acknowledged > 0:
            return acknowledged
        assert self._handshake is not None
        log = self._store.log
        if self._handshake.sync_from_last_file:
            return max(log.min_offset, log.max_offset - log.max_offset % log.file_size_bytes)
        return log.min_offset

    def _answer(self) -> HandshakeAnswer:
        epochs = self._store.epochs
        return HandshakeAnswer(self._store.max_offset, epochs.last_epoch, epochs.entries[-MAX_EPOCHS_TO_JAVA:])

    def _next_transfer(self, confirm_offset: int, now_seconds: float) -> Transfer | None:
        if self._next_offset is None or not self.has_more or self.progress is None:
            return None
        entry = self._store.epochs.find_by_offset(self._next_offset)
        if entry is None:
            raise HaFrameError(f"offset {self._next_offset} lies in no epoch of ours")
        limit = min(MAX_BODY_BYTES, entry.end_offset - self._next_offset)
        body = self._store.log.read_to_send(self._next_offset, limit)
        if not body:
            raise HaFrameError(f"offset {self._next_offset} is below our oldest file at {self._store.log.min_offset}")
        transfer = Transfer(self._next_offset, entry.epoch, entry.start_offset, confirm_offset, body)
        self._next_offset += len(body)
        self.progress.sent(self._store.max_offset, now_seconds)
        return transfer


class SlaveLinkState(enum.Enum):
    """The state of a link to the master."""

    HANDSHAKE = enum.auto()
    TRANSFER = enum.auto()


class SlaveLink:
    """The slave's end of a link, which applies the master's bytes to ``store``.

    After the handshake answer, which contains the master's epochs, the log is cut to the consistent point and the first
    acknowledgement is sent at once (a Java slave waits up to five seconds). With ``sync_flush`` only durable bytes are acknowledged
    (a Java slave acknowledges what is in its memory): so a message acknowledged by the whole SyncStateSet survives a power cut of
    all replicas.
    """

    def __init__(
        self, store: MessageStore, *, handshake: Handshake, now_seconds: float, sync_flush: bool = False
    ) -> None:
        """With ``sync_flush`` the owner flushes the store and calls ``flushed`` afterwards."""
        self._store = store
        self._sync_flush = sync_flush
        self._acknowledged_offset = -1
        self._handshake = handshake
        self._reader = MasterFrameReader()
        self._labelled_epoch = -1
        self._last_sent_seconds = now_seconds
        self.state = SlaveLinkState.HANDSHAKE
        self.flow = FlowMeter(now_seconds)
        self.last_read_seconds = now_seconds
        self.truncated_from: int | None = None

    def introduction(self) -> bytes:
        """Return the first frame, to be sent in one write."""
        return self._handshake.encode()

    def receive(self, data: bytes, *, now_seconds: float) -> bytes:
        """Apply the master's bytes and return the acknowledgement to send, if any.

        Raise HaFrameError (reconnect) or DivergedLogError (this replica cannot follow this master).
        """
        self.last_read_seconds = now_seconds
        answer = b""
        transfers: list[Transfer] = []
        for frame in self._reader.feed(data):
            if isinstance(frame, Transfer):
                transfers.append(frame)
            elif transfers:
                raise HaFrameError("a handshake answer after a transfer")
            else:
                self._align(frame)
                answer = self._acknowledge(now_seconds)
        for row in _rows(transfers):
            self._apply(row)
        self.flow.add(sum(len(frame.body) for frame in transfers), now_seconds)
        return self.flushed(now_seconds=now_seconds) or answer

    def flushed(self, *, now_seconds: float) -> bytes:
        """Return an acknowledgement if this replica has more of the log than it last acknowledged."""
        if self.state is not SlaveLinkState.TRANSFER or self._held_offset() == self._acknowledged_offset:
            return b""
        return self._acknowledge(now_seconds)

    def keepalive(self, *, now_seconds: float, interval_seconds: float) -> bytes:
        """Return an acknowledgement if none was sent for ``interval_seconds``."""
        if self.state is not SlaveLinkState.TRANSFER or now_seconds - self._last_sent_seconds < interval_seconds:
            return b""
        return self._acknowledge(now_seconds)

    def _acknowledge(self, now_seconds: float) -> bytes:
        self._last_sent_seconds = now_seconds
        self._acknowledged_offset = self._held_offset()
        return Acknowledgement(self._acknowledged_offset).encode()

    def _held_offset(self) -> int:
        return self._store.log.flushed_offset if self._sync_flush else self._store.max_offset

    def _align(self, answer: HandshakeAnswer) -> None:
        if self.state is not SlaveLinkState.HANDSHAKE:
            raise HaFrameError("a second handshake answer on one connection")
        store = self._store
        point = consistent_point(
            local=store.epochs.entries,
            master=answer.epochs,
            local_max_offset=store.max_offset,
            master_max_offset=answer.max_offset,
            never_confirmed=store.never_confirmed,
        )
        if point.offset < store.max_offset:
            if not store.is_record_boundary(point.offset):
                raise DivergedLogError(f"the consistent point {point.offset} is no record boundary of this log")
            self.truncated_from = store.max_offset
            store.truncate(point.offset)
        store.forget_epochs_after(point.last_common_epoch)
        if self._sync_flush:
            store.flush()  # the first acknowledgement also says where the transfer begins: at the end of the log
        self.state = SlaveLinkState.TRANSFER

    def _apply(self, row: list[Transfer]) -> None:
        if self.state is not SlaveLinkState.TRANSFER:
            raise HaFrameError("a transfer before the handshake answer")
        store, first = self._store, row[0]
        empty_log = store.max_offset == 0
        if first.offset != store.max_offset and not empty_log:
            raise HaFrameError(f"bytes for offset {first.offset}, this log ends at {store.max_offset}")
        if first.epoch != self._labelled_epoch:
            self._labelled_epoch = first.epoch
            store.note_epoch(first.epoch, first.epoch_start_offset)
        body = first.body if len(row) == 1 else b"".join(frame.body for frame in row)
        if body:
            store.append_replicated(first.offset, body)
        store.confirm_offset = row[-1].confirm_offset


def _rows(transfers: list[Transfer]) -> Iterator[list[Transfer]]:
    """Group contiguous frames of one epoch, whose bytes are checked and written together."""
    row: list[Transfer] = []
    end_offset = 0
    for frame in transfers:
        if row and (frame.epoch != row[0].epoch or frame.offset != end_offset):
            yield row
            row = []
        row.append(frame)
        end_offset = frame.offset + len(frame.body)
    if row:
        yield row


WINDOW_SECONDS = 1.0


class FlowMeter:
    """Counts a link's log bytes in windows of one second: `transferredByteInSecond` of 907, as Java's FlowMonitor counts it."""

    def __init__(self, now_seconds: float) -> None:
        """Begin the first window."""
        self._began_seconds = now_seconds
        self._bytes = 0
        self._last_bytes = 0

    def add(self, count_bytes: int, now_seconds: float) -> None:
        """Count bytes transferred now."""
        self._turn(now_seconds)
        self._bytes += count_bytes

    def bytes_in_last_second(self, now_seconds: float) -> int:
        """Return the bytes of the last complete window; 0 if the link was idle since."""
        self._turn(now_seconds)
        return self._last_bytes

    def _turn(self, now_seconds: float) -> None:
        windows = int((now_seconds - self._began_seconds) / WINDOW_SECONDS)
        if windows <= 0:
            return
        # Two or more windows have ended: the last of them was empty.
        self._last_bytes = self._bytes if windows == 1 else 0
        self._bytes = 0
        self._began_seconds += windows * WINDOW_SECONDS


FIRST_PAUSE_SECONDS = 0.02
LAST_PAUSE_SECONDS = 0.5
DIVERGED_PAUSE_SECONDS = 2.0


class ReconnectBackoff:
    """The pauses and addresses of a slave that dials its master.

    The pushed address and the one that the master itself names are tried in turn, because either may be stale: the pushed one from
    before a restart, the master's own while it starts. Pauses double from 20 ms to half a second; after a diverged log the pause is
    two seconds.
    """

    def __init__(self) -> None:
        """The pushed address is tried first."""
        self._pause_seconds = FIRST_PAUSE_SECONDS
        self._ask_next = False

    def address(self, pushed: str) -> str:
        """Return the address to dial; empty: ask the master for it."""
        address = "" if self._ask_next else pushed
        self._ask_next = not self._ask_next
        return address

    def transferred(self) -> None:
        """Reset after a link that transferred bytes."""
        self._pause_seconds = FIRST_PAUSE_SECONDS
        self._ask_next = False

    def diverged(self) -> None:
        """Pause longer after a diverged log, which needs a repair."""
        self._pause_seconds = DIVERGED_PAUSE_SECONDS

    @property
    def in_vain(self) -> bool:
        """Whether so many attempts failed that there may be another master."""
        return self._pause_seconds >= LAST_PAUSE_SECONDS

    def pause_seconds(self) -> float:
        """Return the pause before the next attempt, and double it."""
        pause = self._pause_seconds
        self._pause_seconds = min(pause * 2, LAST_PAUSE_SECONDS)
        return pause
