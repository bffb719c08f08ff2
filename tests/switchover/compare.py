"""Measures another checkout and this one alternately, in one run: how long a failover takes, and the gap of a switchover.

    git worktree add ../before COMMIT && make -C ../before setup
    python -m tests.switchover.compare --before ../before               20 failovers and 20 switchovers of each
    python -m tests.switchover.compare --before ../before --runs 3

Each round starts the sandbox and the operator of one checkout with three Python replicas under load, kills and moves its
masters, and ends; the next round is the other checkout's. The load and the clock are this process's. `kill_to_committed_ms` is
the time from SIGKILL of the master to the record with the next epoch, as a watch shows it; `kill_to_first_ack_ms` that to the
first acknowledgement after it; `switchover_gap_ms` the longest time between two acknowledgements while a switchover lasts. The last
line of the output is JSON; the exit code is 0 if no median of this checkout is above that of the other times `--at-most`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from brokergroup_operator.demo.client import DemoProducer, Ledger
from brokergroup_operator.demo.watched_group import WatchedGroup
from brokergroup_operator.kube import ApiError, KubernetesApi, Reflector
from brokergroup_operator.kube.resources import BROKER_GROUP_OPERATIONS, BROKER_GROUP_STATES, BROKER_GROUPS, NODES
from kube_sandbox.kubelet.files import read_container_pid
from tests.fence.java_cluster import ClusterError, read_yaml, say
from tests.real.parts.process import RealProcess, RealProcessError, start
from tests.support.places import free_port

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

REPOSITORY = Path(__file__).resolve().parents[2]
NAMESPACE, TOPIC = "default", "demo"
START_SECONDS, MOVE_SECONDS = 300.0, 60.0
# The pause between two strikes: effects of the last one (a link, a copy of topics) must not count in the next.
SETTLED_SECONDS = 2.0
STRIKES_A_ROUND = 5
WORKERS, PAUSE_SECONDS = 4, 0.005
# The acknowledgement that ends a gap may come shortly after the operation's end.
AFTERWARDS_SECONDS = 0.5
AT_MOST = 1.1


@dataclass
class Side:
    """One of the two checkouts, and its measurements."""

    name: str
    root: Path
    figures: dict[str, list[float]] = field(default_factory=dict)

    @property
    def commit(self) -> str:
        return subprocess.run(
            ["git", "-C", str(self.root), "rev-parse", "--short", "HEAD"], check=True, capture_output=True, text=True
        ).stdout.strip()

    def note(self, figure: str, seconds: float) -> None:
        say(f"{self.name}: {figure} {seconds * 1000:.1f}")
        self.figures.setdefault(figure, []).append(seconds * 1000)


@dataclass
class House:
    """A sandbox, an operator and a group of three Python replicas of one checkout, under load."""

    folder: Path
    api: KubernetesApi
    # The API's version of this checkout, by its quick start.
    version: str
    group: WatchedGroup
    ledger: Ledger
    # The time at which each epoch first appeared in the record.
    epochs: dict[int, float]
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    async def until(self, what: str, holds: Callable[[], bool], seconds: float = MOVE_SECONDS) -> None:
        """Wait for a condition; raise ClusterError at the deadline."""
        deadline = time.monotonic() + seconds
        while not holds():
            if time.monotonic() > deadline:
                raise ClusterError(f"{what}: not within {seconds:.0f} s: {self.group.record} {self.group.status}")
            await asyncio.sleep(0.005)

    async def next_epoch_seen(self, epoch: int) -> float:
        """Return the time at which an epoch above this one first appeared in the record."""
        await self.until("another master", lambda: max(self.epochs) > epoch)
        return min(seen for one, seen in self.epochs.items() if one > epoch)

    async def until_whole(self) -> None:
        """Wait until all three are in sync and failover is safe, both for a while."""
        since = time.monotonic()

        def holds() -> bool:
            nonlocal since
            conditions = {one["type"]: one["status"] for one in self.group.status.get("conditions", [])}
            safe = conditions.get("Ready") == "True" and conditions.get("FailoverSafe") == "True"
            if not safe or len(self.group.sync_state_set) != 3:
                since = time.monotonic()
            return time.monotonic() - since >= SETTLED_SECONDS

        await self.until("a whole group", holds, START_SECONDS)

    async def fail_over(self, side: Side) -> None:
        """Send SIGKILL to the master's process."""
        await self.until_whole()
        pod = f"{self.group.name}-{self.group.master_id}"
        pid = read_container_pid(self.folder / "sandbox", NAMESPACE, pod, "broker")
        if pid is None:
            raise ClusterError(f"no process of {pod}")
        epoch = self.group.master_epoch
        killed = time.time()
        os.kill(pid, signal.SIGKILL)
        committed = await self.next_epoch_seen(epoch)
        await self.until("an acknowledgement", lambda: self.ledger.first_after(committed) is not None)
        first = self.ledger.first_after(committed)
        assert first is not None
        side.note("kill_to_committed_ms", committed - killed)
        side.note("kill_to_first_ack_ms", first.at_seconds - killed)

    async def switch_over(self, side: Side) -> None:
        """Switch over by a BrokerGroupOperation, as a user does."""
        await self.until_whole()
        target = next(one for one in self.group.sync_state_set if one != self.group.master_id)
        name, epoch, began = f"switchover-{next(self._numbers)}", self.group.master_epoch, time.time()
        operation = {
            "apiVersion": f"{BROKER_GROUP_OPERATIONS.group}/{self.version}",
            "kind": "BrokerGroupOperation",
            "metadata": {"name": name, "namespace": NAMESPACE},
            "spec": {
                "brokerGroupRef": {"name": self.group.name},
                "type": "Switchover",
                "switchover": {"toBrokerId": target, "deadlineSeconds": int(MOVE_SECONDS)},
            },
        }
        await self.api.create(replace(BROKER_GROUP_OPERATIONS, version=self.version), operation)
        committed = await self.next_epoch_seen(epoch)
        await self.until("an acknowledgement", lambda: self.ledger.first_after(committed) is not None)
        await self.until_whole()
        await asyncio.sleep(AFTERWARDS_SECONDS)
        times = [one.at_seconds for one in self.ledger.acknowledgements if one.at_seconds >= began]
        side.note("switchover_gap_ms", max(later - earlier for earlier, later in itertools.pairwise((began, *times))))


