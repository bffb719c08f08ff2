"""Frames: a length word, a word with serialize type and header length, the header, the body.

:class:`FrameDecoder` takes the bytes as TCP delivers them and gives out whole commands. The length word is checked before
anything is buffered, so a peer that announces gigabytes costs nothing. What is not a frame
raises :class:`FrameError`, and the connection is to be closed: after a bad length nobody knows where the next frame begins.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

from rocketmq_remoting.binary_header import decode_binary_header, encode_binary_header
from rocketmq_remoting.command import RemotingCommand, SerializeType
from rocketmq_remoting.errors import CommandEncodeError, FrameError
from rocketmq_remoting.json_header import decode_json_header, encode_json_header

JAVA_MAX_FRAME_BYTES: Final = 16 * 1024 * 1024
"""Java's `com.rocketmq.remoting.frameMaxLength`: the total length may reach it, not exceed it."""

_MAX_HEADER_BYTES: Final = 0xFFFFFF
_PREFIX: Final = struct.Struct(">iI")
_LENGTH: Final = struct.Struct(">i")
_INTEGERS: Final = struct.Struct(">iiii")
_JSON: Final = SerializeType.JSON
_ROCKETMQ: Final = SerializeType.ROCKETMQ


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameLimits:
    """How long a frame may say it is.

    ``max_frame_bytes_until_known`` holds from the start of a connection until its owner declares the peer known
    (:meth:`FrameDecoder.peer_is_known`); ``None`` means the same limit from the start, as Java has it.
    """

    max_frame_bytes: int = JAVA_MAX_FRAME_BYTES
    max_frame_bytes_until_known: int | None = None

    def __post_init__(self) -> None:
        for name, value in (
            ("max_frame_bytes", self.max_frame_bytes),
            ("max_frame_bytes_until_known", self.max_frame_bytes_until_known),
        ):
            if value is not None and value < 4:
                raise ValueError(f"{name}={value}: expected at least 4, the length of the empty frame")


class FrameDecoder:
    """Bytes in, commands out; one per connection and direction."""

    def __init__(self, limits: FrameLimits | None = None) -> None:
        self._limits = limits or FrameLimits()
        until_known = self._limits.max_frame_bytes_until_known
        self._max_frame_bytes = self._limits.max_frame_bytes if until_known is None else until_known
        self._buffer = bytearray()
        self._broken: str | None = None

    @property
    def buffered_bytes(self) -> int:
        """Bytes of a frame that has not arrived whole yet."""
        return len(self._buffer)

    def peer_is_known(self) -> None:
        """From now on ``max_frame_bytes`` holds instead of ``max_frame_bytes_until_known``."""
        self._max_frame_bytes = self._limits.max_frame_bytes

    def feed(self, data: bytes | bytearray | memoryview, *, at_most: int | None = None) -> list[RemotingCommand]:
        """The commands that ``data`` completes, in order; with ``at_most``, the others at the next calls.

        Raises FrameError at the first bytes that are no frame, with the good commands before them in
        ``decoded_before``; from then on every call raises.
        """
        if self._broken is not None:
            raise FrameError(self._broken)
        self._buffer += data
        commands: list[RemotingCommand] = []
        try:
            with memoryview(self._buffer) as view:
                position = self._decode_whole_frames(view, commands, at_most)
        except FrameError as error:
            self._broken = str(error)
            self._buffer = bytearray()
            error.decoded_before = tuple(commands)
            raise
        if position:
            del self._buffer[:position]
        return commands

    def _decode_whole_frames(self, view: memoryview, commands: list[RemotingCommand], at_most: int | None) -> int:
        """Append the command of every frame that is there whole; where the first that is not begins."""
        position, available = 0, len(view)
        while available - position >= _LENGTH.size and len(commands) != at_most:
            length: int = _LENGTH.unpack_from(view, position)[0]
            if not 4 <= length <= self._max_frame_bytes:
                raise FrameError(f"frame length is {length}, expected 4..{self._max_frame_bytes}")
            begin = position + _LENGTH.size
            if available - begin < length:
                break
            position = begin + length
            commands.append(decode_frame(view[begin:position]))
        return position


def decode_frame(frame: bytes | memoryview) -> RemotingCommand:
    """The command of one frame, given without its length word."""
    word = int.from_bytes(frame[:4], "big")
    serialize_type, header_length = word >> 24, word & _MAX_HEADER_BYTES
    if len(frame) < 4 or header_length > len(frame) - 4:
        raise FrameError(f"header length is {header_length}, expected at most {len(frame) - 4}: the rest of the frame")
    header = frame[4 : 4 + header_length]
    body = bytes(frame[4 + header_length :]) or None
    if serialize_type == _JSON:
        return decode_json_header(header, body)
    if serialize_type == _ROCKETMQ:
        return decode_binary_header(bytes(header), body)
    raise FrameError(f"serialize type is {serialize_type}, expected 0 (JSON) or 1 (ROCKETMQ)")


def encode(command: RemotingCommand) -> bytes:
    """The frame of a command, with its length word. CommandEncodeError when a peer would refuse it."""
    try:
        _INTEGERS.pack(command.code, command.flag, command.opaque, command.version)
    except struct.error:
        raise _wrong_integer(command) from None
    is_json = command.serialize_type == _JSON
    header = encode_json_header(command) if is_json else encode_binary_header(command)
    body = command.body or b""
    length = 4 + len(header) + len(body)
    if len(header) > _MAX_HEADER_BYTES or length > JAVA_MAX_FRAME_BYTES:
        raise CommandEncodeError(
            f"code {command.code}: frame of {length} bytes (header {len(header)}), expected at most {JAVA_MAX_FRAME_BYTES}"
        )
    return b"".join((_PREFIX.pack(length, command.serialize_type << 24 | len(header)), header, body))


def _wrong_integer(command: RemotingCommand) -> CommandEncodeError:
    for name in ("code", "flag", "opaque", "version"):
        value = getattr(command, name)
        if not -(2**31) <= value < 2**31:
            return CommandEncodeError(f"{name}={value}: expected a signed 32 bit integer")
    return CommandEncodeError(f"code {command.code}: code, flag, opaque and version have to be integers")
