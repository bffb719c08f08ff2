"""What a write goes through, whatever its verb: patch formats, shape, preconditions, the kind's own rules.

Patches are JSON patch (RFC 6902), merge patch (RFC 7396), and of strategic merge what kubectl and operators use: the items of keyed
lists merge by their first key, `$patch: delete` deletes one, and `finalizers` are added to. Other directives are ignored: an order
of items that a patch asks for is not kept.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import jsonpatch
import jsonpointer

from kube_sandbox.api_server.errors import StatusError, bad_request, conflict, invalid, invalid_object
from kube_sandbox.api_server.kinds.model_schemas import merge_keys
from kube_sandbox.api_server.store import metadata
from kube_sandbox.api_server.values import JsonObject, clone

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kube_sandbox.api_server.requests import PatchKind, Write
    from kube_sandbox.api_server.resource_types import ResourceType
    from kube_sandbox.api_server.values import JsonObject


def check_body(resource: ResourceType, obj: JsonObject, namespace: str, name: str, write: Write) -> None:
    """Raise 400 if the body names another object than the request; drop, report or refuse unknown fields."""
    if not isinstance(obj, dict):
        raise bad_request(f"the body must be an object, got {type(obj).__name__}")
    metadata.check_shape(obj, resource)
    meta = obj["metadata"]
    if resource.namespaced and meta.get("namespace", namespace) != namespace:
        raise bad_request(
            f"the namespace of the provided object does not match the namespace sent on the request"
            f" ({meta['namespace']!r} and {namespace!r})"
        )
    if not resource.namespaced:
        meta.pop("namespace", None)
    if name and meta.get("name", name) != name:
        raise bad_request(f"the name of the object ({meta['name']}) does not match the name on the URL ({name})")
    unknown = [] if write.trusted else resource.behaviour.drop_unknown_fields(obj)
    if unknown and write.field_validation == "Strict":
        listed = ", ".join(f'unknown field "{path}"' for path in unknown)
        if write.patch_kind in ("json", "merge"):
            # The real one prints the whole patched object before the colon.
            text = f"Invalid value: strict decoding error: {listed}"
            cause = {"reason": "FieldValueInvalid", "message": text, "field": "patch"}
            raise StatusError(422, "Invalid", f' "" is invalid: patch: {text}', {"causes": [cause]})
        raise bad_request(
            f'{resource.kind} in version "{resource.version}" cannot be handled as a {resource.kind}:'
            f" strict decoding error: {listed}"
        )
    if write.field_validation == "Warn":
        write.warnings.extend(f'unknown field "{path}"' for path in unknown)


def check_declared(resource: ResourceType, configuration: JsonObject) -> None:
    """Raise 500 for an applied configuration with a field that the kind does not have, whatever fieldValidation is.

    Not 400: k8s.io/apimachinery/pkg/util/managedfields fails with a plain error (measured with kube-apiserver 1.35).
    """
    unknown = resource.behaviour.drop_unknown_fields(clone(configuration))
    if not unknown:
        return
    told = [f"{_typed_path(resource, configuration, path)}: field not declared in schema" for path in sorted(unknown)]
    listed = told[0] if len(told) == 1 else "errors:\n" + "\n".join(f"  {one}" for one in told)
    meta = configuration.get("metadata") or {}
    whose = (
        f"{meta.get('namespace', '')}/{meta.get('name', '')}; {resource.group}/{resource.version}, Kind={resource.kind}"
    )
    raise StatusError(500, "", f"failed to create typed patch object ({whose}): {listed}")


def _typed_path(resource: ResourceType, value: Any, path: str) -> str:
    """The path with items of keyed lists by their keys: `.spec.containers[name="a"].odd`."""
    shown, kinds = "", []
    for step in path.replace("[", ".[").split("."):
        if not step.startswith("["):
            shown += f".{step}"
            kinds.append(step)
            value = value.get(step)
            continue
        value = value[int(step[1:-1])]
        keys = resource.behaviour.list_map_keys(tuple(kinds))
        kinds.append("*")
        shown += f"[{','.join(f'{key}={json.dumps(value.get(key))}' for key in sorted(keys))}]" if keys else step
    return shown


def check_preconditions(resource: ResourceType, name: str, new: JsonObject, old: JsonObject, write: Write) -> None:
    """Raise 409 unless uid and resourceVersion of the body are those of the stored object.

    A patch with another uid tries to change it, and is 422: only a PUT has preconditions (measured with kube-apiserver 1.35).
    """
    wanted_uid = new.get("uid")
    is_another = bool(wanted_uid) and wanted_uid != old["metadata"]["uid"]
    if is_another and write.patch_kind is None:
        why = f"Precondition failed: UID in precondition: {wanted_uid}, UID in object meta: {old['metadata']['uid']}"
        raise conflict(resource.group_resource, name, why)
    expected = new.get("resourceVersion")
    if expected and expected != "0" and expected != old["metadata"]["resourceVersion"]:
        why = "the object has been modified; please apply your changes to the latest version and try again"
        raise conflict(resource.group_resource, name, why)
    if is_another:
        complaint = invalid("metadata.uid", wanted_uid, "field is immutable")
        raise invalid_object(resource.group, resource.kind, name, [complaint])


def judge(
    resource: ResourceType, new: JsonObject, old: JsonObject | None, subresource: str, others: Iterable[JsonObject]
) -> None:
    """Raise 422 with all complaints about the object as it would be stored; if none, with those beside others of its kind."""
    old_metadata = old["metadata"] if old is not None else None
    errors = metadata.validate(new["metadata"], old_metadata, name_rule=resource.behaviour.name_rule)
    errors += resource.behaviour.validate(new, old, subresource)
    if errors or (errors := resource.behaviour.judge_among(new, others)):
        raise invalid_object(resource.group, resource.kind, new["metadata"].get("name", ""), errors)


def without_apply_times(obj: JsonObject) -> JsonObject:
    """Return the object without the times of managedFields, which do not count as a change."""
    entries = obj["metadata"].get("managedFields")
    if entries is None:
        return obj
    timeless = [{key: value for key, value in entry.items() if key != "time"} for entry in entries]
    return {**obj, "metadata": {**obj["metadata"], "managedFields": timeless}}


def content(obj: JsonObject, resource: ResourceType) -> JsonObject:
    """Return the part of an object whose changes generation counts."""
    left_out = ("metadata", "status") if resource.has_status else ("metadata",)
    return {key: value for key, value in obj.items() if key not in left_out}


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