@contextlib.asynccontextmanager
async def house(root: Path, folder: Path) -> AsyncIterator[House]:
    """Start one checkout's programs, wait for the whole group, put it under load; stop all at the end."""
    program = str(root / ".venv" / "bin" / "brokergroup")
    with contextlib.ExitStack() as stack:

        def run(name: str, *arguments: str) -> RealProcess:
            running = start(name, [program, name, *arguments], log=folder / f"{name}.log")
            stack.callback(running.stop, 30.0)
            return running

        kubeconfig, name_server = folder / "kubeconfig", f"127.0.0.1:{free_port()}"
        sandbox = run(
            "sandbox", "--data-dir", str(folder / "sandbox"), "--kubeconfig", str(kubeconfig),
            "--network", "loopback", "--name-server", name_server,
        )  # fmt: skip
        sandbox.wait_until(kubeconfig.exists, what="its kubeconfig", deadline_seconds=START_SECONDS)
        async with KubernetesApi.from_kubeconfig(kubeconfig) as api:
            nodes = (await api.list(NODES)).items
            host = next(str(one["address"]) for one in nodes[0]["status"]["addresses"] if one["type"] == "InternalIP")
            controller = f"{host}:{free_port(host)}"
            run(
                "operator", "--kubeconfig", str(kubeconfig), "--namespace", NAMESPACE, "--listen", controller,
                "--controller-address", controller, "--incident-log", str(folder / "incidents.jsonl"),
            )  # fmt: skip
            manifest = read_yaml(root / "examples" / "quickstart.yaml")
            manifest["metadata"]["namespace"] = NAMESPACE
            manifest["spec"]["nameServers"] = [name_server]
            version = str(manifest["apiVersion"]).rpartition("/")[2]
            await _apply(api, version, manifest)
            async with _under_load(api, folder, version, manifest["metadata"]["name"]) as running:
                yield running


