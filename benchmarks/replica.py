"""How fast a replica is: sends per second with 1 and 3 replicas, replication, memory; with ``--java`` a Java broker's beside it.

    .venv/bin/python benchmarks/replica.py [--java] [--against CHECKOUT] [--runs 20] [--seconds 3] [--profile FILE]

Both kinds stand at the same time and are measured in turn, run by run, so that whatever else the machine does strikes both. A run
is two thirds of throughput (4 connections with 128 unanswered sends each) and one of latency (1 connection, 8 unanswered). All
members of the SyncStateSet acknowledge, flushing is asynchronous, messages have 1 KiB. ``asynchronous`` is a group of the same
size whose master alone acknowledges, measured in turn with a synchronous one: what synchronous replication costs. Replication is
an empty slave that catches up with a log written before. On a shared machine the processor time per send says more than sends per
second; both are given.

One line of JSON; exit 0 only if everything was measured and no acknowledged message is missing from any replica. Whether the
targets are reached is in the JSON. ``--profile`` has the single Python replica write its profile (cProfile) to a file.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

import uvloop

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.replica_groups import (
    Figures,
    Group,
    MeasurementError,
    Result,
    StuckSlaveError,
    cost_of_waiting,
    judge_targets,
    processor_seconds,
    produce,
    start_bench_name_server,
    times_before,
)
from rocketmq_remoting.errors import RemotingError
from tests.real.parts.process import RealProcessError

MESSAGE_BYTES = 1024
_REPLICATION_STARTS_WITHIN = 0.5
_CATCH_UP_SECONDS = 90.0
_STUCK_JAVA_SLAVES = 3
ASYNCHRONOUS = "asynchronous"


async def send(group: Group, *, seconds: float, connections: int, window: int) -> Result:
    """Some seconds of load; what was acknowledged is counted for the end."""
    result = await produce(
        group.master_address, seconds=seconds, body_bytes=MESSAGE_BYTES, connections=connections, window=window
    )
    group.acknowledged += result.codes.get(0, 0)
    return result


async def measure_one_run(group: Group, figures: Figures, seconds: float) -> None:
    """Throughput with many unanswered, then latency with few."""
    before, own_before = group.processor_seconds(), processor_seconds(os.getpid())
    loaded = await send(group, seconds=seconds * 2 / 3, connections=4, window=128)
    spent = [late - early for early, late in zip(before, group.processor_seconds(), strict=True)]
    own = processor_seconds(os.getpid()) - own_before
    sends = loaded.codes.get(0, 0)
    if not sends or not max(spent):
        raise MeasurementError(f"{group.kind}: nothing was acknowledged, answers by code: {loaded.codes}")
    light = await send(group, seconds=seconds / 3, connections=1, window=8)
    if not light.latencies_seconds:
        raise MeasurementError(f"{group.kind}: no latency was measured")
    figures.add("sends_per_second", sends / loaded.seconds, more_is_better=True)
    figures.add("sends_per_processor_second", sends / max(spent), more_is_better=True)
    figures.add("master_processor_microseconds_per_send", spent[0] / sends * 1e6)
    if len(spent) > 1:
        figures.add("slave_processor_microseconds_per_send", max(spent[1:]) / sends * 1e6)
    figures.add("producer_processor_microseconds_per_send", own / sends * 1e6)
    figures.add("p50_ms", light.percentile_ms(0.5))
    figures.add("p99_ms", light.percentile_ms(0.99))
    figures.add("loaded_p99_ms", loaded.percentile_ms(0.99))
    figures.note_refused(loaded.codes)
    figures.note_refused(light.codes)


async def measure_sends(groups: list[Group], replicas: int, arguments: argparse.Namespace) -> dict[str, Figures]:
    """All runs of one arrangement, both kinds in turn."""
    found = {group.name: Figures() for group in groups}
    for group in groups:
        await group.start(replicas)
        await send(group, seconds=arguments.seconds, connections=4, window=128)  # warm up, create the topic
    for run in range(arguments.runs):
        for group in groups[:: -1 if run % 2 else 1]:
            await measure_one_run(group, found[group.name], arguments.seconds)
        _tell_progress(f"{replicas} replicas", run, found)
    for group in groups:
        lost = await group.lost_messages()
        found[group.name].also |= {
            "memory_megabytes": group.memory_megabytes(),
            "acknowledged": group.acknowledged,
            "lost": lost,
        }
        if lost:
            raise MeasurementError(f"{group.name}, {replicas} replicas: {lost} acknowledged messages are missing")
    return found


def _tell_progress(what: str, run: int, found: dict[str, Figures]) -> None:
    """What the run found, on stderr: a run of twenty that is interrupted is not for nothing."""
    last = {
        kind: {name: round(figure.values[-1], 1) for name, figure in figures.by_name.items()}
        for kind, figures in found.items()
    }
    print(f"{what}, run {run + 1}: {json.dumps(last)}", file=sys.stderr, flush=True)


async def measure_catching_up(group: Group, end: int, figures: Figures) -> bool:
    """One empty slave; False if it got stuck, which Java's do now and then: those are counted and not measured."""
    known = set(group.controller.addresses)
    slave = group.add_broker()
    try:
        await group.wait_until(lambda: group.controller.addresses.keys() - known)
        (address,) = (group.controller.addresses[each] for each in group.controller.addresses.keys() - known)
        await _copy(group, slave.pid, address, end, figures)
    except StuckSlaveError:
        stuck = group.stuck_slaves = group.stuck_slaves + 1
        figures.also["stuck_slaves"] = stuck
        if group.kind != "java" or stuck > _STUCK_JAVA_SLAVES:
            raise
        return False
    finally:
        slave.kill()
        group.brokers.remove(slave)
        shutil.rmtree(slave.log.parent, ignore_errors=True)
    return True


