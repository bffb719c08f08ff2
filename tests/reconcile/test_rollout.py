"""The next step of a rolling update: slaves first, then a switchover, then the master; and what waits."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from brokergroup_operator.api import names, pod_fence
from brokergroup_operator.api.brokergroup_status import Reason
from brokergroup_operator.observe.group_view import MetadataDifference, MetadataKind
from brokergroup_operator.observe.timeline import Kind
from brokergroup_operator.reconcile.decide.rollout import wanted_pod
from brokergroup_operator.reconcile.plan import Verb
from tests.reconcile import builders as b
from tests.reconcile import cases as c

if TYPE_CHECKING:
    from brokergroup_operator.reconcile.see.observed import Observed


def strategy(**values: Any) -> Observed:
    return c.settled(updateStrategy=values)


def held_third() -> Observed:
    def order(pod: dict[str, Any]) -> None:
        pod["metadata"]["annotations"][names.ANNOTATION_STOPPED] = pod_fence.STANDS

    return c.with_pods(c.settled(maintenance={"stoppedBrokers": [3]}), order, "orders-3")


def silent_without_volumes(*in_sync: int) -> Observed:
    """No member is heard or ready, all are outdated, and each disk goes with its pod."""
    seen = replace(c.settled(storage={"ephemeral": {"sizeLimit": "2Gi"}}), claims={})
    return c.live(c.not_ready(c.outdated(c.seen_with(seen, b.record(in_sync=in_sync))), *seen.pods))


def with_a_learner() -> Observed:
    """Master, slave and learner."""
    of: dict[str, Any] = {"replicas": 3, "replication": {"learners": 1}, "durability": "Available"}
    seen = c.seen_with(c.settled(**of), b.record(in_sync=(1, 2)))
    made = wanted_pod(seen, b.member(3), b.SETTINGS)

    def learns(pod: dict[str, Any]) -> None:
        pod["metadata"]["annotations"] = made["metadata"]["annotations"]
        pod["spec"] |= {"containers": made["spec"]["containers"]}

    return c.with_pods(seen, learns, "orders-3")


# No waiting mends these: a 5.5.0 slave can't read its master's offsets (apache/rocketmq #10284).
OLDER_OFFSETS = tuple(
    MetadataDifference(one, MetadataKind.CONSUMER_OFFSET, "payments@billing", only_older=True) for one in (2, 3)
)
MASTER_RESTARTS = {"updateStrategy": {"masterUpdate": "Restart"}}
BROKEN_FIRST = c.live(c.not_ready(c.outdated(c.seen_with(c.settled(), b.record(in_sync=(1, 3)))), "orders-2"), 1, 3)
LACKS_A_TOPIC = (MetadataDifference(2, MetadataKind.TOPIC, "payments"),)
LACKING_TO_LEAVE = c.running(
    c.live(c.outdated(c.settled(replicas=2, durability="Available")), 1, 2, metadata_diverged=LACKS_A_TOPIC),
    "Decommission",
    brokerId=1,
)
LEARNER_TO_STAY = c.running(with_a_learner(), "Decommission", brokerId=2)
CASES: list[tuple[str, Observed, list[str]]] = [
    ("nothing is outdated", c.settled(), []),
    ("the first slave", c.outdated(c.settled()), ["replace orders-2"]),
    ("the second slave", c.outdated(c.settled(), "orders-1", "orders-3"), ["replace orders-3"]),
    ("the master hands over", c.outdated(c.settled(), "orders-1"), ["switch orders-1"]),
    ("one slave is still away", c.going(c.outdated(c.settled(), "orders-1", "orders-3"), "orders-2"), []),
    ("one is not ready yet", c.not_ready(c.outdated(c.settled(), "orders-1", "orders-3"), "orders-2"), []),
    ("one is not in sync yet", c.seen_with(c.outdated(c.settled(), "orders-1", "orders-3"), b.record(in_sync=(1, 3))), []),
    ("not safe: metadata, links, silence", c.live(c.outdated(c.settled()), 1, 2, 3, unlinked=frozenset({2})), []),
    ("slaves with older offsets", c.live(c.outdated(c.settled()), 1, 2, 3, metadata_diverged=OLDER_OFFSETS), ["replace orders-2"]),
    (
        "then the master hands over to one of them",
        c.live(c.outdated(c.settled(), "orders-1"), 1, 2, 3, metadata_diverged=OLDER_OFFSETS), ["switch orders-1"],
    ),
    ("OnDelete", c.outdated(strategy(type="OnDelete")), []),
    ("Supervised does slaves", c.outdated(strategy(masterUpdate="Supervised")), ["replace orders-2"]),
    ("Supervised waits before the master", c.outdated(strategy(masterUpdate="Supervised"), "orders-1"), []),
    ("Restart takes the master as it is", c.outdated(strategy(masterUpdate="Restart"), "orders-1"), ["replace orders-1"]),
    ("a broken one is replaced at once", BROKEN_FIRST, ["replace orders-2"]),
    (
        "a whole group that never came up",
        c.live(c.not_ready(c.outdated(c.seen_with(c.settled(), b.reserved(1, 2, 3))), "orders-1", "orders-2", "orders-3")),
        ["replace orders-1", "replace orders-2", "replace orders-3"],
    ),
    (
        "one that catches up gives nothing", c.seen_with(c.outdated(c.settled(), "orders-3"), b.record(in_sync=(1, 2))),
        ["replace orders-3"],
    ),
    (
        "not while a master is missing", c.seen_with(c.outdated(c.settled(), "orders-3"), b.record(in_sync=(1, 2), master=None)),
        [],
    ),
    ("a group of one", c.outdated(c.settled(replicas=1)), ["replace orders-1"]),
    # Its only copy would be stopped for an update that the members to come let it hand over for. Found by the fuzz.
    ("a group of one that is to grow", c.outdated(c.wishing(c.settled(replicas=1), replicas=2)), []),
    (
        "a broken one all the same", c.live(c.not_ready(c.outdated(c.wishing(c.settled(replicas=1), replicas=2)), "orders-1")),
        ["replace orders-1"],
    ),
    ("one may never be master, and has its turn", c.outdated(c.barred(2)), ["replace orders-2"]),
    ("then the only one that may follow", c.outdated(c.barred(2), "orders-1", "orders-3"), ["replace orders-3"]),
    ("then the master hands over to that one", c.outdated(c.barred(2), "orders-1"), ["switch orders-1"]),
    ("no slave may ever be master: one by one", c.outdated(c.barred(2, 3)), ["replace orders-2"]),
    ("each back in sync before the next", c.live(c.outdated(c.barred(2, 3), "orders-1", "orders-3"), 1, 3), []),
    (
        "not while a master is being changed",
        c.live(c.outdated(c.barred(2, 3)), 1, 2, 3, in_progress=replace(c.failing_over(), kind=Kind.SWITCHOVER)), [],
    ),
    ("and the master of such a group is not given up", c.outdated(c.barred(2, 3), "orders-1"), []),
    ("but as the spec says", c.outdated(c.barred(2, 3, **MASTER_RESTARTS), "orders-1"), ["replace orders-1"]),
    ("paused", c.outdated(c.settled(maintenance={"paused": True})), []),
    # Its broker serves, and another container of its former template never gets ready.
    ("one whose pod is not ready comes first", c.not_ready(c.outdated(c.settled()), "orders-3"), ["replace orders-3"]),
    ("so with all of them", c.not_ready(c.outdated(c.settled()), "orders-1", "orders-2", "orders-3"), ["replace orders-2"]),
    ("the master is still last", c.not_ready(c.outdated(c.settled()), "orders-1"), ["replace orders-2"]),
    ("and hands over all the same", c.not_ready(c.outdated(c.settled(), "orders-1"), "orders-1"), ["switch orders-1"]),
    (
        "not beside one that is up to date and not ready",
        c.not_ready(c.outdated(c.settled(), "orders-1", "orders-3"), "orders-2", "orders-3"), [],
    ),
    ("not where another is lost", c.live(c.not_ready(c.outdated(c.settled(), "orders-2"), "orders-2", "orders-3"), 1, 2), []),
    (
        "not one whose link is broken",
        c.live(c.not_ready(c.outdated(c.settled(), "orders-2"), "orders-2"), 1, 2, 3, unlinked=frozenset({2})), [],
    ),
    ("not while it is going", c.going(c.not_ready(c.outdated(c.settled(), "orders-1", "orders-3"), "orders-3"), "orders-2"), []),
    ("not while it is paused", c.not_ready(c.outdated(c.settled(maintenance={"paused": True})), "orders-2"), []),
    ("not with OnDelete", c.not_ready(c.outdated(strategy(type="OnDelete")), "orders-2"), []),
    ("not while a broker is held", c.not_ready(c.outdated(held_third()), "orders-2"), []),
    ("a disk that goes and counts for nothing is given up", silent_without_volumes(1, 2), ["replace orders-3"]),
    ("asked for, OnDelete", c.running(strategy(type="OnDelete"), "Restart", brokerIds=[1]), ["switch orders-1"]),
    ("asked for, Supervised", c.running(strategy(masterUpdate="Supervised"), "Restart", brokerIds=[1]), ["switch orders-1"]),
    # A member that is to leave and can't is still there: the master was restarted as if it were alone.
    ("not for a member that can't leave", LACKING_TO_LEAVE, []),
    ("it takes over from the master", c.outdated(LEARNER_TO_STAY, "orders-1"), ["switch orders-1"]),
    ("in its turn", c.in_line(c.not_ready(c.outdated(c.settled()), "orders-2")), []),
]  # fmt: skip


def test_a_master_without_a_possible_successor_says_what_would_help() -> None:
    [step] = c.course(c.outdated(c.barred(2, 3), "orders-1")).rollout
    assert (step.verb, step.reason) == (Verb.REFUSE, Reason.NOBODY_MAY_FOLLOW)
    told = "another priority in spec.failover.priorities; or set spec.updateStrategy.masterUpdate to Restart"
    assert told in step.why


def test_a_copy_that_goes_with_its_pod_is_never_given_up_unheard() -> None:
    """Three silent pods with all messages on their emptyDir were all deleted in one pass."""
    seen = silent_without_volumes(1, 2, 3)
    assert c.steps(seen) == []
    assert [step.verb for step in c.course(seen).rollout] == [Verb.WAIT]


def test_a_pod_whose_broker_never_ran_has_nothing_on_its_disk() -> None:
    """Under the floor the member keeps its seat; its emptyDir is empty, and a mended image must reach it."""

    def never_ran(pod: dict[str, Any]) -> None:
        waiting = {"reason": "ImagePullBackOff"}
        pod["status"] |= {"phase": "Pending", "containerStatuses": [{"name": "broker", "state": {"waiting": waiting}}]}

    two = {"replicas": 2, "storage": {"ephemeral": {"sizeLimit": "2Gi"}}}
    seen = c.not_ready(c.outdated(c.live(replace(c.settled(**two), claims={}), 1)), "orders-2")
    assert c.steps(seen) == []
    assert c.steps(c.with_pods(seen, never_ran, "orders-2")) == ["replace orders-2"]


TO_AND_FRO: list[tuple[str, Observed, int, list[str]]] = [
    ("only a learner would stay", LEARNER_TO_STAY, 2, ["replace orders-1"]),
    ("only a barred member would stay", c.running(c.barred(2), "Decommission", brokerId=3), 3, ["replace orders-1"]),
]


@pytest.mark.parametrize(("seen", "leaver", "then"), c.table(TO_AND_FRO))
def test_mastership_does_not_move_to_and_fro_with_a_member_that_can_not_leave(
    seen: Observed, leaver: int, then: list[str]
) -> None:
    """The update gave it to that member, which gave it back at once because it is to leave: writes stopped each time."""
    seen = c.outdated(seen, "orders-1")
    assert seen.record is not None
    assert c.steps(seen) == ["switch orders-1"]
    after = c.seen_with(seen, replace(seen.record, master_broker_id=leaver))
    assert c.steps(after) == then
    told = c.message(after, "Stalled")
    assert f"orders-{leaver} can't leave: it is master, and would not be spared after a hand-over to broker 1" in told


@pytest.mark.parametrize(("seen", "expected"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_next_step(seen: Observed, expected: list[str]) -> None:
    """Strimzi #12649: the roller gave up instead of waiting for the in-sync replicas."""
    assert c.steps(seen) == expected


def test_a_whole_update_touches_each_pod_once_and_never_two() -> None:
    """By the steps alone: a replaced member comes back up to date and in sync.

    Strimzi #3710, #7800, #10936: pods were restarted twice by one upgrade.
    """
    seen, told = c.outdated(c.settled()), []
    while acts := c.steps(seen):
        assert len(acts) == 1
        told += acts
        if acts[0].startswith("switch"):
            seen = c.seen_with(seen, b.record(master=2))
        else:
            pod = acts[0].split()[1]
            fresh = c.settled().pods[pod]
            seen = c.with_pods(seen, lambda old, new=fresh: old.update(new), pod)  # type: ignore[misc]
    assert told == ["replace orders-2", "replace orders-3", "switch orders-1", "replace orders-1"]


def test_what_waits_for_a_person_is_said() -> None:
    waiting = c.course(c.outdated(strategy(masterUpdate="Supervised"), "orders-1"))
    assert [step.reason.value for step in waiting.rollout] == ["WaitingForPerson"]
    assert names.GROUP not in waiting.rollout[0].why
    assert "switch over" in waiting.rollout[0].why
