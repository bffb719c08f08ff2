"""One run: an API, nodes, three planes, brokers, NameServers and a producer in one process, in virtual time, by a seed."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from unittest import mock

from brokergroup_operator.api import names
from brokergroup_operator.kube.errors import ApiError
from brokergroup_operator.kube.resources import BROKER_GROUPS, CUSTOM_RESOURCE_DEFINITIONS, NAMESPACES
from brokergroup_operator.observe.group_view import GroupViewError
from brokergroup_operator.records.store import RecordStoreError
from tests.our_kinds import our_definitions
from tests.simulate.api import WRITER
from tests.simulate.client import Client
from tests.simulate.faults import Faults, Trap
from tests.simulate.kubelet import GROUP, NAMESPACE, Kubelet
from tests.simulate.name_server import NameServer
from tests.simulate.oracle import Oracle
from tests.simulate.planes import Plane
from tests.simulate.story import Story
from tests.support.memory_api import BEGINNING_UNIX_SECONDS, MemoryApi, MemoryApiServer
from tests.support.virtual_loop import NothingLeftError, VirtualLoop

if TYPE_CHECKING:
    from collections.abc import Callable

MINIMUM = 2
PLANES = 3
NAME_SERVER_PORT = 9876
BEGIN_SECONDS = 40.0
LONGEST_REST_SECONDS = 90.0
QUIET_SECONDS = 4.0
MOST_TURNS = 200_000


@dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    seed: int
    violations: tuple[str, ...]
    acknowledged: int
    excused: int
    virtual_seconds: float
    digest: str
    story: tuple[str, ...]


class World:
    """The parts of a run, and their access to each other."""

    def __init__(self, loop: VirtualLoop, seed: int) -> None:
        self.loop = loop
        self._random = random.Random(seed)
        self.story = Story()
        self.server = MemoryApiServer()
        self.oracle = Oracle(self, MINIMUM)
        self.kubelet = Kubelet(self, MemoryApi(self.server), MINIMUM)
        self.planes = [Plane(self, number) for number in range(PLANES)]
        self.client = Client(self)
        self.traps: list[Trap] = []
        self.excused = 0
        self._name_servers = [NameServer(self, f"ns-{number}") for number in range(self._random.choice((1, 1, 2)))]
        self.brokers = self._random.choice((3, 3, 3, 5))
        self._cuts: dict[tuple[str, str], int] = {}
        # The time at which each node was last killed, stopped or cut off, or recovered from that.
        self._troubles: dict[str, float] = {}
        self.is_mended = False
        # The longest transit time of a master's 1001.
        self.proposals_wait_seconds = 0.0
        loop.hosts.update({plane.node: plane.host for plane in self.planes})
        slowness = self._random.choice((1.0, 1.0, 5.0, 20.0))
        loop.travel_seconds = lambda: self._random.uniform(0.0001, 0.0003 * slowness)
        self.server.store.storage.listeners.append(self._committed)

    def draw(self, least: float, most: float) -> float:
        """Draw a duration."""
        return self._random.uniform(least, most)

    # ---- addresses and processes

    @property
    def plane_addresses(self) -> list[str]:
        return [plane.address for plane in self.planes]

    @property
    def name_server_addresses(self) -> list[str]:
        return [f"10.2.0.{number + 1}:{NAME_SERVER_PORT}" for number in range(len(self._name_servers))]

    def controllers_as_seen_by(self, node: str) -> list[str]:
        """Return the controllers' addresses; each broker's list starts at another one."""
        first = int(node.rpartition("-")[2]) % PLANES
        return self.plane_addresses[first:] + self.plane_addresses[:first]

    def plane(self, node: str) -> Plane:
        return next(plane for plane in self.planes if plane.node == node)

    def address_of_plane(self, node: str) -> str:
        """Return a plane's address; the empty text if no plane has this name."""
        return next((plane.address for plane in self.planes if plane.node == node), "")

    def node_at(self, host: str) -> str:
        planes = {plane.host: plane.node for plane in self.planes}
        return planes.get(host) or self.kubelet.node_at(host) or host

    def process_of(self, node: str) -> str:
        """Return the process that runs on a node now, or the empty text."""
        if node.startswith("plane-"):
            return self.plane(node).process
        pod = self.kubelet.pods.get(node)
        return pod.process if pod is not None else ""

    def is_reachable(self, node: str, process: str) -> bool:
        """Whether this process's packets reach the node now."""
        return not self.loop.is_frozen(process) and not self.loop.is_cut(node, process.partition("/")[0])

    def is_troubled(self, nodes: tuple[str, ...], since_seconds: float) -> bool:
        """Whether any of these nodes was killed, stopped or cut off since then."""
        for node in nodes:
            cut_now = any(count and node in pair for pair, count in self._cuts.items())
            if cut_now or self.loop.is_frozen(self.process_of(node)):
                return True
        return any(self._troubles.get(node, -1.0) >= since_seconds for node in nodes)

    def note_trouble(self, *nodes: str) -> None:
        """Note that these nodes are killed, stopped or cut off now, or recover now."""
        self._troubles |= dict.fromkeys(nodes, self.loop.time())

    # ---- faults

    async def effect(self, kind: int | str, what: str, *, sender: str, receiver: str) -> None:
        """A request that changes state arrives."""
        self.story.tell(f"{sender} > {receiver}: {what}")
        await self._spring(kind, "before", sender, receiver)

    async def effect_done(self, kind: int | str, *, sender: str, receiver: str) -> None:
        """The request was carried out, and has no answer yet."""
        await self._spring(kind, "after", sender, receiver)

    async def _spring(self, kind: int | str, moment: str, sender: str, receiver: str) -> None:
        for trap in [trap for trap in self.traps if (trap.kind, trap.moment) == (kind, moment)]:
            trap.countdown -= 1
            if trap.countdown <= 0:
                self.traps.remove(trap)
                self.story.tell(f"trap {moment} {kind}: {trap.what}")
                trap.spring(sender, receiver)
                await asyncio.sleep(0)  # a process that was just killed or stopped does not continue

    def kill(self, node: str) -> None:
        self.note_trouble(node)
        if node.startswith("plane-"):
            self.plane(node).kill()
        elif node.startswith(f"{GROUP}-"):
            self.kubelet.kill_process(node)

    def freeze(self, node: str, seconds: float) -> None:
        process = self.process_of(node)
        if process and not self.loop.is_frozen(process):
            self.story.tell(f"{process} is stopped for {seconds} s")
            self.note_trouble(node)
            self.loop.freeze(process)
            self.loop.spawn("test", self._thaw(process, seconds))

    async def _thaw(self, process: str, seconds: float) -> None:
        await asyncio.sleep(seconds)
        if self.loop.is_frozen(process):
            self.story.tell(f"{process} goes on")
            self.note_trouble(process.partition("/")[0])
            self.loop.thaw(process)

    def cut(self, one: str, other: str, seconds: float) -> None:
        if not {one, other} <= {*self.kubelet.wanted, *(plane.node for plane in self.planes)}:
            return
        self.story.tell(f"no way between {one} and {other} for {seconds} s")
        self.note_trouble(one, other)
        pair = (min(one, other), max(one, other))
        self._cuts[pair] = self._cuts.get(pair, 0) + 1
        self.loop.cut(*pair)
        self.loop.spawn("test", self._mend(pair, seconds))

    async def _mend(self, pair: tuple[str, str], seconds: float) -> None:
        await asyncio.sleep(seconds)
        self._cuts[pair] -= 1
        if not self._cuts[pair]:
            self.story.tell(f"a way between {pair[0]} and {pair[1]} again")
            self.note_trouble(*pair)
            self.loop.mend(*pair)

    def _committed(self, key: Any, name: Any, change: Any) -> None:
        obj = change.version.obj
        if obj.get("kind") == names.BROKER_GROUP_STATE_KIND and change.type != "DELETED":
            self.oracle.committed(obj["record"], WRITER.get())

    # ---- the run

    async def begin(self) -> None:
        """Start all parts, and wait until all members are in sync."""
        api = MemoryApi(self.server)
        for definition in our_definitions():
            await api.create(CUSTOM_RESOURCE_DEFINITIONS, definition)
        await api.create(NAMESPACES, {"metadata": {"name": NAMESPACE}})
        await api.create(BROKER_GROUPS, self._group())
        for number, server in enumerate(self._name_servers):
            host = f"10.2.0.{number + 1}"
            self.loop.hosts[f"ns-{number}"] = host
            self.loop.spawn(f"ns-{number}/1", server.run(host, NAME_SERVER_PORT))
        self.loop.spawn("kubelet", self.kubelet.run())
        for plane in self.planes:
            plane.start()
        await self._until(lambda: all(plane.plane for plane in self.planes), BEGIN_SECONDS, "planes")
        for broker_id in range(1, self.brokers + 1):
            await self.planes[0].reserve(broker_id)
            self.kubelet.want(broker_id)
        await self._until(self.is_at_rest, BEGIN_SECONDS, "first rest")
        self.loop.spawn("client", self.client.run())
        await asyncio.sleep(self.draw(1.0, 3.0))

    def _group(self) -> dict[str, Any]:
        spec = {
            "implementation": "Java",
            "brokerClusterName": "cl",
            "replicas": self.brokers,
            "durability": "Strict",
            "nameServers": self.name_server_addresses,
            "failover": {"heartbeatTimeoutMilliseconds": 2000},
        }
        return {
            "apiVersion": names.API_VERSION,
            "kind": names.BROKER_GROUP_KIND,
            "metadata": {"name": GROUP, "namespace": NAMESPACE},
            "spec": spec,
        }

    def is_at_rest(self) -> bool:
        """Whether one master serves, all members are linked and in sync, and no broker has a temporary setting."""
        record = self.oracle.records[-1] if self.oracle.records else {}
        brokers = self.kubelet.running()
        masters = [broker for broker in brokers if broker.is_master]
        ids = set(range(1, self.brokers + 1))
        return (
            len(brokers) == self.brokers
            and len(masters) == 1
            and masters[0].broker_id == record.get("masterBrokerId")
            and not record.get("masterProcessLost")
            and not record.get("change")
            and set(record.get("syncStateSet", ())) == ids == masters[0].server.in_sync
            and all(masters[0].server.has_everything(one) for one in ids - {masters[0].broker_id})
            and all(broker.epoch == record["masterEpoch"] for broker in brokers)
            and all(disk.minimum == MINIMUM for disk in self.kubelet.disks.values())
        )

    async def _until(self, holds: Callable[[], Any], within_seconds: float, what: str) -> bool:
        ends_at = self.loop.time() + within_seconds
        while not holds():
            if self.loop.time() > ends_at:
                self.oracle.complain(f"no {what} within {within_seconds:.0f} s: {self._how_it_stands()}")
                return False
            await asyncio.sleep(0.1)
        return True

    def _how_it_stands(self) -> str:
        record = self.oracle.records[-1] if self.oracle.records else {}
        found = ", ".join(
            f"{broker.node} {'master' if broker.is_master else 'slave'} epoch {broker.epoch} log {broker.disk.end} "
            f"links {sorted(broker.server.links)} set {sorted(broker.server.in_sync)} at {broker.follower.address}"
            for broker in self.kubelet.running()
        )
        told = {node: disk.minimum for node, disk in self.kubelet.disks.items() if disk.minimum != MINIMUM}
        return (
            f"record epoch {record.get('masterEpoch')} master {record.get('masterBrokerId')} lost "
            f"{record.get('masterProcessLost')} set {record.get('syncStateSet')}; {found}; minimums {told}"
        )

    async def run(self, faults: random.Random) -> None:
        await self.begin()
        if self.oracle.violations:
            return
        self.story.tell("---- faults begin")
        await Faults(self, faults).run()
        self._mend_all()
        self.story.tell("---- all is mended")
        await self._until(self._serves, LONGEST_REST_SECONDS, "rest")
        await asyncio.sleep(QUIET_SECONDS)
        # A pod deleted just before the faults ended may have started another change of master meanwhile.
        await self._until(self._serves, LONGEST_REST_SECONDS, "rest after a while")
        self.oracle.judge(list(self.client.acknowledged))

    def _mend_all(self) -> None:
        self.is_mended = True
        self.proposals_wait_seconds = 0.0
        self.traps.clear()
        for pair in [pair for pair, count in self._cuts.items() if count]:
            self.loop.mend(*pair)
        for plane in self.planes:
            trouble = plane.trouble
            trouble.down = trouble.watches_stand = False
            trouble.delay_seconds = 0.0
            trouble.answers_lost = trouble.requests_lost = trouble.conflicts = trouble.too_many = 0
        for process in [self.process_of(node) for node in (*self.kubelet.wanted, *(one.node for one in self.planes))]:
            self.loop.thaw(process)
        self._acknowledged_before = len(self.client.acknowledged)

    def _serves(self) -> bool:
        return self.is_at_rest() and len(self.client.acknowledged) > self._acknowledged_before


