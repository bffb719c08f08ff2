"""Switchover of a living master, also finished by the next operator if the first one died in the middle."""

import asyncio
import time
from dataclasses import replace
from typing import Any

import pytest

from brokergroup_operator.api.broker_keys import ACCEPTS_SENDS_FROM
from brokergroup_operator.observe.group_view import SwitchoverFailedError, SwitchoverRefusedError
from brokergroup_operator.observe.timeline import Kind, Outcome
from brokergroup_operator.records.memory import MemoryRecordStore
from controller_core.model import LiveReplica
from controller_core.requests import ElectMaster
from controller_core.settings import ControllerSettings
from controller_core.step import step
from tests.controller.conftest import group_of, record_of, snapshot_of
from tests.controller.world import (
    KEY,
    LOOSE,
    STRICT,
    Record,
    Store,
    Stored,
    World,
    Write,
    knows,
    raises_epoch,
    stored_in,
)
from tests.support.fake_broker import FakeBroker, eventually
from tests.support.fake_name_server import FakeNameServer


async def test_a_living_master_is_moved_in_the_measured_order(group: World, name_server: FakeNameServer) -> None:
    plane, (first, second, third) = await group.serving(wishes={"name_servers": (await name_server.start(),)})
    group.journal.clear()
    result = await plane.switch_master(KEY, from_broker_id=1)
    assert (result.from_broker_id, result.to_broker_id, result.epoch, result.confirmed) == (1, 2, 2, True)
    assert list(result.phases)[:5] == ["detected", "decided", "committed", "notified", "roleChanged"]
    assert result.milliseconds == result.phases["roleChanged"], (
        "as in the Event, without the steps after the new master"
    )
    assert group.journal[0] == "minInSyncReplicas=99 at 1"
    # 104 comes before the slaves get a dead address: a slave that registers would get the old one back. And again when the
    # old master has its new role, as it may have registered meanwhile.
    assert group.journal[1] == f"104 {first.address}"
    # A dead address: no slave dials the old master again between its role change and their own.
    assert set(group.journal[2:4]) == {"906 to 2", "906 to 3"}
    assert group.journal[4:7] == ["1008 to 1", "1 slave 2", f"104 {first.address}"]
    told = group.journal[7:11]
    assert set(told) == {"1008 to 2", "2 master 2", "1008 to 3", "3 slave 2"}
    assert set(group.journal[11:13]) == {"906 to 1", "906 to 3"}
    assert group.journal[13] == "minInSyncReplicas=2 at 1"
    await eventually(lambda: second.sync_state_set == {1, 2, 3}, what="everybody in sync again")
    assert first.minimum == 2
    assert third.master_address == second.address
    timeline = snapshot_of(plane).last_switchover
    assert timeline is not None
    assert (timeline.kind, timeline.outcome, timeline.epoch_after) == (Kind.SWITCHOVER, Outcome.COMPLETED, 2)
    assert ACCEPTS_SENDS_FROM not in first.config, (
        "a Python replica refuses a key that it does not know, and the request"
    )


async def test_the_old_master_is_told_though_a_name_server_hangs(group: World, name_server: FakeNameServer) -> None:
    """The first 104 makes stalls rarer; waiting for its deadline would itself be a stall."""
    wishes = {"name_servers": (await name_server.start(),)}
    plane, (first, _, _) = await group.three_under(wishes=wishes, name_server_deadline_seconds=60.0)
    name_server.answers.clear()
    switching = asyncio.create_task(plane.switch_master(KEY, from_broker_id=1))
    await eventually(lambda: "1 slave 2" in group.journal, what="the old master to be told")
    assert f"104 {first.address}" in group.journal
    name_server.answers.set()
    assert (await switching).confirmed


async def test_a_slave_that_sleeps_over_its_role_change_holds_up_nobody(group: World) -> None:
    """A Java slave may take 5 s. The old master follows the new one at once, so two of three acknowledge."""
    plane, (_, second, third) = await group.three_under(
        slaves_first_unfenced_seconds=60.0, role_change_deadline_seconds=60.0
    )
    group.journal.clear()
    third.role_change_waits = asyncio.Event()
    switching = asyncio.create_task(plane.switch_master(KEY, to_broker_id=2))
    await eventually(lambda: second.sync_state_set == {1, 2}, what="the old master to be in sync with the new one")
    assert "906 to 1" in group.journal
    third.role_change_waits.set()
    assert (await switching).confirmed
    await eventually(lambda: second.sync_state_set == {1, 2, 3}, what="everybody in sync again")


