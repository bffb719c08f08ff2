"""Shows the fence with unmodified Java brokers (issue 6, item 6; ADR 8): frozen masters, cut-off masters, and a control
without fences.

    python -m tests.fence.run           with the full numbers (`--help`)
    python -m tests.fence.run --freezes 3 --partitions 3 --severed 2 --control 3 --outages 1 --api-outages 1

* *Freeze*: SIGSTOP of the master while sends wait in its sockets, SIGCONT after another master has acknowledged.
* *Partition*: nftables drops all traffic of the master's pod with operator and replicas, clients still reach it; its node
  is cut off from the API too, so that only the fence in the pod is left.
* *Severed*: the master's pod is cut off together with one of the two operators: that one goes on answering its fence, and the
  other elects. The fence must have killed the master before that.
* *Outage*: all operators are killed and restarted after several isolation timeouts: no master may die of it.
* *API outage*: the operators run on, and lose the API for as long: no master may die of it.
* *Pause* (``--pauses``): broker and in-pod fence freeze together on a node that is cut off, the broker wakes first. The fence
  can then only be quick; pauses are counted separately.
* *Control*: freezes without fences. They must lose messages, or the test proves nothing.

After each strike the then master's log must have all messages acknowledged so far. The last line of the
output is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import logging
import os
import random
import shutil
import signal
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog

from brokergroup_operator.demo.client import Ledger, ReadbackError, read_keys
from brokergroup_operator.demo.processes import hold
from rocketmq_remoting.errors import RemotingError
from tests.fence.java_cluster import ClusterError, JavaCluster, cut_off, heal, java_cluster, read_yaml, say
from tests.fence.spies import QUEUES, TOPIC, Spy
from tests.real.parts import install
from tests.real.parts.steps import apt_install

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

REPOSITORY = Path(__file__).resolve().parents[2]
ELECTED_SECONDS = 30.0
READ_SECONDS = 60.0
ENOUGH_CONTROLS = 10
# Measured: a frozen master's messages in flight are given up after 3 s.
HEARTBEAT_TIMEOUT_MS = 1500
SPY_PAUSE_SECONDS = 0.03
# The largest possible backlog if there are few strikes (each reads the whole log).
CONTROL_PAUSE_SECONDS = 0.01
OUTAGE_SECONDS = 10.0
BRIDGE, SUBNET = "bgfen0", "10.91.0.0/24"


@dataclass
class Tally:
    """The strikes and their cost."""

    struck: dict[str, int] = field(default_factory=dict)
    lost: dict[str, int] = field(default_factory=dict)
    runs_with_loss: dict[str, int] = field(default_factory=dict)
    acked: int = 0
    failovers_ms: dict[str, list[float]] = field(default_factory=dict)
    killed_by_pod_fence: int = 0
    masters_lost_to_outages: int = 0
    masters_lost_to_api_outages: int = 0
    severed_dead_before_election: int = 0
    unfenced: int = 0


@dataclass
class Strikes:
    """One cluster with spies, and its kinds of strikes."""

    cluster: JavaCluster
    ledger: Ledger
    tally: Tally
    choose: random.Random
    known_lost: set[str] = field(default_factory=set)

    async def strike(self, kind: str, how: Callable[[int], Awaitable[None]]) -> None:
        """Make one strike, wait until the group is whole, and account for messages."""
        group = self.cluster.group
        master = group.master_id
        if master is None:
            raise ClusterError("no master before a strike")
        say(f"{kind} {self.tally.struck.get(kind, 0) + 1}: master {master}, epoch {group.master_epoch}")
        await how(master)
        await self.cluster.until_whole(kind)
        new = {key for key in await self._missing() if key not in self.known_lost}
        self.known_lost |= new
        if new:
            say(f"LOST {len(new)}: {sorted(new)[:10]}")
        self.tally.struck[kind] = self.tally.struck.get(kind, 0) + 1
        self.tally.lost[kind] = self.tally.lost.get(kind, 0) + len(new)
        self.tally.runs_with_loss[kind] = self.tally.runs_with_loss.get(kind, 0) + bool(new)

    async def _missing(self) -> set[str]:
        acknowledged = {entry.key for entry in list(self.ledger.acknowledgements)}
        deadline = asyncio.get_running_loop().time() + READ_SECONDS
        while True:
            address = self.cluster.group.master_address()
            try:
                if address is not None:
                    return acknowledged - await read_keys(address, TOPIC, QUEUES)
            except (RemotingError, ReadbackError) as error:
                if asyncio.get_running_loop().time() > deadline:
                    raise ClusterError(f"cannot read the master's log: {error}") from error
            await asyncio.sleep(0.5)

    async def _another_master(self, kind: str, epoch: int, *, elected: Callable[[], None] = lambda: None) -> None:
        """Wait until another master acknowledges. ``elected`` is called as soon as the record names it."""
        began = asyncio.get_running_loop().time()
        await self.cluster.until("another master", lambda: self.cluster.group.master_epoch > epoch, ELECTED_SECONDS)
        elected()
        count = len(self.ledger.acknowledgements)
        await self.cluster.until(
            "the new master acknowledges", lambda: len(self.ledger.acknowledgements) > count + 20, ELECTED_SECONDS
        )
        self.tally.failovers_ms.setdefault(kind, []).append((asyncio.get_running_loop().time() - began) * 1000)

    async def freeze(self, master: int) -> None:
        """Freeze the master with both fences, the operator's and the pod's."""
        epoch = self.cluster.group.master_epoch
        with hold(self.cluster.pids(master)["broker"]) as broker:
            broker.freeze()
            await self._another_master("freeze", epoch)
            await asyncio.sleep(self.choose.uniform(0.0, 1.0))
            broker.thaw()

    async def partition(self, master: int) -> None:
        """Cut the master off, with only the pod's fence."""
        epoch, cluster = self.cluster.group.master_epoch, self.cluster
        namespace = cluster.namespace_of(master)
        others = [cluster.address_of(other) for other in cluster.broker_ids() if other != master]
        hosts = [address.rpartition(":")[0] for address in others if address is not None]
        cluster.gate.open.clear()
        cut_off(namespace, [*hosts, *cluster.operators.hosts])
        try:
            await self._another_master("partition", epoch)
            await asyncio.sleep(self.choose.uniform(0.0, 2.0))
        finally:
            heal(namespace)
            cluster.gate.open.set()

    async def pause(self, master: int) -> None:
        """Freeze broker and fence together, on a node that is cut off."""
        epoch = self.cluster.group.master_epoch
        pids = self.cluster.pids(master)
        with hold(pids["broker"]) as broker, hold(pids["fence"]) as fence:
            self.cluster.gate.open.clear()
            try:
                broker.freeze()
                fence.freeze()
                await self._another_master("pause", epoch)
                broker.thaw()
                fence.thaw()
                await asyncio.sleep(2.0)
            finally:
                self.cluster.gate.open.set()

    async def severed(self, master: int) -> None:
        """Cut the master off together with one operator, with only the pod's fence."""
        epoch, cluster = self.cluster.group.master_epoch, self.cluster
        broker = cluster.pids(master)["broker"]
        others = [cluster.address_of(other) for other in cluster.broker_ids() if other != master]
        near, *far = cluster.operators.hosts
        beyond = [*(address.rpartition(":")[0] for address in others if address is not None), *far]
        namespaces = {
            cluster.namespace_of(master): beyond,
            cluster.network.namespace_of(near): [*beyond, cluster.network.node_ip],
        }

        def note() -> None:
            self.tally.severed_dead_before_election += not is_running(broker)

        cluster.gate.open.clear()
        for namespace, addresses in namespaces.items():
            cut_off(namespace, addresses)
        try:
            await self._another_master("severed", epoch, elected=note)
            await asyncio.sleep(self.choose.uniform(0.0, 2.0))
        finally:
            for namespace in namespaces:
                heal(namespace)
            cluster.gate.open.set()

    async def outage(self, master: int) -> None:
        """Kill all controllers for a while."""
        state = self._state()
        self.cluster.operators.kill()
        await asyncio.sleep(OUTAGE_SECONDS)
        self.cluster.operators.start()
        self.tally.masters_lost_to_outages += await self._has_cost_a_master("an outage of the operators", state)

    async def api_outage(self, master: int) -> None:
        """Cut all controllers off from the API for a while; brokers and their fences still reach them."""
        state, network = self._state(), self.cluster.network
        namespaces = [network.namespace_of(host) for host in self.cluster.operators.hosts]
        for namespace in namespaces:
            cut_off(namespace, [network.node_ip])
        try:
            await asyncio.sleep(OUTAGE_SECONDS)
        finally:
            for namespace in namespaces:
                heal(namespace)
        self.tally.masters_lost_to_api_outages += await self._has_cost_a_master("an outage of the API", state)

    def _state(self) -> tuple[int | None, int, int]:
        return self.cluster.group.master_id, self.cluster.group.master_epoch, self._killed()

    async def _has_cost_a_master(self, what: str, before: tuple[int | None, int, int]) -> bool:
        """Watch for as long as the outage was, after its end."""
        count = len(self.ledger.acknowledgements)
        await self.cluster.until(
            "acknowledged", lambda: len(self.ledger.acknowledgements) > count + 20, ELECTED_SECONDS
        )
        await asyncio.sleep(OUTAGE_SECONDS)
        if (now := self._state()) != before:
            say(f"{what} cost a master: {before} -> {now}")
        return now != before

    def _killed(self) -> int:
        return sum(line["event"] == "killed" for line in self.cluster.fence_log())

    async def freeze_unfenced(self, master: int) -> None:
        """Freeze the master without fences: the node is cut off, and the pod has none."""
        epoch = self.cluster.group.master_epoch
        with hold(self.cluster.pids(master)["broker"]) as broker:
            self.cluster.gate.open.clear()
            try:
                broker.freeze()
                await self._another_master("control", epoch)
                await asyncio.sleep(self.choose.uniform(0.0, 1.0))
                broker.thaw()
                await asyncio.sleep(2.0)
            finally:
                self.cluster.gate.open.set()


