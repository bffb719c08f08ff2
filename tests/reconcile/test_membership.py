"""Members that leave, dead ids, and a group that hibernates or is deleted: which member, in which order, and when not."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from brokergroup_operator.api import names
from brokergroup_operator.api.brokergroup_status import Reason
from brokergroup_operator.observe.group_view import Silence
from brokergroup_operator.reconcile.plan import Step, Verb
from brokergroup_operator.reconcile.see.members import lacking_members, membership, voters_wanted
from brokergroup_operator.reconcile.see.observed import seconds_of
from controller_core.model import BrokerGroupRecord, Replica
from tests.reconcile import builders as b
from tests.reconcile import cases as c
from tests.reconcile.cases import condition, lines_of, run, shown

if TYPE_CHECKING:
    from brokergroup_operator.reconcile.see.observed import Observed


def four(wanted: int = 3, **spec: object) -> Observed:
    """Four members, of which `wanted` are to stay."""
    return c.wishing(c.settled(replicas=4, **spec), replicas=wanted, **spec)


STOPPED = c.live(c.without_pods(four(), "orders-4"), 1, 2, 3)
FEW = c.seen_with(four(), b.record(replicas=4, in_sync=(1, 4)))
LAST_SEATS = c.live(c.without_pods(FEW, "orders-4"), 1, 2, 3)
ONLY_RESERVED = replace(b.record(), next_broker_id=5, replicas={**b.record().replicas, 4: b.reserved(4).replicas[4]})
NEVER_REGISTERED = c.live(c.without_pods(replace(four(), record=ONLY_RESERVED), "orders-4"), 1, 2, 3)
TO_TWO = c.wishing(c.settled(), replicas=2, durability="Strict")


def without_claim(seen: Observed, name: str) -> Observed:
    return replace(seen, claims=b.without(seen.claims, name))


def asked_for(kind: str, broker_id: int, seen: Observed | None = None) -> Observed:
    """An operation of this kind runs on the broker."""
    return c.running(seen or c.settled(), kind, brokerId=broker_id)


REBUILT = c.live(c.without_pods(asked_for("Rebuild", 3), "orders-3"), 1, 2)
ON_A_LOST_NODE = c.live(c.going(asked_for("Rebuild", 3), "orders-3", since=c.EARLIER), 1, 2)
ALONE = asked_for("Decommission", 1, c.settled(replicas=1))
JUST_STARTED = c.live(c.marked(c.without_pods(four(), "orders-4"), "orders-4"), writable=False)
# Under Strict broker 1 acknowledges nothing without broker 3, whose pod is lost; broker 2 does not get in sync.
NEEDED = c.live(c.without_pods(c.seen_with(TO_TWO, b.record(in_sync=(1, 3))), "orders-3"), 1, 2, writable=False)
CASES: list[tuple[str, Observed, list[str]]] = [
    ("an operator that has just started waits", JUST_STARTED, []),
    ("the highest id", four(), ["stop orders-4"]),
    ("not the master", c.seen_with(four(), b.record(replicas=4, master=4)), ["stop orders-3"]),
    ("a member outside the set first", c.seen_with(four(), b.record(replicas=4, in_sync=(1, 3, 4))), ["stop orders-2"]),
    ("the stopped member stays the chosen one", c.going(four(), "orders-3"), []),
    ("the noted choice stands", c.marked(four(), "orders-2"), ["stop orders-2"]),
    ("forgotten once it is gone", STOPPED, ["forget orders-4"]),
    ("one after the other", four(wanted=2), ["stop orders-4"]),
    ("a member without a seat may go although the others are few", FEW, ["stop orders-3"]),
    ("also at the floor", c.seen_with(TO_TWO, b.record(in_sync=(1, 3))), ["stop orders-2"]),
    ("without a master no member leaves", c.seen_with(four(), b.record(replicas=4, master=None)), []),
    ("an id that never registered leaves at once", NEVER_REGISTERED, ["forget orders-4"]),
    ("gone, but its seat is needed: it comes back", LAST_SEATS, []),
    ("three to two under Strict needs both that stay", TO_TWO, ["stop orders-3"]),
    ("a dead member leaves first", c.not_ready(c.live(TO_TWO, 1, 3), "orders-2"), ["stop orders-2"]),
    ("two to one keeps the master", c.wishing(c.settled(replicas=2), replicas=1), ["stop orders-2"]),
    ("a decommissioned master hands over first", asked_for("Decommission", 1), ["switch orders-1"]),
    ("a decommissioned slave stops", asked_for("Decommission", 2), ["stop orders-2"]),
    ("and is forgotten", asked_for("Decommission", 2, c.live(c.without_pods(c.settled(), "orders-2"), 1, 3)), ["forget orders-2"]),
    ("the only member can't be decommissioned", ALONE, []),
    ("an operation for an id that is gone", asked_for("Decommission", 9), []),
    ("a rebuilt member stops", asked_for("Rebuild", 3), ["stop orders-3"]),
    ("its pod is waited for", c.live(c.going(asked_for("Rebuild", 3), "orders-3"), 1, 2), []),
    ("then it gives up its volume", REBUILT, ["drop volume orders-3"]),
    ("and that is waited for", c.claims_going(REBUILT, "orders-3"), []),
    # It is lost like any other volume: a new id is reserved, and this one is cleaned when that is in sync.
    ("and only then its id", without_claim(REBUILT, "orders-3"), []),
    ("a rebuilt master hands over first", asked_for("Rebuild", 1), ["switch orders-1"]),
    ("on a lost node its pod is not waited for", ON_A_LOST_NODE, ["drop volume orders-3"]),
    ("nor its claim, which that pod holds", c.claims_going(ON_A_LOST_NODE, "orders-3"), ["forget orders-3"]),
]  # fmt: skip


@pytest.mark.parametrize(("seen", "expected"), c.table(CASES))
def test_next_step(seen: Observed, expected: list[str]) -> None:
    assert c.steps_after_marking(seen) == expected


def test_what_was_rebuilt_is_no_leaver_once_its_volume_is_gone() -> None:
    assert c.course(without_claim(REBUILT, "orders-3")).leaver is None


def test_the_choice_is_noted_before_anything_is_done() -> None:
    assert c.steps(four()) == ["mark orders-4"]
    assert c.steps(c.marked(four(), "orders-4")) == ["stop orders-4"]


@pytest.mark.parametrize(
    ("seen", "broker_id", "expected"),
    [
        (ALONE, 1, True),
        (JUST_STARTED, 4, False),
        (STOPPED, 4, False),
        (STOPPED, 3, True),
        (LAST_SEATS, 4, True),
    ],
    ids=["the only one", "just started", "it has left", "it stays", "its seat is needed"],
)
def test_a_leaving_member_is_not_made_again_and_one_that_must_stay_is(
    seen: Observed, broker_id: int, expected: bool
) -> None:
    assert c.course(seen).runs(broker_id) is expected


def unavailable(seen: Observed, since: str) -> Observed:
    condition = {
        "type": "Available",
        "status": "False",
        "reason": "NotEnoughInSyncReplicas",
        "lastTransitionTime": since,
    }
    return c.with_status(seen, {"conditions": [condition]})


def test_a_member_that_leaves_comes_back_where_no_write_is_acknowledged_without_it() -> None:
    """It was the first to leave as its pod was lost, and was not made again: the group took no message for good."""
    assert c.course(NEEDED).leaver == c.course(NEEDED).standings[3]
    for early in (NEEDED, unavailable(NEEDED, "2026-11-20T23:59:31Z")):
        assert not c.course(early).runs(3), "an operator that has just started may hear the others in a moment"
    late = unavailable(NEEDED, "2026-11-20T23:59:30Z")
    refused = c.course(late).leaving
    assert refused is not None
    assert (refused.verb.value, refused.reason.value) == ("refuse", "ScaleInRefused")
    assert refused.why == "orders-3 can't leave: there is no other master that serves"
    assert "apply Pod orders-3" in lines_of(run(late))


def test_an_operator_that_has_just_started_goes_by_no_condition_of_long_ago() -> None:
    """It started the stopped member again in its first pass, and said ScaleInRefused, although the master serves."""
    stale = unavailable(JUST_STARTED, c.EARLIER)
    for seconds, verb in ((29.0, Verb.WAIT), (30.0, Verb.REFUSE)):
        silence = Silence(since_unix_seconds=seconds_of(b.NOW) - seconds)
        step = c.course(c.seeing(stale, live={}, masters_silence=silence)).leaving
        assert step is not None
        assert step.verb is verb
    # Too new to show a silence; or it has heard the master, and not yet the slaves with which it acknowledges.
    for seconds, verb in ((1.0, Verb.WAIT), (29.0, Verb.WAIT), (30.0, Verb.REFUSE)):
        for heard in ((), (1,)):
            step = c.course(c.live(stale, *heard, writable=False, known_for_seconds=seconds)).leaving
            assert step is not None
            assert step.verb is verb
    unknown = c.course(replace(stale, snapshot=None)).leaving
    assert unknown is not None
    assert unknown.verb is Verb.WAIT


def test_what_leaves_keeps_no_broken_member_from_its_mended_configuration() -> None:
    """Both slaves were broken by the spec; it was corrected, and replicas lowered: neither was ever replaced."""
    broken = c.not_ready(
        c.outdated(c.seen_with(TO_TWO, b.record(in_sync=(1, 2))), "orders-2", "orders-3"), "orders-2", "orders-3"
    )
    broken = c.live(broken, 1, writable=False)
    assert c.course(broken).leaver == c.course(broken).standings[3]
    assert c.steps(broken) == []
    assert c.steps(unavailable(broken, "2026-11-20T23:59:30Z")) == ["replace orders-2", "replace orders-3"]


def test_a_broken_member_that_can_not_leave_gets_its_mended_configuration() -> None:
    """Under Strict the master acknowledges nothing without it, and it was never replaced: the group took no message for good."""
    two = c.wishing(c.settled(replicas=2), replicas=1)
    broken = c.live(c.not_ready(c.outdated(two, "orders-2"), "orders-2"), 1, writable=False)
    late = unavailable(broken, c.EARLIER)
    assert c.course(late).leaving == Step(
        verb=Verb.REFUSE,
        reason=Reason.SCALE_IN_REFUSED,
        why="orders-2 can't leave: there is no other master that serves",
        member=b.member(2),
    )
    assert c.steps(late) == ["replace orders-2"]
    assert c.steps(broken) == [], "one that leaves is not updated"


def unready_since(seen: Observed, since: str, *pods: str) -> Observed:
    condition = {"type": "Ready", "status": "False", "lastTransitionTime": since}
    return c.with_pods(seen, lambda pod: pod["status"].update(conditions=[condition]), *pods)


# Only a barred member would stay beside the master, so 2 can't leave.
BARRED_BESIDE_UNREADY = unready_since(
    c.wishing(c.barred(3), replicas=2, failover={"priorities": [{"brokerId": 3, "priority": 0}]}), c.EARLIER, "orders-2"
)


def both_unready(outdated: str, *, third_since: str = c.EARLIER) -> Observed:
    """Of three under Strict two are to stay. Both slaves serve in pods that are not ready; 3 can't leave, for 2 is not ready."""
    seen = unready_since(c.outdated(TO_TWO, outdated), c.EARLIER, "orders-2")
    return unready_since(seen, third_since, "orders-3")


