"""A slave that acknowledges but whose heartbeats reach no controller: reported, and made to register again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry

import metric_names
from brokergroup_operator.controller.directory.group_directory import FixedDirectory
from brokergroup_operator.observe.member_view import member_view
from brokergroup_operator.observe.metrics import GroupCollector, MetricsObserver
from brokergroup_operator.records.memory import MemoryRecordStore
from controller_core.decision import ControllerCode
from rocketmq_remoting.codes import RequestCode
from tests.controller.conftest import record_of, snapshot_of
from tests.controller.world import ALL_THREE, KEY, STRICT, World
from tests.support.fake_broker import FakeBroker, eventually
from tests.support.places import free_port

if TYPE_CHECKING:
    from brokergroup_operator.controller.plane import ControllerPlane

SOON: dict[str, Any] = {"unheard_check_seconds": 0.05, "register_pause_seconds": 0.2}


async def _poll(broker: FakeBroker) -> int:
    """Send 1004 from time to time, as each broker does; register again when a Java broker would."""
    answer = await broker.ask(RequestCode.CONTROLLER_GET_REPLICA_INFO)
    if answer.code == ControllerCode.CONTROLLER_BROKER_METADATA_NOT_EXIST:
        await broker.register()
    return answer.code


async def _must_register(broker: FakeBroker) -> bool:
    return await _poll(broker) == ControllerCode.CONTROLLER_BROKER_METADATA_NOT_EXIST


async def test_a_slave_that_runs_and_is_not_heard_registers_again(group: World) -> None:
    plane, (first, second, third) = await group.three_under(settings=ALL_THREE, **SOON)
    assert await _poll(second) == 0, "a member with heartbeats polls as usual"
    second.silent = True
    await eventually(lambda: group.notes.unheard == [{2}], what="the alarm")
    silence = snapshot_of(plane).silences[2]
    assert (silence.linked, silence.answers, silence.heard_by) == (True, True, ())
    view = member_view(record_of(plane), snapshot_of(plane), 2)
    assert view.fact().startswith("linked, not heard by any controller since 2")
    assert snapshot_of(plane).writable, "it acknowledges: all three of three do"

    registrations = second.tried.count(RequestCode.CONTROLLER_REGISTER_BROKER)
    await eventually(lambda: _must_register(second), what="the answer on which it registers")
    assert second.tried.count(RequestCode.CONTROLLER_REGISTER_BROKER) == registrations + 1
    assert [await _poll(one) for one in (first, third)] == [0, 0]
    second.silent = False
    await eventually(lambda: not snapshot_of(plane).silences and 2 in snapshot_of(plane).live, what="it to be heard")
    await eventually(lambda: group.notes.unheard[-1] == frozenset(), what="the end of the alarm")
    assert record_of(plane).master_epoch == 1
    assert record_of(plane).sync_state_set == {1, 2, 3}


async def test_a_slave_that_stays_silent_is_made_to_register_less_and_less_often(group: World) -> None:
    plane, (_, second, _) = await group.three_under(startup_timeout_seconds=0.2, **SOON)
    second.silent = True
    await eventually(lambda: 2 in snapshot_of(plane).silences, what="the silence")
    since = snapshot_of(plane).silences[2].since_unix_seconds
    for times in (1, 2, 3):
        await eventually(lambda: _must_register(second), what=f"the answer number {times}")
        assert await _poll(second) == 0, "once each time"
        await eventually(
            lambda times=times: (now := snapshot_of(plane).silences.get(2)) and now.told_to_register == times,  # type: ignore[misc]
            what="the next silence",
        )
    assert snapshot_of(plane).silences[2].since_unix_seconds == since, "a registration is no heartbeat"
    assert record_of(plane).master_epoch == 1


async def test_a_slave_that_is_dead_is_silent_and_nothing_more(group: World) -> None:
    plane, (first, second, _) = await group.three_under(**SOON)
    await second.kill()
    await first.propose_set()
    await eventually(
        lambda: (now := snapshot_of(plane).silences.get(2)) and now.answers is False, what="it to be asked about"
    )
    silence = snapshot_of(plane).silences[2]
    assert (silence.linked, silence.runs, group.notes.unheard) == (False, False, [])
    again = await second.restarted()
    await eventually(lambda: not snapshot_of(plane).silences, what="its next process to be heard")
    assert await _poll(again) == 0


async def test_the_master_is_never_made_to_register(group: World) -> None:
    """A master's registration counts as a new process, and costs an epoch."""
    plane, (first, second, third) = await group.three_under(no_successor_patience_seconds=60.0, **SOON)
    for one in (second, third):
        one.silent = True
    await eventually(lambda: set(snapshot_of(plane).silences) == {2, 3}, what="both silences")
    first.silent = True
    await first.asked_again(RequestCode.GET_BROKER_HA_STATUS, times=11, what="its own silence")
    assert await _poll(first) == 0
    assert 1 not in snapshot_of(plane).silences
    assert record_of(plane).master_epoch == 1


async def test_a_slave_that_another_plane_hears_is_left_alone(group: World) -> None:
    planes = await group.peers(2, **SOON)
    _, second, _ = await group.three()
    await eventually(lambda: set(snapshot_of(planes[0]).live) == {1, 2, 3}, what="all to be heard here")
    second.unheard_at = {planes[0].address}
    await eventually(
        lambda: (now := snapshot_of(planes[0]).silences.get(2)) and now.heard_by == (planes[1].address,),
        what="the other's word",
    )
    fact = member_view(record_of(planes[0]), snapshot_of(planes[0]), 2).fact()
    assert fact.endswith(f"but by {planes[1].address}")
    for _ in range(5):
        assert await _poll(second) == 0
    assert group.notes.unheard == []


async def test_a_new_plane_without_heartbeats_counts_no_member_that_another_plane_hears(
    group: World,
) -> None:
    """The alert takes the maximum over all planes: a plane without heartbeats yet must not count the group's members."""
    store, ports = MemoryRecordStore(), [free_port() for _ in range(2)]
    peers = tuple(f"127.0.0.1:{port}" for port in ports)

    async def start(port: int) -> ControllerPlane:
        return await group.start_plane(
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
    """Return the value that the plane's pod reports."""
    families = GroupCollector(plane, MetricsObserver(CollectorRegistry())).collect()
    samples = [sample for family in families for sample in family.samples]
    return sum(sample.value for sample in samples if sample.name == metric_names.UNHEARD_MEMBERS)


def is_found_out(plane: ControllerPlane, broker_ids: set[int], *, heard_by: str) -> bool:
    """Whether this plane knows that each member runs, and which planes hear it."""
    snapshot = plane.snapshot(KEY)
    silences = snapshot.silences if snapshot is not None else {}
    return silences.keys() == broker_ids and all(one.runs and one.heard_by == (heard_by,) for one in silences.values())
