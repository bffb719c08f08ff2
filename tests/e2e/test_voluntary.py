"""Planned changes of a group under load: restarts, scaling, new settings, hibernation. No acknowledged message is lost.

Runs in the sandbox and at a real API server, there with Java brokers if a story is marked so.
"""

from __future__ import annotations

import pytest
import pytest_asyncio

from brokergroup_operator.kube.client import PatchType
from brokergroup_operator.kube.resources import NODES, PODS
from tests.e2e.house import NAMESPACE, House, WholeGroup
from tests.e2e.stories import (
    a_slave,
    change,
    claims_of,
    condition,
    done,
    events,
    holds,
    objects_of,
    pod_uids,
    up_to_date,
)

pytestmark = [pytest.mark.longer, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def house(any_house: House) -> House:
    """Each house in turn."""
    return any_house


# At a real API server by night. By day in the sandbox with replicas; the lane "switchover" rolls Java brokers (`--rolls`).
@pytest.mark.java_brokers(nightly=True)
async def test_a_restart_goes_from_slave_to_slave_and_the_master_is_last(group: WholeGroup) -> None:
    before, epoch, master = await pod_uids(group), group.seen.master_epoch, group.seen.master_id
    async with group.lossless():
        await change(group, {"metadata": {"annotations": {"kubectl.kubernetes.io/restartedAt": "now"}}})
        await group.until(lambda: condition(group, "UpToDate")[0] == "False", "the update is seen")
        await group.until(up_to_date(group), "every pod was restarted", deadline_seconds=120)
    after = await pod_uids(group)
    assert after.keys() == before.keys()
    assert not set(after.values()) & set(before.values()), "every pod is a new one"
    assert group.seen.master_epoch == epoch + 1, "mastership moved once, by a switchover"
    assert group.seen.master_id != master
    assert not group.seen.status.get("failovers"), "and by no failover"
    assert "RollingUpdateStarted" in await events(group)

    async def told_of_its_end() -> bool:
        return "RollingUpdateCompleted" in await events(group)

    # An Event is posted after the status that it reports.
    await holds(group, "the Event of its end", told_of_its_end)


async def test_a_hot_key_restarts_nobody(group: WholeGroup) -> None:
    before = await pod_uids(group)
    await change(group, {"spec": {"config": {"fileReservedTime": "24"}}})

    async def given_to_all() -> bool:
        given = [pod["metadata"]["annotations"] for pod in (await objects_of(group, PODS)).values()]
        return all('"fileReservedTime": "24"' in each.get("brokergroup.dev/hot-config", "") for each in given)

    await holds(group, "every pod has the key", given_to_all)
    await group.verify()
    assert "ConfigReloaded" in await events(group)
    assert await pod_uids(group) == before


async def test_a_bad_image_stops_at_the_first_pod_and_is_taken_back(group: WholeGroup) -> None:
    before, epoch = await pod_uids(group), group.seen.master_epoch
    async with group.under_load():
        await change(group, {"spec": {"image": "example.com/no-such-image:1", "version": None}})
        await group.until(lambda: condition(group, "Stalled") == ("True", "ImageUnavailable"), "it says so")
        await group.until_acknowledged(100)
        changed = {name for name, uid in (await pod_uids(group)).items() if before[name] != uid}
        assert len(changed) == 1
        await change(group, {"spec": {"image": None, "version": group.house.group_spec.get("version")}})
        await group.until(up_to_date(group), "the old image runs everywhere", deadline_seconds=120)
    await group.verify()
    assert group.seen.master_epoch == epoch, "the master was never touched"
    assert "ImageUnavailable" in await events(group)


async def test_a_member_more_and_one_less(group: WholeGroup) -> None:
    """apache/rocketmq-operator #50, #239: scaling in did nothing."""
    next_id = group.seen.record["nextBrokerId"]
    async with group.lossless():
        await change(group, {"spec": {"replicas": 4}})
        group.replicas = 4
        await group.until(group.is_settled, "four members are in sync")
        await change(group, {"spec": {"replicas": 3}})
        group.replicas = 3
        await group.until(lambda: len(group.pod_names()) == 3 and group.is_settled(), "three are left")
    assert group.seen.record["nextBrokerId"] == next_id + 1
    assert len(await claims_of(group)) == 4, "retained"


async def test_nobody_leaves_while_those_that_stay_could_not_lose_their_master(group: WholeGroup) -> None:
    """The only slave that would remain may never be master."""
    before = await pod_uids(group)
    barred = {"priorities": [{"brokerId": a_slave(group), "priority": 0}]}
    await change(group, {"spec": {"replicas": 2, "failover": barred}})
    await group.until(
        lambda: condition(group, "Stalled") == ("True", "ScaleInRefused"), "it is refused, and it says so"
    )
    assert await pod_uids(group) == before
    await change(group, {"spec": {"replicas": 3, "failover": {"priorities": None}}})
    await group.until(lambda: condition(group, "Stalled")[0] == "False", "it is taken back")
    await group.verify()
    assert await pod_uids(group) == before


async def test_it_sleeps_and_wakes_as_it_was(group: WholeGroup) -> None:
    in_set, epoch = list(group.seen.sync_state_set), group.seen.master_epoch
    async with group.lossless():
        await change(group, {"spec": {"maintenance": {"hibernated": True}}})
        await group.until(lambda: condition(group, "Hibernated")[0] == "True", "all pods are stopped")
        assert sorted(group.seen.sync_state_set) == sorted(in_set), "every member keeps its seat"
        await change(group, {"spec": {"maintenance": {"hibernated": False}}})
        await group.until(group.is_settled, "it is awake")
    assert {"Hibernated", "Woken"} <= set(await events(group))
    told = [(one["trigger"], one["cause"], one["outcome"]) for one in await group.incidents_since(epoch)]
    assert told == [("woken", "hibernation", "completed")], "a hibernated master does not count as lost"


async def test_mastership_moves_only_to_where_it_may_be(group: WholeGroup) -> None:
    """There is only one node, so a drain is refused with a reason; a requested move is the same step.

    apache/rocketmq #5588 asked for a preferred master.
    """
    epoch, master = group.seen.master_epoch, group.seen.master_id
    api, before = group.house.api, await pod_uids(group)
    pod = await api.get(PODS, f"{group.name}-{master}", namespace=NAMESPACE)
    node = pod["spec"]["nodeName"]
    async with group.lossless():
        await api.patch(NODES, node, {"spec": {"unschedulable": True}}, content_type=PatchType.MERGE)
        await group.until(lambda: condition(group, "Stalled")[0] == "True", "there is only one node: it says so")
        assert group.seen.master_id == master
        await api.patch(NODES, node, {"spec": {"unschedulable": None}}, content_type=PatchType.MERGE)
        await group.until(lambda: condition(group, "Stalled")[0] == "False", "the node is in use again")
        slave = next(broker_id for broker_id in group.pids() if broker_id != master)
        await change(group, {"spec": {"failover": {"preferredMaster": slave}}})
        await group.until(lambda: group.seen.master_id == slave, "mastership moves to the preferred one")
    assert group.seen.master_epoch == epoch + 1
    assert await pod_uids(group) == before


async def test_volumes_grow_under_a_running_group(group: WholeGroup) -> None:
    before = await pod_uids(group)
    await change(group, {"spec": {"storage": {"size": "9Gi"}}})

    async def grown() -> bool:
        claims = await claims_of(group)
        return all(claims[name]["status"]["capacity"]["storage"] == "9Gi" for name in group.pod_names())

    await holds(group, "every volume has the new size", grown)
    await group.until(lambda: condition(group, "VolumeResizing") == ("", ""), "nothing grows any more")
    await group.verify()
    assert await pod_uids(group) == before


async def test_the_master_is_rebuilt_on_a_new_volume(group: WholeGroup) -> None:
    await change(group, {"spec": {"failover": {"preferredMaster": None}}})
    master, next_id = group.seen.master_id, group.seen.record["nextBrokerId"]
    async with group.lossless():
        await done(group, "Rebuild", brokerId=master)
    ids = {replica["brokerId"] for replica in group.seen.record["replicas"]}
    assert master not in ids
    assert next_id in ids
    assert group.seen.record["nextBrokerId"] == next_id + 1
