"""A plane's copy of a record: deliveries of the watch, the answer to a master with another set, one owner for each part."""

from __future__ import annotations

import ast
import asyncio
import functools
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from brokergroup_operator import controller
from brokergroup_operator.controller.directory.group_directory import FixedDirectory
from brokergroup_operator.controller.group import notes
from brokergroup_operator.controller.plane import ControllerPlane
from brokergroup_operator.controller.settings import PlaneSettings
from brokergroup_operator.records.store import DEFAULT_DEADLINE_SECONDS, GroupKey, RecordCorruptError
from controller_core.decision import ControllerCode
from controller_core.model import BrokerGroupRecord, Replica
from controller_core.requests import AlterSyncStateSet, ReserveBrokerId
from rocketmq_remoting.codes import RequestCode
from rocketmq_remoting.controller_protocol import SyncStateSetBody
from tests.controller.conftest import StartPlane, group_of, record_of, snapshot_of
from tests.controller.world import KEY, Store, Stored, World, stored_in
from tests.support.fake_broker import FakeBroker, eventually

if TYPE_CHECKING:
    from brokergroup_operator.records.store import StoredRecord
    from rocketmq_remoting.command import RemotingCommand

RECORD = BrokerGroupRecord(
    "cl", "bn", 2, {1: Replica(1, "a:1;1", "127.0.0.1:1", registered=True)}, 1, 1, frozenset({1}), 1
)


async def known_group(store: Store, record: BrokerGroupRecord = RECORD) -> tuple[ControllerPlane, StoredRecord]:
    """Return a plane that was never started and has read this record once."""
    directory = FixedDirectory()
    settings = PlaneSettings(listen_host="127.0.0.1", listen_port=0)
    plane = ControllerPlane(store=store, directory=directory, settings=settings)
    directory.find(KEY.name)
    stored = await store.commit(KEY, record, None)
    await group_of(plane).load()
    assert stored is not None
    assert store.reads == 1
    return plane, stored


async def test_a_record_that_the_watch_delivered_is_not_read_again() -> None:
    store = Store()
    plane, before = await known_group(store)
    unsubscribe = store.subscribe(plane.record_moved)
    after = await store.commit(KEY, replace(RECORD, sync_state_set_epoch=2), before)
    assert after is not None
    await group_of(plane).load()
    assert (record_of(plane).sync_state_set_epoch, store.reads) == (2, 1)

    # A request that grants something reads the store, even with a current copy.
    group = group_of(plane)
    unsubscribe()
    await group.decide(ReserveBrokerId(cluster_name="cl", broker_name="bn", reserved_for="bn-2"))
    assert store.reads == 2

    # The watch is behind: a record read or written here since is newer and stays.
    written = group.record
    assert group.take_watched(after)
    assert group.record == written != after.record

    # It is behind itself: the store was restored from an older copy.
    assert not group.take_watched(before)
    assert group.take_watched(before), "that is what it has delivered now"


async def test_a_refusal_from_the_copy_counts_only_once_the_record_was_read_for_it() -> None:
    """The copy may be stale: it must not refuse a master that knows a newer set."""
    store, replicas = Store(), {**RECORD.replicas, 2: Replica(2, "b:1;1", "127.0.0.1:2", registered=True)}
    record = replace(RECORD, next_broker_id=3, replicas=replicas, sync_state_set=frozenset({1, 2}))
    plane, before = await known_group(store, record)
    await store.commit(KEY, replace(record, sync_state_set_epoch=2), before)
    wanted = AlterSyncStateSet(
        master_broker_id=1, master_epoch=1, sync_state_set=frozenset({1}), sync_state_set_epoch=2
    )
    decision = await group_of(plane).decide(wanted, linearizable=False)
    # The copy finds the set epoch too high; the record accepts it, but no member is alive here.
    assert (decision.code, store.reads) == (ControllerCode.CONTROLLER_BROKER_NOT_ALIVE, 2)


class CorruptStore(Store):
    """Holds what this release cannot read, as after a rollback of the operator."""

    async def read(self, key: GroupKey, *, deadline_seconds: float = DEFAULT_DEADLINE_SECONDS) -> Stored:
        self.reads += 1
        raise RecordCorruptError(f"{key}: schemaVersion is 3, this operator reads 1 and 2 only")


