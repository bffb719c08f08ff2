"""The columns of `kubectl get` for built-in kinds, as kubernetes/pkg/printers/internalversion prints them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from brokergroup_operator.sandbox.api_server.event_versions import to_core
from brokergroup_operator.sandbox.api_server.human_time import age, epoch_seconds, human_duration
from brokergroup_operator.sandbox.api_server.json_values import JsonObject, field_at
from brokergroup_operator.sandbox.api_server.resource_types import Column

Cell = Callable[[JsonObject, float], Any]


def _name(obj: JsonObject, _now: float) -> str:
    return str(obj["metadata"].get("name", ""))


def _age(obj: JsonObject, now_seconds: float) -> str:
    return age(obj["metadata"].get("creationTimestamp"), now_seconds)


def _created_at(obj: JsonObject, _now: float) -> str:
    return str(obj["metadata"].get("creationTimestamp", ""))


NAME = Column("Name", _name, format="name")
AGE = Column("Age", _age)


def _at(path: str, missing: str = "") -> Cell:
    def cell(obj: JsonObject, _now: float) -> Any:
        value = field_at(obj, path)
        return missing if value is None or value == "" else value

    return cell


def _number_at(path: str) -> Cell:
    return lambda obj, _now: field_at(obj, path) or 0


def _count_at(*paths: str) -> Cell:
    return lambda obj, _now: sum(len(field_at(obj, path) or ()) for path in paths)


def labels_text(labels: Any) -> str:
    """`a=b,c=d`, `<none>` where there are none."""
    return ",".join(f"{key}={value}" for key, value in sorted((labels or {}).items())) or "<none>"


def selector_text(selector: Any) -> str:
    """A metav1.LabelSelector in one line."""
    return labels_text((selector or {}).get("matchLabels"))


# -- pods --------------------------------------------------------------------------------------------------------------


def _statuses(pod: JsonObject, key: str = "containerStatuses") -> list[JsonObject]:
    return field_at(pod, f"status.{key}") or []


def _pod_ready(pod: JsonObject, _now: float) -> str:
    ready = sum(bool(status.get("ready")) and "running" in (status.get("state") or {}) for status in _statuses(pod))
    return f"{ready}/{len(field_at(pod, 'spec.containers') or ())}"


def _ending(terminated: JsonObject) -> str:
    if terminated.get("reason"):
        return str(terminated["reason"])
    if terminated.get("signal"):
        return f"Signal:{terminated['signal']}"
    return f"ExitCode:{terminated.get('exitCode', 0)}"


def _init_reason(pod: JsonObject) -> str:
    """What an init container that has not finished says; empty when all have."""
    statuses = _statuses(pod, "initContainerStatuses")
    for index, status in enumerate(statuses):
        state = status.get("state") or {}
        terminated, waiting = state.get("terminated"), state.get("waiting")
        if terminated is not None:
            if terminated.get("exitCode", 0) == 0:
                continue
            return f"Init:{_ending(terminated)}"
        if waiting and waiting.get("reason") and waiting["reason"] != "PodInitializing":
            return f"Init:{waiting['reason']}"
        return f"Init:{index}/{len(field_at(pod, 'spec.initContainers') or ())}"
    return ""


def _pod_status(pod: JsonObject, _now: float) -> str:
    if "deletionTimestamp" in pod["metadata"]:
        return "Unknown" if field_at(pod, "status.reason") == "NodeLost" else "Terminating"
    reason = field_at(pod, "status.reason") or field_at(pod, "status.phase") or "Unknown"
    initialising = _init_reason(pod)
    if initialising:
        return initialising
    running = False
    for status in reversed(_statuses(pod)):
        state = status.get("state") or {}
        waiting, terminated = state.get("waiting"), state.get("terminated")
        if waiting and waiting.get("reason"):
            reason = waiting["reason"]
        elif terminated is not None:
            reason = _ending(terminated)
        elif status.get("ready") and "running" in state:
            running = True
    if reason == "Completed" and running:
        is_ready = any(
            condition.get("type") == "Ready" and condition.get("status") == "True"
            for condition in field_at(pod, "status.conditions") or ()
        )
        return "Running" if is_ready else "NotReady"
    return str(reason)


def _pod_restarts(pod: JsonObject, now_seconds: float) -> str:
    count = sum(status.get("restartCount", 0) for status in _statuses(pod))
    ends = [
        epoch_seconds((status.get("lastState") or {}).get("terminated", {}).get("finishedAt"))
        for status in _statuses(pod)
    ]
    last = max((end for end in ends if end is not None), default=None)
    return f"{count} ({human_duration(now_seconds - last)} ago)" if count and last is not None else str(count)


PODS = (
    NAME,
    Column("Ready", _pod_ready),
    Column("Status", _pod_status),
    Column("Restarts", _pod_restarts),
    AGE,
    Column("IP", _at("status.podIP", "<none>"), priority=1),
    Column("Node", _at("spec.nodeName", "<none>"), priority=1),
    Column("Nominated Node", _at("status.nominatedNodeName", "<none>"), priority=1),
    Column("Readiness Gates", lambda _obj, _now: "<none>", priority=1),
)

# -- services, claims, nodes, events -----------------------------------------------------------------------------------


def _service_ports(service: JsonObject, _now: float) -> str:
    shown = []
    for port in field_at(service, "spec.ports") or ():
        node_port = f":{port['nodePort']}" if port.get("nodePort") else ""
        shown.append(f"{port.get('port')}{node_port}/{port.get('protocol', 'TCP')}")
    return ",".join(shown) or "<none>"


def _external_ip(service: JsonObject, _now: float) -> str:
    addresses = list(field_at(service, "spec.externalIPs") or ())
    kind = field_at(service, "spec.type")
    if kind == "ExternalName":
        return str(field_at(service, "spec.externalName"))
    if kind == "LoadBalancer":
        ingress = field_at(service, "status.loadBalancer.ingress") or ()
        addresses += [entry.get("ip") or entry.get("hostname", "") for entry in ingress]
        return ",".join(addresses) or "<pending>"
    return ",".join(addresses) or "<none>"


SERVICES = (
    NAME,
    Column("Type", _at("spec.type")),
    Column("Cluster-IP", _at("spec.clusterIP", "<none>")),
    Column("External-IP", _external_ip),
    Column("Port(s)", _service_ports),
    AGE,
    Column("Selector", lambda obj, _now: labels_text(field_at(obj, "spec.selector")), priority=1),
)

_ACCESS_MODES = {
    "ReadWriteOnce": "RWO",
    "ReadOnlyMany": "ROX",
    "ReadWriteMany": "RWX",
    "ReadWriteOncePod": "RWOP",
}


def _claim_phase(claim: JsonObject, _now: float) -> str:
    return "Terminating" if "deletionTimestamp" in claim["metadata"] else str(field_at(claim, "status.phase") or "")


def _if_bound(path: str) -> Cell:
    return lambda claim, _now: (field_at(claim, path) or "") if field_at(claim, "spec.volumeName") else ""


def _claim_modes(claim: JsonObject, _now: float) -> str:
    if not field_at(claim, "spec.volumeName"):
        return ""
    return ",".join(_ACCESS_MODES.get(mode, mode) for mode in field_at(claim, "status.accessModes") or ())


CLAIMS = (
    NAME,
    Column("Status", _claim_phase),
    Column("Volume", _at("spec.volumeName")),
    Column("Capacity", _if_bound("status.capacity.storage")),
    Column("Access Modes", _claim_modes),
    Column("StorageClass", _at("spec.storageClassName")),
    Column("VolumeAttributesClass", _at("spec.volumeAttributesClassName", "<unset>")),
    AGE,
    Column("VolumeMode", _at("spec.volumeMode", "<unset>"), priority=1),
)


def _node_status(node: JsonObject, _now: float) -> str:
    conditions = {entry["type"]: entry["status"] for entry in field_at(node, "status.conditions") or ()}
    ready = {"True": "Ready", None: "Unknown"}.get(conditions.get("Ready"), "NotReady")
    return f"{ready},SchedulingDisabled" if field_at(node, "spec.unschedulable") else ready


def _node_roles(node: JsonObject, _now: float) -> str:
    prefix = "node-role.kubernetes.io/"
    labels = node["metadata"].get("labels") or {}
    return ",".join(sorted(key.removeprefix(prefix) for key in labels if key.startswith(prefix))) or "<none>"


def _node_address(kind: str) -> Cell:
    def cell(node: JsonObject, _now: float) -> str:
        addresses = field_at(node, "status.addresses") or ()
        return next((str(entry["address"]) for entry in addresses if entry.get("type") == kind), "<none>")

    return cell


NODES = (
    NAME,
    Column("Status", _node_status),
    Column("Roles", _node_roles),
    AGE,
    Column("Version", _at("status.nodeInfo.kubeletVersion")),
    Column("Internal-IP", _node_address("InternalIP"), priority=1),
    Column("External-IP", _node_address("ExternalIP"), priority=1),
    Column("OS-Image", _at("status.nodeInfo.osImage", "<unknown>"), priority=1),
    Column("Kernel-Version", _at("status.nodeInfo.kernelVersion", "<unknown>"), priority=1),
    Column("Container-Runtime", _at("status.nodeInfo.containerRuntimeVersion", "<unknown>"), priority=1),
)


def _event_last_seen(event: JsonObject, now_seconds: float) -> str:
    last = field_at(event, "series.lastObservedTime") or event.get("lastTimestamp") or event.get("eventTime")
    shown = age(last or event["metadata"].get("creationTimestamp"), now_seconds)
    count = event.get("count") or field_at(event, "series.count") or 1
    first = event.get("firstTimestamp")
    return f"{shown} (x{count} over {age(first, now_seconds)})" if count > 1 and first else shown


def _event_object(event: JsonObject, _now: float) -> str:
    regarding = event.get("involvedObject") or {}
    kind, name = str(regarding.get("kind", "")).lower(), regarding.get("name", "")
    return f"{kind}/{name}" if name else kind


def _event_source(event: JsonObject, _now: float) -> str:
    source = event.get("source") or {}
    parts = [source.get("component") or event.get("reportingComponent") or "", source.get("host") or ""]
    return ", ".join(part for part in parts if part)


EVENTS = (
    Column("Last Seen", lambda event, now: _event_last_seen(event, now).split(" ", maxsplit=1)[0]),
    Column("Type", _at("type")),
    Column("Reason", _at("reason")),
    Column("Object", _event_object),
    Column("Subobject", _at("involvedObject.fieldPath"), priority=1),
    Column("Source", _event_source, priority=1),
    Column("Message", lambda event, _now: str(event.get("message", "")).strip()),
    Column(
        "First Seen", lambda event, now: age(event.get("firstTimestamp") or event.get("eventTime"), now), priority=1
    ),
    Column("Count", lambda event, _now: event.get("count") or 1, priority=1),
    Column("Name", _name, priority=1, format="name"),
)


def _in_core_shape(column: Column) -> Column:
    return replace(column, cell=lambda event, now_seconds: column.cell(to_core(event), now_seconds))


EVENTS_IN_THEIR_GROUP = tuple(_in_core_shape(column) for column in EVENTS)

# -- the rest ----------------------------------------------------------------------------------------------------------


def _replicas_ready(obj: JsonObject, _now: float) -> str:
    return f"{field_at(obj, 'status.readyReplicas') or 0}/{field_at(obj, 'spec.replicas') or 0}"


def _endpoints(obj: JsonObject, _now: float) -> str:
    shown = [
        f"{address.get('ip')}:{port.get('port')}"
        for subset in obj.get("subsets") or ()
        for port in subset.get("ports") or ()
        for address in subset.get("addresses") or ()
    ]
    more = f" + {len(shown) - 3} more..." if len(shown) > 3 else ""
    return ",".join(shown[:3]) + more or "<none>"


def _role(obj: JsonObject, _now: float) -> str:
    reference = obj.get("roleRef") or {}
    return f"{reference.get('kind')}/{reference.get('name')}"


def _subjects(kind: str) -> Cell:
    def cell(binding: JsonObject, _now: float) -> str:
        found = [subject for subject in binding.get("subjects") or () if subject.get("kind") == kind]
        prefix = kind == "ServiceAccount"
        return ", ".join(f"{one.get('namespace')}/{one['name']}" if prefix else one["name"] for one in found)

    return cell


DEPLOYMENTS = (
    NAME,
    Column("Ready", _replicas_ready),
    Column("Up-to-date", _number_at("status.updatedReplicas")),
    Column("Available", _number_at("status.availableReplicas")),
    AGE,
)
STATEFUL_SETS = (NAME, Column("Ready", _replicas_ready), AGE)
CONFIG_MAPS = (NAME, Column("Data", _count_at("data", "binaryData")), AGE)
SECRETS = (NAME, Column("Type", _at("type")), Column("Data", _count_at("data")), AGE)
NAMESPACES = (NAME, Column("Status", _at("status.phase")), AGE)
SERVICE_ACCOUNTS = (NAME, AGE)
LEASES = (NAME, Column("Holder", _at("spec.holderIdentity")), AGE)
ENDPOINTS = (NAME, Column("Endpoints", _endpoints), AGE)
DISRUPTION_BUDGETS = (
    NAME,
    Column("Min Available", lambda obj, _now: str(_at("spec.minAvailable", "N/A")(obj, 0))),
    Column("Max Unavailable", lambda obj, _now: str(_at("spec.maxUnavailable", "N/A")(obj, 0))),
    Column("Allowed Disruptions", _number_at("status.disruptionsAllowed"), type="integer"),
    AGE,
)
NETWORK_POLICIES = (
    NAME,
    Column("Pod-Selector", lambda obj, _now: selector_text(field_at(obj, "spec.podSelector"))),
    AGE,
)
DEFINITIONS = (NAME, Column("Created At", _created_at, type="date"))
ROLES = (NAME, Column("Created At", _created_at, type="date"))
ROLE_BINDINGS = (
    NAME,
    Column("Role", _role),
    AGE,
    Column("Users", _subjects("User"), priority=1),
    Column("Groups", _subjects("Group"), priority=1),
    Column("ServiceAccounts", _subjects("ServiceAccount"), priority=1),
)
PLAIN = (NAME, AGE)
