"""From a request's path and query to what it is about.

Paths: https://kubernetes.io/docs/reference/using-api/api-concepts/#resource-uris.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, get_args

from kube_sandbox.api_server.errors import bad_request, no_such_path, not_found
from kube_sandbox.api_server.requests import Deletion, FieldValidation, Propagation, Selection, Write

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kube_sandbox.api_server.json_values import JsonObject
    from kube_sandbox.api_server.resource_types import ResourceType
    from kube_sandbox.api_server.store.registry import ResourceRegistry

_NAMESPACE_SUBRESOURCES = ("status", "finalize")


@dataclass(frozen=True)
class Target:
    """A collection (no name), an object, or one of its subresources."""

    resource: ResourceType
    namespace: str = ""
    name: str = ""
    subresource: str = ""


def find_target(registry: ResourceRegistry, path: str) -> Target:
    """The target of a path below /api or /apis; 404 for what is not served."""
    parts = [part for part in path.split("/") if part]
    if len(parts) >= 3 and parts[0] == "api":
        group, version, rest = "", parts[1], parts[2:]
    elif len(parts) >= 4 and parts[0] == "apis":
        group, version, rest = parts[1], parts[2], parts[3:]
    else:
        raise no_such_path()
    namespace = ""
    if rest[0] == "namespaces" and len(rest) >= 3 and not (not group and rest[2] in _NAMESPACE_SUBRESOURCES):
        namespace, rest = rest[1], rest[2:]
    resource = registry.find(group, version, rest[0])
    if resource is None or len(rest) > 3 or (namespace and not resource.namespaced):
        raise no_such_path()
    name = rest[1] if len(rest) > 1 else ""
    subresource = rest[2] if len(rest) > 2 else ""
    if name and resource.namespaced and not namespace:
        raise no_such_path()
    if subresource and subresource not in resource.subresources:
        raise not_found(resource.group_resource, name) if resource.custom else no_such_path()
    return Target(resource, namespace, name, subresource)


def is_true(text: str | None) -> bool:
    return text in ("1", "true", "True")


def whole_number(query: Mapping[str, str], key: str) -> int | None:
    """A non-negative integer of the query, None where it is not given."""
    text = query.get(key, "")
    if not text:
        return None
    if not text.isdigit():
        raise bad_request(f"{key}: expected a whole number, got {text!r}")
    return int(text)


def selection(target: Target, query: Mapping[str, str]) -> Selection:
    """The objects that list, watch and deletecollection speak of; a named target selects itself."""
    fields = query.get("fieldSelector", "")
    if target.name:
        fields = f"{fields},metadata.name={target.name}" if fields else f"metadata.name={target.name}"
    return Selection(target.namespace, query.get("labelSelector", ""), fields)


def write_options(query: Mapping[str, str], user_agent: str) -> Write:
    """dryRun, fieldManager, fieldValidation and force."""
    dry_run = query.get("dryRun", "")
    if dry_run not in ("", "All"):
        raise bad_request(f'dryRun: Unsupported value: "{dry_run}": supported values: "All"')
    validation = query.get("fieldValidation", "") or "Warn"
    if validation not in get_args(FieldValidation):
        raise bad_request(f'fieldValidation: Unsupported value: "{validation}"')
    manager = query.get("fieldManager", "") or user_agent.split("/", maxsplit=1)[0][:128] or "unknown"
    return Write(
        dry_run=bool(dry_run),
        field_manager=manager,
        field_validation=validation,  # type: ignore[arg-type]  # narrowed by get_args above
        force=is_true(query.get("force")),
        owns_body=True,
    )


def deletion_options(query: Mapping[str, str], body: JsonObject) -> Deletion:
    """DeleteOptions from the body, or from the query where the body has none."""
    preconditions = body.get("preconditions") or {}
    grace = body.get("gracePeriodSeconds")
    if grace is None:
        grace = whole_number(query, "gracePeriodSeconds")
    propagation: Any = body.get("propagationPolicy") or query.get("propagationPolicy", "")
    if propagation not in get_args(Propagation):
        raise bad_request(f'propagationPolicy: Unsupported value: "{propagation}"')
    if body.get("orphanDependents") is not None and not propagation:
        propagation = "Orphan" if body["orphanDependents"] else "Background"
    return Deletion(
        grace_period_seconds=grace,
        uid=preconditions.get("uid"),
        resource_version=preconditions.get("resourceVersion"),
        propagation=propagation,
        dry_run=bool(body.get("dryRun")) or bool(query.get("dryRun")),
    )
