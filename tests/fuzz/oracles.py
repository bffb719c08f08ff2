"""Conditions that must hold in a settled state, for any spec.

*Reached*: observedGeneration is the spec's, Ready and UpToDate are True, Stalled is not; and, checked without the
product's own drift detection, the API has exactly the spec's rendered children, and every broker runs with the values of
broker.conf. *Explained*: the status is about this spec too, and a condition has a reason and a message about the wait for
a person. Any other settled state is a violation. `laws_broken` of the world has violations on the way.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final

from brokergroup_operator.api import names, pod_fence
from brokergroup_operator.api.durability import beyond_voters
from brokergroup_operator.kube import resources
from brokergroup_operator.kube.resources import CONFIG_MAPS, PERSISTENT_VOLUME_CLAIMS, PODS, SERVICES
from brokergroup_operator.reconcile.identity import Member
from brokergroup_operator.reconcile.render import addressing, children, containers
from brokergroup_operator.reconcile.render.children import build_disruption_budgets
from brokergroup_operator.reconcile.render.pods import build_pod
from brokergroup_operator.reconcile.see import foreign
from brokergroup_operator.reconcile.see.fetch import read_group, with_sources
from brokergroup_operator.reconcile.settings import ReconcileSettings
from rocketmq_remoting.serialization import decode_properties
from tests.fuzz.world import ConfiguredBroker
from tests.sieve.cluster import CONTROLLER
from tests.sieve.workloads import condition
from tests.sieve.world import NAMESPACE, comparable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from brokergroup_operator.api.brokergroup import BrokerGroup
    from brokergroup_operator.kube.resources import Resource
    from tests.fuzz.world import FuzzWorld

SETTINGS = ReconcileSettings(controller_addresses=(CONTROLLER,), namespace=NAMESPACE)
# Conditions that, when True, mean a wait for a person.
TELLING = (
    "Stalled",
    "Paused",
    "Hibernated",
    "BrokersStopped",
    "CredentialsMissing",
    "SeatLost",
    "EpochJump",
    "Recovering",
)
# Reasons of an update that waits, and goes on at once where a person replaces the pods.
WAITS_FOR_PERSON = ("WaitingForPerson", "OutsideWindow")


def is_current(group: dict[str, Any]) -> bool:
    """Whether the status, and every condition of it, is about this spec."""
    generation, status = group["metadata"]["generation"], group.get("status", {})
    told = [status.get("observedGeneration"), *(one.get("observedGeneration") for one in status.get("conditions", []))]
    return set(told) == {generation}


def is_reached(group: dict[str, Any]) -> bool:
    wanted = {"Ready": "True", "UpToDate": "True", "Stalled": "False", "Reconciling": "False", "Available": "True"}
    return all(condition(group, kind) == status for kind, status in wanted.items()) and not explanation(group)


def explanation(group: dict[str, Any]) -> str:
    """Return reason and message of the condition that explains why the declared state isn't reached; empty if none does."""
    for one in group.get("status", {}).get("conditions", []):
        tells = one["type"] in TELLING and one["status"] == "True"
        waits = one["status"] == "False" and one["reason"] in WAITS_FOR_PERSON
        if (tells or waits) and one["reason"] and len(one["message"]) > len("Stalled"):
            return f"{one['type']} {one['reason']}: {one['message']}"
    return ""


def waits_for_a_successor(group: dict[str, Any]) -> bool:
    """Whether it states correctly that the spec allows no successor of the master, or that the successor is leaving."""
    if "give one of them another priority in spec.failover.priorities" not in explanation(group):
        return False
    spec, status = group["spec"], group["status"]
    ids = {one["brokerId"] for one in status["members"]}
    barred = {one["brokerId"] for one in spec["failover"]["priorities"] if one["priority"] == 0}
    leaving: int = len(ids) - spec["replicas"]
    return len(ids - barred - {status["master"]["brokerId"]}) <= leaving


def in_sync(group: dict[str, Any]) -> set[str]:
    """Return the pods of live members in the SyncStateSet, by the status."""
    return {one["pod"] for one in group.get("status", {}).get("members", []) if one["state"] == "InSync"}


def left_to_a_person(group: dict[str, Any]) -> str:
    """Return UpToDate's text about pods that the update strategy leaves to a person; empty if paused or hibernated."""
    if condition(group, "Paused") == "True" or condition(group, "Hibernated") == "True":
        return ""
    conditions = group.get("status", {}).get("conditions", [])
    waits = (one for one in conditions if one["type"] == "UpToDate" and one["reason"] in WAITS_FOR_PERSON)
    return next((one["message"] for one in waits), "")