async def _copy(group: Group, slave_pid: int, address: str, end: int, figures: Figures) -> None:
    pids = (group.brokers[0].pid, slave_pid)
    deadline = time.monotonic() + _CATCH_UP_SECONDS
    first = await _log_reaches(group, address, 1, deadline)
    started, before = time.perf_counter(), [processor_seconds(pid) for pid in pids]
    if first > end * _REPLICATION_STARTS_WITHIN:
        raise MeasurementError(f"{group.kind}: the slave held {first} of {end} bytes when it was first asked")
    await _log_reaches(group, address, end, deadline)
    seconds = time.perf_counter() - started
    spent = [processor_seconds(pid) - early for pid, early in zip(pids, before, strict=True)]
    copied = end - first
    figures.add("megabytes_per_second", copied / seconds / 1e6, more_is_better=True)
    figures.add("megabytes_per_processor_second", copied / max(spent) / 1e6, more_is_better=True)
    figures.add("master_processor_nanoseconds_per_byte", spent[0] / copied * 1e9)
    figures.add("slave_processor_nanoseconds_per_byte", spent[1] / copied * 1e9)


async def _log_reaches(group: Group, address: str, wanted: int, deadline: float) -> int:
    """Ask the slave until its log ends there or beyond; where it ends."""
    while (reached := await group.log_end(address)) < wanted:
        if time.monotonic() > deadline:
            raise StuckSlaveError(
                f"{group.kind}: after {_CATCH_UP_SECONDS:.0f} s the slave holds {reached} bytes, not {wanted}; "
                f"its log ends:\n{group.brokers[-1].tail()}"
            )
        await asyncio.sleep(0.002)
    return reached


async def measure_replication(groups: list[Group], arguments: argparse.Namespace) -> dict[str, Figures]:
    """One log per kind, and one empty slave after the other."""
    found = {group.kind: Figures() for group in groups}
    ends = {}
    for group in groups:
        await group.start(1)
        while await group.log_end(group.master_address) < arguments.replicated_megabytes * 1_000_000:
            await send(group, seconds=1.0, connections=4, window=128)
        ends[group.kind] = await group.log_end(group.master_address)
        found[group.kind].also["megabytes"] = ends[group.kind] // 1_000_000
    for run in range(arguments.runs):
        for group in groups[:: -1 if run % 2 else 1]:
            while not await measure_catching_up(group, ends[group.kind], found[group.kind]):
                pass
        _tell_progress("replication", run, found)
    return found


