"""A node for many groups at once: each pod becomes a scripted broker in this process, configured like a pod.

A broker's name, controllers and NameServers come only from the ConfigMap that its pod mounts. So if an operator
mixes up groups, so does the broker.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from brokergroup_operator.api import names
from brokergroup_operator.kube.client import PatchType
from brokergroup_operator.kube.errors import NotFoundError
from brokergroup_operator.kube.reflector import Reflector
from brokergroup_operator.kube.resources import CONFIG_MAPS, PERSISTENT_VOLUME_CLAIMS, PODS
from rocketmq_remoting.serialization import decode_properties
from tests.sieve.cluster import Broker
from tests.support.fake_broker import FakeGroup

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from brokergroup_operator.kube import KubernetesApi
    from brokergroup_operator.kube.client import WatchEvent

# Long enough for a loaded machine: no master may be lost here.
HEARTBEAT_SECONDS = 1.0
HEARTBEAT_TIMEOUT_MS = 60_000
Place = tuple[str, str]
# Addresses distinct from those of the process kubelet's pods and of other tests' brokers.
_hosts = (f"127.66.{number // 250}.{number % 250 + 2}" for number in itertools.count())


@dataclass(frozen=True)
class Life:
    """One pod and its broker."""

    uid: str
    properties: Mapping[str, str]
    broker: Broker
    task: asyncio.Task[None]


class StandInNode:
    """A node; `lives` are by namespace and pod name."""

    def __init__(self, api: KubernetesApi) -> None:
        self._api = api
        self._changed = asyncio.Event()
        self.lives: dict[Place, Life] = {}
        self._claims = Reflector(api, PERSISTENT_VOLUME_CLAIMS, on_change=self._wake)
        self._pods = Reflector(api, PODS, on_change=self._wake)

    def _wake(self, _: WatchEvent) -> None:
        self._changed.set()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[StandInNode]:
        """Run the node for the length of a block; at its end kill every broker."""
        tasks = [asyncio.create_task(part) for part in (self._claims.run(), self._pods.run(), self._follow())]
        try:
            yield self
            failed = [task.exception() for task in tasks if task.done() and not task.cancelled()]
            assert not failed, failed
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for life in list(self.lives.values()):
                await self._end(life)

    async def _follow(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            for claim in list(self._claims.objects.values()):
                if claim.get("status", {}).get("phase") != "Bound":
                    await self._bind(claim)
            for pod in list(self._pods.objects.values()):
                with contextlib.suppress(NotFoundError):
                    await self._look_at(pod)

    async def _bind(self, claim: dict[str, Any]) -> None:
        name, namespace = claim["metadata"]["name"], claim["metadata"]["namespace"]
        status = {"status": {"phase": "Bound"}}
        with contextlib.suppress(NotFoundError):
            await self._api.patch(
                PERSISTENT_VOLUME_CLAIMS, name, {"spec": {"volumeName": f"volume-of-{name}"}}, namespace=namespace
            )
            await self._api.patch(PERSISTENT_VOLUME_CLAIMS, name, status, namespace=namespace, subresource="status")

    async def _look_at(self, pod: dict[str, Any]) -> None:
        place = (str(pod["metadata"]["namespace"]), str(pod["metadata"]["name"]))
        life = self.lives.get(place)
        if pod["metadata"].get("deletionTimestamp"):
            if life is not None:
                await self._end(self.lives.pop(place))
            await self._report(place, "127.0.0.1", runs=False)
            await self._api.delete(PODS, place[1], namespace=place[0], grace_period_seconds=0)
        elif life is None:
            await self._begin(place, pod)

    async def _begin(self, place: Place, pod: dict[str, Any]) -> None:
        namespace, name = place
        [mounted] = [each["configMap"]["name"] for each in pod["spec"]["volumes"] if "configMap" in each]
        stored = await self._api.get(CONFIG_MAPS, mounted, namespace=namespace)
        properties = decode_properties(stored["data"][names.CONFIG_FILE].encode())
        group = FakeGroup(
            *properties["controllerAddr"].split(";"),
            cluster=properties["brokerClusterName"],
            name=properties["brokerName"],
        )
        broker = Broker(group, heartbeat_seconds=HEARTBEAT_SECONDS, host=next(_hosts))
        broker.heartbeat_timeout_ms = HEARTBEAT_TIMEOUT_MS
        await self._api.bind_pod(name, namespace=namespace, node_name="node-1")
        await self._report(place, broker.host, runs=True)
        task = asyncio.create_task(broker.start(), name=f"broker {namespace}/{name}")
        self.lives[place] = Life(str(pod["metadata"]["uid"]), properties, broker, task)

    async def _end(self, life: Life) -> None:
        life.task.cancel()
        await asyncio.gather(life.task, return_exceptions=True)
        await life.broker.kill()

    async def _report(self, place: Place, address: str, *, runs: bool) -> None:
        container = {
            "name": names.CONTAINER_BROKER,
            "state": {"running": {}} if runs else {"terminated": {"exitCode": 137}},
            "ready": runs,
            "restartCount": 0,
            "image": "",
            "imageID": "",
        }
        status = {
            "phase": "Running",
            "podIP": address,
            "conditions": [{"type": "Ready", "status": "True" if runs else "False"}],
            "containerStatuses": [container],
        }
        await self._api.patch(
            PODS,
            place[1],
            {"status": status},
            namespace=place[0],
            subresource="status",
            content_type=PatchType.MERGE,
        )
