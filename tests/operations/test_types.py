"""Each type: its refusals, its start, and its end by the record and the pods. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from brokergroup_operator.api.times import rfc3339
from brokergroup_operator.observe.timeline import Kind
from brokergroup_operator.reconcile.operations.plan import (
    NOTHING_ASKED,
    Done,
    ElectUnclean,
    Fail,
    Figures,
    GoOn,
    Outcome,
    Reject,
    Start,
    SwitchMaster,
    Wait,
)
from tests.operations.world import NOW, begun, expect, group, judged, record, running, scene, thing, timeline

if TYPE_CHECKING:
    from brokergroup_operator.reconcile.operations.plan import Verdict

ALL = ("Switchover", "Restart", "Rebuild", "Elect", "Decommission", "Drill", "Backup", "Retire")
HIBERNATED, PAUSED = group(maintenance={"hibernated": True}), group(maintenance={"paused": True})


@pytest.mark.parametrize("kind", ALL)
def test_every_type_begins_in_a_safe_group(kind: str) -> None:
    changes: dict[str, Any] = {"record": record(master=None)} if kind == "Elect" else {}
    verdict = expect(Start, begun(kind, **changes))
    assert verdict.steps
    assert (verdict.figures.epoch, verdict.figures.from_broker_id) == (5, None if kind == "Elect" else 1)


def rejected(verdict: Verdict) -> str:
    return expect(Reject, verdict).message


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
    moved = expect(Wait, begun("Switchover", group=UNREADABLE))
    assert "orders is not FailoverSafe now: BrokerGroup default/orders: Expected `int`, got `str`" in moved.message
    paused = "BrokerGroup orders is paused: resume it first (spec.maintenance.paused)"
    assert rejected(begun("Restart", group=UNREADABLE)) == paused
    without_master: dict[str, Any] = {"group": UNREADABLE, "record": record(master=None)}
    expect(Start, begun("Elect", **without_master))
    assert "async learner" in rejected(begun("Elect", section={"toBrokerId": 3}, **without_master))


def being_deleted(*claims: str) -> dict[str, Any]:
    known = {name: thing(name) for name in ("orders-1", "orders-2", "orders-3", *claims)}
    for name in claims:
        known[name]["metadata"]["deletionTimestamp"] = rfc3339(NOW)
    return known


def with_mark(name: str, annotation: str) -> dict[str, Any]:
    """Return the pods, of which this one has the annotation."""
    pods = {f"orders-{number}": thing(f"orders-{number}") for number in (1, 2, 3)}
    pods[name]["metadata"]["annotations"] = {annotation: "true"}
    return pods


STOPPED = with_mark("orders-2", "brokergroup.dev/stopped")


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
    expect(Start, begun(kind, section=section, claims=being_deleted("orders-3")))


@pytest.mark.parametrize(
    ("kind", "section", "goes"),
    [
        ("Restart", {"brokerIds": [2]}, False), ("Restart", None, False), ("Restart", {"brokerIds": [3]}, True),
        ("Rebuild", {"brokerId": 2}, True), ("Decommission", {"brokerId": 2}, True),
    ],
)  # fmt: skip
def test_a_broker_that_is_held_stopped_can_leave_and_not_restart(kind: str, section: Any, goes: bool) -> None:
    """A restart would wait for it without end. Whether the group can spare a pod is another question."""
    verdict = begun(kind, section=section, pods=STOPPED, record=record(in_sync={1, 3}))
    told = "broker 2 is stopped by spec.maintenance.stoppedBrokers: start it first"
    assert (told in getattr(verdict, "message", "")) is not goes


def test_no_switchover_goes_to_a_broker_that_is_or_is_to_be_held_stopped() -> None:
    """It would wait for the broker, or the operator would move mastership back at once."""
    is_held = begun("Switchover", section={"toBrokerId": 2}, pods=STOPPED, record=record(in_sync={1, 3}), alive=(1, 3))
    assert rejected(is_held) == "broker 2 is stopped by spec.maintenance.stoppedBrokers: start it first"
    named = group(maintenance={"stoppedBrokers": [2]})
    told = "broker 2 is in spec.maintenance.stoppedBrokers: take it out of there first"
    assert rejected(begun("Switchover", section={"toBrokerId": 2}, group=named)) == told
    expect(Start, begun("Switchover", section={"toBrokerId": 3}, group=named))


def test_a_switchover_to_any_member_goes_to_none_that_is_to_be_held_stopped() -> None:
    """Else the controller plane chooses."""
    to_stop: dict[str, Any] = {"group": group(maintenance={"stoppedBrokers": [2]})}
    for changes, to in ((to_stop, 3), ({}, None)):
        effect = expect(GoOn, judged(running("Switchover"), **changes)).effect
        assert expect(SwitchMaster, effect).to_broker_id == to


@pytest.mark.parametrize(
    ("item", "claim"),
    [(running("Restart", brokerIds=[2]), "orders-2"), (running("Drill", kind="KillMaster"), "orders-1")],
)
def test_a_claim_that_is_deleted_meanwhile_is_waited_for(item: Any, claim: str) -> None:
    """Also by a kill that was begun."""
    verdict = expect(GoOn, judged(item, claims=being_deleted(claim)))
    assert verdict.effect is None
    assert f"claim {claim} is being deleted" in verdict.message


@pytest.mark.parametrize("kind", VOLUNTARY)
@pytest.mark.parametrize(("seconds", "verdict"), [(5, Wait), (29, Wait), (31, Reject)])
def test_a_group_that_became_unsafe_a_moment_ago_is_given_time(kind: str, seconds: int, verdict: type) -> None:
    """The previous operation may have just ended."""
    unsafe, new = group(safe=False), group(safe=None)
    unsafe["status"]["conditions"][0]["lastTransitionTime"] = rfc3339(NOW - seconds)
    new["metadata"]["creationTimestamp"] = rfc3339(NOW - seconds)
    for seen in (unsafe, new):
        expect(verdict, begun(kind, group=seen))


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
    expect(Start, begun(kind, section=section, **LAGGING))
    expect(Reject, begun(kind, section=section, group=group(safe=False)))


def test_switchover_to_who_cannot_take_over() -> None:
    to = {"toBrokerId": 2}
    expected = "broker 2 is not in the SyncStateSet"
    assert rejected(begun("Switchover", section=to, record=record(in_sync=(1, 3)))) == expected
    assert rejected(begun("Switchover", section=to, alive=(1, 3))) == "broker 2 is not alive"
    expect(Done, begun("Switchover", section={"toBrokerId": 1}))


def test_a_learner_is_back_without_being_in_sync() -> None:
    item, by_spec = running("Restart", brokerIds=[3]), group(replicas=3, replication={"learners": 1})
    there: dict[str, Any] = {"pods": {"orders-3": thing("orders-3", created=NOW)}}
    learns = record(in_sync=(1, 2))
    expect(Done, judged(item, group=by_spec, record=learns, **there))
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
    assert expect(GoOn, judged(item)).effect == effect
    assert judged(item, Outcome(running=True)) == GoOn(message="begun")
    again = expect(GoOn, judged(item, Outcome(failed="the slaves did not catch up")))
    assert (again.message, again.effect) == ("the slaves did not catch up", effect)
    assert rejected(judged(item, Outcome(refused="no"))) == "no"
    unsafe = expect(GoOn, judged(running(), group=group(safe=False)))
    assert unsafe.effect is None
    assert "not FailoverSafe" in unsafe.message


def test_a_change_of_master_that_is_under_way_is_waited_for() -> None:
    plain = scene()
    assert plain.snapshot is not None
    busy = replace(plain.snapshot, in_progress=timeline(kind=Kind.FAILOVER))
    for kind in ("Switchover", "Drill"):
        assert begun(kind, snapshot=busy) == Wait(message="waits for the end of a failover", look_again_seconds=0.5)
    expect(GoOn, judged(running(), Outcome(refused="a change of master is under way"), snapshot=busy))


@pytest.mark.parametrize("seen", [True, False])
def test_switchover_is_done_by_the_record_after_a_restart_of_the_operator(seen: bool) -> None:
    last = timeline() if seen else None
    figures = expect(Done, judged(running(), record=record(master=2, epoch=6), last_switchover=last)).figures
    assert (figures.from_broker_id, figures.to_broker_id, figures.epoch) == (1, 2, 6)
    assert figures.milliseconds == (250 if seen else None)


def test_a_new_epoch_of_the_same_master_is_no_switchover() -> None:
    assert expect(GoOn, judged(running(), record=record(master=1, epoch=6))).effect is not None
    assert expect(GoOn, judged(running(), record=record(master=None, epoch=6))).effect is None


def test_switchover_fails_at_its_deadline() -> None:
    late = running(started=NOW - 61)
    assert expect(Fail, judged(late, Outcome(failed="no luck"))).message == "not within 60 s: no luck"
    assert isinstance(judged(late, Outcome(running=True)), GoOn), "it ends by itself"
    expect(Fail, judged(running(started=NOW - 71), Outcome(running=True)))


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
    asked = expect(GoOn, judged(running("Elect"), record=record(master=None), writable=False))
    assert asked.effect == ElectUnclean(to_broker_id=2)


def test_a_learner_is_made_master_by_nothing() -> None:
    """By the spec the members with the highest ids are learners; by its pod a member that started as one."""
    by_spec = group(replicas=3, replication={"learners": 1})
    why = "broker 3 is an async learner (spec.replication.learners: those with the highest ids) and is never master"
    assert begun("Switchover", section={"toBrokerId": 3}, group=by_spec) == Reject(message=why)
    assert begun("Elect", section={"toBrokerId": 3}, group=by_spec) == Reject(message=why)
    expect(Start, begun("Switchover", section={"toBrokerId": 2}, group=by_spec))
    learns = with_mark("orders-3", "brokergroup.dev/learner")
    assert begun("Switchover", section={"toBrokerId": 3}, pods=learns) == Reject(message=why)


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
