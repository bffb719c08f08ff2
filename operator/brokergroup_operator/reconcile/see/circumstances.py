"""Why a member went, by its pod, containers and node. Everything but ``CircumstanceWatch`` is pure.

=================  ====================================================================================================
cause              proven by
=================  ====================================================================================================
oom                the broker's container ended with reason ``OOMKilled``; an eviction for want of memory
disk               an eviction for want of disk; a node with ``DiskPressure``; a container that ended for want of space
drain              ``DisruptionTarget``: evicted by the API, preempted, its node emptied or shut down
rollingUpgrade     the pod is deleted by us because it is outdated (noted before it is)
partition          the node was not reachable, and came back without having been booted
crash              the container ended by itself, with an exit code that is no signal to end
unknown            the container was killed; the node is not reachable (yet)
=================  ====================================================================================================
"""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any, Final

import metric_names
from brokergroup_operator.api import names
from brokergroup_operator.kube.pods import node_of
from brokergroup_operator.kube.resources import PODS
from brokergroup_operator.observe.incidents import Circumstance
from brokergroup_operator.observe.timeline import OUT_OF_MEMORY_WORD
from brokergroup_operator.reconcile.plan import DeleteObject
from brokergroup_operator.reconcile.see import observed
from brokergroup_operator.records.store import GroupKey

if TYPE_CHECKING:
    from collections.abc import Iterator

    from brokergroup_operator.api.bounds import JsonObject
    from brokergroup_operator.reconcile.plan import Plan
    from brokergroup_operator.reconcile.see.observed import Observed

# A node is called unreachable when it has not been heard for 40 to 50 s, by default.
UNREACHABLE_BEFORE_SECONDS: Final = 60
# 128 + SIGKILL, 128 + SIGTERM: another process ended it; which one is not known.
_KILLED: Final = frozenset({137, 143})
_NO_SPACE: Final = ("No space left on device", "Disk quota exceeded")
_DISK_WORDS: Final = ("ephemeral-storage", "ephemeral local storage", "inodes", "DiskPressure", "nodefs", "imagefs")
_MEMORY_WORDS: Final = ("low on resource: memory", "MemoryPressure")
_MOVED: Final = frozenset({"EvictionByEvictionAPI", "PreemptionByScheduler"})
_Fact = tuple[str, str, dt.datetime, dt.datetime, str]


def circumstances_of(seen: Observed) -> Iterator[Circumstance]:
    for name, pod in seen.pods.items():
        node = seen.nodes.get(node_of(pod), {})
        for fact in (*_of_container(pod), *_of_disruption(pod, node), *_of_node(node, observed.moment(seen.now))):
            yield from _about(seen, name, fact)


def circumstances_of_plan(plan: Plan, seen: Observed) -> Iterator[Circumstance]:
    """The circumstances that the plan causes: pods that are stopped for an update, until they must be gone."""
    now = observed.moment(seen.now)
    grace = dt.timedelta(seconds=seen.group.spec.termination_grace_period_seconds)
    for action in plan.actions:
        if isinstance(action, DeleteObject) and action.resource == PODS and action.is_update:
            fact = (metric_names.CAUSE_ROLLING_UPGRADE, "RollingUpdate", now, now + grace, action.reason)
            yield from _about(seen, action.name, fact)


class CircumstanceWatch:
    """Remembers which nodes were unreachable, and under which boot id: one that comes back under the same ran on meanwhile."""

    def __init__(self) -> None:
        self._unreachable: dict[str, tuple[str, dt.datetime]] = {}

    def look(self, seen: Observed) -> list[Circumstance]:
        found = list(circumstances_of(seen))
        for name, pod in seen.pods.items():
            node = node_of(pod)
            if node in seen.nodes and (fact := self._partition(node, seen.nodes[node])) is not None:
                found += _about(seen, name, fact)
        return found

    def _partition(self, name: str, node: JsonObject) -> _Fact | None:
        ready = _condition(node, "Ready")
        boot_id = str(((node.get("status") or {}).get("nodeInfo") or {}).get("bootID", ""))
        if ready.get("status") == "Unknown":
            self._unreachable[name] = (boot_id, _unreachable_since(ready))
            return None
        if ready.get("status") != "True" or name not in self._unreachable:
            return None
        # Not forgotten: the other members' groups ask as well, and the same record noted twice is one.
        known_boot_id, since = self._unreachable[name]
        if not boot_id or boot_id != known_boot_id:
            return None
        back = observed.moment(ready["lastTransitionTime"])
        return (metric_names.CAUSE_PARTITION, "NodeReachableAgain", since, back, f"node {name} ran on meanwhile")


