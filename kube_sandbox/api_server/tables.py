"""Objects as a Table for people, as `kubectl get` asks for them. Each row has its whole object, whatever part of it was asked for.

https://kubernetes.io/docs/reference/using-api/api-concepts/#receiving-resources-as-tables
"""

from __future__ import annotations

import json
import re
from datetime import datetime
from typing import TYPE_CHECKING, Any

from kube_sandbox.api_server.resource_types import Column
from kube_sandbox.api_server.values import field_at

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from kube_sandbox.api_server.resource_types import ResourceType
    from kube_sandbox.api_server.store.storage import Version
    from kube_sandbox.api_server.values import JsonObject


def wants_table(accept: str) -> bool:
    """Whether an Accept header asks for a Table."""
    return "as=Table;v=v1;" in accept


def table(
    resource: ResourceType, versions: Iterable[Version], resource_version: int, *, now_seconds: float
) -> JsonObject:
    """Return a meta.k8s.io/v1 Table."""
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": {"resourceVersion": str(resource_version)},
        "columnDefinitions": [column.definition for column in resource.columns],
        "rows": [
            {"cells": [column.cell(version.obj, now_seconds) for column in resource.columns], "object": version.obj}
            for version in versions
        ],
    }


def printer_columns(entries: Iterable[JsonObject]) -> tuple[Column, ...]:
    """Return the columns of `additionalPrinterColumns`, after the name; name and age if there are none."""
    name = {"name": "Name", "type": "string", "format": "name", "jsonPath": ".metadata.name"}
    age = {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}
    columns = []
    for entry in (name, *(list(entries) or [age])):
        definition: JsonObject = {"format": "", "description": "", "priority": 0} | entry
        columns.append(Column(definition, _cell(_compiled(definition.pop("jsonPath")), entry["type"])))
    return tuple(columns)


def _cell(find: Callable[[Any], list[Any]], kind: str) -> Callable[[JsonObject, float], Any]:
    def cell(obj: JsonObject, now_seconds: float) -> Any:
        value = next(iter(find(obj)), None)
        if kind == "date" and value is not None:
            return _age(value, now_seconds)
        if kind == "string" and value is not None and not isinstance(value, str):
            return json.dumps(value, separators=(",", ":"))
        return value

    return cell


def _age(text: Any, now_seconds: float) -> str:
    """How long ago a timestamp was, in one unit: `90s`, `17m`, `5h`, `2d`."""
    try:
        seconds = int(now_seconds - datetime.fromisoformat(text).timestamp())
    except (TypeError, ValueError):
        return "<unknown>"
    size, unit = next((one for one in ((86_400, "d"), (3_600, "h"), (60, "m")) if seconds >= 2 * one[0]), (1, "s"))
    return f"{max(0, seconds) // size}{unit}"


_PART = re.compile(
    r"""\.(?P<name>[^.\[\]]+) | \[(?P<index>\d+)\] | \[\*\]
    | \[\?\(@\.(?P<key>[^=<>()]+?)\s*==\s*["'](?P<value>[^"']*)["']\)\]""",
    re.VERBOSE,
)


def _compiled(path: str) -> Callable[[Any], list[Any]]:
    """Return a function that finds all values at a JSON path; ValueError for one that is not simple.

    Simple are `.a.b`, `.a[0]`, `.list[*].b` and `.list[?(@.type=="Ready")].status`.
    """
    steps, position = [], 0
    while position < len(path):
        step = _PART.match(path, position)
        if step is None:
            raise ValueError(f"cannot read JSON path {path!r} at {path[position:]!r}")
        steps.append(step)
        position = step.end()

    def find(value: Any) -> list[Any]:
        values = [value]
        for step in steps:
            values = [result for item in values for result in _results(step, item)]
        return values

    return find


def _results(step: re.Match[str], value: Any) -> list[Any]:
    if step["name"]:
        return [value[step["name"]]] if isinstance(value, dict) and step["name"] in value else []
    if not isinstance(value, list):
        return []
    if step["index"]:
        return value[int(step["index"]) :][:1]
    return [item for item in value if step["key"] is None or str(field_at(item, step["key"])) == step["value"]]
