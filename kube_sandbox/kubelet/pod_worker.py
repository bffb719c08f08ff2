"""One pod's life on this node: volumes, address, init containers, containers, and the end.

Operators rely on the order. The address is in the API before the first container starts. A deleted pod gets SIGTERM, its grace
period, SIGKILL; then its status says terminated, and only then the object goes. While a finalizer holds the object, its status
says that the containers are dead. As under the real kubelet, a pod that is deleted without grace or gone from the API has a
second for its preStop hooks and at least 2 s from SIGTERM to SIGKILL.
"""

from __future__ import annotations

import asyncio
import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from kube_sandbox.client import PODS, ApiError, ConflictError, NotFoundError

from .container import BackOffSettings, Container, ProbeTarget, run_beside
from .environment import (
    NotReadyYetError,
    Sources,
    mount_rewriter,
    mounts_of,
    prepare_volumes,
    resolve_arguments,
    resolve_environment,
    surroundings,
)
from .files import unique_name
from .network import PodAddress, PodNetworkError
from .process import CONTAINER_MARK, KUBELET_MARK, ProcessSpec
from .status import PodStatusBuilder, StatusPoster

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Any

    from kube_sandbox.client import JsonObject, KubeClient

    from .environment import ImageCatalogue
    from .files import DataFolders
    from .network import PodNetwork
    from .node import ClaimBinder
    from .status import EventRecorder

log = structlog.get_logger(__name__)

RETRY_FIRST_SECONDS = 0.05
RETRY_LAST_SECONDS = 2.0
LAST_WORDS_SECONDS = 1.0
# The time for the hooks of a pod that is deleted without grace (the real kubelet's calculateEffectiveGracePeriod).
LEAST_HOOK_SECONDS = 1.0
# Of a termination message Kubernetes keeps so much.
MESSAGE_BYTES = 4096


@dataclass(frozen=True, slots=True)
class NodeParts:
    """The parts that all pods of a node share."""

    api: KubeClient
    node_name: str
    folders: DataFolders
    network: PodNetwork
    images: ImageCatalogue
    claims: ClaimBinder
    events: EventRecorder
    back_off: BackOffSettings
    minimum_grace_seconds: float
    pods_changed: Callable[[], None]


