"""The ROCKETMQ form of a command's header: fixed binary fields, then remark and ext fields.

Empty and absent are one thing here: a zero-length string reads as null, so an ext field with an empty value reads as absent
and an empty set of ext fields as none. The code is an int16, so requests above 32767 (pop, for instance) only travel as JSON.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from rocketmq_remoting.command import LanguageCode, RemotingCommand, SerializeType
from rocketmq_remoting.errors import CommandEncodeError, FrameError

if TYPE_CHECKING:
    from collections.abc import Mapping

_FIXED: Final = struct.Struct(">hBhii")
_INT32: Final = struct.Struct(">i")
_KEY_LENGTH: Final = struct.Struct(">h")

_LANGUAGE_BY_NUMBER: Final = {int(language): language for language in LanguageCode}


def decode_binary_header(header: bytes, body: bytes | None) -> RemotingCommand:
    """The command of a frame whose header is binary; FrameError when the fields do not fill the header exactly."""
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
    """A length and the position after it; the length is checked to lie inside the header."""
    start = position + length_field.size
    if start > len(header):
        raise FrameError(f"binary header ends at {len(header)}, inside the length of {what}")
    length: int = length_field.unpack_from(header, position)[0]
    if not 0 <= length <= len(header) - start:
        raise FrameError(f"binary header: length of {what} is {length}, expected 0..{len(header) - start}")
    return length, start


def encode_binary_header(command: RemotingCommand) -> bytes:
    """The header in binary form. A language nobody named is written as OTHER: the field has no null."""
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
