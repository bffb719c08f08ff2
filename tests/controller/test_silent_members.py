"""A slave that runs, linked and acknowledging, and that no controller hears: seen, asked about, and told to register again."""

import pytest
from prometheus_client import CollectorRegistry

import metric_names
from brokergroup_operator.controller.directory.group_directory import FixedDirectory
from brokergroup_operator.controller.directory.places import links_by_host
from brokergroup_operator.controller.plane import ControllerPlane
from brokergroup_operator.observe.member_view import member_view
from brokergroup_operator.observe.metrics import GroupCollector, MetricsObserver
from brokergroup_operator.observe.observer import Observer
from brokergroup_operator.records.memory import MemoryRecordStore
from brokergroup_operator.records.store import GroupKey
from controller_core.decision import ControllerCode
from controller_core.settings import ControllerSettings
from rocketmq_remoting.broker_protocol import HAConnectionRuntimeInfo, HARuntimeInfoBody
from rocketmq_remoting.codes import RequestCode
from tests.controller.conftest import KEY, StartPlane, record_of, snapshot_of
from tests.support.fake_broker import FakeBroker, FakeGroup, eventually
from tests.support.places import free_port

ALL_THREE = ControllerSettings(shrink_floor=True, min_in_sync_replicas=3)
STRICT = ControllerSettings(shrink_floor=True, min_in_sync_replicas=2)
SOON = {"unheard_check_seconds": 0.05, "register_pause_seconds": 0.2}


class Told(Observer):
    def __init__(self) -> None:
        self.unheard: list[frozenset[int]] = []

    def members_unheard(self, key: GroupKey, broker_ids: frozenset[int]) -> None:
        self.unheard.append(broker_ids)


async def _poll(broker: FakeBroker) -> int:
    """1004 every now and then, as each broker does; registers again where Java's would."""
    answer = await broker.ask(RequestCode.CONTROLLER_GET_REPLICA_INFO)
    if answer.code == ControllerCode.CONTROLLER_BROKER_METADATA_NOT_EXIST:
        await broker.register()
    return answer.code


async def _is_told(broker: FakeBroker) -> bool:
    return await _poll(broker) == ControllerCode.CONTROLLER_BROKER_METADATA_NOT_EXIST


async def test_a_slave_that_runs_and_is_not_heard_registers_again(start_plane: StartPlane, group: FakeGroup) -> None:
    told = Told()
    plane = await start_plane(directory=FixedDirectory(settings=ALL_THREE), observer=told, **SOON)
    group.planes = [plane.address]
    first, second, third = await group.three()
    assert await _poll(second) == 0, "a member that is heard polls as ever"
    second.silent = True
    await eventually(lambda: told.unheard == [{2}], what="the alarm")
    silence = snapshot_of(plane).silences[2]
    assert (silence.linked, silence.answers, silence.heard_by) == (True, True, ())
    view = member_view(record_of(plane), snapshot_of(plane), 2)
    assert view.fact().startswith("linked, not heard by any controller since 2")
    assert snapshot_of(plane).writable, "it acknowledges: all three of three do"

    registrations = second.tried.count(RequestCode.CONTROLLER_REGISTER_BROKER)
    await eventually(lambda: _is_told(second), what="the answer on which it registers")
    assert second.tried.count(RequestCode.CONTROLLER_REGISTER_BROKER) == registrations + 1
    assert [await _poll(one) for one in (first, third)] == [0, 0]
    second.silent = False
    await eventually(lambda: not snapshot_of(plane).silences and 2 in snapshot_of(plane).live, what="it to be heard")
    await eventually(lambda: told.unheard[-1] == frozenset(), what="the end of the alarm")
    assert record_of(plane).master_epoch == 1
    assert record_of(plane).sync_state_set == {1, 2, 3}


async def test_one_that_registers_and_stays_silent_is_told_less_and_less_often(
    start_plane: StartPlane, group: FakeGroup
) -> None:
    plane = await start_plane(directory=FixedDirectory(settings=STRICT), startup_timeout_seconds=0.2, **SOON)
    group.planes = [plane.address]
    _, second, _ = await group.three()
    second.silent = True
    await eventually(lambda: 2 in snapshot_of(plane).silences, what="the silence")
    since = snapshot_of(plane).silences[2].since_unix_seconds
    for times in (1, 2, 3):
        await eventually(lambda: _is_told(second), what=f"the answer number {times}")
        assert await _poll(second) == 0, "once each time"
        await eventually(
            lambda times=times: (now := snapshot_of(plane).silences.get(2)) and now.told_to_register == times,  # type: ignore[misc]
            what="the next silence",
        )
    assert snapshot_of(plane).silences[2].since_unix_seconds == since, "a registration is no heartbeat"
    assert record_of(plane).master_epoch == 1


async def test_a_slave_that_is_dead_is_silent_and_nothing_more(start_plane: StartPlane, group: FakeGroup) -> None:
    told = Told()
    plane = await start_plane(directory=FixedDirectory(settings=STRICT), observer=told, **SOON)
    group.planes = [plane.address]
    first, second, _ = await group.three()
    await second.kill()
    await first.propose_set()
    await eventually(
        lambda: (now := snapshot_of(plane).silences.get(2)) and now.answers is False, what="it to be asked about"
    )
    silence = snapshot_of(plane).silences[2]
    assert (silence.linked, silence.runs, told.unheard) == (False, False, [])
    again = await second.restarted()
    await eventually(lambda: not snapshot_of(plane).silences, what="its next process to be heard")
    assert await _poll(again) == 0


