"""A Backup whose pods or VolumeSnapshots the API server refuses: its status says so, and it goes on later."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import pytest

from brokergroup_operator.kube.errors import NotFoundError
from brokergroup_operator.kube.resources import BROKER_GROUP_OPERATIONS, PODS, VOLUME_SNAPSHOTS
from brokergroup_operator.reconcile.see.fetch import GroupFetcher
from kube_sandbox.api_server.errors import StatusError
from tests.operations.stories import backup, backup_by_snapshots
from tests.operations.world import OPERATOR_TOKEN, World
from tests.reconcile.world import until
from tests.support.snapshot_controller import define

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from aiohttp import web

    from brokergroup_operator.kube.client import KubernetesApi
    from kube_sandbox.api_server.server import SandboxApiServer
    from tests.operations.stories import Story


@contextlib.asynccontextmanager
async def refused(world: World, story: Story, told: str) -> AsyncIterator[None]:
    """Run the story until the status says that it is refused something; what is done then lets it come to its end."""
    running = asyncio.ensure_future(story(world))
    try:
        await until("the refusal is in the status", lambda: _message_has(world, told))
        assert not running.done()
        yield
        await running
    finally:
        running.cancel()


async def _message_has(world: World, text: str) -> bool:
    with contextlib.suppress(NotFoundError):
        return text in (await world.status_of_one())["result"].get("message", "")
    return False


def refuses(
    sandbox: SandboxApiServer, world: World, method: str, status: int, *, part: str = VOLUME_SNAPSHOTS.plural
) -> None:
    """Let the API server refuse these requests of the operator, for VolumeSnapshots or for what else has this in its path."""

    def observe(request: web.BaseRequest) -> None:
        by_operator = request.headers.get("Authorization") == f"Bearer {OPERATOR_TOKEN}"
        if by_operator and request.method == method and part in request.path:
            raise StatusError(status, "Refused", "the snapshot webhook does not answer")
        world.observe(request)

    sandbox.before_request = observe


async def test_a_copying_pod_that_is_refused_is_reported_and_asked_for_again(world: World) -> None:
    world.refuses_pods = 'pods "orders-backup" is forbidden: exceeded quota: pods=3'
    async with refused(world, backup, "exceeded quota: pods=3"):
        held = (await world.status_of_one())["result"]
        assert held["message"].startswith("pod orders-backup is not made: ApiError: POST")
        world.refuses_pods = ""


async def test_without_the_kind_no_snapshot_is_taken_and_no_member_stopped(world: World) -> None:
    before = await world.items(PODS)
    phase, result = await world.ended("Backup", {"snapshot": {}})
    told = "spec.backup.snapshot: VolumeSnapshots (snapshot.storage.k8s.io/v1) are not installed in this cluster"
    assert (phase, result["message"]) == ("Rejected", told)
    assert await world.items(PODS) == before


async def test_without_the_right_to_them_no_snapshot_is_taken(world: World, sandbox: SandboxApiServer) -> None:
    """By a role of an earlier release: the group itself goes on."""
    await define(world.api)

    def forbid(request: web.BaseRequest) -> None:
        if VOLUME_SNAPSHOTS.plural in request.path and request.method == "GET":
            raise StatusError(403, "Forbidden", "volumesnapshots is forbidden")

    sandbox.before_request = forbid
    phase, result = await world.ended("Backup", {"snapshot": {}})
    assert phase == "Rejected"
    assert "the operator has no right to them: " in result["message"]


@pytest.mark.parametrize("status", [429, 500, 503, 504])
async def test_snapshots_that_cannot_be_read_hold_the_backup_alone(
    world: World, operator_api: KubernetesApi, sandbox: SandboxApiServer, status: int
) -> None:
    """The group is seen all the same, so its pods and roles are cared for."""
    await define(world.api)
    refuses(sandbox, world, "GET", status)
    await world.ask("one", "Backup", {"snapshot": {}})
    seen = await GroupFetcher(operator_api, world.view).fetch(world.key)  # type: ignore[arg-type]
    assert seen is not None
    assert set(seen.pods) == {"orders-1", "orders-2", "orders-3"}
    await world.run_pass()
    one = await world.asked("one")
    assert one["status"]["phase"] == "Pending"
    assert one["status"]["result"]["message"].startswith("waits: VolumeSnapshots can't be read now: ")
    assert "the snapshot webhook does not answer" in one["status"]["result"]["message"]
    sandbox.before_request = world.observe
    await world.run_pass()
    assert (await world.asked("one"))["status"]["phase"] == "Running"


@pytest.mark.parametrize("status", [403, 503])
async def test_snapshots_that_cannot_be_marked_are_reported_and_marked_later(
    world: World, sandbox: SandboxApiServer, status: int
) -> None:
    """The pass does not fail: a group whose passes fail is looked at ever more seldom."""
    refuses(sandbox, world, "PATCH", status)
    async with refused(world, backup_by_snapshots, "VolumeSnapshot one is not marked as whole: "):
        sandbox.before_request = world.observe


@pytest.mark.parametrize("status", [403, 422, 503])
async def test_a_pod_that_cannot_be_held_is_reported_and_held_later(
    world: World, sandbox: SandboxApiServer, status: int
) -> None:
    """By a policy for pods: the pass does not fail, and the pod runs on."""
    refuses(sandbox, world, "PATCH", status, part="/pods/orders-3")
    async with refused(world, backup_by_snapshots, "pod orders-3 can't be held: "):
        assert "orders-3" in {one["metadata"]["name"] for one in await world.items(PODS)}
        sandbox.before_request = world.observe


async def test_attachments_are_listed_only_for_a_cut(world: World, sandbox: SandboxApiServer) -> None:
    """They are those of the whole cluster."""
    listed: list[str] = []

    def observe(request: web.BaseRequest) -> None:
        listed.extend([request.path] if request.path.endswith("/volumeattachments") else [])
        world.observe(request)

    sandbox.before_request = observe
    held: dict[str, Any] = {
        "brokerId": 3, "pod": "orders-3", "podUid": "of-before", "folder": "orders/one", "snapshots": ["one"],
        "comparedAt": "2030-01-01T00:00:00Z", "confirmOffset": 70,
    }  # fmt: skip
    await define(world.api)
    await world.ask("one", "Backup", {"snapshot": {}})

    async def seen_with(**more: str) -> int:
        listed.clear()
        result = {"message": "", "fromBrokerId": 1, "epoch": 1, "backup": held | more}
        status = {"status": {"phase": "Running", "startedAt": "2030-01-01T00:00:00Z", "result": result}}
        await world.patch(BROKER_GROUP_OPERATIONS, "one", status, subresource="status")
        fetcher = GroupFetcher(world.api, world.view)  # type: ignore[arg-type]
        assert await fetcher.fetch_for_operations(world.key) is not None
        return len(listed)

    fetcher = GroupFetcher(world.api, world.view)  # type: ignore[arg-type]
    await fetcher.fetch_for_operations(world.key)
    assert len(listed) == 1, "it begins only if they can be read"
    assert await seen_with() == 0, "the member is not stopped yet"
    await world.delete_pod("orders-3")
    assert await seen_with() == 1
    assert await seen_with(cutAt="2030-01-01T00:00:01Z") == 0
    assert await seen_with(failed="disk is busy") == 0
