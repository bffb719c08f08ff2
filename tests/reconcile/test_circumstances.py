"""Why a member went, as pods and nodes show it: each cause by its proof, and no cause without proof."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from brokergroup_operator.reconcile.other_groups import BrokerNames, RollingTurns
from brokergroup_operator.reconcile.plan import DeleteObject
from brokergroup_operator.reconcile.reconciler import Reconciler
from brokergroup_operator.reconcile.see.circumstances import CircumstanceWatch, circumstances_of, circumstances_of_plan
from tests.reconcile import builders as b
from tests.reconcile import cases as c
from tests.reconcile.passes import run

if TYPE_CHECKING:
    from collections.abc import Sequence

    from brokergroup_operator.observe.incidents import Circumstance
    from brokergroup_operator.reconcile.plan import Plan
    from brokergroup_operator.reconcile.see.observed import Observed

AT = "2026-11-20T23:50:00Z"
LATER = "2026-11-20T23:55:00Z"


def ended(**terminated: Any) -> Observed:
    """Pod orders-2 runs again after its container ended so."""
    state = {"exitCode": 1, "finishedAt": AT, **terminated}

    def end(pod: dict[str, Any]) -> None:
        pod["status"]["containerStatuses"] = [
            {"name": "fence", "lastState": {"terminated": {"exitCode": 1, "finishedAt": AT}}},
            {"name": "broker", "state": {"running": {}}, "lastState": {"terminated": state}},
        ]

    return c.with_pods(c.settled(), end, "orders-2")


def disrupted(reason: str, message: str = "", **status: Any) -> Observed:
    def disrupt(pod: dict[str, Any]) -> None:
        pod["status"].update(status)
        pod["status"]["conditions"] = [
            {
                "type": "DisruptionTarget",
                "status": "True",
                "reason": reason,
                "message": message,
                "lastTransitionTime": AT,
            }
        ]

    return c.with_pods(c.settled(), disrupt, "orders-2")


def on_node(*conditions: dict[str, Any], boot_id: str = "boot-1") -> Observed:
    """Pod orders-2 is on a node with these conditions."""
    node = c.node("node-2") | {"status": {"conditions": list(conditions), "nodeInfo": {"bootID": boot_id}}}
    return c.on_nodes(c.settled(), node_2=node)


def condition(kind: str, status: str, since: str = AT) -> dict[str, Any]:
    return {"type": kind, "status": status, "lastTransitionTime": since, "message": "said"}


def drained(seen: Observed) -> Observed:
    return c.on_nodes(seen, node_2=c.node("node-2", unschedulable=True))


EVICTED = "The node was low on resource: {}. Threshold quantity: 1, available: 0."


@pytest.mark.parametrize(
    ("seen", "told"),
    [
        (ended(reason="OOMKilled", exitCode=137), [("oom", "OOMKilled")]),
        (ended(reason="Error", message="java.io.IOException: No space left on device"), [("disk", "NoSpaceLeft")]),
        (ended(reason="Error", exitCode=134), [("crash", "ContainerEnded")]),
        # Kubernetes does not say what killed it (a fence, a probe, a person).
        (ended(reason="Error", exitCode=137), [("unknown", "ContainerKilled")]),
        (disrupted("EvictionByEvictionAPI"), [("drain", "EvictionByEvictionAPI")]),
        (disrupted("PreemptionByScheduler"), [("drain", "PreemptionByScheduler")]),
        (drained(disrupted("DeletionByTaintManager")), [("drain", "DeletionByTaintManager")]),
        (disrupted("DeletionByTaintManager"), [("unknown", "DeletionByTaintManager")]),
        (disrupted("TerminationByKubelet", EVICTED.format("ephemeral-storage")), [("disk", "TerminationByKubelet")]),
        (disrupted("TerminationByKubelet", EVICTED.format("memory")), [("oom", "TerminationByKubelet")]),
        (
            disrupted("TerminationByKubelet", message="Pod was terminated in response to imminent node shutdown."),
            [("drain", "TerminationByKubelet")],
        ),
        (disrupted("TerminationByKubelet", EVICTED.format("pids")), [("unknown", "TerminationByKubelet")]),
        (on_node(condition("DiskPressure", "True")), [("disk", "DiskPressure")]),
        (on_node(condition("DiskPressure", "False")), []),
        (on_node(condition("Ready", "Unknown")), [("unknown", "NodeUnreachable")]),
        (on_node(condition("Ready", "False")), []),
        (c.settled(), []),
    ],
)
def test_each_cause_by_its_proof(seen: Observed, told: list[tuple[str, str]]) -> None:
    found = list(circumstances_of(seen))
    assert [(one.cause, one.what) for one in found] == told
    for one in found:
        assert (one.broker_id, one.pod, str(one.group), one.broker_name) == (2, "orders-2", "shop/orders", "orders")


def test_the_times_are_those_of_kubernetes() -> None:
    at = dt.datetime.fromisoformat(AT)
    [killed] = circumstances_of(ended(reason="OOMKilled"))
    assert (killed.started_at, killed.ended_at) == (at, at)
    assert killed.id == "shop/orders/orders-2/OOMKilled@2026-11-20T23:50:00.000Z"
    # What still goes on has lasted until now; noted again later it is the same record with a later end.
    [pressure] = circumstances_of(on_node(condition("DiskPressure", "True")))
    assert (pressure.started_at, pressure.ended_at) == (at, dt.datetime.fromisoformat(b.NOW))


def test_a_pod_that_is_being_deleted_does_not_crash_by_going() -> None:
    assert list(circumstances_of(c.going(ended(exitCode=1), "orders-2"))) == []
    assert [one.cause for one in circumstances_of(c.going(ended(reason="OOMKilled"), "orders-2"))] == ["oom"]


def test_a_node_that_comes_back_without_a_boot_was_cut_off() -> None:
    watch = CircumstanceWatch()
    watch.look(on_node(condition("Ready", "Unknown")))
    [partition] = watch.look(on_node(condition("Ready", "True", LATER)))
    assert (partition.cause, partition.broker_id) == ("partition", 2)
    assert partition.started_at == dt.datetime.fromisoformat(AT) - dt.timedelta(seconds=60)
    assert partition.ended_at == dt.datetime.fromisoformat(LATER)


@pytest.mark.parametrize("boot_id", ["boot-2", ""])
def test_a_node_that_was_booted_proves_no_partition(boot_id: str) -> None:
    watch = CircumstanceWatch()
    watch.look(on_node(condition("Ready", "Unknown"), boot_id="boot-1" if boot_id else ""))
    assert watch.look(on_node(condition("Ready", "True", LATER), boot_id=boot_id)) == []


def test_an_update_is_noted_until_the_pod_must_have_gone() -> None:
    seen = c.outdated(c.settled(), "orders-2")
    plan = run(seen)
    [update] = circumstances_of_plan(plan, seen)
    assert (update.cause, update.broker_id, update.started_at) == (
        "rollingUpgrade", 2, dt.datetime.fromisoformat(b.NOW),
    )  # fmt: skip
    assert update.ended_at - update.started_at == dt.timedelta(seconds=seen.group.spec.termination_grace_period_seconds)
    assert list(circumstances_of_plan(run(c.settled()), c.settled())) == []
    scaled_in = replace(c.settled(), group=b.group(replicas=2), group_object=b.group_object(replicas=2))
    assert list(circumstances_of_plan(run(scaled_in), scaled_in)) == []


async def test_what_is_about_to_be_done_is_noted_before_it_is() -> None:
    """If the operator dies while it deletes a pod, the reason is already recorded."""
    seen = c.outdated(c.settled(), "orders-2")
    order: list[str] = []

    class Parts:
        """Records the order in which a pass uses its parts."""

        async def look(self, _: Any) -> None:
            """The cache is empty."""

        async def fetch(self, _: Any) -> Observed:
            return seen

        async def take(self, group_object: Any, *, operator: str | None) -> Any:
            assert operator == b.SETTINGS.operator
            return group_object

        async def carry_out(self, _: Any, plan: Plan, __: Observed) -> int:
            order.extend(one.target for one in plan.actions if isinstance(one, DeleteObject))
            return 0

        async def note(self, told: Sequence[Circumstance]) -> None:
            order.extend(one.cause for one in told)

    parts: Any = Parts()
    turns = RollingTurns(0, wake=lambda _: None)
    await Reconciler(parts, parts, b.SETTINGS, turns, BrokerNames(), circumstances=parts).run_pass(b.KEY)
    assert order == ["rollingUpgrade", "Pod orders-2"]
