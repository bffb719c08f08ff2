"""Faults during sends: whichever part dies, freezes or returns, the last master's log has all acknowledged messages.

The tests share one group and one ledger: after every fault the log must have the messages from before the first one.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from brokergroup_operator.demo.processes import hold

if TYPE_CHECKING:
    from tests.e2e.house import WholeGroup

pytestmark = [pytest.mark.longer, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(240)]


async def test_the_master_is_killed(group: WholeGroup) -> None:
    """itboon/rocketmq-helm #23: about 10 s without a master, so better no controller mode.

    zalando/postgres-operator #993: the master's pod was deleted, and no replica took over.
    """
    epoch, master = group.seen.master_epoch, group.master
    async with group.lossless():
        group.kill(master)
        await group.until(lambda: group.seen.master_epoch == epoch + 1, "another master")
    assert group.seen.master_epoch == epoch + 1
    assert group.seen.master_id != master
    told = (await group.incidents_since(epoch))[0]
    assert (told["from"], told["to"], told["outcome"]) == (master, group.seen.master_id, "completed")


async def test_the_master_freezes_and_thaws(group: WholeGroup) -> None:
    """CNPG #6154, #6146, #6168, Patroni #759, dragonfly-operator #227, #302:
    the controller notices a lost node by heartbeats, without the kubelet.
    """
    epoch, master = group.seen.master_epoch, group.master
    async with group.lossless():
        with hold(group.pids()[master] or 0) as frozen:
            frozen.freeze()
            await group.until(lambda: group.seen.master_epoch == epoch + 1, "another master")
            assert not frozen.thaw(), "the frozen master was not dead when another was elected"
    told = (await group.incidents_since(epoch))[0]
    assert (told["trigger"], told["unfenced"]) == ("silence", False)
    assert "Unfenced" not in {item["type"] for item in group.seen.status["conditions"] if item["status"] == "True"}


async def test_both_slaves_are_killed(group: WholeGroup) -> None:
    """Strict needs two disks: until a slave is back no send is acknowledged, and the master stays."""
    epoch, master = group.seen.master_epoch, group.seen.master_id
    before = group.pids()
    slaves = [each for each in before if each != master]
    async with group.lossless():
        group.kill(*slaves)
        await group.until(
            lambda: all(group.pids()[each] not in (None, before[each]) for each in slaves), "both slaves run again"
        )
    assert (group.seen.master_id, group.seen.master_epoch) == (master, epoch)


async def test_all_three_are_killed(group: WholeGroup) -> None:
    """Only a member of the last SyncStateSet may lead; `history` refuses any other."""
    epoch, members = group.seen.master_epoch, group.seen.sync_state_set
    before = group.pids()
    async with group.lossless():
        group.kill(*before)
        await group.until(
            lambda: group.seen.master_epoch > epoch and group.seen.master_id is not None,
            "a master in a new epoch, for its process is another one",
        )
        assert group.seen.master_id in members
    assert all(pid != before[each] for each, pid in group.pids().items())


async def test_a_slave_freezes_and_thaws(group: WholeGroup) -> None:
    """It falls behind, the set shrinks to the others, sending continues; thawed, it catches up."""
    epoch, master = group.seen.master_epoch, group.seen.master_id
    slave, pid = next((each, pid) for each, pid in group.pids().items() if each != master)
    async with group.under_load():
        with hold(pid or 0) as frozen:
            frozen.freeze()
            await group.until(
                lambda: slave not in group.seen.sync_state_set, "the frozen slave leaves the SyncStateSet"
            )
            await group.until_acknowledged()
            assert frozen.thaw()
        await group.until(lambda: slave in group.seen.sync_state_set, "the thawed slave is back")
    await group.verify()
    assert (group.seen.master_id, group.seen.master_epoch) == (master, epoch)


async def test_the_master_dies_while_a_slave_is_out_of_sync(group: WholeGroup) -> None:
    """The member outside the set is alive and may answer first, but must not lead."""
    master = group.master
    outsider, follower = [each for each in group.pids() if each != master]
    async with group.lossless():
        with hold(group.pids()[outsider] or 0) as frozen:
            frozen.freeze()
            await group.until(lambda: outsider not in group.seen.sync_state_set, "the frozen slave leaves")
            epoch = group.seen.master_epoch
            group.kill(master)
            assert frozen.thaw()
        # The history has its own watch, which may deliver later.
        await group.until(lambda: epoch + 1 in group.history.masters_of_epochs(), "another master")
        assert group.history.masters_of_epochs()[epoch + 1] == {follower}


async def test_the_operator_is_away_while_the_master_dies(group: WholeGroup) -> None:
    """Without a controller the brokers wait. A cold start then elects once, by the record."""
    epoch, master = group.seen.master_epoch, group.master
    [operator] = [child for child in group.house.processes.children if child.name == "operator"]
    async with group.lossless():
        await group.house.kill_operator(operator)
        group.kill(master)
        await asyncio.sleep(0)
        await group.house.start_operator()
        await group.until(lambda: group.seen.master_epoch > epoch, "another epoch")
    assert group.seen.master_epoch == epoch + 1
