"""The turns of groups that roll: as many at once as the chart allows, and a new operator reads the line from the groups."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from brokergroup_operator.kube.resources import BROKER_GROUPS, NAMESPACES, PODS
from brokergroup_operator.reconcile.access import ClusterAccess
from brokergroup_operator.reconcile.other_groups import RollingTurns, Turn, turn_of
from brokergroup_operator.records.store import GroupKey
from tests.reconcile import builders as b
from tests.reconcile import cases as c
from tests.reconcile.world import World, applier_for
from tests.support.draws import WHOLE

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from brokergroup_operator.kube.client import KubernetesApi
    from brokergroup_operator.reconcile.see.observed import Observed
    from kube_sandbox.api_server.server import SandboxApiServer

FLEET = 4 if WHOLE else 3
GROUP_A, GROUP_B, GROUP_C = (GroupKey("shop", name) for name in ("a", "b", "c"))


def turns(maximum: int = 1) -> tuple[RollingTurns, list[GroupKey]]:
    woken: list[GroupKey] = []
    return RollingTurns(maximum, woken.append), woken


def group_with(key: GroupKey, reason: str, since: str = b.NOW, status: str = "False") -> dict[str, Any]:
    condition = {"type": "UpToDate", "status": status, "reason": reason, "lastTransitionTime": since}
    return {"metadata": {"namespace": key.namespace, "name": key.name}, "status": {"conditions": [condition]}}


def test_the_group_with_the_turn_keeps_it_and_the_next_is_woken() -> None:
    table, woken = turns()
    assert table.before(GROUP_B, since="1") == ()
    table.tell(GROUP_B, Turn.HOLDS, since="1")
    assert table.before(GROUP_B, since="1") == ()
    assert table.before(GROUP_A, since="0") == (GROUP_B,)
    table.tell(GROUP_A, Turn.WAITS, since="0")
    assert woken == []
    table.tell(GROUP_B, Turn.NONE, since="1")
    assert woken == [GROUP_A]
    assert table.before(GROUP_A, since="0") == ()


def test_the_longest_outdated_comes_first_and_then_the_name() -> None:
    table, woken = turns()
    table.tell(GROUP_C, Turn.HOLDS, since="9")
    for key, since in ((GROUP_B, "5"), (GROUP_A, "7")):
        table.tell(key, Turn.WAITS, since=since)
    table.tell(GROUP_C, Turn.NONE, since="9")
    assert woken == [GROUP_B]
    assert table.before(GROUP_A, since="7") == (GROUP_B,)
    assert table.before(GROUP_C, since="5") == (GROUP_B,)
    assert table.before(GroupKey("shop", "0"), since="5") == ()


def test_as_many_as_allowed_and_without_a_limit_all() -> None:
    two, _ = turns(2)
    two.tell(GROUP_A, Turn.HOLDS, since="1")
    assert two.before(GROUP_B, since="1") == ()
    two.tell(GROUP_B, Turn.HOLDS, since="1")
    assert two.before(GROUP_C, since="1") == (GROUP_A, GROUP_B)
    unlimited, _ = turns(0)
    unlimited.tell(GROUP_A, Turn.HOLDS, since="1")
    assert unlimited.before(GROUP_B, since="2") == ()


def test_a_group_that_fails_in_line_keeps_no_other_waiting() -> None:
    table, _ = turns()
    table.tell(GROUP_A, Turn.WAITS, since="1")
    assert table.before(GROUP_B, since="2") == (GROUP_A,)
    table.step_aside(GROUP_A)
    assert table.before(GROUP_B, since="2") == ()
    table.tell(GROUP_A, Turn.HOLDS, since="1")
    table.step_aside(GROUP_A)
    assert table.before(GROUP_B, since="2") == (GROUP_A,), "half rolled is not rolled"


def test_a_new_operator_reads_the_line_from_the_groups() -> None:
    groups = [
        group_with(GROUP_A, "RollingUpdate"),
        group_with(GROUP_B, "WaitingForOtherGroups", since="2026-11-21T00:00:02Z"),
        group_with(GROUP_C, "WaitingForOtherGroups", since="2026-11-21T00:00:01Z"),
        group_with(GroupKey("shop", "d"), "AllUpToDate", status="True"),
        group_with(GroupKey("shop", "e"), "WaitingForPerson"),
        {"metadata": {"namespace": "shop", "name": "new"}},
    ]
    table, woken = turns()
    table.restore(groups)
    assert table.before(GROUP_B, since="2026-11-21T00:00:02Z") == (GROUP_A, GROUP_C)
    assert table.before(GROUP_A, since=b.NOW) == ()
    table.keep_only(groups[1:])
    assert woken == [GROUP_C], "a group that is gone holds no turn"


def restarted(seen: Observed) -> Observed:
    return c.running(seen, "Restart", brokerIds=[])


def silent(seen: Observed) -> Observed:
    return c.live(c.not_ready(seen, "orders-2"), 1, 3)


def catching_up(seen: Observed) -> Observed:
    return c.seen_with(seen, b.record(in_sync=(1, 3)))


def refused(seen: Observed) -> Observed:
    return replace(seen, refusal="pods orders-2-rehearsal is forbidden")


def no_growth(seen: Observed) -> Observed:
    return replace(refused(seen), claim_refused=True)


SUPERVISED = {"updateStrategy": {"masterUpdate": "Supervised"}}
TURNS: list[tuple[str, Observed, Turn, list[str]]] = [
    ("nothing to do", c.settled(), Turn.NONE, []),
    ("its turn", c.outdated(c.settled()), Turn.HOLDS, ["replace orders-2"]),
    ("not its turn", c.in_line(c.outdated(c.settled())), Turn.WAITS, []),
    ("begun", c.rolling(c.in_line(c.outdated(c.settled(), "orders-1"))), Turn.HOLDS, ["switch orders-1"]),
    ("one is not back", c.rolling(catching_up(c.outdated(c.settled(), "orders-1"))), Turn.HOLDS, []),
    ("the last is not back", c.rolling(catching_up(c.settled())), Turn.HOLDS, []),
    ("all are back", c.rolling(c.settled()), Turn.NONE, []),
    ("not safe to begin", catching_up(c.outdated(c.settled(), "orders-1")), Turn.NONE, []),
    ("a member that gives nothing", c.in_line(silent(c.outdated(c.settled()))), Turn.NONE, ["replace orders-2"]),
    ("asked for", c.in_line(restarted(c.settled())), Turn.HOLDS, ["replace orders-2"]),
    ("asked for, and outdated too", c.in_line(restarted(c.outdated(c.settled()))), Turn.HOLDS, ["replace orders-2"]),
    ("left to a person", c.rolling(c.outdated(c.settled(**SUPERVISED), "orders-1")), Turn.NONE, []),
    ("refused", c.rolling(refused(c.outdated(c.settled()))), Turn.NONE, ["rehearse orders-2"]),
    ("refused, the master is left", c.rolling(refused(c.outdated(c.settled(), "orders-1"))), Turn.NONE, ["rehearse orders-1"]),
    ("refused, and one is away", c.rolling(refused(catching_up(c.outdated(c.settled(), "orders-1")))), Turn.HOLDS, []),
    ("refused is the growth of a claim alone", no_growth(c.outdated(c.settled())), Turn.HOLDS, ["replace orders-2"]),
    ("refused, and asked for", refused(restarted(c.settled())), Turn.HOLDS, ["replace orders-2"]),
    ("paused", c.rolling(c.outdated(c.settled(maintenance={"paused": True}))), Turn.NONE, []),
    ("hibernated", c.rolling(c.outdated(c.settled(maintenance={"hibernated": True}))), Turn.NONE, []),
]  # fmt: skip


@pytest.mark.parametrize(("seen", "turn", "steps"), [case[1:] for case in TURNS], ids=[case[0] for case in TURNS])
def test_when_a_group_needs_its_turn_and_how_long_it_keeps_it(seen: Observed, turn: Turn, steps: list[str]) -> None:
    assert c.course(seen).turn is turn
    assert c.steps(seen) == steps


@pytest.fixture
async def fleet(api: KubernetesApi, sandbox: SandboxApiServer) -> AsyncIterator[list[World]]:
    """Groups of three, all in sync."""
    await api.create(NAMESPACES, {"metadata": {"name": "shop"}})
    applier = applier_for(ClusterAccess(url=sandbox.url))
    worlds = [World(api, applier, GroupKey("shop", f"group-{number}")) for number in range(FLEET)]
    for world in worlds:
        await world.create_group()
        while not await up_to_date(world):
            await world.run_round()
    yield worlds
    await applier.close()


async def up_to_date(world: World) -> bool:
    """Whether its own status says that three members are in sync and every pod is as in the spec."""
    group = await world.group()
    status = group.get("status") or {}
    new = status.get("observedGeneration") == group["metadata"]["generation"]
    true = {one["type"] for one in status.get("conditions", []) if one["status"] == "True"}
    return new and {"UpToDate", "Ready"} <= true


async def rolls(world: World) -> bool:
    """Whether its pods show a roll: some are missing, or their images differ."""
    pods = await world.items(PODS)
    own = [pod for pod in pods if pod["metadata"]["name"].startswith(f"{world.key.name}-")]
    images = {pod["spec"]["containers"][0]["image"] for pod in own if "deletionTimestamp" not in pod["metadata"]}
    return len(own) < 3 or len(images) > 1


async def groups_of(world: World) -> list[dict[str, Any]]:
    return await world.items(BROKER_GROUPS)


@pytest.mark.sampled
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.longer)])
async def test_an_outdated_fleet_rolls_one_group_after_another_though_the_operator_dies(
    fleet: list[World], seed: int
) -> None:
    """Passes in any order; after every seven a new operator, which knows only what the API holds."""
    chance, limit = random.Random(seed), 1
    for world in fleet:
        patch = {"spec": {"image": "example.com/replica:2"}}
        await world.api.patch(BROKER_GROUPS, world.key.name, patch, namespace="shop")
    for number in range(400):
        if number % 7 == 0:
            table, _ = turns(limit)
            table.restore(await groups_of(fleet[0]))
        world = chance.choice(fleet)
        world.turns = table
        await world.run_pass()
        rolling = [str(each.key) for each in fleet if await rolls(each)]
        assert len(rolling) <= limit, f"{rolling} roll at once"
        await world.run_kubelet()
        for each in fleet:
            await each.run_brokers()
        if all([await up_to_date(each) for each in fleet]):
            return
    raise AssertionError(f"not all were rolled: {[turn_of(one) for one in await groups_of(fleet[0])]}")
