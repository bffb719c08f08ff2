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


def field(name: str) -> str:
    return f"f:{name}"


def keyed_item(keys: JsonObject) -> str:
    return "k:" + json.dumps(keys, separators=(",", ":"), sort_keys=True)


def set_value(value: Any) -> str:
    return "v:" + json.dumps(value, separators=(",", ":"))


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


def _item_parts(kind: Behaviour, place: Place, items: list[Any]) -> dict[str, Any] | None:
    """The items of a keyed list or a set by their path part; None if the list is atomic or an item is no object."""
    keys = kind.list_map_keys(place)
    if keys is None:
        return None
    if not keys:
        return {set_value(item): item for item in items}
    parts: dict[str, Any] = {}
    for item in items:
        if not isinstance(item, dict):
            return None
        named = {}
        for key in keys:
            value = item.get(key, kind.key_default(place, key))
            if value is not None:
                named[key] = value
        parts[keyed_item(named)] = item
    return parts


def _is_open_map(kind: Behaviour, place: Place, value: Any) -> bool:
    return isinstance(value, dict) and not kind.is_atomic_map(place)


def all_fields(kind: Behaviour, value: Any, place: Place = (), path: Path = ()) -> FieldSet:
    """Return every field that an applied configuration names."""
    found: FieldSet = set()
    _add_fields(kind, value, place, path, found)
    return found


def _add_fields(kind: Behaviour, value: Any, place: Place, path: Path, found: FieldSet) -> None:
    if _is_open_map(kind, place, value) and (value or not path):
        for name, item in value.items():
            _add_fields(kind, item, (*place, name), (*path, field(name)), found)
        return
    if isinstance(value, list) and value:
        parts = _item_parts(kind, place, value)
        if parts is not None:
            for part, item in parts.items():
                below = (*path, part)
                found.add(below)
                if isinstance(item, dict):
                    _add_fields(kind, item, (*place, "*"), below, found)
            return
    found.add(path)


def _everything_below(kind: Behaviour, value: Any, place: Place, path: Path, found: FieldSet) -> None:
    """Like `_add_fields`, with the inner paths too: for a value that came or went as a whole."""
    if not kind.is_always_there(place):
        found.add(path)
    if _is_open_map(kind, place, value):
        for name, item in value.items():
            _everything_below(kind, item, (*place, name), (*path, field(name)), found)
    elif isinstance(value, list):
        for part, item in (_item_parts(kind, place, value) or {}).items():
            _everything_below(kind, item, (*place, "*"), (*path, part), found)


class Comparison:
    """The fields that differ between two states of an object."""

    def __init__(self, kind: Behaviour) -> None:
        self._kind = kind
        self.set: FieldSet = set()
        self.removed: FieldSet = set()

    def compare(self, old: Any, new: Any, place: Place = (), path: Path = ()) -> Comparison:
        if old == new:
            return self
        old_parts, new_parts = self._parts(old, place), self._parts(new, place)
        if old_parts is None or new_parts is None:
            self.set.add(path)
            return self
        for part, item in new_parts.items():
            inner = self._place_of(place, part)
            if part in old_parts:
                self.compare(old_parts[part], item, inner, (*path, part))
            else:
                _everything_below(self._kind, item, inner, (*path, part), self.set)
        for part, item in old_parts.items():
            if part not in new_parts:
                _everything_below(self._kind, item, self._place_of(place, part), (*path, part), self.removed)
        return self

    def _parts(self, value: Any, place: Place) -> dict[str, Any] | None:
        if _is_open_map(self._kind, place, value):
            return {field(name): item for name, item in value.items()}
        return _item_parts(self._kind, place, value) if isinstance(value, list) else None

    @staticmethod
    def _place_of(place: Place, part: str) -> Place:
        return (*place, part[2:]) if part.startswith("f:") else (*place, "*")


def merge(kind: Behaviour, live: Any, applied: Any, place: Place = ()) -> Any:
    """Return the live value with the applied one merged in."""
    if _is_open_map(kind, place, applied) and isinstance(live, dict):
        merged = dict(live)
        for name, item in applied.items():
            merged[name] = merge(kind, live[name], item, (*place, name)) if name in live else clone(item)
        return merged
    if isinstance(applied, list) and isinstance(live, list):
        applied_parts = _item_parts(kind, place, applied)
        live_parts = _item_parts(kind, place, live)
        if applied_parts is not None and live_parts is not None:
            inner = (*place, "*")
            kept = [
                merge(kind, item, applied_parts[part], inner) if part in applied_parts else item
                for part, item in live_parts.items()
            ]
            return kept + [clone(item) for part, item in applied_parts.items() if part not in live_parts]
    return clone(applied)


def remove(kind: Behaviour, value: Any, gone: FieldSet, place: Place = ()) -> Any:
    """Return the value without the fields in `gone` (paths relative to it), and without maps that this empties."""
    heads: dict[str, FieldSet] = {}
    for path in gone:
        heads.setdefault(path[0], set()).add(path[1:])
    if _is_open_map(kind, place, value):
        kept_map = {}
        for name, item in value.items():
            below = heads.get(field(name), set())
            if () in below:
                continue
            left = remove(kind, item, below, (*place, name)) if below else item
            if left or not below:
                kept_map[name] = left
        return kept_map
    if isinstance(value, list):
        kept_list = []
        for part, item in (_item_parts(kind, place, value) or {}).items():
            below = heads.get(part, set())
            if () not in below:
                kept_list.append(remove(kind, item, below, (*place, "*")) if below else item)
        return kept_list
    return value
