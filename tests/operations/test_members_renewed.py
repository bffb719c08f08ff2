"""The types that renew members or try a failover (Restart, Rebuild, Decommission, Drill): their ends by the record and the pods."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from brokergroup_operator.api import names
from brokergroup_operator.observe.timeline import Kind
from brokergroup_operator.reconcile.operations.plan import (
    Done,
    Fail,
    Figures,
    GoOn,
    KillPod,
    Outcome,
    Reject,
    Start,
    SwitchMaster,
    Wait,
)
from tests.operations.world import LONG_AGO, NOW, begun, expect, group, judged, record, running, thing, timeline

if TYPE_CHECKING:
    from brokergroup_operator.reconcile.operations.plan import Verdict

HIBERNATED, PAUSED = group(maintenance={"hibernated": True}), group(maintenance={"paused": True})


def pods(*numbers: int, created: float = LONG_AGO) -> dict[str, Any]:
    return {f"orders-{number}": thing(f"orders-{number}", created=created) for number in numbers}


def test_a_pod_of_this_very_second_is_let_grow_older() -> None:
    found = pods(1, 3) | pods(2, created=NOW)
    assert expect(Wait, begun("Restart", pods=found)).look_again_seconds == 1.0
    expect(Start, begun("Restart", section={"brokerIds": [3]}, pods=found))


def test_restart_says_slaves_first_and_the_master_after_a_switchover() -> None:
    verdict = expect(Start, begun("Restart"))
    assert [number for step in verdict.steps for number in (1, 2, 3) if f"orders-{number}" in step] == [2, 3, 1]
    assert ["switch the master over" in step for step in verdict.steps] == [False, False, True]


@pytest.mark.parametrize(
    ("of_second", "changes"),
    [
        (pods(2), {}),
        ({"orders-2": thing("orders-2", created=NOW - 5, ready=False)}, {}),
        ({}, {}),
        (pods(2, created=NOW - 5), {"record": record(in_sync=(1, 3))}),
        (pods(2, created=NOW - 5), {"alive": (1, 3)}),
    ],
    ids=["old", "not ready", "missing", "not in sync", "not heard"],
)
def test_restart_waits_for_each_member(of_second: dict[str, Any], changes: dict[str, Any]) -> None:
    found = pods(1, 3, created=NOW - 5) | of_second
    verdict = expect(GoOn, judged(running("Restart"), pods=found, **changes))
    assert verdict.message == "2 of 3 restarted and in sync; waits for broker 2"


def test_restart_is_done() -> None:
    new = pods(1, 2, 3, created=NOW - 5)
    verdict = expect(Done, judged(running("Restart"), pods=new, record=record(master=2, epoch=6)))
    assert verdict.figures == Figures(from_broker_id=1, to_broker_id=2, epoch=6, milliseconds=10_000)
    expect(Done, judged(running("Restart", brokerIds=[3]), pods=new | pods(2)))
    expect(Fail, judged(running("Restart", started=NOW - 11_000), pods={}))


def test_a_member_that_has_left_meanwhile_is_not_waited_for() -> None:
    """Another number of replicas, or a lost disk: the operation went on for hours, and every later one waited for it."""
    left: dict[str, Any] = {"record": record(members=(1, 2), in_sync=(1, 2))}
    new = pods(1, 2, created=NOW - 5)
    done = expect(Done, judged(running("Restart", brokerIds=[2, 3]), pods=new, **left))
    assert done.message == "restarted broker 2 in 10 s; broker 3 has left"
    waits = expect(GoOn, judged(running("Restart", brokerIds=[2, 3]), pods=pods(1, 2), **left))
    assert waits.message == "0 of 1 restarted and in sync; waits for broker 2"
    nothing = expect(Fail, judged(running("Restart", brokerIds=[3]), pods=new, **left))
    assert nothing.message == "broker 3 is not a member of orders; its members: 1, 2"
    lost = record(master=None, members=(1, 2), in_sync=())
    expect(GoOn, judged(running("Restart", brokerIds=[2, 3]), pods=new, record=lost))


def made_in(uid: str, objects: dict[str, Any]) -> dict[str, Any]:
    """These objects carry the mark of the operation in whose course they were made."""
    for one in objects.values():
        one["metadata"]["annotations"] = {names.ANNOTATION_OPERATION: uid}
    return objects


BEFORE_THE_START = NOW - 40


def test_a_clock_of_the_operator_that_is_ahead_of_the_api_servers_keeps_no_operation_running() -> None:
    """`startedAt` is of the operator's clock, `creationTimestamp` of the API server's: each new pod was taken for an old one."""
    new = made_in("uid-of-restart-1", pods(1, 2, 3, created=BEFORE_THE_START))
    expect(Done, judged(running("Restart"), pods=new))
    others = made_in("uid-of-another", pods(1, 2, 3, created=BEFORE_THE_START))
    expect(GoOn, judged(running("Restart"), pods=others))
    there = pods(1, 2) | made_in("uid-of-rebuild-1", pods(4, created=BEFORE_THE_START))
    assert expect(Done, rebuilt(pods=there, claims=there)).figures.to_broker_id == 4
    # A member whose pod alone was made anew is no successor.
    again = pods(1) | made_in("uid-of-rebuild-1", pods(2, created=BEFORE_THE_START))
    of_two: dict[str, Any] = {"record": record(members=(1, 2), in_sync=(1, 2)), "claims": pods(1, 2)}
    assert rebuilt(pods=again, **of_two) == GoOn(message="no new member has registered yet")
    killed = running("Drill", kind="KillMaster")
    back = made_in("uid-of-drill-1", pods(1, created=BEFORE_THE_START))
    assert expect(GoOn, judged(killed, pods=back)).effect is None, "it is killed once"


def rebuilt(**changes: Any) -> Verdict:
    """Return a scene in which broker 4 replaced broker 3."""
    there = pods(1, 2) | pods(4, created=NOW - 5)
    base: dict[str, Any] = {"pods": there, "claims": there, "record": record(members=(1, 2, 4), in_sync=(1, 2, 4))}
    return judged(running("Rebuild"), **(base | changes))


def test_rebuild_is_done_when_the_new_member_is_in_sync_and_the_old_id_is_gone() -> None:
    verdict = expect(Done, rebuilt())
    assert verdict.message == "broker 4 took the place of broker 3 in 10 s"
    assert verdict.figures.to_broker_id == 4


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"pods": pods(3)}, "pod orders-3 is still there"),
        ({"claims": pods(3)}, "claim orders-3 is still there"),
        ({"record": record(members=(1, 2), in_sync=(1, 2))}, "no new member has registered yet"),
        ({"record": record(members=(1, 2, 4), in_sync=(1, 2))}, "broker 4 copies the log"),
        ({"record": record(members=(1, 2, 3, 4), in_sync=(1, 2, 4))}, "broker 3 is still in the record"),
    ],
)
def test_rebuild_waits(changes: dict[str, Any], why: str) -> None:
    assert rebuilt(**changes) == GoOn(message=why)


def test_a_rebuilt_member_that_the_spec_wants_no_more_has_no_successor() -> None:
    """spec.replicas was lowered meanwhile: the operation went on for a day, and every later one waited for it."""
    fewer: dict[str, Any] = {"group": group(replicas=2), "claims": pods(1, 2), "pods": pods(1, 2)}
    done = expect(Done, rebuilt(record=record(members=(1, 2), in_sync=(1, 2)), **fewer))
    assert done.message == "broker 3 has left, and spec.replicas is 2: no member takes its place"
    assert done.figures.to_broker_id is None
    assert rebuilt(record=record(in_sync=(1, 2)), **fewer) == GoOn(message="broker 3 is still in the record")
    assert isinstance(rebuilt(record=record(master=None, members=(1, 2), in_sync=()), **fewer), GoOn)


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
    of = group(storage={"retention": {"whenScaled": when_scaled}})
    steps = expect(Start, begun("Decommission", section={"brokerId": 1}, group=of)).steps
    of_the_member = ["switch the master over", "delete pod orders-1", "remove broker 1 from"]
    done = [*of_the_member, of_the_claim, "create a new member"]
    assert [step[: len(start)] for step, start in zip(steps, done, strict=True)] == done


def test_decommission_is_done_when_the_record_has_forgotten_the_member() -> None:
    expect(Done, judged(running("Decommission"), record=record(members=(1, 2), in_sync=(1, 2)), pods={}))
    expect(Reject, begun("Decommission", section={"brokerId": 1}, record=record(members=(1,), in_sync=(1,))))


def test_a_killed_master_is_deleted_once_and_by_its_uid() -> None:
    item = running("Drill", kind="KillMaster")
    verdict = expect(GoOn, judged(item))
    assert verdict.effect == KillPod(name="orders-1", uid=f"uid-orders-1-{LONG_AGO}")
    leaving = thing("orders-1")
    leaving["metadata"] |= {"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": [names.FINALIZER_FENCE]}
    assert judged(item, pods={"orders-1": leaving}) == GoOn(message="pod orders-1 is killed; waits for an election")
    leaving["metadata"]["finalizers"] = []  # another client deletes it, with the full grace period
    assert expect(GoOn, judged(item, pods={"orders-1": leaving, **pods(2, 3)})).effect == verdict.effect
    assert judged(item, pods=pods(1, created=NOW - 5)) == GoOn(message="pod orders-1 is killed; waits for an election")


@pytest.mark.parametrize("changes", [{"group": group(safe=False)}, {"group": PAUSED}, {"group": HIBERNATED}])
def test_the_kill_waits_where_an_operator_died_before_it_and_the_group_is_not_safe_now(changes: dict[str, Any]) -> None:
    verdict = expect(GoOn, judged(running("Drill", kind="KillMaster", started=NOW - 300), **changes))
    assert verdict.effect is None
    assert verdict.message.startswith("waits: ")


def test_a_kill_is_measured_and_over_when_all_are_in_sync_again() -> None:
    item = running("Drill", kind="KillMaster")
    failover = timeline(kind=Kind.FAILOVER)
    after: dict[str, Any] = {"record": record(master=2, epoch=6, in_sync=(2, 3)), "last_failover": failover}
    assert judged(item, writable=False, **after) == GoOn(message="waits for the new master to serve writes")
    assert judged(item, in_progress=failover, **after) == GoOn(message="waits for the new master to serve writes")
    took_over = expect(GoOn, judged(item, **after))
    assert took_over.message == "broker 2 took over in 250 ms; waits for broker 1 to be in sync"
    assert took_over.figures is not None
    assert took_over.figures.epoch == 5, "the start stays"
    result = {"toBrokerId": 2, "milliseconds": 250, "phases": {"roleChanged": 250}}
    noted = running("Drill", kind="KillMaster", result=result)
    over = expect(Done, judged(noted, record=record(master=2, epoch=6)))
    assert (over.figures.milliseconds, over.figures.epoch, over.figures.to_broker_id) == (250, 6, 2)


def test_a_switchover_drill_goes_there_and_back() -> None:
    item = running("Drill")
    there = expect(GoOn, judged(item))
    assert there.effect == SwitchMaster(from_broker_id=1, to_broker_id=None, deadline_seconds=60)
    arrived = Figures(from_broker_id=1, to_broker_id=2, epoch=6, milliseconds=80, phases={"committed": 40})
    back = expect(GoOn, judged(item, Outcome(figures=arrived), record=record(master=2, epoch=6)))
    assert back.effect == SwitchMaster(from_broker_id=2, to_broker_id=1, deadline_seconds=60)
    assert back.figures is not None
    assert (back.figures.milliseconds, back.figures.epoch, back.figures.from_broker_id) == (80, 5, 1)
    noted = running("Drill", result={"toBrokerId": 2, "milliseconds": 80, "phases": {"committed": 40}})
    home = Figures(from_broker_id=2, to_broker_id=1, epoch=7, milliseconds=90, phases={"committed": 50})
    over = expect(Done, judged(noted, Outcome(figures=home), record=record(epoch=7)))
    assert over.message == "from broker 1 to 2 (80 ms) and back (90 ms)"
    assert over.figures.milliseconds == 90
    assert over.figures.phases == {"committed": 40, "back.committed": 50}


def test_a_switchover_drill_goes_on_after_a_restart_of_the_operator() -> None:
    item = running("Drill")
    back = expect(GoOn, judged(item, record=record(master=2, epoch=6), last_switchover=timeline()))
    assert back.effect == SwitchMaster(from_broker_id=2, to_broker_id=1, deadline_seconds=60)
    expect(Done, judged(item, record=record(master=1, epoch=7)))
    assert isinstance(judged(item, Outcome(refused="not now")), Reject), "nothing was done yet"
    refused = judged(item, Outcome(refused="not now"), record=record(master=2, epoch=6))
    assert isinstance(refused, GoOn), "the way back is tried until the deadline"
    expect(Fail, judged(running("Drill", started=NOW - 601), record=record(master=2, epoch=6)))
