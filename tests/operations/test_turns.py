"""The next operation to run, waiting ones, and expired ones: pure."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from brokergroup_operator.api.brokergroup_operation import OperationPhase, OperationStatus
from brokergroup_operator.api.times import rfc3339
from brokergroup_operator.reconcile.operations.evaluate import evaluate
from brokergroup_operator.reconcile.operations.plan import (
    Adopt,
    DoEffect,
    PassPlan,
    Remove,
    WriteStatus,
)
from brokergroup_operator.reconcile.see.fetch import read_operation
from tests.operations.scenes import GROUP_UID, NOW, finished, group, operation, running, scene


def statuses(plan: PassPlan) -> dict[str, OperationStatus]:
    return {step.operation.name: step.status for step in plan.steps if isinstance(step, WriteStatus)}


def removed(plan: PassPlan) -> set[str]:
    return {step.operation.name for step in plan.steps if isinstance(step, Remove)}


def message(status: OperationStatus) -> str:
    return status.result.message if status.result else ""


def test_the_oldest_runs_and_the_others_say_for_whom_they_wait() -> None:
    young, old = operation(name="young", created=NOW - 10), operation("Restart", name="old", created=NOW - 20)
    said = statuses(evaluate(scene(young, old), {}))
    assert said["old"].phase is OperationPhase.RUNNING
    assert said["young"].phase is OperationPhase.PENDING
    assert message(said["young"]) == "waits for old"


def test_of_two_of_the_same_second_the_first_name_runs() -> None:
    said = statuses(evaluate(scene(operation(name="b"), operation(name="a")), {}))
    assert said["a"].phase is OperationPhase.RUNNING
    assert message(said["b"]) == "waits for a"


def test_a_running_one_is_never_overtaken_by_an_older_one() -> None:
    said = statuses(
        evaluate(scene(operation(name="older", created=NOW - 99), running(name="now", created=NOW - 9)), {})
    )
    assert message(said["older"]) == "waits for now"


def test_one_that_waits_for_its_time_lets_younger_ones_pass() -> None:
    later = operation(name="later", created=NOW - 99, notBefore=rfc3339(NOW + 30))
    plan = evaluate(scene(later, operation(name="now", created=NOW - 9)), {})
    said = statuses(plan)
    assert said["later"].phase is OperationPhase.PENDING
    assert message(said["later"]) == f"not before {rfc3339(NOW + 30)}"
    assert said["now"].phase is OperationPhase.RUNNING
    alone = evaluate(scene(later), {})
    assert alone.look_again_seconds == 30


def test_when_its_time_has_come_it_runs() -> None:
    said = statuses(evaluate(scene(operation(notBefore=rfc3339(NOW - 1))), {}))
    assert said["switchover-1"].phase is OperationPhase.RUNNING


def test_a_dry_run_waits_for_nobody_and_does_nothing() -> None:
    dry = operation(name="dry", created=NOW, spec={"dryRun": "All"}, notBefore=rfc3339(NOW + 99))
    plan = evaluate(scene(running(name="now"), dry), {})
    said = statuses(plan)["dry"]
    assert said.phase is OperationPhase.SUCCEEDED
    assert said.started_at is None
    assert said.result is not None
    assert len(said.result.plan) == 3
    assert not [step for step in plan.steps if isinstance(step, DoEffect) and step.operation.name == "dry"]


def test_a_dry_run_of_what_would_be_refused_says_why() -> None:
    said = statuses(evaluate(scene(operation(toBrokerId=9, spec={"dryRun": "All"})), {}))["switchover-1"]
    assert said.phase is OperationPhase.REJECTED
    assert "broker 9 is not a member of orders; its members: 1, 2, 3" in message(said)


def test_the_end_of_one_asks_for_the_next_at_once() -> None:
    plan = evaluate(scene(operation(name="a", toBrokerId=9), operation(name="b")), {})
    assert statuses(plan)["a"].phase is OperationPhase.REJECTED
    assert plan.look_again_seconds == 0.0


def test_nothing_is_written_twice() -> None:
    first = evaluate(scene(operation(name="a"), operation(name="b")), {})
    after = []
    for step in first.steps:
        assert isinstance(step, WriteStatus)
        asked = replace_status(step.operation.asked, step.status)
        after.append(replace(step.operation, asked=asked))
    again = evaluate(scene(*after), {})
    assert not statuses(again)


@pytest.mark.parametrize("phase", ["Succeeded", "Failed", "Rejected"])
@pytest.mark.parametrize("gone", [False, True], ids=["its group is there", "its group is gone"])
def test_what_is_over_stays_as_it_ended(phase: str, *, gone: bool) -> None:
    over = finished("over", completed=NOW - 1, phase=phase)
    there = scene(over, group=None, record=None) if gone else scene(over)
    assert evaluate(there, {}).steps == ()


def replace_status(asked: Any, status: OperationStatus) -> Any:
    import msgspec

    return msgspec.structs.replace(asked, status=status)


@pytest.mark.parametrize(("age", "phase"), [(2.0, OperationPhase.PENDING), (6.0, OperationPhase.REJECTED)])
def test_a_group_that_is_not_there_is_waited_for_a_moment(age: float, phase: OperationPhase) -> None:
    asked = operation(created=NOW - age)
    plan = evaluate(scene(asked, group=None, record=None), {})
    said = statuses(plan)["switchover-1"]
    assert said.phase is phase
    assert message(said) == "BrokerGroup orders does not exist in namespace default"
    assert plan.look_again_seconds == (3.0 if phase is OperationPhase.PENDING else 0.0)


def test_what_ran_when_the_group_went_has_failed() -> None:
    said = statuses(evaluate(scene(running(), group=None, record=None), {}))["switchover-1"]
    assert said.phase is OperationPhase.FAILED
    assert said.conditions is not None
    assert [(item.type, item.status.value) for item in said.conditions] == [("Failed", "True")]


def test_an_operation_of_an_earlier_group_of_that_name_is_left_alone() -> None:
    raw = operation().raw
    raw["metadata"]["ownerReferences"][0]["uid"] = "another"
    assert evaluate(scene(read_operation(raw)), {}) == PassPlan()


def test_what_nobody_owns_is_given_to_the_group_first() -> None:
    raw = operation().raw
    del raw["metadata"]["ownerReferences"]
    plan = evaluate(scene(read_operation(raw)), {})
    assert isinstance(plan.steps[0], Adopt)
    assert plan.steps[0].group_uid == GROUP_UID
    leaving = group()
    leaving["metadata"]["deletionTimestamp"] = rfc3339(NOW)
    assert not [s for s in evaluate(scene(read_operation(raw), group=leaving), {}).steps if isinstance(s, Adopt)]


def test_what_is_being_deleted_is_left_alone() -> None:
    raw = operation().raw
    raw["metadata"]["deletionTimestamp"] = rfc3339(NOW)
    assert evaluate(scene(read_operation(raw)), {}) == PassPlan()


def test_the_time_to_live_of_finished_ones_ends() -> None:
    over = finished("over", completed=NOW - 61, ttlSecondsAfterFinished=60)
    soon = finished("soon", completed=NOW - 50, phase="Rejected", ttlSecondsAfterFinished=60)
    kept = finished("kept", completed=NOW - 9_999)
    plan = evaluate(scene(over, soon, kept), {})
    assert removed(plan) == {"over"}
    assert plan.look_again_seconds == 10


def test_only_the_last_ones_are_kept() -> None:
    many = [finished(f"n{number}", completed=NOW - number) for number in range(22)]
    assert removed(evaluate(scene(*many), {})) == {"n20", "n21"}


def test_events_are_told_once_and_not_beside_the_controller_planes_own() -> None:
    def reasons(plan: PassPlan) -> list[str]:
        return [step.note.reason for step in plan.steps if isinstance(step, WriteStatus) and step.note]

    assert reasons(evaluate(scene(operation()), {})) == []
    assert reasons(evaluate(scene(operation("Restart")), {})) == ["RestartStarted"]
    assert reasons(evaluate(scene(operation(toBrokerId=9)), {})) == ["SwitchoverRejected"]
    assert reasons(evaluate(scene(operation("Restart", spec={"dryRun": "All"})), {})) == []
