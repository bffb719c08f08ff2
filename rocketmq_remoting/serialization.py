"""How headers and bodies are encoded: a header's ext fields, JSON as Java's fastjson writes it, Java properties."""

from __future__ import annotations

import re
import typing
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, NamedTuple, Self, TypeVar

import msgspec

from rocketmq_remoting.errors import BodyError
from rocketmq_remoting.limits import remembered

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping


Value = str | int | bool

Int32 = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
"""Java's Integer. Text outside its range does not parse, so the field keeps its default."""
Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
"""Java's Long."""

_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,19}", re.ASCII)


class ExtFieldsHeader(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """Base of every typed header: a frozen struct whose fields are text, integers or booleans.

    On the wire each field that is not None is one entry of ``extFields``: its name in camel case and Java's ``toString()`` of
    the value. Decoding never fails: a missing field, or one whose number does not parse, keeps the class default, and unknown
    fields are ignored, as in Java. The handler decides what a missing field means.
    """

    WIRE_NAMES: ClassVar[tuple[str, ...] | None] = None
    """The names on the wire in the order of the fields, if they are not the camel case of the fields' names."""

    @classmethod
    def decode(cls, ext_fields: Mapping[str, str] | None) -> Self:
        """Read the header from ext fields; never fails."""
        if not ext_fields:
            return cls()
        columns = _columns(cls)
        if columns.numbers is not None:
            numbers = "".join([ext_fields.get(name, "") for name in columns.numbers])
            # Else msgspec would take 1.0 and 1e3 for integers. What it refuses is read one by one.
            if not numbers or (numbers.isascii() and numbers.replace("-", "").isdigit()):
                try:
                    return msgspec.convert(ext_fields, cls, strict=False)
                except msgspec.ValidationError:
                    pass
        values: dict[str, Any] = {}
        for name, wire_name, parse, _ in columns.each:
            text = ext_fields.get(wire_name)
            if text is not None and (value := parse(text)) is not None:
                values[name] = value
        return cls(**values)

    def encode(self) -> dict[str, str]:
        """Return the ext fields of this header, without fields that are None."""
        ext_fields: dict[str, str] = {}
        for column in _columns(type(self)).each:
            value = getattr(self, column.name)
            if value is not None:
                ext_fields[column.wire_name] = ("true" if value else "false") if column.is_boolean else str(value)
        return ext_fields


class _Column(NamedTuple):
    name: str
    wire_name: str
    parse: Callable[[str], Value | None]
    is_boolean: bool


class _Columns(NamedTuple):
    """`numbers`: the names of the integers on the wire, if msgspec can read the header in one step; it reads other booleans."""

    each: tuple[_Column, ...]
    numbers: tuple[str, ...] | None


@cache
def _columns(header: type[ExtFieldsHeader]) -> _Columns:
    hints = typing.get_type_hints(header, include_extras=True)
    wire_names = header.WIRE_NAMES or header.__struct_encode_fields__
    each = tuple(
        _column(name, wire_name, hints[name])
        for name, wire_name in zip(header.__struct_fields__, wire_names, strict=True)
    )
    if header.WIRE_NAMES or any(column.is_boolean for column in each):
        return _Columns(each, None)
    return _Columns(each, tuple(column.wire_name for column in each if column.parse is not str))


def _column(name: str, wire_name: str, hint: Any) -> _Column:
    kind = next((part for part in typing.get_args(hint) if part is not type(None)), hint)
    if typing.get_origin(hint) is Annotated:
        kind = hint
    parse: Callable[[str], Value | None]
    if kind is str:
        parse = str
    elif kind is bool:
        parse = _parse_boolean
    elif typing.get_origin(kind) is Annotated:
        parse = parse_int32 if kind == Int32 else parse_int64
    else:
        raise TypeError(f"header field {name}: {hint!r}, expected str, bool, Int32 or Int64")
    return _Column(name, wire_name, parse, kind is bool)


def _parse_boolean(text: str) -> bool:
    """Java's Boolean.parseBoolean: "true" in any case is true, all other text is false."""
    return text.lower() == "true"


@remembered
def parse_int32(text: str) -> int | None:
    """Return the number, None for text that is no signed 32 bit integer."""
    return _parse_integer(text, 2**31)


def parse_int64(text: str) -> int | None:
    """Return the number, None for text that is no signed 64 bit integer."""
    if len(text) < 19 and text.isascii() and text.isdigit():
        return int(text)  # nearly all numbers, at a third of the cost
    return _parse_integer(text, 2**63)


def _parse_integer(text: str, limit: int) -> int | None:
    if _INTEGER.fullmatch(text) is None:
        return None
    value = int(text)
    return value if -limit <= value < limit else None


class JsonPart(msgspec.Struct, frozen=True, rename="camel"):
    """A part of a body: a frozen struct, camel case on the wire. Members with a default may be absent; unknown ones are ignored."""


class JsonBody(JsonPart, frozen=True):
    """A whole body."""

    @classmethod
    def decode(cls, body: bytes | None) -> Self:
        """Decode the body of a command. Raise BodyError, which names what is missing or wrong."""
        if body is None:
            raise BodyError(f"no body, expected the JSON of {cls.__name__}")
        decoded: Self = load_json_as(body, cls)
        return decoded

    def encode(self) -> bytes:
        """Return the JSON of this body."""
        return dump_json(self)


_UNQUOTED_KEY: Final = "object keys must be strings"
"""msgspec's message about a key that is not a string. Tests with number keys fail if a new version changes it."""

T = TypeVar("T")

# A string literal matches as a whole (possessively, and to the end of the text if it is unterminated, so that the search stays
# linear for any input); a number key is a number between { or , and a colon.
_STRING_OR_NUMBER_KEY: Final = re.compile(
    rb'(?P<string>"(?:[^"\\]|\\.)*+"?)|(?P<before>[{,]\s*+)(?P<key>-?[0-9]++)(?=\s*+:)', re.DOTALL
)


def load_json(data: bytes) -> Any:
    """Decode a body of unknown shape. Raise BodyError if it is not JSON."""
    return load_json_as(data, Any)


def load_json_as(data: bytes, kind: type[T] | Any) -> Any:
    """Decode a body as ``kind``; quoted numbers become numbers, as in Java. Raise BodyError if it is not one.

    Java writes maps with number keys unquoted, ``{1:"10.0.0.1:10911"}``, which no JSON parser accepts: if a key stops the
    decoder, such keys are quoted and it is tried again.
    """
    try:
        return msgspec.json.decode(data, type=kind, strict=False)
    except (ValueError, RecursionError) as error:
        if _UNQUOTED_KEY not in str(error):  # broken JSON: a second try would fail, too
            raise BodyError(f"body of {len(data)} bytes: {error}") from None
    try:
        return msgspec.json.decode(quote_number_keys(data), type=kind, strict=False)
    except (ValueError, RecursionError) as error:
        raise BodyError(f"body of {len(data)} bytes: {error}") from None


def quote_number_keys(data: bytes) -> bytes:
    """Return the text with number keys quoted: ``"1":`` instead of ``1:``."""
    return _STRING_OR_NUMBER_KEY.sub(_quoted, data)


def _quoted(match: re.Match[bytes]) -> bytes:
    if match["string"] is not None:
        return match["string"]
    return match["before"] + b'"' + match["key"] + b'"'


def dump_json(value: Any) -> bytes:
    """Encode as Java does: compact, members in alphabetical order, nulls left out, sets as sorted arrays."""
    return msgspec.json.encode(_without_nulls(msgspec.to_builtins(value, order="sorted")))


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(member) for key, member in value.items() if member is not None}
    if isinstance(value, list):
        return [_without_nulls(element) for element in value]
    return value


