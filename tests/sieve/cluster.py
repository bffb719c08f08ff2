"""A node in memory: pods of the group become scripted brokers, claims become disks, and status is written as by a kubelet.

It is not under test and never disturbed. A broker without a controller retries for as long as it lives, as
a Java broker does; a pod that returns on its claim is the same broker at a new address.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from brokergroup_operator.api import names, pod_fence
from brokergroup_operator.api.backup_fields import Manifest
from brokergroup_operator.api.times import rfc3339
from brokergroup_operator.kube.client import PatchType
from brokergroup_operator.kube.errors import ApiError, NotFoundError
from brokergroup_operator.kube.reflector import Reflector
from brokergroup_operator.kube.resources import NODES, PERSISTENT_VOLUME_CLAIMS, PODS
from rocketmq_remoting.errors import RemotingError
from tests.support.fake_broker import FakeBroker, FakeGroup
from tests.support.memory_api import BEGINNING_UNIX_SECONDS

if TYPE_CHECKING:
    from brokergroup_operator.kube.client import WatchEvent
    from rocketmq_remoting.command import RemotingCommand
    from tests.support.memory_api import MemoryApi
    from tests.support.virtual_loop import VirtualLoop

CONTROLLER = "10.0.0.1:9878"
# As in our pods: the port above serves its log, and 906 has that port, like the spec.
BROKER_PORT = 10911
ASK_AGAIN_SECONDS = 0.2
HEARTBEAT_SECONDS = 0.5
MESSAGES = 100


class Broker(FakeBroker):
    """Retries until a controller answers; waits after a refusal."""

    def ha_address_of_master(self) -> str:
        """Return the master's HA address, as from a NameServer."""
        host, _, port = self.master_address.rpartition(":")
        return f"{host}:{int(port) + 1}"

    async def ask(self, code: int, *, body: bytes | None = None, **fields: object) -> RemotingCommand:
        while True:
            try:
                answer = await super().ask(code, body=body, **fields)
            except RemotingError:
                await asyncio.sleep(ASK_AGAIN_SECONDS)
            else:
                if answer.code != 0:
                    await asyncio.sleep(ASK_AGAIN_SECONDS)
                return answer


@dataclass
class Disk:
    """The content of a claim."""

    broker_id: int | None = None
    epoch_file: int = 0
    max_offset: int = 0


@dataclass
class Pod:
    """One life of a pod."""

    name: str
    uid: str
    process: str
    broker: Broker


