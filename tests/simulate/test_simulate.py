"""The rig itself: a seed repeats its story, the scripted broker has Java's quirks, and the oracle finds a planted fault."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from controller_core.settings import ControllerSettings
from tests.simulate.log import Disk
from tests.simulate.mutants import MUTANTS, ROOT
from tests.simulate.world import World, simulate
from tests.support.virtual_loop import PROCESS, VirtualLoop

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from tests.simulate.broker import Broker

SEED = 3


def in_a_world(story: Callable[[World], Awaitable[None]]) -> Callable[[], None]:
    """Make a test of a scene, which `play` runs."""
    return lambda: play(story)


def play(story: Callable[[World], Awaitable[None]]) -> None:
    """Run a scene from a group in sync, without faults."""
    random.seed(SEED)
    loop = VirtualLoop(most_turns=200_000)

    async def life() -> None:
        world = World(loop, SEED)
        await world.begin()
        assert world.oracle.violations == []
        await story(world)

    try:
        loop.run_until_complete(loop.create_task(life()))
    finally:
        loop.finish()


def master_of(world: World) -> Broker:
    return next(broker for broker in world.kubelet.running() if broker.is_master)


def slave_of(world: World) -> Broker:
    return next(broker for broker in world.kubelet.running() if not broker.is_master)


# ---- the run


@pytest.mark.parametrize("hash_seed", ["1", "4711"])
def test_the_same_seed_tells_the_same_story_in_any_process(hash_seed: str) -> None:
    program = f"from tests.simulate import run, world; run.quiet(); print(world.simulate({SEED}).digest)"
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": f"{ROOT}:{ROOT / 'operator'}"}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.split()[-1] == simulate(SEED).digest


def test_another_seed_tells_another_story() -> None:
    assert simulate(SEED).digest != simulate(SEED + 1).digest


@pytest.mark.parametrize("name", MUTANTS)
def test_what_a_mutant_changes_is_there_once(name: str, tmp_path: Path) -> None:
    mutant = MUTANTS[name]
    copy = tmp_path / mutant.file
    copy.parent.mkdir(parents=True)
    copy.write_text((ROOT / mutant.file).read_text())
    mutant.apply(tmp_path)
    compile(copy.read_text(), mutant.file, "exec")


# ---- the oracle


@in_a_world
async def test_an_acknowledged_message_that_is_on_no_disk_is_found(world: World) -> None:
    acknowledged = list(world.client.acknowledged)
    assert len(acknowledged) > 10
    world.oracle.judge(acknowledged)
    assert world.oracle.violations == []
    for disk in world.kubelet.disks.values():
        disk.messages.remove(acknowledged[5])
    world.oracle.judge(acknowledged)
    assert ["acknowledged messages are lost" in one for one in world.oracle.violations] == [True]


@in_a_world
async def test_a_minimum_that_is_not_told_back_is_found(world: World) -> None:
    slave_of(world).disk.minimum = 99
    world.oracle.judge([])
    assert any("never told back" in one for one in world.oracle.violations)


@in_a_world
async def test_a_role_that_nobody_committed_is_found(world: World) -> None:
    world.oracle.took_role("bn-2", 7, 2)
    assert any("committed is None" in one for one in world.oracle.violations)


@in_a_world
async def test_a_change_without_an_incident_is_found(world: World) -> None:
    record = world.oracle.records[-1]
    other = slave_of(world).broker_id
    world.oracle.committed({**record, "masterBrokerId": other, "masterEpoch": 9}, "somebody")
    world.oracle.judge([])
    assert any("told as 0 incidents" in one for one in world.oracle.violations)


@in_a_world
async def test_a_slave_that_is_told_of_a_move_before_the_old_master_has_answered_is_found(world: World) -> None:
    old, slave = master_of(world), slave_of(world)
    record = world.oracle.records[-1]
    epoch = record["masterEpoch"] + 1
    change = {"kind": "Switchover", "phase": "Telling", "from": old.broker_id, "carriedOutBy": world.plane_addresses[0]}
    moved = {**record, "masterBrokerId": slave.broker_id, "masterEpoch": epoch, "change": change}
    world.oracle.committed(moved, "plane-0")
    world.oracle.told("plane-0", old.node, old.broker_id, epoch)
    assert world.oracle.violations == []
    world.oracle.told("plane-0", slave.node, slave.broker_id, epoch)
    assert any("the old master, had answered" in one for one in world.oracle.violations)
    world.oracle.violations.clear()
    world.oracle.told_answered("plane-0", old.broker_id, epoch)
    world.oracle.told("plane-0", slave.node, slave.broker_id, epoch)
    assert world.oracle.violations == []


@in_a_world
async def test_a_master_that_is_replaced_while_its_process_runs_is_found(world: World) -> None:
    old, slave = master_of(world), slave_of(world)
    record = world.oracle.records[-1]
    elected = {**record, "masterBrokerId": slave.broker_id, "masterEpoch": record["masterEpoch"] + 1}
    elected["change"] = {"kind": "Failover", "phase": "Telling"}
    world.oracle.committed({**elected, "unfenced": [old.broker_id]}, "plane-0")
    assert world.oracle.violations == []
    world.oracle.records.pop()
    world.oracle.committed(elected, "plane-0")
    assert any("though its process runs" in one for one in world.oracle.violations)


@in_a_world
async def test_a_set_that_is_granted_under_an_epoch_that_is_over_is_found(world: World) -> None:
    master, set_epoch = master_of(world), world.oracle.records[-1]["syncStateSetEpoch"]
    world.oracle.set_granted(master.node, master.broker_id, master.epoch, set_epoch)
    assert world.oracle.violations == []
    world.oracle.set_granted(master.node, master.broker_id, master.epoch - 1, set_epoch)
    assert any("which was over by then" in one for one in world.oracle.violations)


# ---- a 1008 from a stranger


@pytest.mark.parametrize("above", [9_000, 25_000])
def test_a_master_that_a_stranger_deposed_is_repaired_within_ten_seconds(above: int) -> None:
    """With production settings the plane asks the master for its role (907) every 5 s."""

    async def story(world: World) -> None:
        master, other = master_of(world), slave_of(world)
        work = master._take_role(other.broker_id, master.epoch + above, {other.broker_id}, 10**6)
        await in_process(world, master, work)
        told_seconds = world.loop.time()
        assert not any(broker.is_master for broker in world.kubelet.running())
        acknowledged = len(world.client.acknowledged)
        await world._until(lambda: len(world.client.acknowledged) > acknowledged, 20.0, "write acknowledged")
        assert world.loop.time() - told_seconds < 10.0
        jump = ControllerSettings().max_epoch_jump
        assert master_of(world).epoch < 2 * jump, (
            "one plane raises the epoch, once, and elects another member if that fails"
        )

    play(story)


# ---- the scripted broker


@in_a_world
async def test_a_slave_that_is_told_while_its_old_master_lives_sleeps_over_it(world: World) -> None:
    slave = slave_of(world)
    assert slave.follower.runs
    began = world.loop.time()
    await in_process(world, slave, slave._take_role(slave.broker_id, slave.epoch + 1, {slave.broker_id}, 99))
    assert 5.0 <= world.loop.time() - began < 5.2


@in_a_world
async def test_a_role_change_wipes_the_address_that_was_pushed_before(world: World) -> None:
    old, slave = master_of(world), slave_of(world)
    world.kill(old.node)
    await asyncio.sleep(0.01)
    other = next(broker for broker in world.kubelet.running() if broker is not slave)
    slave.follower.point_at(f"{other.host}:10912")
    await in_process(world, slave, slave._take_role(other.broker_id, slave.epoch + 1, {other.broker_id}, 99))
    assert slave.follower.address == ""


@in_a_world
async def test_a_master_whose_last_link_ends_answers_what_is_in_flight(world: World) -> None:
    """Java 5.5.0: the master shrinks its own set first, and sends 1001 afterwards."""
    master, copies = master_of(world), list[int]()
    for broker in world.kubelet.running():
        if broker is not master:
            world.loop.freeze(world.process_of(broker.node))
    master.server.append(10**6, copies.append)
    await asyncio.sleep(0.5)
    assert copies == []
    for broker in world.kubelet.running():
        if broker is not master:
            world.kill(broker.node)
    await asyncio.sleep(0.1)
    assert copies == [1]


async def in_process(world: World, broker: Broker, work: Awaitable[None]) -> None:
    """Run as part of the broker's process."""
    context = world.process_of(broker.node)
    token = PROCESS.set(context)
    try:
        await work
    finally:
        PROCESS.reset(token)


# ---- its log


def test_two_logs_agree_up_to_where_their_epochs_part() -> None:
    disk = Disk(minimum=2, messages=[1, 2, 3, 4], epochs=[(1, 0), (2, 3)])
    assert disk.consistent_point([(1, 0), (3, 2)], 5) == 2
    assert disk.consistent_point([(1, 0), (2, 3)], 9) == 4
    assert disk.consistent_point([(4, 0)], 9) is None
    assert Disk(minimum=2).consistent_point([(4, 0)], 9) == 0
    disk.truncate(2)
    assert (disk.messages, disk.epochs) == ([1, 2], [(1, 0)])


def test_an_epoch_in_which_nothing_was_written_gives_way() -> None:
    disk = Disk(minimum=2, messages=[1], epochs=[(1, 0)])
    disk.begin_epoch(2, 1)
    disk.begin_epoch(3, 1)
    disk.begin_epoch(2, 1)
    assert disk.epochs == [(1, 0), (3, 1)]
    assert disk.epoch_at(0) == (1, 0, 1)
