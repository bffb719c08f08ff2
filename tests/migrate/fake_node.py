"""What `adopt claims` needs of a cluster: volumes bound to claims, and pods that run its commands, in virtual time."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

from typer.testing import CliRunner

from brokergroup_operator.cli.main import app
from brokergroup_operator.kube.errors import ApiUnavailableError, NotFoundError
from brokergroup_operator.kube.resources import (
    NAMESPACES,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    PODS,
)
from brokergroup_operator.migrate.sole_run import SoleRunError
from brokergroup_operator.records.store import GroupKey, RecordUnavailableError
from tests.our_kinds import define_our_kinds
from tests.reconcile.world import Namespaced
from tests.support.draws import sample
from tests.support.memory_api import MemoryApi, MemoryApiServer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    from brokergroup_operator.kube.resources import Resource

NAMESPACE = "shop"
LOOK_SECONDS = 0.05
ENDLESS = 1_000_000
# So many of a run's writes are the last before a kill in `make test`.
KILLS = 5


class DyingApi(MemoryApi):
    """The administrator's client: after so many writes its process is gone."""

    def __init__(self, server: MemoryApiServer, *, writes: int) -> None:
        super().__init__(server)
        self.left = writes

    async def _request(self, method: str, path: str, **more: Any) -> dict[str, Any]:
        if method != "GET":
            if self.left == 0:
                raise ApiUnavailableError(f"{method} {path}: killed")
            self.left -= 1
        return await super()._request(method, path, **more)


async def is_killed(act: Callable[[MemoryApi], Awaitable[object]], server: MemoryApiServer, *, writes: int) -> bool:
    """Carry this out by an administrator who is killed after so many writes; return False if it needed no more of them."""
    try:
        await act(DyingApi(server, writes=writes))
    except (ApiUnavailableError, RecordUnavailableError, SoleRunError):
        return True
    return False


async def kills_of(
    act: Callable[[MemoryApi], Awaitable[object]], server: MemoryApiServer, *, at_least: int
) -> list[int]:
    """Carry this out; return after how many writes to kill other runs of it; in `make test` a draw of these numbers.

    The last number lets a run fail only where it gives the Lease back: it has done everything, and was not killed.
    """
    endless = DyingApi(server, writes=ENDLESS)
    await act(endless)
    last = ENDLESS - endless.left - 1
    assert last >= at_least
    return [*sample(range(last), KILLS), last]


class FakeNode(Namespaced):
    """A controller manager and a kubelet. Volumes are folders below `folder`, by name."""

    api: MemoryApi

    def __init__(self, server: MemoryApiServer, folder: Path) -> None:
        super().__init__(MemoryApi(server), GroupKey(NAMESPACE, "orders"))
        self.folder = folder
        # Every pod that ended: its command, and the claim.
        self.ran: list[tuple[str, str]] = []

    async def install(self) -> None:
        define_our_kinds(self.api.server.store)
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
        await self.api.create(NAMESPACES, namespace)

    async def make_volume(self, name: str, claim: str, *, modes: tuple[str, ...] = ("ReadWriteOnce",)) -> None:
        """A volume, and the claim that has it."""
        size, claimed = {"storage": "8Gi"}, {"accessModes": list(modes), "storageClassName": "disks"}
        spec = {"capacity": size, "persistentVolumeReclaimPolicy": "Delete", "hostPath": {"path": name}, **claimed}
        made = {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}, "spec": spec}
        await self.api.create(PERSISTENT_VOLUMES, made)
        spec = {"resources": {"requests": size}, "volumeName": name, **claimed}
        await self.make(PERSISTENT_VOLUME_CLAIMS, claim, spec)
        await self.bind()

    async def make(self, resource: Resource, name: str, spec: dict[str, Any], **metadata: Any) -> dict[str, Any]:
        metadata |= {"name": name, "namespace": NAMESPACE}
        kind = {"apiVersion": resource.api_version, "kind": resource.kind}
        return await self.api.create(resource, kind | {"metadata": metadata, "spec": spec})

    async def make_pod(self, name: str, claim: str, **metadata: Any) -> None:
        """A pod that uses this claim."""
        volume = {"name": "store", "persistentVolumeClaim": {"claimName": claim}}
        spec = {"containers": [{"name": "broker", "image": "apache/rocketmq:5.5.0"}], "volumes": [volume]}
        await self.make(PODS, name, spec, **metadata)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Bind claims and run pods until the block ends."""
        running = asyncio.create_task(self.run())
        try:
            yield
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    async def run(self) -> None:
        while True:
            await self.bind()
            for pod in await self.items(PODS):
                await self._look_at(pod)
            await asyncio.sleep(LOOK_SECONDS)

    async def bind(self) -> None:
        for claim in await self.items(PERSISTENT_VOLUME_CLAIMS):
            metadata = claim["metadata"]
            if "deletionTimestamp" in metadata or (claim.get("status") or {}).get("phase") == "Bound":
                continue
            with suppress(NotFoundError):
                await self._bind(metadata, claim["spec"]["volumeName"])

    async def _bind(self, claim: dict[str, Any], name: str) -> None:
        volume = await self.api.get(PERSISTENT_VOLUMES, name)
        own = {key: claim[key] for key in ("namespace", "name", "uid")}
        reference = volume["spec"].get("claimRef") or {}
        if any(reference.get(key) not in (None, value) for key, value in own.items()):
            return  # as Kubernetes: a volume that was another claim's is not given away
        own |= {"kind": "PersistentVolumeClaim", "apiVersion": "v1"}
        await self.api.patch(PERSISTENT_VOLUMES, name, {"spec": {"claimRef": own}})
        bound = {"status": {"phase": "Bound"}}
        await self.patch(PERSISTENT_VOLUME_CLAIMS, claim["name"], bound, subresource="status")

    async def _look_at(self, pod: dict[str, Any]) -> None:
        name = pod["metadata"]["name"]
        if "deletionTimestamp" in pod["metadata"]:
            with suppress(NotFoundError):
                await self.delete(PODS, name, grace_period_seconds=0)
            return
        [container], [volume] = pod["spec"]["containers"], pod["spec"]["volumes"]
        if (pod.get("status") or {}).get("phase") != "Pending" or container["name"] != "adopt":
            return
        claim = await self.api.get(
            PERSISTENT_VOLUME_CLAIMS, volume["persistentVolumeClaim"]["claimName"], namespace=NAMESPACE
        )
        root = self.folder / claim["spec"]["volumeName"]
        said = self.folder / "said"
        places = {container["volumeMounts"][0]["mountPath"]: str(root), container["terminationMessagePath"]: str(said)}
        words = [places.get(word, word) for word in container["command"][1:]]
        done = CliRunner().invoke(app, words)
        self.ran.append((words[1], claim["metadata"]["name"]))
        ended = {"exitCode": done.exit_code, "message": said.read_text()}
        status = {
            "phase": "Failed" if done.exit_code else "Succeeded",
            "containerStatuses": [{"name": "adopt", "state": {"terminated": ended}}],
        }
        with suppress(NotFoundError):
            await self.patch(PODS, name, {"status": status}, subresource="status")
