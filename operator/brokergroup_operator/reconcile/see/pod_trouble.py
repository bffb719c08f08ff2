"""Why a pod does not get ready, as far as Kubernetes shows: what will not pass by itself, and what only takes its time. Pure."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from brokergroup_operator.api import names
from brokergroup_operator.api.brokergroup_status import Reason
from brokergroup_operator.reconcile.see import observed

if TYPE_CHECKING:
    from brokergroup_operator.api.bounds import JsonObject

IMAGE_REASONS: Final = frozenset({"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"})
CRASH_REASONS: Final = frozenset({"CrashLoopBackOff", "RunContainerError", "StartError"})
# The container was never made: nothing crashed, and there is no log to look into.
CREATION_REASONS: Final = frozenset({"CreateContainerConfigError", "CreateContainerError"})
# As the kubelet says that a Secret or a ConfigMap is not there, or has no such key.
MISSING_WORDS: Final = ("not found", "couldn't find key", "references non-existent")
# A deleted pod has its grace period; its deletionTimestamp is the end of it. So much later no kubelet is stopping it.
STUCK_TERMINATING_SECONDS: Final = 60.0
# A container that the kubelet starts again and again, between two of its back-offs.
CRASHES_TO_TELL_OF: Final = 3


@dataclass(frozen=True)
class Trouble:
    """What is wrong with a pod, for a condition."""

    reason: Reason
    message: str


def pod_trouble(pod: JsonObject, *, now: str) -> Trouble | None:
    """The trouble that a person should look at; None for a pod that is ready or on its way."""
    name = str(observed.metadata(pod).get("name", ""))
    if observed.being_deleted(pod):
        return _stuck(pod, name) if is_stuck_terminating(pod, now=now) else None
    for status in container_statuses(pod):
        if trouble := _of_container(status, name):
            return trouble
    for condition in observed.pod_status(pod).get("conditions") or []:
        if condition.get("type") == "PodScheduled" and condition.get("reason") == "Unschedulable":
            return Trouble(Reason.MEMBER_NOT_SCHEDULED, f"Pod {name}: {condition.get('message', 'no node takes it')}")
    return None


def _of_container(status: dict[str, Any], name: str) -> Trouble | None:
    waiting: dict[str, Any] = (status.get("state") or {}).get("waiting") or {}
    why = str(waiting.get("reason", ""))
    said = f": {waiting['message']}" if waiting.get("message") else ""
    if why in IMAGE_REASONS:
        return Trouble(Reason.IMAGE_UNAVAILABLE, f"Pod {name}: {why} {status.get('image', '')}{said}")
    if why in CREATION_REASONS:
        return Trouble(_creation_reason(said), f"Pod {name}: {why}{said}")
    if why in CRASH_REASONS:
        return Trouble(Reason.MEMBER_CRASHES, f"Pod {name}: {why}{said}")
    if not status.get("ready") and int(status.get("restartCount") or 0) >= CRASHES_TO_TELL_OF:
        started = f"Pod {name} has been started {status['restartCount']} times and is not ready"
        return Trouble(Reason.MEMBER_CRASHES, started)
    return None


def _creation_reason(said: str) -> Reason:
    missing = any(words in said for words in MISSING_WORDS)
    return Reason.REFERENCE_MISSING if missing else Reason.CONTAINER_NOT_CREATED


def container_statuses(pod: JsonObject) -> list[dict[str, Any]]:
    """Of those that spec.podTemplate lets run before the broker, too: while one of them fails, no broker starts."""
    status = observed.pod_status(pod)
    return [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]


def is_stuck_terminating(pod: JsonObject, *, now: str) -> bool:
    """The pod should have been gone for a while: its node does not answer (Strimzi issue 13101)."""
    asked = observed.metadata(pod).get("deletionTimestamp")
    if not asked or observed.pod_has_ended(pod):
        return False
    return _moment(now) - _moment(str(asked)) > dt.timedelta(seconds=STUCK_TERMINATING_SECONDS)


def _stuck(pod: JsonObject, name: str) -> Trouble:
    """Nothing is done about it: only a look at the node shows whether the process behind it is dead."""
    node = str((pod.get("spec") or {}).get("nodeName") or "?")
    member = observed.labels_of(pod).get(names.LABEL_BROKER_ID, "?")
    return Trouble(
        Reason.POD_STUCK_TERMINATING,
        f"Pod {name} does not stop: node {node} does not answer. If the node is dead, say so:"
        f" kubectl taint node {node} node.kubernetes.io/out-of-service=nodeshutdown:NoExecute, and the pod comes back"
        f" elsewhere with its volume. Or give its volume up with a BrokerGroupOperation of type Rebuild for broker id {member}:"
        " a new member copies the master",
    )


def _moment(text: str) -> dt.datetime:
    return dt.datetime.fromisoformat(text)
