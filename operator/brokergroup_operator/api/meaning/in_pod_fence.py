"""The fence inside a pod, as a group's spec wants it: whether there is one, and how long a master lives beside it. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from brokergroup_operator.api import names
from brokergroup_operator.api.brokergroup import Implementation
from brokergroup_operator.fence.decide import FenceRules

if TYPE_CHECKING:
    from brokergroup_operator.api.bounds import JsonObject
    from brokergroup_operator.api.brokergroup import BrokerGroupSpec, FailoverSpec

# Variables of the fence's container.
FENCE_TIMEOUT: Final = "FENCE_TIMEOUT_MILLISECONDS"
FENCE_HEARTBEAT_TIMEOUT: Final = "FENCE_HEARTBEAT_TIMEOUT_MILLISECONDS"


def wanted(spec: BrokerGroupSpec) -> bool:
    """Whether the pods have one: it kills a broker that is stopped when its pod is deleted."""
    return spec.failover.isolation.enabled


def kills_the_isolated(spec: BrokerGroupSpec) -> bool:
    """Java brokers only: a Python master that was frozen asks the controller anew before it acknowledges."""
    return wanted(spec) and spec.implementation is Implementation.ROCKETMQ


def shortest_heartbeat_timeout_milliseconds(failover: FailoverSpec) -> int:
    """After this silence a broker may be given up."""
    return failover.minimum_heartbeat_timeout_milliseconds or failover.heartbeat_timeout_milliseconds


def trust_without_confirmation(spec: BrokerGroupSpec) -> str:
    """Why an election may be trusted although no kubelet confirmed the master's death; empty: it may not."""
    if not kills_the_isolated(spec):
        return ""
    failover = spec.failover
    rules = FenceRules(
        isolation_seconds=failover.isolation.timeout_milliseconds / 1000,
        fence_timeout_seconds=failover.fence_timeout_milliseconds / 1000,
        heartbeat_timeout_seconds=shortest_heartbeat_timeout_milliseconds(failover) / 1000,
        heartbeat_interval_seconds=failover.heartbeat_interval_milliseconds / 1000,
    )
    return (
        f"if its pod was cut off, the fence inside it kills a master that has heard no controller for"
        f" {rules.isolation_seconds:g} s, at the latest after {rules.bound_seconds:g} s; one that fell silent was replaced"
        f" {rules.heartbeat_timeout_seconds + rules.fence_timeout_seconds:g} s after its last heartbeat at the earliest"
    )


def told(pod: JsonObject, variable: str) -> int | None:
    """What the fence of this pod was told by a variable, in milliseconds; None if it was not."""
    for container in (pod.get("spec") or {}).get("containers") or []:
        if container.get("name") == names.CONTAINER_FENCE:
            values = [str(one.get("value")) for one in container.get("env") or [] if one.get("name") == variable]
            return int(values[0]) if values and values[0].isdecimal() else None
    return None


def kills_after_seconds(pod: JsonObject) -> float:
    """After how long a silence the fence of this pod has killed its broker, by the times it was told; 0 where it does not."""
    fence_timeout, heartbeat_timeout = told(pod, FENCE_TIMEOUT), told(pod, FENCE_HEARTBEAT_TIMEOUT)
    if fence_timeout is None or heartbeat_timeout is None:
        return 0.0
    return (fence_timeout + heartbeat_timeout) / 1000
