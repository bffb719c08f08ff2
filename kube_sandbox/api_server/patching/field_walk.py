"""Walking objects with the knowledge of which lists are keyed: which fields there are, what changed, merge, remove.

The rules of sigs.k8s.io/structured-merge-diff (ToFieldSet, Compare, Merge, RemoveItems), for plain JSON.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from kube_sandbox.api_server.json_values import clone
from kube_sandbox.api_server.patching import field_sets

if TYPE_CHECKING:
    from kube_sandbox.api_server.patching.field_sets import FieldSet, Path

#: Where in the kind something is: field names, `*` for the items of a list.
Place = tuple[str, ...]


class Shape(Protocol):
    """What a kind's behaviour tells of its lists and maps."""

    def list_map_keys(self, path: Place) -> tuple[str, ...] | None: ...

    def key_default(self, path: Place, key: str) -> Any: ...

    def is_atomic_map(self, path: Place) -> bool: ...

    def is_always_there(self, path: Place) -> bool: ...


def _item_parts(shape: Shape, place: Place, items: list[Any]) -> dict[str, Any] | None:
    """The items of a keyed list or a set by their path part; None if the list is atomic (or an item has no key)."""
    keys = shape.list_map_keys(place)
    if keys is None:
        return None
    if not keys:
        return {field_sets.set_value(item): item for item in items}
    parts: dict[str, Any] = {}
    for item in items:
        if not isinstance(item, dict):
            return None
        named = {}
        for key in keys:
            value = item.get(key, shape.key_default(place, key))
            if value is not None:
                named[key] = value
        parts[field_sets.keyed_item(named)] = item
    return parts


def _is_open_map(shape: Shape, place: Place, value: Any) -> bool:
    return isinstance(value, dict) and not shape.is_atomic_map(place)


def all_fields(shape: Shape, value: Any, place: Place = (), path: Path = ()) -> FieldSet:
    """Every field that an applied configuration names."""
    found: FieldSet = set()
    _add_fields(shape, value, place, path, found)
    return found


def _add_fields(shape: Shape, value: Any, place: Place, path: Path, found: FieldSet) -> None:
    if _is_open_map(shape, place, value) and (value or not path):
        for name, item in value.items():
            _add_fields(shape, item, (*place, name), (*path, field_sets.field(name)), found)
        return
    if isinstance(value, list) and value:
        parts = _item_parts(shape, place, value)
        if parts is not None:
            for part, item in parts.items():
                below = (*path, part)
                found.add(below)
                if isinstance(item, dict):
                    _add_fields(shape, item, (*place, "*"), below, found)
            return
    found.add(path)


def _everything_below(shape: Shape, value: Any, place: Place, path: Path, found: FieldSet) -> None:
    """Like `_add_fields`, with the inner paths too: what came or went as a whole."""
    if not shape.is_always_there(place):
        found.add(path)
    if _is_open_map(shape, place, value):
        for name, item in value.items():
            _everything_below(shape, item, (*place, name), (*path, field_sets.field(name)), found)
    elif isinstance(value, list):
        for part, item in (_item_parts(shape, place, value) or {}).items():
            _everything_below(shape, item, (*place, "*"), (*path, part), found)


class Comparison:
    """What differs between two states of an object."""

    def __init__(self, shape: Shape) -> None:
        self._shape = shape
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
                _everything_below(self._shape, item, inner, (*path, part), self.set)
        for part, item in old_parts.items():
            if part not in new_parts:
                _everything_below(self._shape, item, self._place_of(place, part), (*path, part), self.removed)
        return self

    def _parts(self, value: Any, place: Place) -> dict[str, Any] | None:
        if _is_open_map(self._shape, place, value):
            return {field_sets.field(name): item for name, item in value.items()}
        return _item_parts(self._shape, place, value) if isinstance(value, list) else None

    @staticmethod
    def _place_of(place: Place, part: str) -> Place:
        return (*place, part[2:]) if part.startswith("f:") else (*place, "*")


def merge(shape: Shape, live: Any, applied: Any, place: Place = ()) -> Any:
    """The live value with the applied one laid over it."""
    if _is_open_map(shape, place, applied) and isinstance(live, dict):
        merged = dict(live)
        for name, item in applied.items():
            merged[name] = merge(shape, live[name], item, (*place, name)) if name in live else clone(item)
        return merged
    if isinstance(applied, list) and isinstance(live, list):
        applied_parts = _item_parts(shape, place, applied)
        live_parts = _item_parts(shape, place, live)
        if applied_parts is not None and live_parts is not None:
            inner = (*place, "*")
            kept = [
                merge(shape, item, applied_parts[part], inner) if part in applied_parts else item
                for part, item in live_parts.items()
            ]
            return kept + [clone(item) for part, item in applied_parts.items() if part not in live_parts]
    return clone(applied)


def remove(shape: Shape, value: Any, gone: FieldSet, place: Place = ()) -> Any:
    """The value without the fields in `gone` (paths relative to it); maps and lists that this empties go too."""
    heads: dict[str, FieldSet] = {}
    for path in gone:
        heads.setdefault(path[0], set()).add(path[1:])
    if _is_open_map(shape, place, value):
        kept_map = {}
        for name, item in value.items():
            below = heads.get(field_sets.field(name), set())
            if () in below:
                continue
            left = remove(shape, item, below, (*place, name)) if below else item
            if left or not below:
                kept_map[name] = left
        return kept_map
    if isinstance(value, list):
        kept_list = []
        for part, item in (_item_parts(shape, place, value) or {}).items():
            below = heads.get(part, set())
            if () not in below:
                kept_list.append(remove(shape, item, below, (*place, "*")) if below else item)
        return kept_list
    return value
