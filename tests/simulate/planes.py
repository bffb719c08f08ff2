"""The product's controller planes, each a process with its own API client, restarted when it dies."""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING

from brokergroup_operator.controller.change.fencing import KubernetesFencer
from brokergroup_operator.controller.directory.kubernetes_directory import KubernetesDirectory
from brokergroup_operator.controller.plane import ControllerPlane
from brokergroup_operator.controller.settings import PlaneSettings
from brokergroup_operator.observe.group_view import GroupViewError
from brokergroup_operator.observe.observer import Observer
from brokergroup_operator.records.kubernetes import KubernetesRecordStore
from brokergroup_operator.records.store import GroupKey, RecordStoreError
from tests.simulate.api import ApiTrouble, PlaneApi
from tests.simulate.kubelet import GROUP, NAMESPACE

if TYPE_CHECKING:
    from brokergroup_operator.observe.timeline import FailoverTimeline
    from tests.simulate.world import World

KEY = GroupKey(NAMESPACE, GROUP)
PORT = 9878
TICK_SECONDS = 0.1
RESTART_SECONDS = 1.0


class Told(Observer):
    """The incidents that a plane reported."""

    def __init__(self, world: World, node: str) -> None:
        self._world, self._node = world, node

    def incident_closed(self, timeline: FailoverTimeline) -> None:
        self._world.oracle.incident(self._node, timeline)


class Plane:
    """One of the three, over all its processes."""

    def __init__(self, world: World, number: int) -> None:
        self.node = f"plane-{number}"
        self.host = f"10.0.0.{number + 1}"
        self.trouble = ApiTrouble()
        self._world = world
        self._lives = itertools.count(1)
        self.process = ""
        self.plane: ControllerPlane | None = None

    @property
    def address(self) -> str:
        return f"{self.host}:{PORT}"

    def start(self) -> None:
        self.process = f"{self.node}/{next(self._lives)}"
        self._world.story.tell(f"{self.process} starts")
        self._world.loop.spawn(self.process, self._run())

    def kill(self) -> None:
        if self.process:
            self._world.story.tell(f"{self.process} is killed")
            self._world.loop.kill(self.process)
            self.process, self.plane = "", None
            self._world.loop.spawn("kubelet", self._start_again())

    async def _start_again(self) -> None:
        await asyncio.sleep(RESTART_SECONDS)
        self.start()

    async def _run(self) -> None:
        api = PlaneApi(self._world.server, self._world, self.node, self.trouble)
        plane = ControllerPlane(
            store=KubernetesRecordStore(api, namespace=NAMESPACE),
            directory=KubernetesDirectory(api, namespace=NAMESPACE),
            settings=PlaneSettings(
                listen_host=self.host,
                listen_port=PORT,
                peer_addresses=tuple(self._world.plane_addresses),
                tick_seconds=TICK_SECONDS,
                # The recovery watch only reads, and its requests would shift all draws of the recorded seeds.
                recovery_watch_seconds=0.0,
            ),
            fencer=KubernetesFencer(api),
            observer=Told(self._world, self.node),
        )
        await plane.start()
        self.plane = plane
        await asyncio.Event().wait()

    def switch_master(self, to: int | None) -> None:
        """Request a switchover as a person does; the plane grants or refuses it."""
        if self.plane is not None:
            self._world.loop.spawn(self.process, self._switch(self.plane, to))

    async def _switch(self, plane: ControllerPlane, to: int | None) -> None:
        self._world.story.tell(f"{self.node} is asked for a switchover to {to or 'anybody'}")
        try:
            result = await plane.switch_master(KEY, to_broker_id=to)
        except (GroupViewError, RecordStoreError) as error:
            self._world.story.tell(f"{self.node}: no switchover: {error}")
        else:
            self._world.story.tell(f"{self.node}: switched over, {result.from_broker_id} to {result.to_broker_id}")

    async def reserve(self, broker_id: int) -> None:
        """Reserve an id as the reconcile plane does before it creates a pod."""
        assert self.plane is not None
        await self.plane.reserve_broker_id(KEY, f"{GROUP}-{broker_id}", broker_id=broker_id)
