"""A node for tests: one kubelet on one API, with helper methods."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from brokergroup_operator.kube import KubernetesApi, NotFoundError
from brokergroup_operator.kube.resources import CONFIG_MAPS, PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES, PODS, SECRETS
from kube_sandbox.kubelet import Image, ImageCatalogue, LoopbackNetwork, PodNetwork, ProcessKubelet
from kube_sandbox.kubelet.container import BackOffSettings
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable

    from brokergroup_operator.json_object import JsonObject
    from kube_sandbox.client import KubeClient

NAMESPACE = "default"


class Node:
    """One kubelet on one API, with helper methods."""

    def __init__(
        self,
        api: KubernetesApi,
        client: KubeClient,
        kubeconfig: Path,
        data_dir: Path,
        network: PodNetwork | None = None,
        *,
        minimum_grace_seconds: float = 0.2,
    ) -> None:
        self.minimum_grace_seconds = minimum_grace_seconds
        # The tests ask the API with another client than the kubelet has.
        self.api = api
        self.client = client
        self.kubeconfig = kubeconfig
        self.data_dir = data_dir
        self.network = network or LoopbackNetwork()
        self.kubelet = self.new_kubelet()

    def new_kubelet(self) -> ProcessKubelet:
        return ProcessKubelet(
            self.client,
            node_name="node-a",
            data_dir=self.data_dir,
            network=self.network,
            images=ImageCatalogue({"test:*": Image(path=(Path(sys.executable).parent,))}),
            back_off=BackOffSettings(first_seconds=0.05, last_seconds=0.2, reset_after_seconds=30),
            minimum_grace_seconds=self.minimum_grace_seconds,
        )

    async def restart(self) -> None:
        """The kubelet stops and another one starts on the same data folder."""
        await self.kubelet.stop()
        self.kubelet = self.new_kubelet()
        await self.kubelet.start()

    async def create(self, pod: JsonObject) -> JsonObject:
        return await self.api.create(PODS, pod)

    async def started(self, name: str, script: str = "exec sleep 1000", **spec: Any) -> tuple[str, int]:
        """Create a pod; return its uid and its main process, when it is ready and has said ``up`` if its script does."""
        created = await self.create(pod_object(name, script, **spec))
        await self.until(name, is_ready)
        if "echo up" in script:
            await self.until_output(name, "up")
        pid = self.pid(name)
        assert pid is not None
        return created["metadata"]["uid"], pid

    async def delete(self, name: str, grace_seconds: int | None = None) -> None:
        await self.api.delete(PODS, name, namespace=NAMESPACE, grace_period_seconds=grace_seconds)

    async def hold(self, name: str) -> None:
        """Give the pod a finalizer, as a fence does, so that its object outlives its processes."""
        await self.api.patch(PODS, name, {"metadata": {"finalizers": ["brokergroup.dev/fence"]}}, namespace=NAMESPACE)

    async def release(self, name: str, uid: str) -> None:
        """Take the finalizer off, and wait until the pod is gone."""
        await self.api.patch(PODS, name, {"metadata": {"finalizers": None}}, namespace=NAMESPACE)
        await self.until_gone(name, uid)

    async def pod(self, name: str) -> JsonObject | None:
        try:
            return await self.api.get(PODS, name, namespace=NAMESPACE)
        except NotFoundError:
            return None

    async def until(self, name: str, holds: Callable[[JsonObject], object]) -> JsonObject:
        """The pod, as soon as ``holds`` is true of it."""

        async def look() -> JsonObject | None:
            pod = await self.pod(name)
            return pod if pod is not None and holds(pod) else None

        found: JsonObject = await eventually(look, every_seconds=0.02)
        return found

    async def until_gone(self, name: str, uid: str) -> None:
        async def gone() -> bool:
            pod = await self.pod(name)
            return pod is None or pod["metadata"]["uid"] != uid

        await eventually(gone, every_seconds=0.02)

    async def until_output(self, name: str, expected: str, container: str = "main") -> str:
        """Return the output of the container's present start once ``expected`` is in it."""

        await eventually(lambda: expected in self.output(name, container), every_seconds=0.02)
        return self.output(name, container)

    def output(self, name: str, container: str = "main", start: int | None = None) -> str:
        found = self.data_dir.glob(f"logs/{NAMESPACE}_{name}_*/{container}/[0-9]*.log")
        # Newest pod of that name last, and in it the latest start.
        files = sorted(found, key=lambda file: (file.parent.stat().st_ctime_ns, int(file.stem)))
        chosen = [file for file in files if start is None or file.stem == str(start)]
        return chosen[-1].read_text() if chosen else ""

    def pid(self, name: str, container: str = "main") -> int | None:
        return self.kubelet.container_pid(NAMESPACE, name, container)


def pod_object(
    name: str, script: str = "exec sleep 1000", *, container: JsonObject | None = None, **spec: Any
) -> JsonObject:
    """A pod of one container ``main`` that runs a shell script."""
    main = {"name": "main", "image": "test:1", "command": ["sh", "-c", script], **(container or {})}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": NAMESPACE, "labels": {"app": name}},
        "spec": {"containers": [main], "terminationGracePeriodSeconds": 5, **spec},
    }


def state_of(pod: JsonObject, container: str = "main") -> JsonObject:
    """The container's part of the status, empty before there is one."""
    for status in pod.get("status", {}).get("containerStatuses", []):
        if status["name"] == container:
            found: JsonObject = status
            return found
    return {"state": {}, "lastState": {}, "restartCount": 0, "ready": False}


async def remove_objects(api: KubernetesApi) -> None:
    """Empty the namespace, and delete volumes: a real API server is shared by all tests."""
    for volume in (await api.list(PERSISTENT_VOLUMES)).items:
        await api.delete(PERSISTENT_VOLUMES, volume["metadata"]["name"])
        with suppress(NotFoundError):
            await api.patch(PERSISTENT_VOLUMES, volume["metadata"]["name"], {"metadata": {"finalizers": None}})
    for resource in (PODS, PERSISTENT_VOLUME_CLAIMS, CONFIG_MAPS, SECRETS):
        for obj in (await api.list(resource, namespace=NAMESPACE)).items:
            name = obj["metadata"]["name"]
            with suppress(NotFoundError):
                await api.delete(resource, name, namespace=NAMESPACE, grace_period_seconds=0)
                await api.patch(resource, name, {"metadata": {"finalizers": None}}, namespace=NAMESPACE)


def is_running(pod: JsonObject) -> bool:
    return "running" in state_of(pod)["state"]


def is_ready(pod: JsonObject) -> bool:
    conditions = {entry["type"]: entry["status"] for entry in pod.get("status", {}).get("conditions", [])}
    return conditions.get("Ready") == "True"


def is_dead(pid: int) -> bool:
    """Whether the process does not exist or is an unreaped zombie."""
    with suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    return True
