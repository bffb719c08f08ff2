"""Nodes that restart pods: a pod runs a scripted broker, and a deleted pod is killed no sooner than by a real kubelet.

A deletion without grace still leaves 2 s between SIGTERM and SIGKILL (measured on real nodes): a running broker exits by
itself in that time, a stopped one is killed at its end. A removed pod returns on its disk at another address. A container that
ended is restarted in its pod. A fence's finalizer that is left over is removed after a while, as by the reconcile plane.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from typing import TYPE_CHECKING, Any

from brokergroup_operator.api import names
from brokergroup_operator.kube.client import PatchType
from brokergroup_operator.kube.errors import ApiError
from brokergroup_operator.kube.reflector import Reflector
from brokergroup_operator.kube.resources import PODS
from tests.simulate.broker import Broker
from tests.simulate.log import Disk

if TYPE_CHECKING:
    from brokergroup_operator.kube.client import WatchEvent
    from tests.simulate.world import World
    from tests.support.memory_api import MemoryApi

NAMESPACE, GROUP = "shop", "bn"
LEAST_GRACE_SECONDS = 2.0
DRAIN_GRACE_SECONDS = 30
NOTICE_SECONDS = 0.1
RESTART_SECONDS = 1.0
AGAIN_SECONDS = 0.5
LEFT_FINALIZER_SECONDS = 3.0


class Pod:
    """One pod; `process` is its broker's process while one runs."""

    def __init__(self, name: str, uid: str, host: str) -> None:
        self.name, self.uid, self.host = name, uid, host
        self.process = ""
        self.broker: Broker | None = None
        # Being deleted; and its last process has ended.
        self.leaves = self.is_over = False
        self.restarts = 0


