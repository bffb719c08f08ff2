"""What kube-apiserver fills in where the author of a built-in object left something out.

k8s.io/kubernetes/pkg/apis/core/v1/defaults.go, and the admission plugins that set tolerations and priority.
"""

from __future__ import annotations

import base64
import os
import zlib
from typing import Any

from kube_sandbox.api_server.values import JsonObject, field_at

# Part of every cluster address that this process hands out.
_PROCESS_NUMBER = int.from_bytes(os.urandom(4))
_TOLERATION_SECONDS = 300
_PROBES = ("livenessProbe", "readinessProbe", "startupProbe")
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
    _fill(
        spec,
        {
            "restartPolicy": "Always",
            "dnsPolicy": "ClusterFirst",
            "schedulerName": "default-scheduler",
            "terminationGracePeriodSeconds": 30,
            "enableServiceLinks": True,
        },
    )
    spec.setdefault("securityContext", {})
    account = spec.get("serviceAccountName") or spec.get("serviceAccount")
    if account:
        spec["serviceAccountName"] = spec["serviceAccount"] = account
    for container in [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]:
        _default_container(container)
    for volume in spec.get("volumes") or ():
        _default_volume(volume)


def _default_container(container: JsonObject) -> None:
    image = container.get("image", "")
    tag = image.rpartition("/")[2].partition(":")[2]
    pull_always = "@" not in image and tag in ("", "latest")
    _fill(
        container,
        {
            "imagePullPolicy": "Always" if pull_always else "IfNotPresent",
            "terminationMessagePath": "/dev/termination-log",
            "terminationMessagePolicy": "File",
        },
    )
    resources = container.setdefault("resources", {})
    if resources.get("limits"):
        requests = resources.setdefault("requests", {})
        _fill(requests, resources["limits"])
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


def _default_volume(volume: JsonObject) -> None:
    if set(volume) <= {"name"}:
        volume["emptyDir"] = {}
    for source in _VOLUME_SOURCES_WITH_MODE:
        if volume.get(source) is not None:
            volume[source].setdefault("defaultMode", 0o644)


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


def quality_of_service(spec: JsonObject) -> str:
    """Return `status.qosClass` of a pod."""
    containers = [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]
    resources = [container.get("resources") or {} for container in containers]
    if not any(entry.get("requests") or entry.get("limits") for entry in resources):
        return "BestEffort"
    guaranteed = all(
        {"cpu", "memory"} <= set(entry.get("limits") or ()) and entry.get("requests") == entry.get("limits")
        for entry in resources
    )
    return "Guaranteed" if guaranteed else "Burstable"