def test_a_member_that_can_not_leave_and_stays_unready_keeps_no_broken_one_from_its_mended_configuration() -> None:
    """3 waited for 2 to be ready before it left, and the update of 2 waited for 3, which nothing of ours makes ready."""
    stuck = both_unready("orders-2")
    refused = c.course(stuck).leaving
    assert refused is not None
    assert (refused.verb, refused.member) == (Verb.REFUSE, b.member(3))
    assert c.steps(stuck) == ["replace orders-2"]
    assert c.steps(c.in_line(stuck)) == [], "in its turn"
    healed = c.with_pods(stuck, lambda pod: pod.update(c.settled().pods["orders-2"]), "orders-2")
    assert c.steps_after_marking(healed) == ["stop orders-3"]


@pytest.mark.parametrize(
    "seen",
    [
        both_unready("orders-2", third_since="2026-11-20T23:59:00Z"),
        c.live(both_unready("orders-2"), 1, 2),
        c.without_pods(both_unready("orders-2"), "orders-3"),
        c.going(both_unready("orders-2"), "orders-2"),
        c.outdated(BARRED_BESIDE_UNREADY, "orders-3"),
    ],
    ids=[
        "it is about to be ready",
        "it is lost",
        "its pod is gone, and was heard just now",
        "the other is stopping",
        "the other is well",
    ],
)
def test_an_update_waits_for_a_member_that_may_still_be_ready(seen: Observed) -> None:
    assert not [step for step in c.steps(seen) if step.startswith(("replace", "switch"))]


