"""An operation's status that the API server refuses: none is too long for it, and one that is refused holds no other one up."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import pytest

from brokergroup_operator.api.brokergroup_operation import MAX_PLAN_STEP_CHARACTERS
from brokergroup_operator.kube.errors import ApiError
from brokergroup_operator.reconcile.operations.plan import Start
from kube_sandbox.api_server.errors import StatusError
from tests.operations.world import World, begun, expect

if TYPE_CHECKING:
    from aiohttp import web

    from kube_sandbox.api_server.server import SandboxApiServer


TOPICS = [f"{'t' * 500}-{number}" for number in range(256)]


async def test_a_plan_with_as_many_names_as_may_be_asked_for_is_written(world: World) -> None:
    """Its status was refused in every pass."""
    retire: dict[str, Any] = {"abandonTopics": TOPICS}
    phase, result = await world.ended("Retire", retire, dryRun="All")
    assert phase == "Succeeded"
    assert max(map(len, result["plan"])) <= MAX_PLAN_STEP_CHARACTERS


def test_a_plan_says_how_many_topics_are_given_up() -> None:
    few = expect(Start, begun("Retire", section={"abandonTopics": ["a", "b"]}))
    assert "has read every topic, but for a, b;" in few.steps[1]
    many = expect(Start, begun("Retire", section={"abandonTopics": ["a", "b", "c", "d", "e"]}))
    assert "has read every topic, but for a, b, c and 2 more;" in many.steps[1]


@pytest.mark.parametrize(
    ("status", "reason", "said"),
    [
        (403, "Forbidden", "operations are protected"),
        (500, "InternalError", 'failed calling webhook "operations.example": connection refused'),
    ],
)
async def test_an_operation_whose_status_is_refused_holds_no_other_up(
    world: World, sandbox: SandboxApiServer, status: int, reason: str, said: str
) -> None:
    """By a policy, say: each pass ended there, and no younger operation of the group was begun or ended."""

    def protect_one(request: web.BaseRequest) -> None:
        world.observe(request)
        if request.method == "PUT" and request.path.endswith("/one/status"):
            raise StatusError(status, reason, said)

    sandbox.before_request = protect_one
    await world.ask("one", "Switchover", {}, dryRun="All")
    await world.ask("two", "Switchover", {"toBrokerId": 9})

    async def two_is_over() -> bool:
        with contextlib.suppress(ApiError):
            await world.run_pass()
        return ((await world.asked("two")).get("status") or {}).get("phase") == "Rejected"

    await world.until(two_is_over)
    with pytest.raises(ApiError, match=said):
        await world.run_pass()
    assert "status" not in await world.asked("one")
