"""Which manager set which field: metadata.managedFields, kept on every write, and server-side apply on top of it.

As k8s.io/apimachinery/pkg/util/managedfields. An update takes over the fields that it changes. An apply changes fields of other
managers only by force, and removes what the same manager applied before and no longer applies.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kube_sandbox.api_server.errors import StatusError
from kube_sandbox.api_server.store import field_sets
from kube_sandbox.api_server.store.metadata import timestamp

if TYPE_CHECKING:
    from kube_sandbox.api_server.resource_types import Behaviour
    from kube_sandbox.api_server.store.field_sets import FieldSet
    from kube_sandbox.api_server.values import JsonObject

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
            "fieldsV1": field_sets.to_fields_v1(self.fields),
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
            fields=field_sets.from_fields_v1(entry.get("fieldsV1") or {}),
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
    comparison = field_sets.Comparison(kind, _content(old or {}), _content(new))
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
    fields = field_sets.all_fields(kind, configuration) - _UNOWNED
    entries = _decode(live["metadata"].get("managedFields") or [])
    own = next((entry for entry in entries if entry.is_by(author, "Apply")), None)
    previous = own.fields if own is not None else set()
    merged: Any = field_sets.merge(kind, live, configuration)
    others: FieldSet = set()
    for entry in entries:
        if entry is not own:
            others |= entry.fields
    kept = _with_parents(fields | others)
    gone = {path for path in previous - fields if path not in kept}
    if gone:
        merged = field_sets.remove(kind, merged, gone)
    return Applied(merged, fields, set(previous))


def _with_parents(paths: FieldSet) -> FieldSet:
    return {path[:length] for path in paths for length in range(1, len(path) + 1)}


def track_apply(
    kind: Behaviour, new: JsonObject, old: JsonObject | None, applied: Applied, author: Author, *, force: bool
) -> None:
    """Set the managedFields of `new` after an apply; 409 if it would change fields of other managers."""
    live = old["metadata"].get("managedFields") if old is not None else None
    entries = _decode(live or [])
    own = _entry_of(entries, author, "Apply")
    comparison = field_sets.Comparison(kind, _content(old or {}), _content(new))
    contested = comparison.set & applied.fields
    conflicts = [
        (entry, path)
        for entry in entries
        if entry is not own
        for path in field_sets.in_set_order(entry.fields & contested)
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


def _conflict_error(conflicts: list[tuple[_Entry, field_sets.Path]]) -> StatusError:
    causes = [
        {"reason": "FieldManagerConflict", "message": f"conflict with {entry.shown()}", "field": field_sets.shown(path)}
        for entry, path in conflicts
    ]
    if len(conflicts) == 1:
        entry, path = conflicts[0]
        message = f"Apply failed with 1 conflict: conflict with {entry.shown()}: {field_sets.shown(path)}"
    else:
        lines: list[str] = []
        for shown in dict.fromkeys(entry.shown() for entry, _ in conflicts):
            lines.append(f"conflicts with {shown}:")
            lines.extend(f"- {field_sets.shown(path)}" for entry, path in conflicts if entry.shown() == shown)
        message = f"Apply failed with {len(conflicts)} conflicts: " + "\n".join(lines)
    return StatusError(409, "Conflict", message, {"causes": causes})
