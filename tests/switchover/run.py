"""Planned moves of the master under load: the gap without acknowledgements, the time to a full set, lost messages, and the
order of requests to brokers.

    python -m tests.switchover.run                              30 switchovers of Java brokers, 3 rolling restarts, 5 drains
    python -m tests.switchover.run --implementation Python     the same with Python replicas
    python -m tests.switchover.run --switchovers 5 --rolls 1 --drains 1
    python -m tests.switchover.run --planes 1 --api embedded    one operator at the sandbox's API, not three at a kube-apiserver

Each switchover is a BrokerGroupOperation, as a user creates it; a rolling restart one of type Restart; a drain is the
deletion of the master's pod with its grace period. The load comes from the unmodified Java client, which polls its route
every 200 ms (`--route-poll-ms`: each gap may include a whole poll interval) and retries a failed send for three
seconds: a failed send is one without an acknowledgement after that. A gap is the longest time between two acknowledgements
during the move. The order of each switchover comes from the Java brokers' own logs (`orders.py`). The last line of the
output is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import logging
import mmap
import os
import shutil
import signal
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog

from brokergroup_operator.demo.client import ReadbackError, read_keys
from brokergroup_operator.demo.our_sandbox import installed_api_server
from brokergroup_operator.kube.resources import BROKER_GROUP_OPERATIONS, BROKER_GROUPS, PODS
from kube_sandbox.real_api_server import ApiServerProgramsError
from rocketmq_remoting.errors import RemotingError
from tests.fence.java_cluster import GROUP, JVM, NAMESPACE, ClusterError, JavaCluster, java_cluster, read_yaml, say
from tests.real.parts import install
from tests.real.parts.java_producer import JavaProducer, start_producer
from tests.switchover.orders import LOGBACK, BrokerLogs, Move, complaints

if TYPE_CHECKING:
    from brokergroup_operator.json_object import JsonObject

REPOSITORY = Path(__file__).resolve().parents[2]
TOPIC, QUEUES = "numbered", 4
RETRY_FOR_MS = 3000
OPERATION_SECONDS = 60.0
SAFE_SECONDS = 180.0
ROLL_SECONDS = 600.0
READ_SECONDS = 60.0
DRAIN_GRACE_SECONDS = 30
# The acknowledgement that ends a gap may come shortly after the group's status is whole.
AFTERWARDS_SECONDS = 0.5
BRIDGE, SUBNET = "bgswi0", "10.92.0.0/24"
MOST_LOST_REPORTED = 5
PHASES_AT_END = ("Succeeded", "Failed", "Rejected")


@dataclass
class Moves:
    """One kind of move, and the results of each."""

    count: int = 0
    gaps_ms: list[float] = field(default_factory=list)
    set_full_ms: list[float] = field(default_factory=list)
    operation_ms: list[float] = field(default_factory=list)
    stuck: list[str] = field(default_factory=list)
    orders_judged: int = 0
    orders_wrong: int = 0

    def as_json(self) -> JsonObject:
        return {
            "count": self.count,
            "gap_ms": figures(self.gaps_ms),
            "set_full_ms": figures(self.set_full_ms),
            "operation_ms": figures(self.operation_ms),
            "stuck": len(self.stuck),
        }


def figures(values: list[float]) -> dict[str, float] | None:
    """Return the figures; None without measurements."""
    if not values:
        return None
    ordered = sorted(values)

    def rank(share: float) -> float:
        return round(ordered[min(len(ordered) - 1, int(share * len(ordered)))], 1)

    return {"min": rank(0.0), "p50": rank(0.5), "p99": rank(0.99), "max": rank(1.0)}


@dataclass
class Bench:
    """A cluster under load."""

    cluster: JavaCluster
    producer: JavaProducer
    folder: Path
    # None if the brokers are not Java's.
    logs: BrokerLogs | None = None
    _numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    async def switch(self, moves: Moves) -> None:
        """Switch over to the next member in the set."""
        group = self.cluster.group
        others = [broker_id for broker_id in group.sync_state_set if broker_id != group.master_id]
        target = next((one for one in others if one > (group.master_id or 0)), others[0])
        say(f"switchover {moves.count + 1}: {group.master_id} -> {target}, epoch {group.master_epoch}")
        move = Move(group.master_epoch + 1, group.master_id or 0, target, self._hosts())
        if self.logs is not None:
            self.logs.read()
        stuck = len(moves.stuck)
        await self._measured(
            moves,
            self._operate(
                "Switchover", {"switchover": {"toBrokerId": target, "deadlineSeconds": int(OPERATION_SECONDS)}}
            ),
        )

        if self.logs is not None and len(moves.stuck) == stuck:
            wrong = complaints(self.logs.read(), move)
            moves.orders_judged += 1
            moves.orders_wrong += bool(wrong)
            for complaint in wrong:
                say(f"ORDER: {complaint}")

    def _hosts(self) -> dict[int, str]:
        found = {one: self.cluster.address_of(one) or "" for one in self.cluster.broker_ids()}
        return {one: address.rpartition(":")[0] for one, address in found.items()}

    async def roll(self, moves: Moves) -> None:
        """Restart all members, one by one."""
        say(f"rolling restart {moves.count + 1}: master {self.cluster.group.master_id}")
        await self._measured(moves, self._operate("Restart", {"restart": {}}, seconds=ROLL_SECONDS))

    async def drain(self, moves: Moves) -> None:
        """Delete the master's pod as a user or an eviction would."""
        master = self.cluster.group.master_id
        assert master is not None
        say(f"drain {moves.count + 1}: master {master}")
        await self._measured(moves, self._delete(self.cluster.pod_of(master)))

    async def _delete(self, pod: str) -> str | None:
        uid = (await self.cluster.api.get(PODS, pod, namespace=NAMESPACE))["metadata"]["uid"]
        epoch = self.cluster.group.master_epoch
        await self.cluster.api.delete(PODS, pod, namespace=NAMESPACE, grace_period_seconds=DRAIN_GRACE_SECONDS, uid=uid)
        try:
            await self.cluster.until(
                "another master", lambda: self.cluster.group.master_epoch > epoch, OPERATION_SECONDS
            )
        except ClusterError as error:
            return str(error)
        return None

    async def _measured(self, moves: Moves, move: Any) -> None:
        """Run one move until the group is whole again, and record its cost. It starts when the group is safe, as a user would."""
        await self._until_safe()
        began, seen = time.time(), len(self.cluster.history)
        trouble = await move
        moved_at = time.time()
        try:
            await self.cluster.until_whole("after the move")
        except ClusterError as error:
            trouble = trouble or str(error)
        moves.count += 1
        moves.operation_ms.append((moved_at - began) * 1000)
        if trouble is not None:
            say(f"STUCK: {trouble[:500]}")
            moves.stuck.append(trouble)
            return
        await asyncio.sleep(AFTERWARDS_SECONDS)
        moves.gaps_ms.append(await asyncio.to_thread(self._longest_gap_ms, began))
        if (full := self._full_after_ms(seen)) is not None:
            moves.set_full_ms.append(full)

    async def _until_safe(self) -> None:
        """Wait until a slave is a candidate, which needs the topic: Java copies topics every few seconds, sometimes later."""
        deadline = time.monotonic() + SAFE_SECONDS
        while True:
            found = await self.cluster.api.get(BROKER_GROUPS, GROUP, namespace=NAMESPACE)
            conditions = {each["type"]: each for each in found.get("status", {}).get("conditions", [])}
            safe = conditions.get("FailoverSafe", {})
            if safe.get("status") == "True":
                return
            if time.monotonic() > deadline:
                raise ClusterError(f"not FailoverSafe within {SAFE_SECONDS:.0f} s: {safe}")
            await asyncio.sleep(0.1)

    def _longest_gap_ms(self, since: float) -> float:
        until_ms = time.time() * 1000  # before reading the account: on a busy machine that alone takes seconds
        told: list[float] = [outcome["at_ms"] for outcome in self.producer.acknowledged()]
        times = [since * 1000, *sorted(at for at in told if since * 1000 <= at < until_ms), until_ms]
        return max(later - earlier for earlier, later in itertools.pairwise(times))

    def _full_after_ms(self, seen: int) -> float | None:
        """Return the milliseconds from the record's last change of epoch to the full set."""
        history = self.cluster.history
        epochs = [index for index in range(max(seen, 1), len(history)) if history[index][1] > history[index - 1][1]]
        if not epochs:
            return None
        elected = epochs[-1]
        full = (at for at, _, in_sync in history[elected:] if in_sync == self.cluster.replicas)
        return next(((at - history[elected][0]) * 1000 for at in full), None)

    async def _operate(self, kind: str, section: JsonObject, *, seconds: float = OPERATION_SECONDS) -> str | None:
        """Create an operation and wait for its end; return its failure."""
        name = f"{kind.lower()}-{next(self._numbers)}"
        operation = {
            "apiVersion": "brokergroup.dev/v1beta1",
            "kind": "BrokerGroupOperation",
            "metadata": {"name": name, "namespace": NAMESPACE},
            "spec": {"brokerGroupRef": {"name": GROUP}, "type": kind, **section},
        }
        await self.cluster.api.create(BROKER_GROUP_OPERATIONS, operation)
        deadline, status = time.monotonic() + seconds, {}
        while time.monotonic() < deadline:
            found = await self.cluster.api.get(BROKER_GROUP_OPERATIONS, name, namespace=NAMESPACE)
            status = found.get("status", {})
            if status.get("phase") in PHASES_AT_END:
                return None if status["phase"] == "Succeeded" else f"{name}: {status}"
            await asyncio.sleep(0.05)
        return f"{name}: no end within {seconds} s: {status}"

    async def lost(self, began: float) -> tuple[int, int, int]:
        """Stop the producer, pull the last master's whole log, and return (acknowledged, lost, failed).

        A send from before the client had a route does not count as a failed send of a move.
        """
        await asyncio.to_thread(self.producer.stop)
        acknowledged = {outcome["key"] for outcome in self.producer.acknowledged()}
        failed = [one for one in self.producer.failed() if one["at_ms"] - one["took_ms"] >= began * 1000]
        for outcome in failed[:5]:
            say(f"failed send: {outcome}")
        deadline = time.monotonic() + READ_SECONDS
        while True:
            address = self.cluster.group.master_address()
            try:
                keys = await read_keys(address, TOPIC, QUEUES) if address else set()
            except (RemotingError, ReadbackError) as error:
                if time.monotonic() > deadline:
                    raise ClusterError(f"cannot read the master's log: {error}") from error
                await asyncio.sleep(0.5)
                continue
            missing = acknowledged - keys
            if missing:
                say(f"LOST {len(missing)}: {sorted(missing)[:10]}")
                await asyncio.to_thread(self._report_lost, missing)
            return len(acknowledged), len(missing), len(failed)

    def _report_lost(self, missing: set[str]) -> None:
        """Say of each lost message when it was acknowledged, in which logs it stands, and what the record was about that time."""
        lost = [one for one in self.producer.acknowledged() if one["key"] in missing][:MOST_LOST_REPORTED]
        found: dict[str, list[str]] = {one["key"]: [] for one in lost}
        # An empty file cannot be mapped.
        for log in sorted(log for log in self.folder.rglob("commitlog/0*") if log.stat().st_size):
            with log.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as content:
                for key, logs in found.items():
                    if content.find(f"{key}.".encode()) >= 0:
                        logs.append(str(log.relative_to(self.folder)))
        for outcome in lost:
            at_ms, there = outcome["at_ms"], found[outcome["key"]]
            near = [
                (round(at * 1000 - at_ms), epoch, members)
                for at, epoch, members in self.cluster.history
                if abs(at * 1000 - at_ms) < 5000
            ]
            say(f"  {outcome}\n  in {there}\n  the record, by milliseconds before or after: {near}")


