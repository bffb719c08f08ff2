"""Members that leave: which one, in which order, when it is refused; dead ids; and a group that hibernates or is deleted."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from brokergroup_operator.api import names
from brokergroup_operator.kube.resources import PODS
from brokergroup_operator.reconcile import plan as plans
from brokergroup_operator.reconcile.see.members import membership
from controller_core.model import BrokerGroupRecord, Replica
from tests.reconcile import builders as b
from tests.reconcile import cases as c
from tests.reconcile.passes import condition, lines_of, run, shown

if TYPE_CHECKING:
    from collections.abc import Callable

    from brokergroup_operator.reconcile.see.observed import Observed


def four(wanted: int = 3, **spec: object) -> Observed:
    """Four members, of which `wanted` are to stay."""
    return c.wishing(c.settled(replicas=4, **spec), replicas=wanted, **spec)


STOPPED = c.live(c.without_pods(four(), "orders-4"), 1, 2, 3)
LAST_SEATS = c.live(c.without_pods(c.seen_with(four(), b.record(replicas=4, in_sync=(1, 4))), "orders-4"), 1, 2, 3)
NEVER_REGISTERED = c.live(
    c.without_pods(
        replace(
            four(),
            record=replace(
                b.record(), next_broker_id=5, replicas={**b.record().replicas, 4: b.reserved(4).replicas[4]}
            ),
        ),
        "orders-4",
    ),
    1, 2, 3,
)  # fmt: skip
CASES: list[tuple[str, Observed, list[str]]] = [
    ("the highest id", four(), ["stop orders-4"]),
    ("not the master", c.seen_with(four(), b.record(replicas=4, master=4)), ["stop orders-3"]),
    (
        "a member outside the set first",
        c.seen_with(four(), b.record(replicas=4, in_sync=(1, 3, 4))),
        ["stop orders-2"],
    ),
    ("the stopped member stays the chosen one", c.going(four(), "orders-3"), []),
    ("forgotten once it is gone", STOPPED, ["forget orders-4"]),
    ("one after the other", four(wanted=2), ["stop orders-4"]),
    (
        "a member without a seat may go although the others are few",
        c.seen_with(four(), b.record(replicas=4, in_sync=(1, 4))),
        ["stop orders-3"],
    ),
    (
        "also at the floor",
        c.seen_with(c.wishing(c.settled(), replicas=2, durability="Strict"), b.record(in_sync=(1, 3))),
        ["stop orders-2"],
    ),
    ("without a master no member leaves", c.seen_with(four(), b.record(replicas=4, master=None)), []),
    ("an id that never registered leaves at once", NEVER_REGISTERED, ["forget orders-4"]),
    ("gone, but its seat is needed: it comes back", LAST_SEATS, []),
]


@pytest.mark.parametrize(("seen", "expected"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_next_step(seen: Observed, expected: list[str]) -> None:
    assert c.steps_after_marking(seen) == expected


def test_the_choice_is_noted_before_anything_is_done() -> None:
    assert c.steps(four()) == ["mark orders-4"]
    assert c.steps(c.marked(four(), "orders-4")) == ["stop orders-4"]


def test_the_noted_choice_stands() -> None:
    assert c.steps(c.marked(four(), "orders-2")) == ["stop orders-2"]


def test_an_operator_that_has_just_started_waits_and_makes_no_pod_again() -> None:
    cold = c.live(c.marked(c.without_pods(four(), "orders-4"), "orders-4"), writable=False)
    assert c.steps(cold) == []
    assert not c.course(cold).runs(4)


def test_a_leaving_member_is_not_made_again_and_one_that_must_stay_is() -> None:
    assert not c.course(STOPPED).runs(4)
    assert c.course(STOPPED).runs(3)
    assert c.course(LAST_SEATS).runs(4)
    refused = c.course(LAST_SEATS).leaving
    assert refused is not None
    assert refused.reason.value == "ScaleInRefused"


def test_three_to_two_under_strict_needs_both_that_stay() -> None:
    shrink = c.wishing(c.settled(), replicas=2, durability="Strict")
    assert c.steps_after_marking(shrink) == ["stop orders-3"]
    assert c.steps_after_marking(c.not_ready(c.live(shrink, 1, 3), "orders-2")) == ["stop orders-2"], (
        "a dead member leaves first"
    )


def test_two_to_one_keeps_the_master() -> None:
    assert c.steps_after_marking(c.wishing(c.settled(replicas=2), replicas=1)) == ["stop orders-2"]


def test_decommission_takes_the_one_named_after_a_switchover() -> None:
    assert c.steps_after_marking(c.running(c.settled(), "Decommission", brokerId=1)) == ["switch orders-1"]
    assert c.steps_after_marking(c.running(c.settled(), "Decommission", brokerId=2)) == ["stop orders-2"]
    stopped = c.live(c.without_pods(c.settled(), "orders-2"), 1, 3)
    assert c.steps_after_marking(c.running(stopped, "Decommission", brokerId=2)) == ["forget orders-2"]


def test_no_member_leaves_below_the_floor() -> None:
    seen = c.running(c.seen_with(c.settled(), b.record(in_sync=(1, 3))), "Decommission", brokerId=3)
    refused = c.course(seen).leaving
    assert c.steps_after_marking(seen) == []
    assert refused is not None
    assert (refused.verb.value, refused.reason.value) == ("refuse", "ScaleInRefused")
    assert "orders-3 can't leave: Beside master 1, 1 live members in sync are needed" in refused.why


def test_the_only_member_can_not_be_decommissioned() -> None:
    seen = c.running(c.settled(replicas=1), "Decommission", brokerId=1)
    assert c.steps_after_marking(seen) == []
    assert c.course(seen).runs(1)


def test_a_rebuild_gives_up_the_volume_and_only_then_the_id() -> None:
    seen = c.running(c.settled(), "Rebuild", brokerId=3)
    assert c.steps_after_marking(seen) == ["stop orders-3"]
    assert c.steps_after_marking(c.live(c.going(seen, "orders-3"), 1, 2)) == []
    stopped = c.live(c.without_pods(seen, "orders-3"), 1, 2)
    assert c.steps_after_marking(stopped) == ["drop volume orders-3"]
    claim = stopped.claims["orders-3"]
    leaving = {**stopped.claims, "orders-3": claim | {"metadata": claim["metadata"] | {"deletionTimestamp": b.NOW}}}
    assert c.steps_after_marking(replace(stopped, claims=leaving)) == []
    # Then it is lost like any other volume: a new id is reserved, and this one is cleaned when that is in sync.
    gone = replace(stopped, claims=b.without(stopped.claims, "orders-3"))
    assert c.course(gone).leaver is None
    assert c.steps_after_marking(gone) == []


def test_the_master_is_rebuilt_after_a_switchover() -> None:
    assert c.steps_after_marking(c.running(c.settled(), "Rebuild", brokerId=1)) == ["switch orders-1"]


def test_a_member_on_a_lost_node_is_rebuilt_without_waiting_for_its_pod() -> None:
    seen = c.live(c.going(c.running(c.settled(), "Rebuild", brokerId=3), "orders-3", since=c.EARLIER), 1, 2)
    assert c.steps_after_marking(seen) == ["drop volume orders-3"]
    claim = seen.claims["orders-3"]
    held = {**seen.claims, "orders-3": claim | {"metadata": claim["metadata"] | {"deletionTimestamp": b.NOW}}}
    assert c.steps_after_marking(replace(seen, claims=held)) == ["forget orders-3"]


def test_an_operation_for_an_id_that_is_gone_does_nothing() -> None:
    assert c.steps_after_marking(c.running(c.settled(), "Decommission", brokerId=9)) == []


def wiped(*, in_sync: tuple[int, ...], master: int | None = 2) -> BrokerGroupRecord:
    """Pod orders-1 came back on an empty disk: id 4 is its new one."""
    before = b.record(master=master)
    fourth = Replica(4, "code-4", "10.1.0.1:10911", reserved_for="orders-1", registered=True)
    return replace(before, next_broker_id=5, replicas={**before.replicas, 4: fourth}, sync_state_set=frozenset(in_sync))


def test_a_superseded_id_goes_when_its_successor_is_in_sync() -> None:
    assert c.steps(c.seen_with(c.settled(), wiped(in_sync=(2, 3, 4)), live=(2, 3, 4))) == ["forget orders-1"]
    assert c.steps(c.seen_with(c.settled(), wiped(in_sync=(2, 3)), live=(2, 3, 4))) == []


def test_a_superseded_id_that_still_stands_in_the_set_goes_too() -> None:
    assert c.steps(c.seen_with(c.settled(), wiped(in_sync=(1, 2, 3, 4)), live=(2, 3, 4))) == ["forget orders-1"]


def test_never_the_master() -> None:
    assert c.steps(c.seen_with(c.settled(), wiped(in_sync=(1, 2, 3, 4), master=1), live=(2, 3, 4))) == []


def test_a_lost_volume_goes_when_the_group_is_whole_again() -> None:
    seen = c.settled()
    record = b.record(replicas=4)
    lost = replace(
        c.seen_with(seen, replace(record, sync_state_set=frozenset({1, 2, 4})), live=(1, 2, 4)),
        pods={**b.without(seen.pods, "orders-3"), "orders-4": b.running_pod(seen.group, 4, role="slave")},
        claims=b.without(seen.claims, "orders-3"),
    )
    assert c.steps(lost) == ["forget orders-3"]
    assert c.steps(c.not_ready(lost, "orders-4")) == []


def test_an_id_without_a_seat_does_not_keep_an_election_waiting() -> None:
    """No eligible member is elected while an id is unheard, and this id has no disk that could be heard."""
    record = replace(wiped(in_sync=(), master=None), eligible=frozenset({2, 3}))
    assert c.steps(c.seen_with(c.settled(), record, live=(2, 3, 4), writable=False)) == ["forget orders-1"]


def test_an_id_with_a_seat_stays_while_it_may_be_needed() -> None:
    record = replace(wiped(in_sync=(), master=None), eligible=frozenset({1, 2}))
    assert c.steps(c.seen_with(c.settled(), record, live=(2, 3, 4), writable=False)) == []


def asked(*, in_sync: tuple[int, ...] = (1, 2, 3), master: int | None = 2) -> BrokerGroupRecord:
    """A sidecar in pod orders-1 took an id (1013); the broker there is still 1."""
    fourth = Replica(4, "code-4", "10.1.0.1:10911", reserved_for="orders-1")
    before = b.record(master=master)
    return replace(before, next_broker_id=5, replicas={**before.replicas, 4: fourth}, sync_state_set=frozenset(in_sync))


def test_an_id_that_was_taken_in_vain_does_not_wedge_the_group() -> None:
    """The pod was believed to be member 4, which is never in sync; and a Decommission of 4 found no member and hung."""
    seen = c.seen_with(c.settled(), asked(master=1))
    assert set(c.course(seen).standings) == {1, 2, 3}
    ready, master = (shown(seen, kind) for kind in ("Ready", "Available"))
    assert (ready, master) == (("True", "AllMembersInSync"), ("True", "MasterServesWrites"))


def test_an_id_that_was_taken_in_vain_goes_when_the_broker_of_its_pod_is_in_sync_again() -> None:
    assert c.steps(c.seen_with(c.settled(), asked(), live=(1, 2, 3))) == ["forget orders-1"]
    assert c.steps(c.seen_with(c.settled(), asked(in_sync=(2, 3)), live=(1, 2, 3))) == []
    assert c.steps(c.seen_with(c.settled(), asked(), live=(2, 3))) == []


def test_an_operation_that_names_it_waits_only_until_the_broker_of_its_pod_is_heard() -> None:
    seen = c.running(c.seen_with(c.settled(), asked(in_sync=(2, 3)), live=(1, 2, 3)), "Decommission", brokerId=4)
    assert c.steps(seen) == ["forget orders-1"]
    assert c.steps(c.seen_with(seen, asked(in_sync=(2, 3)), live=(2, 3))) == []


def test_the_right_id_is_forgotten() -> None:
    seen = c.seen_with(c.settled(), asked(), live=(1, 2, 3))
    assert [step.member.broker_id for step in c.course(seen).steps if step.member is not None] == [4]


ADOPTED = Replica(2, "10.0.0.2:10911;adopted", "10.0.0.2:10911", reserved_for="orders-2", registered=True)


def _pods() -> tuple[str, ...]:
    return tuple(sorted(b.settled().pods))


def _after(record: BrokerGroupRecord | None) -> list[str]:
    seen = replace(b.settled(), record=record, snapshot=None)
    return [member.pod for member in membership(seen).to_reserve]


def test_no_id_is_reserved_while_all_pods_run_under_unknown_ones() -> None:
    assert len(_pods()) == 3
    assert _after(None) == []


def test_no_id_is_reserved_while_some_are_adopted() -> None:
    group = _pods()[0].rpartition("-")[0]
    adopted = replace(ADOPTED, reserved_for=f"{group}-2")
    assert _after(BrokerGroupRecord("c", "b", next_broker_id=3, replicas={2: adopted})) == []


def test_a_pod_whose_id_was_cleaned_on_purpose_is_replaced() -> None:
    before = b.settled().record
    assert before is not None
    kept = {broker_id: replica for broker_id, replica in before.replicas.items() if broker_id != 3}
    assert len(_after(replace(before, replicas=kept, sync_state_set=frozenset({1, 2})))) == 1


@pytest.mark.parametrize("leaving", [True, False])
def test_a_pod_that_is_leaving_is_not_waited_for(leaving: bool) -> None:
    seen = b.settled()
    pods = dict(seen.pods)
    name = _pods()[-1]
    if leaving:
        pods[name] = pods[name] | {"metadata": pods[name]["metadata"] | {"deletionTimestamp": "2026-01-01T00:00:00Z"}}
    missing = membership(replace(seen, record=None, snapshot=None, pods=pods)).to_reserve
    assert len(missing) == int(leaving)


ASLEEP: dict[str, Any] = {"maintenance": {"hibernated": True}}


def quiet(seen: Observed) -> Observed:
    """The master has been set to acknowledge nothing, and its pod's annotation has that."""

    def note(pod: dict[str, Any]) -> None:
        values = json.loads(pod["metadata"]["annotations"][names.ANNOTATION_HOT_CONFIG]) | {"minInSyncReplicas": "99"}
        pod["metadata"]["annotations"][names.ANNOTATION_HOT_CONFIG] = json.dumps(values)

    return c.with_pods(seen, note, "orders-1")


