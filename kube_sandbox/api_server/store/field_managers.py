"""Which manager set which field: metadata.managedFields, kept on every write, and server-side apply on top of it.

As k8s.io/apimachinery/pkg/util/managedfields. An update takes over the fields that it changes. An apply changes fields of other
managers only by force, and removes what the same manager applied before and no longer applies.

Fields are sets of paths. A path is a tuple of keys of FieldsV1, the JSON of managedFields: `f:name` for a field, `k:{...}` for an
item of a keyed list, `v:...` for a value of a set. The rules are those of sigs.k8s.io/structured-merge-diff.
https://kubernetes.io/docs/reference/using-api/server-side-apply/
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kube_sandbox.api_server.errors import StatusError
from kube_sandbox.api_server.store.metadata import timestamp
from kube_sandbox.api_server.values import clone

if TYPE_CHECKING:
    from kube_sandbox.api_server.resource_types import Behaviour
    from kube_sandbox.api_server.values import JsonObject

Path = tuple[str, ...]
FieldSet = set[Path]
# Where in the kind a value is: field names, `*` for the items of a list.
Place = tuple[str, ...]
# Fields without an owner: an object's identity and what only the server writes.
_UNOWNED = frozenset(
    [("f:apiVersion",), ("f:kind",), ("f:metadata",)]
    + [
        ("f:metadata", f"f:{name}")
        for name in ("name", "namespace", "creationTimestamp", "selfLink", "uid", "generation", "managedFields",
                     "resourceVersion", "deletionTimestamp", "deletionGracePeriodSeconds")
    ]
)  # fmt: skip


@dataclass(frozen=True)
class Author:
    """The field manager of a write, its API version, and the subresource that it writes to."""

    manager: str
    api_version: str
    subresource: str
    now_seconds: float


@dataclass
class _Entry:
    """One entry of managedFields, decoded."""

    manager: str
    operation: str
    api_version: str
    subresource: str
    time: str
    fields: FieldSet

    def is_by(self, author: Author, operation: str) -> bool:
        same = (self.manager, self.operation, self.subresource) == (author.manager, operation, author.subresource)
        return same and (operation == "Apply" or self.api_version == author.api_version)

    def encode(self) -> JsonObject:
        encoded: JsonObject = {
            "manager": self.manager,
            "operation": self.operation,
            "apiVersion": self.api_version,
            "time": self.time,
            "fieldsType": "FieldsV1",
            "fieldsV1": to_fields_v1(self.fields),
        }
        if self.subresource:
            encoded["subresource"] = self.subresource
        return encoded

    def shown(self) -> str:
        text = f'"{self.manager}"'
        if self.subresource:
            text += f' with subresource "{self.subresource}"'
        return text if self.operation == "Apply" else f"{text} using {self.api_version}"


def _decode(entries: list[JsonObject]) -> list[_Entry]:
    return [
        _Entry(
            manager=entry.get("manager", ""),
            operation=entry.get("operation", "Update"),
            api_version=entry.get("apiVersion", ""),
            subresource=entry.get("subresource", ""),
            time=entry.get("time", ""),
            fields=from_fields_v1(entry.get("fieldsV1") or {}),
        )
        for entry in entries
    ]


def _encode(entries: list[_Entry]) -> list[JsonObject]:
    kept = [entry for entry in entries if entry.fields]
    kept.sort(key=lambda entry: (entry.operation, entry.time, entry.manager))
    return [entry.encode() for entry in kept]


def _entry_of(entries: list[_Entry], author: Author, operation: str) -> _Entry:
    for entry in entries:
        if entry.is_by(author, operation):
            return entry
    created = _Entry(author.manager, operation, author.api_version, author.subresource, "", set())
    entries.append(created)
    return created


def track_update(
    kind: Behaviour, new: JsonObject, old: JsonObject | None, author: Author, *, ignores_status: bool = False
) -> None:
    """Set the managedFields of `new` after a create, update or patch."""
    live = old["metadata"].get("managedFields") if old is not None else None
    comparison = Comparison(kind, _content(old or {}), _content(new))
    changed, removed = comparison.set - _UNOWNED, comparison.removed - _UNOWNED
    if ignores_status and not author.subresource:
        changed = {path for path in changed if path[0] != "f:status"}
    if not changed and not removed:
        _put(new, live or [])
        return
    entries = _decode(live or [])
    own = _entry_of(entries, author, "Update")
    before = set(own.fields)
    for entry in entries:
        entry.fields -= removed
        if entry is not own:
            entry.fields -= changed
    own.fields |= changed
    if own.fields != before or not own.time:
        own.time = timestamp(author.now_seconds)
    _put(new, _encode(entries))


def _content(obj: JsonObject) -> JsonObject:
    """The object without managedFields."""
    metadata = {key: value for key, value in (obj.get("metadata") or {}).items() if key != "managedFields"}
    return {**obj, "metadata": metadata} if obj else {}


def _put(obj: JsonObject, entries: list[JsonObject]) -> None:
    if entries:
        obj["metadata"]["managedFields"] = entries
    else:
        obj["metadata"].pop("managedFields", None)


@dataclass(frozen=True)
class Applied:
    """A live object with an applied configuration merged in, before defaults and validation."""

    obj: JsonObject
    fields: FieldSet
    previous: FieldSet


def lay_over(kind: Behaviour, live: JsonObject, configuration: JsonObject, author: Author) -> Applied:
    """Merge the configuration into the live object, and remove what its manager no longer applies."""
    fields = all_fields(kind, configuration) - _UNOWNED
    entries = _decode(live["metadata"].get("managedFields") or [])
    own = next((entry for entry in entries if entry.is_by(author, "Apply")), None)
    previous = own.fields if own is not None else set()
    merged: Any = merge(kind, live, configuration)
    others: FieldSet = set()
    for entry in entries:
        if entry is not own:
            others |= entry.fields
    kept = {path[:length] for path in fields | others for length in range(1, len(path) + 1)}
    gone = {path for path in previous - fields if path not in kept}
    if gone:
        merged = without(kind, merged, gone)
    return Applied(merged, fields, set(previous))


def track_apply(
    kind: Behaviour, new: JsonObject, old: JsonObject | None, applied: Applied, author: Author, *, force: bool
) -> None:
    """Set the managedFields of `new` after an apply; 409 if it would change fields of other managers."""
    live = old["metadata"].get("managedFields") if old is not None else None
    entries = _decode(live or [])
    own = _entry_of(entries, author, "Apply")
    comparison = Comparison(kind, _content(old or {}), _content(new))
    contested = comparison.set & applied.fields
    conflicts = [
        (entry, path) for entry in entries if entry is not own for path in in_set_order(entry.fields & contested)
    ]
    if conflicts and not force:
        raise _conflict_error(conflicts)
    for entry in entries:
        if entry is not own:
            entry.fields -= contested | comparison.removed
    if own.fields != applied.fields or not own.time or comparison.set or comparison.removed:
        own.time = timestamp(author.now_seconds)
    own.fields, own.api_version = set(applied.fields), author.api_version
    _put(new, _encode(entries))


def _conflict_error(conflicts: list[tuple[_Entry, Path]]) -> StatusError:
    causes = [
        {"reason": "FieldManagerConflict", "message": f"conflict with {entry.shown()}", "field": path_shown(path)}
        for entry, path in conflicts
    ]
    if len(conflicts) == 1:
        entry, path = conflicts[0]
        message = f"Apply failed with 1 conflict: conflict with {entry.shown()}: {path_shown(path)}"
    else:
        lines: list[str] = []
        for shown in dict.fromkeys(entry.shown() for entry, _ in conflicts):
            lines.append(f"conflicts with {shown}:")
            lines.extend(f"- {path_shown(path)}" for entry, path in conflicts if entry.shown() == shown)
        message = f"Apply failed with {len(conflicts)} conflicts: " + "\n".join(lines)
    return StatusError(409, "Conflict", message, {"causes": causes})


def to_fields_v1(paths: FieldSet) -> JsonObject:
    """Return the nested form; `.` marks an inner path that is itself in the set."""
    root: JsonObject = {}
    for path in sorted(paths):  # a path comes before those below it
        node = root
        for depth, part in enumerate(path, start=1):
            if part not in node and path[: depth - 1] in paths:
                node["."] = {}
            node = node.setdefault(part, {})
    return root


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


def path_shown(path: Path) -> str:
    """Return a path as conflict messages print it: `.spec.containers[name="a"].image`."""
    text = ""
    for part in path:
        kind, rest = part[:2], part[2:]
        if kind == "k:":
            rest = ",".join(f"{name}={json.dumps(value)}" for name, value in json.loads(rest).items())
        text += {"f:": f".{rest}", "k:": f"[{rest}]"}.get(kind, f"[={rest}]")
    return text


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


def without(kind: Behaviour, value: Any, gone: FieldSet, place: Place = ()) -> Any:
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
        left = without(kind, item, below, inner) if below and () not in below else item
        if () not in below and (left or not below or isinstance(value, list)):
            kept[part] = left
    return _whole(value, kept)


def _whole(like: Any, parts: dict[str, Any]) -> Any:
    """The map or list that has these parts."""
    return list(parts.values()) if isinstance(like, list) else {part[2:]: item for part, item in parts.items()}