class Node:
    """A node. `run` never returns; `brokers` are by pod name."""

    def __init__(self, loop: VirtualLoop, api: MemoryApi, namespace: str) -> None:
        self._loop = loop
        self._api = api
        self._namespace = namespace
        self._disks: dict[str, Disk] = {}
        self._lives = itertools.count(1)
        self._changed = asyncio.Event()
        self.pods: dict[str, Pod] = {}
        # What a broker of this story is.
        self.new_broker: type[Broker] = Broker
        # What a group may begin with, by folder.
        self.backups: dict[str, Manifest] = {}
        self.group = FakeGroup(CONTROLLER)
        self._claims = Reflector(api, PERSISTENT_VOLUME_CLAIMS, namespace=namespace, on_change=self._wake)
        self._objects = Reflector(api, PODS, namespace=namespace, on_change=self._wake)

    def _wake(self, _: WatchEvent) -> None:
        self._changed.set()

    async def run(self) -> None:
        """Follow claims and pods."""
        await self._api.create(NODES, {"metadata": {"name": "node-1"}})
        tasks = [asyncio.create_task(self._claims.run()), asyncio.create_task(self._objects.run())]
        try:
            while True:
                await self._changed.wait()
                self._changed.clear()
                await self._follow()
        finally:
            for task in tasks:
                task.cancel()

    async def _follow(self) -> None:
        for claim in list(self._claims.objects.values()):
            if claim.get("status", {}).get("phase") != "Bound":
                await self._bind(claim)
        present = {pod["metadata"]["uid"]: pod for pod in self._objects.objects.values()}
        for life in [one for one in self.pods.values() if one.uid not in present]:
            await self._end(life)
        for pod in present.values():
            with contextlib.suppress(NotFoundError):
                await self._look_at(pod)

    async def _bind(self, claim: dict[str, Any]) -> None:
        name = claim["metadata"]["name"]
        volume, status = {"spec": {"volumeName": f"volume-of-{name}"}}, {"status": {"phase": "Bound"}}
        with contextlib.suppress(NotFoundError):
            await self._api.patch(PERSISTENT_VOLUME_CLAIMS, name, volume, namespace=self._namespace)
            await self._api.patch(
                PERSISTENT_VOLUME_CLAIMS, name, status, namespace=self._namespace, subresource="status"
            )

    async def _look_at(self, pod: dict[str, Any]) -> None:
        name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
        life = self.pods.get(name)
        if names.LABEL_COPIES_FOR in pod["metadata"].get("labels", {}):
            await self._look_at_copy(pod)
        elif pod["metadata"].get("deletionTimestamp"):
            if life is not None:
                await self._end(life)
                await self._report(name, address=life.broker.host, exit_code=137)
            await self._api.delete(PODS, name, namespace=self._namespace, grace_period_seconds=0, uid=uid)
        elif pod_fence.is_stop_ordered(pod):
            if life is not None:  # its fence stops the broker, and the gate lets no other start
                await self._end(life)
                await self._report(name, address=life.broker.host, exit_code=0)
        elif life is None:
            await self._begin(pod)
        elif life.broker.dead:
            await self._end(life)
            await self._report(name, address=life.broker.host, exit_code=137)
            await self._begin(pod)

    async def _look_at_copy(self, pod: dict[str, Any]) -> None:
        """Run a copying pod to its end at once, as its program would say it."""
        name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
        if pod["metadata"].get("deletionTimestamp"):
            await self._api.delete(PODS, name, namespace=self._namespace, grace_period_seconds=0, uid=uid)
            return
        if pod.get("status", {}).get("phase") in {"Succeeded", "Failed"}:
            return
        member = next(one for one in pod["spec"]["volumes"] if one["name"] == names.VOLUME_STORE)
        claim = self._claims.objects.get((self._namespace, member["persistentVolumeClaim"]["claimName"]))
        if claim is None:
            return
        said, exit_code = self._copied(pod, claim), 0
        if isinstance(said, Manifest):
            message = msgspec.json.encode(said).decode()
        else:
            message, exit_code = said, 1
        ended = {"terminated": {"exitCode": exit_code, "message": message}}
        phase = "Failed" if exit_code else "Succeeded"
        status = {"phase": phase, "containerStatuses": [{"name": "copy", "state": ended}]}
        with contextlib.suppress(ApiError):
            await self._api.patch(PODS, name, {"status": status}, namespace=self._namespace, subresource="status")

    def _copied(self, pod: dict[str, Any], claim: dict[str, Any]) -> Manifest | str:
        environment = {one["name"]: one["value"] for one in pod["spec"]["containers"][0]["env"]}
        disk = self._disks.setdefault(claim["metadata"]["uid"], Disk())
        if (member := self.pods.get(claim["metadata"]["name"])) is not None:
            return f"files changed while they were copied: pod {member.name} runs on them"
        if "BACKUP_MANIFEST" in environment:
            known = msgspec.json.decode(environment["BACKUP_MANIFEST"], type=Manifest)
            if known.confirm_offset > disk.max_offset:
                return f"the log ends at {disk.max_offset}, though it had confirmed {known.confirm_offset}"
            end = {"offset": disk.max_offset, "store_epoch": disk.epoch_file, "bytes": disk.max_offset}
            return msgspec.structs.replace(known, **end, taken_at=rfc3339(BEGINNING_UNIX_SECONDS))
        if disk.broker_id is not None:
            return "the claim is not empty, it has brokerIdentity"
        found = self.backups[environment["BACKUP_NAME"]]
        disk.epoch_file, disk.max_offset = found.store_epoch, found.offset
        return found

    async def _begin(self, pod: dict[str, Any]) -> None:
        name = pod["metadata"]["name"]
        claim = self._claims.objects.get((self._namespace, name))
        if claim is None:
            return  # as a scheduler: a pod waits for its claim
        life = next(self._lives)
        if not pod["spec"].get("nodeName"):
            await self._api.bind_pod(name, namespace=self._namespace, node_name="node-1")
        disk = self._disks.setdefault(claim["metadata"]["uid"], Disk())
        broker = await self._broker(pod, disk, host=f"127.64.{life // 250}.{life % 250 + 1}")
        self.pods[name] = Pod(name, pod["metadata"]["uid"], f"{name}/{life}", broker)
        await self._report(name, address=broker.host, exit_code=None)
        self._loop.spawn(f"{name}/{life}", self._live(broker, disk))

    async def _broker(self, pod: dict[str, Any], disk: Disk, *, host: str) -> Broker:
        """Run the process of the pod's container."""
        return self.new_broker(
            self.group,
            broker_id=disk.broker_id,
            epoch_file=disk.epoch_file,
            max_offset=disk.max_offset,
            heartbeat_seconds=HEARTBEAT_SECONDS,
            host=host,
            port=BROKER_PORT,
        )

    async def _live(self, broker: Broker, disk: Disk) -> None:
        await broker.start()
        disk.broker_id = broker.broker_id
        while not broker.dead:
            disk.epoch_file, disk.max_offset = broker.epoch_file, max(broker.max_offset, MESSAGES)
            broker.max_offset = disk.max_offset
            if not broker.is_master and broker.master_address and not broker.ha_address:
                # As a Java slave that learns its master's HA address from a NameServer, if no 906 came.
                broker.ha_address = broker.ha_address_of_master()
                await broker.link()
            await asyncio.sleep(HEARTBEAT_SECONDS)

    async def _end(self, life: Pod) -> None:
        self.pods.pop(life.name, None)
        life.broker.dead = True
        for other in self.group.brokers.values():
            other.linked.discard(life.broker.broker_id)
        self._loop.kill(life.process)

    async def kill_process(self, name: str) -> None:
        """Kill the broker's process as by SIGKILL: the container ends, and the kubelet restarts it."""
        life = self.pods[name]
        life.broker.dead = True
        self._loop.kill(life.process)
        self._changed.set()

    async def _report(self, name: str, *, address: str, exit_code: int | None) -> None:
        runs = exit_code is None
        state = {"running": {}} if runs else {"terminated": {"exitCode": exit_code}}
        status = {
            "phase": "Running",
            "podIP": address,
            "hostIP": address,
            "conditions": [{"type": "Ready", "status": "True" if runs else "False"}],
            "containerStatuses": [
                {
                    "name": names.CONTAINER_BROKER,
                    "state": state,
                    "ready": runs,
                    "restartCount": 0,
                    "image": "",
                    "imageID": "",
                }
            ],
        }
        with contextlib.suppress(ApiError):
            await self._api.patch(
                PODS,
                name,
                {"status": status},
                namespace=self._namespace,
                subresource="status",
                content_type=PatchType.MERGE,
            )