def test_the_master_is_quiet_before_any_pod_stops() -> None:
    assert lines_of(run(c.settled(**ASLEEP))) == ["give orders-1 [('minInSyncReplicas', '99')]"]


def test_then_it_stops_before_its_slaves_so_that_the_set_does_not_shrink() -> None:
    seen = quiet(c.settled(**ASLEEP))
    assert lines_of(run(seen)) == ["delete Pod orders-1"]
    assert lines_of(run(c.going(seen, "orders-1"))) == []
    stopped = c.live(c.without_pods(seen, "orders-1"), 2, 3)
    assert lines_of(run(stopped)) == ["delete Pod orders-2", "delete Pod orders-3"]


def test_a_master_that_does_not_answer_is_not_waited_for() -> None:
    assert lines_of(run(c.live(c.settled(**ASLEEP), 2, 3))) == ["delete Pod orders-1"]
    assert lines_of(run(c.not_ready(c.settled(**ASLEEP), "orders-1"))) == ["delete Pod orders-1"]


def test_asleep_nothing_is_made_and_everything_is_kept() -> None:
    seen = c.live(c.without_pods(c.settled(**ASLEEP), "orders-1", "orders-2", "orders-3"))
    assert lines_of(run(seen)) == []
    assert condition(seen, "Hibernated") == ("True", "NothingRuns")
    assert condition(seen, "Reconciling") == ("False", "Stable")
    assert condition(seen, "Stalled") == ("False", "NothingStalled")
    lost = replace(seen, claims=b.without(seen.claims, "orders-2"))
    assert not [line for line in lines_of(run(lost)) if line.startswith("reserve")], (
        "a lost volume is made up for at wake"
    )