@contextlib.asynccontextmanager
async def under_spies(
    folder: Path, tally: Tally, options: argparse.Namespace, *, isolation: bool
) -> AsyncIterator[Strikes]:
    """Start a group of three Java brokers, and producers that never stop."""
    await asyncio.to_thread(_empty, folder)
    failover = {"heartbeatTimeoutMilliseconds": HEARTBEAT_TIMEOUT_MS, "isolation": {"enabled": isolation}}
    spec = {"failover": failover, "version": options.java_version}
    name_server = read_yaml(REPOSITORY / "examples" / "nameserver.yaml")
    async with java_cluster(
        folder, bridge=BRIDGE, subnet=SUBNET, name_server=name_server, spec=spec, planes=2 if isolation else 1
    ) as cluster:
        ledger, keys = Ledger(), itertools.count(1)
        name = cluster.group.name
        routes = [
            cluster.group.master_address,
            *(lambda one=one: cluster.address_of(one) for one in cluster.broker_ids()),
        ]
        spies = [
            Spy(route, name, ledger, keys, SPY_PAUSE_SECONDS if isolation else CONTROL_PAUSE_SECONDS)
            for route in routes
        ]
        tasks = [asyncio.create_task(spy.run()) for spy in spies]
        try:
            await cluster.until("the first acknowledgements", lambda: len(ledger.acknowledgements) > 50)
            yield Strikes(cluster, ledger, tally, random.Random(options.seed))
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            tally.acked += len(ledger.acknowledgements)
            tally.killed_by_pod_fence += sum(line["event"] == "killed" for line in cluster.fence_log())
            tally.unfenced += sum(bool(entry.get("unfenced")) for entry in cluster.incidents())


