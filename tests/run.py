"""Run the checks of the house and end with one line of JSON: what `make test`, `make test-all` and `make test-nightly` are.

    python tests/run.py            static checks, unit tests, one story of each family, sieve's write faults: no real parts
    python tests/run.py --all      every test, and every proof with CI's numbers; what needs real parts that are missing is left out
    python tests/run.py --nightly  the same with the full numbers, and other draws each night
    python tests/run.py --all --lane "real tests" --lane fence     only these

Each check counts as one, each test as one. What is left out is named with its reason and never counted as passed; under
`REQUIRE_REAL=1` the real parts are installed first and anything left out makes the run fail. The last line of standard
output is `{"passed", "failed", "left_out": [{"what", "why"}], "seconds", "lanes": {name: {"passed", "failed", "left_out",
"seconds"}}}`. tests/README.md says what each lane is and how long it takes; `support/lanes.py` how they run side by side.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from dataclasses import replace
from enum import Enum
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from tests.support.lanes import Lane, Run, TimeLimit, say  # noqa: E402

PYTHON = sys.executable
BIN = Path(PYTHON).parent
# CI ends a run after 90 minutes, and what is before and after this program is in them.
CI_LIMIT_MINUTES = 85.0
# Tests wait for one another's timeouts more than they compute: one place more than processors keeps these busy.
PLACES = (os.cpu_count() or 1) + 1
ALONE = 1000


class Level(Enum):
    """How much is run."""

    SHORT = "make test"
    ALL = "make test-all"
    NIGHTLY = "make test-nightly"


def check(name: str, *command: str, places: int = 1) -> Lane:
    """One check, counted as one."""
    return Lane(name, command, places=places)


def tests(name: str, *arguments: str, workers: int, places: int) -> Lane:
    """Tests, counted one by one; those that share a system stay together, and the longest begin (`support/order.py`)."""
    options = ("-q", "-p", "no:cacheprovider", "--durations=40", "-n", str(workers))
    distribution = ("--dist", "loadgroup", "--no-loadscope-reorder")
    command = (PYTHON, "-m", "pytest", *options, *distribution, *arguments)
    return Lane(name, command, places=places, counted_by_test=True)


def proof(name: str, *command: str, parts: tuple[str, ...], places: int = 1) -> Lane:
    """A program that ends with its own line of JSON, counted as one; left out without its parts."""
    return Lane(name, (PYTHON, *command), places=places, parts=parts)


# The longest first: they run beside each other.
STATIC_CHECKS = {
    "types": (str(BIN / "mypy"),),
    "import layers": (str(BIN / "lint-imports"),),
    "lint": (str(BIN / "ruff"), "check", "."),
    "format": (str(BIN / "ruff"), "format", "--check", "."),
    "generated CRDs": (PYTHON, "-m", "brokergroup_operator.api.definitions.generate", "--check"),
    "generated dashboards": (PYTHON, "-m", "brokergroup_operator.observe.dashboards", "--check"),
    "dead code": (PYTHON, "-m", "tests.repository.dead_code"),
    "list of deviations": (PYTHON, "-m", "tests.differential.documents", "--check"),
    "chart copies": (PYTHON, "charts/sync.py", "--check"),
    "docs site": (PYTHON, "-m", "mkdocs", "build", "--strict", "--config-file", "docs/site/mkdocs.yml"),
}
WRITE_FAULTS = (
    "KILLED_BEFORE_WRITE",
    "KILLED_AFTER_WRITE",
    "REPLY_LOST",
    "CONFLICT",
    "TOO_MANY_REQUESTS",
    "SERVER_ERROR",
)
# They wait for one another's deadlines, with two workers 0.3 of two processors busy; beside the JVMs of real tests they miss them.
WAITING_WORKERS = 6
WAITING = ("tests/controller", "tests/fence", "tests/migrate", "tests/security", "tests/upstream")
NODE_PARTS = (
    "root",
    "node-packages",
    "node-programs",
    "kube-apiserver",
    "etcd",
    "pause",
    "coredns",
    "rocketmq-image",
    "rocketmq-python-client",
    "helm",
)
# `support/longer.py` names what the shorter runs leave to the longer ones.
NOT_LEFT_OUT = {Level.SHORT: " and not longer and not nightly", Level.ALL: " and not nightly", Level.NIGHTLY: ""}
# By day the kept traces and some of the drawn sequences; that each entry of the list occurs is seen by night.
DIFFERENTIAL = {Level.ALL: ("--sequences", "400"), Level.NIGHTLY: ("--seed", time.strftime("%Y%m%d"))}
SIEVE = {Level.ALL: ("--every", "3"), Level.NIGHTLY: ()}
SLA_TRUTH = {Level.ALL: ("--groups", "2", "--step-seconds", "120", "--draws", "200"), Level.NIGHTLY: ()}
SIMULATE = {
    # As many as were seen green with the plan in the record; the target's own default is 2,000.
    Level.ALL: ("--seeds", "24", "--no-mutants"),
    # Some 0.4 s of a processor each; 100,000 take two processors five hours.
    Level.NIGHTLY: ("--seeds", "10000", "--from", time.strftime("%Y%m%d00000")),
}
FENCE = {
    Level.ALL: ("--freezes", "3", "--partitions", "3", "--outages", "1", "--control", "0"),
    Level.NIGHTLY: ("--freezes", "30", "--partitions", "30", "--outages", "3", "--control", "12"),
}
SWITCHOVER = {
    Level.ALL: ("--switchovers", "5", "--rolls", "1", "--drains", "1", "--warm-up", "1"),
    Level.NIGHTLY: ("--switchovers", "30", "--rolls", "3", "--drains", "5"),
}


def lanes_of(level: Level, *, required: bool) -> list[Lane]:
    """In the order in which they begin."""
    static = [check(name, *command) for name, command in STATIC_CHECKS.items()]
    shorter = NOT_LEFT_OUT[level]
    waiting = tests(
        "fast tests that wait", "-m", f"not real{shorter}", *WAITING, workers=WAITING_WORKERS, places=PLACES - 1
    )
    others = (f"--ignore={folder}" for folder in WAITING)
    fast = tests("fast tests", "-m", f"not real{shorter}", *others, workers=PLACES, places=PLACES)
    if level is Level.SHORT:
        faults = [word for fault in WRITE_FAULTS for word in ("--fault", fault)]
        return [
            waiting,
            *static,
            fast,
            check("sieve, write faults", PYTHON, "tests/sieve/run.py", *faults, places=ALONE),
        ]
    installed = [check("real parts", PYTHON, "tests/real/parts/install.py", "--all", "--list", places=ALONE)]
    lanes = [
        *(installed if required else ()),
        # Each Spark process of the tests starts faster; without Java it says so and is passed.
        check("class archive", PYTHON, "-m", "sla_reports.class_archive", "--optional", places=ALONE),
        two_real_nodes(level),
        tests("real tests", "-m", f"real{shorter}", workers=2, places=2),
        *static,
        *proofs_beside(level),
        waiting,
        fast,
        check("sieve", PYTHON, "tests/sieve/run.py", *SIEVE[level], places=ALONE),
        check("simulate", PYTHON, "-m", "tests.simulate.run", *SIMULATE[level], places=ALONE),
        *proofs_alone(level),
        *(nightly() if level is Level.NIGHTLY else ()),
    ]
    return [replace(lane, parts=()) for lane in lanes] if required else lanes


def two_real_nodes(level: Level) -> Lane:
    """Where the users are: it comes first, so that no other lane uses up its time."""
    whole = ("--all",) if level is Level.NIGHTLY else ()
    return proof("two real nodes", "-m", "tests.node.run", *whole, parts=NODE_PARTS, places=ALONE)


def proofs_beside(level: Level) -> list[Lane]:
    """Those that compare answers and logs: how long anything takes is not what they are about."""
    older = ("rocketmq", "older-java-controller")
    return [
        proof("differential test", "tests/differential/run.py", *DIFFERENTIAL[level], parts=older),
        proof("observability", "-m", "tests.observability.run", parts=("java", "prometheus", "kube-apiserver")),
        proof("live page", "-m", "tests.page.run", parts=("browser",)),
        proof("SLA truth", "tests/sla/truth.py", *SLA_TRUTH[level], parts=("java", "prometheus")),
        proof("sandbox parity", "tests/parity/run.py", parts=("kube-apiserver", "etcd")),
        check("attack", PYTHON, "tests/attack/run.py", *(() if level is Level.NIGHTLY else ("--small",))),
    ]


def proofs_alone(level: Level) -> list[Lane]:
    """Those that measure gaps, under load of their own, and one that loads the machine so that all beside it starves.

    Interop's dozen JVMs come to a load of 50 to 70 on two processors; beside them real tests missed their deadlines.
    """
    parts = ("rocketmq", "netns")
    older = ("rocketmq", "older-rocketmq", "rocketmq-proxy", "rocketmq-python-client")
    return [
        proof("interop", "tests/interop/run.py", parts=older, places=ALONE),
        proof("fence", "-m", "tests.fence.run", *FENCE[level], parts=parts, places=ALONE),
        proof("switchover, Java brokers", "-m", "tests.switchover.run", *SWITCHOVER[level], parts=parts, places=ALONE),
    ]


def nightly() -> list[Lane]:
    """What only the night has time for."""
    fuzz = ("--transitions", "2000", "--seed", time.strftime("%Y%m%d"))
    return [
        check("fuzz", PYTHON, "tests/fuzz/run.py", *fuzz, places=ALONE),
        proof("the real hour", "tests/sla/real_hour.py", parts=("java", "prometheus"), places=ALONE),
    ]


def options_of(arguments: list[str], *, required: bool) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    chosen = parser.add_mutually_exclusive_group()
    chosen.add_argument("--all", dest="level", action="store_const", const=Level.ALL, help="what CI runs")
    chosen.add_argument("--nightly", dest="level", action="store_const", const=Level.NIGHTLY, help="the full numbers")
    parser.add_argument("--lane", action="append", metavar="NAME", help="only this one; repeatable")
    parser.add_argument(
        "--places", type=int, default=PLACES, help=f"how many workers and lanes run side by side (here: {PLACES})"
    )
    parser.add_argument(
        "--limit-minutes",
        type=float,
        default=CI_LIMIT_MINUTES if required else None,
        help=f"end by itself, as failed, after so long (under REQUIRE_REAL=1: {CI_LIMIT_MINUTES:g}; else no limit)",
    )
    return parser.parse_args(arguments)


def chosen_lanes(lanes: list[Lane], names: list[str] | None) -> list[Lane]:
    """Those of these names; SystemExit with the names there are where one is no lane's."""
    if names is None:
        return lanes
    there = [lane.name for lane in lanes]
    if unknown := [name for name in names if name not in there]:
        raise SystemExit(f"--lane {unknown[0]!r}: expected one of {', '.join(there)}")
    return [lane for lane in lanes if lane.name in names]


def main(arguments: list[str]) -> int:
    required = os.environ.get("REQUIRE_REAL") == "1"
    options = options_of(arguments, required=required)
    level = options.level or Level.SHORT
    if level is Level.NIGHTLY:
        os.environ["BROKERGROUP_NIGHTLY"] = "1"
    started = time.monotonic()
    lanes = chosen_lanes(lanes_of(level, required=required), options.lane)
    run = Run(lanes, TimeLimit(options.limit_minutes), places=options.places)
    run.until_all_ended()
    tally = run.tally
    if level is Level.SHORT:
        tally.left_out.append({"what": "longer tests, and those with real parts", "why": "make test-all runs them"})
    verdict = {
        "passed": tally.passed,
        "failed": tally.failed,
        "left_out": tally.left_out,
        "seconds": round(time.monotonic() - started),
        "lanes": run.by_lane,
    }
    if why := run.why_it_failed():
        say(f"\n{why}")
    say(f"\n{tally.passed} passed, {tally.failed} failed")
    say(json.dumps(verdict))
    return 0 if tally.failed == 0 and not (required and tally.left_out) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
