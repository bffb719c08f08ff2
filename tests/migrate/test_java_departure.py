"""A group under our controller goes to a Java controller 5.5.0, which fails over, or to static roles, with every message."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from brokergroup_operator.demo.client import read_keys
from brokergroup_operator.migrate.stores import Place, inspect
from tests.migrate.test_java_adoption import (
    CONTROLLED,
    NAME,
    QUEUES,
    TOPIC,
    Lab,
    lab,
    lose_the_first_file,
    our_controller,
    send,
)
from tests.real.parts import java
from tests.support.java_rig import eventually, in_sync, record_of

if TYPE_CHECKING:
    from pathlib import Path

    from brokergroup_operator.demo.client import Ledger

__all__ = ["lab"]

pytestmark = [pytest.mark.real("java", "rocketmq"), pytest.mark.timeout(500)]

BROKERS = ("one", "two")


async def stopped_group(lab: Lab) -> tuple[tuple[Ledger, ...], str]:
    """Run two brokers under ours, with a failover, and stop them alike; return the messages, and the last master."""
    async with our_controller(lab) as plane:
        for name in BROKERS:
            lab.start_broker(name, controllers=plane.address, **CONTROLLED)
        await eventually(lambda: in_sync(plane, 2), f"two in sync\n{lab.logs()}")
        first = record_of(plane).master_broker_id
        before = await send(lab, record_of(plane).address_of(first or 0) or "", count=100, first=5_000_000)
        killed = lab.kill_at(record_of(plane).address_of(first or 0) or "")
        await eventually(lambda: record_of(plane).master_broker_id not in (None, first), "another master")
        lab.start_broker(killed, controllers=plane.address, **CONTROLLED)
        await eventually(lambda: in_sync(plane, 2), f"two in sync again\n{lab.logs()}")
        master = lab.name_at(record_of(plane).address_of(record_of(plane).master_broker_id or 0) or "")
        ledger = await send(lab, lab.programs[master].address, count=900)

        async def alike() -> bool:
            ends = [await lab.end_of(name) for name in BROKERS]
            return ends[0] == ends[1]

        await eventually(alike, "both have everything")
        # A slave copies topics every 10 s, and `back` refuses one without them.
        topics = [lab.store(name) / "config" / "topics.json" for name in BROKERS]
        await eventually(lambda: all(f'"{TOPIC}"' in one.read_text() for one in topics), "both have the topic")
        # The slave first: ours would elect it otherwise.
        for name in sorted(BROKERS, key=lambda one: one == master):
            await asyncio.to_thread(lab.programs[name].process.stop, 40.0)
    return (before, ledger), master


async def left(lab: Lab, target: str, *more: str) -> Path:
    """The commands of docs/tasks/adopt.md; return the folder with each broker's properties."""
    output = lab.folder / "conf"

    async def reports() -> list[str]:
        paths = []
        for name in BROKERS:
            paths.append(lab.folder / f"{name}.json")
            paths[-1].write_text(await lab.brokergroup("check", str(lab.store(name))), encoding="utf-8")
        return [str(path) for path in paths]

    words = (
        "--broker-name",
        NAME,
        "--to",
        target,
        "--store",
        f"file:{lab.folder / 'records'}",
        "--output",
        str(output),
        *more,
    )
    assert "nothing was done" in await lab.brokergroup("back", *await reports(), *words)
    for name in BROKERS:
        await lab.brokergroup("release", str(lab.store(name)), "--to", target, "--yes")
    assert '"step": "removed"' in await lab.brokergroup("back", *await reports(), *words, "--yes")
    return output


def properties_of(path: Path) -> dict[str, Any]:
    own = dict(line.split("=", 1) for line in path.read_text(encoding="utf-8").splitlines())
    for key in ("storePathRootDir", "storePathCommitLog"):
        del own[key]
    # A static slave answers no pull by default, and the test reads there.
    return own | {"haSendHeartbeatInterval": 1, "waitTimeMillsInSendQueue": 20000, "slaveReadEnable": "true"}


async def missing(lab: Lab, address: str, ledgers: tuple[Ledger, ...], gone: set[str]) -> set[str]:
    keys = await read_keys(address, TOPIC, QUEUES)
    return {key for ledger in ledgers for key in ledger.missing_from(keys)} - gone


async def test_a_group_goes_to_a_java_controller_and_fails_over_there(lab: Lab) -> None:
    before, _ = await stopped_group(lab)
    # As in any store older than its retention: a new member must join there all the same.
    gone = lose_the_first_file(lab)
    assert gone
    ids = {name: inspect(Place(lab.store(name))).identity for name in BROKERS}
    controller = java.start_controller(lab.folder / "controller")
    await asyncio.to_thread(controller.wait_until_listening)
    lab.programs["controller"] = controller
    output = await left(lab, "java-controller", "--controller-addr", controller.address)
    # The empty one first would be elected by Java, whose first election takes the broker that asks: it comes last.
    for name in (*BROKERS, "three"):
        holder = ids.get(name)
        conf = properties_of(output / f"broker-{holder.broker_id if holder else 1}.conf")
        lab.start_broker(name, controllers=controller.address, **conf)
        await asyncio.to_thread(lab.programs[name].wait_until_listening)
    await eventually(
        lambda: java_in_sync(lab, controller.address, 3), f"three in sync at the Java controller\n{lab.logs()}"
    )
    master, _ = await java_state(lab, controller.address)
    later = await send(lab, lab.programs[master].address, count=100, first=1_000_000)
    assert await missing(lab, lab.programs[master].address, (*before, later), gone) == set()
    lab.programs[master].process.kill()

    async def is_replaced() -> bool:
        now, members = await java_state(lab, controller.address)
        return now not in ("", master) and members == 2

    await eventually(is_replaced, f"another master at the Java controller\n{lab.logs()}")
    second, _ = await java_state(lab, controller.address)
    last = await send(lab, lab.programs[second].address, count=100, first=2_000_000)
    assert await missing(lab, lab.programs[second].address, (*before, later, last), gone) == set()


async def java_state(lab: Lab, controller: str) -> tuple[str, int]:
    """Return the name of the Java controller's master, empty without one, and the size of the SyncStateSet."""
    info = (await lab.calls().sync_state_data(controller, [NAME])).get(NAME)
    if info is None or not info.master_address:
        return "", 0
    return lab.name_at(info.master_address), len(info.in_sync_replicas)


async def java_in_sync(lab: Lab, controller: str, members: int) -> bool:
    master, in_sync_now = await java_state(lab, controller)
    return bool(master) and in_sync_now == members


async def test_a_group_goes_to_static_roles(lab: Lab) -> None:
    before, master = await stopped_group(lab)
    slave = next(name for name in BROKERS if name != master)
    ids = {name: inspect(Place(lab.store(name))).identity for name in BROKERS}
    output = await left(lab, "static-roles")
    for name in (master, slave):
        holder = ids[name]
        assert holder is not None
        conf = properties_of(output / f"broker-{holder.broker_id}.conf")
        assert conf["brokerRole"] == ("SYNC_MASTER" if name == master else "SLAVE")
        address = lab.start_broker(name, controllers="127.0.0.1:1", **conf).address
        await eventually(partial(lab.is_registered, address), f"{name} is registered\n{lab.logs()}")
    later = await send(lab, lab.programs[master].address, count=100, first=1_000_000)
    for name in (master, slave):

        async def all_there(name: str = name) -> bool:
            return await missing(lab, lab.programs[name].address, (*before, later), set()) == set()

        await eventually(all_there, f"every message at {name}")
