"""Frames: a length word, a word with serialize type and header length, the header (JSON or binary), the body.

:class:`FrameDecoder` turns the byte stream into commands. It checks the length word before it buffers anything, so a peer that
announces gigabytes costs nothing. Bytes that are not a frame raise :class:`FrameError`, and the connection must be closed: after
a bad length the start of the next frame is unknown.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final

import msgspec

from rocketmq_remoting.command import LanguageCode, RemotingCommand, SerializeType
from rocketmq_remoting.errors import CommandEncodeError, FrameError

if TYPE_CHECKING:
    from collections.abc import Mapping


JAVA_MAX_FRAME_BYTES: Final = 16 * 1024 * 1024
"""Java's `com.rocketmq.remoting.frameMaxLength`, the largest allowed total length."""

_MAX_HEADER_BYTES: Final = 0xFFFFFF
_PREFIX: Final = struct.Struct(">iI")
_LENGTH: Final = struct.Struct(">i")
_WORD: Final = struct.Struct(">I")
_WORD_BYTES: Final = 4
_INTEGERS: Final = struct.Struct(">iiii")
_JSON: Final = SerializeType.JSON
_ROCKETMQ: Final = SerializeType.ROCKETMQ


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameLimits:
    """The largest allowed length of a frame.

    ``max_frame_bytes_until_known`` applies until the owner of the connection calls :meth:`FrameDecoder.peer_is_known`.
    ``None``: the same limit from the start, as in Java.
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
    """Decodes the byte stream of one connection into commands."""

    def __init__(self, limits: FrameLimits | None = None) -> None:
        self._limits = limits or FrameLimits()
        until_known = self._limits.max_frame_bytes_until_known
        self._max_frame_bytes = self._limits.max_frame_bytes if until_known is None else until_known
        self._buffer = bytearray()
        self._broken: str | None = None

    @property
    def buffered_bytes(self) -> int:
        """Bytes of the incomplete frame at the end."""
        return len(self._buffer)

    def peer_is_known(self) -> None:
        """Apply ``max_frame_bytes`` from now on."""
        self._max_frame_bytes = self._limits.max_frame_bytes

    def feed(self, data: bytes | bytearray | memoryview, *, at_most: int | None = None) -> list[RemotingCommand]:
        """Return the commands that ``data`` completes, in order; with ``at_most``, the next calls return the rest.

        Raise FrameError at the first bytes that are not a frame, with the commands before them in ``decoded_before``. From then
        on every call raises.
        """
        if self._broken is not None:
            raise FrameError(self._broken)
        if self._buffer:
            self._buffer += data
        commands: list[RemotingCommand] = []
        try:
            if not self._buffer and self._is_one_frame(data) and at_most != 0:
                return [decode_frame(memoryview(data)[_WORD_BYTES:])]
            # Without an incomplete frame before it, `data` is decoded where it lies: only its rest is copied.
            with memoryview(self._buffer or data) as view:
                position = self._decode_whole_frames(view, commands, at_most)
        except FrameError as error:
            self._broken = str(error)
            self._buffer = bytearray()
            error.decoded_before = tuple(commands)
            raise
        if self._buffer:
            del self._buffer[:position]
        elif position < len(data):
            self._buffer += data[position:]
        return commands

    def _is_one_frame(self, data: bytes | bytearray | memoryview) -> bool:
        """Whether the data is exactly one frame, as nearly all are."""
        length = len(data) - _WORD_BYTES
        return 4 <= length <= self._max_frame_bytes and _LENGTH.unpack_from(data)[0] == length

    def _decode_whole_frames(self, view: memoryview, commands: list[RemotingCommand], at_most: int | None) -> int:
        """Append the command of every complete frame. Return where the first incomplete one begins."""
        position, available = 0, len(view)
        while available - position >= _WORD_BYTES and len(commands) != at_most:
            length: int = _LENGTH.unpack_from(view, position)[0]
            if not 4 <= length <= self._max_frame_bytes:
                raise FrameError(f"frame length is {length}, expected 4..{self._max_frame_bytes}")
            begin = position + _WORD_BYTES
            if available - begin < length:
                break
            position = begin + length
            commands.append(decode_frame(view[begin:position]))
        return position


def decode_frame(frame: bytes | memoryview) -> RemotingCommand:
    """Decode one frame, given without its length word, which is 4 bytes or longer."""
    available = len(frame) - _WORD_BYTES
    word: int = _WORD.unpack_from(frame)[0]
    serialize_type, header_length = word >> 24, word & _MAX_HEADER_BYTES
    if header_length > available:
        raise FrameError(f"header length is {header_length}, expected at most {available}: the rest of the frame")
    end = _WORD_BYTES + header_length
    header = frame[_WORD_BYTES:end]
    body = bytes(frame[end:]) if header_length < available else None
    if serialize_type == _JSON:
        return decode_json_header(header, body)
    if serialize_type == _ROCKETMQ:
        return decode_binary_header(bytes(header), body)
    raise FrameError(f"serialize type is {serialize_type}, expected 0 (JSON) or 1 (ROCKETMQ)")


def encode(command: RemotingCommand) -> bytes:
    """Encode a command as a frame with its length word. Raise CommandEncodeError if a peer would refuse it."""
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


Int32 = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]

_LANGUAGE_BY_NAME: Final = {language.name: language for language in LanguageCode}
_LANGUAGE_BY_NUMBER: Final = {int(language): language for language in LanguageCode}
_PYTHON: Final = LanguageCode.PYTHON


class _Header(msgspec.Struct, gc=False):
    code: Int32 = 0
    flag: Int32 = 0
    opaque: Int32 = 0
    version: Int32 = 0
    language: str | None = None
    remark: str | None = None
    extFields: dict[str, str] | None = None  # noqa: N815 - the name on the wire


class _TolerantHeader(msgspec.Struct):
    code: Int32 | None = 0
    flag: Int32 | None = 0
    opaque: Int32 | None = 0
    version: Int32 | None = 0
    language: str | int | None = None
    remark: str | None = None
    extFields: dict[str, msgspec.Raw] | None = None  # noqa: N815 - the name on the wire


class _WrittenHeader(msgspec.Struct, omit_defaults=True, kw_only=True, gc=False):
    """Members in the order in which Java writes them. Integers have no default, so zeros are written."""

    code: Int32
    extFields: dict[str, str] | None = None  # noqa: N815 - the name on the wire
    flag: Int32
    language: str | None = None
    opaque: Int32
    remark: str | None = None
    serializeTypeCurrentRPC: str  # noqa: N815 - the name on the wire
    version: Int32


_STRICT: Final = msgspec.json.Decoder(_Header)
_TOLERANT: Final = msgspec.json.Decoder(_TolerantHeader, strict=False)
_STRING: Final = msgspec.json.Decoder(str)
_ENCODER: Final = msgspec.json.Encoder()


def decode_json_header(header: bytes | memoryview, body: bytes | None) -> RemotingCommand:
    """Decode a JSON header as tolerantly as Java's fastjson does. Raise FrameError if it is not a header.

    Members may come in any order, unknown ones are ignored; nulls, numbers and booleans are taken as values of extFields. The
    strict shape is tried first: every peer sends it, and it decodes in one step.
    """
    try:
        read = _STRICT.decode(header)
    except (ValueError, RecursionError):
        return _decode_tolerantly(header, body)
    # By position, in the order of the fields: by keyword it costs a third more, and each request passes here.
    return RemotingCommand(
        read.code,
        read.opaque,
        read.flag,
        _LANGUAGE_BY_NAME.get(read.language) if read.language is not None else None,
        read.version,
        read.remark,
        read.extFields,
        body,
        _JSON,
    )


def _decode_tolerantly(header: bytes | memoryview, body: bytes | None) -> RemotingCommand:
    try:
        read = _TOLERANT.decode(header)
        ext_fields = None if read.extFields is None else _text_values(read.extFields)
    except (ValueError, RecursionError) as error:
        raise FrameError(f"JSON header of {len(header)} bytes is unparsable: {error}") from None
    return RemotingCommand(
        code=read.code or 0,
        opaque=read.opaque or 0,
        flag=read.flag or 0,
        language=_language(read.language),
        version=read.version or 0,
        remark=read.remark,
        ext_fields=ext_fields,
        body=body,
        serialize_type=_JSON,
    )


def _language(value: str | int | None) -> LanguageCode | None:
    if isinstance(value, int):
        return _LANGUAGE_BY_NUMBER.get(value)
    return None if value is None else _LANGUAGE_BY_NAME.get(value)


def _text_values(raw_fields: dict[str, msgspec.Raw]) -> dict[str, str]:
    """Return every value as text: strings unchanged, numbers and booleans as written. Nulls are left out."""
    fields: dict[str, str] = {}
    for key, raw in raw_fields.items():
        text = bytes(raw)
        if text.startswith(b'"'):
            fields[key] = _STRING.decode(text)
        elif text != b"null":
            fields[key] = text.decode("utf-8")
    return fields


def encode_json_header(command: RemotingCommand) -> bytes:
    """Encode as Java does, byte for byte: members in alphabetical order, absent instead of null, extFields in their order."""
    fields, language = command.ext_fields, command.language
    try:
        return _ENCODER.encode(
            _WrittenHeader(
                code=int(command.code),
                flag=command.flag,
                opaque=command.opaque,
                version=command.version,
                extFields=fields if fields is None or type(fields) is dict else dict(fields),
                language="PYTHON" if language is _PYTHON else None if language is None else language.name,
                remark=command.remark,
                serializeTypeCurrentRPC="JSON",
            )
        )
    except (ValueError, TypeError, OverflowError) as error:
        raise CommandEncodeError(f"code {command.code}: the header cannot be written as JSON: {error}") from error


_FIXED: Final = struct.Struct(">hBhii")
_INT32: Final = struct.Struct(">i")
_KEY_LENGTH: Final = struct.Struct(">h")


def decode_binary_header(header: bytes, body: bytes | None) -> RemotingCommand:
    """Decode a binary header. Raise FrameError unless the fields fill the header exactly.

    This form has no null: a zero-length string reads as None, an ext field with an empty value as absent, and an empty set of ext
    fields as None. The code is an int16, so requests above 32767 (pop, for instance) only travel as JSON.
    """
    if len(header) < _FIXED.size:
        raise FrameError(f"binary header has {len(header)} bytes, expected at least {_FIXED.size}")
    code, language, version, opaque, flag = _FIXED.unpack_from(header)
    remark, position = _read_text(header, _FIXED.size, _INT32, "remark")
    block_length, position = _read_length(header, position, _INT32, "extFields")
    if position + block_length != len(header):
        raise FrameError(
            f"binary header: extFields of {block_length} bytes at {position} do not end with the header at {len(header)}"
        )
    return RemotingCommand(
        code=code,
        opaque=opaque,
        flag=flag,
        language=_LANGUAGE_BY_NUMBER.get(language),
        version=version,
        remark=remark,
        ext_fields=_read_ext_fields(header, position) if block_length else None,
        body=body,
        serialize_type=SerializeType.ROCKETMQ,
    )


def _read_ext_fields(header: bytes, position: int) -> dict[str, str]:
    fields: dict[str, str] = {}
    while position < len(header):
        key, position = _read_text(header, position, _KEY_LENGTH, "extFields key")
        value, position = _read_text(header, position, _INT32, "extFields value")
        if key is not None and value is not None:
            fields[key] = value
    return fields


def _read_text(header: bytes, position: int, length_field: struct.Struct, what: str) -> tuple[str | None, int]:
    length, start = _read_length(header, position, length_field, what)
    if not length:
        return None, start
    try:
        return header[start : start + length].decode("utf-8"), start + length
    except UnicodeDecodeError as error:
        raise FrameError(f"binary header: {what} at {start} is not UTF-8: {error.reason}") from None


def _read_length(header: bytes, position: int, length_field: struct.Struct, what: str) -> tuple[int, int]:
    """Return a length and the position after it. Raise FrameError if it exceeds the header."""
    start = position + length_field.size
    if start > len(header):
        raise FrameError(f"binary header ends at {len(header)}, inside the length of {what}")
    length: int = length_field.unpack_from(header, position)[0]
    if not 0 <= length <= len(header) - start:
        raise FrameError(f"binary header: length of {what} is {length}, expected 0..{len(header) - start}")
    return length, start


def encode_binary_header(command: RemotingCommand) -> bytes:
    """Encode the header in binary form. A missing language is written as OTHER: the field has no null."""
    language = LanguageCode.OTHER if command.language is None else command.language
    try:
        remark = (command.remark or "").encode("utf-8")
        ext_fields = _written_ext_fields(command.ext_fields or {})
        fixed = _FIXED.pack(command.code, language, command.version, command.opaque, command.flag)
    except (struct.error, UnicodeEncodeError) as error:
        raise CommandEncodeError(
            f"code {command.code}: the header cannot be written in binary form: {error}"
        ) from error
    return b"".join((fixed, _INT32.pack(len(remark)), remark, _INT32.pack(len(ext_fields)), ext_fields))


def _written_ext_fields(ext_fields: Mapping[str, str]) -> bytes:
    parts: list[bytes] = []
    for key, value in ext_fields.items():
        key_bytes, value_bytes = key.encode("utf-8"), value.encode("utf-8")
        parts += (_KEY_LENGTH.pack(len(key_bytes)), key_bytes, _INT32.pack(len(value_bytes)), value_bytes)
    return b"".join(parts)
