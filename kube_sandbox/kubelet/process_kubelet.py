"""One node of a Kubernetes API whose pods are local processes: puts the parts together.

One watch of all pods drives everything. A pod without a node goes to the scheduler, a pod of ours to its worker (one per uid, so a
later pod of the same name is another one). The kubelet may be stopped and started at any moment: it kills what an earlier one left
running before it starts anything.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import structlog

from kube_sandbox.client import PODS, Reflector

from .container import BackOffSettings
from .files import DataFolders, NoSuchLogError, lock_folder, newest_log, read_log, unique_name, write_pods_file
from .network import PodNetworkError
from .node import ClaimBinder, NodeRegistration, Scheduler, default_labels
from .pod_worker import NodeParts, PodWorker
from .process import kill_leftovers
from .status import EventRecorder

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from kube_sandbox.client import JsonObject, KubeClient, WatchEvent

    from .environment import ImageCatalogue
    from .network import PodNetwork

log = structlog.get_logger(__name__)

# The least time from SIGTERM to SIGKILL (minimumGracePeriodInSeconds of kubernetes/pkg/kubelet/kuberuntime).
MINIMUM_GRACE_SECONDS = 2.0
# How long a stop waits for the pods beyond their grace, and then for their workers.
STOP_SECONDS = 10.0


class ProcessKubelet:
    """``start()`` registers the node and begins to run pods; ``stop()`` ends every process it started."""

    def __init__(
        self,
        api: KubeClient,
        *,
        node_name: str,
        data_dir: Path,
        network: PodNetwork,
        images: ImageCatalogue,
        back_off: BackOffSettings | None = None,
        minimum_grace_seconds: float = MINIMUM_GRACE_SECONDS,
    ) -> None:
        self._folders = DataFolders(data_dir.resolve())
        self._network = network
        node_labels = default_labels(node_name)
        self._node_name = node_name
        self._events = EventRecorder(api, node_name)
        self._scheduler = Scheduler(api, node_name, node_labels)
        self._registration = NodeRegistration(api, node_name, network.node_ip, node_labels)
        self._claims = ClaimBinder(
            api,
            self._folders,
            folders_in_use=lambda: set().union(*(worker.claim_folders for worker in self._workers.values())),
            claims_in_use=self._claims_in_use,
        )
        self._pods = Reflector(api, PODS, on_change=self._pod_changed)
        self._parts = NodeParts(
            api=api,
            node_name=node_name,
            folders=self._folders,
            network=network,
            images=images,
            claims=self._claims,
            events=self._events,
            back_off=back_off or BackOffSettings(),
            minimum_grace_seconds=minimum_grace_seconds,
            pods_changed=self._pods_changed,
        )
        self._workers: dict[str, PodWorker] = {}
        self._worker_tasks: dict[str, asyncio.Task[None]] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._lock: int | None = None
        self._writing_pods_file = False
        self._failed: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()

    @property
    def node_name(self) -> str:
        """The node's name."""
        return self._node_name

    async def start(self, *, timeout_seconds: float = 60.0) -> None:
        """Kill what an earlier kubelet left, register the node, begin to watch."""
        self._folders.root.mkdir(parents=True, exist_ok=True)
        self._lock = lock_folder(self._folders.root / "kubelet.lock")
        killed = await asyncio.to_thread(kill_leftovers, self._folders.root)
        if killed:
            log.warning("killed processes that an earlier kubelet left", pids=killed)
        await self._network.open()
        async with asyncio.timeout(timeout_seconds):
            await self._registration.register()
        parts = (self._claims, self._pods, self._events, self._registration, self._scheduler)
        for part in parts:
            task = asyncio.create_task(part.run())
            task.add_done_callback(self._part_ended)
            self._tasks.append(task)
        await self._pods.wait_synced(timeout_seconds)
        alive = {unique_name(pod) for pod in self._pods.objects.values()}
        for folder in self._folders.all_pods.glob("*"):
            if folder.name not in alive:
                await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
        self._write_pods_file()

    def _part_ended(self, task: asyncio.Task[None]) -> None:
        """A part that ends by itself has a bug, and the kubelet cannot go on without it."""
        if not task.cancelled() and not self._failed.done():
            self._failed.set_result(task.exception() or RuntimeError(f"{task.get_name()} ended"))

    async def failed(self) -> BaseException:
        """Wait until the kubelet cannot go on; return what broke it."""
        return await asyncio.shield(self._failed)

    async def stop(self, *, grace_seconds: float = 2.0) -> None:
        """End all pods' processes (SIGTERM, then SIGKILL) and leave the API's objects as they are.

        This takes at most the grace and 10 s more; what still runs then is killed by its marks, or logged.
        """
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()
        for worker in self._workers.values():
            worker.node_stops(grace_seconds)
        await self._end_workers(grace_seconds + STOP_SECONDS)
        await self._registration.say_not_ready()
        try:
            await self._network.close()
        except PodNetworkError as error:
            log.warning("what pods had in the network is left for the next start", error=str(error))
        self._write_pods_file()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    async def _end_workers(self, seconds: float) -> None:
        if not self._worker_tasks:
            return
        _, late = await asyncio.wait(list(self._worker_tasks.values()), timeout=seconds)
        if not late:
            return
        log.warning("pods did not end in time", pods=sorted(task.get_name() for task in late), seconds=seconds)
        for task in late:
            task.cancel()
        await asyncio.wait(late, timeout=STOP_SECONDS)
        try:
            await asyncio.to_thread(kill_leftovers, self._folders.root)
        except OSError as error:
            log.warning("processes of pods are left", error=str(error))

    def container_pid(self, namespace: str, pod: str, container: str) -> int | None:
        """Return the process id of a container's main process, None while it does not run."""
        for worker in self._running(namespace, pod):
            for candidate in worker.containers:
                if candidate.name == container and candidate.process is not None:
                    return candidate.process.pid
        return None

    def log_provider(
        self, namespace: str, pod: str, container: str, tail_lines: int | None, follow: bool
    ) -> AsyncIterator[bytes]:
        """Return a container's latest log, for ``kubectl logs``; raises NoSuchLogError."""
        workers = self._running(namespace, pod)
        if not workers:
            raise NoSuchLogError(f"pod {namespace}/{pod} does not run on node {self._node_name}")
        worker = workers[-1]
        file = newest_log(self._folders.logs(worker.pod), container)

        def still_written() -> bool:
            running = any(c.name == container and c.process is not None for c in worker.containers)
            return running and newest_log(self._folders.logs(worker.pod), container) == file

        return read_log(file, tail_lines=tail_lines, follow=follow, still_written=still_written)

    def _running(self, namespace: str, pod: str) -> list[PodWorker]:
        return [
            worker
            for worker in self._workers.values()
            if (worker.pod["metadata"]["namespace"], worker.pod["metadata"]["name"]) == (namespace, pod)
        ]

    def _pod_changed(self, event: WatchEvent) -> None:
        pod, uid = event.object, event.object["metadata"]["uid"]
        worker = self._workers.get(uid)
        if event.type == "DELETED":
            if worker is not None:
                worker.vanished()
            self._claims.look_again()
        elif worker is not None:
            worker.update(pod)
        elif pod["spec"].get("nodeName") == self._node_name:
            self._start_worker(pod)
        else:
            self._scheduler.consider(pod)

    def _start_worker(self, pod: JsonObject) -> None:
        metadata = pod["metadata"]
        before = self._running(metadata["namespace"], metadata["name"])
        predecessor = self._worker_tasks[before[-1].pod["metadata"]["uid"]] if before else None
        worker = PodWorker(pod, self._parts, predecessor)
        task = asyncio.create_task(worker.run(), name=f"pod {metadata['name']}")
        self._workers[metadata["uid"]] = worker
        self._worker_tasks[metadata["uid"]] = task
        task.add_done_callback(lambda done: self._worker_ended(metadata["uid"], done))

    def _worker_ended(self, uid: str, task: asyncio.Task[None]) -> None:
        worker = self._workers.pop(uid)
        del self._worker_tasks[uid]
        self._claims.look_again()
        self._pods_changed()
        if not task.cancelled() and task.exception() is not None:
            log.error("pod worker failed", pod=unique_name(worker.pod), exc_info=task.exception())

    def _claims_in_use(self) -> set[tuple[str, str]]:
        """The claims that any pod names."""
        return {
            (pod["metadata"]["namespace"], volume["persistentVolumeClaim"]["claimName"])
            for pod in self._pods.objects.values()
            for volume in pod["spec"].get("volumes") or []
            if "persistentVolumeClaim" in volume
        }

    def _pods_changed(self) -> None:
        """Write pods.json soon, once for several changes."""
        if not self._writing_pods_file:
            self._writing_pods_file = True
            asyncio.get_running_loop().call_soon(self._write_pods_file)

    def _write_pods_file(self) -> None:
        self._writing_pods_file = False
        content = {"node": self._node_name, "pods": [self._describe(worker) for worker in self._workers.values()]}
        with suppress(FileNotFoundError):  # the data folder may be removed while the last pod ends
            write_pods_file(self._folders.root, content)

    def _describe(self, worker: PodWorker) -> dict[str, Any]:
        processes = [(container, container.process) for container in worker.containers]
        return {
            **{key: worker.pod["metadata"][key] for key in ("namespace", "name", "uid")},
            "podIP": None if worker.address is None else worker.address.ip,
            "folder": str(self._folders.pod(worker.pod)),
            "logs": str(self._folders.logs(worker.pod)),
            "containers": [
                {
                    "name": container.name,
                    "pid": process and process.pid,
                    "restartCount": container.report["restartCount"],
                }
                for container, process in processes
            ],
        }