def test_it_wakes_all_at_once_and_the_last_master_first() -> None:
    seen = c.live(c.without_pods(c.settled(), "orders-1", "orders-2", "orders-3"))
    seen = c.live(c.seen_with(seen, b.record(master=2)))
    made = [
        action.object["metadata"]["name"]
        for action in run(seen).actions
        if isinstance(action, plans.ApplyObject) and action.resource == PODS
    ]
    assert made == ["orders-2", "orders-1", "orders-3"]


def test_hibernation_taken_back_half_way_leaves_a_master_that_acknowledges() -> None:
    assert lines_of(run(quiet(c.settled()))) == ["give orders-1 [('minInSyncReplicas', '2')]"]


def test_paused_and_hibernated_stops_no_pod() -> None:
    assert lines_of(run(c.settled(maintenance={"hibernated": True, "paused": True}))) == []


def fenced_pod(state: dict[str, Any], *, deleted: bool = True) -> Observed:
    def fence(pod: dict[str, Any]) -> None:
        pod["metadata"]["finalizers"] = ["example.com/other", names.FINALIZER_FENCE]
        if deleted:
            pod["metadata"]["deletionTimestamp"] = b.NOW
        pod["status"]["containerStatuses"] = [{"name": "broker", "state": state}] if state else []

    return c.with_pods(b.settled(), fence, "orders-1")


