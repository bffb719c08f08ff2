"""The mastership moves before the master's pod goes, also behind a Service; waking a group is reported as one planned change."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from brokergroup_operator.controller.directory.pods import PodPlace
from brokergroup_operator.observe.timeline import Cause, Kind, Outcome, Trigger
from rocketmq_remoting.codes import RequestCode
from tests.controller.conftest import QUICK, group_of, record_of, snapshot_of
from tests.controller.world import KEY, LOOSE, STRICT, Fencer, MuteStore, World
from tests.support.fake_broker import FakeBroker, FakeGroup, eventually
from tests.support.places import free_port
from tests.support.pods_directory import PodsDirectory

if TYPE_CHECKING:
    from brokergroup_operator.controller.plane import ControllerPlane


async def test_a_master_is_moved_off_a_pod_that_is_about_to_go(group: World) -> None:
    """CNPG #7888: the pod ended before its switchover."""
    plane, (first, second, third) = await group.three_under()
    group.journal.clear()
    group.directory.report_leaving(
        KEY, first.host, second.host
    )  # 2 would be the best candidate, but its pod is going too
    await eventually(lambda: third.sync_state_set == {1, 2, 3}, what="3 to be master of all")
    assert group.journal[0] == "minInSyncReplicas=99 at 1"
    timeline = await eventually(lambda: snapshot_of(plane).last_switchover, what="the switchover's end")
    assert (timeline.trigger, timeline.outcome, timeline.to_broker_id) == (Trigger.REQUESTED, Outcome.COMPLETED, 3)
    assert timeline.cause is Cause.DRAIN
    assert not timeline.unclean


async def test_where_everybody_goes_the_master_stays(group: World) -> None:
    """Otherwise the mastership would circle among the pods that are about to go."""
    plane, brokers = await group.three_under(drain_again_seconds=0.02)
    group.directory.report_leaving(KEY, *(broker.host for broker in brokers))
    await asyncio.sleep(0.3)
    assert record_of(plane).master_epoch == 1
    group.directory.report_leaving(KEY, brokers[0].host)
    await eventually(lambda: brokers[1].is_master or brokers[2].is_master, what="the one that stays to be master")


async def test_a_failover_prefers_those_that_stay(group: World) -> None:
    _plane, (first, second, third) = await group.three_under()
    group.directory.report_leaving(KEY, second.host)
    await first.kill()
    await eventually(lambda: third.is_master, what="3 to be master")


async def test_two_planes_that_collide_move_it_once(group: World) -> None:
    """Planes take turns by rank. Here neither plane knows the other, so the conflict at the record decides."""
    planes = await group.several(2, directory=PodsDirectory(settings=STRICT))
    first, _, _ = await group.three()
    await eventually(lambda: all(len(snapshot_of(plane).live) == 3 for plane in planes), what="both to hear all")
    group.directory.report_leaving(KEY, first.host)
    await eventually(lambda: not first.is_master, what="1 to be master no more")
    await eventually(lambda: first.minimum == 2, what="its minimum to be restored")
    await eventually(
        lambda: any(one.is_master and one.sync_state_set == {1, 2, 3} for one in group.brokers.values()),
        what="all in sync again",
    )
    await eventually(lambda: {record_of(plane).master_epoch for plane in planes} == {2})
    told = group.notes
    await eventually(lambda: len(told.changed) + len(told.withdrawn) == len(told.lost), what="both to be done with it")
    assert (await group.incident()).outcome is Outcome.COMPLETED


async def test_a_master_whose_pod_was_removed_by_force_is_moved_without_waiting_for_a_topics_copy(group: World) -> None:
    """The process ends within seconds; a failover would lose the same topic, only later."""
    plane, (first, *others) = await group.three_under(metadata_copy_seconds=600.0, switchover_deadline_seconds=1200.0)
    first.topics["orders"] = 4
    group.directory.report_leaving(KEY, first.host, by_force=True)
    await eventually(lambda: any(one.is_master for one in others), what="another to be master")
    timeline = await eventually(lambda: snapshot_of(plane).last_switchover, what="the switchover's end")
    assert (timeline.outcome, timeline.cause) == (Outcome.COMPLETED, Cause.DRAIN)


