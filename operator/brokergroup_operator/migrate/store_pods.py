"""The pod that reads a stopped broker's volume, or makes it ready, by `brokergroup adopt` in the operator's image. Pure.

It runs as the brokers' user, without rights in the cluster, and says how it ended as its termination message.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from brokergroup_operator.api import names
from brokergroup_operator.migrate.stores import StoreReport
from brokergroup_operator.reconcile.render.containers import restricted
from brokergroup_operator.reconcile.render.pods import as_broker_user

if TYPE_CHECKING:
    from brokergroup_operator.api.bounds import JsonObject

CONTAINER: Final = "adopt"
VOLUME: Final = "store"
TERMINATION_LOG: Final = "/dev/termination-log"


def store_pod_name(group: str, broker_id: int) -> str:
    return f"{group}-adopt-{broker_id}"


def store_pod(
    namespace: str, name: str, image: str, claim: str, verb: list[str], *, folder: str, read_only: bool, seconds: float
) -> JsonObject:
    """Return the pod that runs the verb on this claim. It carries no label of a member: no Service or budget counts it.

    It ends itself a minute after the `seconds` that the command waits for it: a command that was killed leaves it behind.
    """
    container: JsonObject = {
        "name": CONTAINER,
        "image": image,
        "command": ["brokergroup", "adopt", verb[0], names.STORE_DIR, *verb[1:], "--say", TERMINATION_LOG],
        "volumeMounts": [{"name": VOLUME, "mountPath": names.STORE_DIR, "readOnly": read_only}],
        "terminationMessagePath": TERMINATION_LOG,
        "securityContext": restricted(),
        "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}, "limits": {"memory": "512Mi"}},
    }
    if folder:
        container["command"] += ["--folder", folder]
    spec: JsonObject = {
        "containers": [container],
        "volumes": [{"name": VOLUME, "persistentVolumeClaim": {"claimName": claim}}],
        "restartPolicy": "Never",
        "activeDeadlineSeconds": round(seconds) + 60,
        "terminationGracePeriodSeconds": 1,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": as_broker_user(),
    }
    labels = {names.LABEL_APP_NAME: names.APP_NAME, names.LABEL_APP_COMPONENT: CONTAINER}
    metadata = {"name": name, "namespace": namespace, "labels": labels}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def is_store_pod(pod: JsonObject) -> bool:
    """Whether a pod is one of these: another group's broker may have the same name."""
    return (pod["metadata"].get("labels") or {}).get(names.LABEL_APP_COMPONENT) == CONTAINER


def failure_of(pod: JsonObject) -> str:
    """Return why there is no report; empty if there is one."""
    if (pod.get("status") or {}).get("phase") == "Succeeded":
        return ""
    status = pod.get("status") or {}
    return message_of(pod) or str(status.get("message") or status.get("reason") or "its pod failed and says nothing")


def report_of(pod: JsonObject) -> StoreReport:
    """Return what a pod that succeeded has found. Raises msgspec.MsgspecError for a message that is none of ours."""
    return msgspec.json.decode(message_of(pod), type=StoreReport)


def message_of(pod: JsonObject) -> str:
    """Return what the pod has written as its termination message."""
    statuses = (pod.get("status") or {}).get("containerStatuses") or []
    states = [(one.get("state") or {}).get("terminated") or {} for one in statuses]
    return next((str(one["message"]).strip() for one in states if one.get("message")), "")
