"""The comparison behind `real_hour.py` finds each kind of difference, and reports none if there is none."""

from __future__ import annotations

import datetime as dt
from copy import deepcopy
from typing import TYPE_CHECKING, Any

import pytest

from tests.sla.hour_stage import Evidence, GroupEvidence, Kind, Span, Stroke, plan_of
from tests.sla.real_hour import Told, differences, gaps_of, period_of, system_differences

if TYPE_CHECKING:
    from collections.abc import Callable

BEGAN_MS = round(dt.datetime(2026, 11, 22, 8, tzinfo=dt.UTC).timestamp() * 1000)


class Hour:
    """A minute with a master lost at 9.5 s and acknowledgements from 10.2 s on, correct in every source."""

    def __init__(self) -> None:
        acks_ms = [BEGAN_MS + at_ms for at_ms in range(0, 60_000, 100) if not 9_500 < at_ms < 10_200]
        self.group = GroupEvidence(acks_ms, epochs=[2], unavailable_seconds=0.7, failovers_by_outcome={"completed": 1})
        self.evidence = Evidence(BEGAN_MS, BEGAN_MS + 60_000, 15_000, 1_500, groups={"orders": self.group})
        steps = {"detected": 0.0, "roleChanged": 100.0, "inSync": 200.0}
        self.line: dict[str, Any] = {
            "id": "default/orders/2", "kind": "failover", "brokerName": "orders", "outcome": "completed",
            "epochBefore": 1, "epoch": 2, "startedAt": "2026-11-22T08:00:10.000Z", "detectionMilliseconds": 500.0,
            "stepsMilliseconds": steps,
        }  # fmt: skip
        self.incident: dict[str, Any] = {
            "id": "default/orders/2", "brokerGroup": "orders", "source": "incident_log", "kind": "failover",
            "planned": False, "startMs": BEGAN_MS + 9_500, "endMs": BEGAN_MS + 10_200, "errorMs": 1,
            "detectionMs": 500.0, "stepsMs": deepcopy(steps),
        }  # fmt: skip
        self.figures: dict[str, Any] = {
            "brokerGroup": "orders", "counterMs": 700.0, "write": {"downMs": 700, "disputedMs": 0, "source": "incident_log"},
            "recovery": {"rto": {"n": 1, "maxMs": 700}, "stages": {"detect": {"n": 1, "maxMs": 500.0}}},
        }  # fmt: skip
        self.incidents = [self.incident]

    def wrong(self) -> list[str]:
        told = Told("http", 0, {"groups": [self.figures]}, self.incidents, 0.0)
        return [*system_differences(self.evidence, [self.line]), *differences(told, [self.line], self.evidence)]


def test_what_agrees_is_no_difference() -> None:
    assert Hour().wrong() == []


def _wait(hour: Hour, from_ms: int, to_ms: int) -> None:
    hour.group.acks_ms = [at for at in hour.group.acks_ms if not from_ms < at - BEGAN_MS < to_ms]


def _frozen(hour: Hour) -> None:
    hour.evidence.strokes.append(Stroke("orders", Kind.SLAVES_FROZEN.value, BEGAN_MS + 20_000, BEGAN_MS + 50_000))


