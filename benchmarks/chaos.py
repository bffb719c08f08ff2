"""Chaos: a group under load, struck by random faults from a seed; then everything acknowledged is looked for.

Beside the ordinary producer, which follows the record, every broker id has a *spy*: a producer that always sends to that very
broker and waits long for its answer. So a stale master that still acknowledges (woken from a freeze, notified late) is caught,
whatever the record says.

    python benchmarks/chaos.py --seed 7 --faults 10      one line of JSON; exit 0 only if nothing was lost and all held
    python benchmarks/chaos.py --runs 20                 recovery times by kind of fault, every fault alone
"""

import argparse
import asyncio
import itertools
import json
import shutil
import statistics
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from benchmarks.chaos_faults import KINDS, Fault, RecordHistory, Striker, compare_logs, plan
from brokergroup_operator.demo.client import DemoProducer, Ledger, ReadbackError, read_keys
from brokergroup_operator.demo.processes import ChildProcess, DemoProcesses, free_port
from brokergroup_operator.demo.watched_group import WatchedGroup, watch_group
from brokergroup_operator.kube import ApiError, KubernetesApi, Reflector
from brokergroup_operator.kube.resources import BROKER_GROUP_STATES, BROKER_GROUPS, NODES
from rocketmq_remoting.errors import RemotingError

_NAMESPACE = "default"
_TOPIC = "chaos"
_QUEUES = 4
_READY_SECONDS = 90.0
_SETTLED_SECONDS = 1.5
_SPY_TIMEOUT_SECONDS = 12.0
_MEASURED = (
    "kill_master", "freeze_master", "delete_master", "delete_master_now",
    "kill_slave", "freeze_slave", "kill_operator", "kill_all",
)  # fmt: skip


class ChaosError(Exception):
    """The run could not even begin, or a process of its own ended."""


@dataclass
class Run:
    """One group, its producers, and what was seen of it."""

    directory: Path
    replicas: int
    group: WatchedGroup
    striker: Striker
    ledger: Ledger
    history: RecordHistory
    gaps_ms: dict[str, list[float]] = field(default_factory=dict)
    stuck: list[str] = field(default_factory=list)
    struck: list[str] = field(default_factory=list)

    async def until_ready(self, what: str) -> bool:
        """Wait until the group is whole again and takes messages."""
        await self.striker.settle()
        deadline = time.monotonic() + _READY_SECONDS
        # Whole for a while, not for a moment: the status is a little behind, just after a strike it shows the time before.
        whole_since, count = None, 0
        while time.monotonic() < deadline:
            if not (
                self.group.is_ready() and len(self.group.sync_state_set) == self.replicas and self.striker.all_run()
            ):
                whole_since = None
            elif whole_since is None:
                whole_since, count = time.monotonic(), len(self.ledger.acknowledgements)
            elif time.monotonic() - whole_since > _SETTLED_SECONDS and len(self.ledger.acknowledgements) > count:
                return True
            await asyncio.sleep(0.05)
        self.stuck.append(f"{what}: not Ready in {_READY_SECONDS:.0f} s: {self.group.record} {self.group.status}")
        _say(self.stuck[-1])
        return False

    async def strike(self, fault: Fault, *, wait: bool, pause_seconds: float) -> None:
        """Strike, and wait for the end of it or only a little."""
        _say(
            f"{fault}: master {self.group.master_id}, epoch {self.group.master_epoch}, set {self.group.sync_state_set}"
        )
        at = time.time()
        hit = await self.striker.strike(fault)
        self.struck.append(str(fault) if hit else f"{fault}:missed")
        if not wait:
            await asyncio.sleep(pause_seconds)
        elif await self.until_ready(str(fault)) and hit:
            self.gaps_ms.setdefault(fault.kind, []).append(self._longest_gap_ms(at))

    def _longest_gap_ms(self, since: float) -> float:
        """The longest time without an acknowledgement, the fault's moment being one end at the earliest."""
        times = [since, *(entry.at_seconds for entry in self.ledger.acknowledgements if entry.at_seconds > since)]
        return round(max(later - earlier for earlier, later in itertools.pairwise(times)) * 1000, 1)


def _say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


