"""The JSON form of a command's header.

Writing reproduces Java byte for byte: members in alphabetical order, absent instead of null, extFields in the order given.
Reading is as tolerant as Java's fastjson: members in any order, unknown members ignored, explicit nulls, numbers and
booleans as extFields values, the language by name or by number. The strict shape is tried first because it is what every
peer sends and decodes in one step; only what it refuses takes the tolerant way.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from rocketmq_remoting.command import LanguageCode, RemotingCommand, SerializeType
from rocketmq_remoting.errors import CommandEncodeError, FrameError

Int32 = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]

_LANGUAGE_BY_NAME: Final = {language.name: language for language in LanguageCode}
_LANGUAGE_BY_NUMBER: Final = {int(language): language for language in LanguageCode}
_JSON: Final = SerializeType.JSON
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
    """Members in the order Java writes them; integers have no default so that zeros are written."""

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
    """The command of a frame whose header is JSON; FrameError when it is not the JSON of a header."""
    try:
        read = _STRICT.decode(header)
    except (ValueError, RecursionError):
        return _decode_tolerantly(header, body)
    return RemotingCommand(
        code=read.code,
        opaque=read.opaque,
        flag=read.flag,
        language=_LANGUAGE_BY_NAME.get(read.language) if read.language is not None else None,
        version=read.version,
        remark=read.remark,
        ext_fields=read.extFields,
        body=body,
        serialize_type=_JSON,
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
    """Every value as text: strings as they are, numbers and booleans as written, nulls left out as Java writes none."""
    fields: dict[str, str] = {}
    for key, raw in raw_fields.items():
        text = bytes(raw)
        if text.startswith(b'"'):
            fields[key] = _STRING.decode(text)
        elif text != b"null":
            fields[key] = text.decode("utf-8")
    return fields


def encode_json_header(command: RemotingCommand) -> bytes:
    """The header as Java writes it."""
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