async def differences(world: FuzzWorld) -> list[str]:
    """Return the cluster's differences from the spec."""
    group_object = await world.group()
    found = {
        resource: {
            item["metadata"]["name"]: item for item in (await world.api.list(resource, namespace=NAMESPACE)).items
        }
        for resource in (CONFIG_MAPS, SERVICES, resources.POD_DISRUPTION_BUDGETS, PERSISTENT_VOLUME_CLAIMS, PODS)
    }
    group, problem = with_sources(read_group(group_object), found[CONFIG_MAPS])
    members = [Member(broker_id=one["brokerId"], pod=one["pod"]) for one in group_object["status"]["members"]]
    open_for_one = condition(group_object, "FailoverSafe") == "True"
    ids = [member.broker_id for member in members]
    learners = beyond_voters(ids, replicas=group.spec.replicas, learners=group.spec.replication.learners)
    budgets = (
        build_disruption_budgets(group, open_for_one=open_for_one, apart=len(learners))
        if group.spec.disruption_budget.enabled
        else []
    )
    pods = sorted(member.pod for member in members)
    slots = addressing.node_port_slots(group, pods, found[SERVICES], found[PODS])
    own_services = [
        addressing.build_member_service(group, member, slot=slots[member.pod])
        for member in members
        if group.spec.network.addressing.has_member_services
    ]
    wanted: dict[Resource, list[dict[str, Any]]] = {
        CONFIG_MAPS: [children.build_config_map(group, SETTINGS)],
        SERVICES: [*children.build_services(group), *own_services],
        resources.POD_DISRUPTION_BUDGETS: budgets,
        PERSISTENT_VOLUME_CLAIMS: [children.build_claim(group, member) for member in members],
        PODS: [
            build_pod(
                # A pod whose fence has shorter times than the present ones may keep them.
                containers.with_times_of(group, found[PODS].get(member.pod) or {}),
                member,
                SETTINGS,
                place=addressing.place_of(group, member, found[SERVICES]),
                learner=member.broker_id in learners,
            )
            for member in members
        ],
    }
    wrong = [problem] if problem else []
    if len(members) != group.spec.replicas:
        wrong.append(f"{len(members)} members, spec.replicas is {group.spec.replicas}")
    for resource, objects in wanted.items():
        own = {name for name, item in found[resource].items() if _is_child(item)}
        if resource != PERSISTENT_VOLUME_CLAIMS:  # those of members that left are kept
            wrong += [
                f"{resource.kind} {name}: left over" for name in own - {one["metadata"]["name"] for one in objects}
            ]
        for one in objects:
            name = one["metadata"]["name"]
            wrong += lacking(one, found[resource].get(name), f"{resource.kind} {name}")
    return wrong + list(_running_otherwise(world, group_object, group, found[PODS]))


def _is_child(item: dict[str, Any]) -> bool:
    return names.LABEL_BROKER_GROUP in item["metadata"].get("labels", {})


def lacking(wanted: Any, found: Any, path: str) -> list[str]:
    """Return missing or different values. API servers' additions to objects don't count, additions to lists do."""
    if isinstance(wanted, dict):
        if not isinstance(found, dict):
            return [f"{path}: {found!r}, declared {wanted!r}"]
        return [line for key, value in wanted.items() for line in lacking(value, found.get(key), f"{path}.{key}")]
    if isinstance(wanted, list):
        wanted, found = in_order(path, wanted), in_order(path, found)
        if path.endswith(".tolerations") and isinstance(found, list):
            found = found[: len(wanted)]  # every pod gets two more
        if not isinstance(found, list) or len(found) != len(wanted):
            return [f"{path}: {found!r}, declared {wanted!r}"]
        pairs = zip(wanted, found, strict=True)
        return [line for index, (one, other) in enumerate(pairs) for line in lacking(one, other, f"{path}[{index}]")]
    return [] if _same(wanted, found) else [f"{path}: {found!r}, declared {wanted!r}"]


def in_order(path: str, items: Any) -> Any:
    """Sort a Service's ports by name: server-side apply keeps the position of known ones."""
    if path.endswith("ports") and isinstance(items, list) and all("name" in item for item in items):
        return sorted(items, key=lambda item: str(item["name"]))
    return items


def _same(wanted: Any, found: Any) -> bool:
    if wanted == found:
        return True
    try:
        return foreign.parse_quantity(wanted) == foreign.parse_quantity(found)
    except (foreign.QuantityError, TypeError):
        return False


