"""The frames of AutoSwitchHA, both ways, as pure functions and push parsers.

========================  =====================================================================================
slave to master, once     state 1 · sync from last file int16 · async learner int16 · slave's broker id int64
master to slave, answer   state 1 · body size · master's max offset int64 · last epoch · n times (epoch, start offset)
master to slave, then     state 2 · body size · offset int64 · epoch · epoch start int64 · confirm offset int64 · bytes
slave to master, then     state 2 · slave's max offset int64
========================  =====================================================================================

No field carries a version: these layouts hold since RocketMQ 5.1.1.
"""

from __future__ import annotations

import enum
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rocketmq_replica.log.epochs import EpochEntry

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_BODY_BYTES = 32 * 1024
"""The largest body of a Java master's frame, ``haTransferBatchSize``."""

LARGEST_ACCEPTED_BODY_BYTES = 4 * 1024 * 1024
"""A Java slave's read buffer: a valid master never sends more."""

_HANDSHAKE = struct.Struct(">ihhq")
_ACK = struct.Struct(">iq")
_ANSWER = struct.Struct(">iiqi")
_EPOCH = struct.Struct(">iq")
_TRANSFER = struct.Struct(">iiqiqq")
_STATE = struct.Struct(">i")


class LinkState(enum.IntEnum):
    """``HAConnectionState``; only these two are sent."""

    HANDSHAKE = 1
    TRANSFER = 2


class HaFrameError(Exception):
    """The bytes are not AutoSwitchHA: close the connection."""


@dataclass(frozen=True)
class Handshake:
    """A slave's first frame."""

    broker_id: int
    sync_from_last_file: bool = False
    async_learner: bool = False

    def encode(self) -> bytes:
        """Encode as 16 bytes. They must leave in one write: a Java master starts reading at 12 bytes."""
        return _HANDSHAKE.pack(LinkState.HANDSHAKE, self.sync_from_last_file, self.async_learner, self.broker_id)


@dataclass(frozen=True)
class Acknowledgement:
    """A slave has the log up to ``max_offset``."""

    max_offset: int

    def encode(self) -> bytes:
        """Encode as 12 bytes."""
        return _ACK.pack(LinkState.TRANSFER, self.max_offset)


@dataclass(frozen=True)
class HandshakeAnswer:
    """The master's epoch history; the last epoch ends at its max offset."""

    max_offset: int
    last_epoch: int
    epochs: tuple[EpochEntry, ...]

    def encode(self) -> bytes:
        """Encode as 20 bytes and 12 for each epoch."""
        body = b"".join(_EPOCH.pack(entry.epoch, entry.start_offset) for entry in self.epochs)
        return _ANSWER.pack(LinkState.HANDSHAKE, len(body), self.max_offset, self.last_epoch) + body


@dataclass(frozen=True)
class Transfer:
    """Log bytes of one epoch; without a body it is a keepalive."""

    offset: int
    epoch: int
    epoch_start_offset: int
    confirm_offset: int
    body: bytes = b""

    def encode(self) -> bytes:
        """Encode as 36 bytes and the body."""
        head = _TRANSFER.pack(
            LinkState.TRANSFER,
            len(self.body),
            self.offset,
            self.epoch,
            self.epoch_start_offset,
            self.confirm_offset,
        )
        return head + self.body


class SlaveFrameReader:
    """Decodes a slave's byte stream: handshakes and acknowledgements."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Handshake | Acknowledgement]:
        """Add bytes. Return the complete frames."""
        self._buffer += data
        frames: list[Handshake | Acknowledgement] = []
        position = 0
        while len(self._buffer) - position >= _STATE.size:
            (state,) = _STATE.unpack_from(self._buffer, position)
            layout = _ACK if state == LinkState.TRANSFER else _HANDSHAKE
            if state not in (LinkState.HANDSHAKE, LinkState.TRANSFER):
                raise HaFrameError(f"state {state} from a slave, expected 1 (handshake) or 2 (transfer)")
            if len(self._buffer) - position < layout.size:
                break
            frames.append(_decode_slave_frame(self._buffer, position))
            position += layout.size
        del self._buffer[:position]
        return frames


def _decode_slave_frame(buffer: bytearray, position: int) -> Handshake | Acknowledgement:
    (state,) = _STATE.unpack_from(buffer, position)
    if state == LinkState.TRANSFER:
        return Acknowledgement(_ACK.unpack_from(buffer, position)[1])
    _, from_last_file, learner, broker_id = _HANDSHAKE.unpack_from(buffer, position)
    return Handshake(broker_id, sync_from_last_file=from_last_file == 1, async_learner=learner == 1)


class MasterFrameReader:
    """Decodes a master's byte stream: handshake answers and transfers."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[HandshakeAnswer | Transfer]:
        """Add bytes. Return the complete frames."""
        if self._buffer:
            self._buffer += data
        rest = self._buffer or data
        frames: list[HandshakeAnswer | Transfer] = []
        position = 0
        while (found := _master_frame_at(rest, position)) is not None:
            frame, size = found
            frames.append(frame)
            position += size
        if rest is data:
            self._buffer += data[position:]
        else:
            del self._buffer[:position]
        return frames


def _master_frame_at(data: bytes | bytearray, position: int) -> tuple[HandshakeAnswer | Transfer, int] | None:
    available = len(data) - position
    if available < _ANSWER.size:
        return None
    state, body_size, offset, epoch = _ANSWER.unpack_from(data, position)
    if state not in (LinkState.HANDSHAKE, LinkState.TRANSFER):
        raise HaFrameError(f"state {state} from a master, expected 1 (handshake) or 2 (transfer)")
    if not 0 <= body_size <= LARGEST_ACCEPTED_BODY_BYTES:
        raise HaFrameError(f"a body of {body_size} bytes, expected 0 to {LARGEST_ACCEPTED_BODY_BYTES}")
    head_size = _ANSWER.size if state == LinkState.HANDSHAKE else _TRANSFER.size
    if available < head_size + body_size:
        return None
    with memoryview(data) as view:
        body = bytes(view[position + head_size : position + head_size + body_size])
    if state == LinkState.HANDSHAKE:
        return HandshakeAnswer(offset, epoch, _decode_epochs(body)), head_size + body_size
    _, _, _, _, epoch_start, confirm = _TRANSFER.unpack_from(data, position)
    return Transfer(offset, epoch, epoch_start, confirm, body), head_size + body_size


def _decode_epochs(body: bytes) -> tuple[EpochEntry, ...]:
    if len(body) % _EPOCH.size:
        raise HaFrameError(f"{len(body)} bytes of epochs, expected a multiple of {_EPOCH.size}")
    return _with_ends([_EPOCH.unpack_from(body, position) for position in range(0, len(body), _EPOCH.size)])


def _with_ends(pairs: Sequence[tuple[int, ...]]) -> tuple[EpochEntry, ...]:
    """Return the epochs with their ends, which are not sent: each ends where the next begins."""
    entries = []
    for index, (epoch, start) in enumerate(pairs):
        if index + 1 < len(pairs):
            entries.append(EpochEntry(epoch, start, pairs[index + 1][1]))
        else:
            entries.append(EpochEntry(epoch, start))
    return tuple(entries)
