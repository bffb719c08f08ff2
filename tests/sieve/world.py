"""One run of one story: an API, a node, an operator that restarts when it dies, and at most one perturbation."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import itertools
import random
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

from brokergroup_operator.api import backup_fields, names
from brokergroup_operator.controller.peers import offset_reader
from brokergroup_operator.kube import resources
from brokergroup_operator.kube.resources import (
    BROKER_GROUP_OPERATIONS,
    BROKER_GROUPS,
    CUSTOM_RESOURCE_DEFINITIONS,
    NAMESPACES,
)
from brokergroup_operator.reconcile import reconciler
from brokergroup_operator.reconcile.operations import runner
from tests.our_kinds import our_definitions
from tests.sieve.cluster import Node
from tests.sieve.operator_process import run_operator
from tests.sieve.perturbed_api import Counts, PerturbedApi, Plan
from tests.support.memory_api import BEGINNING_UNIX_SECONDS, MemoryApi, MemoryApiServer
from tests.support.virtual_loop import VirtualLoop

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

NAMESPACE, NAME = "shop", "bn"
SEED = 1
RESTART_SECONDS = 0.5
QUIET_SECONDS = 8.0
LONGEST_SECONDS = 300.0
COMPARED = (
    resources.BROKER_GROUPS, resources.BROKER_GROUP_STATES, resources.PODS, resources.PERSISTENT_VOLUME_CLAIMS, resources.SERVICES,
    resources.CONFIG_MAPS, resources.POD_DISRUPTION_BUDGETS, resources.NETWORK_POLICIES, BROKER_GROUP_OPERATIONS,
)  # fmt: skip


@dataclass
class Outcome:
    """How a run ended."""

    end: dict[str, Any]
    counts: Counts
    laws_broken: list[str] = field(default_factory=list)
    # The operator's requests: method, path, content type.
    asked: list[tuple[str, str, str]] = field(default_factory=list)


class World:
    """A story's interface: `api`, `node`, `mark`, `settle`."""

    def __init__(self, loop: VirtualLoop, plan: Plan | None) -> None:
        self.loop = loop
        self.server = MemoryApiServer()
        self.api = MemoryApi(self.server)
        self.node = Node(loop, self.api, NAMESPACE)
        self.counts = Counts()
        self.asked: list[tuple[str, str, str]] = []
        self._plan = plan
        self._marked = False
        self._numbers = itertools.count(1)
        self._client: PerturbedApi | None = None
        self._writes = 0
        self._last_write_seconds = 0.0
        self.laws_broken: list[str] = []
        self._epochs: dict[int, int | None] = {}
        self._next_id = 0
        self.server.store.storage.listeners.append(self._committed)

    async def begin(self) -> None:
        """Create kinds, namespace, node, operator."""
        for definition in our_definitions():
            await self.api.create(CUSTOM_RESOURCE_DEFINITIONS, definition)
        await self.api.create(NAMESPACES, {"metadata": {"name": NAMESPACE}})
        self.loop.spawn("node", self.node.run())
        self.start_operator()

    def start_operator(self) -> None:
        """Start the operator's next process, with the same counters and no second perturbation."""
        process = self._process = f"operator-{next(self._numbers)}"

        def kill() -> None:
            self._plan = None
            self.loop.spawn("test", self._killed(process))

        client = PerturbedApi(self.server, kill, lambda: self.loop.is_dead(process))
        client.asked = self.asked
        self._client = client
        self._arm()
        self._operator = self.loop.spawn(process, run_operator(client, NAMESPACE))

    async def restart_operator(self) -> None:
        """Start a next process before the mark: it has seen no election."""
        await self._killed(self._process)

    async def _killed(self, process: str) -> None:
        self.loop.kill(process)
        await asyncio.sleep(RESTART_SECONDS)
        self.start_operator()

    def mark(self) -> None:
        """Start counting actions and applying the plan."""
        self._marked = True
        self._arm()

    def _arm(self) -> None:
        assert self._client is not None
        self._client.counts = self.counts if self._marked else None
        self._client.plan = self._plan

    async def settle(self, until: Callable[[dict[str, Any]], bool] | None = None) -> None:
        """Run until the group matches its spec and no write came for a while."""
        ends_at = self.loop.time() + LONGEST_SECONDS
        while True:
            await asyncio.sleep(0.5)
            if self._operator.done():
                self._operator.result()  # it should run until it is killed, so it has failed
            quiet = self.loop.time() - self._last_write_seconds >= QUIET_SECONDS
            if quiet and (until is None or until(await self.group())):
                return
            if self.loop.time() > ends_at:
                seen = {
                    name: item for name, item in (await self.everything()).items() if name.startswith("BrokerGroup")
                }
                raise AssertionError(f"no rest within {LONGEST_SECONDS} s: {seen}")

    async def group(self) -> dict[str, Any]:
        """Return the BrokerGroup."""
        with contextlib.suppress(Exception):
            return await self.api.get(BROKER_GROUPS, NAME, namespace=NAMESPACE)
        return {}

    async def create_group(self, **spec: Any) -> None:
        group = {
            "apiVersion": names.API_VERSION,
            "kind": names.BROKER_GROUP_KIND,
            "metadata": {"name": NAME, "namespace": NAMESPACE},
            "spec": {"implementation": "Python", "brokerClusterName": "cl", **spec},
        }
        await self.api.create(BROKER_GROUPS, group)

    def _committed(self, key: Any, name: Any, change: Any) -> None:
        """Check every commit: laws hold at each moment, not only at the end."""
        obj = change.version.obj
        if obj.get("kind") == "Event":
            return
        self._last_write_seconds = self.loop.time()
        if obj.get("kind") == names.BROKER_GROUP_STATE_KIND and change.type != "DELETED":
            self._judge(obj["record"])

    def _judge(self, record: dict[str, Any]) -> None:
        epoch, master = record.get("masterEpoch", 0), record.get("masterBrokerId")
        if self._epochs and epoch < max(self._epochs):
            self.laws_broken.append(f"masterEpoch fell to {epoch}")
        if master is not None and self._epochs.setdefault(epoch, master) not in (None, master):
            self.laws_broken.append(f"epoch {epoch} has two masters: {self._epochs[epoch]} and {master}")
        if record.get("nextBrokerId", 0) < self._next_id:
            self.laws_broken.append(f"nextBrokerId fell to {record.get('nextBrokerId')}")
        self._next_id = record.get("nextBrokerId", 0)

    async def everything(self) -> dict[str, Any]:
        """Return the group's objects without values that may differ between good runs. All must name one master."""
        result: dict[str, Any] = {}
        masters: dict[str, list[Any]] = {"record": [], "status": [], "labels": []}
        for resource in COMPARED:
            for item in (await self.api.list(resource, namespace=NAMESPACE)).items:
                result[f"{resource.kind} {item['metadata']['name']}"] = comparable(item)
                _note_master(item, masters)
        if masters["record"] != masters["status"] or masters["record"] != masters["labels"]:
            self.laws_broken.append(f"not one master at the end: {masters}")
        result["masters"] = len(masters["record"])
        return result


