"""Objects as a client wants to see them: whole, as a Table for people, or only their metadata.

https://kubernetes.io/docs/reference/using-api/api-concepts/#receiving-resources-as-tables
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Literal

from kube_sandbox.api_server.resource_types import Column
from kube_sandbox.api_server.tables.human_time import age
from kube_sandbox.api_server.tables.json_path import compile_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from kube_sandbox.api_server.json_values import JsonObject
    from kube_sandbox.api_server.resource_types import ResourceType
    from kube_sandbox.api_server.store.storage import Version

View = Literal["Object", "Table", "PartialObjectMetadata"]
IncludeObject = Literal["None", "Metadata", "Object"]


def wanted_view(accept: str) -> View:
    """The first form in an Accept header that this server has."""
    for part in accept.split(","):
        found = re.search(r"as=(\w+)", part)
        if found is None:
            if part.split(";")[0].strip() in ("application/json", "*/*", "application/*"):
                return "Object"
        elif "v=v1beta1" not in part:
            if found[1] == "Table":
                return "Table"
            if found[1] in ("PartialObjectMetadata", "PartialObjectMetadataList"):
                return "PartialObjectMetadata"
    return "Object"


def partial_metadata(obj: JsonObject) -> JsonObject:
    return {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": obj["metadata"]}


def table(
    resource: ResourceType,
    versions: Iterable[Version],
    *,
    list_metadata: JsonObject,
    include: IncludeObject,
    now_seconds: float,
    with_columns: bool = True,
) -> JsonObject:
    """A meta.k8s.io/v1 Table; a watch leaves the columns out after its first event."""
    columns = resource.columns
    definitions = [_definition(column) for column in columns] if with_columns else None
    rows = [_row(columns, version.obj, include, now_seconds) for version in versions]
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": list_metadata,
        "columnDefinitions": definitions,
        "rows": rows,
    }


def _definition(column: Column) -> JsonObject:
    return {
        "name": column.name,
        "type": column.type,
        "format": column.format,
        "description": column.description,
        "priority": column.priority,
    }


def _row(columns: Iterable[Column], obj: JsonObject, include: IncludeObject, now_seconds: float) -> JsonObject:
    row: JsonObject = {"cells": [column.cell(obj, now_seconds) for column in columns]}
    if include == "Object":
        row["object"] = obj
    elif include == "Metadata":
        row["object"] = partial_metadata(obj)
    return row


def printer_columns(entries: Iterable[JsonObject]) -> tuple[Column, ...]:
    """The name, and the `additionalPrinterColumns`; with none, name and age."""
    name = Column("Name", lambda obj, _: str(obj["metadata"].get("name", "")), format="name")
    listed = list(entries) or [{"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}]
    return (name, *(_printer_column(entry) for entry in listed))


def _printer_column(entry: JsonObject) -> Column:
    find, kind = compile_path(entry["jsonPath"]), entry["type"]
    return Column(
        entry["name"],
        _cell(find, kind),
        type=kind,
        format=entry.get("format", ""),
        description=entry.get("description", ""),
        priority=entry.get("priority", 0),
    )


def _cell(find: Callable[[Any], list[Any]], kind: str) -> Callable[[JsonObject, float], Any]:
    def cell(obj: JsonObject, now_seconds: float) -> Any:
        found = find(obj)
        if not found or found[0] is None:
            return None
        return _shown(found[0], kind, now_seconds)

    return cell


def _shown(value: Any, kind: str, now_seconds: float) -> Any:
    match kind:
        case "date":
            return age(value, now_seconds)
        case "string":
            return _text(value)
        case "integer" if type(value) in (int, float):
            return int(value)
        case "number" if type(value) in (int, float):
            return value
        case "boolean" if isinstance(value, bool):
            return value
    return None


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return "[" + ",".join(f'"{item}"' if isinstance(item, str) else _text(item) for item in value) + "]"
    if isinstance(value, dict):
        return "{" + ",".join(f'"{key}":{_quoted(item)}' for key, item in value.items()) + "}"
    return str(value)


def _quoted(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else _text(value)
