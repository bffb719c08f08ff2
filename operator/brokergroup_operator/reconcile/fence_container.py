"""Builds the fence inside a pod: the second container, which kills a broker that nobody else can reach any more. Pure.

It shares the pod's process namespace and the broker's user, so it needs no capability; it speaks to controllers and to the fences
of the group, never to the Kubernetes API. What it does: `brokergroup_operator.fence` (design.md §4, rule 7).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from brokergroup_operator.api import names
from brokergroup_operator.api.brokergroup import Implementation
from brokergroup_operator.reconcile.broker_config import broker_name, hand_over_seconds

if TYPE_CHECKING:
    from brokergroup_operator.api.bounds import JsonObject
    from brokergroup_operator.api.brokergroup import BrokerGroup, BrokerGroupSpec
    from brokergroup_operator.reconcile.settings import ReconcileSettings

# Not `brokergroup fence`: the command line alone would need more memory than the fence.
COMMAND: Final = ("python", "-m", "brokergroup_operator.fence")
PRE_STOP_STEPS_PER_SECOND: Final = 10


def restricted() -> JsonObject:
    """A container as Pod Security "restricted" wants it, with a root file system that nobody writes to."""
    return {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}


def wanted(spec: BrokerGroupSpec) -> bool:
    """Java brokers only: a Python master that was frozen asks the controller anew before it acknowledges."""
    return spec.failover.isolation.enabled and spec.implementation is Implementation.ROCKETMQ


def container(group: BrokerGroup, settings: ReconcileSettings) -> JsonObject:
    spec = group.spec
    port = spec.network.listen_port
    return {
        "name": names.CONTAINER_FENCE,
        "image": settings.replica_image,
        "imagePullPolicy": spec.image_pull_policy.value,
        "command": list(COMMAND),
        "env": [
            {"name": "POD_UID", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}},
            {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
            {"name": "BROKERGROUP_CONTAINER", "value": names.CONTAINER_FENCE},
            {"name": "RUN_DIR", "value": names.RUN_DIR},
            {"name": "FENCE_BROKER_NAME", "value": broker_name(str(group.metadata["name"]), spec)},
            {"name": "FENCE_BROKER_ADDRESS", "value": f"$(POD_IP):{port}"},
            {"name": "FENCE_LOCAL_ADDRESS", "value": f"$(POD_IP):{port}"},
            {"name": "FENCE_CONTROLLERS", "value": ";".join(settings.controller_addresses)},
            {"name": "FENCE_ISOLATION_MILLISECONDS", "value": str(spec.failover.isolation.timeout_milliseconds)},
            {"name": "FENCE_TIMEOUT_MILLISECONDS", "value": str(spec.failover.fence_timeout_milliseconds)},
        ],
        "ports": [{"name": names.PORT_FENCE, "containerPort": port + names.FENCE_PORT_OFFSET, "protocol": "UDP"}],
        "volumeMounts": [{"name": names.VOLUME_RUN, "mountPath": names.RUN_DIR}],
        "securityContext": restricted(),
        "resources": {"requests": {"cpu": "10m", "memory": "32Mi"}, "limits": {"memory": "64Mi"}},
    }


def broker_environment() -> list[JsonObject]:
    """By which the fence knows the broker's processes among all that it sees."""
    return [
        {"name": "POD_UID", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}},
        {"name": "BROKERGROUP_CONTAINER", "value": names.CONTAINER_BROKER},
    ]


def broker_lifecycle(spec: BrokerGroupSpec) -> JsonObject:
    """SIGTERM waits until the broker is master no more, as the fence writes it down, or a bound has passed.

    A plain SIGTERM of a Java master leaves its group without a master for about 9 s.
    """
    wait = (
        f"i=0; while [ $i -lt {hand_over_seconds(spec) * PRE_STOP_STEPS_PER_SECOND} ]"
        ' && [ "$(cat "$RUN_DIR/role" 2>/dev/null)" = master ]; do sleep 0.1; i=$((i+1)); done'
    )
    return {"preStop": {"exec": {"command": ["sh", "-c", wait]}}}