_ESCAPE: Final = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_NAMED_ESCAPES: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_WRITTEN_ESCAPES: Final = {"\t": "\\t", "\n": "\\n", "\r": "\\r", "\f": "\\f"}
_IN_KEY: Final = re.compile(r"[\\=:#! \t\n\r\f]")
_IN_VALUE: Final = re.compile(r"[\\\n\r]|\A[ \t\f]")
_KEY_END: Final = re.compile(r"(?:[^\\=: \t\f]|\\.)*+", re.DOTALL)
_SEPARATOR: Final = re.compile(r"[ \t\f]*[=:]?[ \t\f]*")


def decode_properties(body: bytes | None) -> dict[str, str]:
    """Decode the Java properties of a body (25, 26, 1009, 1010); empty for no body. Raise BodyError if it is not UTF-8.

    Java reads them as properties: comments, ``=`` or ``:`` or blank as separator, line continuation, backslash escapes.
    """
    try:
        text = (body or b"").decode("utf-8")
    except UnicodeDecodeError as error:
        raise BodyError(f"properties of {len(body or b'')} bytes are not UTF-8: {error.reason}") from None
    properties: dict[str, str] = {}
    for line in _logical_lines(text):
        key = _KEY_END.match(line)
        assert key is not None
        separator = _SEPARATOR.match(line, key.end())
        assert separator is not None
        properties[_unescape(key.group())] = _unescape(line[separator.end() :])
    return properties


def encode_properties(properties: Mapping[str, str]) -> bytes:
    """Encode as sorted ``key=value`` lines. Only what would be read otherwise is escaped."""
    lines = (f"{_escape_key(key)}={_escape_value(value)}\n" for key, value in sorted(properties.items()))
    return "".join(lines).encode("utf-8")


def _logical_lines(text: str) -> Iterator[str]:
    """Yield lines without comments and blank lines. A line that ends with an odd number of backslashes continues on the next."""
    joined: list[str] = []
    for physical in re.split(r"\r\n|\r|\n", text):
        line = physical.lstrip(" \t\f")
        if not joined and (not line or line[0] in "#!"):
            continue
        if (len(line) - len(line.rstrip("\\"))) % 2:
            joined.append(line[:-1])
            continue
        yield "".join([*joined, line])
        joined.clear()
    if joined:
        yield "".join(joined)


def _unescape(text: str) -> str:
    def character(match: re.Match[str]) -> str:
        escape = match[1]
        return chr(int(escape[1:], 16)) if len(escape) == 5 else _NAMED_ESCAPES.get(escape, escape)

    read = _ESCAPE.sub(character, text)
    # Java writes a character beyond 16 bits as two escapes.
    return read if read.isascii() else read.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _escape_key(key: str) -> str:
    return _IN_KEY.sub(lambda match: _WRITTEN_ESCAPES.get(match[0], "\\" + match[0]), key)


def _escape_value(value: str) -> str:
    return _IN_VALUE.sub(lambda match: _WRITTEN_ESCAPES.get(match[0], "\\" + match[0]), value)
