"""Groups with other disks than one claim a member: a separate commit log, and disks that end with their pods."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest

from brokergroup_operator.kube.resources import PERSISTENT_VOLUME_CLAIMS, PODS
from tests.e2e.house import NAMESPACE, settled_group

if TYPE_CHECKING:
    from tests.e2e.house import House

pytestmark = [pytest.mark.longer, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]


async def claims(house: House, group: str) -> set[str]:
    listed = (await house.api.list(PERSISTENT_VOLUME_CLAIMS, namespace=NAMESPACE)).items
    return {one["metadata"]["name"] for one in listed if one["metadata"]["name"].startswith(f"{group}-")}


async def test_a_member_whose_pod_goes_comes_back_as_another_and_nothing_is_lost(house: House) -> None:
    operator = await house.start_operator()
    async with settled_group(house, "brief", storage={"ephemeral": {}}) as group:

        def is_away(broker_id: int) -> bool:
            return broker_id not in group.pids()

        for role in ("slave", "master"):
            ids = set(group.pids())
            gone = next(one for one in sorted(ids) if (one == group.seen.master_id) is (role == "master"))
            async with group.lossless():
                await house.api.delete(PODS, f"brief-{gone}", namespace=NAMESPACE)
                await group.until(partial(is_away, gone), "its id is given up")
                await group.until_settled()
            assert set(group.pids()) == ids - {gone} | {max(ids) + 1}
        assert await claims(house, "brief") == set()
        await house.kill_operator(operator)


async def test_a_commit_log_of_its_own_is_where_the_messages_are(house: House) -> None:
    operator = await house.start_operator()
    async with settled_group(house, "logs", storage={"commitLog": {"size": "1Gi"}}) as group:
        async with group.lossless():
            await group.lose_master()
        assert await claims(house, "logs") == {f"logs-{one}{end}" for one in (1, 2, 3) for end in ("", "-commitlog")}
        volumes = house.node_folder / "claims"
        for broker_id in (1, 2, 3):
            [log] = volumes.glob(f"{NAMESPACE}_logs-{broker_id}-commitlog_*")
            [store] = volumes.glob(f"{NAMESPACE}_logs-{broker_id}_*")
            assert [file for file in (log / "commitlog").iterdir() if file.stat().st_size]
            assert not (store / "commitlog").exists()
        await house.kill_operator(operator)
