"""A group's durability: written into its spec when it is made, and left as it is when the number of replicas changes.

And the minimum of replicas in sync, which follows the members: in the file that a broker starts with, and in what it is given.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from brokergroup_operator.api import names
from brokergroup_operator.kube.client import PatchType
from brokergroup_operator.kube.errors import ConflictError, InvalidError
from brokergroup_operator.kube.resources import BROKER_GROUPS, CONFIG_MAPS, EVENTS, PODS
from brokergroup_operator.reconcile.render import broker_config
from kube_sandbox.api_server.errors import StatusError
from tests.reconcile.world import KEY

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from aiohttp import web

    from kube_sandbox.api_server.server import SandboxApiServer
    from tests.reconcile.world import World

FILE = f"{KEY.name}-broker"


class Group:
    """One group in a world of its own, seen and changed as a user does."""

    def __init__(self, world: World) -> None:
        self.world, self.api = world, world.api

    async def object(self) -> dict[str, Any]:
        return await self.world.group()

    async def durability(self) -> tuple[str | None, str | None]:
        """Return the durability of the spec and of the status."""
        group = await self.object()
        return group["spec"].get("durability"), (group.get("status") or {}).get("durability")

    async def change(self, **spec: Any) -> None:
        await self.world.patch_group({"spec": spec})

    async def after(self, act: Awaitable[None]) -> None:
        """Carry this out, and let the group settle."""
        await act
        await self.world.settle()

    async def scale(self, replicas: int) -> None:
        """As `kubectl scale` does it."""
        wish = {"spec": {"replicas": replicas}}
        options = {"content_type": PatchType.MERGE, "subresource": "scale", "field_manager": "kubectl"}
        await self.world.patch_group(wish, **options)

    async def apply(self, manager: str, *, force: bool = False, **spec: Any) -> None:
        """Apply as a tool that owns the fields of its manifest."""
        metadata = {"name": KEY.name, "namespace": KEY.namespace}
        manifest = {"metadata": metadata, "spec": {"implementation": "Python"} | spec}
        await self.api.apply(BROKER_GROUPS, manifest, field_manager=manager, force=force)

    async def forgets_its_durability(self) -> None:
        """As an earlier operator left it: only the status has the durability."""
        group = await self.object()
        spec = {name: value for name, value in group["spec"].items() if name != "durability"}
        await self.api.replace(BROKER_GROUPS, group | {"spec": spec})

    async def minimum_in_file(self) -> int:
        """Return the minInSyncReplicas with which a container that starts now comes up."""
        config_map = await self.api.get(CONFIG_MAPS, FILE, namespace=KEY.namespace)
        return int(broker_config.written_in(config_map)["minInSyncReplicas"])

    def given(self, broker_id: int) -> str:
        """What the broker runs with since it was given it (25); the empty text: it has what it started with."""
        return self.world.view.configs.get((KEY, broker_id), {}).get("minInSyncReplicas", "")

    async def restart_container(self, pod: str) -> None:
        """The kubelet starts the broker's container again, with the values of the file."""
        found = await self.api.get(PODS, pod, namespace=KEY.namespace)
        statuses = [one | {"restartCount": one["restartCount"] + 1} for one in found["status"]["containerStatuses"]]
        change = {"status": {"containerStatuses": statuses}}
        await self.api.patch(PODS, pod, change, namespace=KEY.namespace, subresource="status")

    async def runs(self, *broker_ids: int) -> None:
        """The pods run; of the brokers these alone have copied the log."""
        await self.world.run_kubelet()
        await self.world.view.live(KEY, broker_ids)


@pytest.fixture
async def group(sandbox: SandboxApiServer, sandbox_world: World) -> Group:
    sandbox_world.brokers_run = True
    sandbox.before_request = sandbox_world.observe
    return Group(sandbox_world)


async def made(group: Group, **spec: Any) -> Group:
    await group.world.create_group(**spec)
    await group.world.settle()
    return group


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"replicas": 1}, "Available"),
        ({"replicas": 2}, "Available"),
        ({"replicas": 3}, "Strict"),
        ({"replicas": 3, "replication": {"learners": 1}}, "Available"),
        ({"replicas": 3, "durability": "Fast"}, "Fast"),
    ],
    ids=str,
)
async def test_a_new_group_says_its_durability_before_it_has_a_member(
    group: Group, spec: dict[str, Any], expected: str
) -> None:
    await group.world.create_group(**spec)
    await group.world.run_pass()
    assert await group.durability() == (expected, expected)
    assert not await group.world.items(PODS)


