"""The rules of built-in objects that an operator's objects can break, and the defaults that kube-apiserver fills in.

k8s.io/kubernetes/pkg/apis/core/validation/validation.go, whose wording complaints have; core/v1/defaults.go, and the admission
plugins that set tolerations and priority.
"""

from __future__ import annotations

import base64
import json
import os
import re
import zlib
from typing import TYPE_CHECKING, Any

from kube_sandbox.api_server.errors import FieldError, duplicate, forbidden_field, invalid, required, unsupported
from kube_sandbox.api_server.store.metadata import key_errors, label_errors, label_value_errors, name_errors
from kube_sandbox.api_server.values import JsonObject, clone, field_at, is_quantity, parse_quantity

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


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
_PORT_NAME_RULE = "must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)"
_ENVIRONMENT_RULE = "a valid environment variable name must consist only of printable ASCII characters other than '='"
_ENVIRONMENT_NAME = re.compile(r"[^\x00-\x20\x7f-\U0010ffff=]+")
_PORT_NAME = re.compile(r"(?=.*[a-z])[a-z0-9]([a-z0-9]|-(?!-))*(?<!-)")
_LONGEST_PORT_NAME = 15


def pod_errors(pod: JsonObject, old: JsonObject | None) -> list[FieldError]:
    """Pods: what a new one must have, and that hardly anything of it may change."""
    spec = pod.get("spec") or {}
    return _pod_spec_errors(spec, "spec") if old is None else _pod_update_errors(spec, old.get("spec") or {})


def workload_errors(workload: JsonObject, _old: JsonObject | None) -> list[FieldError]:
    """StatefulSets and Deployments: the pods to be made of them."""
    template = (workload.get("spec") or {}).get("template") or {}
    errors = label_errors("spec.template.labels", (template.get("metadata") or {}).get("labels") or {})
    return errors + _pod_spec_errors(template.get("spec") or {}, "spec.template.spec")


def _pod_spec_errors(spec: JsonObject, path: str) -> list[FieldError]:
    volumes = spec.get("volumes") or []
    errors = _unique_names(volumes, f"{path}.volumes")
    for index, volume in enumerate(volumes):
        errors += _label_errors(f"{path}.volumes[{index}].name", volume.get("name"))
    errors += _containers_errors(spec, path, {volume.get("name") for volume in volumes})
    policy, policies = spec.get("restartPolicy", "Always"), ("Always", "OnFailure", "Never")
    if policy not in policies:
        errors.append(unsupported(f"{path}.restartPolicy", policy, policies))
    errors += label_errors(f"{path}.nodeSelector", spec.get("nodeSelector") or {})
    for key in ("hostname", "subdomain", "serviceAccountName", "priorityClassName", "runtimeClassName"):
        if spec.get(key):
            errors += name_errors(
                f"{path}.{key}", spec[key], "label" if key in ("hostname", "subdomain") else "subdomain"
            )
    for index, toleration in enumerate(spec.get("tolerations") or ()):
        errors += _toleration_errors(toleration, f"{path}.tolerations[{index}]")
    for index, spread in enumerate(spec.get("topologySpreadConstraints") or ()):
        if not spread.get("topologyKey"):
            errors.append(required(f"{path}.topologySpreadConstraints[{index}].topologyKey", "can not be empty"))
    for at, term in _affinity_terms(spec.get("affinity") or {}, f"{path}.affinity"):
        topology, where = term.get("topologyKey"), f"{at}.topologyKey"
        errors += key_errors(where, topology) if topology else [required(where, "can not be empty")]
    return errors


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
    elif operator not in ("Equal", "Exists"):
        errors.append(unsupported(f"{path}.operator", operator, ("Equal", "Exists")))
    else:
        errors += label_value_errors(f"{path}.operator", value)
    effects = ("NoSchedule", "PreferNoSchedule", "NoExecute")
    return [*errors, unsupported(f"{path}.effect", effect, effects)] if effect and effect not in effects else errors