async def test_the_master_is_never_told_to_register(start_plane: StartPlane, group: FakeGroup) -> None:
    """A registration of the master means another process, and costs an epoch."""
    plane = await start_plane(directory=FixedDirectory(settings=STRICT), no_successor_patience_seconds=60.0, **SOON)
    group.planes = [plane.address]
    first, second, third = await group.three()
    for one in (second, third):
        one.silent = True
    await eventually(lambda: set(snapshot_of(plane).silences) == {2, 3}, what="both silences")
    first.silent = True
    asked = first.asked.count(RequestCode.GET_BROKER_HA_STATUS)
    await eventually(lambda: first.asked.count(RequestCode.GET_BROKER_HA_STATUS) > asked + 10, what="its own silence")
    assert await _poll(first) == 0
    assert 1 not in snapshot_of(plane).silences
    assert record_of(plane).master_epoch == 1


async def test_a_slave_that_another_plane_hears_is_left_alone(start_plane: StartPlane, group: FakeGroup) -> None:
    store, ports, told = MemoryRecordStore(), [free_port() for _ in range(2)], Told()
    peers = tuple(f"127.0.0.1:{port}" for port in ports)
    planes = [
        await start_plane(
            store,
            directory=FixedDirectory(settings=STRICT),
            observer=told,
            listen_port=port,
            peer_addresses=peers,
            **SOON,
        )
        for port in ports
    ]
    group.planes = list(peers)
    _, second, _ = await group.three()
    await eventually(lambda: set(snapshot_of(planes[0]).live) == {1, 2, 3}, what="all to be heard here")
    second.unheard_at = {planes[0].address}
    await eventually(
        lambda: (now := snapshot_of(planes[0]).silences.get(2)) and now.heard_by == (peers[1],), what="the other's word"
    )
    fact = member_view(record_of(planes[0]), snapshot_of(planes[0]), 2).fact()
    assert fact.endswith(f"but by {peers[1]}")
    for _ in range(5):
        assert await _poll(second) == 0
    assert told.unheard == []


async def test_a_plane_that_was_started_anew_and_is_not_reached_yet_counts_nobody_that_another_one_hears(
    start_plane: StartPlane, group: FakeGroup
) -> None:
    """The alert asks for the highest of all planes: one that hears nobody yet must not speak for the group."""
    store, ports = MemoryRecordStore(), [free_port() for _ in range(2)]
    peers = tuple(f"127.0.0.1:{port}" for port in ports)

    async def start(port: int) -> ControllerPlane:
        return await start_plane(
            store, directory=FixedDirectory(settings=STRICT), listen_port=port, peer_addresses=peers, **SOON
        )

    first = await start(ports[0])
    group.planes = [peers[0]]
    _, *slaves = await group.three()
    anew = await start(ports[1])
    counted: list[float] = []
    anew.subscribe(lambda _: counted.append(unheard_members(anew)))
    for slave in slaves:
        slave.unheard_at = {peers[1]}
    group.planes.append(peers[1])
    await eventually(lambda: is_found_out(anew, {2, 3}, heard_by=peers[0]), what="the new plane to have asked")
    assert (max(counted), unheard_members(anew), unheard_members(first)) == (0, 0, 0)
    for slave in slaves:
        slave.silent = True
    await eventually(lambda: unheard_members(anew) == unheard_members(first) == 2, what="both to hear none of them")


def unheard_members(plane: ControllerPlane) -> float:
    """As the plane's pod reports it."""
    families = GroupCollector(plane, MetricsObserver(CollectorRegistry())).collect()
    samples = [sample for family in families for sample in family.samples]
    return sum(sample.value for sample in samples if sample.name == metric_names.UNHEARD_MEMBERS)


def is_found_out(plane: ControllerPlane, broker_ids: set[int], *, heard_by: str) -> bool:
    """Whether this plane knows of each that it runs, and who hears it."""
    snapshot = plane.snapshot(KEY)
    silences = snapshot.silences if snapshot is not None else {}
    return silences.keys() == broker_ids and all(one.runs and one.heard_by == (heard_by,) for one in silences.values())


@pytest.mark.parametrize(
    ("hosts", "linked", "expected"),
    [
        (("b", "c"), ("b", "c"), {2: True, 3: True}),
        (("b", "c"), ("c",), {2: False, 3: True}),
        (("b", "b"), ("b",), {2: None, 3: None}),
        (("b", "c"), (), {2: False, 3: False}),
    ],
)
def test_whose_link_it_is_is_known_by_its_host(
    hosts: tuple[str, str], linked: tuple[str, ...], expected: dict[int, bool | None]
) -> None:
    links = tuple(HAConnectionRuntimeInfo(addr=f"/{host}:50000") for host in linked)
    status = HARuntimeInfoBody(master=True, ha_connection_info=links)
    assert links_by_host({2: hosts[0], 3: hosts[1]}, status) == expected
