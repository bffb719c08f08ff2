"""The operations pass against the embedded API: its effects, and that a kill before any of its writes changes no end."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from brokergroup_operator.api.backup_fields import SnapshotManifest
from brokergroup_operator.api.names import ANNOTATION_MANIFEST
from brokergroup_operator.kube.errors import NotFoundError
from brokergroup_operator.kube.resources import (
    BROKER_GROUP_OPERATIONS,
    BROKER_GROUPS,
    NAMESPACES,
    PERSISTENT_VOLUME_CLAIMS,
    PODS,
    VOLUME_SNAPSHOTS,
)
from brokergroup_operator.observe.group_view import SwitchoverRefusedError
from brokergroup_operator.reconcile.see.fetch import GroupFetcher
from brokergroup_operator.records.store import GroupKey
from kube_sandbox.api_server.errors import StatusError
from tests.operations.world import CLAIM, GIVEN_UP, OPERATOR_TOKEN, World
from tests.reconcile.cases import table
from tests.reconcile.world import until
from tests.support.draws import sample
from tests.support.snapshot_controller import SnapshotController, define

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from aiohttp import web

    from brokergroup_operator.kube.client import KubernetesApi
    from kube_sandbox.api_server.server import SandboxApiServer

    Story = Callable[[World], Awaitable[None]]


def condition(item: dict[str, Any]) -> dict[str, Any]:
    (only,) = item["status"]["conditions"]
    assert only["status"] == "True"
    return dict(only)


async def test_a_switchover_is_done_and_told(world: World) -> None:
    await world.ask("one", "Switchover", {"toBrokerId": 3})
    one = (await world.until_over("one"))["one"]
    result = one["status"]["result"]
    assert one["status"]["phase"] == "Succeeded"
    assert (result["fromBrokerId"], result["toBrokerId"], result["epoch"], result["milliseconds"]) == (1, 3, 2, 12)
    assert result["phases"] == {"committed": 7}
    assert condition(one)["type"] == "Complete"
    assert one["status"]["startedAt"] <= one["status"]["completedAt"]
    assert world.view.asked == [(1, 3)]
    group = await world.get(BROKER_GROUPS, "orders")
    (owner,) = one["metadata"]["ownerReferences"]
    assert owner["uid"] == group["metadata"]["uid"]
    assert one["metadata"]["labels"] == {"brokergroup.dev/broker-group": "orders"}


@pytest.mark.parametrize(
    ("section", "refusals", "asked"),
    [
        ({}, [GIVEN_UP, GIVEN_UP], [(1, None)] * 3),
        ({"toBrokerId": 2}, [GIVEN_UP, GIVEN_UP], [(1, 2)] * 3),
        ({"toBrokerId": 2}, [SwitchoverRefusedError("a change of master is under way")], [(1, 2)] * 2),
    ],
    ids=["given up, to any", "given up", "refused for a moment"],
)
async def test_a_switchover_is_tried_again(
    world: World, section: dict[str, Any], refusals: list[Exception], asked: list[tuple[int, int | None]]
) -> None:
    world.view.refusals = list(refusals)
    assert (await world.ended("Switchover", section))[0] == "Succeeded"
    assert world.view.asked == asked


async def test_a_switchover_that_is_refused_is_rejected(world: World) -> None:
    world.view.refusals = [SwitchoverRefusedError("broker 2 lacks topic t") for _ in range(20)]
    phase, result = await world.ended("Switchover")
    assert (phase, result["message"]) == ("Rejected", "broker 2 lacks topic t")
    assert condition(await world.asked("one"))["type"] == "Failed"
    assert await world.event_reasons() == ["SwitchoverRejected"]


async def test_one_after_the_other(world: World) -> None:
    await world.ask("a", "Switchover", {"toBrokerId": 2})
    await world.ask("b", "Switchover", {"toBrokerId": 3})
    await world.run_pass()
    waits = (await world.asked("b"))["status"]
    assert (waits["phase"], waits["result"]["message"]) == ("Pending", "waits for a")
    await world.until_over("a", "b")
    assert world.view.asked == [(1, 2), (2, 3)]


@pytest.mark.parametrize(
    ("kind", "section"),
    [
        ("Drill", {"kind": "KillMaster"}),
        ("Switchover", {}),
        ("Restart", {}),
        ("Rebuild", {"brokerId": 3}),
        ("Decommission", {"brokerId": 3}),
    ],
)
async def test_a_status_from_before_the_slaves_died_lets_nothing_begin(
    world: World, kind: str, section: dict[str, Any]
) -> None:
    """The status still shows FailoverSafe from the last pass, but no member could replace the master now."""
    world.view.silent = {2, 3}
    before = await world.items(PODS)
    await world.ask("one", kind, section)
    for _ in range(3):
        await world.run_pass()
    status = await world.status_of_one()
    assert status["phase"] == "Pending"
    assert "orders is not FailoverSafe now: NotEnoughCandidates" in status["result"]["message"]
    assert world.view.asked == []
    assert await world.items(PODS) == before

    world.view.silent = set()
    await world.run_pass()
    assert (await world.status_of_one())["phase"] in {"Running", "Succeeded"}


async def restarted(world: World, *numbers: int) -> None:
    """The reconcile plane restarts these members while the operation runs, one after the other."""
    status = await world.status_of_one()
    if status["phase"] == "Running":
        for pod in await world.items(PODS):
            name, created = pod["metadata"]["name"], pod["metadata"]["creationTimestamp"]
            if int(name[-1]) in numbers and created < status["startedAt"]:
                await world.delete_pod(name)
                await world.create_member(int(name[-1]))


async def test_a_restart_is_judged_by_the_pods(world: World) -> None:
    phase, result = await world.ended("Restart", hands=lambda: restarted(world, 1, 2, 3))
    assert phase == "Succeeded"
    assert result["message"].startswith("restarted broker 1, broker 2, broker 3 in")
    assert sorted(await world.event_reasons()) == ["RestartCompleted", "RestartStarted"]


async def test_a_killed_master_comes_back(world: World) -> None:
    before = (await world.get(PODS, "orders-1"))["metadata"]["uid"]
    phase, result = await world.ended("Drill", {"kind": "KillMaster"}, hands=world.master_comes_back)
    assert (phase, result["toBrokerId"]) == ("Succeeded", 2)
    assert (await world.get(PODS, "orders-1"))["metadata"]["uid"] != before
    assert set(world.fenced) == {before}, "its end was observable"


async def test_a_dry_run_changes_nothing(world: World) -> None:
    phase, result = await world.ended("Rebuild", {"brokerId": 2}, dryRun="All")
    assert (phase, result["plan"][0]) == ("Succeeded", "delete pod orders-2 and claim orders-2 WITH ITS DATA")
    assert not [line for line in world.writes if "brokergroupoperations" not in line]


async def test_finished_ones_go_after_their_time_and_by_number(world: World) -> None:
    await world.ask("gone", "Switchover", {"toBrokerId": 9}, ttlSecondsAfterFinished=0)
    for number in range(22):
        await world.ask(f"kept-{number}", "Switchover", {"toBrokerId": 9})

    async def twenty_are_left() -> bool:
        await world.run_pass()
        return len(await world.names()) == 20

    await world.until(twenty_are_left)
    assert "gone" not in await world.names()


async def test_the_group_takes_its_operations_with_it(world: World) -> None:
    await world.ended("Switchover", {"toBrokerId": 9})
    await world.delete(BROKER_GROUPS, "orders")

    async def it_is_gone() -> bool:
        return not await world.names()

    await world.until(it_is_gone)
    assert await world.run_pass() is None


async def test_two_operators_start_it_once(world: World, operator_api: KubernetesApi) -> None:
    await world.ask("one", "Switchover", {"toBrokerId": 2})
    other = World(world.api, operator_api, world.key)
    other.view = world.view
    other.runner = other._new_runner()
    await asyncio.gather(world.run_pass(), other.run_pass())
    started = [line for line in world.writes if line.endswith("one/status")]
    assert started, "one of the two wrote that it runs"
    await world.until_over("one")
    assert world.view.asked == [(1, 2)]


def asked_for(kind: str, /, **section: Any) -> Story:
    async def story(world: World) -> None:
        await world.ended(kind, section)

    return story


async def unclean_election(world: World) -> None:
    world.view.writable = False
    await world.ended("Elect", {"toBrokerId": 3, "acknowledgeDataLoss": "orders"})


async def killed_master(world: World) -> None:
    first = (await world.get(PODS, "orders-1"))["metadata"]["uid"]
    await world.ended("Drill", {"kind": "KillMaster"}, hands=world.master_comes_back)
    assert first != (await world.get(PODS, "orders-1"))["metadata"]["uid"]


async def restart(world: World) -> None:
    await world.ended("Restart", {"brokerIds": [2, 3]}, hands=lambda: restarted(world, 2, 3))


async def test_a_copying_pod_that_is_refused_is_said_and_asked_for_again(world: World) -> None:
    world.refuses_pods = 'pods "orders-backup" is forbidden: exceeded quota: pods=3'
    async with refused(world, backup, "exceeded quota: pods=3"):
        held = (await world.status_of_one())["result"]
        assert held["message"].startswith("pod orders-backup is not made: ApiError: POST")
        world.refuses_pods = ""


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


async def running_backup(world: World) -> dict[str, Any] | None:
    """Return what the status has of a backup that runs."""
    status = await world.status_of_one()
    return status["result"].get("backup") if status["phase"] == "Running" else None


async def backup(world: World) -> None:
    claim = {"metadata": {"name": "copies", "namespace": world.key.namespace}, "spec": CLAIM}
    await world.api.create(PERSISTENT_VOLUME_CLAIMS, claim)

    async def others() -> None:
        """The reconcile plane, and the kubelet of the copying pod."""
        if (held := await running_backup(world)) is None:
            return
        pods = {one["metadata"]["name"]: one for one in await world.items(PODS)}
        copying = pods.get("orders-backup")
        if "takenAt" in held:
            if copying is None:  # it may still read the claim
                await world.create_member(held["brokerId"])
        elif held["pod"] in pods:
            if "comparedAt" in held:
                await world.delete_pod(held["pod"])
        elif copying is not None and copying.get("status", {}).get("phase") != "Succeeded":
            await world.end_copy(copying)

    _, result = await world.ended("Backup", {"claim": {"name": "copies"}}, hands=others)
    assert result["backup"]["offset"] == 90
    assert {one["metadata"]["name"] for one in await world.items(PODS)} == {"orders-1", "orders-2", "orders-3"}


async def backup_by_snapshots(world: World) -> None:
    """The driver is late, then fails once, and uploads until the member runs again; it was killed in between.

    Each look of it is the first one of its process.
    """
    await define(world.api)
    driver = SnapshotController(world.api, world.key.namespace, now_seconds=time.time)
    looks = itertools.count()

    async def others() -> None:
        """The reconcile plane, and the driver."""
        if (held := await running_backup(world)) is None:
            return
        pods = {one["metadata"]["name"] for one in await world.items(PODS)}
        driver.uploads = set() if "cutAt" in held and held["pod"] in pods else {"one"}
        if "cutAt" in held:
            await world.create_member(held["brokerId"])
        elif held["pod"] in pods and "comparedAt" in held:
            await world.end_pod(held["pod"])
        if await world.items(VOLUME_SNAPSHOTS):
            driver.late, driver.fails = ({"one"}, {}) if (look := next(looks)) < 2 else (set(), {"one": "busy"})
            if look > 3:
                driver.fails = {}
            await driver.look()

    _, result = await world.ended("Backup", {"snapshot": {"className": "fast"}}, hands=others)
    assert (result["backup"]["snapshots"], result["backup"]["claim"]) == (["one"], "")
    assert await world.items(PODS), "no pod has copied"
    assert {one["metadata"]["name"] for one in await world.items(PODS)} == {"orders-1", "orders-2", "orders-3"}
    (snapshot,) = await world.items(VOLUME_SNAPSHOTS)
    assert snapshot["spec"] == {"source": {"persistentVolumeClaimName": "orders-3"}, "volumeSnapshotClassName": "fast"}
    assert "ownerReferences" not in snapshot["metadata"], "it outlives its operation and its group"
    manifest = msgspec.json.decode(snapshot["metadata"]["annotations"][ANNOTATION_MANIFEST], type=SnapshotManifest)
    assert manifest.backup.operation == (await world.asked("one"))["metadata"]["uid"]
    assert manifest.backup.taken_at == result["backup"]["takenAt"] == snapshot["status"]["creationTime"]
    assert [(one.claim, one.snapshot, one.size) for one in manifest.snapshots] == [("orders-3", "one", "1Gi")]


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
async def test_snapshots_that_cannot_be_marked_are_told_of_and_marked_later(
    world: World, sandbox: SandboxApiServer, status: int
) -> None:
    """The pass does not fail: a group whose passes fail is looked at ever more seldom."""
    refuses(sandbox, world, "PATCH", status)
    async with refused(world, backup_by_snapshots, "VolumeSnapshot one is not marked as whole: "):
        sandbox.before_request = world.observe


@pytest.mark.parametrize("status", [403, 422, 503])
async def test_a_pod_that_cannot_be_held_is_told_of_and_held_later(
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


async def retired(world: World) -> None:
    """The group takes no sends, everything is read, and it is deleted; at the end it is gone, and was deleted once."""
    world.configures = True
    await world.ended("Retire")
    assert await world.items(BROKER_GROUPS) == []
    assert world.given == {number: {"brokerPermission": "4", "minInSyncReplicas": "99"} for number in (1, 2, 3)}
    deletions = [write for write in world.writes if write.startswith("DELETE")]
    assert deletions == [f"DELETE {BROKER_GROUPS.object_path('orders', world.key.namespace)}"]


async def end_of(world: World) -> dict[str, Any]:
    """Return the end state that must not depend on the moment of the operator's death."""
    stored = await world.view.store.read(world.key)
    assert stored is not None
    status = (await world.asked("one"))["status"]
    return {
        "phase": status["phase"],
        "conditions": [item["type"] for item in status["conditions"]],
        **{field: status["result"].get(field) for field in ("fromBrokerId", "toBrokerId", "epoch")},
        "master": (stored.record.master_broker_id, stored.record.master_epoch),
    }


