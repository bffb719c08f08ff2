"""The failovers in a group's status: each written by the pod that carried it out, without loss of others' entries."""

from __future__ import annotations

import asyncio
import copy
from typing import Any

from brokergroup_operator.kube.errors import ApiUnavailableError, ConflictError
from brokergroup_operator.observe import failover_history
from brokergroup_operator.observe.failover_history import FAILOVERS_KEPT, FailoverHistory
from brokergroup_operator.observe.timeline import Kind, Outcome, Step
from tests.observe.test_metrics import timeline


class GroupApi:
    """One BrokerGroup; refuses the patches of a version that is not the present one, and what the test tells it to."""

    def __init__(self) -> None:
        self.group: dict[str, Any] = {"metadata": {"resourceVersion": "1"}, "status": {"phase": "Ready"}}
        self.refusals: list[Exception] = []
        self.patches = 0
        self.patched = asyncio.Event()

    async def get(self, *_: Any, **__: Any) -> dict[str, Any]:
        return copy.deepcopy(self.group)

    async def patch(self, _: Any, __: str, patch: dict[str, Any], *, subresource: str, **___: Any) -> dict[str, Any]:
        assert subresource == "status"
        self.patches += 1
        if self.refusals:
            raise self.refusals.pop(0)
        assert patch["metadata"]["resourceVersion"] == self.group["metadata"]["resourceVersion"]
        self.group["status"] |= patch["status"]
        self.group["metadata"]["resourceVersion"] += "1"
        self.patched.set()
        return self.group


async def told(api: GroupApi, *calls: tuple[str, Any]) -> dict[str, Any]:
    history = FailoverHistory(api)  # type: ignore[arg-type]
    history.start()
    for method, made in calls:
        getattr(history, method)(made)
        await asyncio.sleep(0)
    async with asyncio.timeout(5):
        await api.patched.wait()
    await history.stop()
    status: dict[str, Any] = api.group["status"]
    return status


async def test_a_failover_is_put_in_front_of_those_that_others_wrote() -> None:
    api = GroupApi()
    older = {"trigger": "silence", "from": 2, "to": 1, "epoch": 4, "startedAt": "1999-01-01T00:00:00Z"}
    api.group["status"] |= {"failovers": [older]}
    status = await told(api, ("master_changed", timeline(epoch_after=5)))
    assert [one["epoch"] for one in status["failovers"]] == [5, 4]
    assert status["failovers"][0]["durationMilliseconds"] == 200
    assert status["phase"] == "Ready", "the rest is the reconcile plane's"


async def test_the_same_failover_with_its_last_phase_replaces_the_first_word_of_it() -> None:
    api = GroupApi()
    await told(api, ("master_changed", timeline(epoch_after=5)))
    closed = timeline(epoch_after=5)
    closed.steps[Step.IN_SYNC] = closed.steps[Step.DETECTED] + 9.0
    api.patched.clear()
    status = await told(api, ("incident_closed", closed))
    assert [one["phases"].get("inSync") for one in status["failovers"]] == [9000]


async def test_a_conflict_and_an_outage_are_tried_again(monkeypatch: Any) -> None:
    monkeypatch.setattr(failover_history, "PAUSE_SECONDS", 0.0)
    api = GroupApi()
    api.refusals = [ConflictError("the status moved"), ApiUnavailableError("the API server is away")]
    status = await told(api, ("master_changed", timeline(epoch_after=5)))
    assert (api.patches, status["failovers"][0]["epoch"]) == (3, 5)


async def test_what_was_cancelled_and_what_was_planned_is_no_failover() -> None:
    api = GroupApi()
    calls = [timeline(outcome=Outcome.CANCELLED), timeline(kind=Kind.SWITCHOVER), timeline(epoch_after=7)]
    status = await told(api, *(("master_changed", one) for one in calls))
    assert [one["epoch"] for one in status["failovers"]] == [7]


async def test_no_more_are_kept_than_the_status_may_have() -> None:
    api = GroupApi()
    api.group["status"]["failovers"] = [
        {"from": 1, "epoch": epoch, "startedAt": f"1999-01-{epoch + 1:02}T00:00:00Z"} for epoch in reversed(range(10))
    ]
    status = await told(api, ("master_changed", timeline(epoch_after=11)))
    assert len(status["failovers"]) == FAILOVERS_KEPT
    assert [one["epoch"] for one in status["failovers"]] == [11, *reversed(range(1, 10))]