async def test_a_record_that_cannot_be_read_is_not_read_again_at_every_tick(start_plane: StartPlane) -> None:
    """Twenty requests and twenty lines a second for each such group, and after a rollback that may be all of them."""
    store, directory = CorruptStore(), FixedDirectory()
    directory.find(KEY.name)
    plane = await start_plane(store, directory=directory)
    await eventually(lambda: store.reads, what="the first read")
    ends_seconds = asyncio.get_running_loop().time() + 5.0
    await eventually(lambda: asyncio.get_running_loop().time() >= ends_seconds, what="five seconds of ticks")
    assert 5 <= store.reads <= 25
    assert plane.keys() == [KEY]


async def test_another_life_of_the_object_is_read() -> None:
    """A record that was deleted and recreated may have any version: a read of the store decides."""
    plane, stored = await known_group(Store())
    assert not group_of(plane).take_watched(replace(stored, uid="another", version="900"))


async def test_a_member_that_became_known_meanwhile_is_not_moved_by_one_heartbeat() -> None:
    """The copy lacks the id, so it is proposed; by the record it is known by now, at another address."""
    store = Store()
    plane, before = await known_group(store)
    group, desk = group_of(plane), plane.handler._adoption
    known = Replica(2, "127.0.0.1:2;1", "127.0.0.1:2", reserved_for="bn-2", registered=True)
    after = replace(RECORD, next_broker_id=3, replicas={**RECORD.replicas, 2: known})
    await store.commit(KEY, after, before)
    desk.heard(group, 2, "127.0.0.1:9", "bn-2")
    await eventually(lambda: group.record == after, what="the record to be read for the proposal")
    await asyncio.gather(*desk._tasks.running)
    assert (await stored_in(store)).record == after


async def test_the_granted_master_is_not_registered_by_a_heartbeat_also_if_the_record_has_lost_its_id() -> None:
    """Its registration would mean that the process with the epoch is gone, and the next election would not wait for it."""
    store = Store()
    plane, before = await known_group(store)
    group, desk = group_of(plane), plane.handler._adoption
    promised = {**RECORD.replicas, 2: Replica(2, reserved_for="bn-2")}
    after = replace(RECORD, next_broker_id=3, replicas=promised, master_broker_id=2, sync_state_set=frozenset({1, 2}))
    await store.commit(KEY, after, before)
    desk.heard(group, 2, "127.0.0.1:2", "bn-2")
    await asyncio.gather(*desk._tasks.running)
    assert (await stored_in(store)).record == after


# ---- A Java master that keeps proposing from another set than the record's gets the record's set as its answer.


async def propose(master: FakeBroker, *members: int) -> int:
    """Send 1001 with the epochs that the master knows; return the answer's code."""
    body = SyncStateSetBody(frozenset(members), master.set_epoch).encode()
    answer = await master.ask(
        RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET,
        body=body,
        masterBrokerId=master.broker_id,
        masterEpoch=master.epoch,
    )
    if answer.code == 0:
        master.set_epoch = SyncStateSetBody.decode(answer.body).sync_state_set_epoch
    return answer.code


async def two_of_three(group: World, *, set_apart_seconds: float) -> tuple[ControllerPlane, FakeBroker]:
    """Return a group whose set is the master and 2, as 3 was away; the test sends this master's proposals from now on."""
    plane, (master, _, _) = await group.serving(set_apart_seconds=set_apart_seconds)
    await master._alter.acquire()
    assert await propose(master, 1, 2) == 0
    return plane, master


@pytest.mark.parametrize("members", [(1, 3), (1, 2)], ids=["adds and drops", "nothing new"])
async def test_who_goes_on_counting_otherwise_is_answered_the_set_of_the_record(
    members: tuple[int, ...], group: World
) -> None:
    plane, master = await two_of_three(group, set_apart_seconds=0.1)
    set_epoch = master.set_epoch

    async def is_answered() -> bool:
        return await propose(master, *members) == 0

    await eventually(is_answered, what="the master to be told the set again")
    record = record_of(plane)
    assert (record.sync_state_set, record.sync_state_set_epoch, record.master_epoch) == (
        frozenset({1, 2}),
        set_epoch + 1,
        1,
    )
    assert await propose(master, 1, 2, 3) == 0


async def test_nothing_is_committed_for_a_master_that_only_may_not_shrink(group: World) -> None:
    plane, master = await two_of_three(group, set_apart_seconds=0.0)
    assert [await propose(master, 1) for _ in range(5)] == [2013] * 5
    assert record_of(plane).sync_state_set_epoch == master.set_epoch


