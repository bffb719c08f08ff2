"""The hour itself: the real operator, groups of Python replicas under load, a real Prometheus that scrapes it, fault after fault.

The faults come at fixed times, each to the next group; a longer one delays those after it. The clients record their
acknowledgements' times; the span between two of them is a gap.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import time
import urllib.request
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from prometheus_client.parser import text_string_to_metric_families

from brokergroup_operator.demo.client import DemoProducer, Ledger
from brokergroup_operator.demo.processes import hold
from metric_names import FAILOVERS_TOTAL, GROUP_WRITABLE, LABEL_BROKER_GROUP, METRICS, UNAVAILABLE_SECONDS_TOTAL
from tests.e2e.house import NAMESPACE, TOPIC, House, WholeGroup, open_house, whole_group
from tests.e2e.stories import change, condition, done, up_to_date
from tests.real.parts.prometheus import start_prometheus
from tests.support.places import free_port

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from tests.e2e.house import WholeGroup
    from tests.real.parts.prometheus import Prometheus


class Kind(StrEnum):
    """The kinds of faults."""

    KILL = "kill"
    FREEZE = "freeze"
    SWITCHOVER = "switchover"
    ROLLING_RESTART = "rollingRestart"
    MAJORITY_LOST = "majorityLost"
    SLAVES_FROZEN = "slavesFrozen"


GROUPS = ("orders", "payments", "stock")
REPLICAS = 3
SCRAPE_SECONDS = 15
# A send without an answer counts as lost after this; connecting takes a third of a second at most.
SEND_SECONDS = 1.0
RETRY_MS = 1_500
_SENDERS = 2
_PAUSE_SECONDS = 0.2
_STALL_SECONDS = 0.3
# After each kind once, the short ones repeat.
_ROUND = (
    Kind.KILL, Kind.FREEZE, Kind.SWITCHOVER, Kind.ROLLING_RESTART, Kind.KILL, Kind.FREEZE, Kind.SWITCHOVER,
)  # fmt: skip
_SETTLE_SECONDS = 180.0


@dataclass(frozen=True)
class Plan:
    """The schedule of faults, and the length of a long outage."""

    minutes: float
    strokes: tuple[tuple[float, str, Kind], ...]
    outage_seconds: float


def plan_of(minutes: float) -> Plan:
    """Return the plan: each kind once in three minutes; in an hour a fault about every two minutes."""
    seconds = minutes * 60
    count = max(6, int(seconds / 135))
    kinds = [Kind.KILL, Kind.MAJORITY_LOST, Kind.FREEZE, Kind.SWITCHOVER, Kind.SLAVES_FROZEN, Kind.ROLLING_RESTART]
    more = itertools.cycle(_ROUND)
    kinds += [next(more) for _ in range(count - len(kinds))]
    each = seconds / count
    turns = [(number * each, GROUPS[number % len(GROUPS)], kind) for number, kind in enumerate(kinds)]
    return Plan(minutes, tuple(turns), outage_seconds=min(240.0, 20 + seconds / 18))


@dataclass
class Stage:
    """The running system."""

    house: House
    groups: dict[str, WholeGroup]
    metrics_url: str
    strokes: list[Stroke] = field(default_factory=list)
    stalls: list[Span] = field(default_factory=list)


async def play(folder: Path, plan: Plan, at_end: Callable[[Prometheus, Evidence], None]) -> Evidence:
    """Run the plan to its end; `at_end` reads from Prometheus while all still runs."""
    async with _opened(folder) as stage:
        # Only now: a group in creation accepts no writes, which is not an outage.
        prometheus = start_prometheus(
            folder / "prometheus",
            targets=[stage.metrics_url.removeprefix("http://").removesuffix("/metrics")],
            scrape_interval=f"{SCRAPE_SECONDS}s",
            arguments=["--web.enable-admin-api", "--storage.tsdb.retention.time=400d"],
        )
        try:
            await _scraped_since(stage, prometheus, now_ms())
            began_ms = now_ms()
            began_in = {name: group.seen.master_epoch for name, group in stage.groups.items()}
            await _strike_all(stage, plan, began_ms)
            await _scraped_since(stage, prometheus, now_ms() + SCRAPE_SECONDS * 1000)
            evidence = await _evidence(stage, began_ms, began_in)
            await asyncio.to_thread(at_end, prometheus, evidence)
        finally:
            prometheus.process.stop()
    return evidence


@asynccontextmanager
async def _opened(folder: Path) -> AsyncIterator[Stage]:
    async with AsyncExitStack() as opened:
        house = await opened.enter_async_context(open_house(folder / "house"))
        house.patience = 3.0
        metrics = f"127.0.0.1:{free_port()}"
        house.operator_arguments = ("--namespace", NAMESPACE, "--metrics-listen", metrics)
        await house.start_operator()
        groups = {}
        for name in GROUPS:
            groups[name] = await opened.enter_async_context(whole_group(house, name, replicas=REPLICAS))
            await house.create_group(name)
        for group in groups.values():
            await group.until_settled()
        stage = Stage(house, groups, f"http://{metrics}/metrics")
        await opened.enter_async_context(_watched_clock(stage))
        for group in groups.values():
            await opened.enter_async_context(_under_load(group))
        for group in groups.values():
            await settled(group)
        yield stage


@asynccontextmanager
async def _under_load(group: WholeGroup) -> AsyncIterator[None]:
    """Send for as long as the group exists, to the record's master."""
    stop = asyncio.Event()
    producer = DemoProducer(
        route=group.seen.master_address, broker_name=group.name, topic=TOPIC, workers=_SENDERS,
        pause_seconds=_PAUSE_SECONDS, send_timeout_seconds=SEND_SECONDS, ledger=group.ledger,
    )  # fmt: skip
    sending = asyncio.create_task(producer.run(stop))
    try:
        yield
    finally:
        stop.set()
        await sending


