"""Which operation runs next, which wait, which have expired, and the window of a switchover: pure."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from brokergroup_operator.api.brokergroup_operation import OperationPhase, OperationStatus
from brokergroup_operator.api.times import rfc3339
from brokergroup_operator.reconcile.operations.evaluate import evaluate
from brokergroup_operator.reconcile.operations.plan import Adopt, DoEffect, PassPlan, Remove, WriteStatus
from brokergroup_operator.reconcile.see.fetch import read_operation
from tests.operations.world import GROUP_UID, NOW, finished, group, operation, record, running, scene

if TYPE_CHECKING:
    from brokergroup_operator.reconcile.see.observed import Observed, Operation

YEAR = 365 * 86_400.0


def statuses(plan: PassPlan) -> dict[str, OperationStatus]:
    return {step.operation.name: step.status for step in plan.steps if isinstance(step, WriteStatus)}


def removed(plan: PassPlan) -> set[str]:
    return {step.operation.name for step in plan.steps if isinstance(step, Remove)}


def said(plan: PassPlan, name: str = "switchover-1") -> tuple[OperationPhase | None, str]:
    """Return phase and message of the status that is written."""
    status = statuses(plan)[name]
    return status.phase, status.result.message if status.result else ""


def test_the_oldest_runs_and_the_others_say_for_whom_they_wait() -> None:
    young, old = operation(name="young", created=NOW - 10), operation("Restart", name="old", created=NOW - 20)
    plan = evaluate(scene(young, old), {})
    assert said(plan, "old")[0] is OperationPhase.RUNNING
    assert said(plan, "young") == (OperationPhase.PENDING, "waits for old")


def told(seen: Observed) -> dict[str, OperationStatus]:
    return statuses(evaluate(seen, {}))


def with_metadata(**metadata: Any) -> Operation:
    raw = operation().raw
    raw["metadata"] |= metadata
    return read_operation(raw)


MOVES = "from broker 1 to the best candidate"


@pytest.mark.parametrize(
    ("seen", "name", "phase", "words"),
    [
        (scene(operation(name="b"), operation(name="a")), "a", OperationPhase.RUNNING, MOVES),
        (scene(operation(name="b"), operation(name="a")), "b", OperationPhase.PENDING, "waits for a"),
        (
            scene(operation(name="older", created=NOW - 99), running(name="now", created=NOW - 9)),
            "older", OperationPhase.PENDING, "waits for now",
        ),
        (scene(operation(notBefore=rfc3339(NOW - 1))), "switchover-1", OperationPhase.RUNNING, MOVES),
        (
            scene(operation(toBrokerId=9, spec={"dryRun": "All"})), "switchover-1", OperationPhase.REJECTED,
            "broker 9 is not a member of orders; its members: 1, 2, 3",
        ),
    ],
    ids=["the first name of one second", "the second name", "a running one is never overtaken", "its time has come", "a dry run"],
)  # fmt: skip
def test_which_runs(seen: Observed, name: str, phase: OperationPhase, words: str) -> None:
    assert said(evaluate(seen, {}), name) == (phase, words)


def test_what_ran_when_the_group_went_has_failed() -> None:
    status = told(scene(running(), group=None, record=None))["switchover-1"]
    assert status.phase is OperationPhase.FAILED
    assert [(item.type, item.status.value) for item in status.conditions or ()] == [("Failed", "True")]


@pytest.mark.parametrize(
    "metadata",
    [{"ownerReferences": [{"kind": "BrokerGroup", "name": "orders", "uid": "another"}]}, {"deletionTimestamp": rfc3339(NOW)}],
    ids=["of an earlier group of that name", "being deleted"],
)  # fmt: skip
def test_what_is_left_alone(metadata: dict[str, Any]) -> None:
    assert evaluate(scene(with_metadata(**metadata)), {}) == PassPlan()


def test_one_that_waits_for_its_time_lets_younger_ones_pass() -> None:
    later = operation(name="later", created=NOW - 99, notBefore=rfc3339(NOW + 30))
    plan = evaluate(scene(later, operation(name="now", created=NOW - 9)), {})
    assert said(plan, "later") == (OperationPhase.PENDING, f"not before {rfc3339(NOW + 30)}")
    assert said(plan, "now")[0] is OperationPhase.RUNNING
    assert evaluate(scene(later), {}).look_again_seconds == 30


def test_a_dry_run_waits_for_nobody_and_does_nothing() -> None:
    dry = operation(name="dry", created=NOW, spec={"dryRun": "All"}, notBefore=rfc3339(NOW + 99))
    plan = evaluate(scene(running(name="now"), dry), {})
    status = statuses(plan)["dry"]
    assert (status.phase, status.started_at) == (OperationPhase.SUCCEEDED, None)
    assert status.result is not None
    assert len(status.result.plan) == 3
    assert not [step for step in plan.steps if isinstance(step, DoEffect) and step.operation.name == "dry"]


def test_the_end_of_one_asks_for_the_next_at_once() -> None:
    plan = evaluate(scene(operation(name="a", toBrokerId=9), operation(name="b")), {})
    assert statuses(plan)["a"].phase is OperationPhase.REJECTED
    assert plan.look_again_seconds == 0.0


def test_nothing_is_written_twice() -> None:
    first = evaluate(scene(operation(name="a"), operation(name="b")), {})
    after = []
    for step in first.steps:
        assert isinstance(step, WriteStatus)
        after.append(replace(step.operation, asked=msgspec.structs.replace(step.operation.asked, status=step.status)))
    assert not told(scene(*after))


LONG_PAST = operation(notBefore=rfc3339(NOW - YEAR))
OVER = f"not begun in its window, {rfc3339(NOW - YEAR)} to {rfc3339(NOW - YEAR + 60)}: it is {rfc3339(NOW)}"
IN_9999 = operation(notBefore="9999-12-31T23:59:59Z")


@pytest.mark.parametrize(
    ("seen", "phase", "words"),
    [
        (scene(running("Restart", name="r"), operation(created=NOW - YEAR)), OperationPhase.PENDING, "waits for r"),
        (scene(IN_9999), OperationPhase.PENDING, "not before 9999-12-31T23:59:59Z"),
        (
            scene(operation(spec={"dryRun": "All"}, notBefore=rfc3339(NOW - YEAR))),
            OperationPhase.REJECTED, OVER,
        ),
        (scene(LONG_PAST, record=record(master=None)), OperationPhase.REJECTED, OVER),
    ],
    ids=["no window: as long as it takes", "the year 9999", "a dry run after its window", "no master to move"],
)  # fmt: skip
def test_waits_and_windows(seen: Observed, phase: OperationPhase, words: str) -> None:
    assert said(evaluate(seen, {})) == (phase, words)
    if words.startswith("not before"):
        assert (evaluate(seen, {}).look_again_seconds or 0) > 1e10


@pytest.mark.parametrize("phase", ["Succeeded", "Failed", "Rejected"])
@pytest.mark.parametrize("gone", [False, True], ids=["its group is there", "its group is gone"])
def test_what_is_over_stays_as_it_ended(phase: str, *, gone: bool) -> None:
    over = finished("over", completed=NOW - 1, phase=phase)
    there = scene(over, group=None, record=None) if gone else scene(over)
    assert evaluate(there, {}).steps == ()


@pytest.mark.parametrize(("age", "phase"), [(2.0, OperationPhase.PENDING), (6.0, OperationPhase.REJECTED)])
def test_a_group_that_is_not_there_is_waited_for_a_moment(age: float, phase: OperationPhase) -> None:
    asked = operation(created=NOW - age)
    plan = evaluate(scene(asked, group=None, record=None), {})
    assert said(plan) == (phase, "BrokerGroup orders does not exist in namespace default")
    assert plan.look_again_seconds == (3.0 if phase is OperationPhase.PENDING else 0.0)


def test_what_nobody_owns_is_given_to_the_group_first() -> None:
    raw = operation().raw
    del raw["metadata"]["ownerReferences"]
    plan = evaluate(scene(read_operation(raw)), {})
    assert isinstance(plan.steps[0], Adopt)
    assert plan.steps[0].group_uid == GROUP_UID
    leaving = group()
    leaving["metadata"]["deletionTimestamp"] = rfc3339(NOW)
    assert not [s for s in evaluate(scene(read_operation(raw), group=leaving), {}).steps if isinstance(s, Adopt)]


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


@pytest.mark.parametrize(
    ("section", "window"),
    [
        ({"notBefore": rfc3339(NOW - YEAR)}, f"{rfc3339(NOW - YEAR)} to {rfc3339(NOW - YEAR + 60)}"),
        ({"notBefore": rfc3339(NOW - 61)}, f"{rfc3339(NOW - 61)} to {rfc3339(NOW - 1)}"),
        ({"notBefore": rfc3339(NOW - 11), "deadlineSeconds": 10}, f"{rfc3339(NOW - 11)} to {rfc3339(NOW - 1)}"),
        ({"notBefore": rfc3339(NOW - 7200), "notAfter": rfc3339(NOW - 3600)}, f"{rfc3339(NOW - 7200)} to {rfc3339(NOW - 3600)}"),
        ({"notAfter": rfc3339(NOW - 1)}, f"until {rfc3339(NOW - 1)}"),
        ({"notBefore": "0001-01-01T00:00:00Z"}, "0001-01-01T00:00:00Z to 0001-01-01T00:01:00Z"),
    ],
)  # fmt: skip
def test_what_was_not_begun_in_its_window_is_rejected(section: dict[str, Any], window: str) -> None:
    """A switchover whose schedule has passed is rejected. Reports: Patroni #118, zalando/postgres-operator #3058."""
    plan = evaluate(scene(operation(**section)), {})
    assert said(plan) == (OperationPhase.REJECTED, f"not begun in its window, {window}: it is {rfc3339(NOW)}")
    assert statuses(plan)["switchover-1"].started_at is None
    (note,) = (step.note for step in plan.steps if isinstance(step, WriteStatus))
    assert note is not None
    assert (note.reason, note.warning) == ("SwitchoverRejected", True)


