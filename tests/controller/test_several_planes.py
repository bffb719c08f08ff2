"""Several planes over one store, and a store that loses answers: one grant for each epoch, and no false loss of a master."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from brokergroup_operator.controller.peers.services import Planes
from brokergroup_operator.controller.settings import PlaneSettings
from brokergroup_operator.observe.group_view import BrokerUnreachableError
from brokergroup_operator.records.memory import MemoryRecordStore
from brokergroup_operator.records.store import GroupKey, RecordUnavailableError
from rocketmq_remoting.client import RemotingClient
from rocketmq_remoting.codes import RequestCode
from tests.controller.conftest import record_of, snapshot_of
from tests.controller.world import (
    KEY,
    LOOSE,
    Fencer,
    Record,
    RefusingStore,
    Store,
    Stored,
    World,
    Write,
    knows,
    look_up,
    raises_epoch,
    stored_in,
)
from tests.support.fake_broker import FakeBroker, eventually

if TYPE_CHECKING:
    from brokergroup_operator.controller.plane import ControllerPlane
    from controller_core.model import BrokerGroupRecord


class CheckedStore(Store):
    """Keeps each committed record, and lets a test intervene between a commit and its caller."""

    def __init__(self) -> None:
        super().__init__()
        self.history: list[BrokerGroupRecord] = []
        self.meet: asyncio.Barrier | None = None
        self.lose_answer_of: int | None = None

    async def put(self, record: Record, expected: Stored, write: Write) -> Stored:
        if self.meet is not None and raises_epoch(record, expected):
            barrier, self.meet = self.meet, self.meet if self.meet.n_waiting == 0 else None
            async with asyncio.timeout(5):
                await barrier.wait()
        stored = await write()
        if record is not None:
            self.history.append(record)
        if self.lose_answer_of == len(self.history) - 1:
            self.lose_answer_of = None
            lost = "the answer was lost and the deadline is over; the write was done"
            raise RecordUnavailableError(lost, write_id=stored.write_id if stored is not None else "")
        return stored

    def check(self) -> None:
        """Assert invariants I1, I2, I11 over all committed records."""
        masters: dict[int, int | None] = {}
        holders: dict[int, str] = {}
        for previous, record in zip([None, *self.history], self.history, strict=False):
            if previous is not None:
                assert record.master_epoch >= previous.master_epoch
                assert record.sync_state_set_epoch >= previous.sync_state_set_epoch
                assert record.next_broker_id >= previous.next_broker_id
            assert masters.setdefault(record.master_epoch, record.master_broker_id) == record.master_broker_id
            for replica in record.replicas.values():
                if replica.claimed:
                    holder = holders.setdefault(replica.broker_id, replica.register_check_code)
                    assert holder == replica.register_check_code


async def test_two_planes_that_elect_at_the_same_moment_grant_one_epoch(group: World) -> None:
    """Both planes PUT from the same snapshot (I1): one wins, the other gets 409, reads again and yields."""
    store = CheckedStore()
    planes = await group.several(2, store)
    master, _, _ = await group.three()
    await knows(planes[1])
    store.meet = asyncio.Barrier(2)
    await master.kill()
    await eventually(
        lambda: all(snapshot_of(plane).writable and record_of(plane).master_epoch == 2 for plane in planes),
        what="both planes to see the new master",
    )
    store.check()
    moves = [(before.master_epoch, after) for before, after in group.notes.records if before is not None]
    assert [after.master_broker_id for epoch, after in moves if (epoch, after.master_epoch) == (1, 2)] == [2]
    assert group.notes.conflicts
    assert group.master().broker_id == 2
    assert record_of(planes[0]).master_epoch == 2
    await eventually(lambda: record_of(planes[1]) == record_of(planes[0]))


async def test_a_plane_that_dies_with_the_master_is_not_missed(group: World) -> None:
    """Active-active: the other plane needs no leader election.

    CNPG #778: what if the operator dies?
    """
    store = CheckedStore()
    first_plane, second_plane = await group.several(2, store)
    group.planes.reverse()
    master, _, _ = await group.three()
    await knows(first_plane)
    await asyncio.gather(first_plane.stop(), master.kill())
    await eventually(lambda: snapshot_of(second_plane).writable and record_of(second_plane).master_epoch == 2)
    store.check()
    assert group.master().broker_id in (2, 3)


async def test_a_master_that_tells_only_others_is_left_alone(group: World) -> None:
    """A plane unknown to the brokers gets no heartbeats; a master that answers it is not stuck, however long it stays unheard."""
    store, fencer = CheckedStore(), Fencer(confirms=False)
    known, _ = await group.serving(store)
    unknown = await group.plane(
        store, fencer=fencer, no_successor_patience_seconds=0.1, no_successor_pause_seconds=0.05
    )
    group.planes = [known.address]
    # A caller (such as mqadmin) asks it about the group, so that it knows the group without heartbeats.
    await look_up(unknown)
    doubts = "the unknown plane to doubt the master again and again"
    await group.master().asked_again(RequestCode.GET_BROKER_HA_STATUS, times=3, what=doubts)
    await unknown.stop()
    assert fencer.fenced == []
    assert record_of(known).master_epoch == 1
    store.check()


async def test_a_plane_that_brokers_do_not_know_gives_them_its_address(group: World) -> None:
    """After replicaCount 2 to 3 the third plane may reconcile: it gets no heartbeats until it has sent brokers its address."""
    store = CheckedStore()
    known, (_, second, _) = await group.serving(store)
    unknown = await group.plane(store)
    await look_up(unknown)
    group.planes = [known.address]
    both = f"{known.address};{unknown.address}"
    await unknown.set_broker_config(KEY, 2, {"controllerAddr": both})
    assert second.config == {"controllerAddr": both}
    await second.kill()
    with pytest.raises(BrokerUnreachableError, match="broker 2: "):
        await unknown.set_broker_config(KEY, 2, {"controllerAddr": both})


def _rank(plane: str, planes: tuple[str, ...], group: str) -> int:
    settings = PlaneSettings(peer_addresses=planes, advertise_address=plane)
    return Planes(RemotingClient(), settings).rank(GroupKey("default", group))


def test_every_plane_is_first_for_some_groups_and_all_agree_on_the_order() -> None:
    planes = ("a:1", "b:1", "c:1")
    for number in range(50):
        ranks = [_rank(plane, planes, f"group-{number}") for plane in planes]
        assert sorted(ranks) == [0, 1, 2]
    firsts = {plane: sum(_rank(plane, planes, f"g{n}") == 0 for n in range(300)) for plane in planes}
    assert min(firsts.values()) > 50
    assert _rank("not in the list", planes, "g") == 0


async def _life(group: World, store: CheckedStore) -> None:
    """Let three brokers register and get in sync; the master dies and another takes over."""
    plane = await group.plane(store)
    for _ in range(3):
        await group.broker()
        await eventually(lambda: record_of(plane).sync_state_set == set(group.brokers), what="its broker in sync")
    ids = set(group.brokers)
    master = group.master()
    await master.kill()
    await eventually(lambda: record_of(plane).sync_state_set == ids - {master.broker_id}, what="two members in sync")
    await knows(plane)
    store.check()


async def test_an_undisturbed_life_takes_eleven_writes(group: World) -> None:
    """Pins the count that the next test walks through."""
    store = CheckedStore()
    await _life(group, store)
    assert len(store.history) == 11


@pytest.mark.parametrize("lost", range(11))
async def test_whichever_answer_is_lost_the_end_is_the_same(group: World, lost: int) -> None:
    """I15: for each write in turn the store writes and loses the answer."""
    store = CheckedStore()
    store.lose_answer_of = lost
    await _life(group, store)
    assert store.lose_answer_of is None, "the answer was never lost: the test proved nothing"
    assert len(group.brokers) == 3


# ---- Two planes over one record: a report older than another plane's mark is not a loss.

MARKED = 5344
LONG_MS = 600_000


async def _marking_planes(
    group: World, store: MemoryRecordStore
) -> tuple[ControllerPlane, ControllerPlane, list[FakeBroker]]:
    """Both planes hear three members with empty logs; the first plane writes the marks once, the second at each news."""
    pauses = [{"mark_pause_seconds": 1000.0}, {"mark_pause_seconds": 0.0}]
    first, second = await group.peers(2, store=store, each=pauses)
    brokers = await group.three()
    await eventually(lambda: _settled(first) and _settled(second), what="both planes to know three members in sync")
    for broker in brokers:
        broker.heartbeat_timeout_ms = LONG_MS
        await _beats(broker, 3)
    return first, second, brokers


def _settled(plane: ControllerPlane) -> bool:
    snapshot = plane.snapshot(KEY)
    return bool(
        snapshot and snapshot.record and snapshot.record.sync_state_set == {1, 2, 3} and len(snapshot.live) == 3
    )


async def _beats(broker: FakeBroker, number: int) -> None:
    before = broker.beats
    await eventually(lambda: broker.beats >= before + number, what="some more heartbeats")


async def _held(store: MemoryRecordStore, broker_id: int) -> int:
    return (await stored_in(store)).record.replicas[broker_id].held_offset


@pytest.mark.parametrize("role", ["master", "slave"])
async def test_what_was_heard_before_the_mark_was_raised_is_no_loss(group: World, role: str) -> None:
    """The second plane's heartbeats of one member are late; it writes marks because another member has news.

    A Java slave of a new group has no epoch in its file before the first message: its report is empty.
    """
    store = MemoryRecordStore()
    first, second, brokers = await _marking_planes(group, store)
    late, other = (brokers[0], brokers[1]) if role == "master" else (brokers[2], brokers[1])
    if role == "slave":
        late.epoch_file = 0
        await _beats(late, 3)
    assert snapshot_of(second).live[late.broker_id].max_offset == 0
    late.unheard_at = {second.address}
    late.max_offset = MARKED

    async def marked(broker: FakeBroker) -> bool:
        return await _held(store, broker.broker_id) == MARKED

    await eventually(lambda: marked(late), what="the first plane to write down what the member holds")
    other.max_offset = MARKED
    await eventually(lambda: marked(other), what="the second plane to write down what the other member holds")
    assert group.notes.seats_lost == []
    assert record_of(second).replicas[late.broker_id].held_offset == MARKED, "it knows the mark by now"
    late.unheard_at = set()
    await _beats(late, 5)
    record = record_of(first)
    assert (record.master_broker_id, record.master_epoch, record.sync_state_set) == (1, 1, frozenset({1, 2, 3}))


async def test_a_disk_emptied_while_only_another_plane_listened_is_found(group: World) -> None:
    """A plane that never heard the member knows only its mark, and compares the member's later reports with it."""
    store = MemoryRecordStore()
    first, second, (master, _, third) = await _marking_planes(group, store)
    third.unheard_at = {second.address}
    third.max_offset = MARKED

    async def marked() -> bool:
        return await _held(store, 3) == MARKED

    await eventually(marked, what="the first plane to write down what the member holds")
    master.propose_set = _never_proposes  # type: ignore[method-assign]
    await third.kill()
    await first.stop()
    group.planes = [second.address]
    third.unheard_at = set()
    await group.broker(broker_id=3, heartbeat_seconds=0.05)
    await eventually(lambda: group.notes.seats_lost == [3], what="the loss to be seen")


