"""Async learners: which members they are, their pods, and that they neither vote nor count for safety or durability."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from brokergroup_operator.api import names
from brokergroup_operator.api.brokergroup_status import ConditionStatus, MemberState
from brokergroup_operator.api.durability import beyond_voters
from brokergroup_operator.controller.directory.group_directory import binding_of
from brokergroup_operator.reconcile.decide.failover_safe import failover_safe, unsafe_now
from brokergroup_operator.reconcile.decide.rollout import wanted_pod
from brokergroup_operator.reconcile.plan import SetRole
from brokergroup_operator.reconcile.render.pods import build_pod
from brokergroup_operator.reconcile.see.members import standings
from brokergroup_operator.reconcile.tell.alarms import degraded_durability
from brokergroup_operator.reconcile.tell.conditions import ready, replication_healthy, stalled
from tests.reconcile import builders as b
from tests.reconcile import cases as c
from tests.reconcile.cases import lines_of, run

if TYPE_CHECKING:
    from brokergroup_operator.reconcile.see.observed import Observed


def pod_of(seen: Observed, broker_id: int) -> dict[str, Any]:
    """As it would be made now, and running."""
    running = copy.deepcopy(dict(seen.pods[f"orders-{broker_id}"]))
    made = wanted_pod(seen, b.member(broker_id), b.SETTINGS)
    running["metadata"]["annotations"] = made["metadata"]["annotations"]
    running["spec"] |= {"containers": made["spec"]["containers"]}
    return running


def learning(*, replicas: int = 4, learners: int = 1, **spec: Any) -> Observed:
    """A settled group whose highest members are learners."""
    of: dict[str, Any] = {"replicas": replicas, "replication": {"learners": learners}} | spec
    seen = c.settled(**of)
    voters = tuple(range(1, replicas - learners + 1))
    seen = c.seen_with(seen, b.record(replicas=replicas, in_sync=voters))
    pods = {f"orders-{one}": pod_of(seen, one) for one in range(1, replicas + 1)}
    for one in range(len(voters) + 1, replicas + 1):
        pods[f"orders-{one}"]["metadata"]["labels"][names.LABEL_ROLE] = names.ROLE_LEARNER
    return replace(seen, pods=pods)


def verdict(seen: Observed) -> tuple[str, str]:
    found = ready(seen, c.course(seen))
    return found.reason.value, found.message


@pytest.mark.parametrize(
    ("ids", "replicas", "learners", "expected"),
    [
        ([1, 2, 3, 4], 4, 0, set()),
        ([1, 2, 3, 4], 4, 1, {4}),
        ([1, 2, 3, 4, 5], 5, 2, {4, 5}),
        ([1, 3, 4, 6], 4, 1, {6}),
        ([1, 3, 4], 4, 1, set()),  # one is being replaced: the group lacks a learner, not a voter
        ([1, 2, 3, 4], 3, 1, {3, 4}),  # on the way to three
        ([1, 2, 3, 4, 5], 3, 0, set()),
    ],
)
def test_which_members_are_learners(ids: list[int], replicas: int, learners: int, expected: set[int]) -> None:
    assert beyond_voters(ids, replicas=replicas, learners=learners) == expected


@pytest.mark.parametrize("implementation", ["Python", "Java"])
def test_a_learners_pod_differs_by_its_start_and_its_mark(implementation: str) -> None:
    of = b.group(replicas=4, replication={"learners": 1}, implementation=implementation)
    voter, learner = build_pod(of, b.member(4), b.SETTINGS), build_pod(of, b.member(4), b.SETTINGS, learner=True)
    without = build_pod(b.group(implementation=implementation), b.member(4), b.SETTINGS)
    assert voter == without, "the field touches no other pod"
    assert names.ANNOTATION_LEARNER not in voter["metadata"]["annotations"]
    assert learner["metadata"]["annotations"][names.ANNOTATION_LEARNER] == "true"
    started = learner["spec"]["containers"][0]["command"]
    if implementation == "Python":
        assert started == [*voter["spec"]["containers"][0]["command"], "--async-learner"]
    else:
        assert 'echo asyncLearner=true >> "$RUN_DIR/broker.conf" && exec java' in started[-1]
    learner["spec"]["containers"][0]["command"] = voter["spec"]["containers"][0]["command"]
    assert learner["spec"] == voter["spec"]


def test_with_credentials_the_learners_line_is_written_under_the_same_umask() -> None:
    of = b.group(implementation="Java", security={"credentialsSecretRef": {"name": "keys"}})
    command = build_pod(of, b.member(4), b.SETTINGS, learner=True)["spec"]["containers"][0]["command"][-1]
    assert (
        command.index("umask")
        < command.index("asyncLearner=true")
        < command.index("innerClientAuthenticationCredentials")
    )


def test_a_settled_group_lacks_nothing() -> None:
    seen = learning()
    assert verdict(seen) == ("AllMembersInSync", "3 members in sync, 1 learning")
    assert standings(seen)[4].state is MemberState.LEARNING
    assert replication_healthy(seen, c.course(seen)).status is ConditionStatus.TRUE
    assert failover_safe(seen).status is ConditionStatus.TRUE
    assert c.course(seen).outdated == ()
    assert c.steps(seen) == []
    assert c.actions(seen, SetRole) == []


def test_it_is_not_ready_while_a_learner_is_unlinked_silent_or_still_in_the_set() -> None:
    seen = learning()
    unlinked = c.live(seen, 1, 2, 3, 4, unlinked=frozenset({4}))
    assert verdict(unlinked) == ("MembersNotLinked", "broker 4: heard, not linked to the master")
    assert standings(unlinked)[4].state is MemberState.UNLINKED
    assert verdict(c.live(seen, 1, 2, 3)) == ("MembersOutOfSync", "broker 4: not heard by any controller")
    still = c.seen_with(seen, b.record(replicas=4))
    assert verdict(still) == ("MembersOutOfSync", "broker 4: linked, still in the SyncStateSet as a learner")
    assert standings(still)[4].state is MemberState.IN_SYNC


TO_LEARN = c.wishing(c.settled(replicas=4), replicas=4, replication={"learners": 1})
WITHOUT_THIRD = b.record(replicas=4, in_sync=(1, 2, 4))


@pytest.mark.parametrize("seen", [learning(), TO_LEARN], ids=["it learns", "it is to learn"])
def test_a_learner_is_no_candidate_even_in_the_set(seen: Observed) -> None:
    """Of three voters one is away: with the learner there would be enough."""
    lacking = c.seen_with(seen, WITHOUT_THIRD)
    assert failover_safe(lacking).status is ConditionStatus.FALSE
    assert "NotEnoughCandidates" in unsafe_now(lacking)
    assert unsafe_now(seen) == ""


LEARNERS: list[tuple[str, Observed, list[str]]] = [
    ("the learner first", c.outdated(learning()), ["replace orders-4"]),
    ("then the slaves", c.outdated(learning(), "orders-1", "orders-2", "orders-3"), ["replace orders-2"]),
    ("one learner at a time", c.outdated(learning(replicas=5, learners=2)), ["replace orders-4"]),
    (
        "mastership does not go to a member that is to learn",
        c.wishing(
            c.settled(replicas=4),
            replicas=4,
            replication={"learners": 1},
            failover={"preferredMaster": 4},
            updateStrategy={"type": "OnDelete"},
        ),
        [],
    ),
    (
        "no member leaves while only one that is to learn could take over",
        c.running(c.seen_with(TO_LEARN, WITHOUT_THIRD), "Decommission", brokerId=2), [],
    ),
    (
        "nor while the first is still in the set",
        c.seen_with(c.outdated(learning(replicas=5, learners=2), "orders-5"), b.record(replicas=5, in_sync=(1, 2, 3, 4))), [],
    ),
    (
        "not the second while the first is away",
        c.not_ready(c.outdated(learning(replicas=5, learners=2), "orders-5"), "orders-4"), [],
    ),
    ("a voter waits for a learner that is away", c.live(c.outdated(learning(), "orders-2"), 1, 2, 3), []),
    (
        "a learner that broke is replaced at once", c.live(c.not_ready(c.outdated(learning(), "orders-4"), "orders-4"), 1, 2, 3),
        ["replace orders-4"],
    ),
    ("a voter is to learn", TO_LEARN, ["replace orders-4"]),
    (
        "not while those that go on voting are too few",
        c.seen_with(
            c.wishing(c.settled(replicas=4), replicas=4, durability="Strict", replication={"learners": 2}),
            b.record(replicas=4, in_sync=(1, 3, 4)),
        ),
        [],
    ),
    (
        "the master is to learn: it hands over to one that goes on voting",
        c.seen_with(c.wishing(c.settled(replicas=2), replicas=2, replication={"learners": 1}), b.record(replicas=2, master=2)),
        ["switch orders-2"],
    ),
    ("the only slave is to learn", c.wishing(c.settled(replicas=2), replicas=2, replication={"learners": 1}), ["replace orders-2"]),
    ("a master that votes alone", c.outdated(learning(replicas=2), "orders-1"), ["replace orders-1"]),
    ("a learner is to vote", c.wishing(learning(), replicas=4), ["replace orders-4"]),
    ("the learner leaves first", c.wishing(learning(), replicas=3, replication={"learners": 1}), ["mark orders-4"]),
    (
        "the preferred master learns",
        c.wishing(learning(), replicas=4, replication={"learners": 1}, failover={"preferredMaster": 4}), [],
    ),
]  # fmt: skip


@pytest.mark.parametrize(("seen", "expected"), c.table(LEARNERS))
def test_next_step_with_learners(seen: Observed, expected: list[str]) -> None:
    assert c.steps(seen) == expected


def test_a_learner_is_taken_while_the_group_is_not_safe() -> None:
    """Two voters of which one has a priority that bars it: no member can take over, and a learner may go all the same."""
    barred = {"priorities": [{"brokerId": 2, "priority": 0}]}
    seen = c.outdated(learning(replicas=3, failover=barred))
    assert failover_safe(seen).status is ConditionStatus.FALSE
    assert c.steps(seen) == ["replace orders-3"]
    assert c.steps(c.outdated(learning(replicas=3, failover=barred), "orders-1")) == []


BARRED = {"priorities": [{"brokerId": one, "priority": 0} for one in (1, 2, 3)]}
STALLED: list[tuple[str, Observed, str, str]] = [
    (
        "a learner as preferred master",
        c.wishing(learning(), replicas=4, replication={"learners": 1}, failover={"preferredMaster": 4}),
        "InvalidSpec", "spec.failover.preferredMaster is broker 4, an async learner",
    ),
    (
        "all voters are barred, whatever its learners are", learning(failover=BARRED),
        "NoEligibleReplica", "Every member (broker 1, 2, 3) has election priority 0",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("seen", "reason", "told"), c.table(STALLED))
def test_what_learners_make_impossible_is_reported(seen: Observed, reason: str, told: str) -> None:
    found = stalled(seen, c.course(seen))
    assert (found.status, found.reason.value) == (ConditionStatus.TRUE, reason)
    assert told in found.message


def test_the_slaves_budget_leaves_learners_out() -> None:
    slaves = c.applied(c.outdated(learning(replicas=5, learners=2)), "PodDisruptionBudget")["orders"]["spec"]
    assert slaves["minAvailable"] == 1
    assert slaves["selector"]["matchLabels"][names.LABEL_ROLE] == names.ROLE_SLAVE


def test_the_label_follows_the_record() -> None:
    """As long as it is in the set, evictions treat it as a slave."""
    seen = c.seen_with(learning(), b.record(replicas=4))
    assert [line for line in lines_of(run(seen)) if line.startswith("role")] == ["role orders-4 slave"]


@pytest.mark.parametrize(("replicas", "minimum", "floor"), [(4, 1, False), (5, 2, True)])
def test_the_controller_counts_voters(replicas: int, minimum: int, floor: bool) -> None:
    settings = binding_of(b.group_object(replicas=replicas, replication={"learners": 2})).settings
    assert (settings.min_in_sync_replicas, settings.shrink_floor) == (minimum, floor)


def test_where_the_master_votes_alone_durability_is_not_degraded() -> None:
    """The group promises no two disks; but with two voters one disk is less than wanted."""
    alone, two = learning(replicas=3, learners=2), learning(replicas=3)
    assert degraded_durability(alone, c.course(alone)) is None
    less = c.seen_with(two, b.record(in_sync=(1,)))
    assert degraded_durability(less, c.course(less)) is not None