@pytest.mark.parametrize(
    ("seen", "lifted"),
    [
        (fenced_pod({"terminated": {"exitCode": 137}}), True),
        (fenced_pod({"running": {}}), False),
        (fenced_pod({"waiting": {}}), False),
        (fenced_pod({}), False),
        (fenced_pod({"terminated": {"exitCode": 137}}, deleted=False), False),
    ],
    ids=["terminated", "running", "waiting", "not reported yet", "not deleted: it will restart"],
)
def test_a_fence_is_lifted_only_when_nothing_of_the_pod_can_run_again(seen: Observed, lifted: bool) -> None:
    lines = [line for line in lines_of(run(seen)) if line.startswith("finalizers")]

    assert lines == (["finalizers Pod orders-1 ['example.com/other']"] if lifted else [])


def deleting(**spec: Any) -> Observed:
    seen = b.settled(**spec)
    going = copy.deepcopy(seen.group_object)
    going["metadata"]["deletionTimestamp"] = b.NOW
    return b.changed(seen, group_object=going)


ALL_PODS = ["delete Pod orders-1", "delete Pod orders-2", "delete Pod orders-3"]


def test_deletion_makes_the_master_quiet_and_then_stops_all_pods_at_once() -> None:
    """Nothing is acknowledged while they stop, so each disk that is kept holds all that was, and the set does not shrink.

    One after the other, a group of Java brokers took 36 s to go.
    """
    seen = deleting()
    assert lines_of(run(seen)) == ["give orders-1 [('minInSyncReplicas', '99')]", *ALL_PODS]
    unreadable = b.changed(seen, config_problem="spec.configFrom names ConfigMap site, which does not exist")
    assert lines_of(run(unreadable)) == lines_of(run(seen)), "nor does a spec that cannot be rendered keep it"
    going = c.going(seen, "orders-1", "orders-2", "orders-3")
    assert lines_of(run(going)) == []
    assert lines_of(run(c.going(seen, "orders-2"))) == [
        "give orders-1 [('minInSyncReplicas', '99')]",
        "delete Pod orders-1",
        "delete Pod orders-3",
    ]


