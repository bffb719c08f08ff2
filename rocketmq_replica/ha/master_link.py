"""One slave's link, seen by the master: a protocol machine without sockets or clock.

Bytes from the slave go in, frames for it come out. Nothing is transferred before the slave's first acknowledgement; a first
acknowledgement of 0 means "from the beginning". A transfer never crosses the end of a log file or of an epoch, is at most
32 KiB, and carries the label of the epoch its bytes belong to (Java labels the last chunk of an epoch with the next one).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rocketmq_replica.ha.flow_meter import FlowMeter
from rocketmq_replica.ha.frames import (
    MAX_BODY_BYTES,
    Acknowledgement,
    HaFrameError,
    Handshake,
    HandshakeAnswer,
    SlaveFrameReader,
    Transfer,
)
from rocketmq_replica.term.sync_state import NEVER, SlaveProgress

if TYPE_CHECKING:
    from rocketmq_replica.log.message_store import MessageStore

MAX_EPOCHS_TO_JAVA = 1000


@dataclass(frozen=True)
class SlaveIntroduced:
    """The handshake came: this link belongs to that slave now."""

    progress: SlaveProgress


@dataclass(frozen=True)
class SlaveAcknowledged:
    """The slave's log ends at ``offset``."""

    progress: SlaveProgress
    offset: int


class MasterLink:
    """The state of one connection."""

    def __init__(self, store: MessageStore, *, now_seconds: float, keepalive_seconds: float) -> None:
        """A fresh connection; ``store`` is only read."""
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
        """Where the next transfer begins; -1 before the first acknowledgement."""
        return -1 if self._next_offset is None else self._next_offset

    def receive(self, data: bytes, *, now_seconds: float) -> list[SlaveIntroduced | SlaveAcknowledged]:
        """Bytes from the slave; raises HaFrameError for a peer that does not speak the protocol."""
        self.last_read_seconds = now_seconds
        events: list[SlaveIntroduced | SlaveAcknowledged] = []
        for frame in self._reader.feed(data):
            if isinstance(frame, Handshake):
                events.append(self._introduce(frame, now_seconds))
            else:
                events.append(self._acknowledge(frame))
        return events

    def frames(self, *, confirm_offset: int, now_seconds: float, limit_bytes: int) -> list[bytes]:
        """What to send now, up to about ``limit_bytes``; empty if there is nothing."""
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
        """A frame without a body, when nothing was sent for long enough."""
        if self._next_offset is None or now_seconds - self._last_sent_seconds < self._keepalive_seconds:
            return None
        entry = self._store.epochs.find_by_offset(self._next_offset)
        if entry is None:
            return None
        self._last_sent_seconds = now_seconds
        return Transfer(self._next_offset, entry.epoch, entry.start_offset, confirm_offset).encode()

    @property
    def has_more(self) -> bool:
        """There are log bytes the slave has not been sent."""
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
