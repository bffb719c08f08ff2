"""The simple JSON paths of printer columns: `.a.b`, `.a[0]`, `['a.b']`, `.list[?(@.type=="Ready")].status`, `[*]`.

https://kubernetes.io/docs/reference/kubectl/jsonpath/; a definition with any other path is refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

Step = Callable[[Any], list[Any]]

_PART = re.compile(
    r"""
    \.(?P<name>(?:\\\.|[^.\[\]])+)
  | \[(?:'(?P<single>[^']*)'|"(?P<double>[^"]*)")\]
  | \[(?P<index>-?\d+)\]
  | (?P<all>\[\*\])
  | \[\?\(@\.(?P<key>[^=!<>()]+?)\s*(?P<operator>==|!=)\s*(?:"(?P<value>[^"]*)"|'(?P<value_single>[^']*)'|(?P<bare>[^"')]+))\)\]
    """,
    re.VERBOSE,
)


class JsonPathError(ValueError):
    """A path that is not one of the simple ones."""


def _named(name: str) -> Step:
    return lambda value: [value[name]] if isinstance(value, dict) and name in value else []


def _at(index: int) -> Step:
    return lambda value: [value[index]] if isinstance(value, list) and -len(value) <= index < len(value) else []


def _every(value: Any) -> list[Any]:
    if isinstance(value, list):
        return value
    return list(value.values()) if isinstance(value, dict) else []


def _filtered(key: str, wanted: str, *, equal: bool) -> Step:
    def matches(item: Any) -> bool:
        for part in key.split("."):
            item = item.get(part) if isinstance(item, dict) else None
        shown = str(item).lower() if isinstance(item, bool) else str(item)
        return (item is not None and shown == wanted) is equal

    return lambda value: [item for item in value if matches(item)] if isinstance(value, list) else []


def compile_path(path: str) -> Callable[[Any], list[Any]]:
    """A function from a JSON value to all values that the path finds in it."""
    text = path.strip().removeprefix("{").removesuffix("}").removeprefix("$")
    if text and text[0] not in ".[":
        text = "." + text
    steps: list[Step] = []
    position = 0
    while position < len(text):
        found = _PART.match(text, position)
        if found is None:
            raise JsonPathError(f"cannot read JSON path {path!r} at {text[position:]!r}")
        steps.append(_step(found))
        position = found.end()

    def find(value: Any) -> list[Any]:
        values = [value]
        for step in steps:
            values = [result for item in values for result in step(item)]
        return values

    return find


def _step(found: re.Match[str]) -> Step:
    if found["name"] is not None:
        return _named(found["name"].replace("\\.", "."))
    if found["single"] is not None or found["double"] is not None:
        return _named(found["single"] if found["single"] is not None else found["double"])
    if found["index"] is not None:
        return _at(int(found["index"]))
    if found["all"] is not None:
        return _every
    wanted = next(text for text in (found["value"], found["value_single"], found["bare"]) if text is not None)
    return _filtered(found["key"], wanted.strip(), equal=found["operator"] == "==")
