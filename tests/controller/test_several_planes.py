"""Two controller planes over one store, and a store whose answers are lost: one grant for each epoch, one end for all."""

import asyncio
from typing import TYPE_CHECKING

import pytest

from brokergroup_operator.controller.change.fencing import FenceOutcome
from brokergroup_operator.controller.directory.group_directory import FixedDirectory, GroupBinding
from brokergroup_operator.controller.peers.services import rank_of
from brokergroup_operator.observe.group_view import BrokerUnreachableError
from brokergroup_operator.observe.observer import Observer
from brokergroup_operator.records.memory import MemoryRecordStore
from brokergroup_operator.records.store import GroupKey, RecordUnavailableError, StoredRecord
from controller_core.model import BrokerGroupRecord
from controller_core.settings import ControllerSettings
from rocketmq_remoting.client import RemotingClient
from rocketmq_remoting.codes import RequestCode
from rocketmq_remoting.command import request
from tests.controller.conftest import KEY, StartPlane, record_of, snapshot_of
from tests.support.fake_broker import NAME, FakeGroup, eventually

if TYPE_CHECKING:
    from collections.abc import Callable

STRICT = ControllerSettings(shrink_floor=True, min_in_sync_replicas=2)


class CheckedStore(MemoryRecordStore):
    """Keeps every record ever committed, and lets a test stand between a commit and its caller."""

    def __init__(self) -> None:
        super().__init__()
        self.history: list[BrokerGroupRecord] = []
        self.before_commit: Callable[[BrokerGroupRecord | None], object] | None = None
        self.lose_answer_of: int | None = None
        self.meet: asyncio.Barrier | None = None

    async def commit(
        self,
        key: GroupKey,
        record: BrokerGroupRecord | None,
        expected: StoredRecord | None,
        deadline_seconds: float = 2.0,
    ) -> StoredRecord | None:
        before = expected.record.master_epoch if expected is not None else 0
        if self.meet is not None and record is not None and record.master_epoch > before:
            barrier, self.meet = self.meet, self.meet if self.meet.n_waiting == 0 else None
            async with asyncio.timeout(5):
                await barrier.wait()
        stored = await super().commit(key, record, expected, deadline_seconds)
        if record is not None:
            self.history.append(record)
        if self.lose_answer_of == len(self.history) - 1:
            self.lose_answer_of = None
            lost = "the answer was lost and the deadline is over; the write was done"
            raise RecordUnavailableError(lost, write_id=stored.write_id if stored is not None else "")
        return stored

    def check(self) -> None:
        """Invariants I1, I2, I11 over everything that was ever durable."""
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


class CountingFencer:
    """Fences nothing, and remembers whom it was asked to."""

    def __init__(self) -> None:
        self.fenced: list[int] = []

    async def fence(
        self, binding: GroupBinding, broker_id: int, address: str, *, deadline_seconds: float
    ) -> FenceOutcome:
        self.fenced.append(broker_id)
        return FenceOutcome(confirmed=False, how="only counted")


async def _ask_for_the_master(plane: str) -> None:
    client = RemotingClient()
    fields = {"brokerName": NAME}
    await client.invoke(plane, request(RequestCode.CONTROLLER_GET_REPLICA_INFO, ext_fields=fields), timeout_seconds=3.0)
    await client.close()


class Commits(Observer):
    """Counts what a plane itself made durable."""

    def __init__(self) -> None:
        self.elected: list[tuple[int, int | None]] = []
        self.conflicts = 0

    def record_changed(
        self, key: GroupKey, before: BrokerGroupRecord | None, after: BrokerGroupRecord, why: str
    ) -> None:
        if before is not None and after.master_epoch != before.master_epoch:
            self.elected.append((after.master_epoch, after.master_broker_id))

    def record_conflict(self, key: GroupKey, record: BrokerGroupRecord | None) -> None:
        self.conflicts += 1


async def test_two_planes_that_elect_at_the_same_moment_grant_one_epoch(
    start_plane: StartPlane, group: FakeGroup
) -> None:
    """Both stand before the PUT with the same snapshot (I1): one wins, the other hears 409, reads again and steps back."""
    store, first_commits, second_commits = CheckedStore(), Commits(), Commits()
    first_plane = await start_plane(store, directory=FixedDirectory(settings=STRICT), observer=first_commits)
    second_plane = await start_plane(store, directory=FixedDirectory(settings=STRICT), observer=second_commits)
    group.planes = [first_plane.address, second_plane.address]
    master, _, _ = await group.three()
    await eventually(lambda: (now := second_plane.snapshot(KEY)) and now.writable, what="both know it")
    store.meet = asyncio.Barrier(2)
    await master.kill()
    await eventually(
        lambda: all(
            snapshot_of(plane).writable and record_of(plane).master_epoch == 2 for plane in (first_plane, second_plane)
        ),
        what="both planes to see the new master",
    )
    store.check()
    elected = [entry for entry in first_commits.elected + second_commits.elected if entry[0] == 2]
    assert elected == [(2, 2)]
    assert first_commits.conflicts + second_commits.conflicts >= 1
    assert group.master().broker_id == 2
    record = record_of(first_plane)
    assert record.master_epoch == 2
    await eventually(lambda: record_of(second_plane) == record_of(first_plane))