async def test_the_set_grows_around_the_dead(group: World) -> None:
    """Otherwise no slave could join a master whose only other member is dead: the master may neither drop nor keep that one."""
    plane, master = await two_of_three(group, set_apart_seconds=0.05)
    await group.brokers[2].kill()
    await eventually(lambda: 2 not in snapshot_of(plane).live, what="2 to be dead")
    assert await propose(master, 1, 2, 3) == 2006

    async def joins() -> bool:
        return await propose(master, 1, 2, 3) == 0

    await eventually(joins, what="3 to join")
    assert await propose(master, 1, 3) == 0
    assert (record_of(plane).sync_state_set, record_of(plane).master_epoch) == (frozenset({1, 3}), 1)


async def test_what_was_queued_is_refused_and_no_more(group: World) -> None:
    """With other epochs the count starts again, and any accepted proposal ends it."""
    plane, master = await two_of_three(group, set_apart_seconds=0.0)
    assert await propose(master, 1, 3) == 2001
    assert await propose(master, 1, 2, 3) == 0
    assert await propose(master, 1, 2, 3) == 2013
    assert await propose(master, 1, 2) == 0
    assert await propose(master, 1, 2) == 2013
    assert record_of(plane).sync_state_set_epoch == master.set_epoch


# ---- Eligibility depends on the brokers' own minimum, which they read at their start, not on the spec (safety rule 1).


@pytest.mark.parametrize(("minimum", "eligible"), [(2, {1}), (1, set())])
async def test_brokers_that_acknowledge_alone_leave_nobody_eligible(
    group: World, minimum: int, eligible: set[int]
) -> None:
    """A group scaled from 2 to 3 is Strict at once; its running brokers still acknowledge without a second copy."""
    plane = await group.plane()
    brokers = [await group.broker(minimum=minimum) for _ in range(2)]
    await eventually(lambda: record_of(plane).sync_state_set == {1, 2}, what="both in sync")
    known = group_of(plane)
    await eventually(lambda: known.configuration.minimums == {1: minimum, 2: minimum}, what="both to be asked")
    await brokers[0].kill()
    await eventually(lambda: record_of(plane).master_broker_id == 2, what="the other one to be master")
    assert record_of(plane).eligible == eligible


async def test_a_broker_whose_minimum_is_not_known_may_acknowledge_alone(group: World) -> None:
    """It does not answer 26, and the other's answer says nothing of it: the next master may be the one that keeps no minimum."""
    plane = await group.plane()
    first, second = await group.broker(), FakeBroker(group, minimum=1)
    second.refuses = lambda command: "not for you" if command.code == RequestCode.GET_BROKER_CONFIG else ""
    await second.start()
    await group.broker()
    await eventually(lambda: record_of(plane).sync_state_set == {1, 2, 3}, what="three in sync")
    known = group_of(plane)
    await eventually(lambda: known.configuration.minimums == {1: 2, 3: 2}, what="the others to have answered")
    await first.kill()
    await eventually(lambda: record_of(plane).master_broker_id == 2, what="it to be master")
    elected = next(after for _, after in group.notes.records if after.master_epoch == 2)
    assert (elected.sync_state_set, elected.eligible) == ({2}, set())


async def test_only_the_next_masters_own_minimum_decides_who_stays_eligible(group: World) -> None:
    """One that doesn't answer 26, or has just joined and was not asked yet, acknowledges nothing under another master: if that one
    is lost before it has a slave in sync, the others must still be electable.
    """
    plane = await group.plane()
    first = await group.broker()
    await group.broker()
    third = FakeBroker(group, minimum=1)
    third.refuses = lambda command: "not for you" if command.code == RequestCode.GET_BROKER_CONFIG else ""
    await third.start()
    await eventually(lambda: record_of(plane).sync_state_set == {1, 2, 3}, what="three in sync")
    known = group_of(plane)
    await eventually(lambda: known.configuration.minimums == {1: 2, 2: 2}, what="the others to have answered")
    await first.kill()
    await eventually(lambda: record_of(plane).master_broker_id == 2, what="one that keeps the minimum to be master")
    elected = next(after for _, after in group.notes.records if after.master_epoch == 2)
    assert (elected.sync_state_set, elected.eligible) == ({2}, {1, 3})