@asynccontextmanager
async def running(directory: Path, manifest_path: Path) -> AsyncIterator[Run]:
    """Sandbox, operator, group and producers for the length of a block."""
    manifest = _prepare(directory, manifest_path)
    processes = DemoProcesses(directory / "logs")
    kubeconfig, data = directory / "kubeconfig", directory / "sandbox"
    try:
        sandbox = await processes.start(
            "sandbox", "sandbox", "--data-dir", str(data), "--kubeconfig", str(kubeconfig), "--network", "loopback"
        )
        await _until(kubeconfig.exists, processes)
        async with AsyncExitStack() as stack:
            api = await stack.enter_async_context(KubernetesApi.from_kubeconfig(kubeconfig))
            arguments = await _operator_arguments(api, directory, kubeconfig)

            async def start_operator() -> ChildProcess:
                processes.children[:] = [child for child in processes.children if child.name != "operator"]
                return await processes.start("operator", *arguments)

            operator = await start_operator()
            await _apply(api, manifest)
            name, replicas = manifest["metadata"]["name"], int(manifest["spec"].get("replicas", 3))
            group = await stack.enter_async_context(watch_group(api, _NAMESPACE, name))
            history = await stack.enter_async_context(_recorded(api))
            ledger = Ledger()
            striker = Striker(group, api, data, _NAMESPACE, sandbox, operator, start_operator)
            run = Run(directory, replicas, group, striker, ledger, history)
            await stack.enter_async_context(_producing(group, ledger, name, replicas))
            yield run
    finally:
        await processes.stop()


def _prepare(directory: Path, manifest_path: Path) -> dict[str, Any]:
    """An empty folder, and the manifest with its namespace."""
    shutil.rmtree(directory, ignore_errors=True)
    manifest: dict[str, Any] = yaml.safe_load(manifest_path.read_text())
    manifest["metadata"].setdefault("namespace", _NAMESPACE)
    return manifest


async def _until(condition: Callable[[], bool], processes: DemoProcesses) -> None:
    async with asyncio.timeout(30):
        while not condition():
            processes.check()
            await asyncio.sleep(0.05)


async def _operator_arguments(api: KubernetesApi, directory: Path, kubeconfig: Path) -> list[str]:
    nodes = await api.list(NODES)
    [host] = [
        entry["address"]
        for node in nodes.items
        for entry in node["status"]["addresses"]
        if entry["type"] == "InternalIP"
    ]
    address = f"{host}:{free_port(host)}"
    return [
        "operator", "--kubeconfig", str(kubeconfig), "--namespace", _NAMESPACE,
        "--listen", address, "--controller-address", address,
        "--metrics-listen", f"127.0.0.1:{free_port()}",
        "--incident-log", str(directory / "incidents.jsonl"),
    ]  # fmt: skip


async def _apply(api: KubernetesApi, manifest: dict[str, Any]) -> None:
    async with asyncio.timeout(30):
        while True:
            try:
                await api.apply(BROKER_GROUPS, manifest, field_manager="chaos")
            except ApiError:  # the operator's kinds are not served yet
                await asyncio.sleep(0.1)
            else:
                return


@asynccontextmanager
async def _recorded(api: KubernetesApi) -> AsyncIterator[RecordHistory]:
    history = RecordHistory()
    reflector = Reflector(
        api,
        BROKER_GROUP_STATES,
        namespace=_NAMESPACE,
        on_change=lambda event: history.see(event.object.get("record", {})),
    )
    task = asyncio.create_task(reflector.run())
    try:
        yield history
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@asynccontextmanager
async def _producing(group: WatchedGroup, ledger: Ledger, broker_name: str, replicas: int) -> AsyncIterator[None]:
    keys = itertools.count(1)
    producers = [
        DemoProducer(route=group.master_address, broker_name=broker_name, topic=_TOPIC, ledger=ledger, _keys=keys)
    ]
    for broker_id in range(1, replicas + 1):
        route = _SpyRoute(group, broker_id)
        producers += [
            DemoProducer(
                route=route, broker_name=broker_name, topic=_TOPIC, workers=2, pause_seconds=0.02,
                send_timeout_seconds=_SPY_TIMEOUT_SECONDS, ledger=ledger, _keys=keys,
            )
        ]  # fmt: skip
    stop = asyncio.Event()
    tasks = [asyncio.create_task(producer.run(stop)) for producer in producers]
    try:
        yield
    finally:
        stop.set()
        await asyncio.gather(*tasks)


@dataclass(frozen=True)
class _SpyRoute:
    """Where one broker is, master or not."""

    group: WatchedGroup
    broker_id: int

    def __call__(self) -> str | None:
        for replica in self.group.record.get("replicas", []):
            if replica["brokerId"] == self.broker_id:
                return replica.get("address") or None
        return None


