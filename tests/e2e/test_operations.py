"""A group is upgraded, runs every operation, is drained, deleted and recreated under load. Only the one operation that
announces it loses acknowledged messages.

The stories run in order on one group, which starts with brokers of an older version.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from brokergroup_operator.kube.errors import InvalidError
from brokergroup_operator.kube.resources import BROKER_GROUP_STATES, PERSISTENT_VOLUME_CLAIMS, PODS
from tests.e2e.evictions import budgets_are_kept, is_evicted
from tests.e2e.house import NAMESPACE, TOPIC, House, WholeGroup, runs, settled_group
from tests.e2e.stories import (
    a_slave,
    ask_for,
    change,
    claims_of,
    condition,
    done,
    end_of,
    has_copied,
    holds,
    objects_of,
    pod_uids,
    up_to_date,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from brokergroup_operator.demo.processes import ChildProcess

pytestmark = [pytest.mark.longer, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]


class Staff:
    """The running operator."""

    operator: ChildProcess


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def staff(any_house: House) -> Staff:
    staff = Staff()
    staff.operator = await any_house.start_operator()
    return staff


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared_group(any_house: House, staff: Staff) -> AsyncIterator[WholeGroup]:
    """A settled group of three brokers of the older version."""
    async with settled_group(any_house, "orders", **any_house.older) as watched:
        yield watched


def half_way(group: WholeGroup) -> Callable[[], bool]:
    """Whether the update is half done and its slave out of the set: without an operator, sends would wait for it otherwise."""
    return lambda: (
        0 < group.seen.status.get("updatedReplicas", 0) < group.replicas
        and len(group.seen.sync_state_set) < group.replicas
    )


# At a real API server by night. By day in the sandbox with replicas; the lane "switchover" rolls Java brokers (`--rolls`).
@pytest.mark.java_brokers(nightly=True)
async def test_another_version_rolls_though_the_operator_dies_in_the_middle(
    group: WholeGroup, staff: Staff, any_house: House
) -> None:
    before, epoch = await pod_uids(group), group.seen.master_epoch
    async with group.lossless():
        await change(group, {"spec": any_house.newer})
        await group.until(half_way(group), "a pod is a new one, and is not in the SyncStateSet yet")
        await any_house.kill_operator(staff.operator)
        await group.until_acknowledged()
        staff.operator = await any_house.start_operator()
        await group.until(up_to_date(group), "every pod is a new one", deadline_seconds=120)
    after = await objects_of(group, PODS)
    assert not {pod["metadata"]["uid"] for pod in after.values()} & set(before.values())
    [image] = {pod["spec"]["containers"][0]["image"] for pod in after.values()}
    assert image.endswith(tuple(any_house.newer.values()))
    assert group.seen.master_epoch == epoch + 1, "mastership moved once, by a switchover"
    assert group.seen.record["nextBrokerId"] == 4


@pytest.mark.java_brokers
async def test_a_switchover_to_whom_it_names(group: WholeGroup) -> None:
    epoch, target, before = group.seen.master_epoch, a_slave(group), await pod_uids(group)
    async with group.lossless():
        result = await done(group, "Switchover", toBrokerId=target)
    assert (group.seen.master_id, group.seen.master_epoch) == (target, epoch + 1)
    assert (result["toBrokerId"], result["epoch"]) == (target, epoch + 1)
    assert await pod_uids(group) == before


@pytest.mark.java_brokers
async def test_a_drill_kills_the_master_and_says_how_long_it_took(group: WholeGroup) -> None:
    epoch, master = group.seen.master_epoch, group.seen.master_id
    async with group.lossless():
        result = await done(group, "Drill", kind="KillMaster")
    assert group.seen.master_epoch == epoch + 1
    assert group.seen.master_id != master
    assert result["milliseconds"] > 0


async def test_who_is_decommissioned_makes_room_for_another(group: WholeGroup) -> None:
    next_id, leaver = group.seen.record["nextBrokerId"], a_slave(group)
    async with group.lossless():
        await done(group, "Decommission", brokerId=leaver)
        await group.until(lambda: len(group.pod_names()) == 3 and group.is_settled(), "three again")
    ids = {replica["brokerId"] for replica in group.seen.record["replicas"]}
    assert leaver not in ids
    assert next_id in ids
    assert group.seen.record["nextBrokerId"] == next_id + 1


@pytest.mark.java_brokers
async def test_a_lost_volume_costs_an_id_and_nothing_else(group: WholeGroup) -> None:
    next_id, loser, epoch = group.seen.record["nextBrokerId"], a_slave(group), group.seen.master_epoch
    pod, api = group.pod_of(loser), group.house.api
    claim = (await claims_of(group))[pod]
    async with group.lossless():
        # The claim first: Kubernetes keeps it until its pod is gone, and a claim in deletion cannot be used again.
        await api.delete(PERSISTENT_VOLUME_CLAIMS, pod, namespace=NAMESPACE)
        await api.delete(PODS, pod, namespace=NAMESPACE)
        await group.until(
            lambda: loser not in {one["brokerId"] for one in group.seen.record["replicas"]} and group.is_settled(),
            "another member took its place",
        )
    assert claim["metadata"]["uid"] not in {one["metadata"]["uid"] for one in (await claims_of(group)).values()}
    assert group.seen.record["nextBrokerId"] == next_id + 1
    assert group.seen.master_epoch == epoch


async def test_evictions_take_one_slave_at_a_time_and_never_the_master(group: WholeGroup) -> None:
    """As a node's drain does it: the request repeats until it is granted."""
    api, master, before = group.house.api, group.master, await pod_uids(group)
    old_master = group.pod_of(master)
    first, second = (group.pod_of(one) for one in group.seen.sync_state_set if one != master)
    async with group.lossless(), budgets_are_kept(api):
        await holds(group, "a slave may go", lambda: is_evicted(api, first))
        assert not await is_evicted(api, second), "two at once"
        assert not await is_evicted(api, old_master)
        await holds(group, "the second may go when the first is back", lambda: is_evicted(api, second))
        assert (await pod_uids(group))[first] != before[first]
        await holds(group, "the second is back", lambda: is_back(group, second, before[second]))
        await done(group, "Switchover")
        await holds(group, "the old master goes as a slave", lambda: is_evicted(api, old_master))
        await holds(group, "the third is back", lambda: is_back(group, old_master, before[old_master]))
    assert not set((await pod_uids(group)).values()) & set(before.values())
    assert group.seen.status.get("unfenced") is not True


