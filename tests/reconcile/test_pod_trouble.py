"""What keeps a pod from getting ready, in Kubernetes' words and ours."""

from __future__ import annotations

from typing import Any

import pytest

from brokergroup_operator.reconcile.see.observed import pod_trouble
from tests.reconcile import builders as b


def pod(status: dict[str, Any], **metadata: Any) -> dict[str, Any]:
    made = b.running_pod(b.group(), 2)
    made["metadata"] |= metadata
    made["status"] = {"phase": "Pending"} | status
    return made


def waiting(reason: str, message: str = "") -> dict[str, Any]:
    return {
        "containerStatuses": [
            {"name": "broker", "image": "x:1", "state": {"waiting": {"reason": reason, "message": message}}}
        ]
    }


def started(times: int, *, ready: bool) -> dict[str, Any]:
    return {"containerStatuses": [{"restartCount": times, "ready": ready, "state": {"running": {}}}]}


def first(status: dict[str, Any]) -> dict[str, Any]:
    """The same of an init container; the broker waits for it."""
    return waiting("PodInitializing") | {"initContainerStatuses": status["containerStatuses"]}


UNSCHEDULABLE = {
    "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes"}]
}
CASES: list[tuple[str, dict[str, Any], str | None]] = [
    ("on its way", pod(waiting("ContainerCreating")), None),
    ("ready", b.running_pod(b.group(), 2), None),
    ("no image", pod(waiting("ImagePullBackOff", "not found")), "ImageUnavailable"),
    ("a bad name of an image", pod(waiting("InvalidImageName")), "ImageUnavailable"),
    ("crashing", pod(waiting("CrashLoopBackOff", "back-off 40s")), "MemberCrashes"),
    ("a missing Secret", pod(waiting("CreateContainerConfigError", 'secret "keys" not found')), "ReferenceMissing"),
    ("a missing key", pod(waiting("CreateContainerConfigError", "couldn't find key k in Secret a/b")), "ReferenceMissing"),
    ("a user that may not be", pod(waiting("CreateContainerConfigError", "image will run as root")), "ContainerNotCreated"),
    ("between two crashes", pod(started(3, ready=False)), "MemberCrashes"),
    ("crashed once", pod(started(1, ready=False)), None),
    ("crashed often and ready", pod(started(9, ready=True)), None),
    ("a mount that cannot be made", pod(waiting("CreateContainerError", "no such path")), "ContainerNotCreated"),
    ("no image of what runs first", pod(first(waiting("ErrImagePull", "not found"))), "ImageUnavailable"),
    ("what runs first fails", pod(first(waiting("CrashLoopBackOff"))), "MemberCrashes"),
    ("what runs first is at work", pod(first(started(0, ready=False))), None),
    ("no node", pod(UNSCHEDULABLE), "MemberNotScheduled"),
    ("stopping", pod(waiting("CrashLoopBackOff"), deletionTimestamp="2026-11-20T23:59:30Z"), None),
    ("its node is lost", pod({}, deletionTimestamp="2026-11-20T23:58:59Z"), "PodStuckTerminating"),
    (
        "it has stopped, and its object goes in a moment",
        pod({"containerStatuses": [{"state": {"terminated": {}}}]}, deletionTimestamp="2026-11-20T23:00:00Z"),
        None,
    ),
]  # fmt: skip


@pytest.mark.parametrize(("seen", "expected"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_trouble(seen: dict[str, Any], expected: str | None) -> None:
    trouble = pod_trouble(seen, now=b.NOW)

    assert (trouble.reason.value if trouble else None) == expected


def test_a_lost_node_is_named_with_both_ways_out() -> None:
    """Strimzi #13101: a pod stuck in Terminating on a dead node."""
    trouble = pod_trouble(pod({}, deletionTimestamp="2026-11-20T23:00:00Z"), now=b.NOW)
    assert trouble is not None
    for text in ("node-1", "kubectl taint node node-1 node.kubernetes.io/out-of-service", "Rebuild for broker id 2"):
        assert text in trouble.message


def test_what_is_missing_is_named_as_the_kubelet_names_it() -> None:
    trouble = pod_trouble(pod(waiting("CreateContainerConfigError", 'secret "orders-keys" not found')), now=b.NOW)
    assert trouble is not None
    assert trouble.message == 'Pod orders-2: CreateContainerConfigError: secret "orders-keys" not found'