async def _lost(run: Run) -> tuple[int, int]:
    """(acknowledged, lost): what was acknowledged until now against the final master's log, by pulling all of it."""
    acknowledged = {entry.key for entry in list(run.ledger.acknowledgements)}
    deadline = time.monotonic() + 60
    while True:
        address = run.group.master_address()
        try:
            keys = await read_keys(address, _TOPIC, _QUEUES) if address else set()
        except (RemotingError, ReadbackError) as error:
            if time.monotonic() > deadline:
                raise ChaosError(f"cannot read the final master's log: {error}") from error
            await asyncio.sleep(0.5)
            continue
        missing = sorted(acknowledged - keys)
        if missing:
            _say(f"LOST {len(missing)}: {missing[:10]} …")
            (run.directory / "lost.json").write_text(json.dumps(missing))
        return len(acknowledged), len(missing)


async def chaos(arguments: argparse.Namespace) -> bool:
    """One seed."""
    directory = arguments.directory / f"seed-{arguments.seed}"
    async with running(directory, arguments.manifest) as run:
        if not await run.until_ready("start"):
            raise ChaosError("the group never came up")
        for fault, wait, pause in plan(arguments.seed, arguments.faults, arguments.kinds):
            await run.strike(fault, wait=wait, pause_seconds=pause)
        ended_ready = await run.until_ready("end")
        await asyncio.sleep(1.0)
        acked, lost = await _lost(run)
    differences = compare_logs(sorted(path.parent for path in directory.glob("sandbox/**/commitlog")))
    gaps = [gap for values in run.gaps_ms.values() for gap in values]
    history = run.history
    verdict = {
        "seed": arguments.seed,
        "faults": run.struck,
        "acked": acked,
        "lost": lost,
        "failovers": _failovers(directory / "incidents.jsonl"),
        "epochs_monotonic": not history.fallen,
        "two_masters_in_one_epoch": history.shared_epochs,
        "ids_reused": history.reused_ids,
        "logs_differ": differences,
        "ended_ready": ended_ready,
        "stuck": run.stuck,
        "rto_ms": {"median": statistics.median(gaps), "worst": max(gaps)} if gaps else None,
    }
    print(json.dumps(verdict))
    held = not lost and not history.fallen and not history.reused_ids and not history.shared_epochs
    return held and ended_ready and not differences and acked > 0


async def measure(arguments: argparse.Namespace) -> bool:
    """Every kind of fault alone, `runs` times; Ready in between."""
    async with running(arguments.directory / "rto", arguments.manifest) as run:
        if not await run.until_ready("start"):
            raise ChaosError("the group never came up")
        whole = True
        for _ in range(arguments.runs):
            for kind in arguments.kinds if arguments.kinds != KINDS else _MEASURED:
                await run.strike(Fault(kind, 5.0, 0.5), wait=True, pause_seconds=0)
        whole = not run.stuck
        acked, lost = await _lost(run)
    figures = {
        kind: {"runs": len(gaps), "median": round(statistics.median(gaps), 1), "worst": max(gaps)}
        for kind, gaps in run.gaps_ms.items()
    }
    print(json.dumps({"acked": acked, "lost": lost, "stuck": run.stuck, "write_gap_ms": figures}))
    return whole and not lost


def _failovers(incident_log: Path) -> int:
    if not incident_log.exists():
        return 0
    return sum(json.loads(line).get("kind") == "failover" for line in incident_log.read_text().splitlines())


def main() -> int:
    """Read the command line, run, say by the exit code whether all held."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--faults", type=int, default=8, help="how many strikes")
    parser.add_argument("--kinds", type=lambda text: tuple(text.split(",")), default=KINDS, help=",".join(KINDS))
    parser.add_argument("--runs", type=int, default=0, help="measure recovery instead: every kind so many times")
    parser.add_argument("--directory", type=Path, default=Path(".chaos"))
    parser.add_argument("--manifest", type=Path, default=Path("examples/quickstart.yaml"))
    arguments = parser.parse_args()
    arguments.directory = arguments.directory.resolve()
    try:
        return 0 if asyncio.run(measure(arguments) if arguments.runs else chaos(arguments)) else 1
    except ChaosError as error:
        _say(f"chaos: {error}")
        return 2


if __name__ == "__main__":
    sys.exit(main())