async def is_back(group: WholeGroup, pod: str, old_uid: str) -> bool:
    """Whether a new pod of that name runs, and all members are in sync."""
    return (await pod_uids(group)).get(pod) not in {None, old_uid} and group.is_settled()


async def test_a_paused_group_is_left_alone_but_for_failovers(group: WholeGroup) -> None:
    before, epoch = await pod_uids(group), group.seen.master_epoch
    async with group.lossless():
        await change(group, {"spec": {"maintenance": {"paused": True}, "config": {"maxMessageSize": "4194304"}}})
        await group.until(lambda: condition(group, "Paused")[0] == "True", "it is paused")
        await group.until(lambda: condition(group, "UpToDate") == ("False", "WaitingForPerson"), "it tells of it")
        refused = await end_of(group, await ask_for(group, "Restart"))
        assert refused["phase"] == "Rejected", refused
        await done(group, "Switchover")
        await group.until(lambda: group.seen.master_epoch == epoch + 1, "the record says so")
        assert await pod_uids(group) == before
        await change(group, {"spec": {"maintenance": {"paused": False}, "config": {"maxMessageSize": None}}})
        await group.until(up_to_date(group), "it is as it was")
    assert await pod_uids(group) == before


async def test_a_group_that_is_made_again_goes_on_with_its_data(group: WholeGroup, any_house: House) -> None:
    """whenDeleted: Retain, which is the default: the claims and the record stay."""
    record, claims = group.seen.record, await claims_of(group)
    await any_house.delete_group(group.name)
    await group.until(lambda: (NAMESPACE, group.name) not in group.seen.groups, "the group is gone")
    assert await pod_uids(group) == {}
    assert (await claims_of(group)).keys() == claims.keys()
    state = await any_house.api.get(BROKER_GROUP_STATES, group.name, namespace=NAMESPACE)
    assert state["record"]["nextBrokerId"] == record["nextBrokerId"]
    await any_house.create_group(group.name, **any_house.newer)
    await group.until_settled()
    async with group.under_load():
        await group.until_acknowledged()
    await group.verify()
    assert (await claims_of(group)).keys() == claims.keys()
    assert group.seen.record["nextBrokerId"] == record["nextBrokerId"]
    assert group.seen.master_epoch > record["masterEpoch"]


