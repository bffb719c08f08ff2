"""Sets of field paths, and the FieldsV1 JSON in which managedFields keeps them.

A path is a tuple of FieldsV1 keys: `f:name` for a field, `k:{...}` for an item of a keyed list, `v:...` for a value of a set.
https://kubernetes.io/docs/reference/using-api/server-side-apply/
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kube_sandbox.api_server.json_values import JsonObject

Path = tuple[str, ...]
FieldSet = set[Path]


def field(name: str) -> str:
    return f"f:{name}"


def keyed_item(keys: JsonObject) -> str:
    return "k:" + json.dumps(keys, separators=(",", ":"), sort_keys=True)


def set_value(value: Any) -> str:
    return "v:" + json.dumps(value, separators=(",", ":"))


def to_fields_v1(paths: FieldSet) -> JsonObject:
    """The nested form; `.` marks an inner path that is itself in the set."""
    root: JsonObject = {}
    for path in sorted(paths):
        node = root
        for part in path:
            node = node.setdefault(part, {})
        node["."] = {}
    _drop_leaf_dots(root)
    return root


def _drop_leaf_dots(node: JsonObject) -> None:
    for child in node.values():
        if list(child) == ["."]:
            del child["."]
        else:
            _drop_leaf_dots(child)


def from_fields_v1(fields: JsonObject) -> FieldSet:
    """The inverse of `to_fields_v1`."""
    paths: FieldSet = set()
    _collect(fields, (), paths)
    return paths


def _collect(node: JsonObject, path: Path, paths: FieldSet) -> None:
    for key, child in node.items():
        if key == ".":
            paths.add(path)
        elif child:
            _collect(child, (*path, key), paths)
        else:
            paths.add((*path, key))


def in_set_order(paths: FieldSet) -> list[Path]:
    """As structured-merge-diff walks a set: at each level first what ends there, then what goes deeper."""
    ends = sorted(path for path in paths if len(path) == 1)
    heads = sorted({path[0] for path in paths if len(path) > 1})
    deeper = [
        (head, *rest)
        for head in heads
        for rest in in_set_order({path[1:] for path in paths if len(path) > 1 and path[0] == head})
    ]
    return ends + deeper


def shown(path: Path) -> str:
    """A path as conflict messages print it: `.spec.containers[name="a"].image`."""
    return "".join(_part_shown(part) for part in path)


def _part_shown(part: str) -> str:
    kind, text = part[:2], part[2:]
    if kind == "f:":
        return f".{text}"
    if kind == "k:":
        keys = json.loads(text)
        return "[" + ",".join(f"{name}={json.dumps(value)}" for name, value in keys.items()) + "]"
    return f"[={text}]"