def _about(seen: Observed, pod: str, fact: _Fact) -> Iterator[Circumstance]:
    cause, what, started_at, ended_at, message = fact
    metadata, spec = seen.group_object["metadata"], seen.group.spec
    label = observed.labels_of(seen.pods.get(pod) or {}).get(names.LABEL_BROKER_ID, "")
    is_number = label.isascii() and label.isdecimal()
    broker_id = int(label) if is_number else names.broker_id_of_pod_name(metadata["name"], pod)
    if broker_id is None:
        return
    yield Circumstance(
        group=GroupKey(metadata["namespace"], metadata["name"]),
        cluster_name=spec.broker_cluster_name,
        broker_name=spec.broker_name or metadata["name"],
        broker_id=broker_id,
        cause=cause,
        what=what,
        started_at=started_at,
        ended_at=ended_at,
        pod=pod,
        node=node_of(seen.pods.get(pod)),
        message=message,
    )


def _of_container(pod: JsonObject) -> Iterator[_Fact]:
    statuses: list[dict[str, Any]] = observed.pod_status(pod).get("containerStatuses") or []
    for status in (one for one in statuses if one.get("name") == names.CONTAINER_BROKER):
        for state in (status.get("lastState"), status.get("state")):
            ended = (state or {}).get("terminated")
            if ended and ended.get("finishedAt"):
                at = observed.moment(ended["finishedAt"])
                cause, what = _of_end(ended)
                # The container of a deleted pod ends because of the deletion: that is no cause of its own.
                if cause != metric_names.CAUSE_CRASH or not observed.being_deleted(pod):
                    yield cause, what, at, at, f"exit code {ended.get('exitCode')}"


def _of_end(ended: dict[str, Any]) -> tuple[str, str]:
    if ended.get("reason") == OUT_OF_MEMORY_WORD:
        return metric_names.CAUSE_OUT_OF_MEMORY, OUT_OF_MEMORY_WORD
    if any(words in str(ended.get("message", "")) for words in _NO_SPACE):
        return metric_names.CAUSE_DISK, "NoSpaceLeft"
    if ended.get("exitCode") in _KILLED:
        return metric_names.CAUSE_UNKNOWN, "ContainerKilled"
    return metric_names.CAUSE_CRASH, "ContainerEnded"


def _of_disruption(pod: JsonObject, node: JsonObject) -> Iterator[_Fact]:
    found = _condition(pod, "DisruptionTarget")
    if found.get("status") != "True":
        return
    at, reason = observed.moment(found["lastTransitionTime"]), str(found.get("reason", ""))
    said = f"{observed.pod_status(pod).get('message') or ''} {found.get('message') or ''}".strip()
    cause = metric_names.CAUSE_UNKNOWN
    if reason in _MOVED or observed.is_draining(node) or "node shutdown" in said:
        cause = metric_names.CAUSE_DRAIN
    elif any(words in said for words in _DISK_WORDS):
        cause = metric_names.CAUSE_DISK
    elif any(words in said for words in _MEMORY_WORDS):
        cause = metric_names.CAUSE_OUT_OF_MEMORY
    yield cause, reason, at, at, said


def _of_node(node: JsonObject, now: dt.datetime) -> Iterator[_Fact]:
    pressure, ready = _condition(node, "DiskPressure"), _condition(node, "Ready")
    if pressure.get("status") == "True":
        since = observed.moment(pressure["lastTransitionTime"])
        yield metric_names.CAUSE_DISK, "DiskPressure", since, max(since, now), str(pressure.get("message", ""))
    if ready.get("status") == "Unknown":
        since = _unreachable_since(ready)
        yield metric_names.CAUSE_UNKNOWN, "NodeUnreachable", since, max(since, now), str(ready.get("message", ""))


def _unreachable_since(ready: dict[str, Any]) -> dt.datetime:
    return observed.moment(ready["lastTransitionTime"]) - dt.timedelta(seconds=UNREACHABLE_BEFORE_SECONDS)


def _condition(obj: JsonObject, kind: str) -> dict[str, Any]:
    found = observed.condition_in(obj, kind)
    return found if found.get("lastTransitionTime") else {}
