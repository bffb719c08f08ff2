"""`spec.maintenance.stoppedBrokers`: whose broker is stopped now, why one is not, and a group with a stopped one."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from brokergroup_operator.api import names
from brokergroup_operator.kube.resources import PODS
from brokergroup_operator.observe.group_view import MetadataDifference, MetadataKind, Silence
from brokergroup_operator.reconcile import plan as plans
from brokergroup_operator.reconcile.decide.rollout import wanted_pod
from brokergroup_operator.reconcile.other_groups import Turn
from brokergroup_operator.reconcile.render.pods import pod_revision
from brokergroup_operator.reconcile.see.members import lacking_members
from tests.reconcile import builders as b
from tests.reconcile import cases as c

if TYPE_CHECKING:
    from brokergroup_operator.reconcile.see.observed import Observed

STRICT = {"durability": "Strict"}
TWO: dict[str, Any] = {"replicas": 2}
FIVE: dict[str, Any] = {"replicas": 5}


def asked(*ids: int, **spec: Any) -> Observed:
    """A settled group whose spec wants these brokers stopped. Broker 1 is master."""
    return c.settled(maintenance={"stoppedBrokers": list(ids)}, **spec)


def noted(obj: dict[str, Any]) -> None:
    obj["metadata"].setdefault("annotations", {})[names.ANNOTATION_STOPPED] = "true"


def claims_noted(seen: Observed, *ids: int) -> Observed:
    return c.with_claims(seen, noted, *(f"orders-{one}" for one in ids))


def ordered(seen: Observed, *ids: int) -> Observed:
    """The order stands on these pods, and on their claims; their brokers still run."""
    seen = c.with_pods(seen, noted, *(f"orders-{one}" for one in ids))
    return claims_noted(seen, *ids) if seen.claims else seen


def stopped(*ids: int, wanted: tuple[int, ...] = (), seen: Observed | None = None, **spec: Any) -> Observed:
    """Their brokers have ended: not ready, not heard, out of the SyncStateSet."""
    seen = seen or asked(*(wanted or ids), **spec)
    assert seen.record is not None
    left = tuple(one for one in sorted(seen.record.replicas) if one not in ids)
    seen = c.seen_with(seen, b.record(replicas=len(seen.record.replicas), in_sync=left), live=left)
    return c.not_ready(ordered(seen, *ids), *(f"orders-{one}" for one in ids))


def without_gate(seen: Observed, *pods: str) -> Observed:
    """These pods were made by an earlier release."""

    def age(pod: dict[str, Any]) -> None:
        pod["spec"]["volumes"] = [one for one in pod["spec"]["volumes"] if one["name"] != names.VOLUME_ORDERS]

    return c.with_pods(seen, age, *pods)


def crashes(pod: dict[str, Any]) -> None:
    pod["status"]["containerStatuses"] = [
        {"name": "broker", "ready": False, "restartCount": 9, "state": {"running": {}}}
    ]


NO_FENCE = {"failover": {"isolation": {"enabled": False}}}
STALE = b.record(in_sync=(1, 3))
LACKING = (MetadataDifference(3, MetadataKind.TOPIC, "payments"),)
WANTED: dict[str, Any] = {"maintenance": {"stoppedBrokers": [2]}}
ASLEEP = c.settled(maintenance={"stoppedBrokers": [2], "hibernated": True})
NOTHING = ("False", "NothingStalled")
REFUSED = ("True", "StopRefused")
STALLS: list[tuple[str, Observed, list[str], tuple[str, str]]] = [
    ("nothing is asked for", c.settled(), [], NOTHING),
    ("a slave", asked(2), ["stop the broker of orders-2"], NOTHING),
    ("a slave of two, Available", asked(2, **TWO), ["stop the broker of orders-2"], NOTHING),
    ("a slave of two, Strict: nothing could be acknowledged", asked(2, **TWO, **STRICT), [], REFUSED),
    ("the master hands over", asked(1), ["switch orders-1 to 2"], NOTHING),
    ("but not to one that is to be stopped too", asked(1, 2), ["switch orders-1 to 3"], NOTHING),
    ("the master of two, Strict", asked(1, **TWO, **STRICT), [], REFUSED),
    ("the only member", asked(1, replicas=1), [], REFUSED),
    ("all: one slave is spared", asked(1, 2, 3), ["stop the broker of orders-2"], NOTHING),
    ("and no more", stopped(2, wanted=(1, 2, 3)), [], REFUSED),
    ("no master", c.seen_with(asked(2), b.record(master=None)), [], REFUSED),
    ("another slave is silent: only the minimum is left", c.live(asked(2), 1, 2), [], REFUSED),
    ("another slave of five is silent", c.live(asked(2, **FIVE), 1, 2, 3, 4), ["stop the broker of orders-2"], NOTHING),
    ("another has no link", c.live(asked(2), 1, 2, 3, unlinked=frozenset({3})), [], REFUSED),
    ("another lacks a topic: it waits", c.live(asked(2), 1, 2, 3, metadata_diverged=LACKING), [], NOTHING),
    ("one outside the set", c.seen_with(asked(2), STALE), ["stop the broker of orders-2"], NOTHING),
    ("one that crashes", c.not_ready(c.live(asked(2), 1, 3), "orders-2"), ["stop the broker of orders-2"], NOTHING),
    ("a switchover is under way", c.live(asked(2), 1, 2, 3, is_changing=True), [], NOTHING),
    ("one is stopped: a second one of three stays", stopped(2, wanted=(2, 3)), [], REFUSED),
    ("and of five it goes", stopped(2, wanted=(2, 3), **FIVE), ["stop the broker of orders-3"], NOTHING),
    ("a fourth one of five stays", stopped(2, 3, 4, wanted=(2, 3, 4, 5), **FIVE), [], REFUSED),
    ("the order just given counts at once", ordered(asked(2, 3), 2), [], REFUSED),
    ("the operator has just started and hears no broker yet", c.live(asked(2)), [], NOTHING),
    ("the operator hears the master alone", c.live(asked(2), 1), [], REFUSED),
    ("a failover came between: it hands over", ordered(asked(1), 1), ["switch orders-1 to 2"], NOTHING),
    ("all is as asked for", stopped(2), [], NOTHING),
    ("one that is no member", asked(7), [], ("True", "InvalidSpec")),
    ("a member beside it", asked(2, 7), ["stop the broker of orders-2"], NOTHING),
    ("and then it says so", stopped(2, wanted=(2, 7)), [], ("True", "InvalidSpec")),
    ("pods without a fence", asked(2, **NO_FENCE), [], ("True", "InvalidSpec")),
    ("a pod of an earlier release is made anew first", without_gate(asked(2), "orders-2"), ["replace orders-2"], NOTHING),
    (
        "but not one whose disk goes with its pod",
        without_gate(asked(2, storage={"ephemeral": {"sizeLimit": "2Gi"}}), "orders-2"),
        [],
        REFUSED,
    ),
    ("nor one whose claim is being deleted", without_gate(c.claims_going(asked(2), "orders-2"), "orders-2"), [], REFUSED),
    ("its pod is going anyway", c.going(asked(2), "orders-2"), [], NOTHING),
    ("paused", c.settled(maintenance={"stoppedBrokers": [2], "paused": True}), [], NOTHING),
    ("hibernated: its pod stops too", c.without_pods(ordered(ASLEEP, 2), "orders-1"), ["stop orders-2", "stop orders-3"], NOTHING),
    (
        "no slave may ever be master: it is no failover candidate",
        c.barred(2, 3, **WANTED),
        ["stop the broker of orders-2"],
        NOTHING,
    ),
    ("a learner", asked(4, replicas=4, replication={"learners": 1}), ["stop the broker of orders-4"], NOTHING),
]  # fmt: skip


@pytest.mark.parametrize(("seen", "expected", "stalled"), c.table(STALLS))
def test_next_step(seen: Observed, expected: list[str], stalled: tuple[str, str]) -> None:
    assert c.steps(seen) == expected
    assert c.condition(seen, "Stalled") == stalled


def test_a_refusal_names_field_value_and_what_was_expected() -> None:
    assert c.message(asked(7), "Stalled") == (
        "spec.maintenance.stoppedBrokers has 7, which is no member: expected broker ids among 1, 2, 3"
    )
    assert c.message(asked(2, **NO_FENCE), "Stalled").startswith(
        "spec.maintenance.stoppedBrokers is [2]: expected none while spec.failover.isolation.enabled is false"
    )
    assert c.message(asked(2, **TWO, **STRICT), "Stalled") == (
        "orders-2 is not stopped: without it 1 would acknowledge writes (broker 1), and 2 are needed"
    )
    waits = c.live(asked(2), 1, 2, 3, metadata_diverged=LACKING)
    assert c.condition(waits, "Reconciling") == ("True", "StoppingBroker")
    assert "orders-2 is to be stopped, and waits: not FailoverSafe: Broker 3 lacks metadata" in c.message(
        waits, "Reconciling"
    )


def test_a_stopped_broker_that_alone_has_every_message_is_named_while_no_other_can_be_master() -> None:
    """Only a person may start it; nothing else says that writes wait for that, least of all while no member runs."""
    for live in ((1, 3), ()):
        seen = c.not_ready(
            c.seen_with(stopped(2), b.record(master=None, in_sync=(2,)), live=live), "orders-1", "orders-3"
        )
        assert c.condition(seen, "Stalled") == ("True", "NoEligibleReplica")
        assert "kubectl brokergroup start-broker orders 2 -n shop" in c.message(seen, "Stalled")


def test_an_id_that_is_still_to_come_is_not_refused() -> None:
    """A group is created together with the wish."""
    seen = replace(asked(3), record=b.reserved(1, 2), pods={}, claims={})
    assert c.shown(seen, "Stalled") == NOTHING


def marks(seen: Observed) -> list[tuple[str, str, str | None]]:
    """Return which objects the pass marks or unmarks as stopped."""
    return [
        (one.resource.kind, one.name, one.change["annotations"][names.ANNOTATION_STOPPED])
        for one in c.actions(seen, plans.PatchMetadata)
    ]


def test_the_order_is_given_to_the_pod_that_was_seen() -> None:
    [action] = c.actions(asked(2), plans.PatchMetadata)
    assert (action.resource, action.name, action.uid) == (PODS, "orders-2", "pod-uid-2")
    assert action.change == {"annotations": {names.ANNOTATION_STOPPED: "true"}}
    assert action.note is not None
    assert action.note.reason == "BrokerStopping"


MARKS: list[tuple[str, Observed, list[tuple[str, str, str | None]]]] = [
    ("the claim notes the order", replace(stopped(2), claims=asked(2).claims), [("PersistentVolumeClaim", "orders-2", "true")]),
    ("all is noted", stopped(2), []),
    (
        "the order is taken back", stopped(2, wanted=(9,), seen=c.settled()),
        [("Pod", "orders-2", None), ("PersistentVolumeClaim", "orders-2", None)],
    ),
    (
        "also of a member without a pod", c.without_pods(claims_noted(c.settled(), 2), "orders-2"),
        [("PersistentVolumeClaim", "orders-2", None)],
    ),
    (
        "a failover made it master: without the order its container starts again after a crash", ordered(asked(1), 1),
        [("Pod", "orders-1", None), ("PersistentVolumeClaim", "orders-1", None)],
    ),
    ("not while the group is paused", stopped(2, seen=c.settled(maintenance={"paused": True})), []),
]  # fmt: skip


@pytest.mark.parametrize(("seen", "expected"), c.table(MARKS))
def test_claims_and_pods_follow_the_spec(seen: Observed, expected: list[tuple[str, str, str | None]]) -> None:
    assert marks(seen) == expected


def test_the_next_pod_of_a_stopped_member_has_the_order_from_its_start() -> None:
    """And one that was not stopped before starts: it may be the one that the group needs."""

    def annotation(seen: Observed) -> str | None:
        pod = wanted_pod(c.without_pods(seen, "orders-2"), b.member(2), b.SETTINGS)
        return dict(pod["metadata"]["annotations"]).get(names.ANNOTATION_STOPPED)

    assert annotation(stopped(2)) == "true"
    assert annotation(asked(2)) is None
    assert annotation(claims_noted(c.settled(), 2)) is None
    assert annotation(c.seen_with(stopped(2), b.record(master=2))) is None, (
        "a failover made it master before its pod was lost"
    )


SET = frozenset({1, 3, 4})
CONDITIONS: list[tuple[str, Observed, dict[str, tuple[str, str] | None]]] = [
    (
        "a slave of three is stopped", stopped(2),
        {
            "Ready": ("False", "MembersStopped"), "Available": ("True", "MasterServesWrites"),
            "FailoverSafe": ("False", "NotEnoughCandidates"), "ReplicationHealthy": ("False", "MembersStopped"),
            "UpToDate": ("True", "AllUpToDate"), "Reconciling": ("False", "Stable"), "Stalled": NOTHING,
            "BrokersStopped": ("True", "BySpec"), "DegradedDurability": None,
        },
    ),
    ("a slave of five is stopped", stopped(2, **FIVE), {"FailoverSafe": ("True", "EnoughCandidates")}),
    ("another one is not ready", c.not_ready(stopped(2), "orders-3"), {"Ready": ("False", "MembersPending")}),
    ("another one catches up", c.recorded(stopped(2, **FIVE), sync_state_set=SET), {"Ready": ("False", "MembersOutOfSync")}),
    ("its container has restarted often", c.with_pods(stopped(2), crashes, "orders-2"), {"Stalled": NOTHING}),
    ("the update waits", c.outdated(stopped(2), "orders-3"), {"UpToDate": ("False", "WaitingForPerson"), "Stalled": NOTHING}),
    ("also of the stopped one", c.outdated(stopped(2), "orders-2"), {"UpToDate": ("False", "WaitingForPerson")}),
    ("nothing is stopped", c.settled(), {"BrokersStopped": None}),
]  # fmt: skip


@pytest.mark.parametrize(("seen", "expected"), c.table(CONDITIONS))
def test_conditions(seen: Observed, expected: dict[str, tuple[str, str] | None]) -> None:
    assert {kind: c.shown(seen, kind) for kind in expected} == expected


def test_the_status_says_that_it_is_stopped_and_by_what() -> None:
    [member] = [one for one in c.status_of(stopped(2))["members"] if one["brokerId"] == 2]
    assert member["state"] == "Stopped"
    assert "stopped by spec.maintenance.stoppedBrokers" in member["message"]
    [member] = [one for one in c.status_of(ordered(asked(2), 2))["members"] if one["brokerId"] == 2]
    assert member["state"] == "InSync", "its broker has not ended yet"
    assert "kubectl brokergroup start-broker orders 2 -n shop" in c.message(stopped(2), "BrokersStopped")
    assert "broker 2: " in c.message(stopped(2), "FailoverSafe")


PREFERRED = c.settled(failover={"preferredMaster": 2}, **WANTED)
UPDATES: list[tuple[str, Observed, list[str]]] = [
    ("no other pod is taken", c.outdated(stopped(2)), []),
    ("nor of five", c.outdated(stopped(2, **FIVE)), []),
    ("the stopped one's pod stays", c.outdated(stopped(2), "orders-2"), []),
    ("a bad one is replaced", c.outdated(c.not_ready(c.live(stopped(2), 1), "orders-3"), "orders-3"), ["replace orders-3"]),
    ("when it has started the update goes on", c.outdated(c.settled()), ["replace orders-2"]),
    ("scale in takes it first", c.wishing(stopped(2), replicas=2, **WANTED), ["mark orders-2"]),
    ("and it leaves", c.marked(c.wishing(stopped(2), replicas=2, **WANTED), "orders-2"), ["stop orders-2"]),
    ("it is decommissioned", c.running(c.marked(stopped(2), "orders-2"), "Decommission", brokerId=2), ["stop orders-2"]),
    ("it is rebuilt", c.running(stopped(2), "Rebuild", brokerId=2), ["stop orders-2"]),
    ("another one of three can't leave", c.running(c.marked(stopped(2), "orders-3"), "Decommission", brokerId=3), []),
    ("its node is drained: the master is elsewhere", c.on_nodes(stopped(2), node_2=c.node("node-2", unschedulable=True)), []),
    ("mastership is not moved to it", ordered(PREFERRED, 2), []),
    ("nor to one that is to be stopped", c.seeing(PREFERRED, metadata_diverged=LACKING), []),
]  # fmt: skip


@pytest.mark.parametrize(("seen", "expected"), c.table(UPDATES))
def test_what_else_happens_to_a_group_with_a_stopped_broker(seen: Observed, expected: list[str]) -> None:
    assert c.steps(seen) == expected


def test_a_group_with_a_stopped_broker_keeps_no_other_group_waiting() -> None:
    assert c.course(c.rolling(stopped(2, **FIVE))).turn is Turn.NONE
    assert c.course(c.rolling(c.outdated(stopped(2, **FIVE)))).turn is Turn.NONE


def test_a_stopped_broker_is_not_repaired_and_does_not_hold_up_the_repair_of_another() -> None:
    """Its container runs, and nothing hears it; a restart would bring no broker."""
    silence = Silence(since_unix_seconds=0.0, linked=False, answers=False)
    assert c.steps(c.seeing(stopped(2), silences={2: silence})) == []
    other = Silence(since_unix_seconds=0.0, linked=True, answers=True)
    seen = c.live(stopped(2, **FIVE), 1, 3, 4, silences={2: silence, 5: other})
    assert c.steps(seen) == ["replace orders-5"]


def test_a_broker_that_just_starts_again_has_the_whole_time_to_be_heard() -> None:
    """Its last heartbeat and the start of its container are from before the hold: its pod was replaced at once."""
    held = c.with_pods(stopped(2), lambda pod: pod["metadata"].update(creationTimestamp=c.EARLIER), "orders-2")
    silence = Silence(since_unix_seconds=0.0, linked=True, answers=True)
    seen = c.seeing(c.wishing(held), silences={2: silence})
    [change] = [one.change for one in c.actions(seen, plans.PatchMetadata) if one.resource == PODS]

    def started(pod: dict[str, Any]) -> None:
        kept = pod["metadata"]["annotations"] | change["annotations"]
        pod["metadata"]["annotations"] = {name: value for name, value in kept.items() if value is not None}

    seen = c.with_pods(seen, started, "orders-2")
    assert c.steps(seen) == []
    [step] = c.course(seen).first
    assert (step.verb.value, step.reason.value) == ("wait", "RepairingMembers")
    for nonsense in ("yesterday", "2026-11-21", ""):
        change["annotations"]["brokergroup.dev/started-at"] = nonsense
        assert c.steps(c.with_pods(seen, started, "orders-2")) == ["replace orders-2"], "a user can write there"


def test_the_slaves_budget_counts_no_stopped_broker() -> None:
    """A node of another slave can be drained while the group is FailoverSafe without it."""
    for seen, kept in ((c.settled(**FIVE), 3), (stopped(2, **FIVE), 2)):
        budget = c.applied(replace(seen, disruption_budgets={}), "PodDisruptionBudget")["orders"]["spec"]
        assert budget["selector"]["matchLabels"][names.LABEL_ROLE] == names.ROLE_SLAVE
        assert budget["minAvailable"] == kept
        assert budget["unhealthyPodEvictionPolicy"] == "AlwaysAllow", "the stopped one's own node can always be drained"


def test_a_pod_of_an_earlier_release_is_not_replaced_for_the_gate() -> None:
    """ADR 19: an upgrade restarts no broker."""
    for implementation in ("Python", "Java"):
        assert not c.course(
            without_gate(c.settled(implementation=implementation), "orders-1", "orders-2", "orders-3")
        ).outdated


@pytest.mark.parametrize(
    ("seen", "expected"),
    c.table([
        ("all are in sync", c.settled(), 0),
        ("one is held stopped", stopped(3), 0),
        ("another one is lost beside it", c.live(stopped(3), 1), 1),
        ("another one is behind beside it", c.seen_with(stopped(3), b.record(in_sync=(1,)), live=(1, 2)), 1),
        ("one is lost, none is held", c.live(c.settled(), 1, 2), 1),
        ("one is still to be made", c.wishing(c.settled(), replicas=4), 1),
        ("a learner is away", c.live(c.settled(replication={"learners": 1}), 1, 2), 0),
        ("it hibernates", c.live(c.settled(maintenance={"hibernated": True})), 0),
    ]),
)  # fmt: skip
def test_how_many_voting_members_are_lacking_for_another_reason(seen: Observed, expected: int) -> None:
    assert lacking_members(seen) == expected


@pytest.mark.parametrize("implementation", ["Python", "Java"])
def test_a_broker_that_is_stopped_has_the_time_of_its_pod(implementation: str) -> None:
    """And no pod of an earlier release is replaced to get it."""
    spec = {"implementation": implementation, "terminationGracePeriodSeconds": 300}
    spec |= {"nameServers": ["ns:9876"]} if implementation == "Java" else {}
    seen = c.settled(**spec)
    fence = b.containers(seen.pods["orders-2"])[names.CONTAINER_FENCE]
    assert {"name": names.ENVIRONMENT_STOP_GRACE, "value": "300"} in fence["env"]
    earlier = copy.deepcopy(seen.pods["orders-2"]["spec"])
    for one in earlier["containers"]:
        one["env"] = [each for each in one["env"] if each["name"] != names.ENVIRONMENT_STOP_GRACE]
    assert pod_revision(earlier, seen.group.spec) == pod_revision(seen.pods["orders-2"]["spec"], seen.group.spec)