async def test_a_drain_that_could_not_begin_is_no_incident(group: World) -> None:
    """The port is closed, the connections are still open: a Java broker shutting down. The failover is the only incident."""
    plane, (first, *_) = await group.three_under(drain_again_seconds=0.02)
    await first.close_port()
    group.directory.report_leaving(KEY, first.host, by_force=True)
    await eventually(lambda: len(group.notes.lost) >= 3, what="some tries")
    await first.kill()
    await eventually(lambda: record_of(plane).master_epoch == 2, what="the failover")
    incident = await group.incident()
    assert (incident.kind, incident.outcome) == (Kind.FAILOVER, Outcome.COMPLETED)


async def test_a_drain_whose_master_ends_before_it_is_level_is_no_incident_of_its_own(group: World) -> None:
    """After a forced deletion the kubelet gives the broker some seconds, and a switchover may take longer."""
    plane, (first, *_) = await group.three_under()
    first.links_behind = 100
    group.directory.report_leaving(KEY, first.host, by_force=True)
    await eventually(lambda: first.minimum == 99, what="the master to be quiet")
    await first.kill()
    await eventually(lambda: record_of(plane).master_epoch == 2, what="the failover")
    await eventually(lambda: group.notes.closed, what="the incident")
    await eventually(lambda: record_of(plane).change is None, what="the end of the change")
    incident = await group.incident()
    assert (incident.kind, incident.outcome) == (Kind.FAILOVER, Outcome.COMPLETED)


# ---- A master behind a Service whose pod was deleted by force: the Service no longer routes to its process.

_hosts = (f"127.150.9.{number}" for number in itertools.count(2))


class ServedDirectory(PodsDirectory):
    """A directory of groups behind Services; the test sets each Service's pod, and the pods deleted by force."""

    def __init__(self) -> None:
        super().__init__(settings=STRICT)
        self.places: dict[str, PodPlace] = {}
        self.removed: dict[str, PodPlace] = {}
        self.template = replace(self.template, translated=True, places=self.places, removed_places=self.removed)

    def remove_by_force(self, broker: ServedBroker) -> None:
        """As ``kubectl delete pod --force``: the pod is gone from the API, its process still runs."""
        self.removed[broker.pod] = self.places.pop(broker.pod)
        self.report_leaving(KEY, broker.host, by_force=True)

    def start_successor(self, broker: ServedBroker, ip: str) -> None:
        """The next pod of that name takes over the address."""
        self.places[broker.pod] = PodPlace(ip=ip, address=broker.address)
        self.report_leaving(KEY)


class ServedBroker(FakeBroker):
    """A broker behind a Service; the test ends the Service's relay when the pod is gone."""

    def __init__(self, group: FakeGroup, **changes: Any) -> None:
        before: ServedBroker | None = changes.pop("known_by", None)
        super().__init__(group, port=before.port if before else free_port(), **changes)
        self.service_host: str = before.service_host if before else next(_hosts)
        self.relay: asyncio.Server | None = None
        self.relayed: set[asyncio.StreamWriter] = set()

    @property
    def pod(self) -> str:
        """The pod's name, which its successor has too."""
        return f"pod-{self.service_host}"

    @property
    def address(self) -> str:
        """The address that the broker registers."""
        return f"{self.service_host}:{self.port}"

    async def start(self) -> None:
        self.relay = await asyncio.start_server(self._forward, self.service_host, self.port)
        await super().start()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.relayed.add(writer)
        try:
            up_reader, up_writer = await asyncio.open_connection(self.host, self.port)
        except OSError:
            writer.close()
            return
        self.relayed.add(up_writer)
        await asyncio.gather(_pump(reader, up_writer), _pump(up_reader, writer))

    async def lose_endpoint(self) -> None:
        """Leave the Service without an endpoint: like kube-proxy it refuses new connections and cuts the open ones."""
        assert self.relay is not None
        self.relay.close()
        for writer in self.relayed:
            writer.transport.abort()

    async def kill(self) -> None:
        await self.lose_endpoint()
        await super().kill()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()


