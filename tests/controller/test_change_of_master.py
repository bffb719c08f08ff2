"""A change of master is one plan in the record: committed first, then carried out by one plane in one order, whatever is lost."""

from __future__ import annotations

import asyncio
import functools
from typing import TYPE_CHECKING

import pytest
from structlog.testing import capture_logs

from brokergroup_operator.controller.change.fencing import FenceOutcome
from brokergroup_operator.controller.upkeep.keeper import pause_after
from brokergroup_operator.observe.timeline import Outcome
from brokergroup_operator.records.store import RecordCorruptError, RecordRefusedError, RecordStoreError
from controller_core.decision import ControllerCode
from rocketmq_remoting.codes import RequestCode, ResponseCode
from tests.controller.conftest import QUICK, group_of, record_of, snapshot_of
from tests.controller.world import KEY, LOOSE, Fencer, Record, RefusingStore, Store, Stored, World, Write, knows
from tests.support.fake_broker import eventually

if TYPE_CHECKING:
    from brokergroup_operator.controller.directory.group_directory import GroupBinding


async def test_with_several_planes_only_the_one_that_carries_the_change_out_notifies(group: World) -> None:
    """Fault b: another plane answered 1004 with the new epoch, and its keeper sent its own 1008 in the middle of the change."""
    planes = await group.several(3)
    first, second, _ = await group.three()
    await knows(*planes)
    everybody = {1: 1, 2: 1, 3: 1}  # each plane sends each broker the previous epoch's role once
    await eventually(lambda: all(group_of(plane).changes.told == everybody for plane in planes), what="all to be told")
    group.journal.clear()
    first.role_change_waits = asyncio.Event()
    switching = asyncio.create_task(planes[0].switch_master(KEY, to_broker_id=2))
    await eventually(lambda: "1008 to 1" in group.journal, what="the old master to be told")
    told_by: dict[int, str] = {}
    for number, plane in enumerate(planes):
        second.group.planes = [plane.address]
        answer = await second.ask(1004)
        told_by[number] = (answer.ext_fields or {})["masterEpoch"]
    second.group.planes = [plane.address for plane in planes]
    await asyncio.sleep(0.2)
    tellings = [line for line in group.journal if line.startswith("1008")]
    assert (told_by, tellings) == ({0: "1", 1: "1", 2: "1"}, ["1008 to 1"])
    first.role_change_waits.set()
    assert (await switching).confirmed
    await eventually(lambda: second.sync_state_set == {1, 2, 3}, what="everybody in sync again")


@pytest.mark.parametrize("error", [RecordRefusedError, RecordCorruptError])
async def test_a_record_that_is_refused_ends_the_change_and_is_tried_again_less_and_less_often(
    group: World, error: type[RecordStoreError]
) -> None:
    """Fault f: the plane retried for ever and kept the change open, so that nothing else could run for the group."""
    store = RefusingStore(error)
    plane, (first, second, third) = await group.serving(store)
    store.refuses = True
    await first.kill()
    await eventually(lambda: store.refused, what="the election to be refused")
    inner = group_of(plane)
    await eventually(lambda: inner.master_change is None, what="the change to end", within_seconds=2.0)
    refused = store.refused
    await asyncio.sleep(0.5)
    assert store.refused - refused <= 2, "tried again without a pause"
    store.refuses = False
    await eventually(lambda: second.is_master or third.is_master, what="another master as soon as it may be")


async def test_a_member_that_never_answers_costs_one_warning(group: World) -> None:
    """500 groups with such members wrote 26,000 warnings to the log in 20 s."""
    plane, (first, second, third) = await group.serving(role_change_deadline_seconds=0.05)
    third.role_change_waits = second.role_change_waits = asyncio.Event()
    with capture_logs() as lines:
        await first.kill()
        await eventually(lambda: group.journal.count("1008 to 3") > 5, what="it to be told again and again")
    complaints = [line for line in lines if line["event"] == "not taken" and line["broker_id"] == 3]
    assert [line["log_level"] for line in complaints if line["what"] == "role change"].count("warning") == 1
    third.role_change_waits.set()
    await eventually(lambda: snapshot_of(plane).writable, what="it to answer at last")


