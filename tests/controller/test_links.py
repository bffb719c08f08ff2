"""Live members without a link to their master: detected, reported, linked again, or given up."""

from __future__ import annotations

import asyncio
from typing import Any

from rocketmq_remoting.codes import RequestCode
from tests.controller.conftest import group_of, record_of, snapshot_of
from tests.controller.world import ALL_THREE, LOOSE, World, looked_at
from tests.support.fake_broker import eventually

# With this a link that does not stay is given up within a test.
GIVEN_UP: dict[str, Any] = {"link_missing_seconds": 0.05, "link_given_up_seconds": 5.0, "tick_seconds": 0.05}


async def test_a_link_that_breaks_in_a_settled_group_is_noticed_and_mended(group: World) -> None:
    """The SyncStateSet may still look complete: at the floor (three of three) a master cannot drop a slave that lost its link."""
    plane, (first, second, _) = await looked_at(
        group, settings=ALL_THREE, unlinked_alarm_seconds=0.3, link_missing_longest_seconds=0.2
    )
    assert snapshot_of(plane).unlinked == frozenset()
    second.ignores_ha_pushes_for_ever = True
    first.linked.discard(2)
    await eventually(lambda: snapshot_of(plane).unlinked == {2}, what="the missing link to be noticed")
    assert record_of(plane).sync_state_set == {1, 2, 3}
    await eventually(lambda: group.notes.unlinked == [{2}], what="the alarm")
    second.ignores_ha_pushes_for_ever = False
    await eventually(lambda: snapshot_of(plane).unlinked == frozenset(), what="the link to be back")
    await eventually(lambda: group.notes.unlinked == [{2}, frozenset()], what="the end of the alarm")
    assert record_of(plane).master_epoch == 1


async def test_new_links_are_looked_at_often(group: World) -> None:
    """A Java slave may break its first link at once and dials again only after 5 s: seen after failovers."""
    seldom: dict[str, Any] = {"link_check_seconds": 3600.0, "configuration_check_seconds": 3600.0}
    plane, (first, *others) = await group.three_under(**seldom)
    await first.kill()
    await eventually(lambda: record_of(plane).sync_state_set == {2, 3}, what="another master and its slave")
    slave, master = sorted(others, key=lambda one: one.is_master)
    await master.asked_again(RequestCode.GET_BROKER_HA_STATUS, times=2, what="a settled group's looks")
    master.linked.discard(slave.broker_id)
    await eventually(lambda: slave.broker_id in master.linked, what="the missing link to be noticed and mended")
    assert (slave.epoch, record_of(plane).sync_state_set) == (2, frozenset({2, 3}))


async def test_a_slave_on_a_wrong_link_is_cured_by_two_epochs(group: World) -> None:
    """A slave chained behind another slave has all data, never enters the set, and applies a 906 only after a change of role."""
    plane, (first, second, third) = await looked_at(group, link_missing_longest_seconds=0.1, cure_after_seconds=0.2)
    third.chained = True
    first.linked.discard(3)
    await first.propose_set()
    await eventually(lambda: group.notes.cured == [(3, 3)], what="the cure")
    await eventually(lambda: first.sync_state_set == {1, 2, 3}, what="3 to be in sync again")
    assert [line for line in group.journal if line.startswith("3 ") and not line.endswith(" 1")] == [
        "3 slave 2",
        "3 slave 3",
    ]
    assert (first.is_master, first.epoch, second.epoch, third.master_address) == (True, 3, 3, first.address)
    assert record_of(plane).master_epoch == 3
    await eventually(lambda: snapshot_of(plane).writable)


async def test_no_epochs_are_spent_on_a_slave_again_and_again(group: World) -> None:
    """If the network separates the slave from the master, new epochs repair nothing."""
    plane = await group.plane(
        settings=LOOSE, link_check_seconds=0.05, link_missing_longest_seconds=0.05, cure_after_seconds=0.1
    )
    first, second = await group.broker(), await group.broker()
    await eventually(lambda: first.sync_state_set == {1, 2}, what="two in sync")
    second.ignores_ha_pushes_for_ever = True
    first.linked.discard(2)
    await eventually(lambda: group.notes.cured == [(2, 3)], what="the one cure")
    asked = len(second.asked)
    await eventually(lambda: len(second.asked) > asked + 10, what="it to be told again many times")
    assert group.notes.cured == [(2, 3)]
    assert (record_of(plane).master_epoch, snapshot_of(plane).unlinked) == (3, frozenset({2}))


async def test_a_link_that_ends_at_once_again_and_again_is_given_up(group: World) -> None:
    """As a Java slave whose log ends in a misread frame header: each link ends with "offset is not align"."""
    plane, (first, second, _) = await looked_at(
        group, settings=LOOSE, cure_after_seconds=0.5, link_trusted_seconds=2.0, **GIVEN_UP
    )
    second.ignores_ha_pushes_for_ever = True
    for _ in range(8):
        first.linked.discard(2)
        await asyncio.sleep(0.9)
        first.linked.add(2)
        await asyncio.sleep(0.6)
        assert snapshot_of(plane).unlinked == frozenset(), "the live link is detected"
    assert group.notes.cured == [(2, 3)], "no further epochs are spent on links that break at once"
    lost = snapshot_of(plane).lost_links
    assert lost.keys() == {2}
    assert lost[2].told >= 3
    await eventually(lambda: not snapshot_of(plane).lost_links, what="a link that stands to be trusted")


