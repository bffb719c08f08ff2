"""Variations of a settled group, and what one pass decides about them: its plan as short lines, status and conditions."""

from __future__ import annotations

import copy
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
import pytest

from brokergroup_operator.api import names
from brokergroup_operator.api.brokergroup_operation import BrokerGroupOperation
from brokergroup_operator.observe.timeline import FailoverTimeline, Kind, Step, Trigger
from brokergroup_operator.reconcile import plan as plans
from brokergroup_operator.reconcile.decide.course import set_course
from brokergroup_operator.reconcile.evaluate import evaluate
from brokergroup_operator.records.store import GroupKey
from tests.reconcile import builders as b

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from _pytest.mark import ParameterSet

    from brokergroup_operator.reconcile.decide.course import Course
    from brokergroup_operator.reconcile.see.observed import Observed
    from controller_core.model import BrokerGroupRecord


A = TypeVar("A")
EARLIER = "2026-11-20T23:00:00Z"
OPERATION_UID = "operation-uid"


def settled(**spec: Any) -> Observed:
    return replace(b.settled(**spec), now=b.NOW)


def wishing(seen: Observed, **spec: Any) -> Observed:
    """The same group with another spec."""
    return replace(seen, group=b.group(**spec), group_object=b.group_object(**spec))


def with_pods(seen: Observed, change: Callable[[dict[str, Any]], None], *names_of_pods: str) -> Observed:
    pods = copy.deepcopy(dict(seen.pods))
    for name in names_of_pods:
        change(pods[name])
    return replace(seen, pods=pods)


def outdated(seen: Observed, *names_of_pods: str) -> Observed:
    """These pods have another revision than the spec."""

    def age(pod: dict[str, Any]) -> None:
        pod["metadata"]["annotations"][names.ANNOTATION_REVISION] = "older"

    return with_pods(seen, age, *(names_of_pods or seen.pods))


def not_ready(seen: Observed, *names_of_pods: str) -> Observed:
    def fall(pod: dict[str, Any]) -> None:
        pod["status"]["conditions"] = [{"type": "Ready", "status": "False"}]

    return with_pods(seen, fall, *names_of_pods)


def going(seen: Observed, *names_of_pods: str, since: str = b.NOW) -> Observed:
    def go(pod: dict[str, Any]) -> None:
        pod["metadata"]["deletionTimestamp"] = since

    return with_pods(seen, go, *names_of_pods)


def without_pods(seen: Observed, *names_of_pods: str) -> Observed:
    return replace(seen, pods=b.without(seen.pods, *names_of_pods))


def seen_with(seen: Observed, record: BrokerGroupRecord, **snapshot: Any) -> Observed:
    return replace(seen, record=record, snapshot=b.snapshot(record, **({"live": tuple(record.replicas)} | snapshot)))


def live(seen: Observed, *ids: int, **snapshot: Any) -> Observed:
    assert seen.record is not None
    return replace(seen, snapshot=b.snapshot(seen.record, live=ids, **snapshot))


def running(seen: Observed, kind: str, *, started_at: str = b.NOW, **section: Any) -> Observed:
    """Return the same group with a running operation."""
    operation = msgspec.convert(
        {
            "metadata": {"name": "op", "namespace": b.KEY.namespace, "uid": OPERATION_UID},
            "spec": {"brokerGroupRef": {"name": b.KEY.name}, "type": kind, kind.lower(): section},
            "status": {"phase": "Running", "startedAt": started_at},
        },
        BrokerGroupOperation,
    )
    return replace(seen, operation=operation)


def with_claims(seen: Observed, change: Callable[[dict[str, Any]], object], *names_of_claims: str) -> Observed:
    claims = copy.deepcopy(dict(seen.claims))
    for name in names_of_claims:
        change(claims[name])
    return replace(seen, claims=claims)


def claims_going(seen: Observed, *names_of_claims: str) -> Observed:
    """A user has deleted these claims; each stays until its pod ends."""
    return with_claims(seen, lambda claim: claim["metadata"].update(deletionTimestamp=b.NOW), *names_of_claims)


