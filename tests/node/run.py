"""Two real nodes: install the chart, strike masters under load, and check the documents' promises.

    python -m tests.node.run                the short run: everything but switchover, drain, cut, upgrade, uninstall
    python -m tests.node.run --all          those too
    python -m tests.node.run --only freeze  one check, on a cluster that `make node` has left up, or on one of its own
    python -m tests.node.run --only kill --only cut --rounds 10    each so many times, in turn; median, worst and its stages

What it starts it ends, also after a failure or an interrupt; a cluster that was up before stays up. The last line of standard
output is JSON, and the exit code is 0 only if every check held.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import TYPE_CHECKING

from tests.node import checks, images
from tests.node.bench import Bench, CheckError, Group
from tests.node.checks import CHECKS, Check
from tests.node.cluster import OPERATOR_NAMESPACE, say
from tests.node.evidence import RECORDS, keep_what_runs
from tests.node.kubectl import kubectl_run
from tests.node.places import nodes
from tests.node.processes import NodeError
from tests.node.records import OperatorRecords
from tests.node.strikes import summary
from tests.node.whole_run import run_on_two_nodes, told

if TYPE_CHECKING:
    from pathlib import Path

GROUPS = {"replica": Group("quickstart", "Python"), "java": Group("orders", "Java")}


def chosen(options: argparse.Namespace) -> list[Check]:
    if options.only:
        return [check for check in CHECKS if check.sets_up or check.name in options.only]
    return [check for check in CHECKS if options.all or not check.slow]


def run_check(bench: Bench, check: Check) -> str | None:
    """Run a check; return why it failed, or None."""
    began = time.monotonic()
    say(f"{check.name} …")
    try:
        check.run(bench)
    except (CheckError, NodeError, AssertionError, OSError, KeyError, ValueError) as error:
        why = told(error) if not isinstance(error, CheckError | NodeError) else str(error)
        say(f"{check.name}: FAILED after {time.monotonic() - began:.1f} s: {why}")
        keep_what_runs(RECORDS / f"{bench.checks}-{check.name}", list(bench.groups.values()))
        return why
    finally:
        bench.end_loads()
    say(f"{check.name}: holds, {time.monotonic() - began:.1f} s")
    return None


def has_groups() -> bool:
    """Whether an earlier run has set the cluster up."""
    return all(kubectl_run("get", "brokergroup", group.name).returncode == 0 for group in GROUPS.values())


def in_turn(wanted: list[Check], rounds: int) -> list[Check]:
    """Return the checks that set up once, then the others this many times."""
    return [check for check in wanted if check.sets_up] + [check for check in wanted if not check.sets_up] * rounds


def measure(bench: Bench, wanted: list[Check], rounds: int, failed: dict[str, str]) -> None:
    """Run them one by one; why each that failed did not hold goes into `failed`."""
    if has_groups():
        say("the groups are there already: what sets them up is not checked")
        checks.find_name_server(bench)
        wanted = [check for check in wanted if not check.sets_up]
    bench.records.start()
    for check in in_turn(wanted, rounds):
        bench.checks += 1
        why = run_check(bench, check)
        if why is not None:
            failed[check.name] = f"{failed[check.name]}; {why}" if check.name in failed else why


def figures(bench: Bench, failed: dict[str, str], seconds: float) -> dict[str, object]:
    freeze = {
        label: {
            "gap_s": bench.gaps.get("freeze", {}).get(label),
            "unfenced": bench.unfenced.get("freeze", {}).get(label),
            "steps_ms": bench.told.get("freeze", {}).get(label, {}).get("stepsMilliseconds"),
            "evidence": bench.told.get("freeze", {}).get(label, {}).get("evidence"),
        }
        for label in GROUPS
    }
    return {
        "nodes": len(nodes()),
        "checks": bench.checks,
        "failed": len(failed),
        "freeze": freeze,
        "gaps_s": bench.gaps,
        "strikes": summary(bench.strikes),
        "lost": bench.lost,
        "false_failovers": bench.false_failovers,
        "image_mib": bench.image_mib,
        "seconds": round(seconds),
        "seconds_of": bench.seconds,
        "why": failed,
    }


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--all", action="store_true", help="the slow ones too: switchover, drain, cut, upgrade, uninstall"
    )
    names = [check.name for check in CHECKS]
    parser.add_argument("--only", action="append", choices=names, metavar="CHECK", help=f"of {', '.join(names)}")
    parser.add_argument("--rounds", type=int, default=1, metavar="N", help="each check that sets nothing up N times")
    parser.add_argument("--keep", action="store_true", help="leave the cluster up")
    options = parser.parse_args(arguments)
    began = time.monotonic()
    bench = Bench(GROUPS, OperatorRecords(OPERATOR_NAMESPACE))
    failed: dict[str, str] = {}

    def act(archive: Path) -> None:
        bench.image_mib = images.image_mib(archive)
        measure(bench, chosen(options), options.rounds, failed)

    run_on_two_nodes("cluster", bench, failed, act, keep=options.keep)
    print(json.dumps(figures(bench, failed, time.monotonic() - began)))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
