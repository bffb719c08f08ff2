"""Sets of field paths: FieldsV1, the JSON in which managedFields keeps them, and walks over objects that know keyed lists.

A path is a tuple of FieldsV1 keys: `f:name` for a field, `k:{...}` for an item of a keyed list, `v:...` for a value of a set. The
rules are those of sigs.k8s.io/structured-merge-diff (ToFieldSet, Compare, Merge, RemoveItems).
https://kubernetes.io/docs/reference/using-api/server-side-apply/
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from kube_sandbox.api_server.values import clone

if TYPE_CHECKING:
    from kube_sandbox.api_server.resource_types import Behaviour
    from kube_sandbox.api_server.values import JsonObject


Path = tuple[str, ...]
FieldSet = set[Path]
# Where in the kind a value is: field names, `*` for the items of a list.
Place = tuple[str, ...]


def to_fields_v1(paths: FieldSet) -> JsonObject:
    """Return the nested form; `.` marks an inner path that is itself in the set."""
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
    """Return the paths of the nested form."""
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
    """Return the paths as structured-merge-diff orders them: at each level first those that end there."""
    ends = sorted(path for path in paths if len(path) == 1)
    heads = sorted({path[0] for path in paths if len(path) > 1})
    deeper = [
        (head, *rest)
        for head in heads
        for rest in in_set_order({path[1:] for path in paths if len(path) > 1 and path[0] == head})
    ]
    return ends + deeper


def shown(path: Path) -> str:
    """Return a path as conflict messages print it: `.spec.containers[name="a"].image`."""
    return "".join(_part_shown(part) for part in path)


def _part_shown(part: str) -> str:
    prefix, text = part[:2], part[2:]
    if prefix == "f:":
        return f".{text}"
    if prefix == "k:":
        keys = json.loads(text)
        return "[" + ",".join(f"{name}={json.dumps(value)}" for name, value in keys.items()) + "]"
    return f"[={text}]"


def _parts(kind: Behaviour, place: Place, value: Any) -> dict[str, tuple[Place, Any]] | None:
    """Place and value of each field of a map or item of a list, by path part; None for a value that is owned as a whole."""
    if isinstance(value, dict):
        if kind.is_atomic_map(place):
            return None
        return {f"f:{name}": ((*place, name), item) for name, item in value.items()}
    keys = kind.list_map_keys(place) if isinstance(value, list) else None
    if keys is None or (keys and not all(isinstance(item, dict) for item in value)):
        return None
    inner = (*place, "*")
    return {_item_part(kind, place, keys, item): (inner, item) for item in value}


def _item_part(kind: Behaviour, place: Place, keys: tuple[str, ...], item: Any) -> str:
    if not keys:
        return "v:" + json.dumps(item, separators=(",", ":"))
    named = {key: item.get(key, kind.key_default(place, key)) for key in keys}
    present = {key: value for key, value in named.items() if value is not None}
    return "k:" + json.dumps(present, separators=(",", ":"), sort_keys=True)


def all_fields(kind: Behaviour, configuration: JsonObject) -> FieldSet:
    """Return every field that an applied configuration names."""
    found: FieldSet = set()
    _add_fields(kind, configuration, (), (), found)
    return found


def _add_fields(kind: Behaviour, value: Any, place: Place, path: Path, found: FieldSet) -> None:
    parts = _parts(kind, place, value)
    if not parts and path:
        found.add(path)
    for part, (inner, item) in (parts or {}).items():
        if not part.startswith("f:"):
            found.add((*path, part))
        _add_fields(kind, item, inner, (*path, part), found)


def _everything_below(kind: Behaviour, value: Any, place: Place, path: Path, found: FieldSet) -> None:
    """Like `_add_fields`, with the inner paths too: for a value that came or went as a whole."""
    if not kind.is_always_there(place):
        found.add(path)
    for part, (inner, item) in (_parts(kind, place, value) or {}).items():
        _everything_below(kind, item, inner, (*path, part), found)


class Comparison:
    """The fields that differ between two states of an object."""

    def __init__(self, kind: Behaviour, old: JsonObject, new: JsonObject) -> None:
        self._kind = kind
        self.set: FieldSet = set()
        self.removed: FieldSet = set()
        self._compare(old, new, (), ())

    def _compare(self, old: Any, new: Any, place: Place, path: Path) -> None:
        if old == new:
            return
        old_parts, new_parts = _parts(self._kind, place, old), _parts(self._kind, place, new)
        if old_parts is None or new_parts is None:
            self.set.add(path)
            return
        for part, (inner, item) in new_parts.items():
            if part in old_parts:
                self._compare(old_parts[part][1], item, inner, (*path, part))
            else:
                _everything_below(self._kind, item, inner, (*path, part), self.set)
        for part, (inner, item) in old_parts.items():
            if part not in new_parts:
                _everything_below(self._kind, item, inner, (*path, part), self.removed)


def merge(kind: Behaviour, live: Any, applied: Any, place: Place = ()) -> Any:
    """Return the live value with the applied one merged in."""
    parts, live_parts = _parts(kind, place, applied), _parts(kind, place, live)
    if parts is None or live_parts is None or type(applied) is not type(live):
        return clone(applied)
    merged = {
        part: merge(kind, item, parts[part][1], inner) if part in parts else item
        for part, (inner, item) in live_parts.items()
    }
    merged |= {part: clone(item) for part, (_, item) in parts.items() if part not in live_parts}
    return _whole(live, merged)


def remove(kind: Behaviour, value: Any, gone: FieldSet, place: Place = ()) -> Any:
    """Return the value without the fields in `gone` (paths relative to it), and without maps that this empties."""
    parts = _parts(kind, place, value)
    if parts is None:
        return value
    heads: dict[str, FieldSet] = {}
    for path in gone:
        heads.setdefault(path[0], set()).add(path[1:])
    kept = {}
    for part, (inner, item) in parts.items():
        below = heads.get(part, set())
        left = remove(kind, item, below, inner) if below and () not in below else item
        if () not in below and (left or not below or isinstance(value, list)):
            kept[part] = left
    return _whole(value, kept)


def _whole(like: Any, parts: dict[str, Any]) -> Any:
    """The map or list that has these parts."""
    return list(parts.values()) if isinstance(like, list) else {part[2:]: item for part, item in parts.items()}
