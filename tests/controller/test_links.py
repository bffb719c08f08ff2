"""Alive and not linked to the master: seen at the master's 907 also where the SyncStateSet says that all is well; the cure."""

import asyncio

import pytest

from brokergroup_operator.controller.directory.group_directory import FixedDirectory
from brokergroup_operator.controller.directory.places import level_members, links_by_host, speeds_of_links, unlinked
from brokergroup_operator.observe.observer import Observer
from brokergroup_operator.records.store import GroupKey
from controller_core.settings import ControllerSettings
from rocketmq_remoting.broker_protocol import HAConnectionRuntimeInfo, HARuntimeInfoBody
from rocketmq_remoting.codes import RequestCode
from tests.controller.conftest import StartPlane, group_of, record_of, snapshot_of
from tests.support.fake_broker import FakeGroup, eventually

ALL_THREE = ControllerSettings(shrink_floor=True, min_in_sync_replicas=3)
STRICT = ControllerSettings(shrink_floor=True, min_in_sync_replicas=2)


class Told(Observer):
    def __init__(self) -> None:
        self.unlinked: list[frozenset[int]] = []
        self.cured: list[tuple[int, int]] = []

    def members_unlinked(self, key: GroupKey, broker_ids: frozenset[int]) -> None:
        self.unlinked.append(broker_ids)

    def member_relinked(self, key: GroupKey, broker_id: int, epoch: int) -> None:
        self.cured.append((broker_id, epoch))


async def test_a_link_that_breaks_in_a_settled_group_is_noticed_and_mended(
    start_plane: StartPlane, group: FakeGroup
) -> None:
    """The set may say that all is well: at the floor (three of three) a master cannot drop the slave that left it."""
    told = Told()
    plane = await start_plane(
        directory=FixedDirectory(settings=ALL_THREE),
        observer=told,
        link_check_seconds=0.05,
        unlinked_alarm_seconds=0.3,
        link_missing_longest_seconds=0.2,
    )
    group.planes = [plane.address]
    first, second, _ = await group.three()
    await eventually(lambda: second.asked, what="the first look")
    assert snapshot_of(plane).unlinked == frozenset()
    second.ignores_ha_pushes_for_ever = True
    first.linked.discard(2)
    await eventually(lambda: snapshot_of(plane).unlinked == {2}, what="the missing link to be noticed")
    assert record_of(plane).sync_state_set == {1, 2, 3}
    await eventually(lambda: told.unlinked == [{2}], what="the alarm")
    second.ignores_ha_pushes_for_ever = False
    await eventually(lambda: snapshot_of(plane).unlinked == frozenset(), what="the link to be back")
    await eventually(lambda: told.unlinked == [{2}, frozenset()], what="the end of the alarm")
    assert record_of(plane).master_epoch == 1


async def test_the_master_tells_how_fast_each_link_is(start_plane: StartPlane, group: FakeGroup) -> None:
    """By the same 907 that tells the links. A master that dies, or does not say, leaves no speed of before behind."""
    plane = await start_plane(directory=FixedDirectory(settings=STRICT), link_check_seconds=0.05)
    group.planes = [plane.address]
    first, *others = await group.three()
    first.link_speeds = {2: 1000, 3: 7}
    await eventually(lambda: snapshot_of(plane).replication_speeds == {2: 1000, 3: 7}, what="both speeds")
    first.link_speeds = {2: 1000}
    await eventually(lambda: snapshot_of(plane).replication_speeds == {2: 1000, 3: 0}, what="an idle link")
    first.answers_ha_status = False
    await eventually(lambda: snapshot_of(plane).replication_speeds == {}, what="no speed that nobody says")
    first.answers_ha_status = True
    await eventually(lambda: snapshot_of(plane).replication_speeds == {2: 1000, 3: 0}, what="the speeds again")
    await first.kill()
    await eventually(lambda: record_of(plane).sync_state_set == {2, 3}, what="another master and its slave")
    slave = next(one.broker_id for one in others if not one.is_master)
    await eventually(lambda: snapshot_of(plane).replication_speeds == {slave: 0}, what="the one link there is")


