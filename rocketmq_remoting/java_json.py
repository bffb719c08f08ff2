"""JSON as Java's fastjson writes it, read and written.

Java writes maps with number keys unquoted: ``{1:"10.0.0.1:10911"}``, which no JSON parser takes. Reading tries the text as it
is and, when a key stops it, quotes such keys, outside of string literals. Writing is standard JSON with quoted keys, which Java
reads as well, and leaves nulls out as Java does.
"""

from __future__ import annotations

import re
from typing import Any, Final, TypeVar

import msgspec

from rocketmq_remoting.errors import BodyError

_UNQUOTED_KEY: Final = "object keys must be strings"
"""How msgspec tells of a key that is no string; the tests read bodies with number keys, so a new wording is noticed."""

T = TypeVar("T")

# A string literal is consumed as a whole (possessively, and to the end of the text when it is not terminated, so that the
# walk stays linear whatever the input); a number key is what stands between { or , and a colon.
_STRING_OR_NUMBER_KEY: Final = re.compile(
    rb'(?P<string>"(?:[^"\\]|\\.)*+"?)|(?P<before>[{,]\s*+)(?P<key>-?[0-9]++)(?=\s*+:)', re.DOTALL
)


def loads(data: bytes) -> Any:
    """The value of a body whose shape is not known beforehand. BodyError when it is not JSON."""
    return loads_as(data, Any)


def loads_as(data: bytes, kind: type[T] | Any) -> Any:
    """The body as ``kind``; numbers in quotes are taken for numbers, as Java casts them. BodyError when it is not one."""
    try:
        return msgspec.json.decode(data, type=kind, strict=False)
    except (ValueError, RecursionError) as error:
        if _UNQUOTED_KEY not in str(error):  # else it is broken JSON, not worth a second walk
            raise BodyError(f"body of {len(data)} bytes: {error}") from None
    try:
        return msgspec.json.decode(quote_number_keys(data), type=kind, strict=False)
    except (ValueError, RecursionError) as error:
        raise BodyError(f"body of {len(data)} bytes: {error}") from None


def quote_number_keys(data: bytes) -> bytes:
    """The same text with ``"1":`` where ``1:`` stood."""
    return _STRING_OR_NUMBER_KEY.sub(_quoted, data)


def _quoted(match: re.Match[bytes]) -> bytes:
    if match["string"] is not None:
        return match["string"]
    return match["before"] + b'"' + match["key"] + b'"'


def dumps(value: Any) -> bytes:
    """Compact JSON, members in alphabetical order as Java writes them, nulls left out, sets as sorted arrays."""
    return msgspec.json.encode(_without_nulls(msgspec.to_builtins(value, order="sorted")))


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(member) for key, member in value.items() if member is not None}
    if isinstance(value, list):
        return [_without_nulls(element) for element in value]
    return value
