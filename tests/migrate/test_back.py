"""The way back: the Java controller ends with what the brokers are in already, and its traps are not stepped into."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from structlog.testing import capture_logs

from brokergroup_operator.migrate import teach
from brokergroup_operator.migrate.back import Back, BackError, BackSettings
from brokergroup_operator.migrate.java import record_of
from brokergroup_operator.migrate.quiet_controller import QuietController
from controller_core.model import Replica
from rocketmq_remoting.codes import RequestCode
from tests.migrate.conftest import EPOCH, SET_EPOCH
from tests.migrate.fake_java import Tables
from tests.support.fake_broker import NAME, eventually

if TYPE_CHECKING:
    from controller_core.model import BrokerGroupRecord
    from tests.migrate.conftest import House
    from tests.migrate.fake_java import FakeJavaController


async def ours(house: House) -> BrokerGroupRecord:
    """The record of a group that is under our controller: the quiet one stands for it, Java is gone."""
    reading = await house.read()
    record = record_of(reading.groups[0].state, cluster_name="cl", next_broker_id=4)
    # First: a Java controller that its master leaves before the others elects another, and tells those.
    await house.stop_java()
    for one in house.brokers:
        one.listed = house.quiet.address
    await eventually(lambda: len(house.quiet.heard(NAME)) == 3, what="all heard by ours")
    return record


def way(house: House, fresh: FakeJavaController, *records: BrokerGroupRecord, deadline_seconds: float = 8.0) -> Back:
    return Back(
        calls=house.calls,
        records=list(records),
        quiet=house.quiet,
        settings=BackSettings(
            controller=fresh.address, own_address=house.quiet.address, list_deadline_seconds=deadline_seconds
        ),
        report=house.report,
    )


async def test_a_group_goes_back_as_it_is(house: House, fresh: FakeJavaController) -> None:
    record = await ours(house)
    [state] = await way(house, fresh, record).run()
    assert (state.master_broker_id, state.master_epoch) == (1, EPOCH)
    assert state.sync_state_set == {1, 2, 3}
    assert state.sync_state_set_epoch == SET_EPOCH
    assert state.addresses == {one.broker_id: one.address for one in house.brokers}
    assert fresh.sets[NAME].next_id == 5, "the stand-in's id is used up, and no other"
    assert house.nobody_changed_role()
    assert fresh.told == [], "a broker was notified of an election that was only taught"
    assert fresh.configuration == {"notifyBrokerRoleChanged": "true", "enableElectUncleanMaster": "false"}


async def test_the_java_controllers_own_options_are_kept(house: House, fresh: FakeJavaController) -> None:
    own = {"notifyBrokerRoleChanged": "false", "enableElectUncleanMaster": "true"}
    fresh.configuration |= own
    await way(house, fresh, await ours(house)).run()
    assert fresh.configuration == own


async def test_each_java_controller_gets_its_own_option_back(house: House, fresh: FakeJavaController) -> None:
    """Members of a controller group do not share their configuration."""
    other = house.java
    other.configuration["notifyBrokerRoleChanged"] = "false"
    async with teach.Teacher(house.calls, leader=fresh.address, peers=(fresh.address, other.address)).silent():
        assert fresh.configuration["notifyBrokerRoleChanged"] == "false"
    assert fresh.configuration["notifyBrokerRoleChanged"] == "true"
    assert other.configuration["notifyBrokerRoleChanged"] == "false"


async def test_an_option_that_cannot_be_given_back_is_named(house: House, fresh: FakeJavaController) -> None:
    with capture_logs() as logs:
        async with teach.Teacher(house.calls, leader=fresh.address, peers=(fresh.address,)).silent():
            await fresh.stop()
    assert [(one["peer"], one["option"], one["value"]) for one in logs if "by hand" in one["event"]] == [
        (fresh.address, "notifyBrokerRoleChanged", "true")
    ]


async def test_a_java_controller_that_was_elected_just_now_is_waited_for(
    house: House, fresh: FakeJavaController
) -> None:
    record = await ours(house)
    fresh.not_ready = 3
    [state] = await way(house, fresh, record).run()
    assert state.master_epoch == EPOCH


async def test_one_that_never_leads_ends_it_before_anything_begins(
    house: House, fresh: FakeJavaController, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(teach, "LEADS_DEADLINE_SECONDS", 0.3)
    record = await ours(house)
    fresh.not_ready = 10_000
    with pytest.raises(BackError, match=r"nothing was begun: .* answers 2007 .not the leader. for 0\.3 s"):
        await way(house, fresh, record).run()
    assert fresh.sets == {}


async def test_afterwards_java_fails_over_by_itself(house: House, fresh: FakeJavaController) -> None:
    await way(house, fresh, await ours(house)).run()
    await house.brokers[0].kill()
    await eventually(lambda: fresh.sets[NAME].master in (2, 3), what="another master")
    assert fresh.sets[NAME].master_epoch == EPOCH + 1
    assert fresh.told, "Java does not notify brokers any more"


async def test_nothing_of_ours_is_heard_in_a_brokers_name(house: House, fresh: FakeJavaController) -> None:
    """The end of our connections must not look like the death of a broker."""
    await way(house, fresh, await ours(house)).run()
    await asyncio.sleep(0.2)
    assert (fresh.sets[NAME].master, fresh.sets[NAME].master_epoch) == (1, EPOCH)
    assert {broker_id for _, broker_id in fresh.alive} == {1, 2, 3}


@pytest.mark.parametrize(("epoch", "set_epoch"), [(1, 1), (1, 3), (2, 2), (2, 7), (3, 4), (30, 41)])
async def test_every_epoch_is_reached_exactly(
    house: House, fresh: FakeJavaController, epoch: int, set_epoch: int
) -> None:
    house.tables.master_epoch, house.tables.members_epoch = epoch, set_epoch
    for one in house.brokers:
        one.believe(master=1, epoch=epoch, members={1, 2, 3}, set_epoch=set_epoch)
    [state] = await way(house, fresh, await ours(house)).run()
    assert (state.master_broker_id, state.master_epoch) == (1, epoch)
    assert state.sync_state_set == {1, 2, 3}
    assert state.sync_state_set_epoch in (set_epoch, set_epoch + 1, 3), "below the brokers', or needlessly far above"
    assert state.sync_state_set_epoch >= set_epoch
    assert house.nobody_changed_role()


async def test_ids_with_holes_stay_where_they_are(house: House, fresh: FakeJavaController) -> None:
    record = await ours(house)
    holed = replace(record, next_broker_id=7)
    [state] = await way(house, fresh, holed).run()
    assert set(state.addresses) == {1, 2, 3}
    assert fresh.sets[NAME].next_id == 7, "a hole served as the stand-in: no id is used up"


async def test_a_controller_that_knows_the_group_is_not_taught_over_it(house: House, fresh: FakeJavaController) -> None:
    fresh.sets[NAME] = Tables("cl")
    with pytest.raises(BackError, match=r"nothing was begun: .* expected 2008"):
        await way(house, fresh, await ours(house)).run()
    assert RequestCode.CONTROLLER_APPLY_BROKER_ID not in fresh.asked


async def test_every_controller_of_ours_must_be_stopped(house: House, fresh: FakeJavaController) -> None:
    record = await ours(house)
    other = QuietController()
    await other.start("127.0.0.1", 0)
    for one in house.brokers:
        one.listed = f"{house.quiet.address};{other.address}"
    try:
        with pytest.raises(BackError, match=f"brokers list {{'{other.address}': 'it answers'}}, which do not refuse"):
            await way(house, fresh, record).run()
        assert fresh.sets == {}
    finally:
        await other.stop()


async def test_a_group_without_a_master_does_not_go_back(house: House, fresh: FakeJavaController) -> None:
    record = replace(await ours(house), master_broker_id=None)
    with pytest.raises(BackError, match="has no master with a live process"):
        await way(house, fresh, record).run()


async def test_a_member_that_nobody_can_find_is_named(house: House, fresh: FakeJavaController) -> None:
    record = await ours(house)
    lost = replace(record, replicas={**record.replicas, 2: Replica(2, "x;1", "", registered=True)})
    with pytest.raises(BackError, match=r"the address of \[2\] is unknown"):
        await way(house, fresh, lost).run()


async def test_when_java_does_not_hear_them_everything_is_undone(house: House, fresh: FakeJavaController) -> None:
    record = await ours(house)
    looks = {one.broker_id: one.looks for one in house.brokers}
    for one in house.brokers:
        one.reread_seconds = 1000.0
    # That look is due already.
    await eventually(lambda: all(one.looks > looks[one.broker_id] for one in house.brokers), what="the last look")
    with pytest.raises(BackError, match="does not hear"):
        await way(house, fresh, record, deadline_seconds=0.3).run()
    assert NAME not in fresh.sets, "Java still knows the group"
    assert {one.listed for one in house.brokers} == {house.quiet.address}
    assert house.steps[-1] == "undone"
    assert fresh.configuration["notifyBrokerRoleChanged"] == "true"
    assert house.nobody_changed_role()


async def test_a_broker_that_does_something_else_than_the_record_says_is_named(
    house: House, fresh: FakeJavaController
) -> None:
    record = await ours(house)
    house.brokers[1].is_master = True
    with pytest.raises(BackError, match="acts as master, the controller's master is 1"):
        await way(house, fresh, record).run()