PREFER_3: dict[str, Any] = {"failover": {"preferredMaster": 3}}
PREFER_1: dict[str, Any] = {"failover": {"preferredMaster": 1}}
BARRED_3 = c.settled(failover={"preferredMaster": 1, "priorities": [{"brokerId": 3, "priority": 0}]})
MASTER_2 = c.seen_with(c.settled(**PREFER_1), b.record(master=2))
PREFERRED_LEAVES: list[tuple[str, Observed, list[str]]] = [
    ("it hands over first", asked_for("Rebuild", 1, c.settled(**PREFER_1)), ["switch orders-1"]),
    ("then it stops: Rebuild", asked_for("Rebuild", 1, MASTER_2), ["stop orders-1"]),
    ("then it stops: Decommission", asked_for("Decommission", 1, MASTER_2), ["stop orders-1"]),
    ("another one leaves", asked_for("Rebuild", 3, MASTER_2), ["switch orders-2 to 1"]),
    # It stays, so it is as good a master as before.
    ("its leave is refused", asked_for("Decommission", 1, c.seen_with(BARRED_3, b.record(master=2))), ["switch orders-2 to 1"]),
    ("a lower number of replicas spares it", c.wishing(c.settled(), replicas=2, **PREFER_3), ["switch orders-1 to 3"]),
]  # fmt: skip


