"""A master whose pod is about to go is moved first; two planes do not get in each other's way."""

import asyncio

from brokergroup_operator.observe.observer import Observer
from brokergroup_operator.observe.timeline import Cause, FailoverTimeline, Kind, Outcome, Trigger
from brokergroup_operator.records.memory import MemoryRecordStore
from controller_core.settings import ControllerSettings
from tests.controller.conftest import KEY, StartPlane, record_of, snapshot_of
from tests.support.fake_broker import FakeGroup, eventually
from tests.support.pods_directory import PodsDirectory

STRICT = ControllerSettings(shrink_floor=True, min_in_sync_replicas=2)


class Incidents(Observer):
    """What two planes tell of a switchover."""

    def __init__(self) -> None:
        self.begun = 0
        self.ended = 0
        self.closed: list[FailoverTimeline] = []

    def master_lost(self, timeline: FailoverTimeline) -> None:
        self.begun += 1

    def master_changed(self, timeline: FailoverTimeline) -> None:
        self.ended += 1

    def failover_withdrawn(self, timeline: FailoverTimeline) -> None:
        self.ended += 1

    def incident_closed(self, timeline: FailoverTimeline) -> None:
        self.closed.append(timeline)


async def test_a_master_is_moved_off_a_pod_that_is_about_to_go(start_plane: StartPlane, group: FakeGroup) -> None:
    """CNPG #7888: the pod ended before its switchover."""
    directory = PodsDirectory(settings=STRICT)
    plane = await start_plane(directory=directory)
    group.planes = [plane.address]
    first, second, third = await group.three()
    group.journal.clear()
    directory.report_leaving(KEY, first.host, second.host)  # 2 would be the best, but goes as well
    await eventually(lambda: third.sync_state_set == {1, 2, 3}, what="3 to be master of all")
    assert group.journal[0] == "minInSyncReplicas=99 at 1"
    timeline = await eventually(lambda: snapshot_of(plane).last_switchover, what="the switchover's end")
    assert (timeline.trigger, timeline.outcome, timeline.to_broker_id) == (Trigger.REQUESTED, Outcome.COMPLETED, 3)
    assert timeline.cause is Cause.DRAIN
    assert not timeline.unclean


async def test_where_everybody_goes_the_master_stays(start_plane: StartPlane, group: FakeGroup) -> None:
    """Else the mastership would go round and round among those that are about to go."""
    directory = PodsDirectory(settings=STRICT)
    plane = await start_plane(directory=directory, drain_again_seconds=0.02)
    group.planes = [plane.address]
    brokers = await group.three()
    directory.report_leaving(KEY, *(broker.host for broker in brokers))
    await asyncio.sleep(0.3)
    assert record_of(plane).master_epoch == 1
    directory.report_leaving(KEY, brokers[0].host)
    await eventually(lambda: brokers[1].is_master or brokers[2].is_master, what="the one that stays to be master")


async def test_a_failover_prefers_those_that_stay(start_plane: StartPlane, group: FakeGroup) -> None:
    directory = PodsDirectory(settings=STRICT)
    plane = await start_plane(directory=directory)
    group.planes = [plane.address]
    first, second, third = await group.three()
    directory.report_leaving(KEY, second.host)
    await first.kill()
    await eventually(lambda: third.is_master, what="3 to be master")


async def test_two_planes_that_collide_move_it_once(start_plane: StartPlane, group: FakeGroup) -> None:
    """Their ranks keep them apart; where they do not (here nobody knows the other), the record does."""
    store = MemoryRecordStore()
    directories = [PodsDirectory(settings=STRICT), PodsDirectory(settings=STRICT)]
    told = Incidents()
    planes = [await start_plane(store, directory=directory, observer=told) for directory in directories]
    group.planes = [plane.address for plane in planes]
    first, _, _ = await group.three()
    await eventually(lambda: all(len(snapshot_of(plane).live) == 3 for plane in planes), what="both to hear all")
    for directory in directories:
        directory.report_leaving(KEY, first.host)
    await eventually(lambda: not first.is_master, what="1 to be master no more")
    await eventually(lambda: first.minimum == 2, what="its minimum to be restored")
    await eventually(
        lambda: any(one.is_master and one.sync_state_set == {1, 2, 3} for one in group.brokers.values()),
        what="all in sync again",
    )
    await eventually(lambda: {record_of(plane).master_epoch for plane in planes} == {2})
    await eventually(lambda: told.ended == told.begun, what="both to be done with it")
    await eventually(lambda: told.closed, what="the incident")
    assert [incident.outcome for incident in told.closed] == [Outcome.COMPLETED]


async def test_a_master_whose_pod_was_removed_by_force_is_moved_without_waiting_for_a_topics_copy(
    start_plane: StartPlane, group: FakeGroup
) -> None:
    """Its process ends within seconds; a failover would lose the same topic, later."""
    directory = PodsDirectory(settings=STRICT)
    plane = await start_plane(directory=directory, metadata_copy_seconds=600.0, switchover_deadline_seconds=1200.0)
    group.planes = [plane.address]
    first, *others = await group.three()
    first.topics["orders"] = 4
    directory.report_leaving(KEY, first.host, by_force=True)
    await eventually(lambda: any(one.is_master for one in others), what="another to be master")
    timeline = await eventually(lambda: snapshot_of(plane).last_switchover, what="the switchover's end")
    assert (timeline.outcome, timeline.cause) == (Outcome.COMPLETED, Cause.DRAIN)


async def test_a_drain_that_could_not_begin_is_no_incident(start_plane: StartPlane, group: FakeGroup) -> None:
    """The port is closed already, the connections are not: a Java broker at its end. The failover is the one incident."""
    directory, told = PodsDirectory(settings=STRICT), Incidents()
    plane = await start_plane(directory=directory, observer=told, drain_again_seconds=0.02)
    group.planes = [plane.address]
    first, *_ = await group.three()
    await first.close_port()
    directory.report_leaving(KEY, first.host, by_force=True)
    await eventually(lambda: told.begun >= 3, what="some tries")
    await first.kill()
    await eventually(lambda: record_of(plane).master_epoch == 2, what="the failover")
    await eventually(lambda: told.closed, what="the incident")
    assert [(one.kind, one.outcome) for one in told.closed] == [(Kind.FAILOVER, Outcome.COMPLETED)]


async def test_a_drain_whose_master_ends_before_it_is_level_is_no_incident_of_its_own(
    start_plane: StartPlane, group: FakeGroup
) -> None:
    """A kubelet leaves the broker of a pod that was deleted by force some seconds, and a move may take longer."""
    directory, told = PodsDirectory(settings=STRICT), Incidents()
    plane = await start_plane(directory=directory, observer=told)
    group.planes = [plane.address]
    first, *_ = await group.three()
    first.links_behind = 100
    directory.report_leaving(KEY, first.host, by_force=True)
    await eventually(lambda: first.minimum == 99, what="the master to be quiet")
    await first.kill()
    await eventually(lambda: record_of(plane).master_epoch == 2, what="the failover")
    await eventually(lambda: told.closed, what="the incident")
    await eventually(lambda: record_of(plane).change is None, what="the end of the change")
    assert [(one.kind, one.outcome) for one in told.closed] == [(Kind.FAILOVER, Outcome.COMPLETED)]
