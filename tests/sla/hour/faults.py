"""What is done to a group, by hand and from outside: each leaves a stroke behind, with its kind and when it began and ended.

`MAJORITY_LOST` and `SLAVES_FROZEN` are long outages. The first is a failover that takes as long as the slaves are frozen. Of the
second the log says nothing, for no master was lost: only the gauge and the clients know of it.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from contextlib import ExitStack
from enum import StrEnum
from typing import TYPE_CHECKING

from brokergroup_operator.demo.faults import hold
from tests.e2e.stories import change, condition, done, up_to_date
from tests.sla.hour.evidence import Stroke

if TYPE_CHECKING:
    from tests.e2e.house import WholeGroup

_SETTLE_SECONDS = 180.0


class Kind(StrEnum):
    """What can be done."""

    KILL = "kill"
    FREEZE = "freeze"
    SWITCHOVER = "switchover"
    ROLLING_RESTART = "rollingRestart"
    MAJORITY_LOST = "majorityLost"
    SLAVES_FROZEN = "slavesFrozen"


async def strike(group: WholeGroup, kind: Kind, *, outage_seconds: float) -> Stroke:
    """Do it, and wait until the group is whole again."""
    await settled(group)
    began_ms = now_ms()
    match kind:
        case Kind.KILL:
            await _kill_master(group)
        case Kind.FREEZE:
            await _freeze_master(group)
        case Kind.SWITCHOVER:
            await done(group, "Switchover")
        case Kind.ROLLING_RESTART:
            await _restart_all(group)
        case Kind.MAJORITY_LOST:
            await _freeze_slaves(group, outage_seconds, kill_master=True)
        case Kind.SLAVES_FROZEN:
            await _freeze_slaves(group, outage_seconds, kill_master=False)
    await settled(group)
    return Stroke(group.name, kind.value, began_ms, now_ms())


async def settled(group: WholeGroup) -> None:
    """Everybody is there, in sync, and has acknowledged something since."""
    await group.until(group.is_settled, "the group is whole again", deadline_seconds=_SETTLE_SECONDS)
    await group.until_acknowledged(3)


def now_ms() -> int:
    """The wall clock, as the operator's log and Prometheus have it."""
    return time.time_ns() // 1_000_000


async def _kill_master(group: WholeGroup) -> None:
    epoch = group.seen.master_epoch
    os.kill(_pid(group, group.seen.master_id), signal.SIGKILL)
    await group.until(lambda: group.seen.master_epoch > epoch, "another master")


async def _freeze_master(group: WholeGroup) -> None:
    epoch = group.seen.master_epoch
    with hold(_pid(group, group.seen.master_id)) as frozen:
        frozen.freeze()
        try:
            await group.until(lambda: group.seen.master_epoch > epoch, "another master")
        finally:
            frozen.thaw()


async def _restart_all(group: WholeGroup) -> None:
    restarted = {"kubectl.kubernetes.io/restartedAt": f"at {now_ms()}"}
    await change(group, {"metadata": {"annotations": restarted}})
    await group.until(lambda: condition(group, "UpToDate")[0] == "False", "the update is seen")
    await group.until(up_to_date(group), "every pod was restarted", deadline_seconds=_SETTLE_SECONDS)


async def _freeze_slaves(group: WholeGroup, outage_seconds: float, *, kill_master: bool) -> None:
    """Strict needs two disks: nothing can be acknowledged until the slaves run on."""
    master = group.seen.master_id
    with ExitStack() as held:
        slaves = [held.enter_context(hold(pid or 0)) for each, pid in group.pids().items() if each != master]
        try:
            for slave in slaves:
                slave.freeze()
            if kill_master:
                os.kill(_pid(group, master), signal.SIGKILL)
            await asyncio.sleep(outage_seconds)
        finally:
            for slave in slaves:
                slave.thaw()


def _pid(group: WholeGroup, broker_id: int | None) -> int:
    pid = group.pids().get(broker_id) if broker_id is not None else None
    if pid is None:
        raise AssertionError(f"broker {broker_id} has no process\n{group.story()}")
    return pid