async def test_the_minimum_of_a_broker_that_is_no_member_is_not_waited_for(group: World) -> None:
    """It is never asked for it, and never elected."""
    plane = await group.plane()
    first, _ = await group.broker(), await group.broker()
    await eventually(lambda: record_of(plane).sync_state_set == {1, 2}, what="both in sync")
    await eventually(lambda: group_of(plane).configuration.minimums == {1: 2, 2: 2}, what="both to be asked")
    stranger = FakeBroker(group, broker_id=9)
    await stranger.heartbeat()
    await eventually(lambda: 9 in snapshot_of(plane).live, what="the stranger to be heard")
    await first.kill()
    await eventually(lambda: record_of(plane).master_broker_id == 2, what="the other one to be master")
    assert record_of(plane).eligible == {1}
    await stranger.kill()


async def test_a_member_that_has_just_fallen_silent_is_not_known_to_keep_the_minimum_for_that(group: World) -> None:
    """A decision is made of who is heard, and of this, one after the other: the winner's time may end between the two."""
    plane = await group.plane()
    await group.broker()
    second = FakeBroker(group, minimum=1)
    second.refuses = lambda command: "not for you" if command.code == RequestCode.GET_BROKER_CONFIG else ""
    await second.start()
    await eventually(lambda: record_of(plane).sync_state_set == {1, 2}, what="both in sync")
    await eventually(lambda: group_of(plane).settings.keep_no_floor == {2}, what="the first to be asked")
    second.silent = True
    await eventually(lambda: 2 not in snapshot_of(plane).live, what="it to be unheard")
    assert group_of(plane).settings.keep_no_floor == {2}


async def test_what_a_process_said_of_its_minimum_does_not_count_for_the_next_one(
    group: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does an answer that was under way: the next process is asked by itself."""
    plane = await group.plane(configuration_check_seconds=3600.0)
    await group.broker()
    second = await group.broker()
    known = group_of(plane)
    await eventually(lambda: known.configuration.minimums == {1: 2, 2: 2}, what="both to be asked")
    answer, restarts = second._answer, 0

    async def restarted_meanwhile(command: RemotingCommand) -> RemotingCommand:
        nonlocal restarts
        said = await answer(command)
        if command.code == RequestCode.GET_BROKER_CONFIG and not restarts:
            restarts += 1
            second.minimum = 1
            known.new_process(2)
        return said

    monkeypatch.setattr(second, "_answer", restarted_meanwhile)
    known.new_process(2)
    assert known.settings.keep_no_floor == {2}
    await eventually(lambda: known.configuration.minimums == {1: 2, 2: 1}, what="the next process to be asked")
    assert restarts


# ---- Each part of a group has one owner: no other module sets a field of the group or of that part.

HOME = Path(controller.__file__).parent
# The group's names for its parts, and the classes whose docstrings name the owners.
PARTS = {
    "links": notes.LinkNotes,
    "refused_set": notes.RefusedSetNotes,
    "unheard": notes.UnheardNotes,
    "holdings": notes.HoldingsNotes,
    "silence": notes.SilenceNotes,
    "waking": notes.WakingNotes,
    "recovery": notes.ActingNotes,
}
OWNED = re.compile(r"Written by `([a-z_/]+\.py)`")


def owner_of(part: str) -> str:
    found = OWNED.search(" ".join((PARTS[part].__doc__ or "").split()))
    assert found is not None, f"{PARTS[part].__name__} names no owner"
    return found[1]


@functools.cache
def assignments() -> list[tuple[str, str]]:
    """Return file and target of each assignment to a field of a group or of its parts, outside the group's class."""
    found: list[tuple[str, str]] = []
    for file in sorted(HOME.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            targets = node.targets if isinstance(node, ast.Assign) else []
            targets = [node.target] if isinstance(node, ast.AnnAssign | ast.AugAssign) else targets
            flat = [one for target in targets for one in (target.elts if isinstance(target, ast.Tuple) else [target])]
            for target in flat:
                words = ast.unparse(target).split(".")
                if isinstance(target, ast.Attribute) and "group" in words[:-1]:
                    found.append((file.relative_to(HOME).as_posix(), ".".join(words[words.index("group") :])))
    return found


def test_each_part_of_a_group_is_written_by_its_owner_alone() -> None:
    found = {(where, target) for where, target in assignments() if target.count(".") > 1}
    assert {(owner_of(target.split(".")[1]), target) for _, target in found} == found
    assert {target.split(".")[1] for _, target in found} == PARTS.keys(), "a part that its owner never writes"


def test_no_module_sets_a_field_of_a_group() -> None:
    assert [(where, target) for where, target in assignments() if target.count(".") == 1] == []
