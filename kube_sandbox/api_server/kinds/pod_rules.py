"""What kube-apiserver refuses of the names in a PodSpec: of labels, taints, domains, other objects, resources and ports.

k8s.io/kubernetes/pkg/apis/core/validation/validation.go; complaints are worded as there. Pods and pod templates alike.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from kube_sandbox.api_server.errors import FieldError, duplicate, invalid, required, unsupported
from kube_sandbox.api_server.kinds.quantities import is_quantity, parse_quantity
from kube_sandbox.api_server.store.metadata import key_errors, label_errors, label_value_errors, name_errors

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kube_sandbox.api_server.json_values import JsonObject

_STANDARD_RESOURCES = ("cpu", "memory", "ephemeral-storage")
_NOT_STANDARD = "must be a standard resource for containers"
_NOT_KNOWN = "must be a standard resource type or fully qualified"
_NOT_EXTENDED = "doesn't follow extended resource name standard"
_OPERATORS = ("Equal", "Exists")
_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_ENVIRONMENT_NAME = re.compile(r"[^\x00-\x20\x7f-\U0010ffff=]+")
_PORT_NAME = re.compile(r"(?=.*[a-z])[a-z0-9]([a-z0-9]|-(?!-))*(?<!-)")
_PORT_NAME_RULE = "must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)"
_LONGEST_PORT_NAME = 15


def pod_spec_errors(spec: JsonObject, path: str) -> list[FieldError]:
    """All of them, of one PodSpec."""
    errors = label_errors(f"{path}.nodeSelector", spec.get("nodeSelector") or {})
    for key, rule in (("hostname", "label"), ("subdomain", "label")):
        if spec.get(key):
            errors += name_errors(f"{path}.{key}", spec[key], rule)
    for key in ("serviceAccountName", "priorityClassName", "runtimeClassName"):
        if spec.get(key):
            errors += name_errors(f"{path}.{key}", spec[key])
    for index, toleration in enumerate(spec.get("tolerations") or ()):
        errors += _toleration_errors(toleration, f"{path}.tolerations[{index}]")
    for index, spread in enumerate(spec.get("topologySpreadConstraints") or ()):
        if not spread.get("topologyKey"):
            errors.append(required(f"{path}.topologySpreadConstraints[{index}].topologyKey", "can not be empty"))
    for at, term in _affinity_terms(spec.get("affinity") or {}, f"{path}.affinity"):
        errors += _topology_key_errors(term, at)
    return errors + _containers_errors(spec, path)


def _toleration_errors(toleration: JsonObject, path: str) -> list[FieldError]:
    key, operator = toleration.get("key") or "", toleration.get("operator") or "Equal"
    value, effect = toleration.get("value") or "", toleration.get("effect") or ""
    errors = key_errors(f"{path}.key", key) if key else []
    if not key and operator != "Exists":
        detail = 'operator must be Exists when `key` is empty, which means "match all values and all keys"'
        errors.append(invalid(f"{path}.operator", operator, detail))
    if toleration.get("tolerationSeconds") is not None and effect != "NoExecute":
        errors.append(invalid(f"{path}.effect", effect, "effect must be 'NoExecute' when `tolerationSeconds` is set"))
    if operator == "Exists" and value:
        errors.append(invalid(f"{path}.operator", value, "value must be empty when `operator` is 'Exists'"))
    elif operator not in _OPERATORS:
        errors.append(unsupported(f"{path}.operator", operator, _OPERATORS))
    else:
        errors += label_value_errors(f"{path}.operator", value)
    if effect and effect not in _EFFECTS:
        errors.append(unsupported(f"{path}.effect", effect, _EFFECTS))
    return errors


def _topology_key_errors(term: JsonObject, path: str) -> list[FieldError]:
    key = term.get("topologyKey")
    if not key:
        return [required(f"{path}.topologyKey", "can not be empty")]
    return key_errors(f"{path}.topologyKey", key)


def _affinity_terms(affinity: JsonObject, path: str) -> Iterator[tuple[str, JsonObject]]:
    for kind in ("podAffinity", "podAntiAffinity"):
        terms = affinity.get(kind) or {}
        required_terms = "requiredDuringSchedulingIgnoredDuringExecution"
        for index, term in enumerate(terms.get(required_terms) or ()):
            yield f"{path}.{kind}.{required_terms}[{index}]", term
        preferred = "preferredDuringSchedulingIgnoredDuringExecution"
        for index, weighted in enumerate(terms.get(preferred) or ()):
            yield f"{path}.{kind}.{preferred}[{index}].podAffinityTerm", weighted.get("podAffinityTerm") or {}


def _containers_errors(spec: JsonObject, path: str) -> list[FieldError]:
    errors: list[FieldError] = []
    first: set[Any] = {one.get("name") for one in spec.get("containers") or ()}
    for index, container in enumerate(spec.get("initContainers") or ()):
        if container.get("name") in first:
            errors.append(duplicate(f"{path}.initContainers[{index}].name", container["name"]))
    for key in ("initContainers", "containers"):
        for index, container in enumerate(spec.get(key) or ()):
            errors += _container_errors(container, f"{path}.{key}[{index}]")
    return errors


def _container_errors(container: JsonObject, path: str) -> list[FieldError]:
    errors: list[FieldError] = []
    image = str(container.get("image") or "")
    if image != image.strip():
        errors.append(invalid(f"{path}.image", image, "must not have leading or trailing whitespace"))
    for index, entry in enumerate(container.get("env") or ()):
        name = entry.get("name") or ""
        if name and not _ENVIRONMENT_NAME.fullmatch(name):
            detail = "a valid environment variable name must consist only of printable ASCII characters other than '='"
            errors.append(invalid(f"{path}.env[{index}].name", name, detail))
    for index, port in enumerate(container.get("ports") or ()):
        name = port.get("name")
        if name and len(name) > _LONGEST_PORT_NAME:
            errors.append(invalid(f"{path}.ports[{index}].name", name, "must be no more than 15 characters"))
        elif name and not _PORT_NAME.fullmatch(name):
            errors.append(invalid(f"{path}.ports[{index}].name", name, _PORT_NAME_RULE))
    return errors + _resource_errors(container.get("resources") or {}, f"{path}.resources")


def _resource_errors(resources: JsonObject, path: str) -> list[FieldError]:
    limits = resources.get("limits") or {}
    errors = [
        error
        for kind in ("limits", "requests")
        for name in resources.get(kind) or {}
        for error in _resource_name_errors(f"{path}.{kind}[{name}]", name)
    ]
    for name, amount in (resources.get("requests") or {}).items():
        most = limits.get(name)
        if most is None or not (is_quantity(amount) and is_quantity(most)):
            continue
        if parse_quantity(amount) > parse_quantity(most):
            errors.append(invalid(f"{path}.requests", amount, f"must be less than or equal to {name} limit of {most}"))
    return errors


def _resource_name_errors(path: str, name: str) -> list[FieldError]:
    errors = key_errors(path, name)
    is_standard = name in _STANDARD_RESOURCES or name.startswith("hugepages-")
    if "/" in name:
        is_extended = not name.startswith("requests.") and not key_errors(path, f"requests.{name}")
        return errors if errors or is_extended else [invalid(path, name, _NOT_EXTENDED)]
    if is_standard:
        return errors
    unknown = [] if errors else [invalid(path, name, _NOT_KNOWN)]
    return [*errors, *unknown, invalid(path, name, _NOT_STANDARD)]
