"""The fence inside a pod, as a group's spec asks for it, and the keys of the operator's orders to it. Pure.

A group's key is derived from the operator's root and the group's uid, so the operator never reads a group's Secret: it needs the
right to create one, and no other. The Secret's name contains a second derived value: with another root (its Secret was lost) pods
name another Secret, and are rolled onto it, instead of holding a key that the operator does not know.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from brokergroup_operator.api import names
from brokergroup_operator.api.brokergroup import Implementation
from brokergroup_operator.fence.rules import FenceRules

if TYPE_CHECKING:
    from brokergroup_operator.api.bounds import JsonObject
    from brokergroup_operator.api.brokergroup import BrokerGroupSpec


# Variables of the fence's container.
FENCE_CONTROLLERS: Final = "FENCE_CONTROLLERS"
FENCE_TIMEOUT: Final = "FENCE_TIMEOUT_MILLISECONDS"
FENCE_HEARTBEAT_TIMEOUT: Final = "FENCE_HEARTBEAT_TIMEOUT_MILLISECONDS"
# Of milliseconds; `int` raises for thousands of digits.
_MOST_DIGITS: Final = 9


def wanted(spec: BrokerGroupSpec) -> bool:
    """Whether the pods have a fence. It kills a broker that is stopped while its pod is deleted."""
    return spec.failover.isolation.enabled


def kills_the_isolated(spec: BrokerGroupSpec) -> bool:
    """Whether the fence kills an isolated broker: a Java one only. After a freeze a Python master asks the controller first."""
    return wanted(spec) and spec.implementation is Implementation.JAVA


def trust_without_confirmation(spec: BrokerGroupSpec) -> str:
    """Return why an election is safe without the kubelet's confirmation of the master's death; empty: it is not."""
    if not kills_the_isolated(spec):
        return ""
    times = spec.failover.times
    rules = FenceRules(
        isolation_seconds=times.isolation_milliseconds / 1000,
        fence_timeout_seconds=times.fence_milliseconds / 1000,
        heartbeat_timeout_seconds=times.heartbeat_timeout_milliseconds / 1000,
        heartbeat_interval_seconds=times.heartbeat_interval_milliseconds / 1000,
    )
    return (
        f"if its pod was cut off, the fence inside it kills a master that has heard no controller for"
        f" {rules.isolation_seconds:g} s, at the latest after {rules.bound_seconds:g} s; one that fell silent was replaced"
        f" {rules.heartbeat_timeout_seconds + rules.fence_timeout_seconds:g} s after its last heartbeat at the earliest"
    )


def told(pod: JsonObject, variable: str) -> int | None:
    """Return the milliseconds in an environment variable of this pod's fence, or None."""
    value = _given(pod, variable)
    # Every client that may create pods with a group's label can set this variable.
    is_number = value.isascii() and value.isdecimal() and len(value) <= _MOST_DIGITS
    return int(value) if is_number else None


def controllers_of(pod: JsonObject) -> str:
    """Return the addresses that this pod's fence asks first, separated by semicolons; empty if it asks none."""
    return _given(pod, FENCE_CONTROLLERS)


def _given(pod: JsonObject, variable: str) -> str:
    for container in (pod.get("spec") or {}).get("containers") or []:
        if container.get("name") == names.CONTAINER_FENCE:
            return next(
                (str(one.get("value")) for one in container.get("env") or [] if one.get("name") == variable), ""
            )
    return ""


def kills_after_seconds(pod: JsonObject) -> float:
    """Return the silence after which this pod's fence has killed its broker, by its environment; 0 if it does not kill."""
    fence_timeout, heartbeat_timeout = told(pod, FENCE_TIMEOUT), told(pod, FENCE_HEARTBEAT_TIMEOUT)
    if fence_timeout is None or heartbeat_timeout is None:
        return 0.0
    return (fence_timeout + heartbeat_timeout) / 1000


# The value of the annotation while the order to stop the broker stands; any text but the empty one counts.
STANDS: Final = "true"


def knows_orders(pod: JsonObject) -> bool:
    """Whether the pod was made with the gate, and its fence reads the order."""
    return any(one.get("name") == names.VOLUME_ORDERS for one in (pod.get("spec") or {}).get("volumes") or [])


def is_stop_ordered(obj: JsonObject) -> bool:
    """Whether the order to stop the broker stands on this pod, or is noted on this claim."""
    return bool(((obj.get("metadata") or {}).get("annotations") or {}).get(names.ANNOTATION_STOPPED))


_MARK_BYTES: Final = 4


@dataclass(frozen=True, slots=True)
class FenceKeys:
    """`root` is secret, 32 bytes."""

    root: bytes = field(repr=False)

    def key_of(self, group_uid: str) -> bytes:
        return self._made("key", group_uid)

    def secret_name(self, group: str, group_uid: str) -> str:
        return f"{group}-fence-{self._made('name', group_uid)[:_MARK_BYTES].hex()}"

    def key_in(self, pod: JsonObject) -> bytes | None:
        """Return the key of this pod's fence; None if it has none from this root."""
        made_for = (pod["metadata"].get("annotations") or {}).get(names.ANNOTATION_GROUP_UID)
        for owner in pod["metadata"].get("ownerReferences") or []:
            if owner.get("kind") == names.BROKER_GROUP_KIND:
                # The uid of the earlier group, if that was orphaned.
                uid = str(made_for or owner["uid"])
                mounted = [
                    (volume.get("secret") or {}).get("secretName") for volume in pod["spec"].get("volumes") or []
                ]
                return self.key_of(uid) if self.secret_name(str(owner["name"]), uid) in mounted else None
        return None

    def _made(self, what: str, group_uid: str) -> bytes:
        return hmac.digest(self.root, f"brokergroup fence {what}\0{group_uid}".encode(), "sha256")