# The number of a story's writes before which `make test` kills the operator.
KILLS = 3


@pytest.mark.sampled
@pytest.mark.usefixtures("quick_looks")
@pytest.mark.parametrize(
    ("story", "at_least"),
    table([
        ("switchover", asked_for("Switchover", toBrokerId=3), 4),
        ("drill there and back", asked_for("Drill", kind="Switchover"), 6),
        ("unclean election", unclean_election, 4),
        ("killed master", killed_master, 4),
        ("restart", restart, 3),
        ("backup", backup, 6),
        ("backup by snapshots", backup_by_snapshots, 9),
        ("retired", retired, 16),
    ]),
)  # fmt: skip
async def test_a_kill_before_any_write_changes_nothing_in_the_end(
    sandbox: SandboxApiServer, api: KubernetesApi, operator_api: KubernetesApi, story: Story, at_least: int
) -> None:
    async def made(namespace: str) -> World:
        await api.create(NAMESPACES, {"metadata": {"name": namespace}})
        world = World(api, operator_api, GroupKey(namespace, "orders"))
        await world.create_group()
        return world

    async def told(world: World) -> dict[str, Any]:
        worlds[world.key.namespace] = world
        await story(world)
        return await end_of(world)

    # Each world sees the requests of its own namespace.
    def observe(request: web.BaseRequest) -> None:
        for place, world in worlds.items():
            if f"/namespaces/{place}/" in request.path:
                world.observe(request)

    worlds: dict[str, World] = {}
    sandbox.before_request = observe
    undisturbed = await made("undisturbed")
    expected, writes = await told(undisturbed), undisturbed.writes
    assert expected["phase"] == "Succeeded"
    assert len(writes) >= at_least, writes
    kills = sample(range(len(writes)), KILLS)
    # Side by side: a story waits most of its time.
    killed = await asyncio.gather(*(made(f"killed-{number}") for number in kills))
    for number, world in zip(kills, killed, strict=True):
        world.kill_at = number
    ends = await asyncio.gather(*(told(world) for world in killed))
    for number, world, end in zip(kills, killed, ends, strict=True):
        assert end == expected, f"killed before write {number}, {writes[number]}"
        assert world.was_killed, f"the story made fewer than {number} writes"
