"""When mastership moves although nothing is broken."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from brokergroup_operator.observe.timeline import Cause, Kind
from brokergroup_operator.reconcile.evaluate import evaluate
from brokergroup_operator.reconcile.plan import SwitchMaster
from brokergroup_operator.reconcile.see.observed import is_draining
from tests.reconcile import builders as b
from tests.reconcile import cases as c

if TYPE_CHECKING:
    from brokergroup_operator.reconcile.see.observed import Observed

CORDONED = c.node("node-1", unschedulable=True)
FINE = {"node_2": c.node("node-2"), "node_3": c.node("node-3")}
PREFER_3 = {"failover": {"preferredMaster": 3}}
ZERO_1 = [{"brokerId": 1, "priority": 0}]
ZERO_2_3 = [{"brokerId": 2, "priority": 0}, {"brokerId": 3, "priority": 0}]
BARRED_MASTER = c.settled(failover={"priorities": ZERO_1})


@pytest.mark.parametrize(
    ("spec", "draining"),
    [
        ({}, False),
        ({"unschedulable": True}, True),
        ({"taints": [{"key": "dedicated", "value": "mq", "effect": "NoSchedule"}]}, False),
        ({"taints": [{"key": "karpenter.sh/disrupted", "effect": "NoSchedule"}]}, True),
        ({"taints": [{"key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule"}]}, True),
    ],
)
def test_which_nodes_are_being_drained(spec: dict[str, Any], draining: bool) -> None:
    assert is_draining(c.node("n", **spec)) is draining


CASES: list[tuple[str, Observed, list[str]]] = [
    ("nodes are fine", c.on_nodes(c.settled(), node_1=c.node("node-1"), **FINE), []),
    ("nodes can't be read", c.on_nodes(c.settled()), []),
    ("the master's node is drained", c.on_nodes(c.settled(), node_1=CORDONED, **FINE), ["switch orders-1 to 2"]),
    (
        "not to another node that is drained",
        c.on_nodes(c.settled(), node_1=CORDONED, node_2=c.node("node-2", unschedulable=True), node_3=FINE["node_3"]),
        ["switch orders-1 to 3"],
    ),
    (
        "all nodes are drained",
        c.on_nodes(c.settled(), **{f"node_{n}": c.node(f"node-{n}", unschedulable=True) for n in (1, 2, 3)}),
        [],
    ),
    (
        "a drain has evicted a slave of the same node first: one member elsewhere is enough",
        c.on_nodes(c.live(c.settled(), 1, 2), node_1=CORDONED, **FINE),
        ["switch orders-1 to 2"],
    ),
    ("no member on another node is alive", c.on_nodes(c.live(c.settled(), 1), node_1=CORDONED, **FINE), []),
    (
        "only a member of a drained node is left",
        c.on_nodes(c.live(c.settled(), 1, 2), node_1=CORDONED, node_2=c.node("node-2", unschedulable=True)),
        [],
    ),
    (
        "it is being moved already",
        c.on_nodes(
            c.live(c.settled(), 1, 2, in_progress=replace(c.failing_over(), kind=Kind.SWITCHOVER)),
            node_1=CORDONED,
            **FINE,
        ),
        [],
    ),
    ("a preference needs a whole group", c.live(c.settled(**PREFER_3), 1, 3), []),
    (
        "a slave's node is drained: it may be evicted",
        c.on_nodes(c.settled(), node_2=c.node("node-2", unschedulable=True)),
        [],
    ),
    ("another master is preferred", c.settled(**PREFER_3), ["switch orders-1 to 3"]),
    ("the preferred one is master", c.seen_with(c.settled(**PREFER_3), b.record(master=3)), []),
    ("the preferred one is not in sync", c.seen_with(c.settled(**PREFER_3), b.record(in_sync=(1, 2))), []),
    (
        "the preferred one is on a drained node",
        c.on_nodes(c.settled(**PREFER_3), node_3=c.node("node-3", unschedulable=True)),
        [],
    ),
    (
        "the preferred one is updated first, as a slave",
        c.outdated(c.settled(**PREFER_3), "orders-1", "orders-3"),
        ["replace orders-3"],
    ),
    (
        "an update takes it from the preferred one",
        c.seen_with(c.outdated(c.settled(**PREFER_3), "orders-3"), b.record(master=3)),
        ["switch orders-3"],
    ),
    (
        "and does not give it back before that one is updated",
        c.seen_with(c.outdated(c.settled(**PREFER_3), "orders-3"), b.record(master=2)),
        ["replace orders-3"],
    ),
    (
        "an update that waits for a person keeps nobody from being master",
        c.outdated(c.settled(**PREFER_3, updateStrategy={"type": "OnDelete"})),
        ["switch orders-1 to 3"],
    ),
    ("the master may not be one any more", BARRED_MASTER, ["switch orders-1 to 2"]),
    ("nobody else may be either", c.settled(failover={"priorities": [*ZERO_1, *ZERO_2_3]}), []),
    ("it may not be one, and it is not safe", c.live(BARRED_MASTER, 1, 2), []),
    (
        "it hands over to one who is updated",
        c.outdated(BARRED_MASTER, "orders-1", "orders-2"),
        ["switch orders-1 to 3"],
    ),
    ("and not to one whom the update would stop", c.outdated(BARRED_MASTER), ["replace orders-2"]),
    (
        "a drain comes before an update",
        c.on_nodes(c.outdated(c.settled()), node_1=CORDONED, **FINE),
        ["switch orders-1 to 2"],
    ),
]


@pytest.mark.parametrize(("seen", "expected"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_next_step(seen: Observed, expected: list[str]) -> None:
    assert c.steps(seen) == expected


@pytest.mark.parametrize(
    ("seen", "cause"),
    [
        (c.on_nodes(c.settled(), node_1=CORDONED, **FINE), Cause.DRAIN),
        (c.outdated(c.settled(), "orders-1"), Cause.ROLLING_UPGRADE),
        (c.settled(**PREFER_3), Cause.PLANNED_SWITCHOVER),
    ],
)
def test_who_moves_it_says_why_and_the_controller_is_told(seen: Observed, cause: Cause) -> None:
    [action] = [one for one in evaluate(seen, b.SETTINGS, now=b.NOW).actions if isinstance(one, SwitchMaster)]
    assert action.cause is cause


def test_a_drain_that_nobody_can_take_over_from_is_said() -> None:
    moving = c.course(c.on_nodes(c.live(c.settled(), 1), node_1=CORDONED, **FINE)).moving
    assert moving is not None
    assert moving.verb.value == "refuse"
    assert "orders-1 is being drained, and no member elsewhere can take over" in moving.why