@asynccontextmanager
async def _watched_clock(stage: Stage) -> AsyncIterator[None]:
    """Record stalls of this process: its clients then observe nothing, whatever the groups do."""

    async def watch() -> None:
        while True:
            before_ms, before = now_ms(), time.monotonic()
            await asyncio.sleep(_STALL_SECONDS / 3)
            if time.monotonic() - before > _STALL_SECONDS:
                stage.stalls.append(Span(before_ms, now_ms()))

    watching = asyncio.create_task(watch())
    try:
        yield
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


async def _strike_all(stage: Stage, plan: Plan, began_ms: int) -> None:
    for at_seconds, name, kind in plan.strokes:
        await asyncio.sleep(max(0.0, at_seconds - (now_ms() - began_ms) / 1000))
        stroke = await strike(stage.groups[name], kind, outage_seconds=plan.outage_seconds)
        stage.strokes.append(stroke)
        took = (stroke.whole_ms - stroke.began_ms) / 1000
        print(f"{len(stage.strokes)}/{len(plan.strokes)} {name}: {kind}, whole again after {took:.1f} s", flush=True)
        stage.house.processes.check()
    await asyncio.sleep(max(0.0, plan.minutes * 60 - (now_ms() - began_ms) / 1000))


async def _scraped_since(stage: Stage, prometheus: Prometheus, since_ms: int) -> None:
    """Wait until every group's gauge has a sample after this time."""
    deadline = time.monotonic() + 8 * SCRAPE_SECONDS

    def scraped() -> bool:
        found = prometheus.query(f"timestamp({GROUP_WRITABLE})")
        return sum(float(one["value"][1]) * 1000 >= since_ms for one in found) == len(stage.groups)

    while not await asyncio.to_thread(scraped):
        if time.monotonic() > deadline:
            raise AssertionError(f"no scrape of every group since {since_ms}: {prometheus.process.tail()}")
        await asyncio.sleep(0.5)


async def _evidence(stage: Stage, began_ms: int, began_in: dict[str, int]) -> Evidence:
    ended_ms = now_ms()
    page = await asyncio.to_thread(_page, stage.metrics_url)
    told = Evidence(began_ms, ended_ms, SCRAPE_SECONDS * 1000, RETRY_MS, stage.strokes, list(stage.stalls))
    for name, group in stage.groups.items():
        unavailable, by_outcome = counters_of(page, name)
        # The client continues: messages acknowledged from now on need not be in the log read here.
        until_now = Ledger(list(group.ledger.acknowledgements))
        told.groups[name] = GroupEvidence(
            acks_ms=[round(one.at_seconds * 1000) for one in until_now.acknowledgements],
            epochs=[epoch for epoch in group.history.epochs if epoch > began_in[name]],
            violations=group.history.violations(),
            lost=until_now.missing_from(await group.keys_in_log()),
            failovers=group.seen.status.get("failovers", []),
            unavailable_seconds=unavailable,
            failovers_by_outcome=by_outcome,
        )
    return told


