"""The cut: same master, same epoch, same ids; every cut that fails leaves Java in charge."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from brokergroup_operator.migrate.cut_over import SET_EPOCH_MARGIN, CutOver, CutOverError
from brokergroup_operator.migrate.java import read_controller
from tests.migrate.conftest import EPOCH, SET_EPOCH, cut_settings
from tests.migrate.fake_java import FakeJavaController, Tables
from tests.migrate.running_broker import LOOKS_UP
from tests.support.fake_broker import NAME, eventually

if TYPE_CHECKING:
    from brokergroup_operator.migrate.cut_over import CutOverSettings
    from controller_core.model import BrokerGroupRecord
    from tests.migrate.conftest import House


def settings(house: House) -> CutOverSettings:
    return cut_settings(house.quiet.address)


async def cut(house: House, changes: CutOverSettings | None = None) -> CutOver:
    return CutOver(
        calls=house.calls,
        reading=await house.read(),
        quiet=house.quiet,
        settings=changes or settings(house),
        report=house.report,
    )


async def begun(house: House, **changes: Any) -> asyncio.Task[list[BrokerGroupRecord]]:
    """A cut that follows Java, which has just been stopped."""
    running = asyncio.create_task((await cut(house, replace(settings(house), **changes))).run())
    await eventually(lambda: "follow" in house.steps, what="the cut follows Java")
    await house.stop_java()
    return running


async def listed(house: House) -> None:
    await eventually(lambda: "listed" in house.steps, what="lists changed")


async def test_a_group_is_taken_over_as_it_is(house: House) -> None:
    running = await begun(house)
    [record] = await running
    assert (record.master_broker_id, record.master_epoch) == (1, EPOCH)
    assert record.sync_state_set == {1, 2, 3}
    assert record.sync_state_set_epoch == SET_EPOCH + SET_EPOCH_MARGIN
    assert {one.broker_id: one.address for one in record.replicas.values()} == {
        one.broker_id: one.address for one in house.brokers
    }
    assert record.next_broker_id == 4
    assert all(one.used == [house.quiet.address] for one in house.brokers), "a broker still uses its old list"
    assert house.nobody_changed_role()
    assert house.steps == ["follow", "stopped", "verified", "listed", "heard", "verified", "lead"]


async def test_nothing_is_begun_where_a_doubt_blocks(house: House) -> None:
    house.tables.master = None
    with pytest.raises(CutOverError, match="nothing was begun: bn: the group has no master"):
        await (await cut(house)).run()
    assert house.steps == []


async def test_it_waits_for_java_no_longer_than_it_was_told(house: House) -> None:
    with pytest.raises(CutOverError, match=r"not stopped in time: .* Nothing has changed"):
        await (await cut(house, replace(settings(house), stop_deadline_seconds=0.3))).run()
    assert {one.listed for one in house.brokers} == {house.java.address}


@pytest.mark.real_time
async def test_a_last_change_that_was_not_read_is_found_at_the_brokers(house: House) -> None:
    """Java accepted a shrink and died before it was read: the record's set would have one member too many."""
    running = await begun(house)
    house.brokers[0].sync_state_set = {1, 2}
    with pytest.raises(CutOverError, match=r"counts 1 slaves in sync.*start the Java controller again"):
        await running
    assert {one.listed for one in house.brokers} == {house.java.address}, "a list was changed"


async def test_a_java_controller_that_comes_back_gets_its_brokers_back(house: House) -> None:
    for one in house.brokers:
        one.reread_seconds = 1.5
    address = house.java.address
    running = await begun(house)
    await listed(house)
    # As Java: it holds no election before its brokers had time to send heartbeats again.
    again = FakeJavaController(first_scan_seconds=5.0)
    house.know(again)
    house.java_port_kept.close()
    await again.start(int(address.rpartition(":")[2]))
    try:
        with pytest.raises(CutOverError, match="a Java controller answers again"):
            await running
        assert {one.listed for one in house.brokers} == {address}
        assert "lead" not in house.steps
        assert "restored" in house.steps
        assert all(one.used == [address] for one in house.brokers), "a broker still uses the new list"
        await eventually(
            lambda: all(again.is_alive(NAME, one.broker_id) for one in house.brokers), what="Java hears all again"
        )
        assert house.nobody_changed_role()
    finally:
        await again.stop()