def _by_gauge(hour: Hour) -> None:
    gauge = {"id": "x", "source": "gauge", "kind": None, "startMs": BEGAN_MS + 40_000, "endMs": BEGAN_MS + 55_000}
    hour.incidents.append({**hour.incident, **gauge, "errorMs": 15_000})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda hour: hour.incidents.clear(), "logged and not reported: default/orders/2"),
        (lambda hour: hour.incident.update(startMs=BEGAN_MS + 9_502), "began "),
        (lambda hour: hour.incident.update(endMs=BEGAN_MS + 10_202), "ended "),
        (lambda hour: hour.incident.update(errorMs=15_000), "the log has both edges"),
        (lambda hour: hour.incident["stepsMs"].update(roleChanged=90.0), "steps "),
        (lambda hour: hour.incident.update(id="default/orders/3"), "reported and not logged"),
        (lambda hour: hour.group.epochs.append(3), "epoch 3 began and is not reported"),
        (lambda hour: hour.group.epochs.clear(), "epoch 2 is reported and never was"),
        (lambda hour: hour.group.failovers_by_outcome.update(completed=2), "the operator counted {'completed': 2}"),
        (lambda hour: setattr(hour.group, "unavailable_seconds", 0.8), "the operator counted 800 ms"),
        (lambda hour: hour.figures.update(counterMs=690.0), "counterMs 690.0"),
        (lambda hour: hour.figures["write"].update(downMs=701), "down 701 ms"),
        (lambda hour: hour.figures["recovery"]["rto"].update(n=2), "RTO of 2 incidents"),
        (lambda hour: hour.figures["recovery"]["stages"]["detect"].update(maxMs=1.0), "stage detect"),
        (lambda hour: _wait(hour, 30_000, 32_000), "a client waited from"),
        (lambda hour: hour.incident.update(startMs=BEGAN_MS + 1_000), "acknowledged in the outage"),
        (_frozen, "0 outages by the gauge alone"),
        (_by_gauge, "and nobody made one"),
        (lambda hour: hour.group.lost.append("m1"), "acknowledged and lost"),
        (lambda hour: hour.group.violations.append("two masters"), "two masters"),
        (
            lambda hour: hour.group.failovers.append({"startedAt": "2026-11-22T08:00:30Z"}),
            "in status and not in the log",
        ),
    ],
)
def test_what_differs_is_told(change: Callable[[Hour], object], said: str) -> None:
    hour = Hour()
    change(hour)
    assert any(said in text for text in hour.wrong()), hour.wrong()


def test_a_client_that_stood_still_itself_saw_no_gap() -> None:
    hour = Hour()
    _wait(hour, 30_000, 32_000)
    assert gaps_of(hour.group, hour.evidence) == [Span(BEGAN_MS + 30_000, BEGAN_MS + 32_000)]
    hour.evidence.stalls.append(Span(BEGAN_MS + 30_100, BEGAN_MS + 31_000))
    assert gaps_of(hour.group, hour.evidence) == []


def test_attempts_at_one_loss_are_one_incident() -> None:
    """As in the operator's log: an attempt without a candidate takes an epoch, and the next line begins with that one."""
    hour = Hour()
    first = {**hour.line, "id": "default/orders/1@x", "outcome": "noEligibleReplica", "epochBefore": 1}
    del first["epoch"]
    second = {
        **hour.line, "id": "default/orders/3", "epochBefore": 2, "epoch": 3, "startedAt": "2026-11-22T08:00:12.000Z"
    }  # fmt: skip
    told = Told("http", 0, {"groups": [hour.figures]}, hour.incidents, 0.0)
    hour.incident.update(id="default/orders/1@x", endMs=BEGAN_MS + 12_200)
    hour.group.epochs = [2, 3]
    wrong = [text for text in differences(told, [first, second], hour.evidence) if "epoch" in text or "logged" in text]
    assert wrong == []


def test_three_minutes_hold_each_fault_and_an_hour_many() -> None:
    assert {kind for _, _, kind in plan_of(3).strokes} == set(Kind)
    hour = plan_of(60)
    assert len(hour.strokes) > 20
    at_seconds, _, last = hour.strokes[-1]
    assert at_seconds < 3600
    assert last not in {Kind.MAJORITY_LOST, Kind.SLAVES_FROZEN}, "a long outage would outlast the hour"


def test_the_period_holds_both_ends() -> None:
    assert period_of(BEGAN_MS, BEGAN_MS + 60_000) == "2026-11-22"
    assert period_of(BEGAN_MS, BEGAN_MS + 20 * 3_600_000) == "2026-11"
    assert period_of(BEGAN_MS - 24 * 3_600_000, BEGAN_MS) == "2026-W47"
