"""The controller's interface to the rest of the operator: elections, removals, topics, broker configuration with read-back."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

import pytest
from structlog.testing import capture_logs

from brokergroup_operator.controller.change import group_verbs
from brokergroup_operator.controller.group.changes import IN_SYNC_SECONDS
from brokergroup_operator.controller.upkeep.keeper import pause_after
from brokergroup_operator.observe.group_view import (
    BrokerRefusedError,
    BrokerUnreachableError,
    ElectionRefusedError,
    GroupUnknownError,
    GroupViewError,
    MemberNeededError,
)
from brokergroup_operator.observe.timeline import Outcome, Trigger
from brokergroup_operator.records.memory import MemoryRecordStore
from brokergroup_operator.records.store import GroupKey
from rocketmq_remoting.broker_protocol import TopicConfig
from rocketmq_remoting.codes import RequestCode
from tests.controller.conftest import QUICK, group_of, record_of, snapshot_of
from tests.controller.world import KEY, LOOSE, Fencer, World, look_up
from tests.support.fake_broker import NAME, FakeBroker, FakeGroup, eventually
from tests.support.virtual_loop import TRAVEL_SECONDS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from brokergroup_operator.controller.plane import ControllerPlane


async def _only_the_third_is_left(plane: ControllerPlane, group: FakeGroup, brokers: list[FakeBroker]) -> None:
    """Let the third member leave the set, then lose the members of the set."""
    first, second, third = brokers
    third.ignored_ha_pushes = 1000
    first.linked.discard(3)
    await first.propose_set()
    await eventually(lambda: record_of(plane).sync_state_set == {1, 2}, what="3 to leave the set")
    await second.kill()
    await first.kill()
    await eventually(lambda: record_of(plane).granted_master_id is None, what="no master")


async def _kill(plane: ControllerPlane, broker: FakeBroker) -> None:
    await broker.kill()
    await eventually(lambda: broker.broker_id not in snapshot_of(plane).live, what="its death to be noticed")


@asynccontextmanager
async def a_switchover(plane: ControllerPlane, master: FakeBroker) -> AsyncIterator[None]:
    """Hold a switchover where the old master has stopped acknowledging; on exit let it finish."""
    master.role_change_waits = asyncio.Event()
    switching = asyncio.create_task(plane.switch_master(KEY))
    await eventually(lambda: master.minimum == 99, what="the old master to stop acknowledging")
    yield
    master.role_change_waits.set()
    await switching


async def test_an_unclean_election_is_a_persons_and_is_counted(group: World) -> None:
    plane, brokers = await group.three_under(settings=LOOSE)
    await _only_the_third_is_left(plane, group, brokers)
    with pytest.raises(ElectionRefusedError, match="no member of the SyncStateSet"):
        await plane.elect(KEY, to_broker_id=3, unclean=False)
    result = await plane.elect(KEY, to_broker_id=3, unclean=True)
    assert (result.to_broker_id, result.unclean, result.confirmed) == (3, True, True)
    record = record_of(plane)
    assert (record.master_broker_id, record.master_epoch, record.unclean_elections) == (3, result.epoch, 1)
    told = snapshot_of(plane).last_failover
    assert told is not None
    assert (told.to_broker_id, told.epoch_after, told.unclean) == (3, result.epoch, True)
    assert brokers[2].is_master
    timeline = snapshot_of(plane).last_failover
    assert timeline is not None
    assert (timeline.trigger, timeline.outcome, timeline.to_broker_id) == (Trigger.REQUESTED, Outcome.COMPLETED, 3)


async def test_nobody_is_elected_over_a_living_master(group: World) -> None:
    plane, _ = await group.three_under()
    with pytest.raises(ElectionRefusedError, match="alive: a switchover moves it"):
        await plane.elect(KEY, to_broker_id=2, unclean=True)
    with pytest.raises(ElectionRefusedError, match="no member 9"):
        await plane.elect(KEY, to_broker_id=9, unclean=True)
    with pytest.raises(GroupUnknownError):
        await plane.elect(GroupKey("standalone", "nobody's"), to_broker_id=1, unclean=True)
    assert record_of(plane).master_epoch == 1


async def test_a_dead_member_is_removed_and_its_id_stays_used(group: World) -> None:
    plane, (first, _, third) = await group.three_under()
    with pytest.raises(MemberNeededError, match="alive"):
        await plane.remove_member(KEY, 3)
    with pytest.raises(MemberNeededError, match="master"):
        await plane.remove_member(KEY, 1)
    await _kill(plane, third)
    await plane.remove_member(KEY, 3)
    record = record_of(plane)
    assert (record.sync_state_set, sorted(record.replicas), record.next_broker_id) == (frozenset({1, 2}), [1, 2], 4)
    await plane.remove_member(KEY, 3)  # a completed removal is a no-op
    await first.propose_set()
    await eventually(lambda: first.sync_state_set == {1, 2}, what="the master to learn of the set")
    newcomer = await group.broker()
    assert newcomer.broker_id == 4


async def test_nobody_is_dead_before_it_could_have_been_heard(group: World) -> None:
    """A plane that has just started has heard no member yet: it must not remove a living member for that."""
    store = MemoryRecordStore()
    first_plane, _ = await group.three_under(store)
    # The group's brokers do not know the second plane, so they send it no heartbeats.
    second_plane = await group.plane(store, broker_rescan_seconds=60.0)
    group.planes = [first_plane.address]
    await look_up(second_plane)
    with pytest.raises(MemberNeededError, match="may be alive"):
        await second_plane.remove_member(KEY, 3)
    assert sorted(record_of(first_plane).replicas) == [1, 2, 3]


async def test_a_seat_at_the_floor_is_kept(group: World) -> None:
    plane, (_, second, third) = await group.three_under()
    await _kill(plane, third)
    await plane.remove_member(KEY, 3)
    await _kill(plane, second)
    with pytest.raises(MemberNeededError, match="the least is 2"):
        await plane.remove_member(KEY, 2)
    assert record_of(plane).sync_state_set == {1, 2}


async def test_a_brokers_configuration_is_read_and_changed(group: World) -> None:
    plane, (_, second, third) = await group.three_under()
    await plane.set_broker_config(KEY, 2, {"haSendHeartbeatInterval": "1", "flushDiskType": "ASYNC_FLUSH"})
    found = await plane.broker_config(KEY, 2)
    assert (found["brokerName"], found["haSendHeartbeatInterval"]) == (NAME, "1")
    assert second.config == {"haSendHeartbeatInterval": "1", "flushDiskType": "ASYNC_FLUSH"}
    await _kill(plane, third)
    with pytest.raises(BrokerUnreachableError, match="broker 3: "):
        await plane.broker_config(KEY, 3)
    with pytest.raises(BrokerUnreachableError, match="the address of broker 4 is not known"):
        await plane.set_broker_config(KEY, 4, {"haSendHeartbeatInterval": "1"})


async def test_a_topic_is_made_at_the_master_alone(group: World) -> None:
    plane, (first, second, third) = await group.three_under()
    first.takes_new_names = second.takes_new_names = True
    assert await plane.topic(KEY, "orders") is None
    await plane.put_topic(KEY, TopicConfig(topic_name="orders", read_queue_nums=4, write_queue_nums=4))
    found = await plane.topic(KEY, "orders")
    assert found is not None
    assert (found.read_queue_nums, found.write_queue_nums, found.perm) == (4, 4, 6)
    assert (first.topics, second.topics, third.topics) == ({"orders": 4}, {}, {})


async def test_a_broker_that_refuses_a_topic_is_named_with_its_words(group: World) -> None:
    plane, _ = await group.three_under()
    with pytest.raises(BrokerRefusedError, match=r"topic orders: .*: 17 answered 3"):
        await plane.put_topic(KEY, TopicConfig(topic_name="orders"))
    with pytest.raises(BrokerRefusedError, match=r"topic orders: .*: 351 answered 3"):
        await plane.topic(KEY, "orders")


async def test_without_a_master_no_topic_is_made(group: World) -> None:
    plane, brokers = await group.three_under(settings=LOOSE)
    await _only_the_third_is_left(plane, group, brokers)
    with pytest.raises(BrokerUnreachableError, match="has no master"):
        await plane.put_topic(KEY, TopicConfig(topic_name="orders"))


async def test_a_consumer_group_and_its_first_offsets_are_made_at_the_master_alone(group: World) -> None:
    """An offset that is there stays: the consumer group has read the queue."""
    plane, (first, second, _) = await group.three_under()
    first.takes_new_names = second.takes_new_names = True
    assert await plane.consumer_groups(KEY, ["billing"]) == {}
    await plane.put_consumer_group(KEY, {"groupName": "billing"})
    assert set(await plane.consumer_groups(KEY, ["billing", "none"])) == {"billing"}
    first.offsets = {"orders@billing": {0: 7}}
    await plane.put_first_offsets(KEY, "orders", range(3), {"billing", "shipping"}, only_empty=False)
    assert first.offsets == {"orders@billing": {0: 7, 1: 0, 2: 0}, "orders@shipping": {0: 0, 1: 0, 2: 0}}
    assert (second.groups, second.offsets) == ({}, {})
    first.offsets = {}
    async with a_switchover(plane, first):
        with pytest.raises(GroupViewError, match="consumer groups are left alone"):
            await plane.put_consumer_group(KEY, {"groupName": "billing"})
        with pytest.raises(GroupViewError, match="offsets are left alone"):
            await plane.put_first_offsets(KEY, "orders", range(3), {"billing"}, only_empty=False)
    assert first.offsets == {}


async def test_a_queue_that_holds_messages_gets_no_first_offset_when_queues_are_added(group: World) -> None:
    """It was written before `queues` was lowered: an offset 0 would go back behind one that a consumer commits meanwhile."""
    plane, (first, _, _) = await group.three_under()
    first.takes_new_names = True
    first.queue_ends = {0: 5, 1: 9, 2: 0, 3: 0}
    assert await plane.put_first_offsets(KEY, "orders", range(1, 4), {"billing"}, only_empty=True) == 0
    assert first.offsets == {"orders@billing": {2: 0, 3: 0}}


async def test_only_so_many_first_offsets_are_set_at_once(group: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_verbs, "FIRST_OFFSETS_AT_ONCE", 4)
    plane, (first, _, _) = await group.three_under()
    first.takes_new_names = True
    put = partial(plane.put_first_offsets, KEY, "orders", range(3), {"a", "b", "c"}, only_empty=False)
    assert [await put(), await put(), await put()] == [5, 1, 0]
    assert first.offsets == {f"orders@{reader}": {0: 0, 1: 0, 2: 0} for reader in "abc"}


async def test_others_wait_until_a_new_master_can_acknowledge(group: World) -> None:
    plane, (first, second, _) = await group.three_under()
    loop = asyncio.get_running_loop()
    await asyncio.sleep(1.0)
    began = loop.time()
    for key in (KEY, GroupKey("no", "such")):
        await plane.wait_until_master_is_told(key, 5.0)
    assert loop.time() == began, "nothing changes"
    await first.kill()
    await asyncio.sleep(2 * TRAVEL_SECONDS)
    assert group_of(plane).master_change is not None, "the plane doubts its master"
    await plane.wait_until_master_is_told(KEY, 5.0)
    assert record_of(plane).master_broker_id == second.broker_id
    assert second.is_master
    assert len(record_of(plane).sync_state_set) == 2


async def test_others_wait_only_a_moment_for_members_that_do_not_come(group: World) -> None:
    plane, (first, second, third) = await group.three_under()
    second.ignored_ha_pushes = third.ignored_ha_pushes = 1000
    await asyncio.sleep(1.0)
    await first.kill()
    await asyncio.sleep(2 * TRAVEL_SECONDS)
    change, loop = group_of(plane).master_change, asyncio.get_running_loop()
    assert change is not None, "the plane doubts its master"
    await asyncio.wait([change])
    ended = loop.time()
    await plane.wait_until_master_is_told(KEY, 5.0)
    told = loop.time()
    assert told - ended == pytest.approx(IN_SYNC_SECONDS, abs=0.01)
    assert len(record_of(plane).sync_state_set) == 1
    await plane.wait_until_master_is_told(KEY, 5.0)
    assert loop.time() == told, "the moment is over"


async def test_others_wait_no_longer_than_they_said(group: World) -> None:
    plane, (first, _, _) = await group.three_under(fencer=Fencer(group, confirms=False))
    await asyncio.sleep(1.0)
    first.freeze()
    await eventually(lambda: group_of(plane).changes.has_begun, what="the fence")
    loop = asyncio.get_running_loop()
    began = loop.time()
    await plane.wait_until_master_is_told(KEY, 0.2)
    assert loop.time() - began == pytest.approx(0.2)


async def test_topics_and_configuration_are_left_alone_while_a_master_is_moved(group: World) -> None:
    """The next master might never copy a topic that its predecessor created just before the switch; a new minInSyncReplicas in the
    middle of a switchover would let the old master acknowledge again.
    """
    plane, (first, _, _) = await group.three_under()
    async with a_switchover(plane, first):
        with pytest.raises(GroupViewError, match="topics are left alone"):
            await plane.put_topic(KEY, TopicConfig(topic_name="orders"))
        with pytest.raises(GroupViewError, match="under way"):
            await plane.set_broker_config(KEY, 1, {"minInSyncReplicas": "2"})


# ---- Read-back of broker configuration (26): on a schedule and after each change; leftovers of a switchover are repaired.

WATCHED = {"watched_keys": frozenset({"minInSyncReplicas", "fileReservedTime"})}


async def test_what_somebody_else_changed_is_seen_on_the_schedule(group: World) -> None:
    plane, (first, _, _) = await group.three_under(wishes=WATCHED, configuration_check_seconds=0.1)
    await eventually(lambda: set(snapshot_of(plane).member_configuration) == {1, 2, 3}, what="all to be read")
    first.minimum, first.config = 1, {"fileReservedTime": "1", "unwatched": "x"}
    expected = {"minInSyncReplicas": "1", "fileReservedTime": "1"}
    await eventually(lambda: snapshot_of(plane).member_configuration[1] == expected, what="the change to be seen")
    await plane.set_broker_config(KEY, 1, {"minInSyncReplicas": "2"})
    await eventually(
        lambda: snapshot_of(plane).member_configuration.get(1, {}).get("minInSyncReplicas") == "2",
        what="what we changed to be read again",
    )


async def test_a_change_of_master_has_all_read_again(group: World) -> None:
    plane, (first, second, third) = await group.three_under(wishes=WATCHED, configuration_check_seconds=3600.0)
    await eventually(lambda: set(snapshot_of(plane).member_configuration) == {1, 2, 3}, what="all to be read")
    third.config = {"fileReservedTime": "1"}
    await plane.switch_master(KEY)
    await eventually(
        lambda: snapshot_of(plane).member_configuration.get(3, {}).get("fileReservedTime") == "1",
        what="a slave that was not moved to be read",
    )
    assert {first.minimum, second.minimum} == {2}


async def test_an_old_master_that_did_not_answer_its_role_gets_its_minimum_back_when_it_does(group: World) -> None:
    """tests/core/traces/change_switchover_untold.txt: the change ends, and no plan holds the minimum of 99 any more."""
    plane, (first, _, _) = await group.three_under(
        wishes=WATCHED,
        configuration_check_seconds=0.1,
        leftover_fence_seconds=0.2,
        role_change_deadline_seconds=0.3,
    )
    first.role_change_waits = asyncio.Event()
    await plane.switch_master(KEY)
    await eventually(lambda: not snapshot_of(plane).is_changing, what="the change to end")
    assert first.minimum == 99
    first.role_change_waits.set()
    await eventually(lambda: first.minimum == 2, what="the minimum to be put back")
    assert group.notes.put_back == [(1, 2)]


async def test_a_member_that_does_not_say_its_configuration_is_asked_less_and_less_often(group: World) -> None:
    """A thousand groups with such members asked 500 questions a second."""
    plane, (*_, third) = await group.three_under()
    inner = group_of(plane)
    await eventually(lambda: 3 in inner.configuration.checked, what="all to be read")
    third.refuses = lambda command: "not for you" if command.code == RequestCode.GET_BROKER_CONFIG else ""
    inner.configuration.may_have_changed(3)
    third.asked.clear()
    with capture_logs() as lines:
        await eventually(lambda: _questions(third) > 6, what="questions in vain")
    assert [line["log_level"] for line in lines if line["event"] == "configuration unknown"].count("warning") == 1
    asked = _questions(third)
    await asyncio.sleep(pause_after(asked, QUICK) / 2)
    assert _questions(third) == asked
    # Its configuration changed: the pause is over.
    inner.configuration.may_have_changed(3)
    began_seconds = asyncio.get_running_loop().time()
    await eventually(lambda: _questions(third) > asked, what="a question at once")
    assert asyncio.get_running_loop().time() - began_seconds < pause_after(asked, QUICK) / 2 - 0.05
    third.refuses = lambda _: ""
    await eventually(lambda: 3 in inner.configuration.checked, what="its answer")


def _questions(broker: FakeBroker) -> int:
    return broker.asked.count(RequestCode.GET_BROKER_CONFIG)