async def test_brokers_that_list_ours_already_prove_nothing_by_being_heard(house: House) -> None:
    both = f"{house.java.address};{house.quiet.address}"
    for one in house.brokers:
        one.listed = both
    await eventually(lambda: len(house.quiet.heard(NAME)) == 3, what="all heard by ours")
    running = await begun(house, list_deadline_seconds=2.0)
    await listed(house)
    listed_seconds = asyncio.get_running_loop().time()
    await running
    assert asyncio.get_running_loop().time() - listed_seconds >= 0.9, "nothing proved that the old lists were dropped"


async def test_with_a_word_given_it_leads_at_once(house: House) -> None:
    for one in house.brokers:
        one.listed = f"{house.java.address};{house.quiet.address}"
    await eventually(lambda: len(house.quiet.heard(NAME)) == 3, what="all heard by ours")
    for one in house.brokers:
        one.reread_seconds = 1000.0  # none of them looks at its list again
    running = await begun(house, java_stays_stopped=True)
    [record] = await running
    assert record.master_epoch == EPOCH


async def test_another_controller_that_brokers_list_must_be_stopped_too(
    house: House, fresh: FakeJavaController
) -> None:
    """A forgotten controller, or a shadow: any controller that answers brokers could name a leader."""
    for one in house.brokers:
        one.listed = f"{house.java.address};{fresh.address}"
    running = await begun(house, stop_deadline_seconds=1.0)
    with pytest.raises(CutOverError, match=f"not stopped in time: {{'{fresh.address}': 'it answers'}}"):
        await running


async def test_a_host_that_is_gone_cannot_refuse_and_must_be_named(house: House) -> None:
    nowhere = "no-such-host.invalid:9878"
    for one in house.brokers:
        one.listed = f"{house.java.address};{nowhere}"
    running = await begun(house, gone=frozenset({nowhere}))
    [record] = await running
    assert record.master_epoch == EPOCH


async def test_brokers_that_look_controllers_up_take_one_name(house: House) -> None:
    house.brokers[1].config[LOOKS_UP] = "true"
    two = replace(settings(house), controller_list=f"{house.quiet.address};other:1")
    with pytest.raises(CutOverError, match="broker 2 looks its controllers up in DNS"):
        await (await cut(house, two)).run()
    assert house.steps == []


async def test_a_broker_that_dies_while_lists_change_does_not_hold_up_the_cut(house: House) -> None:
    """Our controller handles its death first."""
    for one in house.brokers:
        one.reread_seconds = 1.0
    running = await begun(house)
    await listed(house)
    await house.brokers[0].kill()
    [record] = await running
    assert (record.master_broker_id, record.sync_state_set) == (1, frozenset({1, 2, 3}))


async def test_another_master_while_lists_change_gives_everything_back(house: House) -> None:
    for one in house.brokers:
        one.reread_seconds = 1.0
    address = house.java.address
    running = await begun(house)
    await listed(house)
    house.brokers[1].is_master = True  # set by an unknown writer
    with pytest.raises(CutOverError, match=r"acts as master.*Ours has granted nothing"):
        await running
    assert {one.listed for one in house.brokers} == {address}


async def test_other_groups_of_the_same_controller_are_not_left_behind_by_accident(house: House) -> None:
    house.java.sets["other"] = Tables("cl", replicas={1: "127.0.0.1:1"}, codes={1: "x"})
    house.name_server.others = frozenset({"other"})
    reading = await read_controller(
        house.calls,
        controller=house.java.address,
        name_servers=[house.name_server.address],
        broker_names=[NAME],
        settle_seconds=0.05,
    )
    assert reading.others == ("other",)
    begun = CutOver(
        calls=house.calls, reading=reading, quiet=house.quiet, settings=settings(house), report=house.report
    )
    with pytest.raises(CutOverError, match="decides for other too"):
        await begun.run()
    assert house.steps == []