def is_running(pid: int) -> bool:
    """Whether the process runs: a zombie is dead."""
    try:
        return (
            Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()[0] != "Z"
        )
    except (FileNotFoundError, ProcessLookupError):
        return False


def _empty(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)


async def run_all(options: argparse.Namespace, folder: Path) -> tuple[Tally, Tally]:
    """Run the fenced strikes on one cluster, and the control on another."""
    fenced, control = Tally(), Tally()
    strikes_with_fences = ("freezes", "partitions", "severed", "outages", "api_outages", "pauses")
    if any(getattr(options, kind) for kind in strikes_with_fences):
        async with under_spies(folder / "fenced", fenced, options, isolation=True) as strikes:
            for _ in range(options.freezes):
                await strikes.strike("freeze", strikes.freeze)
            for _ in range(options.partitions):
                await strikes.strike("partition", strikes.partition)
            for _ in range(options.severed):
                await strikes.strike("severed", strikes.severed)
            for _ in range(options.outages):
                await strikes.strike("outage", strikes.outage)
            for _ in range(options.api_outages):
                await strikes.strike("api outage", strikes.api_outage)
            for _ in range(options.pauses):
                await strikes.strike("pause", strikes.pause)
    if options.control:
        async with under_spies(folder / "control", control, options, isolation=False) as strikes:
            for _ in range(options.control):
                await strikes.strike("control", strikes.freeze_unfenced)
    return fenced, control