async def test_what_was_heard_before_another_plane_elected_raises_no_mark(group: World) -> None:
    """The election may truncate the reporting broker's log: an older mark would cost a healthy member its seat."""
    store = Store()
    plane, (master, other, _) = await group.three_under(store, mark_pause_seconds=0.0, record_deadline_seconds=60.0)
    await eventually(lambda: _settled(plane), what="three members in sync")
    for broker in (master, other):
        broker.heartbeat_timeout_ms = LONG_MS
        await _beats(broker, 3)
    stored = await stored_in(store)
    store.reading.clear()
    other.max_offset = MARKED
    await eventually(lambda: store.waiting, what="the plane to read the record for its report")
    other.silent = True
    elected = replace(stored.record, master_epoch=stored.record.master_epoch + 1)
    await store.commit(KEY, elected, stored, 1.0)
    store.reading.set()
    await eventually(lambda: master.epoch == elected.master_epoch, what="the new epoch to be told")
    assert await _held(store, 2) == -1


async def _never_proposes() -> None:
    return


async def test_a_plane_that_is_behind_grants_no_role(group: World) -> None:
    """Its watch stands still: it told a new process of the master the epoch of the dead one, after the record said that it died."""
    shared = RefusingStore()
    plane = await group.plane(shared, settings=LOOSE)
    broker = await group.broker()
    await eventually(lambda: snapshot_of(plane).writable and record_of(plane).change is None, what="a group at rest")
    behind = await group.plane(Store(shared), settings=LOOSE)
    await look_up(behind)
    shared.refuses = True
    group.planes = [plane.address]
    broker.epoch, broker.master_id, broker.is_master = 0, 0, False
    assert (await broker.ask_to_register()).code == 0
    assert record_of(plane).granted_master_id is None
    assert record_of(behind).granted_master_id == broker.broker_id
    group.planes = [plane.address, behind.address]
    await eventually(
        lambda: broker.is_master or record_of(behind).granted_master_id is None, what="the other plane to look at it"
    )
    assert not broker.is_master
    shared.refuses = False
    await eventually(lambda: broker.is_master and broker.epoch == 2, what="the new process to be elected")


async def test_a_plane_that_is_behind_repeats_no_role_of_its_own_change(group: World) -> None:
    """It committed the election, but its first 1008 failed, and the next one may reach another process."""
    shared = RefusingStore()
    behind, plane = await group.plane(Store(shared), settings=LOOSE), await group.plane(shared, settings=LOOSE)
    group.planes = [behind.address]
    deaf = FakeBroker(group)
    deaf.refuses = lambda command: "busy" if command.code == RequestCode.NOTIFY_BROKER_ROLE_CHANGED else ""
    await deaf.start()
    await eventually(lambda: deaf.asked.count(RequestCode.NOTIFY_BROKER_ROLE_CHANGED) > 1, what="1008 to be repeated")
    await look_up(plane)
    shared.refuses = True
    deaf.epoch, deaf.master_id, deaf.is_master = 0, 0, False
    group.planes = [plane.address, behind.address]
    assert (await deaf.ask_to_register()).code == 0
    assert record_of(behind).granted_master_id == deaf.broker_id
    deaf.refuses = lambda _: ""
    await eventually(
        lambda: deaf.is_master or record_of(behind).granted_master_id is None, what="the first plane to tell it again"
    )
    assert not deaf.is_master