def _affinity_terms(affinity: JsonObject, path: str) -> Iterator[tuple[str, JsonObject]]:
    when = "DuringSchedulingIgnoredDuringExecution"
    for kind in ("podAffinity", "podAntiAffinity"):
        terms = affinity.get(kind) or {}
        for index, term in enumerate(terms.get(f"required{when}") or ()):
            yield f"{path}.{kind}.required{when}[{index}]", term
        for index, weighted in enumerate(terms.get(f"preferred{when}") or ()):
            yield f"{path}.{kind}.preferred{when}[{index}].podAffinityTerm", weighted.get("podAffinityTerm") or {}


def _containers_errors(spec: JsonObject, path: str, volumes: set[Any]) -> list[FieldError]:
    containers, before = spec.get("containers") or [], spec.get("initContainers") or []
    errors = _unique_names(containers, f"{path}.containers") if containers else [required(f"{path}.containers")]
    names = {one.get("name") for one in containers}
    for index, container in enumerate(before):
        if container.get("name") in names:
            errors.append(duplicate(f"{path}.initContainers[{index}].name", container["name"]))
    for key, listed in (("initContainers", before), ("containers", containers)):
        for index, container in enumerate(listed):
            errors += _container_errors(container, f"{path}.{key}[{index}]", volumes)
    return errors


def _container_errors(container: JsonObject, path: str, volumes: set[Any]) -> list[FieldError]:
    errors = _label_errors(f"{path}.name", container.get("name"))
    image = str(container.get("image") or "")
    if not image:
        errors.append(required(f"{path}.image"))
    elif image != image.strip():
        errors.append(invalid(f"{path}.image", image, "must not have leading or trailing whitespace"))
    for index, port in enumerate(container.get("ports") or ()):
        errors += _container_port_errors(port, f"{path}.ports[{index}]")
    for index, entry in enumerate(container.get("env") or ()):
        at = f"{path}.env[{index}].name"
        if not entry.get("name"):
            errors.append(required(at))
        elif not _ENVIRONMENT_NAME.fullmatch(entry["name"]):
            errors.append(invalid(at, entry["name"], _ENVIRONMENT_RULE))
    for index, mount in enumerate(container.get("volumeMounts") or ()):
        if mount.get("name") not in volumes:
            name = json.dumps(mount.get("name", ""))
            errors.append(FieldError(f"{path}.volumeMounts[{index}].name", "Not found", name))
    return errors + _resource_errors(container.get("resources") or {}, f"{path}.resources")


def _container_port_errors(port: JsonObject, path: str) -> list[FieldError]:
    errors, name = _port_errors(f"{path}.containerPort", port.get("containerPort")), port.get("name") or ""
    if len(name) > _LONGEST_PORT_NAME:
        return [*errors, invalid(f"{path}.name", name, f"must be no more than {_LONGEST_PORT_NAME} characters")]
    is_wrong = name and not _PORT_NAME.fullmatch(name)
    return [*errors, invalid(f"{path}.name", name, _PORT_NAME_RULE)] if is_wrong else errors


def _port_errors(path: str, port: Any) -> list[FieldError]:
    if port is None or port == 0:
        return [required(path)]
    is_port = type(port) is int and 1 <= port <= 65535
    return [] if is_port else [invalid(path, port, "must be between 1 and 65535, inclusive")]


def _resource_errors(resources: JsonObject, path: str) -> list[FieldError]:
    errors: list[FieldError] = []
    for kind in ("limits", "requests"):
        for name, amount in (resources.get(kind) or {}).items():
            at = f"{path}.{kind}[{name}]"
            errors += _resource_name_errors(at, name)
            if not is_quantity(amount):
                errors.append(invalid(at, amount, "must be a quantity"))
    limits = resources.get("limits") or {}
    for name, amount in (resources.get("requests") or {}).items():
        most = limits.get(name, "")
        if is_quantity(amount) and is_quantity(most) and parse_quantity(amount) > parse_quantity(most):
            errors.append(invalid(f"{path}.requests", amount, f"must be less than or equal to {name} limit of {most}"))
    return errors