async def test_a_group_made_anew_under_the_same_name_gets_its_own_warning(group: World) -> None:
    """The warning about the old group's member hid the new one's."""
    plane, (*_, third) = await group.serving(role_change_deadline_seconds=0.05)
    third.role_change_waits = asyncio.Event()

    def has_warned(times: int) -> bool:
        return len([1 for line in lines if (line["event"], line["log_level"]) == ("not taken", "warning")]) == times

    with capture_logs() as lines:
        for times in (1, 2):
            plane._groups._forget(KEY)
            plane._groups.get(KEY)
            await eventually(functools.partial(has_warned, times), what="a warning for this group")
    third.role_change_waits.set()


def test_a_role_that_no_broker_takes_is_sent_less_and_less_often() -> None:
    pauses = [pause_after(tries, QUICK) for tries in range(1, 40)]
    assert pauses == sorted(pauses)
    assert pauses[0] == QUICK.keeper_poll_seconds
    assert max(pauses[:10]) == QUICK.keeper_longest_retry_seconds, (
        "a starting broker gets its role soon after its port opens"
    )
    assert pauses[-1] == QUICK.keeper_longest_pause_seconds


class JournalStore(Store):
    """Adds each write to the brokers' journal, which gives writes and requests one order."""

    def __init__(self, journal: list[str]) -> None:
        super().__init__()
        self._journal = journal

    async def put(self, record: Record, expected: Stored, write: Write) -> Stored:
        written = await write()
        self._journal.append("write")
        return written


@pytest.mark.parametrize(
    ("how", "writes"),
    [("killed", 1), ("frozen", 2), ("moved", 2)],
    ids=["a certain death", "a silent master", "a move"],
)
async def test_a_certain_death_costs_one_write_before_the_first_role_change(
    group: World, how: str, writes: int
) -> None:
    """The election's commit carries the plan. If a fence or the minimum of 99 comes first, the plan is written before that."""
    store = JournalStore(group.journal)
    plane, (first, *_) = await group.three_under(store, fencer=Fencer(group))
    await eventually(lambda: snapshot_of(plane).writable and record_of(plane).change is None, what="a group at rest")
    group.journal.clear()
    if how == "killed":
        await first.kill()
    elif how == "frozen":
        first.freeze()
    else:
        await plane.switch_master(KEY, to_broker_id=2)
    await eventually(lambda: any(line.startswith("1008") for line in group.journal), what="the first role change")
    told = next(index for index, line in enumerate(group.journal) if line.startswith("1008"))
    assert group.journal[:told].count("write") == writes


# ---- A request is answered, and brokers are notified, only after the commit.


async def test_a_request_is_answered_and_brokers_are_notified_only_when_it_is_committed(group: World) -> None:
    store = Store()
    plane, (first, second, _) = await group.three_under(store, settings=LOOSE)
    await eventually(lambda: record_of(plane).change is None, what="nothing is left to tell")
    store.writing.clear()
    answer = asyncio.create_task(first.ask(RequestCode.CONTROLLER_ELECT_MASTER, brokerId=2, designateElect="true"))
    await eventually(lambda: store.waiting, what="the election is being committed")
    told_before = list(group.journal)
    for _ in range(20):  # several ticks of the plane: it would send a role in the first of them
        await asyncio.sleep(plane._settings.tick_seconds)
    assert not answer.done()
    assert group.journal == told_before
    assert not second.is_master
    store.writing.set()
    assert (await answer).code == ResponseCode.SUCCESS
    assert record_of(plane).master_broker_id == 2
    await eventually(lambda: second.is_master, what="the elected one to be told")


# ---- While a new process of the master registers, the plane does not send it the previous process's epoch (rule 6).