async def test_scaling_changes_no_promise_and_no_minimum(group: Group) -> None:
    """`kubectl scale` from 1 to 3 turned Available into Strict."""
    await made(group, replicas=1)
    for replicas in (3, 2, 3, 1):
        await group.after(group.scale(replicas))
        assert await group.durability() == ("Available", "Available")
        assert await group.minimum_in_file() == 1
    assert group.given(1) in ("", "1")


async def test_what_is_strict_is_not_scaled_to_one_disk(group: Group) -> None:
    await made(group)
    await group.after(group.scale(2))
    assert await group.durability() == ("Strict", "Strict")
    with pytest.raises(InvalidError, match=r"durability Strict needs replicas >= 2.*durability: Available"):
        await group.scale(1)
    await group.after(group.change(replicas=1, durability="Available"))
    assert (await group.durability())[0] == "Available"


async def test_a_group_of_an_earlier_operator_keeps_what_it_promised(group: Group) -> None:
    """Scaled while no operator ran: the number of replicas would say Strict."""
    await made(group, replicas=2)
    await group.forgets_its_durability()
    await group.after(group.scale(3))
    assert await group.durability() == ("Available", "Available")
    assert await group.minimum_in_file() == 1


@pytest.mark.parametrize(
    ("before", "wish", "expected"),
    [
        ({}, {"replicas": 1}, "Available"),
        ({"durability": "Strict", "replicas": 2}, {"failover": {"uncleanElection": "Allowed"}}, "Available"),
        ({"durability": "Strict", "replicas": 2}, {"replication": {"minInSyncReplicas": 1}}, "Available"),
        ({"durability": "Fast"}, {"failover": {"electionPolicy": "preferred-zone"}}, "Strict"),
    ],
    ids=str,
)
async def test_what_the_other_fields_exclude_is_not_kept(
    group: Group, before: dict[str, Any], wish: dict[str, Any], expected: str
) -> None:
    """The API server takes such a spec without a durability, and would refuse it with the former one."""
    await made(group, **before)
    await group.after(group.change(durability=None, **wish))
    assert await group.durability() == (expected, expected)


async def test_a_manifest_without_a_durability_changes_none(group: Group) -> None:
    """Put in the place of the stored one (`kubectl replace`), or applied by its owner after the field was taken out."""
    await group.after(group.apply("flux", replicas=3, durability="Fast"))
    await group.apply("flux", replicas=1)
    assert (await group.durability())[0] is None
    await group.world.settle()
    assert await group.durability() == ("Fast", "Fast")
    await group.after(group.forgets_its_durability())
    assert await group.durability() == ("Fast", "Fast")


