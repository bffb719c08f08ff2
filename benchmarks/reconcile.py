"""What a pass of the reconcile plane costs: requests, processor time, and whether that grows with the number of groups.

    .venv/bin/python benchmarks/reconcile.py [--groups 10,100,1000] [--rounds 1]

The whole plane with kopf, against the embedded API in a process of its own. Progress on stderr, one line of JSON on stdout; exit 0
only if the bounds hold. What each figure measures: benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import resource
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "operator")]

import structlog  # noqa: E402

from benchmarks.reconcile_groups import NAMESPACE, ORIGIN, name_of  # noqa: E402
from brokergroup_operator.kube.resources import BROKER_GROUP_STATES  # noqa: E402
from brokergroup_operator.observe.group_view import GroupSnapshot  # noqa: E402
from brokergroup_operator.reconcile.access import ClusterAccess  # noqa: E402
from brokergroup_operator.reconcile.reconciler import GroupPass  # noqa: E402
from brokergroup_operator.reconcile.run.plane import ReconcilePlane  # noqa: E402
from brokergroup_operator.records.kubernetes import KubernetesRecordStore, stored_record  # noqa: E402
from brokergroup_operator.records.store import GroupKey  # noqa: E402
from controller_core.model import LiveReplica  # noqa: E402
from tests.reconcile.fake_view import FakeGroupView  # noqa: E402
from tests.reconcile.world import SETTINGS  # noqa: E402
from tests.sieve.workloads import WORKLOADS  # noqa: E402
from tests.sieve.world import told  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from brokergroup_operator.kube.client import KubernetesApi

SERVER: Final = Path(__file__).with_name("reconcile_groups.py")
# So long no pass began and none ran: the plane is at rest.
REST_SECONDS: Final = 2.0
LONGEST_WAIT_SECONDS: Final = 7200.0
MOST_READS: Final = 0.05
HIGHEST_COST_RATIO: Final = 1.5


def say(text: str) -> None:
    """Progress, for a person."""
    print(text, file=sys.stderr, flush=True)


class Passes:
    """Counts the passes of this process, and knows when they rest."""

    def __init__(self) -> None:
        self.begun = 0
        self._running = 0
        self._last_seconds = time.monotonic()
        self._run_pass = GroupPass.run

    @contextlib.contextmanager
    def counted(self) -> Any:
        """Inside, every pass of a group is counted."""

        async def run(one: GroupPass, key: GroupKey) -> float | None:
            self.begun += 1
            self._running += 1
            try:
                return await self._run_pass(one, key)
            finally:
                self._running -= 1
                self._last_seconds = time.monotonic()

        GroupPass.run = run  # type: ignore[assignment, method-assign]
        try:
            yield self
        finally:
            GroupPass.run = self._run_pass  # type: ignore[method-assign]

    async def rest(self, at_least: int) -> None:
        """Return when so many passes have begun, and none has run for a while."""
        end = time.monotonic() + LONGEST_WAIT_SECONDS
        while self.begun < at_least or self._running or time.monotonic() - self._last_seconds < REST_SECONDS:
            if time.monotonic() > end:
                raise TimeoutError(f"{self.begun} passes of {at_least} within {LONGEST_WAIT_SECONDS} s")
            await asyncio.sleep(0.1)


class Server:
    """The embedded API in its process."""

    def __init__(self, process: asyncio.subprocess.Process, url: str) -> None:
        self._process = process
        self.url = url

    @classmethod
    @contextlib.asynccontextmanager
    async def with_groups(cls, count: int) -> AsyncIterator[Server]:
        """Until left."""
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(sys.executable, str(SERVER), str(count), stdin=pipe, stdout=pipe)
        try:
            yield cls(process, str((await _answer(process))["url"]))
        finally:
            process.terminate()
            await process.wait()

    async def tell(self, command: str) -> dict[str, Any]:
        """Send a command, return its answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{command}\n".encode())
        return await _answer(self._process)