@pytest.mark.parametrize(
    "section",
    [
        {"notBefore": rfc3339(NOW)},
        {"notBefore": rfc3339(NOW - 60)},
        {"notBefore": rfc3339(NOW - 10), "deadlineSeconds": 10},
        {"notBefore": rfc3339(NOW - 3600), "notAfter": rfc3339(NOW)},
        {"notAfter": rfc3339(NOW + 1)},
        {},
    ],
)
def test_within_its_window_it_runs(section: dict[str, Any]) -> None:
    assert said(evaluate(scene(operation(**section)), {}))[0] is OperationPhase.RUNNING


@pytest.mark.parametrize(
    ("others", "changes", "why"),
    [
        ((running("Restart", name="restart-1"),), {}, "waits for restart-1"),
        ((), {"group": group(safe=False)}, "is not FailoverSafe"),
    ],
)
def test_a_window_that_ends_while_it_waits_is_an_end(
    others: tuple[Any, ...], changes: dict[str, Any], why: str
) -> None:
    waiting = operation(created=NOW - 5, notBefore=rfc3339(NOW - 50))
    if "group" in changes:
        changes["group"]["status"]["conditions"][0]["lastTransitionTime"] = rfc3339(NOW - 1)
    plan = evaluate(scene(*others, waiting, **changes), {})
    phase, message = said(plan)
    assert phase is OperationPhase.PENDING
    assert why in message
    assert plan.look_again_seconds is not None
    assert plan.look_again_seconds <= 10.0
    pending = {"phase": "Pending", "result": {"message": message}}
    late = operation(created=NOW - 65, notBefore=rfc3339(NOW - 61), status=pending)
    phase, message = said(evaluate(scene(*others, late, **changes), {}))
    assert phase is OperationPhase.REJECTED
    assert why in message