def test_a_speed_is_a_members_only_where_its_host_is() -> None:
    links = (
        HAConnectionRuntimeInfo(addr="/10.0.0.2:50001", transferred_byte_in_second=5),
        HAConnectionRuntimeInfo(addr="10.0.0.2:50002", transferred_byte_in_second=6),
        HAConnectionRuntimeInfo(addr="[fd00::3]:50003", transferred_byte_in_second=7),
    )
    status = HARuntimeInfoBody(master=True, ha_connection_info=links)
    assert speeds_of_links({2: "10.0.0.2", 3: "fd00::3", 4: "10.0.0.4"}, status) == {2: 11, 3: 7}
    assert speeds_of_links({2: "10.0.0.2", 4: "10.0.0.2", 3: "fd00::3"}, status) == {3: 7}, (
        "whose link it is, nothing tells"
    )


def test_a_link_is_known_by_its_host_in_any_spelling() -> None:
    status = HARuntimeInfoBody(master=True, ha_connection_info=(HAConnectionRuntimeInfo(addr="/[fd00:0::3]:50003"),))
    assert links_by_host({2: "10.0.0.2", 3: "fd00::3"}, status) == {2: False, 3: True}


async def test_new_links_are_looked_at_often(start_plane: StartPlane, group: FakeGroup) -> None:
    """A Java slave may break its first one at once, and calls again only after 5 s: seen after failovers."""
    seldom = {"link_check_seconds": 3600.0, "configuration_check_seconds": 3600.0}
    plane = await start_plane(directory=FixedDirectory(settings=STRICT), **seldom)
    group.planes = [plane.address]
    first, *others = await group.three()
    await first.kill()
    await eventually(lambda: record_of(plane).sync_state_set == {2, 3}, what="another master and its slave")
    slave, master = sorted(others, key=lambda one: one.is_master)
    looks = master.asked.count(RequestCode.GET_BROKER_HA_STATUS)
    await eventually(
        lambda: master.asked.count(RequestCode.GET_BROKER_HA_STATUS) > looks + 1, what="a settled group's looks"
    )
    master.linked.discard(slave.broker_id)
    await eventually(lambda: slave.broker_id in master.linked, what="the missing link to be noticed and mended")
    assert (slave.epoch, record_of(plane).sync_state_set) == (2, frozenset({2, 3}))


async def test_a_slave_on_a_wrong_link_is_cured_by_two_epochs(start_plane: StartPlane, group: FakeGroup) -> None:
    """Chained behind another slave: it has everything, never enters the set, and heeds a 906 only after a change of role."""
    told = Told()
    plane = await start_plane(
        directory=FixedDirectory(settings=STRICT),
        observer=told,
        link_check_seconds=0.05,
        link_missing_longest_seconds=0.1,
        cure_after_seconds=0.2,
    )
    group.planes = [plane.address]
    first, second, third = await group.three()
    await eventually(lambda: second.asked, what="the first look")
    third.chained = True
    first.linked.discard(3)
    await first.propose_set()
    await eventually(lambda: told.cured == [(3, 3)], what="the cure")
    await eventually(lambda: first.sync_state_set == {1, 2, 3}, what="3 to be in sync again")
    assert [line for line in group.journal if line.startswith("3 ") and not line.endswith(" 1")] == [
        "3 slave 2",
        "3 slave 3",
    ]
    assert (first.is_master, first.epoch, second.epoch, third.master_address) == (True, 3, 3, first.address)
    assert record_of(plane).master_epoch == 3
    await eventually(lambda: snapshot_of(plane).writable)