async def test_a_link_that_never_leaves_its_handshake_is_no_link(group: World) -> None:
    """As a Java slave whose epochs the master of an empty log lacks ("Failed to find a consistent point"): it dials for ever."""
    plane, (first, second, _) = await looked_at(
        group, settings=LOOSE, cure_after_seconds=1.5, link_trusted_seconds=0.5, **GIVEN_UP
    )
    second.ignores_ha_pushes_for_ever = True
    first.only_dialled_by.add(2)
    for _ in range(12):
        first.linked.discard(2)
        await asyncio.sleep(0.3)
        first.linked.add(2)
        await asyncio.sleep(0.7)
    assert group.notes.cured == [(2, 3)]
    assert snapshot_of(plane).unlinked == {2}
    assert snapshot_of(plane).lost_links.keys() == {2}
    first.only_dialled_by.clear()
    await eventually(lambda: not snapshot_of(plane).lost_links, what="a link that stands to be trusted")
    assert snapshot_of(plane).unlinked == frozenset()


async def test_a_slave_that_dials_is_sent_no_further_role(group: World) -> None:
    """Another 906 would only end the handshake that it has begun."""
    plane, (first, second, _) = await looked_at(group, settings=LOOSE, cure_after_seconds=3600.0, **GIVEN_UP)
    second.ignores_ha_pushes_for_ever = True
    first.only_dialled_by.add(2)
    for _ in range(2):
        first.linked.discard(2)
        await eventually(lambda: snapshot_of(plane).unlinked == {2}, what="no link")
        await asyncio.sleep(0.3)
        first.linked.add(2)
        await asyncio.sleep(0.3)
    assert snapshot_of(plane).unlinked == {2}, "a link in its handshake is none"
    tellings, looks = group.journal.count("1008 to 2"), first.asked.count(RequestCode.GET_BROKER_HA_STATUS)
    assert tellings > 0
    await eventually(
        lambda: first.asked.count(RequestCode.GET_BROKER_HA_STATUS) > looks + 20, what="it to be looked for many times"
    )
    assert group.journal.count("1008 to 2") == tellings


async def test_a_slave_that_was_unlinked_often_and_shortly_is_not_given_up(group: World) -> None:
    """As in a rolling update: each change of master ends the slave's link briefly."""
    plane, (first, second, _) = await group.three_under(
        link_check_seconds=0.05, link_given_up_seconds=3.0, settings=LOOSE
    )
    await eventually(lambda: second.asked, what="the first look")
    for _ in range(8):
        first.linked.discard(2)
        await eventually(lambda: 2 in first.linked, what="the keeper to link it")
        await asyncio.sleep(0.5)
    assert not snapshot_of(plane).lost_links


async def test_the_time_in_which_the_master_does_not_answer_counts_against_no_slave(group: World) -> None:
    """Links are unknown while the master does not answer: only an answer that lacks the link counts against the slave."""
    plane, (first, second, _) = await looked_at(group, **GIVEN_UP | {"link_given_up_seconds": 6.0})
    second.ignores_ha_pushes_for_ever = True
    first.linked.discard(2)
    tellings = group.journal.count("1008 to 2")
    await eventually(lambda: group.journal.count("1008 to 2") > tellings + 3, what="it to be told again")
    first.answers_ha_status = False
    await asyncio.sleep(8.0)
    first.answers_ha_status = True
    await first.asked_again(RequestCode.GET_BROKER_HA_STATUS, times=2, what="two looks")
    assert not snapshot_of(plane).lost_links
    await eventually(lambda: snapshot_of(plane).lost_links.keys() == {2}, what="it to be given up in the end")


async def test_no_epochs_are_spent_on_a_slave_that_does_not_answer(group: World) -> None:
    """As a Java broker that shuts down: its ports are closed, and its heartbeats continue for seconds."""
    plane, (first, second, _) = await looked_at(group, role_change_deadline_seconds=0.05, cure_after_seconds=0.1)
    second.role_change_waits, second.ignores_ha_pushes_for_ever = asyncio.Event(), True
    first.linked.discard(2)
    await first.propose_set()
    tellings = group.journal.count("1008 to 2")
    await eventually(lambda: group.journal.count("1008 to 2") > tellings + 8, what="it to be told again many times")
    assert (group.notes.cured, record_of(plane).master_epoch, snapshot_of(plane).unlinked) == ([], 1, frozenset({2}))
    second.role_change_waits.set()
    await eventually(lambda: group.notes.cured == [(2, 3)], what="the cure of one that answers")


async def test_a_group_that_does_not_settle_is_looked_at_less_and_less_often(group: World) -> None:
    """A thousand groups whose brokers answer but confirm nothing had kept a plane busy."""
    plane, (first, second, third) = await group.serving(
        settling_seconds=0.0, keeper_slow_poll_seconds=0.05, small_rpc_deadline_seconds=0.2
    )  # a silent master is probed again this long before its deadline
    for slave in (second, third):
        slave.ignores_ha_pushes_for_ever = True
    first.linked.clear()
    await first.propose_set()
    await eventually(lambda: snapshot_of(plane).unlinked == {2, 3}, what="no link")
    first.answers_ha_status = False
    first.asked.clear()
    beats = first.beats
    await eventually(lambda: first.beats > beats + 60, what="three seconds of heartbeats")
    assert first.asked.count(RequestCode.GET_BROKER_HA_STATUS) < 20
    inner = group_of(plane)
    await eventually(
        lambda: inner.rests_until_seconds > asyncio.get_running_loop().time(), what="the tick to leave it alone"
    )