def test_one_that_runs_is_ended_by_its_deadline_and_not_by_its_window() -> None:
    begun = running(notBefore=rfc3339(NOW - 100), deadlineSeconds=120, started=NOW - 90)
    assert all(status.phase not in {"Rejected", "Failed"} for status in told(scene(begun)).values())


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ({"notBefore": "2026-11-27t23:00:00z"}, "spec.switchover.notBefore '2026-11-27t23:00:00z': expected RFC 3339"),
        ({"notBefore": "2026-11-27T23:00:00+99:99"}, "spec.switchover.notBefore '2026-11-27T23:00:00+99:99': expected"),
        ({"notAfter": "2030-06-30T23:59:60Z"}, "spec.switchover.notAfter '2030-06-30T23:59:60Z': expected RFC 3339"),
        ({"notBefore": "2030-02-30T00:00:00Z"}, "spec.switchover.notBefore '2030-02-30T00:00:00Z': day is out of range"),
        (
            {"notBefore": "2090-01-01T02:00:00Z", "notAfter": "2090-01-01T02:00:00Z"},
            "spec.switchover.notAfter 2090-01-01T02:00:00Z: expected a time after notBefore 2090-01-01T02:00:00Z",
        ),
        (
            {"notBefore": "2090-01-01T02:00:00Z", "notAfter": "2090-01-01T02:00:00+01:00"},
            "spec.switchover.notAfter 2090-01-01T01:00:00Z: expected a time after notBefore 2090-01-01T02:00:00Z",
        ),
    ],
)  # fmt: skip
def test_a_window_that_is_none_is_rejected_with_words_and_the_next_has_its_turn(
    section: dict[str, Any], words: str
) -> None:
    plan = evaluate(scene(operation(**section), operation("Restart", name="restart-1", created=NOW)), {})
    phase, message = said(plan)
    assert phase is OperationPhase.REJECTED
    assert words in message
    assert plan.look_again_seconds == 0.0
