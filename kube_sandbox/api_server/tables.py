"""Objects as a Table for people, as `kubectl get` asks for them.

https://kubernetes.io/docs/reference/using-api/api-concepts/#receiving-resources-as-tables
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

from kube_sandbox.api_server.resource_types import Column
from kube_sandbox.api_server.values import compile_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from kube_sandbox.api_server.resource_types import ResourceType
    from kube_sandbox.api_server.store.storage import Version
    from kube_sandbox.api_server.values import JsonObject

IncludeObject = Literal["None", "Metadata", "Object"]


def wants_table(accept: str) -> bool:
    """Whether an Accept header asks for a Table."""
    return "as=Table;v=v1;" in accept


def table(
    resource: ResourceType,
    versions: Iterable[Version],
    resource_version: int,
    *,
    include: IncludeObject,
    now_seconds: float,
    with_columns: bool = True,
) -> JsonObject:
    """Return a meta.k8s.io/v1 Table; a watch leaves the columns out after its first event."""
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": {"resourceVersion": str(resource_version)},
        "columnDefinitions": [column.definition for column in resource.columns] if with_columns else None,
        "rows": [_row(resource.columns, version.obj, include, now_seconds) for version in versions],
    }


def _row(columns: Iterable[Column], obj: JsonObject, include: IncludeObject, now_seconds: float) -> JsonObject:
    row: JsonObject = {"cells": [column.cell(obj, now_seconds) for column in columns]}
    if include == "Object":
        row["object"] = obj
    elif include == "Metadata":
        row["object"] = {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": obj["metadata"]}
    return row


def printer_columns(entries: Iterable[JsonObject]) -> tuple[Column, ...]:
    """Return the columns of `additionalPrinterColumns`, after the name; name and age if there are none."""
    name = {"name": "Name", "type": "string", "format": "name", "jsonPath": ".metadata.name"}
    age = {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}
    given = list(entries) or [age]
    return tuple(_printer_column(entry) for entry in (name, *given))


def _printer_column(entry: JsonObject) -> Column:
    empty = {"format": "", "description": "", "priority": 0}
    definition = empty | {key: value for key, value in entry.items() if key != "jsonPath"}
    return Column(definition, _cell(compile_path(entry["jsonPath"]), entry["type"]))


def _cell(find: Callable[[Any], list[Any]], kind: str) -> Callable[[JsonObject, float], Any]:
    def cell(obj: JsonObject, now_seconds: float) -> Any:
        found = find(obj)
        return _shown(found[0], kind, now_seconds) if found and found[0] is not None else None

    return cell


def _shown(value: Any, kind: str, now_seconds: float) -> Any:
    """The value as a column of this type shows it; None where it has another type."""
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
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return "[" + ",".join(_quoted(item) for item in value) + "]"
    if isinstance(value, dict):
        return "{" + ",".join(f'"{key}":{_quoted(item)}' for key, item in value.items()) + "}"
    return str(value)


def _quoted(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else _text(value)


_MINUTE, _HOUR, _DAY, _YEAR = 60, 3_600, 86_400, 365 * 86_400
# Below this many seconds: the first unit and, unless 0, the second.
_STEPS = (
    (2 * _MINUTE, 1, "s", 0, ""),
    (10 * _MINUTE, _MINUTE, "m", 1, "s"),
    (3 * _HOUR, _MINUTE, "m", 0, ""),
    (8 * _HOUR, _HOUR, "h", _MINUTE, "m"),
    (2 * _DAY, _HOUR, "h", 0, ""),
    (8 * _DAY, _DAY, "d", _HOUR, "h"),
    (2 * _YEAR, _DAY, "d", 0, ""),
)


def age(text: Any, now_seconds: float) -> str:
    """Return how long ago a timestamp was, as kubectl prints it: `5s`, `2m30s`, `17m`, `3h5m`, `2d4h`, `400d`, `3y`."""
    try:
        whole = int(now_seconds - datetime.fromisoformat(text).timestamp())
    except (TypeError, ValueError):
        return "<unknown>"
    if whole < 0:
        return "0s" if whole >= -1 else "<invalid>"
    for below, first, first_unit, second, second_unit in _STEPS:
        if whole < below:
            rest = whole % first // second if second else 0
            return f"{whole // first}{first_unit}" + (f"{rest}{second_unit}" if rest else "")
    return f"{whole // _YEAR}y"
