"""Each type: its refusals, its start, and its end by the record and the pods. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from brokergroup_operator.api import names
from brokergroup_operator.api.times import rfc3339
from brokergroup_operator.observe.timeline import FailoverTimeline, Kind, Step, Trigger
from brokergroup_operator.observe.timeline import Outcome as TimelineOutcome
from brokergroup_operator.reconcile.operations.evaluate import PROCEDURES
from brokergroup_operator.reconcile.operations.plan import (
    NOTHING_ASKED,
    Done,
    ElectUnclean,
    Fail,
    Figures,
    GoOn,
    KillPod,
    Outcome,
    Reject,
    Start,
    SwitchMaster,
    Verdict,
    Wait,
)
from brokergroup_operator.reconcile.operations.procedures.premises import Case
from tests.operations.world import KEY, LONG_AGO, NOW, group, operation, record, running, scene, thing


def begun(
    kind: str, *, spec: dict[str, Any] | None = None, section: dict[str, Any] | None = None, **changes: Any
) -> Verdict:
    asked = operation(kind, spec=spec, **(section or {}))
    return PROCEDURES[asked.asked.spec.type].begin(Case(seen=scene(asked, **changes), operation=asked))


def judged(item: Any, outcome: Outcome = NOTHING_ASKED, **changes: Any) -> Verdict:
    case = Case(seen=scene(item, **changes), operation=item, outcome=outcome)
    return PROCEDURES[item.asked.spec.type].judge(case)


def timeline(*, from_id: int = 1, to_id: int = 2, epoch: int = 6, kind: Kind = Kind.SWITCHOVER) -> FailoverTimeline:
    made = FailoverTimeline(
        group=KEY,
        cluster_name="DefaultCluster",
        broker_name="orders",
        kind=kind,
        trigger=Trigger.REQUESTED,
        from_broker_id=from_id,
        epoch_before=epoch - 1,
        started_at_unix_seconds=NOW,
        to_broker_id=to_id,
        epoch_after=epoch,
        outcome=TimelineOutcome.COMPLETED,
    )
    made.reach(Step.DETECTED, 10.0)
    made.reach(Step.ROLE_CHANGED, 10.25)
    return made


ALL = ("Switchover", "Restart", "Rebuild", "Elect", "Decommission", "Drill", "Backup", "Retire")
HIBERNATED, PAUSED = group(maintenance={"hibernated": True}), group(maintenance={"paused": True})


@pytest.mark.parametrize("kind", ALL)
def test_every_type_begins_in_a_safe_group(kind: str) -> None:
    changes: dict[str, Any] = {"record": record(master=None)} if kind == "Elect" else {}
    verdict = begun(kind, **changes)
    assert isinstance(verdict, Start), verdict
    assert verdict.steps
    assert verdict.figures.epoch == 5
    assert verdict.figures.from_broker_id == (None if kind == "Elect" else 1)


def rejected(verdict: Verdict) -> str:
    assert isinstance(verdict, Reject), verdict
    return verdict.message


def goes_on(verdict: Verdict) -> GoOn:
    assert isinstance(verdict, GoOn), verdict
    return verdict


def done(verdict: Verdict) -> Done:
    assert isinstance(verdict, Done), verdict
    return verdict


def started(verdict: Verdict) -> Start:
    assert isinstance(verdict, Start), verdict
    return verdict


VOLUNTARY = ("Switchover", "Restart", "Rebuild", "Decommission", "Drill", "Backup")
GOING = {**group(), "metadata": {**group()["metadata"], "deletionTimestamp": "x"}}
UNSAFE = "orders is not FailoverSafe: NotEnoughCandidates: broker 2 lags"


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"group": HIBERNATED}, "orders is hibernated"),
        ({"record": None}, "orders has no member yet"),
        ({"group": GOING}, "is being deleted"),
    ],
)
def test_every_type_is_refused(kind: str, changes: dict[str, Any], why: str) -> None:
    assert why in rejected(begun(kind, **changes))


@pytest.mark.parametrize("kind", VOLUNTARY)
@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"group": group(safe=False)}, UNSAFE),
        ({"group": group(safe=None)}, "not known to be FailoverSafe yet"),
        ({"record": record(master=None)}, "orders has no master now"),
    ],
)
def test_nothing_voluntary_happens_to_an_unsafe_group(kind: str, changes: dict[str, Any], why: str) -> None:
    assert why in rejected(begun(kind, **changes))


UNREADABLE = group(replicas="three", maintenance={"paused": True}, replication={"learners": 1})


def test_of_a_group_that_cannot_be_read_only_a_master_is_elected() -> None:
    """The group may have no master, and no pass will repair that; the readable part of its spec still counts."""
    moved = begun("Switchover", group=UNREADABLE)
    assert isinstance(moved, Wait)
    assert "orders is not FailoverSafe now: BrokerGroup default/orders: Expected `int`, got `str`" in moved.message
    paused = "BrokerGroup orders is paused: resume it first (spec.maintenance.paused)"
    assert rejected(begun("Restart", group=UNREADABLE)) == paused
    without_master: dict[str, Any] = {"group": UNREADABLE, "record": record(master=None)}
    started(begun("Elect", **without_master))
    assert "async learner" in rejected(begun("Elect", section={"toBrokerId": 3}, **without_master))


def being_deleted(*claims: str) -> dict[str, Any]:
    known = {name: thing(name) for name in ("orders-1", "orders-2", "orders-3", *claims)}
    for name in claims:
        known[name]["metadata"]["deletionTimestamp"] = rfc3339(NOW)
    return known


@pytest.mark.parametrize(
    ("kind", "section", "claim"),
    [
        ("Restart", None, "orders-3"),
        ("Restart", {"brokerIds": [2]}, "orders-2"),
        ("Restart", {"brokerIds": [2]}, "orders-2-commitlog"),
        ("Drill", {"kind": "KillMaster"}, "orders-1"),
    ],
)
def test_a_pod_whose_claim_is_being_deleted_is_stopped_for_nothing(kind: str, section: Any, claim: str) -> None:
    """A stopped pod would lose its data: a restart or a drill would cost a disk."""
    why = rejected(begun(kind, section=section, claims=being_deleted(claim)))
    assert f"claim {claim} is being deleted" in why
    assert why.endswith(f"rebuild broker {claim.split('-')[1]}")


@pytest.mark.parametrize(
    ("kind", "section"),
    [
        ("Restart", {"brokerIds": [2]}), ("Switchover", None), ("Rebuild", {"brokerId": 3}), ("Decommission", {"brokerId": 3}),
        ("Drill", {"kind": "Switchover"}), ("Drill", {"kind": "KillMaster"}),
    ],
)  # fmt: skip
def test_what_stops_another_pod_or_gives_the_disk_up_goes_on(kind: str, section: Any) -> None:
    started(begun(kind, section=section, claims=being_deleted("orders-3")))


@pytest.mark.parametrize(
    ("kind", "section", "goes"),
    [
        ("Restart", {"brokerIds": [2]}, False), ("Restart", None, False), ("Restart", {"brokerIds": [3]}, True),
        ("Rebuild", {"brokerId": 2}, True), ("Decommission", {"brokerId": 2}, True),
    ],
)  # fmt: skip
def test_a_broker_that_is_held_stopped_can_leave_and_not_restart(kind: str, section: Any, goes: bool) -> None:
    """A restart would wait for it without end. Whether the group can spare a pod is another question."""
    pod = thing("orders-2")
    pod["metadata"] = {**pod["metadata"], "annotations": {"brokergroup.dev/stopped": "true"}}
    pods = {"orders-1": thing("orders-1"), "orders-2": pod, "orders-3": thing("orders-3")}
    of = record(in_sync={1, 3})
    verdict = begun(kind, section=section, pods=pods, record=of)
    told = "broker 2 is stopped by spec.maintenance.stoppedBrokers: start it first"
    assert (told in getattr(verdict, "message", "")) is not goes


def test_no_switchover_goes_to_a_broker_that_is_or_is_to_be_held_stopped() -> None:
    """It would wait for the broker, or the operator would move mastership back at once."""
    pod = thing("orders-2")
    pod["metadata"] = {**pod["metadata"], "annotations": {"brokergroup.dev/stopped": "true"}}
    pods = {"orders-1": thing("orders-1"), "orders-2": pod, "orders-3": thing("orders-3")}
    is_held = begun("Switchover", section={"toBrokerId": 2}, pods=pods, record=record(in_sync={1, 3}), alive=(1, 3))
    assert rejected(is_held) == "broker 2 is stopped by spec.maintenance.stoppedBrokers: start it first"
    named = group(maintenance={"stoppedBrokers": [2]})
    told = "broker 2 is in spec.maintenance.stoppedBrokers: take it out of there first"
    assert rejected(begun("Switchover", section={"toBrokerId": 2}, group=named)) == told
    assert isinstance(begun("Switchover", section={"toBrokerId": 3}, group=named), Start)


def test_a_switchover_to_any_member_goes_to_none_that_is_to_be_held_stopped() -> None:
    named = group(maintenance={"stoppedBrokers": [2]})
    asked = goes_on(judged(running("Switchover"), group=named))
    assert isinstance(asked.effect, SwitchMaster)
    assert asked.effect.to_broker_id == 3
    asked = goes_on(judged(running("Switchover")))
    assert isinstance(asked.effect, SwitchMaster)
    assert asked.effect.to_broker_id is None, "the controller plane chooses"


@pytest.mark.parametrize(
    ("item", "claim"),
    [(running("Restart", brokerIds=[2]), "orders-2"), (running("Drill", kind="KillMaster"), "orders-1")],
)
def test_a_claim_that_is_deleted_meanwhile_is_waited_for(item: Any, claim: str) -> None:
    """Also by a kill that was begun."""
    verdict = goes_on(judged(item, claims=being_deleted(claim)))
    assert verdict.effect is None
    assert f"claim {claim} is being deleted" in verdict.message


@pytest.mark.parametrize("kind", VOLUNTARY)
@pytest.mark.parametrize(("seconds", "verdict"), [(5, Wait), (29, Wait), (31, Reject)])
def test_a_group_that_became_unsafe_a_moment_ago_is_given_time(kind: str, seconds: int, verdict: type) -> None:
    """The previous operation may have just ended."""
    unsafe = group(safe=False)
    unsafe["status"]["conditions"][0]["lastTransitionTime"] = rfc3339(NOW - seconds)
    assert isinstance(begun(kind, group=unsafe), verdict)
    new = group(safe=None)
    new["metadata"]["creationTimestamp"] = rfc3339(NOW - seconds)
    assert isinstance(begun(kind, group=new), verdict)


@pytest.mark.parametrize(
    ("kind", "section", "rejected"),
    [
        ("Restart", {}, True), ("Rebuild", {}, True), ("Decommission", {}, True), ("Drill", {"kind": "KillMaster"}, True),
        ("Drill", {}, False), ("Switchover", {}, False),
    ],
)  # fmt: skip
def test_a_paused_groups_pods_are_left_alone_but_its_master_may_move(
    kind: str, section: dict[str, Any], rejected: bool
) -> None:
    verdict = begun(kind, section=section, group=PAUSED)
    assert isinstance(verdict, Reject if rejected else Start)
    assert not rejected or "paused" in verdict.message


@pytest.mark.parametrize(
    ("kind", "section"),
    [
        ("Switchover", {"toBrokerId": 9}), ("Restart", {"brokerIds": [2, 9]}), ("Rebuild", {"brokerId": 9}),
        ("Decommission", {"brokerId": 9}), ("Elect", {"toBrokerId": 9}),
    ],
)  # fmt: skip
def test_a_stranger_is_named(kind: str, section: dict[str, Any]) -> None:
    verdict = begun(kind, section=section)
    assert verdict == Reject(message="broker 9 is not a member of orders; its members: 1, 2, 3")


# A member without a seat.
LAGGING: dict[str, Any] = {"record": record(in_sync=(1, 2)), "group": group(safe=False)}


@pytest.mark.parametrize(
    ("kind", "section"),
    [("Restart", {"brokerIds": [3]}), ("Rebuild", {"brokerId": 3}), ("Decommission", {"brokerId": 3})],
)
def test_a_member_without_a_seat_may_be_mended_although_the_group_is_not_safe(
    kind: str, section: dict[str, Any]
) -> None:
    assert isinstance(begun(kind, section=section, **LAGGING), Start)
    assert isinstance(begun(kind, section=section, group=group(safe=False)), Reject)


# Switchover


def test_switchover_to_who_cannot_take_over() -> None:
    to = {"toBrokerId": 2}
    expected = "broker 2 is not in the SyncStateSet"
    assert rejected(begun("Switchover", section=to, record=record(in_sync=(1, 3)))) == expected
    assert rejected(begun("Switchover", section=to, alive=(1, 3))) == "broker 2 is not alive"
    done(begun("Switchover", section={"toBrokerId": 1}))


def test_a_learner_is_back_without_being_in_sync() -> None:
    item, by_spec = running("Restart", brokerIds=[3]), group(replicas=3, replication={"learners": 1})
    there: dict[str, Any] = {"pods": {"orders-3": thing("orders-3", created=NOW)}}
    learns = record(in_sync=(1, 2))
    done(judged(item, group=by_spec, record=learns, **there))
    plain = scene(record=learns).snapshot
    assert plain is not None
    not_back: dict[str, dict[str, Any]] = {
        "a voter has to be in sync": {"record": learns},
        "a learner has to leave the set": {"group": by_spec},
        "it is silent": {"group": by_spec, "record": learns, "alive": (1, 2)},
        "it is not linked": {"group": by_spec, "record": learns, "snapshot": replace(plain, unlinked=frozenset({3}))},
    }
    for why, changes in not_back.items():
        assert isinstance(judged(item, **there, **changes), GoOn), why


def test_switchover_asks_for_it_until_something_came_of_it() -> None:
    item = running(toBrokerId=2)
    effect = SwitchMaster(from_broker_id=1, to_broker_id=2, deadline_seconds=50)
    assert goes_on(judged(item)).effect == effect
    assert judged(item, Outcome(running=True)) == GoOn(message="begun")
    again = goes_on(judged(item, Outcome(failed="the slaves did not catch up")))
    assert (again.message, again.effect) == ("the slaves did not catch up", effect)
    assert rejected(judged(item, Outcome(refused="no"))) == "no"
    unsafe = goes_on(judged(running(), group=group(safe=False)))
    assert unsafe.effect is None
    assert "not FailoverSafe" in unsafe.message


def test_a_change_of_master_that_is_under_way_is_waited_for() -> None:
    plain = scene()
    assert plain.snapshot is not None
    busy = replace(plain.snapshot, in_progress=timeline(kind=Kind.FAILOVER))
    for kind in ("Switchover", "Drill"):
        assert begun(kind, snapshot=busy) == Wait(message="waits for the end of a failover", look_again_seconds=0.5)
    goes_on(judged(running(), Outcome(refused="a change of master is under way"), snapshot=busy))


@pytest.mark.parametrize("seen", [True, False])
def test_switchover_is_done_by_the_record_after_a_restart_of_the_operator(seen: bool) -> None:
    last = timeline() if seen else None
    figures = done(judged(running(), record=record(master=2, epoch=6), last_switchover=last)).figures
    assert (figures.from_broker_id, figures.to_broker_id, figures.epoch) == (1, 2, 6)
    assert figures.milliseconds == (250 if seen else None)


def test_a_new_epoch_of_the_same_master_is_no_switchover() -> None:
    assert goes_on(judged(running(), record=record(master=1, epoch=6))).effect is not None
    assert goes_on(judged(running(), record=record(master=None, epoch=6))).effect is None


def test_switchover_fails_at_its_deadline() -> None:
    late = running(started=NOW - 61)
    verdict = judged(late, Outcome(failed="no luck"))
    assert isinstance(verdict, Fail)
    assert verdict.message == "not within 60 s: no luck"
    assert isinstance(judged(late, Outcome(running=True)), GoOn), "it ends by itself"
    assert isinstance(judged(running(started=NOW - 71), Outcome(running=True)), Fail)


# Elect


def test_elect_wants_the_name_and_no_serving_master() -> None:
    gone: dict[str, Any] = {"record": record(master=None), "writable": False}
    wrong = rejected(begun("Elect", section={"acknowledgeDataLoss": "order"}, **gone))
    assert wrong == "acknowledgeDataLoss is 'order', expected the name of the group, 'orders'"
    assert "broker 1 is master and serves writes" in rejected(begun("Elect"))
    assert isinstance(begun("Elect", writable=False), Start), "a master that does not serve may be replaced"
    rejected(begun("Elect", alive=(1, 3), **gone))


@pytest.mark.parametrize(
    ("item", "outcome", "changes", "verdict"),
    [
        (running("Elect"), NOTHING_ASKED, {"record": record(master=2, epoch=6)}, Done),
        (running("Elect"), NOTHING_ASKED, {"record": record(master=3, epoch=6)}, Fail),
        (running("Elect"), Outcome(refused="priority 0"), {"record": record(master=None)}, Reject),
        (running("Elect", started=NOW - 61), NOTHING_ASKED, {"record": record(master=None)}, Fail),
    ],
)
def test_elect_is_read_from_the_record(item: Any, outcome: Outcome, changes: dict[str, Any], verdict: type) -> None:
    assert isinstance(judged(item, outcome, **changes), verdict)
    asked = goes_on(judged(running("Elect"), record=record(master=None), writable=False))
    assert asked.effect == ElectUnclean(to_broker_id=2)


def test_a_learner_is_made_master_by_nothing() -> None:
    """By the spec the members with the highest ids are learners; by its pod a member that started as one."""
    by_spec = group(replicas=3, replication={"learners": 1})
    why = "broker 3 is an async learner (spec.replication.learners: those with the highest ids) and is never master"
    assert begun("Switchover", section={"toBrokerId": 3}, group=by_spec) == Reject(message=why)
    assert begun("Elect", section={"toBrokerId": 3}, group=by_spec) == Reject(message=why)
    assert isinstance(begun("Switchover", section={"toBrokerId": 2}, group=by_spec), Start)
    pod = thing("orders-3")
    pod["metadata"]["annotations"] = {"brokergroup.dev/learner": "true"}
    assert begun("Switchover", section={"toBrokerId": 3}, pods={"orders-3": pod}) == Reject(message=why)


def test_switchover_is_done_by_what_this_process_measured() -> None:
    figures = Figures(from_broker_id=1, to_broker_id=2, epoch=6, milliseconds=84, phases={"committed": 40})
    verdict = judged(running(toBrokerId=2), Outcome(figures=figures))
    assert verdict == Done(message="from broker 1 to 2, epoch 6 in 84 ms", figures=figures)


def test_switchover_to_another_than_wanted_has_failed() -> None:
    verdict = judged(running(toBrokerId=3), record=record(master=2, epoch=6))
    assert verdict == Fail(
        message="broker 2 became master, not broker 3: another change came first",
        figures=Figures(from_broker_id=1, to_broker_id=2, epoch=6),
    )


# Elect


# Restart


def test_a_pod_of_this_very_second_is_let_grow_older() -> None:
    pods = {
        f"orders-{number}": thing(f"orders-{number}", created=NOW if number == 2 else LONG_AGO) for number in (1, 2, 3)
    }
    verdict = begun("Restart", pods=pods)
    assert isinstance(verdict, Wait)
    assert verdict.look_again_seconds == 1.0
    assert isinstance(begun("Restart", section={"brokerIds": [3]}, pods=pods), Start)


def test_restart_says_slaves_first_and_the_master_after_a_switchover() -> None:
    verdict = started(begun("Restart"))
    assert [number for step in verdict.steps for number in (1, 2, 3) if f"orders-{number}" in step] == [2, 3, 1]
    assert ["switch the master over" in step for step in verdict.steps] == [False, False, True]


@pytest.mark.parametrize(
    ("number", "pod", "changes"),
    [
        (2, thing("orders-2"), {}),
        (2, thing("orders-2", created=NOW - 5, ready=False), {}),
        (2, None, {}),
        (2, thing("orders-2", created=NOW - 5), {"record": record(in_sync=(1, 3))}),
        (2, thing("orders-2", created=NOW - 5), {"alive": (1, 3)}),
    ],
    ids=["old", "not ready", "missing", "not in sync", "not heard"],
)
def test_restart_waits_for_each_member(number: int, pod: dict[str, Any] | None, changes: dict[str, Any]) -> None:
    pods = {f"orders-{other}": thing(f"orders-{other}", created=NOW - 5) for other in (1, 3)}
    if pod is not None:
        pods[f"orders-{number}"] = pod
    verdict = goes_on(judged(running("Restart"), pods=pods, **changes))
    assert verdict.message == "2 of 3 restarted and in sync; waits for broker 2"


def test_restart_is_done() -> None:
    pods = {f"orders-{number}": thing(f"orders-{number}", created=NOW - 5) for number in (1, 2, 3)}
    verdict = done(judged(running("Restart"), pods=pods, record=record(master=2, epoch=6)))
    assert verdict.figures == Figures(from_broker_id=1, to_broker_id=2, epoch=6, milliseconds=10_000)
    done(judged(running("Restart", brokerIds=[3]), pods=pods | {"orders-2": thing("orders-2")}))
    assert isinstance(judged(running("Restart", started=NOW - 11_000), pods={}), Fail)


# Rebuild, Decommission


def rebuilt(**changes: Any) -> Verdict:
    """Return a scene in which broker 4 replaced broker 3."""
    kept = {f"orders-{number}": thing(f"orders-{number}") for number in (1, 2)}
    new = {"orders-4": thing("orders-4", created=NOW - 5)}
    base: dict[str, Any] = {
        "pods": kept | new,
        "claims": kept | new,
        "record": record(members=(1, 2, 4), in_sync=(1, 2, 4)),
    }
    return judged(running("Rebuild"), **(base | changes))


def test_rebuild_is_done_when_the_new_member_is_in_sync_and_the_old_id_is_gone() -> None:
    verdict = done(rebuilt())
    assert verdict.message == "broker 4 took the place of broker 3 in 10 s"
    assert verdict.figures.to_broker_id == 4


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"pods": {"orders-3": thing("orders-3")}}, "pod orders-3 is still there"),
        ({"claims": {"orders-3": thing("orders-3")}}, "claim orders-3 is still there"),
        ({"record": record(members=(1, 2), in_sync=(1, 2))}, "no new member has registered yet"),
        ({"record": record(members=(1, 2, 4), in_sync=(1, 2))}, "broker 4 copies the log"),
        ({"record": record(members=(1, 2, 3, 4), in_sync=(1, 2, 4))}, "broker 3 is still in the record"),
    ],
)
def test_rebuild_waits(changes: dict[str, Any], why: str) -> None:
    assert rebuilt(**changes) == GoOn(message=why)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"record": record(master=3)}, "broker 3 is still master"),
        ({}, "broker 3 is still in the SyncStateSet"),
        ({"record": record(in_sync=(1, 2))}, "pod orders-3 is still there"),
        ({"record": record(in_sync=(1, 2)), "pods": {}}, "broker 3 is still in the record"),
    ],
)
def test_decommission_waits(changes: dict[str, Any], why: str) -> None:
    assert judged(running("Decommission"), **changes) == GoOn(message=why)


@pytest.mark.parametrize(
    ("when_scaled", "of_the_claim"),
    [("Delete", "delete claim orders-1"), ("Retain", "keep claim orders-1")],
)
def test_decommission_names_its_steps_in_the_order_in_which_they_are_done(when_scaled: str, of_the_claim: str) -> None:
    """`reconcile/decide/scale_in.py` stops the member before its id leaves the record, and `claims.py` then discards the claim."""
    verdict = started(
        begun("Decommission", section={"brokerId": 1}, group=group(storage={"retention": {"whenScaled": when_scaled}}))
    )
    done = (
        "switch the master over",
        "delete pod orders-1",
        "remove broker 1 from",
        of_the_claim,
        "create a new member",
    )
    assert len(verdict.steps) == len(done)
    assert all(step.startswith(start) for step, start in zip(verdict.steps, done, strict=True)), verdict.steps


def test_decommission_is_done_when_the_record_has_forgotten_the_member() -> None:
    done(judged(running("Decommission"), record=record(members=(1, 2), in_sync=(1, 2)), pods={}))
    assert isinstance(begun("Decommission", section={"brokerId": 1}, record=record(members=(1,), in_sync=(1,))), Reject)


# Drill


def test_a_killed_master_is_deleted_once_and_by_its_uid() -> None:
    item = running("Drill", kind="KillMaster")
    verdict = goes_on(judged(item))
    assert verdict.effect == KillPod(name="orders-1", uid=f"uid-orders-1-{LONG_AGO}")
    leaving = thing("orders-1")
    leaving["metadata"] |= {"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": [names.FINALIZER_FENCE]}
    assert judged(item, pods={"orders-1": leaving}) == GoOn(message="pod orders-1 is killed; waits for an election")
    leaving["metadata"]["finalizers"] = []  # another client deletes it, with the full grace period
    others = {name: thing(name) for name in ("orders-2", "orders-3")}
    assert isinstance(ends_well := judged(item, pods={"orders-1": leaving, **others}), GoOn)
    assert ends_well.effect == verdict.effect
    young = {"orders-1": thing("orders-1", created=NOW - 5)}
    assert judged(item, pods=young) == GoOn(message="pod orders-1 is killed; waits for an election")


@pytest.mark.parametrize("changes", [{"group": group(safe=False)}, {"group": PAUSED}, {"group": HIBERNATED}])
def test_the_kill_waits_where_an_operator_died_before_it_and_the_group_is_not_safe_now(changes: dict[str, Any]) -> None:
    verdict = goes_on(judged(running("Drill", kind="KillMaster", started=NOW - 300), **changes))
    assert verdict.effect is None
    assert verdict.message.startswith("waits: ")


def test_a_kill_is_measured_and_over_when_all_are_in_sync_again() -> None:
    item = running("Drill", kind="KillMaster")
    failover = timeline(kind=Kind.FAILOVER)
    after: dict[str, Any] = {"record": record(master=2, epoch=6, in_sync=(2, 3)), "last_failover": failover}
    assert judged(item, writable=False, **after) == GoOn(message="waits for the new master to serve writes")
    assert judged(item, in_progress=failover, **after) == GoOn(message="waits for the new master to serve writes")
    took_over = goes_on(judged(item, **after))
    assert took_over.message == "broker 2 took over in 250 ms; waits for broker 1 to be in sync"
    assert took_over.figures is not None
    assert took_over.figures.epoch == 5, "the start stays"
    noted = running(
        "Drill", kind="KillMaster", result={"toBrokerId": 2, "milliseconds": 250, "phases": {"roleChanged": 250}}
    )
    over = done(judged(noted, record=record(master=2, epoch=6)))
    assert (over.figures.milliseconds, over.figures.epoch, over.figures.to_broker_id) == (250, 6, 2)


def test_a_switchover_drill_goes_there_and_back() -> None:
    item = running("Drill")
    there = goes_on(judged(item))
    assert there.effect == SwitchMaster(from_broker_id=1, to_broker_id=None, deadline_seconds=60)
    arrived = Outcome(
        figures=Figures(from_broker_id=1, to_broker_id=2, epoch=6, milliseconds=80, phases={"committed": 40})
    )
    back = goes_on(judged(item, arrived, record=record(master=2, epoch=6)))
    assert back.effect == SwitchMaster(from_broker_id=2, to_broker_id=1, deadline_seconds=60)
    assert back.figures is not None
    assert (back.figures.milliseconds, back.figures.epoch, back.figures.from_broker_id) == (80, 5, 1)
    noted = running("Drill", result={"toBrokerId": 2, "milliseconds": 80, "phases": {"committed": 40}})
    home = Outcome(
        figures=Figures(from_broker_id=2, to_broker_id=1, epoch=7, milliseconds=90, phases={"committed": 50})
    )
    over = done(judged(noted, home, record=record(epoch=7)))
    assert over.message == "from broker 1 to 2 (80 ms) and back (90 ms)"
    assert over.figures.milliseconds == 90
    assert over.figures.phases == {"committed": 40, "back.committed": 50}


def test_a_switchover_drill_goes_on_after_a_restart_of_the_operator() -> None:
    item = running("Drill")
    back = goes_on(judged(item, record=record(master=2, epoch=6), last_switchover=timeline()))
    assert back.effect == SwitchMaster(from_broker_id=2, to_broker_id=1, deadline_seconds=60)
    assert isinstance(judged(item, record=record(master=1, epoch=7)), Done)
    assert isinstance(judged(item, Outcome(refused="not now")), Reject), "nothing was done yet"
    refused = judged(item, Outcome(refused="not now"), record=record(master=2, epoch=6))
    assert isinstance(refused, GoOn), "the way back is tried until the deadline"
    assert isinstance(judged(running("Drill", started=NOW - 601), record=record(master=2, epoch=6)), Fail)
