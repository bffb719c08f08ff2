"""The value checks of a schema node: bounds, lengths, patterns, enums, formats, and the combinations of schemas.

Wording: k8s.io/kube-openapi/pkg/validation/errors and k8s.io/apiextensions-apiserver/pkg/apiserver/validation.
"""

from __future__ import annotations

import base64
import binascii
import ipaddress
import json
import re
import uuid
from collections.abc import Callable, Iterable, Sized
from datetime import datetime
from typing import TYPE_CHECKING, Any

from kube_sandbox.api_server.errors import (
    FieldError,
    invalid,
    too_long,
    too_many,
    type_invalid,
    unsupported,
)

if TYPE_CHECKING:
    from kube_sandbox.api_server.json_values import JsonObject

Check = Callable[[Any, str], Iterable[FieldError]]

_GO_DURATION = re.compile(r"^[+-]?(\d+(\.\d*)?(ns|us|µs|ms|s|m|h|d|w))+$|^0$")


_CLASSES: dict[str, tuple[type, ...]] = {
    "object": (dict,), "array": (list,), "string": (str,), "boolean": (bool,), "integer": (int,), "number": (int, float),
}  # fmt: skip


def is_of_type(value: Any, wanted: str) -> bool:
    """Whether a JSON value is of a schema's type; 3.0 is an integer too."""
    if type(value) is float and wanted == "integer":
        return value.is_integer()
    return type(value) in _CLASSES[wanted]


