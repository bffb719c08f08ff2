"""How a typed header becomes ext fields and back.

A header is a frozen dataclass whose fields are text, integers or booleans. On the wire each field that is not None is one
entry of ``extFields``: the field's name in Java's camel case and Java's ``toString()`` of the value. Reading
never refuses: a missing field, or one whose number cannot be parsed, keeps the class default, and unknown fields are ignored, as
in Java. What a missing field means is for the handler to say.
"""

from __future__ import annotations

import dataclasses
import re
import typing
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple, Self

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

Value = str | int | bool

Int32 = Annotated[int, 32]
"""Java's Integer: text outside its range does not parse and keeps the default."""
Int64 = Annotated[int, 64]
"""Java's Long."""

_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,19}", re.ASCII)


def wire_name(name: str) -> dict[str, str]:
    """Field metadata for a name on the wire that is not the camel case of the field's."""
    return {"wire_name": name}


class _Column(NamedTuple):
    name: str
    wire_name: str
    parse: Callable[[str], Value | None]
    is_boolean: bool


class ExtFieldsHeader:
    """Base of every typed header."""

    __slots__ = ()

    @classmethod
    def decode(cls, ext_fields: Mapping[str, str] | None) -> Self:
        """The header in these ext fields; never fails."""
        values: dict[str, Any] = {}
        if ext_fields:
            for column in _columns(cls):
                text = ext_fields.get(column.wire_name)
                if text is not None and (value := column.parse(text)) is not None:
                    values[column.name] = value
        return cls(**values)

    def encode(self) -> dict[str, str]:
        """The ext fields of this header, None left out."""
        ext_fields: dict[str, str] = {}
        for column in _columns(type(self)):
            value = getattr(self, column.name)
            if value is not None:
                ext_fields[column.wire_name] = ("true" if value else "false") if column.is_boolean else str(value)
        return ext_fields


_COLUMNS: Final[dict[type, tuple[_Column, ...]]] = {}


def _columns(header: type[ExtFieldsHeader]) -> tuple[_Column, ...]:
    columns = _COLUMNS.get(header)
    if columns is None:
        columns = _COLUMNS[header] = _read_columns(header)
    return columns


def _read_columns(header: type[ExtFieldsHeader]) -> tuple[_Column, ...]:
    hints = typing.get_type_hints(header, include_extras=True)
    assert dataclasses.is_dataclass(header)
    return tuple(_column(field, hints[field.name]) for field in dataclasses.fields(header))


def _column(field: dataclasses.Field[Any], hint: Any) -> _Column:
    kind = next((part for part in typing.get_args(hint) if part is not type(None)), hint)
    if typing.get_origin(hint) is Annotated:
        kind = hint
    parse: Callable[[str], Value | None]
    if kind is str:
        parse = _parse_text
    elif kind is bool:
        parse = _parse_boolean
    elif typing.get_origin(kind) is Annotated:
        parse = _parse_int32 if kind.__metadata__ == (32,) else _parse_int64
    else:
        raise TypeError(f"header field {field.name}: {hint!r}, expected str, bool, Int32 or Int64")
    first, *rest = field.name.split("_")
    camel_case = first + "".join(word.capitalize() for word in rest)
    return _Column(field.name, field.metadata.get("wire_name", camel_case), parse, kind is bool)


def _parse_text(text: str) -> str:
    return text


def _parse_boolean(text: str) -> bool:
    """Java's Boolean.parseBoolean: everything that is not "true" in some case is false."""
    return text.lower() == "true"


def _parse_int32(text: str) -> int | None:
    return _parse_integer(text, 2**31)


def _parse_int64(text: str) -> int | None:
    return _parse_integer(text, 2**63)


def _parse_integer(text: str, limit: int) -> int | None:
    plain = len(text) < 19 and text.isascii() and text.isdigit()  # what nearly all are, told at a third of the cost
    if not plain and _INTEGER.fullmatch(text) is None:
        return None
    value = int(text)
    return value if -limit <= value < limit else None