@pytest.mark.parametrize(("seen", "expected"), c.table(PREFERRED_LEAVES))
def test_mastership_does_not_go_back_to_a_preferred_member_that_leaves(seen: Observed, expected: list[str]) -> None:
    """It handed over, and as soon as it was in sync again it was made master for being preferred; so on to and fro."""
    assert c.steps_after_marking(seen) == expected


def test_no_member_leaves_below_the_floor() -> None:
    below = c.running(c.seen_with(c.settled(), b.record(in_sync=(1, 3))), "Decommission", brokerId=3)
    assert c.steps_after_marking(below) == []
    refused = c.course(below).leaving
    assert refused is not None
    assert (refused.verb.value, refused.reason.value) == ("refuse", "ScaleInRefused")
    assert "orders-3 can't leave: Beside master 1, 1 live members in sync are needed" in refused.why
    gone = c.course(LAST_SEATS).leaving
    assert gone is not None
    assert gone.reason.value == "ScaleInRefused"


def of_wiped(*, live: tuple[int, ...] = (2, 3, 4), eligible: tuple[int, ...] = (), **record: Any) -> Observed:
    kept = replace(b.wiped(**record), eligible=frozenset(eligible))
    return c.seen_with(c.settled(), kept, live=live, writable=kept.master_broker_id is not None)


def without_a_volume() -> Observed:
    """Member 3 lost its claim; member 4 stands in for it."""
    seen, record = c.settled(), b.record(replicas=4, in_sync=(1, 2, 4))
    return replace(
        c.seen_with(seen, record, live=(1, 2, 4)),
        pods={**b.without(seen.pods, "orders-3"), "orders-4": b.running_pod(seen.group, 4, role="slave")},
        claims=b.without(seen.claims, "orders-3"),
    )


def asked(
    *, in_sync: tuple[int, ...] = (1, 2, 3), master: int | None = 2, live: tuple[int, ...] = (1, 2, 3)
) -> Observed:
    """A sidecar in pod orders-1 took an id (1013); the broker there is still 1."""
    fourth = Replica(4, "code-4", "10.1.0.1:10911", reserved_for="orders-1")
    before = b.record(master=master, in_sync=in_sync)
    kept = replace(before, next_broker_id=5, replicas={**before.replicas, 4: fourth})
    return c.seen_with(c.settled(), kept, live=live)