async def _life(loop: VirtualLoop, seed: int, worlds: list[World]) -> None:
    world = World(loop, seed)
    worlds.append(world)
    await world.run(random.Random(f"faults of {seed}"))


def simulate(seed: int) -> Outcome:
    """Run one seed from an empty API to its verdict. The same seed gives the same story."""
    random.seed(seed)  # the product's own jitter
    loop = VirtualLoop(most_turns=MOST_TURNS)
    worlds: list[World] = []

    def unix_seconds() -> float:
        return BEGINNING_UNIX_SECONDS + loop.time()

    with (
        mock.patch("time.monotonic", new=loop.time),
        mock.patch("time.time", new=unix_seconds),
    ):
        try:
            loop.run_until_complete(loop.create_task(_life(loop, seed, worlds)))
        except NothingLeftError as error:
            worlds[0].oracle.violations.append(f"it spins: {error}")
        except (GroupViewError, RecordStoreError, ApiError) as error:  # before the first fault: even the start fails
            worlds[0].oracle.violations.append(f"the group is not even made: {error}")
        world = worlds[0]
        outcome = Outcome(
            seed=seed,
            violations=tuple(world.oracle.violations),
            acknowledged=len(world.client.acknowledged),
            excused=world.excused,
            virtual_seconds=loop.time(),
            digest=world.story.digest(),
            story=tuple(world.story.lines),
        )
        loop.finish()
    return outcome