def verdict(fenced: Tally, control: Tally) -> dict[str, Any]:
    """Return the verdict for the JSON line."""
    return {
        "freezes": fenced.struck.get("freeze", 0),
        "partitions": fenced.struck.get("partition", 0),
        "severed": {"count": fenced.struck.get("severed", 0), "dead_first": fenced.severed_dead_before_election},
        "acked": fenced.acked,
        "lost": sum(lost for kind, lost in fenced.lost.items() if kind != "pause"),
        "unfenced_control_lost": control.lost.get("control", 0),
        "control_freezes": control.struck.get("control", 0),
        "control_freezes_with_loss": control.runs_with_loss.get("control", 0),
        "control_acked": control.acked,
        "operator_outages": {"count": fenced.struck.get("outage", 0), "masters_lost": fenced.masters_lost_to_outages},
        "api_outages": {
            "count": fenced.struck.get("api outage", 0),
            "masters_lost": fenced.masters_lost_to_api_outages,
        },
        "pauses": {"count": fenced.struck.get("pause", 0), "lost": fenced.lost.get("pause", 0)},
        "killed_in_pod": fenced.killed_by_pod_fence,
        "failover_ms": {kind: _figures(times) for kind, times in (fenced.failovers_ms | control.failovers_ms).items()},
    }


def _figures(times: list[float]) -> dict[str, float]:
    ordered = sorted(times)
    return {"min": round(ordered[0]), "p50": round(ordered[len(ordered) // 2]), "max": round(ordered[-1])}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--freezes", type=int, default=30)
    parser.add_argument("--partitions", type=int, default=30)
    parser.add_argument("--severed", type=int, default=10, help="partitions of master and one operator together")
    parser.add_argument("--outages", type=int, default=3, help="of the operators")
    parser.add_argument("--api-outages", type=int, default=3)
    parser.add_argument("--pauses", type=int, default=0)
    parser.add_argument("--control", type=int, default=12)
    parser.add_argument("--seed", type=int, default=1)
    versions = [install.NEWEST_ROCKETMQ_VERSION, install.ROCKETMQ_VERSION]
    parser.add_argument("--java-version", choices=versions, default=install.ROCKETMQ_VERSION)
    parser.add_argument("--directory", type=Path, help="kept afterwards; default: a temporary one")
    options = parser.parse_args(arguments)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    if os.geteuid() != 0:
        say("network namespaces need root")
        return 2
    if shutil.which("nft") is None:
        apt_install("nftables")
    failed = install.bring_all(["rocketmq", "newest-rocketmq"])
    for name, why in failed.items():
        say(f"{name}: {why}")
    if failed:
        return 2
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # stop all started processes, also after SIGTERM
    with contextlib.ExitStack() as stack:
        folder = options.directory or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        try:
            fenced, control = asyncio.run(run_all(options, folder.resolve()))
        except ClusterError as error:
            say(f"no verdict: {error}")
            return 2
    line = verdict(fenced, control)
    print(json.dumps(line))
    shown = line["control_freezes"] < ENOUGH_CONTROLS or line["unfenced_control_lost"] > 0
    asked = (line["freezes"], line["partitions"]) == (options.freezes, options.partitions)
    asked = asked and (line["severed"]["count"], line["api_outages"]["count"]) == (options.severed, options.api_outages)
    held = line["lost"] == 0 and line["severed"]["dead_first"] == options.severed
    held = held and line["operator_outages"]["masters_lost"] == line["api_outages"]["masters_lost"] == 0
    return 0 if held and asked and shown and (fenced.acked > 0 or control.acked > 0) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