DEAD_IDS: list[tuple[str, Observed, list[str]]] = [
    ("a superseded id goes when its successor is in sync", of_wiped(in_sync=(2, 3, 4)), ["forget orders-1"]),
    ("and not before", of_wiped(in_sync=(2, 3)), []),
    ("also if it still stands in the set", of_wiped(in_sync=(1, 2, 3, 4)), ["forget orders-1"]),
    ("never the master", of_wiped(in_sync=(1, 2, 3, 4), master=1), []),
    ("a lost volume goes when the group is whole again", without_a_volume(), ["forget orders-3"]),
    ("and not before", c.not_ready(without_a_volume(), "orders-4"), []),
    # No eligible member is elected while an id is unheard, and this id has no disk that could be heard.
    ("without a seat it keeps no election waiting", of_wiped(in_sync=(), master=None, eligible=(2, 3)), ["forget orders-1"]),
    ("with a seat it may be needed", of_wiped(in_sync=(), master=None, eligible=(1, 2)), []),
    ("taken in vain: the broker of its pod is in sync", asked(), ["forget orders-1"]),
    ("taken in vain: that broker is not in sync", asked(in_sync=(2, 3)), []),
    ("taken in vain: that broker is not heard", asked(live=(2, 3)), []),
    ("an operation names it: that broker is heard", asked_for("Decommission", 4, asked(in_sync=(2, 3))), ["forget orders-1"]),
    ("an operation names it: and it is not heard", asked_for("Decommission", 4, asked(in_sync=(2, 3), live=(2, 3))), []),
]  # fmt: skip


@pytest.mark.parametrize(("seen", "expected"), c.table(DEAD_IDS))
def test_dead_ids(seen: Observed, expected: list[str]) -> None:
    assert c.steps(seen) == expected


def test_an_id_that_was_taken_in_vain_does_not_wedge_the_group() -> None:
    """The pod was believed to be member 4, which is never in sync; and a Decommission of 4 found no member and hung."""
    seen = asked(master=1, live=(1, 2, 3, 4))
    assert set(c.course(seen).standings) == {1, 2, 3}
    assert shown(seen, "Ready") == ("True", "AllMembersInSync")
    assert shown(seen, "Available") == ("True", "MasterServesWrites")
    assert [step.member.broker_id for step in c.course(asked()).steps if step.member is not None] == [4]


def reserved_after(record: BrokerGroupRecord | None, *, is_leaving: bool = False) -> int:
    """Return how many ids a pass reserves for three pods that run."""
    seen = replace(c.settled(), record=record, snapshot=None)
    return len(membership(c.going(seen, "orders-3") if is_leaving else seen).to_reserve)


def test_no_id_is_reserved_for_a_pod_that_runs_under_an_unknown_one() -> None:
    adopted = Replica(2, "10.0.0.2:10911;adopted", "10.0.0.2:10911", reserved_for="orders-2", registered=True)
    assert reserved_after(None) == 0
    assert reserved_after(BrokerGroupRecord("c", "b", next_broker_id=3, replicas={2: adopted})) == 0
    assert reserved_after(None, is_leaving=True) == 0, "its disk stays, and the ids of all three come first"
    cleaned = replace(b.record(in_sync=(1, 2)), replicas=b.record(replicas=2).replicas)
    assert reserved_after(cleaned) == 1, "its id was cleaned on purpose"


ASLEEP: dict[str, Any] = {"maintenance": {"hibernated": True}}
QUIET = "give orders-1 [('minInSyncReplicas', '99')]"


def quiet(seen: Observed) -> Observed:
    """The master has been set to acknowledge nothing, and its pod's annotation has that."""

    def note(pod: dict[str, Any]) -> None:
        values = json.loads(pod["metadata"]["annotations"][names.ANNOTATION_HOT_CONFIG]) | {"minInSyncReplicas": "99"}
        pod["metadata"]["annotations"][names.ANNOTATION_HOT_CONFIG] = json.dumps(values)

    return c.with_pods(seen, note, "orders-1")


