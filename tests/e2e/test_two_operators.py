"""Two operators at once, both active (ADR 2): one loss causes one election, and either may die while the other continues."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from tests.e2e.house import House, WholeGroup, whole_group

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]

OPERATORS = ("operator-a", "operator-b")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared_group(house: House) -> AsyncIterator[WholeGroup]:
    """A settled group whose brokers heartbeat to both."""
    async with whole_group(house, "shared", replicas=3) as watched:
        for name in OPERATORS:
            await house.start_operator(name, all_names=OPERATORS)
        await house.create_group("shared")
        await watched.until_settled()
        yield watched


@pytest.mark.parametrize("time", [1, 2])
async def test_one_loss_is_one_election(group: WholeGroup, time: int) -> None:
    async with group.lossless():
        epoch, master = await group.lose_master()
    assert group.seen.master_epoch == epoch + 1
    assert group.seen.master_id != master
    assert group.seen.record["nextBrokerId"] == 4


async def test_either_goes_on_alone(group: WholeGroup) -> None:
    """Kill both in turn; each time the other one replaces a master at once, as it was warm all the time."""
    house = group.house
    for name in OPERATORS:
        await group.until_settled()
        [dying] = [child for child in house.processes.children if child.name == name]
        async with group.lossless():
            await house.kill_operator(dying)
            epoch, _ = await group.lose_master()
        assert group.seen.master_epoch == epoch + 1
        await house.start_operator(name, all_names=OPERATORS)


async def test_an_operator_that_nobody_knows_kills_nobody(group: WholeGroup) -> None:
    """No broker's configuration has its address, so it never gets heartbeats; the other operators hear the master, which lives."""
    epoch, master = group.seen.master_epoch, group.seen.master_id
    house = group.house
    await house.start_operator("operator-c", all_names=OPERATORS)
    log = house.folder / "logs" / "operator-c.log"
    async with group.lossless():
        await group.until(
            lambda: "master silent here, but other planes hear it" in log.read_text(), "the third operator to doubt"
        )
    assert (group.seen.master_id, group.seen.master_epoch) == (master, epoch)
    assert house.incidents("operator-c") == []