class Kubelet:
    """All nodes. `run` never returns; `pods` are by name."""

    def __init__(self, world: World, api: MemoryApi, minimum: int) -> None:
        self._world, self._api, self._minimum = world, api, minimum
        self._lives = itertools.count(1)
        self.disks: dict[str, Disk] = {}
        self.pods: dict[str, Pod] = {}
        self.wanted: list[str] = []
        self._reflector = Reflector(api, PODS, namespace=NAMESPACE, on_change=self._on_change)
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        self._spawn(self._reflector.run())
        await asyncio.Event().wait()

    def want(self, broker_id: int) -> None:
        """Create a pod and keep it running."""
        name = f"{GROUP}-{broker_id}"
        self.wanted.append(name)
        self.disks[name] = Disk(minimum=self._minimum)
        self._spawn(self._create(name, broker_id))

    def pod_of(self, node: str) -> Pod | None:
        return self.pods.get(node)

    def node_at(self, host: str) -> str | None:
        return next((pod.name for pod in self.pods.values() if pod.host == host), None)

    def running(self) -> list[Broker]:
        return [pod.broker for pod in self.pods.values() if pod.broker is not None]

    def kill_process(self, name: str) -> None:
        """End the broker as by SIGKILL: the container ends and is restarted."""
        pod = self.pods.get(name)
        if pod is not None and pod.process:
            self._world.story.tell(f"{name} is killed")
            if pod.leaves:
                self._spawn(self._finished(pod))
            else:
                self._end_process(pod)
                self._spawn(self._start_again(pod))

    async def drain(self, name: str) -> None:
        """Delete the pod with its grace period, as kubectl drain does."""
        with contextlib.suppress(ApiError):
            await self._api.delete(PODS, name, namespace=NAMESPACE, grace_period_seconds=DRAIN_GRACE_SECONDS)

    # ---- the life of a pod

    def _spawn(self, work: Any) -> None:
        task = self._world.loop.spawn("kubelet", work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _on_change(self, event: WatchEvent) -> None:
        obj = event.object
        name, uid = obj["metadata"]["name"], obj["metadata"]["uid"]
        pod = self.pods.get(name)
        if event.type == "DELETED":
            if pod is not None and pod.uid == uid:
                self._end_process(pod)
                del self.pods[name]
                self._world.loop.silent_hosts.add(pod.host)
            if name in self.wanted:
                self._spawn(self._create(name, int(name.rpartition("-")[2]), after_seconds=AGAIN_SECONDS))
        elif pod is None or pod.uid != uid:
            self.pods[name] = pod = Pod(name, uid, self._next_host())
            self._spawn(self._start(pod))
        elif "deletionTimestamp" in obj["metadata"] and not pod.leaves:
            pod.leaves = True
            self._spawn(self._stop(pod, obj["metadata"].get("deletionGracePeriodSeconds") or 0))
        elif pod.leaves and obj["metadata"].get("deletionGracePeriodSeconds") == 0 and pod.process:
            self._spawn(self._kill_after(pod, LEAST_GRACE_SECONDS))

    def _next_host(self) -> str:
        life = next(self._lives)
        return f"10.1.{life // 250}.{life % 250 + 1}"

    async def _create(self, name: str, broker_id: int, *, after_seconds: float = 0.0) -> None:
        await asyncio.sleep(after_seconds)
        labels = {names.LABEL_BROKER_GROUP: GROUP, names.LABEL_BROKER_ID: str(broker_id)}
        pod = {
            "metadata": {"name": name, "namespace": NAMESPACE, "labels": labels},
            "spec": {
                "nodeName": f"node-of-{name}",
                "containers": [{"name": names.CONTAINER_BROKER, "image": "broker"}],
            },
        }
        with contextlib.suppress(ApiError):
            await self._api.create(PODS, pod)

    async def _start(self, pod: Pod) -> None:
        await self._report(pod, "running")
        self._start_process(pod)

    def _start_process(self, pod: Pod) -> None:
        life = next(self._lives)
        pod.process = f"{pod.name}/{life}"
        self._world.story.tell(f"{pod.process} starts at {pod.host}")
        pod.broker = Broker(self._world, pod.name, self.disks[pod.name], pod.host)
        self._world.loop.spawn(pod.process, pod.broker.run())

    def _end_process(self, pod: Pod) -> None:
        if pod.process:
            self._world.note_trouble(pod.name)
            self._world.loop.kill(pod.process)
        pod.process, pod.broker = "", None

    async def _start_again(self, pod: Pod) -> None:
        await asyncio.sleep(NOTICE_SECONDS)
        await self._report(pod, "terminated")
        await asyncio.sleep(RESTART_SECONDS)
        if not pod.leaves and self.pods.get(pod.name) is pod:
            pod.restarts += 1
            await self._report(pod, "running")
            self._start_process(pod)

    async def _stop(self, pod: Pod, grace_seconds: float) -> None:
        """SIGTERM, then SIGKILL at the end of the grace period. A running broker needs a moment to close its files."""
        self._world.story.tell(f"{pod.name} is told to end within {grace_seconds} s")
        self._spawn(self._kill_after(pod, max(grace_seconds, LEAST_GRACE_SECONDS)))
        if grace_seconds:
            # A preStop of ours waits for the hand-over of a master.
            ends_at = self._world.loop.time() + grace_seconds / 2
            while pod.broker is not None and pod.broker.is_master and self._world.loop.time() < ends_at:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        await asyncio.sleep(self._world.draw(0.2, 1.5))
        # A pod whose process was dead already goes too.
        if not pod.process or not self._world.loop.is_frozen(pod.process):
            await self._finished(pod)

    async def _kill_after(self, pod: Pod, seconds: float) -> None:
        await asyncio.sleep(seconds)
        if pod.process:
            await self._finished(pod)

    async def _finished(self, pod: Pod) -> None:
        if pod.is_over:
            return
        pod.is_over = True
        self._world.story.tell(f"{pod.process or pod.name} ends")
        self._end_process(pod)
        await asyncio.sleep(NOTICE_SECONDS)
        await self._report(pod, "terminated")
        with contextlib.suppress(ApiError):
            await self._api.delete(PODS, pod.name, namespace=NAMESPACE, grace_period_seconds=0, uid=pod.uid)
        await asyncio.sleep(LEFT_FINALIZER_SECONDS)
        with contextlib.suppress(ApiError):
            patch = {"metadata": {"finalizers": [], "uid": pod.uid}}
            await self._api.patch(PODS, pod.name, patch, namespace=NAMESPACE, content_type=PatchType.MERGE)

    async def _report(self, pod: Pod, state: str) -> None:
        found: dict[str, Any] = {"running": {}} if state == "running" else {"terminated": {"exitCode": 137}}
        container = {
            "name": names.CONTAINER_BROKER,
            "state": found,
            "ready": state == "running",
            "restartCount": pod.restarts,
            "image": "",
            "imageID": "",
        }
        status = {"phase": "Running", "podIP": pod.host, "hostIP": pod.host, "containerStatuses": [container]}
        with contextlib.suppress(ApiError):
            await self._api.patch(
                PODS,
                pod.name,
                {"status": status},
                namespace=NAMESPACE,
                subresource="status",
                content_type=PatchType.MERGE,
            )