async def test_while_a_switchover_runs_1004_tells_the_old_state(group: World) -> None:
    plane, (first, second, _) = await group.three_under()
    first.role_change_waits = asyncio.Event()
    switching = asyncio.create_task(plane.switch_master(KEY, from_broker_id=1))
    await eventually(lambda: record_of(plane).master_broker_id == 2, what="the election to be committed")
    answer = await second.ask(1004)
    assert (answer.ext_fields or {})["masterBrokerId"] == "1"
    assert (answer.ext_fields or {})["masterEpoch"] == "1"
    first.role_change_waits.set()
    assert (await switching).to_broker_id == 2
    answer = await second.ask(1004)
    assert (answer.ext_fields or {})["masterEpoch"] == "2"


@pytest.mark.parametrize("java", [False, True], ids=["a Python master", "a Java master, which accepts sends again"])
async def test_slaves_that_never_catch_up_undo_the_switchover(group: World, java: bool) -> None:
    plane, (first, _, _) = await group.three_under()
    first.links_behind = 100
    if java:
        first.config[ACCEPTS_SENDS_FROM] = "0"
    with pytest.raises(SwitchoverFailedError, match="not level"):
        await plane.switch_master(KEY, from_broker_id=1)
    assert (first.is_master, first.minimum, first.config.get(ACCEPTS_SENDS_FROM, "0")) == (True, 2, "0")
    assert (f"{ACCEPTS_SENDS_FROM}=0 at 1" in group.journal) is java
    assert record_of(plane).master_epoch == 1
    await eventually(lambda: snapshot_of(plane).writable)


async def test_a_java_master_refuses_sends_before_it_becomes_a_slave_and_accepts_them_after(group: World) -> None:
    """A Java broker checks `minInSyncReplicas` only while it is master: a send under way at that moment was acknowledged alone."""
    plane, (first, second, _) = await group.three_under()
    first.config[ACCEPTS_SENDS_FROM] = second.config[ACCEPTS_SENDS_FROM] = "0"
    refuses_until: list[int] = []
    take_role = first.take_role

    async def taking(*told: Any) -> None:
        refuses_until.append(int(first.config[ACCEPTS_SENDS_FROM]))
        await take_role(*told)

    first.take_role = taking  # type: ignore[method-assign, assignment]
    began_ms = time.time() * 1000
    assert (await plane.switch_master(KEY, to_broker_id=2)).confirmed
    assert began_ms + 29_000 < refuses_until[0] < began_ms + 60_000
    await eventually(lambda: first.config[ACCEPTS_SENDS_FROM] == "0" and first.minimum == 2, what="it to accept sends")


async def test_a_refusal_of_sends_that_was_left_behind_is_ended(group: World) -> None:
    """A plane that does not know the key restores the minimum alone."""
    plane, (first, *_) = await group.serving(leftover_fence_seconds=0.3, configuration_check_seconds=0.2)
    first.config[ACCEPTS_SENDS_FROM] = str(int(time.time() * 1000) + 60_000)
    await eventually(lambda: first.config[ACCEPTS_SENDS_FROM] == "0", what="it to accept sends")
    assert first.minimum == 2
    assert snapshot_of(plane).writable