async def run_all(options: argparse.Namespace, folder: Path) -> JsonObject:
    """Run all kinds of moves on one cluster with one producer."""
    await asyncio.to_thread(_empty, folder)
    is_java = options.implementation == "Java"
    logback = folder / "order-logback.xml"
    logback.write_text(LOGBACK, encoding="utf-8")
    spec: JsonObject = {"jvm": {"extraArguments": [*JVM, f"-Drmq.logback.configurationFile={logback}"]}}
    if not is_java:
        spec = {"implementation": "Python", "version": None, "jvm": None}
    name_server = read_yaml(REPOSITORY / "examples" / "nameserver.yaml")
    async with java_cluster(
        folder,
        bridge=BRIDGE,
        subnet=SUBNET,
        name_server=name_server,
        spec=spec,
        planes=options.planes,
        programs=installed_api_server() if options.api == "kube-apiserver" else None,
    ) as cluster:
        producer = start_producer(
            folder / "producer",
            name_server_address=cluster.name_server,
            topic=TOPIC,
            workers=options.workers,
            pause_ms=5,
            retry_for_ms=RETRY_FOR_MS,
            route_poll_ms=options.route_poll_ms,
        )
        try:
            await cluster.until("the first acknowledgements", lambda: len(producer.acknowledged()) > 500)
            bench = Bench(cluster, producer, folder, BrokerLogs(folder / "node" / "pods", GROUP) if is_java else None)
            switchovers, rolls, drains = Moves(), Moves(), Moves()
            began = time.time()
            for _ in range(options.warm_up):
                await bench.switch(Moves())
            for count, move, moves in (
                (options.switchovers, bench.switch, switchovers),
                (options.rolls, bench.roll, rolls),
                (options.drains, bench.drain, drains),
            ):
                for _ in range(count):
                    await move(moves)
            acked, lost, failed = await bench.lost(began)
        finally:
            await asyncio.to_thread(producer.stop)
    whole = switchovers.as_json()
    return {
        "switchovers": switchovers.count,
        "gap_ms": whole["gap_ms"],
        "set_full_ms": whole["set_full_ms"],
        "lost": lost,
        "stuck": sum(len(moves.stuck) for moves in (switchovers, rolls, drains)),
        "failed_sends": failed,
        "acked": acked,
        "orders_judged": switchovers.orders_judged,
        "orders_wrong": switchovers.orders_wrong,
        "planes": options.planes,
        "api": options.api,
        "implementation": options.implementation,
        "route_poll_ms": options.route_poll_ms,
        "operation_ms": whole["operation_ms"],
        "rolling_restarts": rolls.as_json(),
        "drains": drains.as_json(),
    }