def _page(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as answer:
        page: bytes = answer.read()
        return page.decode()


def counters_of(page: str, group: str) -> tuple[float, dict[str, int]]:
    """Return a group's metrics: seconds without writes, and the number of changes of master by outcome."""
    unavailable, by_outcome = 0.0, dict[str, int]()
    outcome = METRICS[FAILOVERS_TOTAL].labels[-1]
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            if sample.labels.get(LABEL_BROKER_GROUP) != group or not sample.value:
                continue
            if sample.name == UNAVAILABLE_SECONDS_TOTAL:
                unavailable += sample.value
            if sample.name == FAILOVERS_TOTAL:
                how = sample.labels[outcome]
                by_outcome[how] = by_outcome.get(how, 0) + round(sample.value)
    return unavailable, by_outcome


async def strike(group: WholeGroup, kind: Kind, *, outage_seconds: float) -> Stroke:
    """Cause the fault, and wait until the group is whole again."""
    await settled(group)
    began_ms = now_ms()
    match kind:
        case Kind.KILL:
            await _kill_master(group)
        case Kind.FREEZE:
            await _freeze_master(group)
        case Kind.SWITCHOVER:
            await done(group, "Switchover")
        case Kind.ROLLING_RESTART:
            await _restart_all(group)
        case Kind.MAJORITY_LOST:
            await _freeze_slaves(group, outage_seconds, kill_master=True)
        case Kind.SLAVES_FROZEN:
            await _freeze_slaves(group, outage_seconds, kill_master=False)
    await settled(group)
    return Stroke(group.name, kind.value, began_ms, now_ms())


async def settled(group: WholeGroup) -> None:
    """Whether all members run, are in sync, and the group has acknowledged a send since."""
    await group.until(group.is_settled, "the group is whole again", deadline_seconds=_SETTLE_SECONDS)
    await group.until_acknowledged(3)


def now_ms() -> int:
    """Return the wall clock, as in the operator's log and Prometheus."""
    return time.time_ns() // 1_000_000


async def _kill_master(group: WholeGroup) -> None:
    epoch = group.seen.master_epoch
    os.kill(_pid(group, group.seen.master_id), signal.SIGKILL)
    await group.until(lambda: group.seen.master_epoch > epoch, "another master")


async def _freeze_master(group: WholeGroup) -> None:
    epoch = group.seen.master_epoch
    with hold(_pid(group, group.seen.master_id)) as frozen:
        frozen.freeze()
        try:
            await group.until(lambda: group.seen.master_epoch > epoch, "another master")
        finally:
            frozen.thaw()


async def _restart_all(group: WholeGroup) -> None:
    restarted = {"kubectl.kubernetes.io/restartedAt": f"at {now_ms()}"}
    await change(group, {"metadata": {"annotations": restarted}})
    await group.until(lambda: condition(group, "UpToDate")[0] == "False", "the update is seen")
    await group.until(up_to_date(group), "every pod was restarted", deadline_seconds=_SETTLE_SECONDS)


async def _freeze_slaves(group: WholeGroup, outage_seconds: float, *, kill_master: bool) -> None:
    """Freeze the slaves: Strict needs two disks, so no send is acknowledged until they continue."""
    master = group.seen.master_id
    with ExitStack() as held:
        slaves = [held.enter_context(hold(pid or 0)) for each, pid in group.pids().items() if each != master]
        try:
            for slave in slaves:
                slave.freeze()
            if kill_master:
                os.kill(_pid(group, master), signal.SIGKILL)
            await asyncio.sleep(outage_seconds)
        finally:
            for slave in slaves:
                slave.thaw()


def _pid(group: WholeGroup, broker_id: int | None) -> int:
    pid = group.pids().get(broker_id) if broker_id is not None else None
    if pid is None:
        raise AssertionError(f"broker {broker_id} has no process\n{group.story()}")
    return pid


@dataclass(frozen=True)
class Stroke:
    """A fault of a group, from its start to the time at which the group was whole again."""

    group: str
    kind: str
    began_ms: int
    whole_ms: int


@dataclass(frozen=True)
class Span:
    """A half-open span of time."""

    start_ms: int
    end_ms: int


@dataclass
class GroupEvidence:
    """One group's evidence. `acks_ms` in order; `epochs` that began in the hour; `failovers` of its status, to the second."""

    acks_ms: list[int] = field(default_factory=list)
    epochs: list[int] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    failovers: list[dict[str, object]] = field(default_factory=list)
    unavailable_seconds: float = 0.0
    failovers_by_outcome: dict[str, int] = field(default_factory=dict)


@dataclass
class Evidence:
    """The hour's evidence. `stalls`: the clients' process did not run then, so the groups' state is unknown."""

    began_ms: int
    ended_ms: int
    scrape_ms: int
    retry_ms: int
    strokes: list[Stroke] = field(default_factory=list)
    stalls: list[Span] = field(default_factory=list)
    groups: dict[str, GroupEvidence] = field(default_factory=dict)

    def write(self, path: Path) -> None:
        """Write the evidence as JSON."""
        path.write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, path: Path) -> Evidence:
        """Read the evidence that `write` wrote."""
        told = json.loads(path.read_text())
        told["strokes"] = [Stroke(**one) for one in told["strokes"]]
        told["stalls"] = [Span(**one) for one in told["stalls"]]
        told["groups"] = {name: GroupEvidence(**one) for name, one in told["groups"].items()}
        return cls(**told)
