"""Small scenes for the pure evaluation: a group of three in sync, broker 1 master in epoch 5, and an operation."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from brokergroup_operator.api import names
from brokergroup_operator.api.times import rfc3339
from brokergroup_operator.observe.group_view import GroupSnapshot
from brokergroup_operator.reconcile.see.fetch import read_operation, seen_of
from brokergroup_operator.records.store import GroupKey
from controller_core.model import BrokerGroupRecord, LiveReplica, Replica

if TYPE_CHECKING:
    from collections.abc import Iterable

    from brokergroup_operator.reconcile.see.observed import Observed, Operation

KEY = GroupKey("default", "orders")
NOW = 1_900_000_000.0
LONG_AGO = NOW - 10_000
GROUP_UID = "uid-of-orders"
SECTIONS: dict[str, dict[str, Any]] = {
    "Switchover": {"deadlineSeconds": 60},
    "Restart": {},
    "Rebuild": {"brokerId": 3},
    "Elect": {"toBrokerId": 2, "acknowledgeDataLoss": "orders"},
    "Decommission": {"brokerId": 3},
    "Drill": {"kind": "Switchover"},
    "Backup": {"claim": {"name": "copies"}},
}


def operation(
    kind: str = "Switchover",
    /,
    *,
    name: str = "",
    created: float = LONG_AGO,
    status: dict[str, Any] | None = None,
    spec: dict[str, Any] | None = None,
    **section: Any,
) -> Operation:
    """Return an operation as read from the API; keyword arguments change the section of its type."""
    name = name or f"{kind.lower()}-1"
    raw: dict[str, Any] = {
        "apiVersion": names.API_VERSION,
        "kind": names.BROKER_GROUP_OPERATION_KIND,
        "metadata": {
            "name": name,
            "namespace": KEY.namespace,
            "uid": f"uid-of-{name}",
            "generation": 1,
            "creationTimestamp": rfc3339(created),
            "ownerReferences": [{"kind": names.BROKER_GROUP_KIND, "name": KEY.name, "uid": GROUP_UID}],
        },
        "spec": {
            "brokerGroupRef": {"name": KEY.name},
            "type": kind,
            kind.lower(): SECTIONS[kind] | section,
            **(spec or {}),
        },
    }
    if status is not None:
        raw["status"] = status
    return read_operation(raw)


def running(
    kind: str = "Switchover", /, *, started: float = NOW - 10, result: dict[str, Any] | None = None, **more: Any
) -> Operation:
    """Return an operation that started when broker 1 was master in epoch 5."""
    status = {
        "phase": "Running",
        "startedAt": rfc3339(started),
        "observedGeneration": 1,
        "result": {"message": "begun", "fromBrokerId": 1, "epoch": 5} | (result or {}),
    }
    return operation(kind, status=status, **more)


def finished(name: str, *, completed: float, phase: str = "Succeeded", **spec: Any) -> Operation:
    status = {"phase": phase, "completedAt": rfc3339(completed), "result": {"message": "over"}}
    return operation(name=name, status=status, spec=spec)


def record(
    *, master: int | None = 1, epoch: int = 5, in_sync: Iterable[int] = (1, 2, 3), members: Iterable[int] = (1, 2, 3)
) -> BrokerGroupRecord:
    replicas = {
        number: Replica(
            broker_id=number, register_check_code=f"code-{number}", registered=True, reserved_for=f"orders-{number}"
        )
        for number in members
    }
    return BrokerGroupRecord(
        cluster_name="DefaultCluster",
        broker_name="orders",
        next_broker_id=max(replicas, default=0) + 1,
        replicas=replicas,
        master_broker_id=master,
        master_epoch=epoch,
        sync_state_set=frozenset(in_sync),
        sync_state_set_epoch=7,
    )


def thing(name: str, *, created: float = LONG_AGO, ready: bool = True) -> dict[str, Any]:
    """Return a pod or a claim."""
    return {
        "metadata": {
            "name": name,
            "namespace": KEY.namespace,
            "uid": f"uid-{name}-{created}",
            "creationTimestamp": rfc3339(created),
        },
        "status": {"conditions": [{"type": "Ready", "status": "True" if ready else "False"}]},
    }


def group(*, safe: bool | None = True, **spec: Any) -> dict[str, Any]:
    """Return a group of durability Available: two of its members suffice for FailoverSafe."""
    conditions = []
    if safe is not None:
        said = ("True", "EnoughCandidates", "2 needed") if safe else ("False", "NotEnoughCandidates", "broker 2 lags")
        condition = {"type": "FailoverSafe", "status": said[0], "reason": said[1], "message": said[2]}
        conditions = [condition | {"lastTransitionTime": rfc3339(LONG_AGO)}]
    return {
        "metadata": {"name": KEY.name, "namespace": KEY.namespace, "uid": GROUP_UID, "generation": 1},
        "spec": {"replicas": 3, "durability": "Available"} | spec,
        "status": {"conditions": conditions},
    }


def scene(*operations: Operation, **changes: Any) -> Observed:
    """Return a scene of three members, alive and in sync unless changed."""
    known: BrokerGroupRecord | None = changes.pop("record", record())
    alive = changes.pop("alive", tuple(known.replicas) if known else ())
    snapshot = GroupSnapshot(
        key=KEY,
        record=known,
        live={number: LiveReplica(broker_id=number, epoch=5) for number in alive},
        writable=changes.pop("writable", True),
        in_progress=changes.pop("in_progress", None),
        last_failover=changes.pop("last_failover", None),
        last_switchover=changes.pop("last_switchover", None),
    )
    base = seen_of(
        KEY,
        changes.pop("group", group()),
        None,
        operations=operations,
        now=rfc3339(NOW),
        snapshot=snapshot,
        pods={f"orders-{number}": thing(f"orders-{number}") for number in (1, 2, 3)},
        claims={f"orders-{number}": thing(f"orders-{number}") for number in (1, 2, 3)},
        # The claim that a Backup of these scenes names.
        aside={("PersistentVolumeClaim", "copies"): thing("copies")},
    )
    return replace(base, record=known, **changes)
