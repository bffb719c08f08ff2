"""The patch formats: JSON patch (RFC 6902), JSON merge patch (RFC 7396), and what kubectl and the operator use of strategic merge.

Strategic merge here is a merge patch that merges the items of keyed lists by their first key, deletes an item by
`$patch: delete`, and adds to `finalizers`. Other directives are ignored: an order of items that a patch asks for is not kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jsonpatch
import jsonpointer

from kube_sandbox.api_server.errors import StatusError, bad_request
from kube_sandbox.api_server.kinds.model_schemas import merge_keys
from kube_sandbox.api_server.values import JsonObject, clone

if TYPE_CHECKING:
    from kube_sandbox.api_server.requests import PatchKind


def patched(kind: PatchKind, obj: JsonObject, patch: Any) -> JsonObject:
    """Return the object with the patch applied; the object itself may be changed."""
    if kind == "json":
        return _json_patch(obj, patch)
    if not isinstance(patch, dict):
        raise bad_request(f"a {kind} patch is an object, got {type(patch).__name__}")
    merged: JsonObject = _merge(obj, patch, None if kind == "merge" else ())
    return merged


def _json_patch(obj: JsonObject, operations: Any) -> JsonObject:
    """A failed `test`, or a path that is missing, is 422."""
    if not isinstance(operations, list):
        raise bad_request(f"a JSON patch is an array of operations, got {type(operations).__name__}")
    try:
        changed = jsonpatch.apply_patch(obj, operations, in_place=False)
    except jsonpatch.InvalidJsonPatch as error:
        raise bad_request(f"error decoding patch: {error}") from error
    except (jsonpatch.JsonPatchException, jsonpointer.JsonPointerException) as error:
        message = f"the server rejected our request due to an error in our request: {error}"
        raise StatusError(422, "Invalid", message, {}) from error
    if not isinstance(changed, dict):
        raise bad_request("a JSON patch must leave an object behind")
    return changed


def _merge(target: Any, patch: Any, place: tuple[str, ...] | None) -> Any:
    """RFC 7396: null removes, objects merge, all else replaces; `place` is where in the kind, None without list keys."""
    if not isinstance(patch, dict):
        return clone(patch)
    merged = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        inner = None if place is None else (*place, key)
        if inner is not None and key.startswith("$"):
            continue
        if value is None:
            merged.pop(key, None)
        elif inner is not None and isinstance(value, list):
            merged[key] = _merged_list(merged.get(key) or [], value, inner)
        else:
            merged[key] = _merge(merged.get(key), value, inner)
    return merged


def _merged_list(target: list[Any], patch: list[Any], place: tuple[str, ...]) -> list[Any]:
    if place[-1] == "finalizers":
        return target + [item for item in patch if item not in target]
    keys = merge_keys(place)
    if keys is None or not all(isinstance(item, dict) for item in patch):
        return [clone(item) for item in patch]
    merged = {item.get(keys[0]): item for item in target}
    for item in patch:
        if keys[0] not in item:
            raise bad_request(f"map: {item} does not contain declared merge key: {keys[0]}")
        if item.get("$patch") == "delete":
            merged.pop(item[keys[0]], None)
        else:
            merged[item[keys[0]]] = _merge(merged.get(item[keys[0]], {}), item, (*place, "*"))
    return list(merged.values())