# With what a pod keeps a shorter heartbeat timeout.
TOLD_TIMES: Final = {
    pod_fence.FENCE_TIMEOUT,
    pod_fence.FENCE_HEARTBEAT_TIMEOUT,
    "FENCE_ISOLATION_MILLISECONDS",
    "FENCE_HEARTBEAT_INTERVAL_MILLISECONDS",
}
HEARTBEAT_KEYS: Final = {"brokerHeartbeatInterval", "controllerHeartBeatTimeoutMills"}


def _running_otherwise(
    world: FuzzWorld, group_object: dict[str, Any], group: BrokerGroup, pods: dict[str, dict[str, Any]]
) -> Iterator[str]:
    declared = _properties(group)
    for name, life in world.node.pods.items():
        broker, as_made = life.broker, _properties(containers.with_times_of(group, pods.get(name) or {}))
        assert isinstance(broker, ConfiguredBroker)
        for key in sorted(declared.keys() | broker.runs_with.keys()):
            if key in HEARTBEAT_KEYS and broker.runs_with.get(key) == as_made[key]:
                continue
            if declared.get(key) != broker.runs_with.get(key):
                yield f"broker in {name}: {key} is {broker.runs_with.get(key)!r}, declared {declared.get(key)!r}"
    masters = [life.broker.broker_id for life in world.node.pods.values() if life.broker.is_master]
    if masters != [group_object["status"]["master"]["brokerId"]]:
        yield f"brokers {masters} believe to be master, status.master is {group_object['status']['master']['brokerId']}"


def _properties(group: BrokerGroup) -> dict[str, str]:
    return decode_properties(children.build_config_map(group, SETTINGS)["data"][names.CONFIG_FILE].encode())


def renamed(everything: dict[str, Any], group: dict[str, Any]) -> dict[str, Any]:
    """Return all objects with members by position instead of broker id, without claims and pods of former members.

    A group that shrinks and grows again has other ids: they are never used twice.
    """
    ids = sorted(one["brokerId"] for one in group["status"]["members"])
    name = group["metadata"]["name"]
    places = {broker_id: place for place, broker_id in enumerate(ids, start=1)}
    text = json.dumps(everything, sort_keys=True)

    def replaced(match: re.Match[str]) -> str:
        broker_id = int(match[1])
        return f"{name}-#{places[broker_id]}" if broker_id in places else f"{name}-gone"

    kept = json.loads(re.sub(rf"\b{name}-(\d+)\b", replaced, text))
    return {key: _by_place(value, places) for key, value in kept.items() if not key.endswith("-gone")}


NUMBERED = ("brokerId", names.LABEL_BROKER_ID)


def _by_place(value: Any, places: dict[int, int]) -> Any:
    if isinstance(value, dict):
        numbered = {key: places.get(int(item), 0) for key, item in value.items() if key in NUMBERED}
        return {key: _by_place(item, places) for key, item in value.items()} | numbered
    if isinstance(value, list):
        return [_by_place(item, places) for item in value]
    return value


# History grows while a group returns to its earlier spec. Ids are never used again; the master may differ.
OF_THE_PAST = {"nextBrokerId", "syncStateSet", "replicas", "eligible"}


async def snapshot(world: FuzzWorld, *, status: bool = True) -> dict[str, Any]:
    """Return the group's state that a change and its reversal must preserve."""
    everything = await world.everything()
    group = await world.group()
    found = renamed(everything, group)
    for key, item in found.items():
        if key.startswith("Pod "):
            _forget_told_times(item)
        if key.startswith("Service "):
            item["spec"]["ports"] = in_order("ports", item["spec"]["ports"])
        if key.startswith(names.BROKER_GROUP_STATE_KIND):
            item["record"] = {name: value for name, value in item["record"].items() if name not in OF_THE_PAST}
        if key.startswith(f"{names.BROKER_GROUP_KIND} "):
            item.pop("spec")
            if not status:
                item.pop("status")
            else:
                item["status"] = {name: value for name, value in item["status"].items() if name != "syncStateSet"}
    result: dict[str, Any] = comparable(found)
    return result


def _forget_told_times(pod: dict[str, Any]) -> None:
    """Drop a pod's fence times: a fence keeps shorter ones, so they depend on history, and `differences` checks them."""
    told = False
    for container in pod["spec"]["containers"]:
        for entry in container.get("env") or []:
            if entry["name"] in TOLD_TIMES:
                entry["value"], told = "told", True
    if told:  # then only the times, which are part of it, may differ: what the broker runs with is compared with what is declared
        pod["metadata"]["annotations"][names.ANNOTATION_CONFIG_HASH] = "told"