async def test_no_epochs_are_spent_on_a_slave_again_and_again(start_plane: StartPlane, group: FakeGroup) -> None:
    """Where the network keeps it from the master, the cure cures nothing."""
    told = Told()
    plane = await start_plane(
        directory=FixedDirectory(settings=ControllerSettings()),
        observer=told,
        link_check_seconds=0.05,
        link_missing_longest_seconds=0.05,
        cure_after_seconds=0.1,
    )
    group.planes = [plane.address]
    first, second = await group.broker(), await group.broker()
    await eventually(lambda: first.sync_state_set == {1, 2}, what="two in sync")
    second.ignores_ha_pushes_for_ever = True
    first.linked.discard(2)
    await eventually(lambda: told.cured == [(2, 3)], what="the one cure")
    asked = len(second.asked)
    await eventually(lambda: len(second.asked) > asked + 10, what="it to be told again many times")
    assert told.cured == [(2, 3)]
    assert (record_of(plane).master_epoch, snapshot_of(plane).unlinked) == (3, frozenset({2}))


async def test_a_link_that_ends_at_once_again_and_again_is_given_up(start_plane: StartPlane, group: FakeGroup) -> None:
    """As a Java slave whose log ends in the header of a frame that it misread: each link ends by "offset is not align"."""
    told = Told()
    plane = await start_plane(
        directory=FixedDirectory(settings=ControllerSettings()),
        observer=told,
        link_check_seconds=0.05,
        link_missing_seconds=0.05,
        link_missing_longest_seconds=0.05,
        cure_after_seconds=0.5,
        link_given_up_seconds=5.0,
        link_trusted_seconds=2.0,
    )
    group.planes = [plane.address]
    first, second, _ = await group.three()
    await eventually(lambda: second.asked, what="the first look")
    second.ignores_ha_pushes_for_ever = True
    for _ in range(8):
        first.linked.discard(2)
        await asyncio.sleep(0.9)
        first.linked.add(2)
        await asyncio.sleep(0.6)
        assert snapshot_of(plane).unlinked == frozenset(), "a link that stands is seen"
    assert told.cured == [(2, 3)], "no epochs are spent again on links that do not stand"
    lost = snapshot_of(plane).lost_links
    assert lost.keys() == {2}
    assert lost[2].told >= 3
    await eventually(lambda: not snapshot_of(plane).lost_links, what="a link that stands to be trusted")


async def test_a_slave_that_was_unlinked_often_and_shortly_is_not_given_up(
    start_plane: StartPlane, group: FakeGroup
) -> None:
    """As in a rolling update: each change of master ends its link for a moment."""
    plane = await start_plane(link_check_seconds=0.05, link_given_up_seconds=3.0)
    group.planes = [plane.address]
    first, second, _ = await group.three()
    await eventually(lambda: second.asked, what="the first look")
    for _ in range(8):
        first.linked.discard(2)
        await eventually(lambda: 2 in first.linked, what="the keeper to link it")
        await asyncio.sleep(0.5)
    assert not snapshot_of(plane).lost_links


async def test_the_time_in_which_the_master_does_not_answer_counts_against_no_slave(
    start_plane: StartPlane, group: FakeGroup
) -> None:
    """Its links are unknown then: only a look that finds none counts, and the one before it."""
    plane = await start_plane(
        directory=FixedDirectory(settings=STRICT),
        link_check_seconds=0.05,
        link_missing_seconds=0.05,
        link_missing_longest_seconds=0.05,
        link_given_up_seconds=6.0,
    )
    group.planes = [plane.address]
    first, second, _ = await group.three()
    await eventually(lambda: second.asked, what="the first look")
    second.ignores_ha_pushes_for_ever = True
    first.linked.discard(2)
    tellings = group.journal.count("1008 to 2")
    await eventually(lambda: group.journal.count("1008 to 2") > tellings + 3, what="it to be told again")
    first.answers_ha_status = False
    await asyncio.sleep(20.0)
    first.answers_ha_status = True
    looks = first.asked.count(RequestCode.GET_BROKER_HA_STATUS)
    await eventually(lambda: first.asked.count(RequestCode.GET_BROKER_HA_STATUS) > looks + 1, what="two looks")
    assert not snapshot_of(plane).lost_links
    await eventually(lambda: snapshot_of(plane).lost_links.keys() == {2}, what="it to be given up in the end")


