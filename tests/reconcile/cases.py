"""Variations of a settled group, for the table tests of the voluntary steps."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec

from brokergroup_operator.api import names
from brokergroup_operator.api.brokergroup_operation import BrokerGroupOperation
from brokergroup_operator.observe.timeline import FailoverTimeline, Kind, Step, Trigger
from brokergroup_operator.reconcile.decide.course import set_course
from brokergroup_operator.records.store import GroupKey
from tests.reconcile import builders as b

if TYPE_CHECKING:
    from collections.abc import Callable

    from brokergroup_operator.reconcile.decide.course import Course
    from brokergroup_operator.reconcile.see.observed import Observed
    from controller_core.model import BrokerGroupRecord

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


def node(name: str, **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, "labels": {names.LABEL_ZONE: f"zone-of-{name}"}}, "spec": spec}


def in_line(seen: Observed) -> Observed:
    """Other groups roll, and come before this one."""
    return replace(seen, rolling_before=(GroupKey("shop", "a"), GroupKey("shop", "b")))


def rolling(seen: Observed) -> Observed:
    """Its own status says that it is rolling."""
    condition = {"type": "UpToDate", "status": "False", "reason": "RollingUpdate", "lastTransitionTime": b.NOW}
    return replace(seen, group_object={**seen.group_object, "status": {"conditions": [condition]}})


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
    claims = copy.deepcopy(dict(seen.claims))
    for name in names_of_pods:
        claims[name]["metadata"]["annotations"][names.ANNOTATION_LEAVING] = name.rpartition("-")[2]
    return replace(seen, claims=claims)


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