def _resource_name_errors(path: str, name: str) -> list[FieldError]:
    errors = key_errors(path, name)
    if "/" in name:
        is_extended = not name.startswith("requests.") and not key_errors(path, f"requests.{name}")
        return (
            errors if errors or is_extended else [invalid(path, name, "doesn't follow extended resource name standard")]
        )
    if name in ("cpu", "memory", "ephemeral-storage") or name.startswith("hugepages-"):
        return errors
    unknown = [] if errors else [invalid(path, name, "must be a standard resource type or fully qualified")]
    return [*errors, *unknown, invalid(path, name, "must be a standard resource for containers")]


def _label_errors(path: str, name: Any) -> list[FieldError]:
    return name_errors(path, str(name), "label") if name else [required(path)]


def _unique_names(items: list[JsonObject], path: str) -> list[FieldError]:
    errors, seen = [], set()
    for index, item in enumerate(items):
        name = item.get("name")
        if name in seen:
            errors.append(duplicate(f"{path}[{index}].name", name))
        seen.add(name)
    return errors


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
    before = field_at(old, "spec.clusterIP")
    if before and field_at(old, "spec.type") != "ExternalName" and spec.get("clusterIP") != before:
        errors.append(invalid("spec.clusterIPs[0]", spec.get("clusterIPs") or [""], "may not change once set"))
    return errors


def node_port_errors(service: JsonObject, others: Iterable[JsonObject]) -> list[FieldError]:
    """A node port belongs to one Service, whatever the protocol; only the first that is taken is reported."""
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
            if not field_at(old, "spec.volumeName"):
                part.pop("volumeName", None)
            if field_at(old, "status.phase") == "Bound":
                part.pop("resources", None)
        if frozen != before:
            errors.append(forbidden_field("spec", _CLAIM_UPDATE))
    return errors


def config_map_errors(config_map: JsonObject, _old: JsonObject | None) -> list[FieldError]:
    """ConfigMaps and Secrets."""
    return [
        invalid(f"{field}[{key}]", key, _CONFIG_KEY_RULE)
        for field in ("data", "binaryData")
        for key in config_map.get(field) or {}
        if not re.fullmatch(r"[-._a-zA-Z0-9]+", key)
    ]


def lease_errors(lease: JsonObject, _old: JsonObject | None) -> list[FieldError]:
    """Leases."""
    duration = field_at(lease, "spec.leaseDurationSeconds")
    if duration is not None and duration <= 0:
        return [invalid("spec.leaseDurationSeconds", duration, "must be greater than 0")]
    return []


