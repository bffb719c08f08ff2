"""Operations end to end: the plugin requests, an operator process carries out, Python replicas follow, a producer keeps sending.

No acknowledged message is lost, and the plugin reads each end from the object.
"""

from __future__ import annotations

import asyncio
import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio

from brokergroup_operator.kube.resources import BROKER_GROUP_OPERATIONS, PERSISTENT_VOLUME_CLAIMS, PODS
from tests.e2e.house import NAMESPACE, WholeGroup, open_house, settled_group

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from brokergroup_operator.demo.processes import ChildProcess

pytestmark = [pytest.mark.longer, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]

WAIT_SECONDS = "120"


@dataclass
class Scene:
    """A group under an operator that may be killed, and the plugin."""

    group: WholeGroup
    operator: ChildProcess

    async def plugin(self, *arguments: str) -> tuple[int, str]:
        """Run `kubectl-brokergroup`; return its exit code and its whole output."""
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "brokergroup_operator.kubectl.main", *arguments,
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
            env={**os.environ, "KUBECONFIG": str(self.group.house.kubeconfig)},
        )  # fmt: skip
        said, _ = await child.communicate()
        return child.returncode or 0, said.decode()

    async def ask(self, verb: str, *arguments: str) -> str:
        """Request an operation of the group and wait for its success."""
        code, said = await self.plugin(verb, "orders", *arguments, "--wait", "--timeout", WAIT_SECONDS)
        assert code == 0, f"{said}\n{self.group.story()}"
        return said

    async def pods(self) -> dict[str, str]:
        """Return the UID of every pod of the group."""
        items = (await self.group.house.api.list(PODS, namespace=NAMESPACE)).items
        return {item["metadata"]["name"]: item["metadata"]["uid"] for item in items}

    async def operations(self) -> list[dict[str, Any]]:
        return (await self.group.house.api.list(BROKER_GROUP_OPERATIONS, namespace=NAMESPACE)).items


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared_scene(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Scene]:
    async with open_house(tmp_path_factory.mktemp("operations")) as house:
        operator = await house.start_operator()
        async with settled_group(house, "orders") as group:
            yield Scene(group, operator)


@pytest_asyncio.fixture(loop_scope="module")
async def scene(shared_scene: Scene) -> Scene:
    """The scene of the module, settled again after the test before."""
    await shared_scene.group.until_settled()
    return shared_scene


def others(scene: Scene) -> list[int]:
    """Return the slaves."""
    return sorted(set(scene.group.seen.sync_state_set) - {scene.group.seen.master_id})


def ids(scene: Scene) -> set[int]:
    """Return the broker ids in the record."""
    return {replica["brokerId"] for replica in scene.group.seen.record["replicas"]}


async def test_a_switchover_under_load(scene: Scene) -> None:
    target, epoch = others(scene)[0], scene.group.seen.master_epoch
    async with scene.group.lossless():
        said = await scene.ask("switchover", "--to", str(target))
    assert f"to {target}, epoch {epoch + 1}" in said
    assert scene.group.seen.master_id == target


async def test_what_is_asked_wrongly_is_rejected_and_nothing_happens(scene: Scene) -> None:
    epoch, pods = scene.group.seen.master_epoch, await scene.pods()
    for verb, arguments, why in (
        ("switchover", ("--to", "99"), "broker 99 is not a member of orders"),
        ("rebuild", ("99", "--yes"), "broker 99 is not a member of orders"),
        (
            "elect",
            ("--to", str(others(scene)[0]), "--unclean", "--yes-lose-data", "--confirm", "orders"),
            "serves writes",
        ),
    ):
        code, said = await scene.plugin(verb, "orders", *arguments, "--wait")
        assert code == 1, said
        assert "Rejected: " in said
        assert why in said
    assert (scene.group.seen.master_epoch, await scene.pods()) == (epoch, pods)


async def test_a_restart_under_load_survives_a_killed_operator(scene: Scene) -> None:
    """The operator is killed in the middle; the next one continues from the stored state."""
    before = await scene.pods()
    async with scene.group.lossless():
        asked = asyncio.create_task(scene.ask("restart"))

        async def one_is_new() -> bool:
            now = await scene.pods()
            return any(now.get(name) not in (None, uid) for name, uid in before.items())

        while not (begun := await one_is_new()):
            assert not asked.done(), asked.result()
            await asyncio.sleep(0.05)
        assert begun
        await scene.group.house.kill_operator(scene.operator)
        scene.operator = await scene.group.house.start_operator()
        said = await asked
    after = await scene.pods()
    assert before.keys() == after.keys()
    assert not before.items() & after.items(), said


async def test_a_killed_master_is_a_drill(scene: Scene) -> None:
    victim = scene.group.seen.master_id
    async with scene.group.lossless():
        said = await scene.ask("drill", "--kill-master", "--yes")
    assert f"took over from broker {victim} in " in said
    assert "roleChanged" in said
    assert scene.group.seen.master_id != victim


async def test_a_drill_there_and_back(scene: Scene) -> None:
    home, epoch = scene.group.seen.master_id, scene.group.seen.master_epoch
    async with scene.group.under_load():
        await scene.ask("drill")
    await scene.group.verify()
    assert (scene.group.seen.master_id, scene.group.seen.master_epoch) == (home, epoch + 2)


async def test_a_rebuilt_member_is_another_one_on_a_new_volume(scene: Scene) -> None:
    master, next_id = scene.group.master, scene.group.seen.record["nextBrokerId"]
    async with scene.group.lossless():
        said = await scene.ask("rebuild", str(master), "--yes")
    assert ids(scene) & {master, next_id} == {next_id}
    assert scene.group.seen.record["nextBrokerId"] == next_id + 1
    assert f"broker {max(ids(scene))} took the place of broker {master}" in said
    claims = (await scene.group.house.api.list(PERSISTENT_VOLUME_CLAIMS, namespace=NAMESPACE)).items
    assert f"orders-{master}" not in {claim["metadata"]["name"] for claim in claims}


async def test_a_decommissioned_member_is_replaced_while_the_spec_wants_it(scene: Scene) -> None:
    leaver, next_id = others(scene)[-1], scene.group.seen.record["nextBrokerId"]
    async with scene.group.lossless():
        await scene.ask("decommission", str(leaver), "--confirm", "orders")
        await scene.group.until(lambda: leaver not in ids(scene) and len(ids(scene)) == 3, "a new member")
        await scene.group.until_settled()
    assert next_id in ids(scene)
    assert scene.group.seen.record["nextBrokerId"] == next_id + 1


async def test_the_history_is_kept_and_owned(scene: Scene) -> None:
    code, said = await scene.plugin("history", "orders")
    assert code == 0
    for word in ("Switchover", "Restart", "Rebuild", "Decommission", "Drill", "Failover", "Rejected"):
        assert word in said
    for item in await scene.operations():
        assert [owner["name"] for owner in item["metadata"]["ownerReferences"]] == ["orders"]
        assert item["status"]["conditions"][0]["observedGeneration"] == item["metadata"]["generation"]
    await scene.group.house.delete_group("orders")
    async with asyncio.timeout(60):
        left = await scene.operations()
        while left:
            await asyncio.sleep(0.1)
            left = await scene.operations()