async def test_an_unclean_election_ends_a_standstill(group: WholeGroup) -> None:
    """Runs last, as it loses messages: the members with all acknowledged ones are gone for good, one that lacks some is left."""
    api, left = group.house.api, a_slave(group)
    gone = [one for one in group.seen.sync_state_set if one != left]
    # No operator recreates pods meanwhile.
    await change(group, {"spec": {"maintenance": {"paused": True}}})
    await group.until(lambda: condition(group, "Paused")[0] == "True", "it is paused")
    async with group.under_load():
        # A master without a topic shows none of its messages; a Java slave copies topics at its own pace.
        await holds(group, f"broker {left} knows the topic", lambda: has_copied(group, TOPIC, left))
        kept = {one.key for one in group.ledger.acknowledgements}
        await api.delete(PODS, group.pod_of(left), namespace=NAMESPACE)
        await group.until(lambda: left not in group.seen.sync_state_set, "it leaves the set")
        # It copies until its process ends: it cannot have messages acknowledged later.
        await holds(group, "its pod is gone", lambda: has_no_pod(group, left))
        await group.until_acknowledged()
    processes = [pid for one in gone if (pid := group.pids()[one]) is not None]
    for pod in [group.pod_of(one) for one in gone]:
        await api.delete(PERSISTENT_VOLUME_CLAIMS, pod, namespace=NAMESPACE)
        await api.delete(PODS, pod, namespace=NAMESPACE, grace_period_seconds=0)
    await holds(group, "no pod is left", lambda: no_pods(group))
    # A kubelet gives two seconds even with a grace period of 0: a master that still runs would hand over its whole log.
    await group.until(lambda: not any(map(runs, processes)), "their processes have ended")
    await change(group, {"spec": {"maintenance": {"paused": False}}})
    await group.until(
        lambda: condition(group, "Stalled") == ("True", "NoEligibleReplica"),
        "the condition shows that no replica may lead",
    )
    await group.until(lambda: state_of(group, left) == "CatchingUp", "the next master is back")
    with pytest.raises(InvalidError, match="acknowledgeDataLoss"):
        await ask_for(group, "Elect", toBrokerId=left, acknowledgeDataLoss="other")
    await done(group, "Elect", toBrokerId=left, acknowledgeDataLoss=group.name)
    await group.until(lambda: not set(gone) & set(group.pids()) and group.is_settled(), "three members again")
    assert group.seen.status["uncleanElections"] == 1
    assert not group.history.epochs_with_two_masters()
    keys = await group.keys_in_log()
    assert kept <= keys, "what it had is there"
    lost = set(group.ledger.missing_from(keys))
    assert lost, "messages that it lacked are lost, as the operation's confirmation announced"
    assert not lost & kept


def state_of(group: WholeGroup, broker_id: int) -> str:
    """Return the member's state, by the status."""
    return next((str(one["state"]) for one in group.seen.status["members"] if one["brokerId"] == broker_id), "")


async def has_no_pod(group: WholeGroup, broker_id: int) -> bool:
    return group.pod_of(broker_id) not in await pod_uids(group)


async def no_pods(group: WholeGroup) -> bool:
    return not await pod_uids(group)