# Part of every cluster address that this process hands out.
_PROCESS_NUMBER = int.from_bytes(os.urandom(4))
_TOLERATION_SECONDS = 300
_PROBES = ("livenessProbe", "readinessProbe", "startupProbe")
_POD_DEFAULTS = {
    "restartPolicy": "Always", "dnsPolicy": "ClusterFirst", "schedulerName": "default-scheduler",
    "terminationGracePeriodSeconds": 30, "enableServiceLinks": True,
}  # fmt: skip
_PROBE_DEFAULTS = {"timeoutSeconds": 1, "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3}
_VOLUME_SOURCES_WITH_MODE = ("configMap", "secret", "projected", "downwardAPI")


def _fill(target: JsonObject, defaults: JsonObject) -> None:
    for key, value in defaults.items():
        target.setdefault(key, value)


def default_pod(pod: JsonObject) -> None:
    """Complete a pod."""
    spec = pod.get("spec")
    if spec is None:
        return
    _fill(spec, _POD_DEFAULTS | {"securityContext": {}})
    account = spec.get("serviceAccountName") or spec.get("serviceAccount")
    if account:
        spec["serviceAccountName"] = spec["serviceAccount"] = account
    for container in [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]:
        _default_container(container)
    for volume in spec.get("volumes") or ():
        if set(volume) <= {"name"}:
            volume["emptyDir"] = {}
        for source in _VOLUME_SOURCES_WITH_MODE:
            if volume.get(source) is not None:
                volume[source].setdefault("defaultMode", 0o644)


def _default_container(container: JsonObject) -> None:
    image = container.get("image", "")
    tag = image.rpartition("/")[2].partition(":")[2]
    pull_always = "@" not in image and tag in ("", "latest")
    container.setdefault("imagePullPolicy", "Always" if pull_always else "IfNotPresent")
    _fill(container, {"terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File"})
    resources = container.setdefault("resources", {})
    if resources.get("limits"):
        _fill(resources.setdefault("requests", {}), resources["limits"])
    for port in container.get("ports") or ():
        port.setdefault("protocol", "TCP")
    for entry in container.get("env") or ():
        reference = field_at(entry, "valueFrom.fieldRef")
        if reference is not None:
            reference.setdefault("apiVersion", "v1")
    for name in _PROBES:
        if container.get(name):
            _fill(container[name], _PROBE_DEFAULTS)
            get = container[name].get("httpGet")
            if get is not None:
                _fill(get, {"path": "/", "scheme": "HTTP"})


def admit_pod(pod: JsonObject) -> None:
    """Add what the admission plugins Priority and DefaultTolerationSeconds add."""
    spec = pod.get("spec")
    if spec is None:
        return
    _fill(spec, {"priority": 0, "preemptionPolicy": "PreemptLowerPriority"})
    tolerations = spec.setdefault("tolerations", [])
    for key in ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"):
        if not any(toleration.get("key") in (key, None, "") for toleration in tolerations):
            tolerations.append(
                {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": _TOLERATION_SECONDS}
            )


def default_service(service: JsonObject) -> None:
    """Complete a Service, except for its cluster address."""
    spec = service.setdefault("spec", {})
    _fill(spec, {"type": "ClusterIP", "sessionAffinity": "None"})
    for port in spec.get("ports") or ():
        port.setdefault("protocol", "TCP")
        port.setdefault("targetPort", port.get("port"))
    if spec["type"] != "ExternalName":
        _fill(spec, {"internalTrafficPolicy": "Cluster"})


def give_cluster_address(service: JsonObject) -> None:
    """Set an address of 127.128.0.0/9, which is local everywhere, so that ``services.py`` can listen on it.

    It depends on the service's name and this process: two sandboxes on one machine hand out different ones.
    """
    spec = service["spec"]
    if spec.get("type") == "ExternalName":
        return
    meta = service["metadata"]
    if not spec.get("clusterIP"):
        number = zlib.crc32(f"{meta.get('namespace')}/{meta.get('name')}".encode(), _PROCESS_NUMBER)
        parts = (127, 128 + number % 128, number // 128 % 254 + 1, number // 128 // 254 % 254 + 1)
        spec["clusterIP"] = ".".join(map(str, parts))
    spec.setdefault("clusterIPs", [spec["clusterIP"]])
    _fill(spec, {"ipFamilies": ["IPv4"], "ipFamilyPolicy": "SingleStack"})


def default_claim(claim: JsonObject) -> None:
    """Complete a claim."""
    claim.setdefault("spec", {}).setdefault("volumeMode", "Filesystem")


def default_secret(secret: JsonObject) -> None:
    """Complete a Secret; `stringData` is a way to write `data`."""
    secret.setdefault("type", "Opaque")
    texts: dict[str, Any] = secret.pop("stringData", None) or {}
    if texts:
        data = secret.setdefault("data", {})
        data.update({key: base64.b64encode(text.encode()).decode() for key, text in texts.items()})


def default_event(event: JsonObject) -> None:
    """Complete an Event."""
    event.setdefault("source", {})