class Served:
    """Three members behind Services, and their plane; the first is master."""

    def __init__(self, group: World, plane: ControllerPlane, directory: ServedDirectory) -> None:
        self.group, self.plane, self.directory = group, plane, directory

    async def three(self) -> list[ServedBroker]:
        brokers = [await self.start() for _ in range(3)]
        await eventually(lambda: brokers[0].sync_state_set == {1, 2, 3}, what="three members in sync")
        await eventually(lambda: len(snapshot_of(self.plane).live) == 3, what="all to be heard")
        return brokers

    async def start(self, **changes: Any) -> ServedBroker:
        broker = ServedBroker(self.group, **changes)
        self.directory.places[broker.pod] = PodPlace(ip=broker.host, address=broker.address)
        await broker.start()
        return broker

    async def moved(self) -> None:
        """Wait until another member is master."""
        others = [self.group.brokers[one] for one in (2, 3)]
        await eventually(lambda: any(one.is_master for one in others), what="another to be master")


@pytest.fixture
async def fencer() -> Fencer:
    """Kills nothing."""
    return Fencer()


@pytest.fixture
async def served(group: World, fencer: Fencer) -> Served:
    directory = ServedDirectory()
    return Served(group, await group.plane(directory=directory, fencer=fencer), directory)


async def test_a_master_whose_pod_was_removed_by_force_is_moved_by_calls_to_its_pods_own_address(
    group: World, served: Served
) -> None:
    """The process lives for a second or two longer, while its Service refuses connections."""
    first, *_ = await served.three()
    group.journal.clear()
    await first.lose_endpoint()
    served.directory.remove_by_force(first)
    await served.moved()
    await eventually(lambda: not first.is_master, what="the old process to have heard of it")
    assert group.journal[0] == "minInSyncReplicas=99 at 1"
    timeline = await eventually(lambda: snapshot_of(served.plane).last_switchover, what="the switchover's end")
    assert (timeline.outcome, timeline.cause) == (Outcome.COMPLETED, Cause.DRAIN)


async def test_a_removed_master_that_ends_before_it_was_moved_is_replaced_without_a_fence(
    served: Served, fencer: Fencer
) -> None:
    """Its successor has started: the Service proves nothing about the old process, whose own address refuses connections."""
    directory, (first, *_) = served.directory, await served.three()
    await first.lose_endpoint()
    directory.removed[first.pod] = directory.places.pop(first.pod)
    directory.start_successor(first, "127.64.250.250")
    await first.kill()
    await served.moved()
    timeline = await eventually(lambda: snapshot_of(served.plane).last_failover, what="the failover's end")
    assert (timeline.trigger, timeline.unfenced) == (Trigger.CONNECTION_REFUSED, False)
    assert fencer.asked == []


async def test_a_removed_master_that_is_silent_and_may_wake_is_fenced_first(served: Served, fencer: Fencer) -> None:
    """The kernel still accepts connections at the pod's own address: the process is not dead, whatever the Service answers."""
    first, *others = await served.three()
    fencer.open.clear()
    first.freeze()
    await first.lose_endpoint()
    served.directory.remove_by_force(first)
    await eventually(lambda: fencer.asked, what="the fence")
    assert fencer.asked == [f"{first.host}:{first.port}"]
    assert record_of(served.plane).granted_master_id == 1
    assert not any(one.is_master for one in others)
    fencer.open.set()
    await served.moved()


async def test_the_process_of_the_next_pod_is_called_at_the_service(group: World, served: Served) -> None:
    plane, directory = served.plane, served.directory
    first, *_ = await served.three()
    await first.lose_endpoint()
    directory.remove_by_force(first)
    await eventually(lambda: snapshot_of(plane).last_switchover, what="the switchover's end")
    await first.kill()
    again = await served.start(broker_id=1, epoch_file=first.epoch_file, known_by=first)
    directory.report_leaving(KEY)
    assert again.address == first.address
    assert again.host != first.host
    master = group.master()
    await eventually(lambda: 1 in master.linked, what="the next process to be linked")
    known = group_of(plane)
    await eventually(lambda: known.master_change is None and record_of(plane).change is None, what="the change's end")
    await plane.set_broker_config(KEY, 1, {"flushDelayOffsetInterval": "7000"})
    assert again.config == {"flushDelayOffsetInterval": "7000"}
    assert first.pod in directory.removed, "the old pod's address is no other pod's yet"


