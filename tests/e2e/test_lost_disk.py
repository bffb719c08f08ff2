"""A member that returns with its identity but without its log (F9) never leads without the data, and copies it again."""

from __future__ import annotations

import os
import shutil
import signal
from typing import TYPE_CHECKING

import pytest

from tests.e2e.house import NAMESPACE, WholeGroup

if TYPE_CHECKING:
    from pathlib import Path

    from tests.e2e.house import House

pytestmark = [pytest.mark.longer, pytest.mark.asyncio(loop_scope="module")]

IDENTITY = frozenset({"brokerIdentity", "lock"})


def claim_of(house: House, pod: str) -> Path:
    """Return the folder of the pod's volume."""
    [found] = (house.node_folder / "claims").glob(f"{NAMESPACE}_{pod}_*")
    return found


def wipe_and_kill(house: House, group: WholeGroup, broker_ids: list[int]) -> None:
    """Delete all but the identity, and kill the process: the next one finds an empty disk."""
    pids = group.pids()
    for broker_id in broker_ids:
        pid = pids[broker_id]
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        for entry in claim_of(house, f"{group.name}-{broker_id}").iterdir():
            if entry.name in IDENTITY:
                continue
            if entry.is_dir():
                shutil.rmtree(entry)
            else:
                entry.unlink()
        os.kill(pid, signal.SIGKILL)


async def test_a_master_without_its_log_does_not_lead(house: House, group: WholeGroup) -> None:
    async with group.lossless():
        await group.until_acknowledged()
        master, epoch = group.master, group.seen.master_epoch
        wipe_and_kill(house, group, [master])
        await group.until(
            lambda: group.seen.master_epoch > epoch and group.seen.master_id not in (None, master), "another master"
        )


async def test_a_slave_without_its_log_is_filled_again(house: House, group: WholeGroup) -> None:
    """OT-CONTAINER-KIT/redis-operator #421: a follower without its volume never returned."""
    async with group.lossless():
        master, epoch = group.seen.master_id, group.seen.master_epoch
        wiped = next(one for one in group.seen.sync_state_set if one != master)
        wipe_and_kill(house, group, [wiped])
        await group.until(lambda: wiped not in group.seen.sync_state_set, "it to lose its seat")
        await group.until_settled()
    assert (group.seen.master_id, group.seen.master_epoch) == (master, epoch)


async def test_two_of_three_without_their_logs_at_once(house: House, group: WholeGroup) -> None:
    """The master and a slave lose theirs: only the third has all acknowledged messages, and only it may lead."""
    async with group.lossless():
        await group.until_acknowledged()
        master, epoch = group.seen.master_id, group.seen.master_epoch
        kept = next(one for one in reversed(group.seen.sync_state_set) if one != master)
        wipe_and_kill(house, group, [one for one in group.seen.sync_state_set if one != kept])
        await group.until(lambda: group.seen.master_epoch > epoch and group.seen.master_id == kept, f"{kept} to lead")
        await group.until_settled()
