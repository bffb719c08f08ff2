"""When the status is written: at once where anything but a lag has changed, and lags alone once in a while."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from brokergroup_operator.api import names
from brokergroup_operator.reconcile.evaluate import evaluate
from brokergroup_operator.reconcile.plan import WriteStatus
from controller_core.model import LiveReplica
from tests.reconcile import builders as b

if TYPE_CHECKING:
    from brokergroup_operator.reconcile.see.observed import Observed

WRITTEN = "2026-11-21T00:00:00Z"


def lagging(seen: Observed, behind: int) -> Observed:
    """Broker 2 is so many bytes behind the master."""
    assert seen.snapshot is not None
    live = {one: LiveReplica(broker_id=one, epoch=7, max_offset=10**9) for one in (1, 2, 3)}
    live[2] = live[2]._replace(max_offset=10**9 - behind)
    return replace(seen, snapshot=replace(seen.snapshot, live=live))


def shown(seen: Observed, now: str) -> list[dict[str, Any]]:
    plan = evaluate(seen, b.SETTINGS, now=now)
    return [action.status for action in plan.actions if isinstance(action, WriteStatus)]


def written(seen: Observed) -> Observed:
    """As the API server has it after the first write."""
    [status] = shown(seen, WRITTEN)
    managed = [{"manager": names.FIELD_MANAGER_STATUS, "operation": "Apply", "time": WRITTEN}]
    metadata = {**seen.group_object["metadata"], "managedFields": managed}
    return replace(seen, group_object={**seen.group_object, "metadata": metadata, "status": status})


def lag_of(statuses: list[dict[str, Any]]) -> list[int]:
    return [member["lagBytes"] for status in statuses for member in status["members"] if member["brokerId"] == 2]


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        ("2026-11-21T00:00:01Z", []),
        ("2026-11-21T00:00:09Z", []),
        ("2026-11-21T00:00:10Z", [2**23]),
        ("2026-11-20T23:59:59Z", [2**23]),
    ],
)
def test_a_lag_alone_is_written_once_in_ten_seconds(now: str, expected: list[int]) -> None:
    seen = written(lagging(b.settled(), 2**24))
    assert lag_of(shown(lagging(seen, 2**23), now)) == expected


def test_whatever_else_changes_is_written_at_once_and_the_lag_with_it() -> None:
    seen = written(lagging(b.settled(), 2**24))
    pods = {**seen.pods, "orders-3": b.running_pod(seen.group, 3, role="slave", ready=False)}
    assert lag_of(shown(replace(lagging(seen, 2**23), pods=pods), "2026-11-21T00:00:01Z")) == [2**23]


def test_without_a_time_of_the_last_write_nothing_is_held_back() -> None:
    seen = written(lagging(b.settled(), 2**24))
    metadata = b.without(seen.group_object["metadata"], "managedFields")
    seen = replace(seen, group_object={**seen.group_object, "metadata": metadata})
    assert lag_of(shown(lagging(seen, 2**23), "2026-11-21T00:00:01Z")) == [2**23]