def with_metadata(seen: Observed, **fields: Any) -> Observed:
    """Return the same group with these fields of its object's metadata."""
    return replace(seen, group_object={**seen.group_object, "metadata": seen.group_object["metadata"] | fields})


def with_status(seen: Observed, status: dict[str, Any]) -> Observed:
    """Return the same group with this status in its object."""
    return replace(seen, group_object={**seen.group_object, "status": status})


def node(name: str, **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, "labels": {names.LABEL_ZONE: f"zone-of-{name}"}}, "spec": spec}


def in_line(seen: Observed) -> Observed:
    """Other groups roll, and come before this one."""
    return replace(seen, rolling_before=(GroupKey("shop", "a"), GroupKey("shop", "b")))


def rolling(seen: Observed) -> Observed:
    """Its own status says that it is rolling."""
    condition = {"type": "UpToDate", "status": "False", "reason": "RollingUpdate", "lastTransitionTime": b.NOW}
    return with_status(seen, {"conditions": [condition]})


def on_nodes(seen: Observed, **nodes: dict[str, Any]) -> Observed:
    """Pod `orders-N` runs on `node-N`; the nodes given are readable."""
    pods = copy.deepcopy(dict(seen.pods))
    for name, pod in pods.items():
        pod["spec"]["nodeName"] = f"node-{name.rpartition('-')[2]}"
    return replace(seen, pods=pods, nodes={name.replace("_", "-"): value for name, value in nodes.items()})


def course(seen: Observed) -> Course:
    return set_course(seen, b.SETTINGS)


def steps(seen: Observed) -> list[str]:
    """Return the steps of this pass, as short lines."""
    return [
        f"{step.verb.value} {step.member.pod if step.member else ''}"
        + (f" to {step.to_broker_id}" if step.to_broker_id else "")
        for step in course(seen).steps
    ]


def marked(seen: Observed, *names_of_pods: str) -> Observed:
    """The claims of these members have the mark `brokergroup.dev/leaving`."""

    def mark(claim: dict[str, Any]) -> None:
        claim["metadata"]["annotations"][names.ANNOTATION_LEAVING] = claim["metadata"]["name"].rpartition("-")[2]

    return with_claims(seen, mark, *names_of_pods)


def steps_after_marking(seen: Observed) -> list[str]:
    """Return the steps once the claim of the leaving member is marked."""
    told = steps(seen)
    return steps(marked(seen, told[0].split()[1])) if told and told[0].startswith("mark") else told


def failing_over() -> FailoverTimeline:
    return FailoverTimeline(
        group=b.KEY,
        cluster_name="DefaultCluster",
        broker_name="orders",
        kind=Kind.FAILOVER,
        trigger=Trigger.SILENCE,
        from_broker_id=1,
        epoch_before=7,
        started_at_unix_seconds=0.0,
    )


def elected(*, epoch: int, confirmed: bool = False) -> FailoverTimeline:
    """Return the timeline of a failover that has elected a master of this epoch; `confirmed`: the master has said so itself."""
    steps = {Step.DETECTED: 0.0} | ({Step.ROLE_CHANGED: 0.5} if confirmed else {})
    return replace(failing_over(), epoch_before=epoch - 1, epoch_after=epoch, to_broker_id=1, steps=steps)


def barred(*broker_ids: int, **spec: Any) -> Observed:
    """Return a settled group in which these brokers have priority 0. Broker 1 is the master."""
    return settled(failover={"priorities": [{"brokerId": one, "priority": 0} for one in broker_ids]}, **spec)


SLAVES_BUDGET = "apply PodDisruptionBudget orders"


def lines_of(plan: plans.Plan) -> list[str]:
    """The plan's actions as short lines, without the status; and without the slaves' budget, which has tests of its own."""
    return [line for line in map(describe, plan.actions) if line not in {"status", SLAVES_BUDGET}]


