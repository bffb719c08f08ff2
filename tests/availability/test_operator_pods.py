"""Three operator pods die, freeze or are cut off without an effect on brokers, and only one reconciles at a time.

They cause no election; the next reconcile plane starts within the promised time; and a plane writes only
while it holds the Lease (by the API's request log). The time from the strike to the successor's first write is
printed as JSON; its bound is asserted on the settings (tests/reconcile/test_leader.py), not on a loaded machine.
"""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from tests.availability.operator_pods import OperatorPods, operator_pods
from tests.e2e.house import House, WholeGroup, eventually, open_house, whole_group

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def house(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[House]:
    async with open_house(tmp_path_factory.mktemp("availability")) as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pods(house: House) -> AsyncIterator[OperatorPods]:
    async with operator_pods(house) as three:
        yield three


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def group(house: House, pods: OperatorPods) -> AsyncIterator[WholeGroup]:
    """A settled group that knows all three operators."""
    async with whole_group(house, "orders", replicas=3) as watched:
        await house.create_group("orders")
        await watched.until_settled()
        yield watched


async def fails_over(group: WholeGroup, epoch: int, master: int | None) -> None:
    """Kill the master, and wait until another one acknowledges."""
    assert master is not None
    os.kill(group.pids()[master] or 0, signal.SIGKILL)
    await group.until(lambda: group.seen.master_epoch > epoch, "another epoch")
    await group.until_acknowledged()


@pytest.mark.parametrize("role", ["leader", "follower"])
async def test_one_is_killed(pods: OperatorPods, group: WholeGroup, role: str) -> None:
    leader = await pods.until_all_live(group)
    epoch, master = group.seen.master_epoch, group.seen.master_id
    victim = leader if role == "leader" else pods.followers()[0]
    async with group.under_load():
        killed_seconds = await victim.kill()
        successor = await pods.takeover(f"{role} killed", victim, killed_seconds, group)
        await group.until_acknowledged()
    assert (successor is leader) == (role == "follower")
    await group.verify()
    assert (group.seen.master_epoch, group.seen.master_id) == (epoch, master)
    assert pods.writes_without_the_lease() == []


async def test_the_last_of_three_reconciles_and_fails_over(pods: OperatorPods, group: WholeGroup) -> None:
    """Two operators die at once, one of them the leader; then a master dies too."""
    leader = await pods.until_all_live(group)
    epoch, master = group.seen.master_epoch, group.seen.master_id
    other, last = pods.followers()
    async with group.under_load():
        killed_seconds = await leader.kill()
        await other.kill()
        assert await pods.takeover("two killed", leader, killed_seconds, group) is last
        assert (group.seen.master_epoch, group.seen.master_id) == (epoch, master)

        await fails_over(group, epoch, master)
    await group.verify()
    assert group.seen.master_epoch == epoch + 1
    assert pods.writes_without_the_lease() == []


async def test_a_master_dies_at_once_with_two_of_three(pods: OperatorPods, group: WholeGroup) -> None:
    """A failover needs no Lease: the remaining operator fails over before it reconciles."""
    leader = await pods.until_all_live(group)
    epoch, master = group.seen.master_epoch, group.seen.master_id
    async with group.under_load():
        await leader.kill()
        await pods.followers()[0].kill()
        await fails_over(group, epoch, master)
    await group.verify()
    assert group.seen.master_epoch == epoch + 1
    assert pods.writes_without_the_lease() == []


async def test_the_leader_is_cut_off_from_the_api(pods: OperatorPods, group: WholeGroup) -> None:
    """Its connections stay open without traffic: without a notification it must know that it no longer leads."""
    leader = await pods.until_all_live(group)
    epoch, master = group.seen.master_epoch, group.seen.master_id
    lost_before = leader.log.count("leader_election.lost")
    async with group.under_load():
        leader.proxy.cut()
        written = leader.proxy.passed[-1].sent_seconds
        successor = await pods.takeover("leader cut off from the API", leader, written, group)
        await eventually(lambda: leader.log.count("leader_election.lost") > lost_before, lambda: leader.log[-500:])
        leader.proxy.heal()
        await group.until_acknowledged()
    await group.verify()
    assert successor is not leader
    assert pods.leader() is successor
    assert (group.seen.master_epoch, group.seen.master_id) == (epoch, master)
    assert pods.writes_without_the_lease() == []


@pytest.mark.parametrize("role", ["leader", "follower"])
async def test_one_is_cut_off_from_the_brokers(pods: OperatorPods, group: WholeGroup, role: str) -> None:
    """It gets no heartbeats any more, the other operators do. If it was the leader it keeps reconciling."""
    leader = await pods.until_all_live(group)
    epoch, master = group.seen.master_epoch, group.seen.master_id
    struck = leader if role == "leader" else pods.followers()[0]
    # By the master's own answer (this pod can still send requests) or by the other planes' answers, whichever comes first.
    told_before = struck.log.count("left alone")
    async with group.under_load():
        struck.gate.open.clear()
        try:
            await eventually(lambda: struck.log.count("left alone") > told_before, lambda: struck.log[-1000:])
        finally:
            struck.gate.open.set()
        await group.until_acknowledged()
    await group.verify()
    assert pods.leader() is leader
    assert (group.seen.master_epoch, group.seen.master_id) == (epoch, master)
    assert pods.writes_without_the_lease() == []


async def test_a_frozen_leader_wakes_as_a_follower(pods: OperatorPods, group: WholeGroup) -> None:
    """A write that was pending when it froze is dropped when it wakes: by then another pod reconciles."""
    leader = await pods.until_all_live(group)
    epoch, master = group.seen.master_epoch, group.seen.master_id
    lost_before = leader.log.count("leader_election.lost")
    async with group.under_load():
        frozen_seconds = leader.proxy.passed[-1].sent_seconds
        leader.freeze()
        try:
            successor = await pods.takeover("leader frozen", leader, frozen_seconds, group)
        finally:
            leader.thaw()
        await eventually(lambda: leader.log.count("leader_election.lost") > lost_before, lambda: leader.log[-500:])
        await group.until_acknowledged()
    await group.verify()
    assert pods.leader() is successor
    assert (group.seen.master_epoch, group.seen.master_id) == (epoch, master)
    assert pods.writes_without_the_lease() == []