async def test_a_new_process_of_the_master_is_not_sent_the_previous_epoch(group: World) -> None:
    store = Store()
    plane, (first, *_) = await group.three_under(store, settings=LOOSE)
    assert first.epoch == 1
    await plane.stop()
    await first.kill()
    # The next plane has seen no death: its record names broker 1 as master, and then the new process of broker 1 registers.
    plane = await group.plane(store, settings=LOOSE)
    await eventually(
        lambda: len(snapshot_of(plane, plane.keys()[0]).live) == 2 if plane.keys() else 0, what="two are heard"
    )
    port = int(first.address.rpartition(":")[2])
    told_before = group.journal.count("1008 to 1")
    store.writing.clear()
    restarting = asyncio.create_task(first.restarted(host=first.host, port=port))
    await eventually(lambda: store.waiting, what="the registration is being committed")
    for _ in range(20):  # several ticks of the plane: it would send a role in the first of them
        await asyncio.sleep(plane._settings.tick_seconds)
    assert group.journal.count("1008 to 1") == told_before
    store.writing.set()
    again = await restarting
    await eventually(lambda: again.epoch >= 2, what="a new epoch for the new process")
    assert not [line for line in group.journal if line == "1 master 1"][1:]


# ---- ElectMaster (1002) alone never replaces a granted master: only a failover or a switchover does.


async def test_a_master_that_falls_silent_while_a_caller_waits_for_the_store_is_fenced_first(group: World) -> None:
    """The caller found the master alive; at the decision it is silent. The answer must not name another master."""
    store, fencer = Store(), Fencer(group)
    plane, (first, second, _) = await group.serving(store, fencer=fencer)
    store.reading.clear()
    asking = asyncio.create_task(second.ask(RequestCode.CONTROLLER_ELECT_MASTER, brokerId=2, designateElect="false"))
    await eventually(lambda: store.waiting, what="the decision to wait for the store")
    first.silent = True
    await first.drop_connections()
    await eventually(lambda: 1 not in snapshot_of(plane).live, what="the master to be missed")
    store.reading.set()
    async with asyncio.timeout(10):
        answer = await asking
    assert fencer.fenced == [1], "a new master before the old one was fenced"
    assert answer.code == ControllerCode.CONTROLLER_MASTER_STILL_EXIST, "the failover has elected broker 2 meanwhile"
    await eventually(lambda: record_of(plane).master_epoch == 2 and snapshot_of(plane).writable)
    assert not record_of(plane).unfenced


async def test_a_designated_member_that_comes_alive_in_between_does_not_take_office_undrained(group: World) -> None:
    """Broker 2 was not alive at the trial election, so no switchover began; when the store answers, it is alive and electable."""
    store = Store()
    plane, (first, second, third) = await group.serving(store)
    second.silent = True
    await second.drop_connections()
    await eventually(lambda: 2 not in snapshot_of(plane).live)
    store.reading.clear()
    asking = asyncio.create_task(third.ask(RequestCode.CONTROLLER_ELECT_MASTER, brokerId=2, designateElect="true"))
    await eventually(lambda: store.waiting, what="the decision to wait for the store")
    second.silent = False
    await eventually(lambda: 2 in snapshot_of(plane).live)
    group.journal.clear()
    store.reading.set()
    async with asyncio.timeout(10):
        answer = await asking
    # The decision was made on a record that has changed since: it is not written.
    assert "has moved on" in (answer.remark or "")
    assert record_of(plane).master_epoch == 1
    assert first.is_master


class DeletingFencer(Fencer):
    """While it fences, the group is deleted and its members are gone."""

    def __init__(self, group: World) -> None:
        super().__init__(group)
        self.world = group

    async def fence(
        self, binding: GroupBinding, broker_id: int, address: str, *, deadline_seconds: float
    ) -> FenceOutcome:
        self.world.directory.wish(deleting=True)
        await self.world.stop()
        await asyncio.sleep(0.05)
        return FenceOutcome(confirmed=True, how="killed")


async def test_a_group_deleted_in_the_middle_of_a_failover_is_no_incident(group: World) -> None:
    _plane, (first, _, _) = await group.serving(fencer=DeletingFencer(group))
    first.freeze()
    await eventually(lambda: group.notes.withdrawn, what="the failover to end")
    assert [timeline.outcome for timeline in group.notes.withdrawn] == [Outcome.CANCELLED]
    assert group.notes.closed == []
