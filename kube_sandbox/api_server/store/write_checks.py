"""What every write must pass, whatever its verb: shape, preconditions, the kind's own rules."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from kube_sandbox.api_server.errors import StatusError, bad_request, conflict, invalid, invalid_object
from kube_sandbox.api_server.store import metadata
from kube_sandbox.api_server.values import clone

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kube_sandbox.api_server.requests import Write
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