# ---- A woken group reports one planned change of master; a master that was not hibernated is lost like any other.


async def sees(group: World, plane: ControllerPlane, *, hibernated: bool) -> None:
    """Change the group's spec, and wait until the plane has adopted it."""
    group.directory.wish(deleting=hibernated, hibernated=hibernated)
    await eventually(lambda: group_of(plane).binding.hibernated is hibernated, what="the plane to know it")


async def woken(group: World, store: MuteStore | None = None) -> tuple[ControllerPlane, list[FakeBroker]]:
    """Hibernate a group, stop all its brokers, the master last, and wait until the plane knows that it was woken."""
    plane, brokers = await group.three_under(store, settings=LOOSE)
    await sees(group, plane, hibernated=True)
    for each in reversed(brokers):
        await each.kill()
    await eventually(lambda: not snapshot_of(plane).live, what="all to be down")
    await sees(group, plane, hibernated=False)
    return plane, brokers


async def was_woken(group: World) -> None:
    """Check that the one incident is told as waking."""
    told = await group.incident()
    assert (told.trigger, told.cause, told.outcome) == (Trigger.WOKEN, Cause.HIBERNATION, Outcome.COMPLETED)


async def test_a_woken_master_that_is_heard_before_its_registration_was_not_lost(group: World) -> None:
    """One of several planes gets the registration; the others get heartbeats before they read the record."""
    plane, (first, *_) = await woken(group)
    again = FakeBroker(group, broker_id=1, epoch_file=first.epoch_file, max_offset=first.max_offset)
    await again.heartbeat()
    await eventually(lambda: 1 in snapshot_of(plane).live, what="the woken process to be heard")
    for _ in range(10):
        await again.heartbeat()
        await asyncio.sleep(QUICK.tick_seconds)
    await again.start()
    await was_woken(group)


async def test_a_woken_masters_own_election_that_the_store_did_not_answer_is_told_as_waking(group: World) -> None:
    """The write arrived without an answer: only the plan in the record says how the change ends."""
    store = MuteStore()
    _, (first, *_) = await woken(group, store)
    store.mute = True
    again = FakeBroker(group, broker_id=1, epoch_file=first.epoch_file, max_offset=first.max_offset)
    await again.start()
    await was_woken(group)
    assert store.unanswered == 1


async def test_nobody_is_elected_before_a_woken_member_has_reported_its_log(group: World) -> None:
    """Otherwise the first registration starts an election without a candidate, and the group reports two changes of master."""
    plane, (first, slave, _) = await woken(group)
    second = FakeBroker(group, broker_id=2, epoch_file=first.epoch_file, max_offset=first.max_offset)
    await second.ask(RequestCode.CONTROLLER_REGISTER_BROKER, brokerId=2, brokerAddress=slave.address)
    await eventually(lambda: 2 in snapshot_of(plane).live, what="the woken slave to be heard")
    for _ in range(10):
        await asyncio.sleep(QUICK.tick_seconds)
    assert record_of(plane).master_epoch == 1
    await second.heartbeat()
    await eventually(lambda: record_of(plane).master_broker_id == 2, what="the woken slave to be elected")
    await second.kill()
    assert [one.outcome for one in group.notes.closed if one.outcome is Outcome.NO_ELIGIBLE_REPLICA] == []


async def test_a_master_that_was_not_put_to_sleep_after_all_is_lost_like_any_other(group: World) -> None:
    plane, (first, *_) = await group.three_under(settings=LOOSE)
    await sees(group, plane, hibernated=True)
    await sees(group, plane, hibernated=False)
    await eventually(lambda: not group_of(plane).waking.wakes, what="the master to be heard for long enough")
    await first.kill()
    incident = await group.incident()
    assert incident.trigger is not Trigger.WOKEN
    assert incident.cause is not Cause.HIBERNATION
