"""What is wrong with a pod that a person should look at, as its kubelet and the scheduler say it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from brokergroup_operator.api import names
from brokergroup_operator.api.brokergroup_status import Reason
from brokergroup_operator.kube.pods import node_of
from brokergroup_operator.reconcile.see import observed

if TYPE_CHECKING:
    from brokergroup_operator.api.bounds import JsonObject


# Why the kubelet does not run a container.
WAITING_REASONS: Final = {
    **dict.fromkeys(
        ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"), Reason.IMAGE_UNAVAILABLE
    ),
    **dict.fromkeys(("CrashLoopBackOff", "RunContainerError", "StartError"), Reason.MEMBER_CRASHES),
    # The container was never made: nothing crashed, and there is no log to look into.
    **dict.fromkeys(("CreateContainerConfigError", "CreateContainerError"), Reason.CONTAINER_NOT_CREATED),
}
# As the kubelet says that a Secret or a ConfigMap is not there, or has no such key.
MISSING_WORDS: Final = ("not found", "couldn't find key", "references non-existent")
# The condition that the kubelet sets to True once the pod's volumes are mounted and its network is there; then it pulls images.
READY_TO_START: Final = "PodReadyToStartContainers"
# A volume that comes from another node is attached within seconds.
NOT_MOUNTED_SECONDS: Final = 60.0
# A container that the kubelet starts again and again, between two of its back-offs.
CRASHES_TO_TELL_OF: Final = 3


@dataclass(frozen=True)
class Trouble:
    reason: Reason
    message: str


def pod_trouble(pod: JsonObject, *, now: str) -> Trouble | None:
    """The trouble that a person should look at; None for a pod that is ready or on its way."""
    name = str(observed.metadata(pod).get("name", ""))
    if observed.being_deleted(pod):
        return _stuck(pod, name) if observed.is_stuck_terminating(pod, now=now) else None
    # Also of those that spec.podTemplate lets run before the broker: while one of them fails, no broker starts.
    kinds = ("initContainerStatuses", "containerStatuses")
    for status in (one for kind in kinds for one in observed.pod_status(pod).get(kind) or []):
        if trouble := _of_container(status, name):
            return trouble
    for condition in observed.pod_status(pod).get("conditions") or []:
        if condition.get("type") == "PodScheduled" and condition.get("reason") == "Unschedulable":
            return Trouble(Reason.MEMBER_NOT_SCHEDULED, f"Pod {name}: {condition.get('message', 'no node takes it')}")
    return _not_mounted(pod, name, now=now)


def _not_mounted(pod: JsonObject, name: str, *, now: str) -> Trouble | None:
    """A Secret of a volume that is missing, say: the kubelet says which in the pod's Events alone."""
    found = observed.condition_in(pod, READY_TO_START)
    since = str(found.get("lastTransitionTime") or "")
    if observed.pod_phase(pod) != "Pending" or found.get("status") != "False" or not since:
        return None
    if (observed.moment(now) - observed.moment(since)).total_seconds() < NOT_MOUNTED_SECONDS:
        return None
    mounted = ", ".join(_mounted_by(pod))
    needs = f" It mounts {mounted}: one of them may be missing." if mounted else ""
    told = f"Pod {name}: its volumes, or its network, are not ready since {since}.{needs}"
    return Trouble(Reason.CONTAINER_NOT_CREATED, f"{told} The pod's Events say which: kubectl describe pod {name}")


def _mounted_by(pod: JsonObject) -> list[str]:
    """What the pod's volumes are made from, by kind and name."""
    volumes: list[JsonObject] = (pod.get("spec") or {}).get("volumes") or []
    kinds = (
        ("secret", "secretName", "Secret"),
        ("configMap", "name", "ConfigMap"),
        ("persistentVolumeClaim", "claimName", "claim"),
    )
    return [f"{kind} {one[source][key]}" for source, key, kind in kinds for one in volumes if source in one]


def _of_container(status: dict[str, Any], name: str) -> Trouble | None:
    waiting: dict[str, Any] = (status.get("state") or {}).get("waiting") or {}
    why = str(waiting.get("reason", ""))
    said = f": {waiting['message']}" if waiting.get("message") else ""
    if reason := WAITING_REASONS.get(why):
        image = f" {status.get('image', '')}" if reason is Reason.IMAGE_UNAVAILABLE else ""
        is_missing = reason is Reason.CONTAINER_NOT_CREATED and any(words in said for words in MISSING_WORDS)
        return Trouble(Reason.REFERENCE_MISSING if is_missing else reason, f"Pod {name}: {why}{image}{said}")
    if not status.get("ready") and int(status.get("restartCount") or 0) >= CRASHES_TO_TELL_OF:
        started = f"Pod {name} has been started {status['restartCount']} times and is not ready"
        return Trouble(Reason.MEMBER_CRASHES, started)
    return None


def _stuck(pod: JsonObject, name: str) -> Trouble:
    """Nothing is done about it: only a look at the node shows whether the process behind it is dead."""
    node = node_of(pod) or "?"
    member = observed.labels_of(pod).get(names.LABEL_BROKER_ID, "?")
    return Trouble(
        Reason.POD_STUCK_TERMINATING,
        f"Pod {name} does not stop: node {node} does not answer. If the node is dead, say so:"
        f" kubectl taint node {node} node.kubernetes.io/out-of-service=nodeshutdown:NoExecute, and the pod comes back"
        f" elsewhere with its volume. Or give its volume up with a BrokerGroupOperation of type Rebuild for broker id {member}:"
        " a new member copies the master",
    )