async def measure(arguments: argparse.Namespace) -> tuple[dict[str, object], list[str]]:
    """Everything; and what went wrong."""
    kinds = ["python", *(["java"] if arguments.java else []), *(["before"] if arguments.against else [])]
    figures: dict[str, dict[str, Figures]] = {kind: {} for kind in kinds}
    failures: list[str] = []
    costs: dict[str, dict[str, float]] = {}
    folder = Path(tempfile.mkdtemp(prefix="replica-bench-names-"))
    load_before, started = os.getloadavg()[0], time.perf_counter()
    name_server, address = await asyncio.to_thread(start_bench_name_server, folder)
    arrangements = [f"{replicas}_replicas" for replicas in arguments.replicas]
    arrangements += [ASYNCHRONOUS] if arguments.asynchronous_replicas else []
    arrangements += ["replication"] if arguments.replicated_megabytes else []
    try:
        for name in arrangements:
            profile = arguments.profile if name == "1_replicas" else None
            groups = [
                Group(
                    kind,
                    address,
                    against=arguments.against if kind == "before" else None,
                    profile=profile if kind == "python" else None,
                    asynchronous=asynchronous,
                )
                for kind in kinds
                for asynchronous in ((False, True) if name == ASYNCHRONOUS else (False,))
            ]
            try:
                if name == "replication":
                    found = await measure_replication(groups, arguments)
                elif name == ASYNCHRONOUS:
                    found = await measure_sends(groups, arguments.asynchronous_replicas, arguments)
                    costs = {kind: cost_of_waiting(found[kind], found[f"{kind}_{ASYNCHRONOUS}"]) for kind in kinds}
                    found = {kind: found[f"{kind}_{ASYNCHRONOUS}"] for kind in kinds}
                else:
                    found = await measure_sends(groups, int(name.partition("_")[0]), arguments)
                for kind in kinds:
                    figures[kind][name] = found[kind]
                    if found[kind].runs() != arguments.runs:
                        failures.append(f"{name}: {kind}: a figure has {found[kind].runs()} of {arguments.runs} runs")
            except (MeasurementError, RealProcessError, RemotingError, OSError, TimeoutError) as error:
                failures.append(f"{name}: {type(error).__name__}: {error}")
            finally:
                for group in groups:
                    await group.stop()
    finally:
        name_server.stop()
        shutil.rmtree(folder, ignore_errors=True)
    report: dict[str, object] = {
        "cores": os.cpu_count(),
        "load_average": [round(load_before, 2), round(os.getloadavg()[0], 2)],
        "minutes": round((time.perf_counter() - started) / 60, 1),
        "runs": arguments.runs,
        "seconds": arguments.seconds,
        "message_bytes": MESSAGE_BYTES,
    }
    report |= {kind: {name: each.summary() for name, each in found.items()} for kind, found in figures.items()}
    if costs:
        report["synchronous_to_asynchronous"] = costs
    if arguments.against:
        report["times_before"] = times_before(figures["python"], figures["before"])
    return report | {"targets": judge_targets(figures["python"]), "failures": failures}, failures


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description="How fast a replica is")
    parser.add_argument("--runs", type=int, default=20, help="of each measurement")
    parser.add_argument("--seconds", type=float, default=3.0, help="of each run")
    parser.add_argument("--replicas", type=int, nargs="*", default=[1, 3])
    parser.add_argument("--asynchronous-replicas", type=int, default=3, help="0 leaves the comparison out")
    parser.add_argument("--replicated-megabytes", type=int, default=200, help="0 leaves replication out")
    parser.add_argument("--java", action="store_true", help="the same with Java brokers")
    parser.add_argument("--against", type=Path, help="a checkout whose replica is measured in turn with this one")
    parser.add_argument("--profile", help="where the single Python replica writes its profile")
    report, failures = uvloop.run(measure(parser.parse_args()))
    print(json.dumps(report))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