async def test_a_plane_that_dies_with_the_master_is_not_missed(start_plane: StartPlane, group: FakeGroup) -> None:
    """Active-active: the other one needs no election of anything.

    CNPG #778: what if the operator dies?
    """
    store = CheckedStore()
    first_plane = await start_plane(store, directory=FixedDirectory(settings=STRICT))
    second_plane = await start_plane(store, directory=FixedDirectory(settings=STRICT))
    group.planes = [second_plane.address, first_plane.address]
    master, _, _ = await group.three()
    await eventually(lambda: (now := first_plane.snapshot(KEY)) and now.writable, what="both know it")
    await asyncio.gather(first_plane.stop(), master.kill())
    await eventually(lambda: snapshot_of(second_plane).writable and record_of(second_plane).master_epoch == 2)
    store.check()
    assert group.master().broker_id in (2, 3)


async def test_a_master_that_tells_only_others_is_left_alone(start_plane: StartPlane, group: FakeGroup) -> None:
    """A plane that no broker knows of hears nobody; one that answers as master is no stuck one, however long it is unheard."""
    store, fencer = CheckedStore(), CountingFencer()
    known = await start_plane(store, directory=FixedDirectory(settings=STRICT))
    group.planes = [known.address]
    await group.three()
    await eventually(lambda: snapshot_of(known).writable)
    unknown = await start_plane(
        store,
        directory=FixedDirectory(settings=STRICT),
        fencer=fencer,
        no_successor_patience_seconds=0.1,
        no_successor_pause_seconds=0.05,
    )
    # Somebody asks it about the group (mqadmin would), so that it knows of the group without being heard by its brokers.
    async with asyncio.timeout(5):
        await _ask_for_the_master(unknown.address)
    asked_before = group.master().asked.count(RequestCode.GET_BROKER_HA_STATUS)
    await eventually(
        lambda: group.master().asked.count(RequestCode.GET_BROKER_HA_STATUS) > asked_before + 2,
        what="the unknown plane to doubt the master again and again",
    )
    await unknown.stop()
    assert fencer.fenced == []
    assert record_of(known).master_epoch == 1
    store.check()


async def test_a_plane_that_brokers_do_not_know_gives_them_its_address_and_nothing_else(
    start_plane: StartPlane, group: FakeGroup
) -> None:
    """After replicaCount 2 to 3 the third may be the one that reconciles: it hears no broker before it told it of itself."""
    store = CheckedStore()
    known = await start_plane(store, directory=FixedDirectory(settings=STRICT))
    group.planes = [known.address]
    _, second, _ = await group.three()
    await eventually(lambda: snapshot_of(known).writable)
    unknown = await start_plane(store, directory=FixedDirectory(settings=STRICT))
    await _ask_for_the_master(unknown.address)
    both = f"{known.address};{unknown.address}"
    await unknown.set_broker_config(KEY, 2, {"controllerAddr": both})
    assert second.config == {"controllerAddr": both}
    with pytest.raises(BrokerUnreachableError, match="not alive"):
        await unknown.set_broker_config(KEY, 2, {"controllerAddr": both, "minInSyncReplicas": "1"})


def test_every_plane_is_first_for_some_groups_and_all_agree_on_the_order() -> None:
    planes = ("a:1", "b:1", "c:1")
    for number in range(50):
        ranks = [rank_of(plane, planes, f"default/group-{number}") for plane in planes]
        assert sorted(ranks) == [0, 1, 2]
    firsts = {plane: sum(rank_of(plane, planes, f"g{n}") == 0 for n in range(300)) for plane in planes}
    assert min(firsts.values()) > 50
    assert rank_of("not in the list", planes, "g") == 0


async def _life(start_plane: StartPlane, group: FakeGroup, store: CheckedStore) -> None:
    plane = await start_plane(store, directory=FixedDirectory(settings=STRICT))
    group.planes = [plane.address]
    for _ in range(3):
        await group.broker()
    ids = set(group.brokers)
    await eventually(lambda: record_of(plane).sync_state_set == ids, what="three members in sync")
    master = group.master()
    await master.kill()
    await eventually(lambda: record_of(plane).sync_state_set == ids - {master.broker_id}, what="two members in sync")
    await eventually(lambda: snapshot_of(plane).writable)
    store.check()


async def test_an_undisturbed_life_takes_eleven_writes(start_plane: StartPlane, group: FakeGroup) -> None:
    """Pins the count that the next test walks through."""
    store = CheckedStore()
    await _life(start_plane, group, store)
    assert len(store.history) == 11


@pytest.mark.parametrize("lost", range(11))
async def test_whichever_answer_is_lost_the_end_is_the_same(
    start_plane: StartPlane, group: FakeGroup, lost: int
) -> None:
    """I15: each write in turn is done, and nobody hears of it."""
    store = CheckedStore()
    store.lose_answer_of = lost
    await _life(start_plane, group, store)
    assert store.lose_answer_of is None, "the answer was never lost: nothing was shown"
    assert len(group.brokers) == 3