def type_name(value: Any) -> str:
    """JSON's name of a value's type."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    for kind, name in ((dict, "object"), (list, "array"), (str, "string"), (int, "integer")):
        if isinstance(value, kind):
            return name
    return "number"


def _is_number(value: Any) -> bool:
    return type(value) in (int, float)


def _bounds(schema: JsonObject) -> Iterable[Check]:
    low, high = schema.get("minimum"), schema.get("maximum")
    if low is not None:
        strict = bool(schema.get("exclusiveMinimum"))
        words = f"should be greater than {low}" if strict else f"should be greater than or equal to {low}"
        yield (
            lambda value, path: (
                [invalid(path, value, f"{path} in body {words}")]
                if _is_number(value) and (value < low or (strict and value == low))
                else ()
            )
        )
    if high is not None:
        strict_high = bool(schema.get("exclusiveMaximum"))
        high_words = f"should be less than {high}" if strict_high else f"should be less than or equal to {high}"
        yield (
            lambda value, path: (
                [invalid(path, value, f"{path} in body {high_words}")]
                if _is_number(value) and (value > high or (strict_high and value == high))
                else ()
            )
        )
    factor = schema.get("multipleOf")
    if factor is not None:
        yield (
            lambda value, path: (
                [invalid(path, value, f"{path} in body should be a multiple of {factor}")]
                if _is_number(value) and value % factor
                else ()
            )
        )


def _texts(schema: JsonObject) -> Iterable[Check]:
    shortest, longest, pattern = schema.get("minLength"), schema.get("maxLength"), schema.get("pattern")
    if shortest is not None:
        yield (
            lambda value, path: (
                [invalid(path, value, f"{path} in body should be at least {shortest} chars long")]
                if isinstance(value, str) and len(value) < shortest
                else ()
            )
        )
    if longest is not None:
        yield (
            lambda value, path: (
                [too_long(path, f"may not be more than {longest} bytes")]
                if isinstance(value, str) and len(value) > longest
                else ()
            )
        )
    if pattern:
        search = re.compile(pattern).search
        yield (
            lambda value, path: (
                [invalid(path, value, f"{path} in body should match '{pattern}'")]
                if isinstance(value, str) and search(value) is None
                else ()
            )
        )


def _counts(schema: JsonObject) -> Iterable[Check]:
    kinds: tuple[tuple[str, type[Sized], str], ...] = (("Items", list, "items"), ("Properties", dict, "properties"))
    for key, kind, words in kinds:
        fewest, most = schema.get(f"min{key}"), schema.get(f"max{key}")
        if fewest is not None:
            yield _fewest_check(kind, fewest, words)
        if most is not None:
            yield _most_check(kind, most)


def _fewest_check(kind: type[Sized], fewest: int, words: str) -> Check:
    return lambda value, path: (
        [invalid(path, len(value), f"{path} in body should have at least {fewest} {words}")]
        if isinstance(value, kind) and len(value) < fewest
        else ()
    )


def _most_check(kind: type[Sized], most: int) -> Check:
    return lambda value, path: (
        [too_many(path, len(value), most)] if isinstance(value, kind) and len(value) > most else ()
    )


def _enum(schema: JsonObject) -> Iterable[Check]:
    allowed = schema.get("enum")
    if allowed is not None:
        yield lambda value, path: [unsupported(path, value, allowed)] if value not in allowed else ()


def _is_date_time(text: str) -> bool:
    try:
        return datetime.fromisoformat(text).tzinfo is not None and "T" in text.upper()
    except ValueError:
        return False


def _is_address(kind: Callable[[str], object]) -> Callable[[str], bool]:
    def is_address(text: str) -> bool:
        try:
            kind(text)
        except ValueError:
            return False
        return True

    return is_address


def _is_bytes(text: str) -> bool:
    try:
        base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return False
    return True


_FORMATS: dict[str, Callable[[str], bool]] = {
    "date-time": _is_date_time,
    "date": lambda text: re.fullmatch(r"\d{4}-\d{2}-\d{2}", text) is not None,
    "duration": lambda text: _GO_DURATION.match(text) is not None,
    "ipv4": _is_address(ipaddress.IPv4Address),
    "ipv6": _is_address(ipaddress.IPv6Address),
    "cidr": _is_address(ipaddress.ip_interface),
    "uuid": _is_address(uuid.UUID),
    "byte": _is_bytes,
    "email": lambda text: re.fullmatch(r"[^@\s]+@[^@\s]+", text) is not None,
    "hostname": lambda text: re.fullmatch(r"[A-Za-z0-9]([-A-Za-z0-9.]*[A-Za-z0-9])?", text) is not None,
}
_INTEGERS = {"int32": 31, "int64": 63}


def _format(schema: JsonObject) -> Iterable[Check]:
    name = schema.get("format", "")
    fits = _FORMATS.get(name)
    if fits is not None:
        yield (
            lambda value, path: (
                [type_invalid(path, value, f"{path} in body must be of type {name}: {json.dumps(value)}")]
                if isinstance(value, str) and not fits(value)
                else ()
            )
        )
    if name in _INTEGERS:
        limit = 2 ** _INTEGERS[name]
        yield (
            lambda value, path: (
                [invalid(path, value, f"{path} in body must be of type {name}: {json.dumps(value)}")]
                if type(value) is int and not -limit <= value < limit
                else ()
            )
        )


def _combinations(schema: JsonObject) -> Iterable[Check]:
    """anyOf, oneOf, allOf, not: value checks only, as structural schemas demand."""
    if schema.get("allOf"):
        branches = [_branch(part) for part in schema["allOf"]]
        yield lambda value, path: [error for branch in branches for error in branch(value, path)]
    if schema.get("anyOf") and not schema.get("x-kubernetes-int-or-string"):
        any_branches = [_branch(part) for part in schema["anyOf"]]
        yield (
            lambda value, path: (
                []
                if any(not list(branch(value, path)) for branch in any_branches)
                else [invalid(path, "", f'"{path}" must validate at least one schema (anyOf)')]
            )
        )
    if schema.get("oneOf"):
        one_branches = [_branch(part) for part in schema["oneOf"]]
        yield lambda value, path: _one_of(one_branches, value, path)
    if schema.get("not"):
        never = _branch(schema["not"])
        yield (
            lambda value, path: (
                [] if list(never(value, path)) else [invalid(path, "", f'"{path}" must not validate the schema (not)')]
            )
        )


def _one_of(branches: list[Check], value: Any, path: str) -> list[FieldError]:
    valid = sum(not list(branch(value, path)) for branch in branches)
    if valid == 1:
        return []
    found = "Found none valid" if valid == 0 else f"Found {valid} valid alternatives"
    return [invalid(path, "", f'"{path}" must validate one and only one schema (oneOf). {found}')]


def _branch(schema: JsonObject) -> Check:
    """A schema inside a combination as a check of its own."""
    from kube_sandbox.api_server.custom.structural_schema import SchemaNode  # noqa: PLC0415  mutual recursion

    node = SchemaNode(schema)

    def judge(value: Any, path: str) -> list[FieldError]:
        errors: list[FieldError] = []
        node.validate(value, None, path, errors)
        return errors

    return judge


def checks_of(schema: JsonObject) -> tuple[Check, ...]:
    """All checks that a schema node makes of its own value."""
    makers = (_bounds, _texts, _counts, _enum, _format, _combinations)
    return tuple(check for maker in makers for check in maker(schema))
