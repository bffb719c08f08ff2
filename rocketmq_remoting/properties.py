"""Configuration as text: the bodies of 25, 26, 1009 and 1010.

Java writes ``key=value`` lines, sorted, values unescaped, and reads them as Java properties (docs/reference/controller.md).
So what we read follows the properties syntax: comments, ``=`` or ``:`` or blank as separator, line continuation, backslash
escapes. What we write escapes only what would be read otherwise, so that reading gives the same properties back.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from rocketmq_remoting.errors import BodyError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_ESCAPE: Final = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_NAMED_ESCAPES: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_WRITTEN_ESCAPES: Final = {"\t": "\\t", "\n": "\\n", "\r": "\\r", "\f": "\\f"}
_IN_KEY: Final = re.compile(r"[\\=:#! \t\n\r\f]")
_IN_VALUE: Final = re.compile(r"[\\\n\r]|\A[ \t\f]")
_KEY_END: Final = re.compile(r"(?:[^\\=: \t\f]|\\.)*+", re.DOTALL)
_SEPARATOR: Final = re.compile(r"[ \t\f]*[=:]?[ \t\f]*")


def decode_properties(body: bytes | None) -> dict[str, str]:
    """The properties in a body; none for no body. BodyError when it is not UTF-8."""
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
    """``key=value`` lines, sorted, each with its line end."""
    lines = (f"{_escape_key(key)}={_escape_value(value)}\n" for key, value in sorted(properties.items()))
    return "".join(lines).encode("utf-8")


def _logical_lines(text: str) -> Iterator[str]:
    """Lines without comments and blanks, a line that ends with an odd number of backslashes joined with the next."""
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
