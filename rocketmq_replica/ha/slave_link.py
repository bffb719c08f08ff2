"""The link to the master, seen by a slave: a protocol machine without sockets or clock.

Connected, it introduces itself; the answer tells the master's history, the local log is cut to the consistent point, and the
first acknowledgement goes out at once (a Java slave waits up to five seconds with it). Then bytes are appended as they come.

With ``SYNC_FLUSH`` only what is on this replica's disk is acknowledged (a Java slave acknowledges what is in its memory): then a
message acknowledged by the whole SyncStateSet survives a power cut of all of it, whoever is elected afterwards.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

from rocketmq_replica.ha.consistent_point import DivergedLogError, consistent_point
from rocketmq_replica.ha.flow_meter import FlowMeter
from rocketmq_replica.ha.frames import (
    Acknowledgement,
    HaFrameError,
    Handshake,
    HandshakeAnswer,
    MasterFrameReader,
    Transfer,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rocketmq_replica.log.message_store import MessageStore


class SlaveLinkState(enum.Enum):
    """Where the conversation stands."""

    HANDSHAKE = enum.auto()
    TRANSFER = enum.auto()


class SlaveLink:
    """The state of one connection to a master; applies what it is told to ``store``."""

    def __init__(
        self, store: MessageStore, *, handshake: Handshake, now_seconds: float, sync_flush: bool = False
    ) -> None:
        """A fresh connection; with ``sync_flush`` somebody has to flush the store and say so (``flushed``)."""
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
        """What to send first, in one write."""
        return self._handshake.encode()

    def receive(self, data: bytes, *, now_seconds: float) -> bytes:
        """Apply the master's bytes; returns the acknowledgement to send, if any.

        Raises HaFrameError (reconnect) or DivergedLogError (this replica cannot follow that master).
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
        """The acknowledgement of what has become ours since the last one, if anything has."""
        if self.state is not SlaveLinkState.TRANSFER or self._held_offset() == self._acknowledged_offset:
            return b""
        return self._acknowledge(now_seconds)

    def keepalive(self, *, now_seconds: float, interval_seconds: float) -> bytes:
        """Repeat the acknowledgement when nothing was said for ``interval_seconds``."""
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
    """Frames that carry on where the one before ended, in the same epoch: their bytes are checked and written in one go."""
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