class PodWorker:
    """Run ``run()`` as a task; call ``update()`` with each new version of the pod, ``vanished()`` when it is gone."""

    def __init__(self, pod: JsonObject, node: NodeParts, predecessor: asyncio.Task[None] | None = None) -> None:
        self.pod = pod
        self.address: PodAddress | None = None
        self._node = node
        self._predecessor = predecessor
        self._leaving = asyncio.Event()
        self._vanished = asyncio.Event()
        self._grace_changed = asyncio.Event()
        self._node_stops_within_seconds: float | None = None
        self._volumes: dict[str, Path] = {}
        self._status_builder = PodStatusBuilder(pod, node_ip=node.network.node_ip)
        self._sources = Sources(node.api, pod["metadata"]["namespace"])
        self._init = self._containers("initContainers", "initContainerStatuses")
        self._main = self._containers("containers", "containerStatuses")
        self._poster = StatusPoster(node.api, pod=pod, build=self._status, gone=self.vanished)
        self.update(pod)

    def _containers(self, field: str, status_field: str) -> list[Container]:
        earlier = {entry["name"]: entry for entry in (self.pod.get("status") or {}).get(status_field) or []}
        policy = str(self.pod["spec"].get("restartPolicy") or "Always")
        if field == "initContainers" and policy == "Always":
            policy = "OnFailure"  # an init container that succeeded is done
        names = [spec["name"] for spec in self.pod["spec"].get(field) or []]
        return [
            Container(name, self, restart_policy=policy, back_off=self._node.back_off, earlier=earlier.get(name))
            for name in names
        ]

    @property
    def containers(self) -> list[Container]:
        """Init containers first."""
        return [*self._init, *self._main]

    @property
    def claim_folders(self) -> set[Path]:
        """The folders of claims that this pod may be writing to."""
        return {folder for folder in self._volumes.values() if folder.parent == self._node.folders.all_claims}

    def update(self, pod: JsonObject) -> None:
        """The API has a new version of this pod."""
        self.pod = pod
        if "deletionTimestamp" in pod["metadata"]:
            self._leaving.set()
            self._grace_changed.set()

    def vanished(self) -> None:
        """The API no longer has this pod: stop its containers."""
        self._vanished.set()
        self._leaving.set()
        self._grace_changed.set()

    def node_stops(self, grace_seconds: float) -> None:
        """The kubelet stops: stop the containers, leave the object in the API."""
        self._node_stops_within_seconds = grace_seconds
        self.vanished()

    async def run(self) -> None:
        """Run the pod until it is gone from the API and from this machine."""
        if self._predecessor is not None:
            # A pod of the same name probably has the same claim: its processes must be dead before ours start.
            await asyncio.wait([self._predecessor])
        poster = asyncio.create_task(self._poster.run())
        life = asyncio.create_task(self._live())
        leaving = asyncio.create_task(self._leaving.wait())
        try:
            await asyncio.wait([life, leaving], return_when=asyncio.FIRST_COMPLETED)
            if life.done():
                life.result()  # raises: a bug here must not look like a pod that ended
            await leaving
            await self._stop_containers()
            life.cancel()
            for container in self.containers:
                container.conclude()
            await self._take_leave()
        finally:
            for container in self.containers:
                container.never_again()
                container.kill()
            for task in (life, leaving, poster):
                task.cancel()
            await asyncio.wait([life, leaving, poster])
            await self._clean_up()

    async def _live(self) -> None:
        if self._status_builder.is_over or not await self._set_up():
            return
        for container in self._init:
            exit_ = await container.run()
            if exit_ is None or exit_.code != 0:
                self.changed()
                return
        async with asyncio.TaskGroup() as running:
            for container in self._main:
                running.create_task(container.run())

    async def _set_up(self) -> bool:
        """Get address and volumes and post the address; False if the pod is deleted before that is done."""
        metadata = self.pod["metadata"]
        delay_seconds = RETRY_FIRST_SECONDS
        while not self._leaving.is_set():
            try:
                if self.address is None:
                    self.address = await self._new_address()
                    self._node.pods_changed()
                self._volumes = await prepare_volumes(
                    self.pod, self._node.folders.pod(self.pod), self._sources, self._node.claims.folder_of
                )
                await self._poster.flush()
            except NotReadyYetError as error:
                self.event("Warning", "FailedMount", str(error))
                log.info("pod waits", pod=metadata["name"], reason=error.reason, message=str(error))
            except PodNetworkError as error:
                self.event("Warning", "FailedCreatePodSandBox", str(error))
                log.warning("pod waits for the network", pod=metadata["name"], error=str(error))
            except ApiError as error:
                log.warning("pod waits for the API", pod=metadata["name"], error=str(error))
            else:
                return True
            with suppress(TimeoutError):
                async with asyncio.timeout(delay_seconds):
                    await self._leaving.wait()
            delay_seconds = min(delay_seconds * 2, RETRY_LAST_SECONDS)
        return False

    async def _new_address(self) -> PodAddress:
        if self.pod["spec"].get("hostNetwork"):
            return PodAddress(ip=self._node.network.node_ip)
        return await self._node.network.attach(self.pod["metadata"]["uid"])

    async def _stop_containers(self) -> None:
        """Run hooks, SIGTERM, the grace period, SIGKILL; return when all are dead."""
        for container in self.containers:
            container.never_again()
        stopping = asyncio.gather(*(container.stop() for container in self.containers))
        ended = asyncio.create_task(self._all_ended())
        await self._grace_over(ended)
        stopping.cancel()  # the time of a hook that still runs is over
        with suppress(asyncio.CancelledError):
            await stopping
        for container in self.containers:
            container.terminate()
        if self._node_stops_within_seconds is None:
            # From the last SIGTERM each has the minimum (the real kubelet's killContainer).
            asked = max((container.asked_to_end_seconds or 0.0 for container in self.containers), default=0.0)
            left_seconds = asked + self._node.minimum_grace_seconds - asyncio.get_running_loop().time()
            await asyncio.wait([ended], timeout=max(0.0, left_seconds))
        for container in self.containers:
            container.kill()
        await ended

    async def _all_ended(self) -> None:
        for container in self.containers:
            if container.process is not None:
                await container.process.wait()

    async def _grace_over(self, ended: asyncio.Task[None]) -> None:
        """Wait until the grace period is over or all have ended. A second deletion may shorten it, from then on."""
        clock = asyncio.get_running_loop().time
        began, grace_seconds = clock(), self._grace_seconds()
        while not ended.done() and (left_seconds := began + grace_seconds - clock()) > 0:
            self._grace_changed.clear()
            changed = asyncio.create_task(self._grace_changed.wait())
            await asyncio.wait([ended, changed], timeout=left_seconds, return_when=asyncio.FIRST_COMPLETED)
            changed.cancel()
            if self._grace_seconds() != grace_seconds:
                began, grace_seconds = clock(), self._grace_seconds()

    def _grace_seconds(self) -> float:
        if self._node_stops_within_seconds is not None:
            return self._node_stops_within_seconds
        least_seconds = min(LEAST_HOOK_SECONDS, self._node.minimum_grace_seconds)
        if self._vanished.is_set():
            return least_seconds
        grace = self.pod["metadata"].get("deletionGracePeriodSeconds")
        if grace is None:
            grace = self.pod["spec"].get("terminationGracePeriodSeconds")
        return 30.0 if grace is None else max(float(grace), least_seconds)

    async def _take_leave(self) -> None:
        """Report the containers as terminated, delete the object, and wait until it is gone (finalizers may hold it)."""
        if self._node_stops_within_seconds is not None:
            # The pod stays for the next kubelet: post how its containers ended, if the API answers soon.
            self.changed()
            with suppress(TimeoutError):
                async with asyncio.timeout(LAST_WORDS_SECONDS):
                    await self._poster.flush()
            return
        self._status_builder.end([container.report for container in self._main])
        self.changed()
        for step in (self._poster.flush, self._delete_object):
            if not await self._unless_vanished(step):
                return
        await self._vanished.wait()

    async def _unless_vanished(self, step: Callable[[], Coroutine[Any, Any, None]]) -> bool:
        doing = asyncio.create_task(step())
        gone = asyncio.create_task(self._vanished.wait())
        await asyncio.wait([doing, gone], return_when=asyncio.FIRST_COMPLETED)
        finished = doing.done()
        for task in (doing, gone):
            task.cancel()
        await asyncio.wait([doing, gone])
        if finished:
            doing.result()
        return finished and not self._vanished.is_set()

    async def _delete_object(self) -> None:
        metadata = self.pod["metadata"]
        delay_seconds = RETRY_FIRST_SECONDS
        while True:
            try:
                await self._node.api.delete(
                    PODS, metadata["name"], namespace=metadata["namespace"], grace_period_seconds=0, uid=metadata["uid"]
                )
            except (NotFoundError, ConflictError):
                return
            except ApiError as error:
                log.warning("pod object not deleted yet", pod=metadata["name"], error=str(error))
                await asyncio.sleep(delay_seconds)
                delay_seconds = min(delay_seconds * 2, RETRY_LAST_SECONDS)
            else:
                return

    async def _clean_up(self) -> None:
        try:
            await self._node.network.detach(self.pod["metadata"]["uid"])
        except PodNetworkError as error:
            log.warning("pod's network is left for the next start", pod=unique_name(self.pod), error=str(error))
        if self._node_stops_within_seconds is None:
            folder = self._node.folders.pod(self.pod)
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
        self._volumes = {}
        self._node.pods_changed()

    # container.ContainerHost

    def container_spec(self, name: str) -> JsonObject:
        """Return the container's part of the pod, as the API has it now."""
        spec = self.pod["spec"]
        found: JsonObject = next(
            entry for entry in [*(spec.get("initContainers") or []), *spec["containers"]] if entry["name"] == name
        )
        return found

    async def prepare(self, name: str, restart_count: int) -> ProcessSpec:
        """Return what to start; raises NotReadyYetError, UnknownImageError, and ApiError while the API is away."""
        assert self.address is not None
        container = self.container_spec(name)
        image = self._node.images.find(str(container.get("image", "")))
        folders = self._node.folders
        scratch = folders.pod(self.pod) / "containers" / name
        scratch.mkdir(parents=True, exist_ok=True)
        self._termination_log(name).unlink(missing_ok=True)
        message_at = {
            str(container.get("terminationMessagePath") or "/dev/termination-log"): self._termination_log(name)
        }
        rewrite = mount_rewriter(message_at | mounts_of(container, self._volumes))
        facts = {
            "spec.nodeName": self._node.node_name,
            **dict.fromkeys(("status.podIP", "status.podIPs"), self.address.ip),
            **dict.fromkeys(("status.hostIP", "status.hostIPs"), self._node.network.node_ip),
        }
        variables = await resolve_environment(container, self.pod, facts, self._sources)
        arguments = [rewrite(word) for word in resolve_arguments(container, image, variables)]
        environment = surroundings(image, scratch, self.pod["metadata"]["name"])
        environment.update({key: rewrite(value) for key, value in variables.items()})
        environment[KUBELET_MARK] = str(folders.root)
        environment[CONTAINER_MARK] = f"{self.pod['metadata']['uid']}/{name}/{restart_count}"
        prefix = self.address.command_prefix
        return ProcessSpec(
            arguments=[*prefix, *arguments],
            environment=environment,
            working_folder=Path(rewrite(container["workingDir"])) if container.get("workingDir") else scratch,
            log_file=folders.logs(self.pod) / name / f"{restart_count}.log",
            prefix_length=len(prefix),
        )

    def probe_target(self, name: str, spec: ProcessSpec) -> ProbeTarget:
        """Return where to probe a container."""
        assert self.address is not None
        container = self.container_spec(name)
        ports = {port["name"]: port["containerPort"] for port in container.get("ports") or [] if "name" in port}
        rewrite = mount_rewriter(mounts_of(container, self._volumes))

        async def run_command(arguments: list[str], timeout_seconds: float | None) -> bool:
            return await run_beside(spec, [rewrite(word) for word in arguments], timeout_seconds=timeout_seconds)

        return ProbeTarget(self.address.ip, ports, run_command)

    def termination_message(self, name: str) -> str:
        """Return what a container's last process wrote at its terminationMessagePath."""
        try:
            text = self._termination_log(name).read_bytes()[:MESSAGE_BYTES]
        except OSError:
            return ""
        return text.decode(errors="replace")

    def _termination_log(self, name: str) -> Path:
        return self._node.folders.pod(self.pod) / "containers" / name / "termination-log"

    def changed(self) -> None:
        """Post the status soon."""
        self._poster.changed()
        self._node.pods_changed()

    def event(self, kind: str, reason: str, message: str) -> None:
        """Post an Event about the pod; ``kind`` is Normal or Warning."""
        self._node.events.tell(self.pod, kind, reason, message)

    def _status(self) -> JsonObject:
        return self._status_builder.build(
            self.pod,
            init=[container.report for container in self._init],
            main=[container.report for container in self._main],
            pod_ip=None if self.address is None else self.address.ip,
        )