async def test_no_epochs_are_spent_on_a_slave_that_does_not_answer(start_plane: StartPlane, group: FakeGroup) -> None:
    """As a Java broker that ends: its ports are closed, and its heartbeats go on for seconds."""
    told = Told()
    plane = await start_plane(
        directory=FixedDirectory(settings=STRICT),
        observer=told,
        link_check_seconds=0.05,
        link_missing_longest_seconds=0.05,
        role_change_deadline_seconds=0.05,
        cure_after_seconds=0.1,
    )
    group.planes = [plane.address]
    first, second, _ = await group.three()
    await eventually(lambda: second.asked, what="the first look")
    second.role_change_waits, second.ignores_ha_pushes_for_ever = asyncio.Event(), True
    first.linked.discard(2)
    tellings = group.journal.count("1008 to 2")
    await eventually(lambda: group.journal.count("1008 to 2") > tellings + 8, what="it to be told again many times")
    assert (told.cured, record_of(plane).master_epoch, snapshot_of(plane).unlinked) == ([], 1, frozenset({2}))
    second.role_change_waits.set()
    await eventually(lambda: told.cured == [(2, 3)], what="the cure of one that answers")


def _status(*hosts: str) -> HARuntimeInfoBody:
    links = tuple(HAConnectionRuntimeInfo(addr=f"/{host}:5000{port}") for port, host in enumerate(hosts))
    return HARuntimeInfoBody(master=True, ha_connection_info=links)


@pytest.mark.parametrize(
    ("hosts", "linked", "missing"),
    [
        (("a", "b", "c"), ("b", "c"), []),
        (("a", "b", "c"), ("c",), [2]),
        (("a", "b", "c"), (), [2, 3]),
        (("a", "b", "b"), ("b", "b"), []),
        (("a", "b", "b"), ("b",), [2, 3]),
    ],
)
def test_a_link_is_known_by_its_host_only(hosts: tuple[str, ...], linked: tuple[str, ...], missing: list[int]) -> None:
    assert unlinked({2: hosts[1], 3: hosts[2]}, _status(*linked)) == missing


@pytest.mark.parametrize(
    ("hosts", "linked", "behind", "level"),
    [
        (("a", "b", "c"), ("b", "c"), (), {2, 3}),
        (("a", "b", "c"), ("b", "c"), ("c",), {2}),
        (("a", "b", "c"), ("b",), (), {2}),
        (("a", "b", "c"), (), (), set()),
        # One link of two is left over from before: whoever has it has it.
        (("a", "b", "c"), ("b", "b"), (), {2}),
        (("a", "b", "b"), ("b", "b"), (), None),
        (("a", "b", "c"), ("b", "elsewhere"), (), None),
    ],
)
def test_who_is_level_is_known_by_hosts_or_not_at_all(
    hosts: tuple[str, ...], linked: tuple[str, ...], behind: tuple[str, ...], level: set[int] | None
) -> None:
    links = tuple(HAConnectionRuntimeInfo(addr=f"/{host}:50000", diff=int(host in behind)) for host in linked)
    status = HARuntimeInfoBody(master=True, ha_connection_info=links)
    assert level_members(dict(enumerate(hosts, start=1)), [1, 2, 3], status) == level


def test_a_living_member_counts_before_a_dead_one_that_had_its_address() -> None:
    assert level_members({1: "a", 2: "b", 3: "b"}, [1, 2], _status("b")) == frozenset({2})


async def test_a_group_that_does_not_settle_is_looked_at_less_and_less_often(
    start_plane: StartPlane, group: FakeGroup
) -> None:
    """A thousand groups whose brokers answer and confirm nothing kept a plane busy with itself."""
    plane = await start_plane(
        directory=FixedDirectory(settings=STRICT),
        settling_seconds=0.0,
        keeper_slow_poll_seconds=0.05,
        small_rpc_deadline_seconds=0.2,  # so long before its deadline a silent master is looked at again
    )
    group.planes = [plane.address]
    first, second, third = await group.three()
    await eventually(lambda: snapshot_of(plane).writable, what="a group that serves")
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
    await eventually(lambda: inner.rests(asyncio.get_running_loop().time()), what="the tick to leave it alone")
