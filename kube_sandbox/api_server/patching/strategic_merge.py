"""Strategic merge patch: a merge patch that knows which lists are keyed (k8s.io/apimachinery/pkg/util/strategicpatch).

Directives: `$patch: delete | replace | merge`, `$deleteFromPrimitiveList/<field>`, `$setElementOrder/<field>`,
`$retainKeys`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kube_sandbox.api_server.errors import bad_request
from kube_sandbox.api_server.json_values import JsonObject, clone
from kube_sandbox.api_server.kinds import shapes as builtin_shapes

if TYPE_CHECKING:
    from kube_sandbox.api_server.patching.field_walk import Place


def strategic_merge(target: Any, patch: JsonObject, place: Place = ()) -> Any:
    """The target with the patch applied; it is not changed."""
    directive = patch.get("$patch")
    if directive == "replace":
        return {key: clone(value) for key, value in patch.items() if key != "$patch"}
    if directive == "delete":
        return {}
    merged = dict(target) if isinstance(target, dict) else {}
    retained = patch.get("$retainKeys")
    if retained is not None:
        merged = {key: value for key, value in merged.items() if key in retained}
    for key, value in patch.items():
        if not key.startswith("$"):
            _merge_field(merged, key, value, (*place, key))
    _follow_list_directives(merged, patch, place)
    return merged


def _merge_field(merged: JsonObject, key: str, value: Any, place: Place) -> None:
    if value is None:
        merged.pop(key, None)
    else:
        merged[key] = _merged_value(merged.get(key), value, place)


def _follow_list_directives(merged: JsonObject, patch: JsonObject, place: Place) -> None:
    for key, value in patch.items():
        directive, slash, name = key.partition("/")
        if not slash or not isinstance(merged.get(name), list):
            continue
        if directive == "$deleteFromPrimitiveList":
            merged[name] = [item for item in merged[name] if item not in value]
        elif directive == "$setElementOrder":
            merged[name] = _ordered(merged[name], value, (*place, name))


def _merged_value(target: Any, value: Any, place: Place) -> Any:
    if isinstance(value, dict):
        return strategic_merge(target, value, place)
    if isinstance(value, list):
        return _merged_list(target if isinstance(target, list) else [], value, place)
    return value


def _merged_list(target: list[Any], patch: list[Any], place: Place) -> list[Any]:
    keys = builtin_shapes.merge_keys(place)
    if place[-1] == "finalizers":
        return target + [item for item in patch if item not in target]
    if keys is None or not all(isinstance(item, dict) for item in patch):
        return [clone(item) for item in patch]
    if any(item.get("$patch") == "replace" for item in patch):
        return [clone(item) for item in patch if "$patch" not in item]
    key = keys[0]
    merged = list(target)
    for item in patch:
        if key not in item:
            raise bad_request(f"map: {item} does not contain declared merge key: {key}")
        index = next((i for i, present in enumerate(merged) if present.get(key) == item[key]), None)
        if item.get("$patch") == "delete":
            if index is not None:
                del merged[index]
        elif index is None:
            merged.append(strategic_merge({}, item, (*place, "*")))
        else:
            merged[index] = strategic_merge(merged[index], item, (*place, "*"))
    return merged


def _ordered(items: list[Any], order: list[Any], place: Place) -> list[Any]:
    """Items in the wanted order; those it does not name keep their place at the end."""
    keys = builtin_shapes.merge_keys(place)

    def rank(item: Any) -> int:
        for index, wanted in enumerate(order):
            if item == wanted or (keys and isinstance(item, dict) and item.get(keys[0]) == wanted.get(keys[0])):
                return index
        return len(order)

    return sorted(items, key=rank)