def _empty(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--switchovers", type=int, default=30)
    parser.add_argument("--rolls", type=int, default=3, help="rolling restarts")
    parser.add_argument("--drains", type=int, default=5, help="deletions of the master's pod")
    parser.add_argument("--warm-up", type=int, default=2, help="switchovers before those that are measured")
    parser.add_argument("--implementation", choices=["Java", "Python"], default="Java")
    parser.add_argument("--planes", type=int, default=3, help="operator processes")
    parser.add_argument("--api", choices=["kube-apiserver", "embedded"], default="kube-apiserver")
    parser.add_argument("--route-poll-ms", type=int, default=200, help="pollNameServerInterval of the Java client")
    parser.add_argument("--workers", type=int, default=4, help="threads of the Java client that send")
    parser.add_argument("--directory", type=Path, help="kept afterwards; default: a temporary one")
    options = parser.parse_args(arguments)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    if os.geteuid() != 0:
        say("network namespaces need root")
        return 2
    failed = install.bring_all(["rocketmq", *(("kube-apiserver", "etcd") if options.api == "kube-apiserver" else ())])
    for name, why in failed.items():
        say(f"{name}: {why}")
    if failed:
        return 2
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # stop all started processes, also after SIGTERM
    with contextlib.ExitStack() as stack:
        folder = options.directory or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        try:
            line = asyncio.run(run_all(options, folder.resolve()))
        except (ClusterError, ApiServerProgramsError, TimeoutError) as error:
            say(f"no verdict: {error!r}")
            return 2
    print(json.dumps(line))
    moved = (line["switchovers"], line["rolling_restarts"]["count"], line["drains"]["count"])
    held = not line["lost"] and not line["stuck"] and not line["failed_sends"] and not line["orders_wrong"]
    if options.implementation == "Java":
        held = held and line["orders_judged"] == options.switchovers
    return 0 if held and line["acked"] > 0 and moved == (options.switchovers, options.rolls, options.drains) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