async def test_while_the_store_is_away_the_refusal_of_sends_is_prolonged(
    group: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    plane, (first, *_) = await group.three_under()
    first.config[ACCEPTS_SENDS_FROM] = "0"
    monkeypatch.setattr("brokergroup_operator.controller.change.switchover.REFUSES_SENDS_SECONDS", 1000.0)
    assert (await plane.switch_master(KEY, to_broker_id=2)).confirmed
    set_to = [
        line
        for line in group.journal
        if line.startswith(ACCEPTS_SENDS_FROM) and not line.startswith(f"{ACCEPTS_SENDS_FROM}=0")
    ]
    assert len(set_to) == 2


class LateMessage(Store):
    """When an election was written, a message comes into the old master's log that it had taken before it was quieted."""

    old: FakeBroker | None = None

    async def put(self, record: Record, expected: Stored, write: Write) -> Stored:
        written = await write()
        if self.old is not None and raises_epoch(record, expected):
            self.old.links_behind = 200
        return written


async def test_a_message_that_comes_late_into_the_old_masters_log_is_waited_for(
    group: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Java master acknowledges what it has when its last link breaks, and no slave had it."""
    monkeypatch.setattr("controller_core.change.CATCH_UP_SECONDS", 60.0)
    store = LateMessage()
    plane, (first, *_) = await group.three_under(store)
    store.old = first
    group.journal.clear()
    switching = asyncio.create_task(plane.switch_master(KEY, from_broker_id=1))
    await eventually(lambda: first.links_behind, what="the election")
    await asyncio.sleep(0.3)
    assert "1008 to 1" not in group.journal
    first.links_behind = 0
    assert (await switching).confirmed


async def test_without_another_member_in_sync_a_switchover_is_refused_and_touches_nothing(group: World) -> None:
    plane = await group.plane(settings=LOOSE)
    first = await group.broker()
    with pytest.raises(SwitchoverRefusedError):
        await plane.switch_master(KEY, from_broker_id=1)
    assert first.minimum == 2
    unneeded = await plane.switch_master(KEY, from_broker_id=9)  # a member that is not master needs no switchover
    assert (unneeded.to_broker_id, unneeded.epoch, unneeded.phases) == (1, 1, {})


async def test_a_master_is_moved_to_the_one_that_was_asked_for(group: World) -> None:
    plane, (_, _, third) = await group.three_under()
    result = await plane.switch_master(KEY, to_broker_id=3)
    assert (result.from_broker_id, result.to_broker_id) == (1, 3)
    await eventually(lambda: third.sync_state_set == {1, 2, 3}, what="everybody in sync under 3")
    assert (await plane.switch_master(KEY, to_broker_id=3)).phases == {}  # already the case


@pytest.mark.parametrize("asked_for", [3, None])
async def test_who_has_no_link_to_the_old_master_is_not_elected(group: World, asked_for: int | None) -> None:
    """A Java master whose slave link broke acknowledges without that slave before its 1001 arrives: the record still lists it.

    That all existing links are caught up says nothing about the missing one.
    """
    settings = replace(STRICT, election_priorities={3: 1})
    plane, (first, second, third) = await group.three_under(settings=settings, drain_deadline_seconds=0.3)
    third.ignores_ha_pushes_for_ever = True
    first.linked.discard(3)
    if asked_for is None:
        # Both report the same so far: 3 has the priority.
        assert (await plane.switch_master(KEY)).to_broker_id == 2
        return
    first.max_offset = second.max_offset = 1000  # acknowledged by 2; 3 lacks it
    with pytest.raises(SwitchoverFailedError, match="not level"):
        await plane.switch_master(KEY, to_broker_id=asked_for)
    assert (first.is_master, first.minimum, record_of(plane).master_epoch) == (True, 2, 1)


async def test_a_living_group_gets_no_master_that_is_out_of_sync(group: World) -> None:
    """Unclean elections are only for groups without another candidate, whatever the spec allows."""
    plane, (first, _, third) = await group.three_under(settings=ControllerSettings(unclean_election_allowed=True))
    third.ignored_ha_pushes = 1000
    first.linked.discard(3)
    await first.propose_set()
    await eventually(lambda: record_of(plane).sync_state_set == {1, 2}, what="3 to leave the set")
    with pytest.raises(SwitchoverRefusedError, match="not in sync"):
        await plane.switch_master(KEY, to_broker_id=3)
    assert first.minimum == 2


async def test_a_switchover_ends_at_its_deadline(group: World) -> None:
    plane, (first, _, _) = await group.three_under(drain_deadline_seconds=1000.0)
    first.links_behind = 100
    with pytest.raises((SwitchoverFailedError, SwitchoverRefusedError), match=r"not level within|no time is left"):
        await plane.switch_master(KEY, from_broker_id=1, deadline_seconds=1.0)
    assert first.minimum == 2
    assert record_of(plane).master_epoch == 1


async def test_an_administrators_election_drains_the_old_master_first(group: World) -> None:
    _plane, (first, _, third) = await group.three_under()
    group.journal.clear()
    answer = await third.ask(1002, brokerId=3, designateElect="true")
    assert answer.code == 0
    assert (answer.ext_fields or {})["masterBrokerId"] == "3"
    await eventually(lambda: third.is_master and not first.is_master)
    assert group.journal[0] == "minInSyncReplicas=99 at 1"
    await eventually(lambda: first.minimum == 2, what="the minimum to be restored")


async def test_a_leftover_of_a_dead_switchover_is_repaired(group: World) -> None:
    """25 writes the broker's file: an operator that dies after it leaves a master that acknowledges nothing."""
    store = MemoryRecordStore()
    plane, (first, _, _) = await group.three_under(store)
    await plane.stop()
    first.minimum = 99
    await group.plane(store)
    await eventually(lambda: first.minimum == 2, what="the minimum to be repaired")
    assert first.is_master


async def test_what_another_plane_left_behind_is_found_without_a_restart(group: World) -> None:
    """One of three planes is killed between 25 and the election; the other two checked all members long before."""
    _plane, (first, _, _) = await group.three_under(configuration_check_seconds=0.1)
    await eventually(lambda: 26 in first.asked, what="the first look")
    await asyncio.sleep(0.1)
    first.minimum = 99
    await eventually(lambda: first.minimum == 2, what="the minimum to be repaired")
    assert first.is_master


async def is_left_at_99(master: FakeBroker) -> None:
    master.minimum = 99
    await master.asked_again(26, times=6, what="many looks at it")
    assert master.minimum == 99


@pytest.mark.parametrize("wish", ["deleting", "closed"])
async def test_a_group_that_is_put_to_sleep_or_closed_by_a_retire_stays_quiet(group: World, wish: str) -> None:
    """Its preStop hook, and a Retire's last looks, take longer than any switchover: that minimum of 99 is no leftover.

    A mark that went without a word leaves a minimum that is repaired.
    """
    plane, (first, _, _) = await group.serving(configuration_check_seconds=0.1, leftover_fence_seconds=0.1)
    group.directory.wish(**{wish: True})
    inner = group_of(plane)
    await eventually(lambda: inner.is_leaving or inner.binding.closed, what=f"the plane to know that it is {wish}")
    await is_left_at_99(first)
    group.directory.wish(**{wish: False})
    await eventually(lambda: first.minimum == 2, what="the minimum to be repaired")


@pytest.mark.parametrize(
    ("not_shown", "opened"),
    [({"closed": True}, {"closed": False}), ({"deleting": True}, {"deleting": False}), (None, {})],
    ids=["closed", "being deleted", "the API does not answer"],
)
async def test_a_plane_with_an_old_view_opens_no_group(
    group: World, not_shown: dict[str, Any] | None, opened: dict[str, Any]
) -> None:
    """Its watch has not shown that a Retire closed the group: what a broker acknowledged now went with it."""
    _plane, (first, _, _) = await group.serving(configuration_check_seconds=0.1, leftover_fence_seconds=0.1)
    group.directory.not_shown = not_shown
    await is_left_at_99(first)
    group.directory.not_shown = opened
    await eventually(lambda: first.minimum == 2, what="the minimum to be repaired")


async def test_a_group_at_rest_and_its_switchover_cost_no_request_to_the_api(group: World) -> None:
    """Only a broker that was found at 99 for long does."""
    plane, (first, second, third) = await group.serving(configuration_check_seconds=0.1, leftover_fence_seconds=60.0)
    await first.asked_again(26, times=4, what="many looks at it")
    assert (await plane.switch_master(KEY, to_broker_id=2)).confirmed
    third.minimum = 99
    await third.asked_again(26, times=4, what="many looks at it")
    assert (second.is_master, group.directory.asked_now) == (True, 0)


@pytest.mark.parametrize("shown", [True, False], ids=["shown by the watch", "only in the API"])
async def test_a_switchover_that_is_given_up_leaves_a_closed_group_closed(group: World, *, shown: bool) -> None:
    """A Retire closed it: with the spec's minimum the old master acknowledged what was deleted a moment later."""
    plane, (first, _, _) = await group.serving()
    if shown:
        group.directory.wish(closed=True)
        await eventually(lambda: group_of(plane).binding.closed, what="the plane to know that it is closed")
    else:
        group.directory.not_shown = {"closed": True}
    first.minimum = 99
    first.links_behind = 100
    group.journal.clear()
    with pytest.raises(SwitchoverFailedError, match="not level"):
        await plane.switch_master(KEY, from_broker_id=1)
    assert "minInSyncReplicas=2 at 1" not in group.journal
    assert first.minimum == 99


async def test_a_switchover_of_a_closed_group_leaves_both_masters_closed(group: World) -> None:
    plane, (first, second, third) = await group.serving()
    first.config[ACCEPTS_SENDS_FROM] = second.config[ACCEPTS_SENDS_FROM] = closed_until = "99999999999000"
    group.directory.wish(closed=True)
    await eventually(lambda: group_of(plane).binding.closed, what="the plane to know that it is closed")
    first.minimum = second.minimum = third.minimum = 99
    assert (await plane.switch_master(KEY, to_broker_id=2)).confirmed
    await eventually(lambda: second.sync_state_set == {1, 2, 3}, what="everybody in sync again")
    assert (first.minimum, second.minimum) == (99, 99)
    assert first.config[ACCEPTS_SENDS_FROM] == closed_until, "it goes on refusing for as long as the Retire said"


async def test_a_plane_that_stops_ends_its_switchover_first(group: World) -> None:
    plane, (first, _, _) = await group.three_under()
    first.role_change_waits = asyncio.Event()
    switching = asyncio.create_task(plane.switch_master(KEY))
    await eventually(lambda: first.minimum == 99, what="the old master to stop acknowledging")
    stopping = asyncio.create_task(plane.stop())
    await asyncio.sleep(0.05)
    first.role_change_waits.set()
    await stopping
    assert first.minimum == 2
    assert (await switching).to_broker_id == 2


async def test_an_election_that_was_committed_and_never_told_is_told_by_the_next_operator(
    group: World, name_server: FakeNameServer
) -> None:
    """Killed between commit and notify (I16): the record names 2, all brokers still follow 1, which lives."""
    store = MemoryRecordStore()
    plane, (first, second, third) = await group.three_under(store)
    await plane.stop()
    stored = await stored_in(store)
    live = {broker_id: LiveReplica(broker_id, epoch=1, max_offset=0) for broker_id in (1, 2, 3)}
    election = step(stored.record, ElectMaster(passed_over=frozenset({1})), live, STRICT)
    await store.commit(KEY, election.record, stored)
    group.journal.clear()
    await group.plane(store, wishes={"name_servers": (await name_server.start(),)})
    await eventually(lambda: second.sync_state_set == {1, 2, 3}, what="everybody in sync under the new master")
    assert (first.is_master, third.is_master) == (False, False)
    roles = [line for line in group.journal if not line.startswith("906")]
    assert roles[:3] == ["1008 to 1", "1 slave 2", f"104 {first.address}"]  # the stale master first


async def test_a_slave_that_misses_its_link_is_told_again_until_it_is_linked(group: World) -> None:
    """The slave's HA client sleeps in its retry: only another spelling of the address wakes it."""
    _plane, (first, second, third) = await group.three_under()
    third.ignored_ha_pushes = 1000
    await first.kill()
    await eventually(lambda: second.sync_state_set == {2, 3}, what="the sleeper to be linked")
    assert third.ha_address.rpartition(":")[2].startswith("0")


async def test_a_settled_group_is_left_alone(group: World) -> None:
    _plane, brokers = await group.three_under(new_links_seconds=0.0)
    await eventually(lambda: all(len(broker.asked) > 0 for broker in brokers), what="the first look at everybody")
    await asyncio.sleep(0.3)
    for broker in brokers:
        broker.asked.clear()
    await asyncio.sleep(0.3)
    assert [broker.asked for broker in brokers] == [[], [], []]


async def test_two_planes_that_move_the_same_master_do_not_let_it_acknowledge_in_between(group: World) -> None:
    """The record shows that one plane moves the master: the other starts nothing and restores nothing."""
    planes = await group.several(2)
    first, _, _ = await group.three()
    await knows(*planes)
    first.role_change_waits = asyncio.Event()
    moves = [asyncio.create_task(plane.switch_master(KEY, from_broker_id=1)) for plane in planes]

    def is_told() -> bool:
        # Not its own election: that came before the minimum of 99.
        quieted = "minInSyncReplicas=99 at 1"
        return quieted in group.journal and "1008 to 1" in group.journal[group.journal.index(quieted) :]

    await eventually(is_told, what="one of them to tell it")
    await asyncio.wait(moves, timeout=1.0, return_when=asyncio.FIRST_COMPLETED)
    assert first.minimum == 99
    first.role_change_waits.set()
    ends = await asyncio.gather(*moves, return_exceptions=True)
    refused = [end for end in ends if isinstance(end, BaseException)]  # none if it asked after the end
    assert all(isinstance(end, SwitchoverRefusedError | SwitchoverFailedError) for end in refused)
    assert len(refused) < 2
    assert group.journal.count("minInSyncReplicas=99 at 1") == 1
    assert group.journal.index("1 slave 2") < group.journal.index("minInSyncReplicas=2 at 1")
    await eventually(lambda: first.minimum == 2, what="the minimum to be put back")


async def test_a_minimum_that_somebody_lifted_meanwhile_undoes_the_switchover(group: World) -> None:
    """Another plane gave up, or the spec changed the key: the master acknowledges again, so no election may use earlier offsets."""
    plane, (first, _, _) = await group.serving(drain_deadline_seconds=5.0)
    first.links_behind = 100
    moving = asyncio.create_task(plane.switch_master(KEY, from_broker_id=1))
    await eventually(lambda: first.minimum == 99, what="it to stop acknowledging")
    first.minimum, first.links_behind = 2, 0
    with pytest.raises(SwitchoverFailedError, match="acknowledges again"):
        await moving
    assert (first.is_master, first.minimum, record_of(plane).master_epoch) == (True, 2, 1)
