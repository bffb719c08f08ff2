"""Objects for the tests of the reconcile plane: a group, what belongs to it, and what was seen."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec

from brokergroup_operator.api import names
from brokergroup_operator.api.brokergroup import BrokerGroup, BrokerGroupSpec
from brokergroup_operator.api.durability import effective_durability
from brokergroup_operator.api.pod_fence import FenceKeys
from brokergroup_operator.api.rocketmq_cluster import RocketMQCluster
from brokergroup_operator.observe.group_view import GroupSnapshot
from brokergroup_operator.reconcile.decide.rollout import wanted_pod
from brokergroup_operator.reconcile.identity import Member
from brokergroup_operator.reconcile.render import children
from brokergroup_operator.reconcile.render.children import build_disruption_budgets
from brokergroup_operator.reconcile.see.foreign import with_revision
from brokergroup_operator.reconcile.see.observed import Observed
from brokergroup_operator.reconcile.settings import ReconcileSettings
from brokergroup_operator.records.store import GroupKey
from controller_core.model import BrokerGroupRecord, LiveReplica, Replica

SETTINGS = ReconcileSettings(controller_addresses=("operator-0.operator:9878", "10.0.0.9:9878"))
FENCE_KEYS = FenceKeys(b"r" * 32)
SIGNED = replace(SETTINGS, fence_keys=FENCE_KEYS)
KEY = GroupKey("shop", "orders")
NOW = "2026-11-21T00:00:00Z"


def group_object(**spec: Any) -> dict[str, Any]:
    """Return the stored object after the operator has written its durability."""
    said = {"implementation": "Python"} | spec
    durability = effective_durability(msgspec.convert(said, BrokerGroupSpec)).value
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.BROKER_GROUP_KIND,
        "metadata": {
            "name": KEY.name,
            "namespace": KEY.namespace,
            "uid": "group-uid",
            "generation": 3,
            "resourceVersion": "41",
            "finalizers": [names.FINALIZER_BROKER_GROUP],
        },
        "spec": {"durability": durability} | said,
    }


def group(**spec: Any) -> BrokerGroup:
    return msgspec.convert(group_object(**spec), BrokerGroup)


def cluster(**spec: Any) -> RocketMQCluster:
    metadata = {"name": "shop", "namespace": KEY.namespace, "uid": "cluster-uid"}
    return msgspec.convert({"metadata": metadata, "spec": spec}, RocketMQCluster)


def member(broker_id: int) -> Member:
    return Member(broker_id=broker_id, pod=f"{KEY.name}-{broker_id}")


def record(*, replicas: int = 3, master: int | None = 1, in_sync: tuple[int, ...] | None = None) -> BrokerGroupRecord:
    """A group in full order: every id reserved, claimed and registered."""
    known = {
        broker_id: Replica(
            broker_id=broker_id,
            register_check_code=f"code-{broker_id}",
            address=f"10.1.0.{broker_id}:10911",
            reserved_for=f"{KEY.name}-{broker_id}",
            registered=True,
        )
        for broker_id in range(1, replicas + 1)
    }
    return BrokerGroupRecord(
        cluster_name="DefaultCluster",
        broker_name=KEY.name,
        next_broker_id=replicas + 1,
        replicas=known,
        master_broker_id=master,
        master_epoch=7,
        sync_state_set=frozenset(known if in_sync is None else in_sync),
        sync_state_set_epoch=9,
    )


def reserved(*ids: int) -> BrokerGroupRecord:
    """A new group: ids are reserved, nothing runs yet."""
    return BrokerGroupRecord(
        cluster_name="DefaultCluster",
        broker_name=KEY.name,
        next_broker_id=max(ids, default=0) + 1,
        replicas={broker_id: Replica(broker_id=broker_id, reserved_for=f"{KEY.name}-{broker_id}") for broker_id in ids},
    )


def wiped(*, in_sync: tuple[int, ...], master: int | None = 2) -> BrokerGroupRecord:
    """Pod orders-1 came back on an empty disk: id 4 is its new one."""
    before = record(master=master)
    fourth = Replica(4, "code-4", "10.1.0.1:10911", reserved_for="orders-1", registered=True)
    return replace(before, next_broker_id=5, replicas={**before.replicas, 4: fourth}, sync_state_set=frozenset(in_sync))


def running_pod(of: BrokerGroup, broker_id: int, *, role: str | None = None, ready: bool = True) -> dict[str, Any]:
    pod = wanted_pod(Observed(group=of, group_object=group_object()), member(broker_id), SETTINGS)
    pod["metadata"] |= {"uid": f"pod-uid-{broker_id}", "resourceVersion": f"5{broker_id}"}
    if role is not None:
        pod["metadata"]["labels"][names.LABEL_ROLE] = role
    pod["spec"]["nodeName"] = "node-1"
    pod["status"] = {
        "phase": "Running",
        "podIP": f"10.1.0.{broker_id}",
        "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
        "containerStatuses": [{"name": "broker", "state": {"running": {}}}],
    }
    return pod


def stored(obj: dict[str, Any]) -> dict[str, Any]:
    """Return the object as the API server would return it."""
    kept = with_revision(obj)
    kept["metadata"] |= {"uid": f"uid-of-{obj['metadata']['name']}", "resourceVersion": "7"}
    return kept


def bound(claim: dict[str, Any]) -> dict[str, Any]:
    return claim | {"status": {"phase": "Bound"}}


def by_name(*objects: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {obj["metadata"]["name"]: obj for obj in objects}


def snapshot(of: BrokerGroupRecord, *, live: tuple[int, ...] = (1, 2, 3), **more: Any) -> GroupSnapshot:
    alive = {broker_id: LiveReplica(broker_id=broker_id, epoch=of.master_epoch) for broker_id in live}
    return GroupSnapshot(key=KEY, record=of, live=alive, **({"writable": True} | more))


def settled(**spec: Any) -> Observed:
    """A group that lacks nothing but its first status."""
    of, kept = group(**spec), record(replicas=spec.get("replicas", 3))
    roles = {broker_id: "master" if broker_id == 1 else "slave" for broker_id in kept.replicas}
    return Observed(
        group=of,
        group_object=group_object(**spec),
        record=kept,
        state_object={"metadata": {"name": KEY.name, "uid": "state-uid"}},
        snapshot=snapshot(kept, live=tuple(kept.replicas)),
        pods=by_name(*(running_pod(of, broker_id, role=role) for broker_id, role in roles.items())),
        claims=by_name(*(bound(stored(children.build_claim(of, member(broker_id)))) for broker_id in roles)),
        services=by_name(*map(stored, children.build_services(of))),
        config_maps=by_name(stored(children.build_config_map(of, SETTINGS))),
        disruption_budgets=by_name(*map(stored, build_disruption_budgets(of, open_for_one=of.spec.replicas > 1))),
    )


def without(objects: Any, *missing: str) -> dict[str, Any]:
    return {name: obj for name, obj in objects.items() if name not in missing}


def changed(seen: Observed, **fields: Any) -> Observed:
    return replace(seen, **fields)


def containers(pod: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the pod's containers by name."""
    return {one["name"]: one for one in pod["spec"]["containers"]}