async def _apply(api: KubernetesApi, version: str, manifest: dict[str, Any]) -> None:
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            await api.apply(replace(BROKER_GROUPS, version=version), manifest, field_manager="tests")
        except ApiError:
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.1)
        else:
            return


@contextlib.asynccontextmanager
async def _under_load(api: KubernetesApi, folder: Path, version: str, name: str) -> AsyncIterator[House]:
    epochs: dict[int, float] = {}

    def changed(event: Any) -> None:
        epochs.setdefault(int(event.object.get("record", {}).get("masterEpoch", 0)), time.time())

    groups = Reflector(api, replace(BROKER_GROUPS, version=version), namespace=NAMESPACE, on_change=lambda _: None)
    states = Reflector(api, replace(BROKER_GROUP_STATES, version=version), namespace=NAMESPACE, on_change=changed)
    watched = WatchedGroup(NAMESPACE, name, groups.objects, states.objects)
    running = House(folder, api, version, watched, Ledger(), epochs)
    producer = DemoProducer(
        route=watched.master_address,
        broker_name=name,
        topic=TOPIC,
        workers=WORKERS,
        pause_seconds=PAUSE_SECONDS,
        ledger=running.ledger,
    )
    tasks = [asyncio.create_task(reflector.run()) for reflector in (groups, states)]
    try:
        await running.until("a master", lambda: watched.master_address() is not None, START_SECONDS)
        tasks.append(asyncio.create_task(producer.run(asyncio.Event())))
        await running.until("acknowledgements", lambda: len(running.ledger.acknowledgements) > 200, START_SECONDS)
        yield running
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def one_round(side: Side, strikes: int) -> None:
    """Start a checkout's programs, make this many strikes, stop them."""
    say(f"{side.name}: {side.root}")
    with tempfile.TemporaryDirectory() as folder:
        async with house(side.root, Path(folder)) as running:
            for _ in range(strikes):
                await running.fail_over(side)
                await running.switch_over(side)


async def compare(before: Side, after: Side, runs: int) -> None:
    """Run rounds of both in turn; the first one alternates with each pair."""
    pair = [before, after]
    for done in range(0, runs, STRIKES_A_ROUND):
        for side in pair:
            await one_round(side, min(STRIKES_A_ROUND, runs - done))
        pair.reverse()


def verdict(before: Side, after: Side) -> dict[str, Any]:
    """Return the verdict for the JSON line."""
    line: dict[str, Any] = {"before": before.commit, "after": after.commit}
    for figure, values in before.figures.items():
        both = {
            side.name: {"median": round(statistics.median(found), 1), "worst": round(max(found), 1), "runs": len(found)}
            for side, found in ((before, values), (after, after.figures[figure]))
        }
        ratios = {name: round(both["after"][name] / both["before"][name], 2) for name in ("median", "worst")}
        line[figure] = {**both, "ratio": ratios}
    return line


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, required=True, help="the other checkout, with its .venv")
    parser.add_argument("--runs", type=int, default=20, help="failovers and switchovers of each")
    parser.add_argument("--at-most", type=float, default=AT_MOST, help=f"allowed ratio of the medians ({AT_MOST})")
    options = parser.parse_args(arguments)
    before, after = Side("before", options.before.resolve()), Side("after", REPOSITORY)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # stop all started processes, also after SIGTERM
    try:
        asyncio.run(compare(before, after, options.runs))
    except (ClusterError, RealProcessError) as error:
        say(f"no verdict: {error}")
        return 2
    line = verdict(before, after)
    line["slower"] = [name for name in before.figures if line[name]["ratio"]["median"] > options.at_most]
    print(json.dumps(line))
    return 1 if line["slower"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
