"""The window of a switchover: from notBefore to notAfter, or deadlineSeconds long; it never starts outside the window."""

from __future__ import annotations

from typing import Any

import pytest

from brokergroup_operator.api.brokergroup_operation import OperationPhase, OperationStatus
from brokergroup_operator.api.times import rfc3339
from brokergroup_operator.reconcile.operations.evaluate import evaluate
from brokergroup_operator.reconcile.operations.plan import PassPlan, WriteStatus
from tests.operations.scenes import NOW, group, operation, record, running, scene

YEAR = 365 * 86_400.0


def status_of(plan: PassPlan, name: str = "switchover-1") -> OperationStatus:
    (status,) = (step.status for step in plan.steps if isinstance(step, WriteStatus) and step.operation.name == name)
    return status


def said(plan: PassPlan, name: str = "switchover-1") -> tuple[OperationPhase | None, str]:
    status = status_of(plan, name)
    assert status.result is not None
    return status.phase, status.result.message


@pytest.mark.parametrize(
    ("section", "window"),
    [
        ({"notBefore": rfc3339(NOW - YEAR)}, f"{rfc3339(NOW - YEAR)} to {rfc3339(NOW - YEAR + 60)}"),
        ({"notBefore": rfc3339(NOW - 61)}, f"{rfc3339(NOW - 61)} to {rfc3339(NOW - 1)}"),
        ({"notBefore": rfc3339(NOW - 11), "deadlineSeconds": 10}, f"{rfc3339(NOW - 11)} to {rfc3339(NOW - 1)}"),
        (
            {"notBefore": rfc3339(NOW - 7200), "notAfter": rfc3339(NOW - 3600)},
            f"{rfc3339(NOW - 7200)} to {rfc3339(NOW - 3600)}",
        ),
        ({"notAfter": rfc3339(NOW - 1)}, f"until {rfc3339(NOW - 1)}"),
        ({"notBefore": "0001-01-01T00:00:00Z"}, "0001-01-01T00:00:00Z to 0001-01-01T00:01:00Z"),
    ],
)
def test_what_was_not_begun_in_its_window_is_rejected(section: dict[str, Any], window: str) -> None:
    """A switchover whose schedule has passed is rejected. Reports: Patroni #118, zalando/postgres-operator #3058."""
    plan = evaluate(scene(operation(**section)), {})
    phase, message = said(plan)
    assert phase is OperationPhase.REJECTED
    assert message == f"not begun in its window, {window}: it is {rfc3339(NOW)}"
    assert status_of(plan).started_at is None
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
    late = operation(
        created=NOW - 65,
        notBefore=rfc3339(NOW - 61),
        status={"phase": "Pending", "result": {"message": message}},
    )
    phase, message = said(evaluate(scene(*others, late, **changes), {}))
    assert phase is OperationPhase.REJECTED
    assert why in message


def test_without_a_window_it_waits_as_long_as_it_takes() -> None:
    waiting = operation(created=NOW - YEAR)
    assert said(evaluate(scene(running("Restart", name="r"), waiting), {})) == (
        OperationPhase.PENDING,
        "waits for r",
    )


def test_one_that_runs_is_ended_by_its_deadline_and_not_by_its_window() -> None:
    begun = running(notBefore=rfc3339(NOW - 100), deadlineSeconds=120, started=NOW - 90)
    plan = evaluate(scene(begun), {})
    assert not [
        one for one in plan.steps if isinstance(one, WriteStatus) and one.status.phase in {"Rejected", "Failed"}
    ]


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ({"notBefore": "2026-11-27t23:00:00z"}, "spec.switchover.notBefore '2026-11-27t23:00:00z': expected RFC 3339"),
        ({"notBefore": "2026-11-27T23:00:00+99:99"}, "spec.switchover.notBefore '2026-11-27T23:00:00+99:99': expected"),
        ({"notAfter": "2030-06-30T23:59:60Z"}, "spec.switchover.notAfter '2030-06-30T23:59:60Z': expected RFC 3339"),
        (
            {"notBefore": "2030-02-30T00:00:00Z"},
            "spec.switchover.notBefore '2030-02-30T00:00:00Z': day is out of range",
        ),
        (
            {"notBefore": "2090-01-01T02:00:00Z", "notAfter": "2090-01-01T02:00:00Z"},
            "spec.switchover.notAfter 2090-01-01T02:00:00Z: expected a time after notBefore 2090-01-01T02:00:00Z",
        ),
        (
            {"notBefore": "2090-01-01T02:00:00Z", "notAfter": "2090-01-01T02:00:00+01:00"},
            "spec.switchover.notAfter 2090-01-01T01:00:00Z: expected a time after notBefore 2090-01-01T02:00:00Z",
        ),
    ],
)
def test_a_window_that_is_none_is_rejected_with_words_and_the_next_has_its_turn(
    section: dict[str, Any], words: str
) -> None:
    plan = evaluate(scene(operation(**section), operation("Restart", name="restart-1", created=NOW)), {})
    phase, message = said(plan)
    assert phase is OperationPhase.REJECTED
    assert words in message
    assert plan.look_again_seconds == 0.0


def test_a_time_in_the_year_9999_is_waited_for() -> None:
    plan = evaluate(scene(operation(notBefore="9999-12-31T23:59:59Z")), {})
    assert said(plan) == (OperationPhase.PENDING, "not before 9999-12-31T23:59:59Z")
    assert plan.look_again_seconds is not None
    assert plan.look_again_seconds > 1e10


def test_a_dry_run_after_its_window_says_so() -> None:
    dry = operation(spec={"dryRun": "All"}, notBefore=rfc3339(NOW - YEAR))
    phase, message = said(evaluate(scene(dry), {}))
    assert phase is OperationPhase.REJECTED
    assert "not begun in its window" in message


def test_a_window_ends_also_where_there_is_no_master_to_move() -> None:
    without_master = record(master=None)
    phase, message = said(evaluate(scene(operation(notBefore=rfc3339(NOW - YEAR)), record=without_master), {}))
    assert phase is OperationPhase.REJECTED
    assert "not begun in its window" in message