FALLING_ASLEEP = quiet(c.settled(**ASLEEP))
SLEEP: list[tuple[str, Observed, list[str]]] = [
    ("the master is quiet before any pod stops", c.settled(**ASLEEP), [QUIET]),
    ("it stops before its slaves, so that the set does not shrink", FALLING_ASLEEP, ["delete Pod orders-1"]),
    ("its end is waited for", c.going(FALLING_ASLEEP, "orders-1"), []),
    ("then the slaves", c.live(c.without_pods(FALLING_ASLEEP, "orders-1"), 2, 3), ["delete Pod orders-2", "delete Pod orders-3"]),
    ("a silent master is not waited for", c.live(c.settled(**ASLEEP), 2, 3), ["delete Pod orders-1"]),
    ("nor one that is not ready", c.not_ready(c.settled(**ASLEEP), "orders-1"), ["delete Pod orders-1"]),
    ("taken back half way: the master acknowledges again", quiet(c.settled()), ["give orders-1 [('minInSyncReplicas', '2')]"]),
    ("paused too", c.settled(maintenance={"hibernated": True, "paused": True}), []),
]  # fmt: skip


@pytest.mark.parametrize(("seen", "expected"), c.table(SLEEP))
def test_sleep(seen: Observed, expected: list[str]) -> None:
    assert lines_of(run(seen)) == expected


def test_asleep_nothing_is_made_and_everything_is_kept() -> None:
    seen = c.live(c.without_pods(c.settled(**ASLEEP), "orders-1", "orders-2", "orders-3"))
    assert lines_of(run(seen)) == []
    assert condition(seen, "Hibernated") == ("True", "NothingRuns")
    assert condition(seen, "Reconciling") == ("False", "Stable")
    assert condition(seen, "Stalled") == ("False", "NothingStalled")
    lost = without_claim(seen, "orders-2")
    assert "reserve" not in " ".join(lines_of(run(lost))), "a lost volume is made up for at wake"


def test_a_group_that_is_paused_before_it_fell_asleep_is_not_asleep() -> None:
    """Its brokers run on, and nothing stops them: an SLA report must count the time, and alerts must not be silent."""
    paused: dict[str, Any] = {"maintenance": {"hibernated": True, "paused": True}}
    assert (voters_wanted(c.settled(**ASLEEP)), lacking_members(c.settled(**ASLEEP))) == (0, 0)
    runs_on = c.live(c.not_ready(c.settled(**paused), "orders-2"), 1, 2, 3)
    assert (voters_wanted(runs_on), lacking_members(runs_on)) == (3, 1)
    stopped = c.live(c.without_pods(c.settled(**paused), "orders-1", "orders-2", "orders-3"))
    assert (voters_wanted(stopped), lacking_members(stopped)) == (0, 0)
    assert voters_wanted(c.settled()) == 3


def test_it_wakes_all_at_once_and_the_last_master_first() -> None:
    seen = c.live(c.without_pods(c.settled(), "orders-1", "orders-2", "orders-3"))
    seen = c.live(c.seen_with(seen, b.record(master=2)))
    assert lines_of(run(seen)) == [f"apply Pod orders-{number}" for number in (2, 1, 3)]


def deleting(**spec: Any) -> Observed:
    return c.with_metadata(b.settled(**spec), deletionTimestamp=b.NOW)


def bare(seen: Observed) -> Observed:
    """Nothing of the group is left but its claims and its record."""
    return b.changed(seen, pods={}, services={}, disruption_budgets={}, config_maps={})


ALL_PODS = ["delete Pod orders-1", "delete Pod orders-2", "delete Pod orders-3"]
UNREADABLE = "spec.configFrom names ConfigMap site, which does not exist"
# The pod of a slave whose node is lost never ends; the master went on acknowledging messages of a deleted group.
BESIDE_A_LOST_NODE = c.going(c.without_pods(replace(deleting(), now=b.NOW), "orders-2"), "orders-3", since=c.EARLIER)
# Nothing is acknowledged while they stop, so each disk that is kept holds all that was, and the set does not shrink. One after the
# other, a group of Java brokers took 36 s to go.
DELETION: list[tuple[str, Observed, list[str]]] = [
    ("the master is quiet, then all pods stop at once", deleting(), [QUIET, *ALL_PODS]),
    ("also if the spec cannot be rendered", b.changed(deleting(), config_problem=UNREADABLE), [QUIET, *ALL_PODS]),
    ("all pods are waited for", c.going(deleting(), "orders-1", "orders-2", "orders-3"), []),
    ("one stops already", c.going(deleting(), "orders-2"), [QUIET, "delete Pod orders-1", "delete Pod orders-3"]),
    ("no master", b.changed(deleting(), record=b.record(master=None)), ALL_PODS),
    ("a dead master", c.live(deleting(), 2, 3), ALL_PODS),
    ("a master that is not ready", c.not_ready(deleting(), "orders-1"), ALL_PODS),
    ("nothing is known of roles", b.changed(deleting(), snapshot=None), ALL_PODS),
    ("the node of a slave is lost", BESIDE_A_LOST_NODE, [QUIET, "delete Pod orders-1"]),
    ("without pods the rest goes", b.changed(deleting(), pods={}), [
        "delete Service orders-master", "delete Service orders-members", "delete Service orders-slaves",
        "delete PodDisruptionBudget orders", "delete PodDisruptionBudget orders.master", "delete ConfigMap orders-broker",
    ]),
    ("claims and the record stay, and the group is released", bare(deleting()), ["finalizers BrokerGroup orders []"]),
    ("without our finalizer it is left to go", c.with_metadata(deleting(), finalizers=["example.com/other"]), []),
]  # fmt: skip


