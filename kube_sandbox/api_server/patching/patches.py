"""The patch formats that need no knowledge of the kind: JSON patch (RFC 6902) and JSON merge patch (RFC 7396)."""

from __future__ import annotations

from typing import Any

import jsonpatch
import jsonpointer

from kube_sandbox.api_server.errors import bad_request, unprocessable
from kube_sandbox.api_server.json_values import JsonObject, clone


def json_patch(obj: JsonObject, operations: Any) -> JsonObject:
    """RFC 6902; a failed `test`, or a path that is not there, is 422 as from kube-apiserver."""
    if not isinstance(operations, list):
        raise bad_request(f"a JSON patch is an array of operations, got {type(operations).__name__}")
    try:
        patched = jsonpatch.apply_patch(obj, operations, in_place=False)
    except jsonpatch.InvalidJsonPatch as error:
        raise bad_request(f"error decoding patch: {error}") from error
    except (jsonpatch.JsonPatchException, jsonpointer.JsonPointerException) as error:
        raise unprocessable(str(error)) from error
    if not isinstance(patched, dict):
        raise bad_request("a JSON patch must leave an object behind")
    return patched


def merge_patch(target: Any, patch: Any) -> Any:
    """RFC 7396: null removes, objects merge, all else replaces."""
    if not isinstance(patch, dict):
        return clone(patch)
    merged = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge_patch(merged.get(key), value)
    return merged