async def test_a_tool_that_owns_its_manifest_sees_no_drift(group: Group) -> None:
    """A field that no manifest of theirs says is the operator's own: applying again changes nothing."""
    await group.after(group.apply("argocd-controller", replicas=3))
    before = await group.object()
    await group.apply("argocd-controller", replicas=3)
    assert (await group.object())["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]
    owners = {
        entry["manager"]: entry["fieldsV1"].get("f:spec", {})
        for entry in before["metadata"]["managedFields"]
        if not entry.get("subresource")
    }
    assert owners[names.FIELD_MANAGER_DURABILITY] == {"f:durability": {}}
    assert "f:durability" not in owners["argocd-controller"]


async def test_a_manifest_that_says_it_takes_it_over(group: Group) -> None:
    await group.after(group.apply("flux", replicas=3))
    await group.apply("flux", replicas=3, durability="Strict")
    with pytest.raises(ConflictError, match=names.FIELD_MANAGER_DURABILITY):
        await group.apply("flux", replicas=3, durability="Available")
    await group.after(group.apply("flux", force=True, replicas=3, durability="Available"))
    assert await group.durability() == ("Available", "Available")
    await group.after(group.apply("flux", replicas=3, durability="Fast"))
    assert await group.durability() == ("Fast", "Fast")


async def test_it_is_written_once_and_said_once(group: Group) -> None:
    await made(group, replicas=1)
    group.world.writes.clear()
    await group.after(group.scale(2))
    assert f"PATCH /apis/brokergroup.dev/v1beta1/namespaces/default/brokergroups/{KEY.name}" not in group.world.writes
    events = (await group.api.list(EVENTS, namespace=KEY.namespace)).items
    [told] = [one["message"] for one in events if one["reason"] == "DurabilityWritten"]
    assert told.startswith("spec.durability is Available")


async def test_a_group_that_sleeps_promises_on_waking_what_it_promised(group: Group) -> None:
    await made(group, replicas=2)
    await group.after(group.change(maintenance={"hibernated": True}))
    await group.after(group.scale(3))
    await group.after(group.change(maintenance={"hibernated": False}))
    assert await group.durability() == ("Available", "Available")
    assert await group.minimum_in_file() == 1


async def test_a_paused_group_of_an_earlier_operator_keeps_its_spec_and_its_promise(group: Group) -> None:
    await made(group, replicas=2)
    await group.change(maintenance={"paused": True})
    await group.forgets_its_durability()
    await group.after(group.scale(3))
    assert await group.durability() == (None, "Available")
    await group.after(group.change(maintenance={"paused": False}))
    assert await group.durability() == ("Available", "Available")


async def test_a_spec_that_todays_rules_refuse_is_served_on(sandbox: SandboxApiServer, group: Group) -> None:
    """The API server takes no other field of an object of before that breaks a rule of now."""
    await made(group, replicas=2)
    await group.forgets_its_durability()

    def refuse(request: web.BaseRequest) -> None:
        if request.query.get("fieldManager") == names.FIELD_MANAGER_DURABILITY:
            raise StatusError(422, "Invalid", "spec.config: Invalid value")
        group.world.observe(request)

    sandbox.before_request = refuse
    await group.scale(3)
    for _ in range(6):
        await group.world.run_pass()
        await group.runs(1, 2, 3)
    assert await group.durability() == (None, "Available")
    assert len(await group.world.items(PODS)) == 3


# ---- the minimum follows the members


async def test_a_lone_master_that_starts_again_while_it_grows_takes_writes(group: Group) -> None:
    """The file said 2 from the wish on: a container that was started again refused every write until a slave had the log."""
    await made(group, replicas=1)
    await group.change(replicas=3, durability="Strict")
    for _ in range(4):
        await group.world.run_pass()
        await group.runs(1)
        assert await group.minimum_in_file() == 1
    await group.restart_container("orders-1")
    for _ in range(3):
        await group.world.run_pass()
        await group.runs(1)
        assert await group.minimum_in_file() == 1
        assert group.given(1) in ("", "1")
    await group.runs(1, 2)
    await group.world.run_pass()
    assert await group.minimum_in_file() == 2, "two disks: as the spec says"
    assert group.given(1) == "2"
    await group.runs(1)
    await group.restart_container("orders-1")
    await group.world.run_pass()
    assert await group.minimum_in_file() == 2, "a lost member lowers nothing"
    assert group.given(1) == "2"


async def test_how_many_disks_a_fast_group_waits_for_follows_its_members_too(group: Group) -> None:
    """A lone master that is to have a message on two disks (inSyncReplicas) acknowledges none."""
    await made(group, replicas=1, durability="Fast")
    await group.change(replicas=3, replication={"minInSyncReplicas": 2})
    for _ in range(4):
        await group.world.run_pass()
        await group.runs(1)
    config = group.world.view.configs.get((KEY, 1), {})
    assert config.get("inSyncReplicas", "1") == "1"
    await group.runs(1, 2)
    await group.world.run_pass()
    assert group.world.view.configs[KEY, 1].items() >= {"inSyncReplicas": "2", "minInSyncReplicas": "2"}.items()


async def test_a_group_that_shrinks_keeps_its_minimum_until_the_member_has_stopped(group: Group) -> None:
    """In the file too: a master that started again acknowledged alone while the third member was still there."""
    await made(group)
    await group.change(replicas=2, durability="Available")
    for _ in range(12):
        before = {pod["metadata"]["name"] for pod in await group.world.items(PODS)}
        await group.world.run_pass()
        if "orders-3" in before:
            assert await group.minimum_in_file() == 2
            assert group.given(1) in ("", "2")
        await group.world.run_kubelet()
        await group.world.run_brokers()
    assert before == {"orders-1", "orders-2"}
    assert await group.minimum_in_file() == 1
    assert group.given(1) == group.given(2) == "1"


async def test_the_file_of_a_new_strict_group_needs_two_from_the_start(group: Group) -> None:
    """Its first acknowledgement keeps the promise."""
    await group.world.create_group()
    for _ in range(3):
        await group.world.run_pass()
        await group.runs(1)
    assert await group.minimum_in_file() == 2


async def test_a_minimum_that_was_taken_out_of_the_file_is_put_back(group: Group) -> None:
    await made(group)
    found = await group.api.get(CONFIG_MAPS, FILE, namespace=KEY.namespace)
    text = found["data"][names.CONFIG_FILE].replace("minInSyncReplicas=2", "minInSyncReplicas=1")
    change = {"data": {names.CONFIG_FILE: text}}
    await group.runs(1)
    await group.api.patch(CONFIG_MAPS, FILE, change, namespace=KEY.namespace)
    await group.world.run_pass()
    assert await group.minimum_in_file() == 2