def describe(action: plans.Action) -> str:  # noqa: PLR0911 (one per action)
    match action:
        case plans.ReserveBrokerId():
            return f"reserve {action.pod_name}"
        case plans.ApplyObject():
            return f"apply {action.resource.kind} {action.object['metadata']['name']}"
        case plans.BeginRestored():
            return f"begin with {action.restored.backup} as {action.restored.broker_id} above {action.restored.master_epoch}"
        case plans.SetRole():
            return f"role {action.pod} {action.role}"
        case plans.DeleteObject():
            return f"delete {action.resource.kind} {action.name}"
        case plans.SwitchMaster():
            return f"switch away from {action.from_broker_id}" + (f" to {to}" if (to := action.to_broker_id) else "")
        case plans.RemoveMember():
            return f"forget {action.broker_id}"
        case plans.SetBrokerConfig():
            return f"give {action.pod} {sorted(action.values.items())}"
        case plans.SetFinalizers():
            return f"finalizers {action.resource.kind} {action.name} {list(action.finalizers)}"
        case _:
            return "status"


def run(seen: Observed, *, now: str = b.NOW) -> plans.Plan:
    """Return the plan of one pass over what was seen."""
    return evaluate(seen, b.SETTINGS, now=now)


def actions(seen: Observed, kind: type[A]) -> list[A]:
    """Return the actions of this type that one pass plans."""
    return [action for action in run(seen).actions if isinstance(action, kind)]


def applied(seen: Observed, kind: str) -> dict[str, dict[str, Any]]:
    """Return the objects of this kind that the pass applies, by name."""
    return b.by_name(*(one.object for one in actions(seen, plans.ApplyObject) if one.resource.kind == kind))


def status_of(seen: Observed) -> dict[str, Any]:
    """Return the status that the pass writes; it writes exactly one."""
    [written] = actions(seen, plans.WriteStatus)
    return written.status


def conditions(seen: Observed) -> dict[str, dict[str, Any]]:
    """Return the conditions that the pass writes, by their type."""
    written = status_of(seen)["conditions"]
    found = {one["type"]: one for one in written}
    assert len(found) == len(written), "two conditions of one type"
    return found


def condition(seen: Observed, kind: str) -> tuple[str, str]:
    """Return the condition's status and reason."""
    found = conditions(seen)[kind]
    return found["status"], found["reason"]


def told(seen: Observed, kind: str) -> tuple[str, str, str]:
    """Return the condition's status, reason and message; empty texts if the group has no such condition."""
    found = conditions(seen).get(kind, {"status": "", "reason": "", "message": ""})
    return found["status"], found["reason"], found["message"]


def shown(seen: Observed, kind: str) -> tuple[str, str] | None:
    """Return the condition's status and reason; None if the group has no such condition."""
    return condition(seen, kind) if kind in conditions(seen) else None


def message(seen: Observed, kind: str) -> str:
    return str(conditions(seen)[kind]["message"])


GOLDEN = Path(__file__).parent / "golden"


def compare(name: str, actual: str) -> None:
    path = GOLDEN / name
    if os.environ.get("UPDATE_GOLDEN") == "1":
        path.write_text(actual, encoding="utf-8")
    assert actual == path.read_text(encoding="utf-8")


def seeing(seen: Observed, **fields: Any) -> Observed:
    """Return the same group with these fields of its snapshot."""
    assert seen.snapshot is not None
    return replace(seen, snapshot=replace(seen.snapshot, **fields))


def recorded(seen: Observed, **fields: Any) -> Observed:
    """Return the same group with these fields of its record."""
    assert seen.record is not None
    return replace(seen, record=replace(seen.record, **fields))


def with_replica(seen: Observed, broker_id: int, **fields: Any) -> Observed:
    """Return the same group with these fields of one broker in its record."""
    assert seen.record is not None
    changed = replace(seen.record.replicas[broker_id], **fields)
    return recorded(seen, replicas={**seen.record.replicas, broker_id: changed})


def table(rows: Sequence[tuple[Any, ...]]) -> list[ParameterSet]:
    """Return the rows as parameters; the first of each is its id."""
    return [pytest.param(*row[1:], id=row[0]) for row in rows]
