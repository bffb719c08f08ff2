"""A person deletes or restores the record of a serving group (F28, F29): no acknowledged message is lost.

The group continues above all its brokers' epochs with the same ids, whether the operator was running or started later.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from brokergroup_operator.kube.errors import ConflictError, NotFoundError
from brokergroup_operator.kube.resources import BROKER_GROUP_STATES, PERSISTENT_VOLUME_CLAIMS
from tests.e2e.house import NAMESPACE, WholeGroup, settled_group, whole_group
from tests.e2e.stories import done

if TYPE_CHECKING:
    from tests.e2e.house import House

pytestmark = [pytest.mark.longer, pytest.mark.asyncio(loop_scope="module")]


async def delete_record(house: House, name: str) -> None:
    """Delete the record, as with kubectl."""
    await house.api.delete(BROKER_GROUP_STATES, name, namespace=NAMESPACE)


async def put_back(house: House, older: dict[str, Any]) -> None:
    """Restore an older copy, as etcd or a backup tool would. (An update would be refused: epochs may not fall.)"""
    name = older["metadata"]["name"]
    copy = {"metadata": {"name": name, "namespace": NAMESPACE}, "record": older["record"]}
    async with asyncio.timeout(20):
        while True:
            try:
                await delete_record(house, name)
                await house.api.create(BROKER_GROUP_STATES, copy)
            except (ConflictError, NotFoundError):
                continue  # the operator was faster: it had already created a new record, or there was none
            return


async def fail_over(group: WholeGroup) -> None:
    """Kill the master, which costs one epoch."""
    await group.lose_master()
    await group.until_settled()


async def goes_on(group: WholeGroup, *, above: int, ids: list[str]) -> None:
    """Wait until the group is whole with the same members above the floor; writes are acknowledged."""
    await group.until(lambda: group.seen.master_epoch > above and group.is_settled(), f"whole above epoch {above}")
    await group.until_acknowledged()
    assert sorted(group.pod_names()) == ids, group.story()


@pytest.mark.parametrize("fault", ["deleted", "put back"])
@pytest.mark.parametrize("operator", ["running", "away"])
async def test_a_lost_record(house: House, fault: str, operator: str) -> None:
    name = f"lost-{fault[0]}-{operator[0]}"
    plane = await house.start_operator()
    async with settled_group(house, name) as group:
        older = await house.api.get(BROKER_GROUP_STATES, name, namespace=NAMESPACE)
        async with group.under_load():
            await fail_over(group)
            above, ids = group.seen.master_epoch, sorted(group.pod_names())
            assert above > older["record"]["masterEpoch"]
            group.known_route = group.seen.master_address()
            if operator == "away":
                await house.kill_operator(plane)
            if fault == "deleted":
                await delete_record(house, name)
            else:
                await put_back(house, older)
            if operator == "away":
                await group.until_acknowledged()  # the data path needs no operator
                plane = await house.start_operator()
            await goes_on(group, above=above, ids=ids)
            group.known_route = None
            await fail_over(group)  # and the next failover is normal
            await group.until_acknowledged()
        await group.verify(record_was_lost=True)
        await house.delete_group(name)
        await group.until(lambda: (NAMESPACE, name) not in group.seen.groups, "the group is gone")
        await house.kill_operator(plane)


async def test_a_group_whose_ids_were_replaced_loses_its_record_and_all_pods(house: House) -> None:
    """Claims of members that had left were taken for the group's: the stale disks of ids 1, 2, 3 elected a master of their own."""
    name = "replaced"
    async with whole_group(house, name, replicas=3) as group:

        def has_left(pod: str) -> bool:
            return pod not in group.pod_names()

        plane = await house.start_operator()
        await house.create_group(name)
        await group.until_settled()
        async with group.under_load():
            for leaver in (1, 2, 3):
                await done(group, "Decommission", brokerId=leaver)
                await group.until(partial(has_left, f"{name}-{leaver}"), "it has left")
                await group.until_settled()
            await group.until_acknowledged()
        above, ids = group.seen.master_epoch, sorted(group.pod_names())
        assert ids == [f"{name}-{one}" for one in (4, 5, 6)]
        await house.delete_group(name)
        await group.until(lambda: (NAMESPACE, name) not in group.seen.groups, "the group is gone")
        claims = (await house.api.list(PERSISTENT_VOLUME_CLAIMS, namespace=NAMESPACE)).items
        kept = sorted(one["metadata"]["name"] for one in claims if one["metadata"]["name"].startswith(f"{name}-"))
        assert kept == [f"{name}-{one}" for one in range(1, 7)]
        await delete_record(house, name)
        await house.create_group(name)
        await group.until(lambda: group.seen.master_epoch > above and group.is_settled(), f"whole above epoch {above}")
        assert sorted(group.pod_names()) == ids, group.story()
        async with group.under_load():
            await group.until_acknowledged()
        await group.verify(record_was_lost=True)
        await house.delete_group(name)
        await group.until(lambda: (NAMESPACE, name) not in group.seen.groups, "the group is gone")
        await house.kill_operator(plane)