@pytest.mark.parametrize(
    "seen",
    [
        pytest.param(lambda: b.changed(deleting(), record=b.record(master=None)), id="no master"),
        pytest.param(lambda: c.live(deleting(), 2, 3), id="dead master"),
        pytest.param(lambda: c.not_ready(deleting(), "orders-1"), id="master not ready"),
        pytest.param(lambda: b.changed(deleting(), snapshot=None), id="nothing known of roles"),
    ],
)
def test_deletion_waits_for_no_master_that_does_not_answer(seen: Callable[[], Observed]) -> None:
    assert lines_of(run(seen())) == ALL_PODS


def test_deletion_waits_for_pods_and_then_takes_the_rest() -> None:
    seen = deleting()
    assert lines_of(run(c.going(seen, *seen.pods))) == []
    assert lines_of(run(b.changed(seen, pods={}))) == [
        "delete Service orders-master",
        "delete Service orders-members",
        "delete Service orders-slaves",
        "delete PodDisruptionBudget orders",
        "delete PodDisruptionBudget orders.master",
        "delete ConfigMap orders-broker",
    ]


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
    only = b.changed(
        seen,
        services={"of-a-person": seen.services["of-a-person"]},
        config_maps={"of-a-person": seen.config_maps["of-a-person"]},
        disruption_budgets={},
    )
    assert lines_of(run(only)) == ["finalizers BrokerGroup orders []"]


def test_deletion_does_not_leave_the_master_serving_behind_a_slave_whose_node_is_lost() -> None:
    """Its pod never ends; the master went on acknowledging messages of a group that its owner had deleted."""
    seen = c.going(c.without_pods(replace(deleting(), now=b.NOW), "orders-2"), "orders-3", since=c.EARLIER)
    assert lines_of(run(seen))[-1] == "delete Pod orders-1"


def test_retained_claims_keep_the_record_and_the_group_is_released() -> None:
    seen = b.changed(deleting(), pods={}, services={}, disruption_budgets={}, config_maps={})

    assert lines_of(run(seen)) == ["finalizers BrokerGroup orders []"]


def test_deleted_claims_take_the_record_with_them_last() -> None:
    storage = {"retention": {"whenDeleted": "Delete"}}
    seen = b.changed(deleting(storage=storage), pods={}, services={}, disruption_budgets={}, config_maps={})

    assert lines_of(run(seen)) == [f"delete PersistentVolumeClaim orders-{n}" for n in (1, 2, 3)]
    # A user's copy with our labels is no claim of a member.
    seen = b.changed(seen, claims={"orders-1-backup": seen.claims["orders-1"]})
    assert lines_of(run(seen)) == ["delete BrokerGroupState orders"]
    assert lines_of(run(b.changed(seen, state_object=None))) == ["finalizers BrokerGroup orders []"]


def test_a_group_without_our_finalizer_is_left_to_go() -> None:
    seen = deleting()
    released = copy.deepcopy(seen.group_object)
    released["metadata"]["finalizers"] = ["example.com/other"]

    assert lines_of(run(b.changed(seen, group_object=released))) == []
