"""What kube-apiserver refuses of built-in objects: the rules a client of this project can break.

k8s.io/kubernetes/pkg/apis/core/validation/validation.go; complaints are worded as there.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from kube_sandbox.api_server.errors import (
    FieldError,
    duplicate,
    forbidden_field,
    invalid,
    missing_reference,
    required,
    unsupported,
)
from kube_sandbox.api_server.json_values import clone, field_at
from kube_sandbox.api_server.kinds.pod_rules import pod_spec_errors
from kube_sandbox.api_server.kinds.quantities import is_quantity
from kube_sandbox.api_server.store.metadata import label_errors, name_errors

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kube_sandbox.api_server.json_values import JsonObject

_POD_UPDATE = (
    "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,"
    "`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),"
    "`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"
)
_CLAIM_UPDATE = (
    "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims"
)
_CONFIG_KEY_RULE = (
    "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or 'KEY_NAME',  or"
    " 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')"
)
_PORT_RANGE = "must be between 1 and 65535, inclusive"


def _port_errors(path: str, port: Any) -> list[FieldError]:
    if port is None or port == 0:
        return [required(path)]
    return [] if type(port) is int and 1 <= port <= 65535 else [invalid(path, port, _PORT_RANGE)]


def _label_errors(path: str, name: Any) -> list[FieldError]:
    if not name:
        return [required(path)]
    return name_errors(path, str(name), "label")


def _unique_names(items: list[JsonObject], path: str) -> list[FieldError]:
    errors, seen = [], set()
    for index, item in enumerate(items):
        name = item.get("name")
        if name in seen:
            errors.append(duplicate(f"{path}[{index}].name", name))
        seen.add(name)
    return errors


def pod_errors(pod: JsonObject, old: JsonObject | None) -> list[FieldError]:
    """Pods: what a new one must have, and that hardly anything of it may change."""
    spec = pod.get("spec") or {}
    if old is not None:
        return _pod_update_errors(spec, old.get("spec") or {})
    volumes = spec.get("volumes") or []
    errors = _unique_names(volumes, "spec.volumes")
    for index, volume in enumerate(volumes):
        errors += _label_errors(f"spec.volumes[{index}].name", volume.get("name"))
    containers = spec.get("containers") or []
    if not containers:
        errors.append(required("spec.containers"))
    errors += _unique_names(containers, "spec.containers")
    names = {volume.get("name") for volume in volumes}
    for key in ("initContainers", "containers"):
        for index, container in enumerate(spec.get(key) or ()):
            errors += _container_errors(container, f"spec.{key}[{index}]", names)
    if spec.get("restartPolicy") not in ("Always", "OnFailure", "Never"):
        errors.append(unsupported("spec.restartPolicy", spec.get("restartPolicy"), ("Always", "OnFailure", "Never")))
    return errors + pod_spec_errors(spec, "spec")


def workload_errors(workload: JsonObject, _old: JsonObject | None) -> list[FieldError]:
    """StatefulSets and Deployments: the pods that are to be made of them."""
    template = (workload.get("spec") or {}).get("template") or {}
    errors = label_errors("spec.template.labels", (template.get("metadata") or {}).get("labels") or {})
    return errors + pod_spec_errors(template.get("spec") or {}, "spec.template.spec")


def _container_errors(container: JsonObject, path: str, volumes: set[Any]) -> list[FieldError]:
    errors = _label_errors(f"{path}.name", container.get("name"))
    if not container.get("image"):
        errors.append(required(f"{path}.image"))
    for index, port in enumerate(container.get("ports") or ()):
        errors += _port_errors(f"{path}.ports[{index}].containerPort", port.get("containerPort"))
    for index, entry in enumerate(container.get("env") or ()):
        if not entry.get("name"):
            errors.append(required(f"{path}.env[{index}].name"))
    seen: set[str] = set()
    for index, mount in enumerate(container.get("volumeMounts") or ()):
        at = f"{path}.volumeMounts[{index}]"
        if mount.get("name") not in volumes:
            errors.append(missing_reference(f"{at}.name", mount.get("name", "")))
        if not mount.get("mountPath"):
            errors.append(required(f"{at}.mountPath"))
        elif mount["mountPath"] in seen:
            errors.append(invalid(f"{at}.mountPath", mount["mountPath"], "must be unique"))
        seen.add(mount.get("mountPath", ""))
    return errors + _resource_errors(container.get("resources") or {}, f"{path}.resources")


def _resource_errors(resources: JsonObject, path: str) -> list[FieldError]:
    return [
        invalid(f"{path}.{kind}[{name}]", amount, "must be a quantity")
        for kind in ("limits", "requests")
        for name, amount in (resources.get(kind) or {}).items()
        if not is_quantity(amount)
    ]


def _pod_update_errors(spec: JsonObject, old: JsonObject) -> list[FieldError]:
    changed = clone(spec)
    for key in ("containers", "initContainers"):
        new_items, old_items = changed.get(key) or [], old.get(key) or []
        if len(new_items) == len(old_items):
            for new_item, old_item in zip(new_items, old_items, strict=True):
                new_item["image"] = old_item.get("image")
    for key in ("activeDeadlineSeconds", "tolerations"):
        if key in old:
            changed[key] = old[key]
        else:
            changed.pop(key, None)
    return [] if changed == old else [forbidden_field("spec", _POD_UPDATE)]


def service_errors(service: JsonObject, old: JsonObject | None) -> list[FieldError]:
    """Services."""
    spec = service.get("spec") or {}
    ports = spec.get("ports") or []
    errors: list[FieldError] = []
    if not ports and spec.get("clusterIP") != "None" and spec.get("type") != "ExternalName":
        errors.append(required("spec.ports"))
    for index, port in enumerate(ports):
        if len(ports) > 1 and not port.get("name"):
            errors.append(required(f"spec.ports[{index}].name"))
        errors += _port_errors(f"spec.ports[{index}].port", port.get("port"))
        if type(port.get("targetPort")) is int:
            errors += _port_errors(f"spec.ports[{index}].targetPort", port["targetPort"])
    errors += _unique_names([port for port in ports if port.get("name")], "spec.ports")
    kinds = ("ClusterIP", "ExternalName", "LoadBalancer", "NodePort")
    if spec.get("type") not in kinds:
        errors.append(unsupported("spec.type", spec.get("type"), kinds))
    before = field_at(old, "spec.clusterIP") if old is not None else None
    if before and field_at(old, "spec.type") != "ExternalName" and spec.get("clusterIP") != before:
        errors.append(invalid("spec.clusterIPs[0]", spec.get("clusterIPs") or [""], "may not change once set"))
    return errors


def node_port_errors(service: JsonObject, others: Iterable[JsonObject]) -> list[FieldError]:
    """A number is given once in the cluster, whatever the protocol; the real one stops at the first that is not free."""
    wanted = _node_ports(service)
    taken = {number for other in others for number in _node_ports(other).values()} if wanted else set()
    found = [(index, number) for index, number in wanted.items() if number in taken]
    return [
        invalid(f"spec.ports[{index}].nodePort", number, "provided port is already allocated")
        for index, number in found[:1]
    ]


def _node_ports(service: JsonObject) -> dict[int, int]:
    ports = (service.get("spec") or {}).get("ports") or []
    return {index: port["nodePort"] for index, port in enumerate(ports) if port.get("nodePort")}


def claim_errors(claim: JsonObject, old: JsonObject | None) -> list[FieldError]:
    """PersistentVolumeClaims: the size may grow once bound, nothing else changes."""
    spec = claim.get("spec") or {}
    errors: list[FieldError] = []
    if not spec.get("accessModes"):
        errors.append(required("spec.accessModes", "at least 1 access mode is required"))
    if spec.get("storageClassName"):
        errors += name_errors("spec.storageClassName", spec["storageClassName"])
    size = field_at(spec, "resources.requests.storage")
    if size is None:
        errors.append(required("spec.resources[storage]"))
    elif not is_quantity(size):
        errors.append(invalid("spec.resources.requests[storage]", size, "must be a quantity"))
    if old is not None and not errors:
        frozen, before = clone(spec), clone(old.get("spec") or {})
        for part in (frozen, before):
            part.pop("volumeName" if not field_at(old, "spec.volumeName") else "", None)
            if field_at(old, "status.phase") == "Bound":
                part.pop("resources", None)
        if frozen != before:
            errors.append(forbidden_field("spec", _CLAIM_UPDATE))
    return errors


def config_map_errors(config_map: JsonObject, old: JsonObject | None) -> list[FieldError]:
    """ConfigMaps and Secrets."""
    errors = [
        invalid(f"{field}[{key}]", key, _CONFIG_KEY_RULE)
        for field in ("data", "binaryData")
        for key in config_map.get(field) or {}
        if not re.fullmatch(r"[-._a-zA-Z0-9]+", key)
    ]
    if old is not None and old.get("immutable"):
        errors += [
            forbidden_field(field, "field is immutable when `immutable` is set")
            for field in ("data", "binaryData", "immutable")
            if config_map.get(field) != old.get(field)
        ]
    return errors


def event_errors(event: JsonObject, old: JsonObject | None) -> list[FieldError]:
    """Events stand in the namespace of what they are about."""
    about = field_at(event, "involvedObject.namespace") or ""
    own = event["metadata"].get("namespace", "")
    if old is None and about not in ("", own):
        return [invalid("involvedObject.namespace", about, "does not match event.namespace")]
    return []


def lease_errors(lease: JsonObject, _old: JsonObject | None) -> list[FieldError]:
    """Leases."""
    errors = []
    duration = field_at(lease, "spec.leaseDurationSeconds")
    if duration is not None and duration <= 0:
        errors.append(invalid("spec.leaseDurationSeconds", duration, "must be greater than 0"))
    transitions = field_at(lease, "spec.leaseTransitions")
    if transitions is not None and transitions < 0:
        errors.append(invalid("spec.leaseTransitions", transitions, "must be greater than or equal to 0"))
    return errors


def disruption_budget_errors(budget: JsonObject, _old: JsonObject | None) -> list[FieldError]:
    """PodDisruptionBudgets."""
    spec = budget.get("spec") or {}
    if "minAvailable" in spec and "maxUnavailable" in spec:
        return [invalid("spec", spec, "minAvailable and maxUnavailable cannot be both set")]
    return []