def _note_master(item: dict[str, Any], masters: dict[str, list[Any]]) -> None:
    """Collect the master's broker id from the record, the status and the pods' labels."""
    labels = item["metadata"].get("labels", {})
    if item["kind"] == names.BROKER_GROUP_STATE_KIND and item["record"].get("masterBrokerId") is not None:
        masters["record"].append(item["record"]["masterBrokerId"])
    elif item["kind"] == names.BROKER_GROUP_KIND and item.get("status", {}).get("master"):
        masters["status"].append(item["status"]["master"]["brokerId"])
    elif item["kind"] == "Pod" and labels.get(names.LABEL_ROLE) == names.ROLE_MASTER:
        masters["labels"].append(int(labels[names.LABEL_BROKER_ID]))


# Times, names of versions, addresses (a pod gets a new one in each life), and counts of elections and changes of master: a
# perturbation may cost one.
VOLATILE = {
    "uid", "resourceVersion", "generation", "observedGeneration", "creationTimestamp", "deletionTimestamp",
    "lastTransitionTime", "managedFields", "clusterIP", "clusterIPs", "brokergroup.dev/last-write", "brokergroup.dev/revision",
    names.ANNOTATION_STARTED_AT,
    "podIP", "podIPs", "hostIP", "hostIPs", "address", "registerCheckCode", "startTime", "startedAt", "completedAt", "since",
    "epoch", "masterEpoch", "syncStateSetEpoch", "heldEpoch", "heldOffset", "failovers", "history",
    "durationMilliseconds", "milliseconds", "phases", "podUID", "message", "podIPSince", "currentRevision", "updateRevision",
    "podUid", "comparedAt", "earlyErrors", "cutAt", "takenAt", "confirmOffset", "offset", "bytes",
    "revision", "endpoints", "lagBytes", "changeId", "role", names.LABEL_ROLE, "master", "masterBrokerId",
    "position", "watchedSince", "groupUid",
}  # fmt: skip


def comparable(value: Any) -> Any:
    """Return the value without volatile parts."""
    if isinstance(value, dict):
        return {key: comparable(item) for key, item in sorted(value.items()) if key not in VOLATILE}
    if isinstance(value, list):
        return [comparable(item) for item in value]
    return value


async def _story(loop: VirtualLoop, story: Callable[[World], Awaitable[None]], plan: Plan | None) -> Outcome:
    world = World(loop, plan)
    await world.begin()
    await story(world)
    end = await world.everything()
    # As of now: the tasks that `finish` cancels may ask some more, in an order of their own.
    return Outcome(end, copy.deepcopy(world.counts), world.laws_broken, list(world.asked))


def told(story: Callable[[World], Awaitable[None]], plan: Plan | None = None) -> Outcome:
    """Run a story from an empty API to its end in virtual time."""
    random.seed(SEED)  # backoff uses random jitter: the same in each run
    loop = VirtualLoop()
    # The product's wall clock is the API's: a pod's age must not depend on the day of the run.
    clock = SimpleNamespace(time=lambda: BEGINNING_UNIX_SECONDS + loop.time())
    try:
        with contextlib.ExitStack() as patches:
            for module in (reconciler, runner, offset_reader):
                patches.enter_context(mock.patch.object(module, "time", clock))
            # A restored group's ids follow from its uid, which is another in each run.
            patches.enter_context(mock.patch.multiple(backup_fields, EPOCH_BLOCKS=1, BROKER_ID_BLOCKS=1))
            main = loop.create_task(_story(loop, story, plan))
            return loop.run_until_complete(main)
    finally:
        loop.finish()