async def _answer(process: asyncio.subprocess.Process) -> dict[str, Any]:
    assert process.stdout is not None
    line = await process.stdout.readline()
    if not line:
        raise RuntimeError(f"{SERVER.name} has ended")
    return cast("dict[str, Any]", json.loads(line))


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What passes cost."""

    passes: int
    reads: int
    writes: int
    cpu_seconds: float
    wall_seconds: float

    @property
    def cpu_s_per_1000_passes(self) -> float:
        """Processor seconds of 1,000 of them."""
        return 1000 * self.cpu_seconds / max(self.passes, 1)

    @property
    def reads_per_pass(self) -> float:
        """Lists and gets, those of a resync and of kopf included."""
        return self.reads / max(self.passes, 1)

    @property
    def writes_per_pass(self) -> float:
        """0 for groups that are as they should be."""
        return self.writes / max(self.passes, 1)


async def _measured(passes: Passes, server: Server, at_least: int, begin: Callable[[], Any]) -> Cost:
    await server.tell("counts")
    before, cpu, wall = passes.begun, time.process_time(), time.monotonic()
    await begin()
    await passes.rest(before + at_least)
    counts = await server.tell("counts")
    return Cost(
        passes=passes.begun - before,
        reads=counts["reads"],
        writes=counts["writes"],
        cpu_seconds=time.process_time() - cpu,
        wall_seconds=time.monotonic() - wall - REST_SECONDS,
    )


async def _view(api: KubernetesApi) -> FakeGroupView:
    """A controller plane that sees every member of every group in sync."""
    view = FakeGroupView(KubernetesRecordStore(api))
    for state in (await api.list(BROKER_GROUP_STATES, namespace=NAMESPACE, timeout_seconds=60)).items:
        record = stored_record(state).record
        key = GroupKey(NAMESPACE, str(state["metadata"]["name"]))
        live = {one: LiveReplica(broker_id=one, epoch=record.master_epoch) for one in record.replicas}
        view.snapshots[key] = GroupSnapshot(key=key, record=record, live=live, writable=True)
    return view


async def settled_groups(count: int, *, rounds: int) -> tuple[Cost, Cost]:
    """The start of the plane among so many settled groups; then one status change of each."""
    passes = Passes()
    async with Server.with_groups(count) as server, ClusterAccess(url=server.url).own_client() as api:
        # No resync within the measured time: it is a few lists whatever the passes do.
        settings = replace(
            SETTINGS, namespace=NAMESPACE, resync_seconds=3600.0, api_timeout_seconds=60.0, pass_timeout_seconds=300.0
        )
        plane = ReconcilePlane(api, ClusterAccess(url=server.url), await _view(api), settings)
        with passes.counted():
            start = await _measured(passes, server, count, plane.start)

            async def change() -> None:
                await server.tell("touch")

            costs = [await _measured(passes, server, count, change) for _ in range(rounds)]
            await plane.stop()
    return start, min(costs, key=lambda cost: cost.cpu_s_per_1000_passes)


def rolling_update() -> dict[str, int]:
    """Requests of the whole operator, both planes, for a rolling update of three members, in virtual time."""
    counts = told(WORKLOADS["roll"]).counts
    return {"reads": len(counts.read), "writes": len(counts.write)}


def bounds(figures: dict[str, Any]) -> list[str]:
    """What does not hold."""
    broken = []
    if figures["writes_per_settled_pass"] != 0:
        broken.append("a pass of a settled group wrote")
    if figures["reads_per_settled_pass"] > MOST_READS:
        broken.append(f"a pass of a settled group read more than {MOST_READS} times")
    if figures["start_ratio"] > HIGHEST_COST_RATIO:
        broken.append(f"the start costs more than {HIGHEST_COST_RATIO} times as much a group among the most groups")
    if figures["cost_ratio"] > HIGHEST_COST_RATIO:
        broken.append(f"a pass costs more than {HIGHEST_COST_RATIO} times as much among the most groups")
    return broken


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", default="10,100,1000", help="sizes, separated by commas")
    parser.add_argument("--rounds", type=int, default=2, help="status changes of each group; the cheapest counts")
    arguments = parser.parse_args()
    sizes = sorted(int(size) for size in arguments.groups.split(","))
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    logging.disable(logging.ERROR)
    rolled = rolling_update()
    say(f"rolling update: {rolled['reads']} reads, {rolled['writes']} writes")
    by_size: dict[int, tuple[Cost, Cost]] = {}
    for size in sizes:
        start, change = by_size[size] = asyncio.run(settled_groups(size, rounds=arguments.rounds))
        for what, cost in (("start", start), ("one status change each", change)):
            say(
                f"{size} groups, {what}: {cost.passes} passes, {cost.reads} reads, {cost.writes} writes,"
                f" {cost.cpu_seconds:.2f} s of processor time ({cost.cpu_s_per_1000_passes:.2f} per 1,000 passes),"
                f" {cost.wall_seconds:.1f} s"
            )
    largest = by_size[sizes[-1]][1]
    per_size = {size: change.cpu_s_per_1000_passes for size, (_, change) in by_size.items()}
    per_start = {size: start.cpu_seconds / size for size, (start, _) in by_size.items()}
    # The smallest size that is not mostly fixed cost.
    middle = sizes[-2] if len(sizes) > 1 else sizes[-1]
    figures: dict[str, Any] = {
        "groups": sizes[-1],
        "cpu_s_per_1000_passes": round(largest.cpu_s_per_1000_passes, 2),
        "reads_per_settled_pass": round(largest.reads_per_pass, 3),
        "writes_per_settled_pass": round(largest.writes_per_pass, 3),
        "cpu_s_per_1000_passes_by_groups": {str(size): round(value, 2) for size, value in per_size.items()},
        "cost_ratio": round(per_size[sizes[-1]] / per_size[middle], 2),
        "start_ratio": round(per_start[sizes[-1]] / per_start[middle], 2),
        "passes_per_s": round(largest.passes / max(largest.wall_seconds, 0.001)),
        "start": {
            str(size): {"passes": start.passes, "reads": start.reads, "cpu_s": round(start.cpu_seconds, 2)}
            for size, (start, _) in by_size.items()
        },
        "rolling_update": rolled,
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }
    figures["broken"] = bounds(figures)
    print(json.dumps(figures))
    return 1 if figures["broken"] else 0


if __name__ == "__main__":
    assert name_of(0) != ORIGIN
    sys.exit(main())
