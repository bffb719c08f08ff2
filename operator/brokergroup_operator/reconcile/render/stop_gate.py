"""What holds a broker stopped while its pod stays (`spec.maintenance.stoppedBrokers`, docs/adr/0027). Pure.

The order is an annotation of the pod, and a downwardAPI volume shows it to both containers as a file. Before each start the
broker's container waits while the order stands, so a restart of container or node starts no broker. The fence stops the broker that
runs when the order comes (`fence/stopping.py`). Pods of an earlier release lack all this and are not replaced for it (ADR 19).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from brokergroup_operator.api import names
from brokergroup_operator.fence.settings import PROCESS_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from brokergroup_operator.api.bounds import JsonObject

# The shell becomes the broker, so signals reach that as before. While it waits SIGTERM ends it at once. The variable marks the
# broker among the processes of its container: a probe, or a shell by kubectl exec, lacks it.
GATE: Final = (
    f'while [ -s "${names.ENVIRONMENT_STOP_ORDER_FILE}" ]; do sleep 1; done;'
    f' export {PROCESS_VARIABLE}={names.CONTAINER_BROKER}; exec "$0" "$@"'
)
_BEFORE: Final = ["sh", "-c", GATE]


def behind_gate(command: Sequence[str]) -> list[str]:
    return [*_BEFORE, *command]


def environment() -> list[JsonObject]:
    return [{"name": names.ENVIRONMENT_STOP_ORDER_FILE, "value": f"{names.ORDERS_DIR}/{names.STOP_ORDER}"}]


def grace(seconds: int) -> JsonObject:
    """For the fence: what a pod's deletion gives the broker between SIGTERM and SIGKILL, it has for its stop too."""
    return {"name": names.ENVIRONMENT_STOP_GRACE, "value": str(seconds)}


def mounts() -> list[JsonObject]:
    return [{"name": names.VOLUME_ORDERS, "mountPath": names.ORDERS_DIR, "readOnly": True}]


def volume() -> JsonObject:
    """A kubelet rewrites it within its next sync of the pod, which the changed annotation itself causes."""
    order = {"fieldPath": f"metadata.annotations['{names.ANNOTATION_STOPPED}']"}
    return {"name": names.VOLUME_ORDERS, "downwardAPI": {"items": [{"path": names.STOP_ORDER, "fieldRef": order}]}}


def without_gate(spec: JsonObject) -> JsonObject:
    """A PodSpec as pods are compared: none is replaced to get a gate."""
    volumes = [one for one in spec["volumes"] if one["name"] != names.VOLUME_ORDERS]
    return spec | {"volumes": volumes, "containers": [_without(one) for one in spec["containers"]]}


def _without(container: JsonObject) -> JsonObject:
    kept: JsonObject = dict(container)
    variables = {names.ENVIRONMENT_STOP_ORDER_FILE, names.ENVIRONMENT_STOP_GRACE}
    for field, own in (("env", variables), ("volumeMounts", {names.VOLUME_ORDERS})):
        items = [one for one in container.get(field) or [] if one["name"] not in own]
        if items == (container.get(field) or []):
            continue
        if items:
            kept[field] = items
        else:
            del kept[field]
    if container.get("command", [])[: len(_BEFORE)] == _BEFORE:
        kept["command"] = container["command"][len(_BEFORE) :]
    return kept