@pytest.mark.parametrize(("seen", "expected"), c.table(DELETION))
def test_deletion(seen: Observed, expected: list[str]) -> None:
    assert lines_of(run(seen)) == expected


def fenced_pod(state: dict[str, Any], *, deleted: bool = True) -> Observed:
    def fence(pod: dict[str, Any]) -> None:
        pod["metadata"]["finalizers"] = ["example.com/other", names.FINALIZER_FENCE]
        if deleted:
            pod["metadata"]["deletionTimestamp"] = b.NOW
        pod["status"]["containerStatuses"] = [{"name": "broker", "state": state}] if state else []

    return c.with_pods(b.settled(), fence, "orders-1")


ENDED = {"terminated": {"exitCode": 137}}
FENCED: list[tuple[str, Observed, bool]] = [
    ("terminated", fenced_pod(ENDED), True),
    ("running", fenced_pod({"running": {}}), False),
    ("waiting", fenced_pod({"waiting": {}}), False),
    ("not reported yet", fenced_pod({}), False),
    ("not deleted: it will restart", fenced_pod(ENDED, deleted=False), False),
]


@pytest.mark.parametrize(("seen", "lifted"), c.table(FENCED))
def test_a_fence_is_lifted_only_when_nothing_of_the_pod_can_run_again(seen: Observed, lifted: bool) -> None:
    lines = [line for line in lines_of(run(seen)) if line.startswith("finalizers")]
    assert lines == (["finalizers Pod orders-1 ['example.com/other']"] if lifted else [])


@pytest.mark.parametrize("change", ["label", "copy"])
def test_deletion_leaves_what_others_made(change: str) -> None:
    """A Service or ConfigMap that a person made, with the group's label to find its pods by, went with the group."""
    seen = b.changed(deleting(), pods={})
    for field, name in (("services", "orders-members"), ("config_maps", "orders-broker")):
        stranger = copy.deepcopy(getattr(seen, field)[name])
        stranger["metadata"]["name"] = "of-a-person"
        if change == "label":
            stranger["metadata"].pop("ownerReferences", None)
            stranger["metadata"]["labels"] = {names.LABEL_BROKER_GROUP: "orders"}
        seen = b.changed(seen, **{field: {**getattr(seen, field), "of-a-person": stranger}})
    assert not [line for line in lines_of(run(seen)) if "of-a-person" in line]
    kept = {field: {"of-a-person": getattr(seen, field)["of-a-person"]} for field in ("services", "config_maps")}
    only = b.changed(seen, **kept, disruption_budgets={})
    assert lines_of(run(only)) == ["finalizers BrokerGroup orders []"]


def test_deleted_claims_take_the_record_with_them_last() -> None:
    storage = {"retention": {"whenDeleted": "Delete"}}
    seen = bare(deleting(storage=storage))
    assert lines_of(run(seen)) == [f"delete PersistentVolumeClaim orders-{n}" for n in (1, 2, 3)]
    # A user's copy with our labels is no claim of a member.
    seen = b.changed(seen, claims={"orders-1-backup": seen.claims["orders-1"]})
    assert lines_of(run(seen)) == ["delete BrokerGroupState orders"]
    assert lines_of(run(b.changed(seen, state_object=None))) == ["finalizers BrokerGroup orders []"]
