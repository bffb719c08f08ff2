"""A master that is known by a Service, and whose pod was removed by force: the Service leads to its process no more."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from brokergroup_operator.controller.change.fencing import FenceOutcome
from brokergroup_operator.controller.directory.group_directory import GroupBinding, PodPlace
from brokergroup_operator.observe.timeline import Cause, Outcome, Trigger
from controller_core.settings import ControllerSettings
from tests.controller.conftest import KEY, StartPlane, group_of, record_of, snapshot_of
from tests.support.fake_broker import FakeBroker, FakeGroup, eventually
from tests.support.places import free_port
from tests.support.pods_directory import PodsDirectory

if TYPE_CHECKING:
    from brokergroup_operator.controller.plane import ControllerPlane

STRICT = ControllerSettings(shrink_floor=True, min_in_sync_replicas=2)
_hosts = (f"127.150.9.{number}" for number in itertools.count(2))


class Translating(PodsDirectory):
    """Its groups are known by Services; a test says which pods these lead to, and which were removed by force."""

    def __init__(self) -> None:
        super().__init__(settings=STRICT)
        self.places: dict[str, PodPlace] = {}
        self.removed: dict[str, PodPlace] = {}
        self.template = replace(self.template, translated=True, places=self.places, removed_places=self.removed)

    def remove_by_force(self, broker: ServedBroker) -> None:
        """As ``kubectl delete pod --force``: the pod is gone from the API, its process is not."""
        self.removed[broker.pod] = self.places.pop(broker.pod)
        self.report_leaving(KEY, broker.host, by_force=True)

    def start_successor(self, broker: ServedBroker, ip: str) -> None:
        """The next pod of that name has its address."""
        self.places[broker.pod] = PodPlace(ip=ip, address=broker.address)
        self.report_leaving(KEY)


class ServedBroker(FakeBroker):
    """Known by a Service, whose relay a test ends when the pod is gone."""

    def __init__(self, group: FakeGroup, **changes: Any) -> None:
        before: ServedBroker | None = changes.pop("known_by", None)
        super().__init__(group, port=before.port if before else free_port(), **changes)
        self.service_host: str = before.service_host if before else next(_hosts)
        self.relay: asyncio.Server | None = None
        self.relayed: set[asyncio.StreamWriter] = set()

    @property
    def pod(self) -> str:
        """The name stays, whichever pod has it."""
        return f"pod-{self.service_host}"

    @property
    def address(self) -> str:
        """Where it says that it is."""
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
        """The Service has no endpoint: it refuses connections, as kube-proxy does, and those through it are cut."""
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


class Waiting:
    """A fencer that notes at which addresses it is asked for, and confirms when a test says so."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.ended = asyncio.Event()

    async def fence(
        self,
        binding: GroupBinding,
        broker_id: int,
        address: str,
        *,
        deadline_seconds: float,
    ) -> FenceOutcome:
        self.asked.append(address)
        await self.ended.wait()
        return FenceOutcome(confirmed=True, how="a test says so")


class Served:
    """Three members behind Services, and their plane; the first is master."""

    def __init__(self, group: FakeGroup, directory: Translating, plane: ControllerPlane) -> None:
        self.group, self.directory, self.plane = group, directory, plane
        group.planes = [plane.address]

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


async def test_a_master_whose_pod_was_removed_by_force_is_moved_by_calls_to_its_pods_own_address(
    start_plane: StartPlane, group: FakeGroup
) -> None:
    """Its process lives for a second or two, and its Service refuses connections."""
    directory = Translating()
    plane = await start_plane(directory=directory)
    first, *others = await Served(group, directory, plane).three()
    group.journal.clear()
    await first.lose_endpoint()
    directory.remove_by_force(first)
    await eventually(lambda: any(one.is_master for one in others), what="another to be master")
    await eventually(lambda: not first.is_master, what="the old process to have heard of it")
    assert group.journal[0] == "minInSyncReplicas=99 at 1"
    timeline = await eventually(lambda: snapshot_of(plane).last_switchover, what="the switchover's end")
    assert (timeline.outcome, timeline.cause) == (Outcome.COMPLETED, Cause.DRAIN)


async def test_a_removed_master_that_ends_before_it_was_moved_is_replaced_without_a_fence(
    start_plane: StartPlane, group: FakeGroup
) -> None:
    """Its successor has begun: the Service says nothing of the old process, and its own address refuses."""
    directory, fencer = Translating(), Waiting()
    plane = await start_plane(directory=directory, fencer=fencer)
    first, *others = await Served(group, directory, plane).three()
    await first.lose_endpoint()
    directory.removed[first.pod] = directory.places.pop(first.pod)
    directory.start_successor(first, "127.64.250.250")
    await first.kill()
    await eventually(lambda: any(one.is_master for one in others), what="another to be master")
    timeline = await eventually(lambda: snapshot_of(plane).last_failover, what="the failover's end")
    assert (timeline.trigger, timeline.unfenced) == (Trigger.CONNECTION_REFUSED, False)
    assert fencer.asked == []


async def test_a_removed_master_that_is_silent_and_may_wake_is_fenced_first(
    start_plane: StartPlane, group: FakeGroup
) -> None:
    """Its kernel takes connections at the pod's own address: that is no death, whatever the Service says."""
    directory, fencer = Translating(), Waiting()
    plane = await start_plane(directory=directory, fencer=fencer)
    first, *others = await Served(group, directory, plane).three()
    first.freeze()
    await first.lose_endpoint()
    directory.remove_by_force(first)
    await eventually(lambda: fencer.asked, what="the fence")
    assert fencer.asked == [f"{first.host}:{first.port}"]
    assert record_of(plane).granted_master_id == 1
    assert not any(one.is_master for one in others)
    fencer.ended.set()
    await eventually(lambda: any(one.is_master for one in others), what="another to be master")


async def test_the_process_of_the_next_pod_is_called_at_the_service(start_plane: StartPlane, group: FakeGroup) -> None:
    directory = Translating()
    plane = await start_plane(directory=directory)
    served = Served(group, directory, plane)
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
