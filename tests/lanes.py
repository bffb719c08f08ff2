"""The lanes of `make test` (GATE) and of `make proofs` (PROOFS). tests/run.py runs them.

A test with real parts belongs to the lane of its parts: tests/conftest.py gives it the marker of `lane_of`.
"""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from tests.real.parts.install import PARTS, everything_needed

if TYPE_CHECKING:
    from collections.abc import Iterable

PYTHON = sys.executable
BIN = Path(PYTHON).parent
# Most tests use the CPU, in virtual time; two a core fill the waits of the others. Each worker needs 15 s to collect all tests.
WORKERS = 2 * (os.cpu_count() or 1)
DAY_MINUTES, NIGHT_MINUTES = 40, 600


@dataclass(frozen=True)
class Lane:
    """One command of checks. It has other arguments by day than by night, with the full numbers.

    `tests`: the command is pytest, each test is a check; any other command is one check. `says_json`: it has failed unless its
    last line is a JSON object. `parts`: its real parts; `chosen_by`: tests with one of these parts belong to it.
    After `minutes` it is stopped and has failed. `only_by_night`: by day it runs only by name.
    """

    name: str
    command: tuple[str, ...]
    by_day: tuple[str, ...] = ()
    by_night: tuple[str, ...] = ()
    tests: bool = False
    says_json: bool = False
    parts: tuple[str, ...] = ()
    chosen_by: frozenset[str] = frozenset()
    only_by_night: bool = False
    minutes: float = DAY_MINUTES
    environment: tuple[tuple[str, str], ...] = ()

    def words(self, *, by_night: bool = False) -> list[str]:
        """Return the whole command."""
        return [*self.command, *(self.by_night if by_night else self.by_day)]


def program(name: str, command: str, by_day: str = "", by_night: str = "", *parts: str) -> Lane:
    """Return a lane of a test program, whose last line is JSON."""
    words = (PYTHON, *command.split())
    return Lane(name, words, tuple(by_day.split()), tuple(by_night.split()), says_json=True, parts=parts)


def only_by_night(lane: Lane) -> Lane:
    """Return the lane, limited by day to runs by name."""
    return replace(lane, only_by_night=True, minutes=NIGHT_MINUTES)


def marked(name: str, by_day: str, by_night: str = "", *, workers: int = WORKERS, **environment: str) -> Lane:
    """Return a lane of tests by marker expression; tests that share a system stay on one worker (`support/order.py`)."""
    options = ("-q", "-p", "no:cacheprovider", "--durations=25", "-n", str(workers))
    command = (PYTHON, "-m", "pytest", *options, "--dist", "loadgroup", "--no-loadscope-reorder")
    by_night = by_night or by_day
    return Lane(name, command, ("-m", by_day), ("-m", by_night), tests=True, environment=tuple(environment.items()))


def real(name: str, chosen_by: Iterable[str], *parts: str) -> Lane:
    """Return a lane of tests with one of these real parts; two workers, as more JVMs starve each other."""
    lane = marked(name, f"{name} and not nightly", name, workers=2, REQUIRE_REAL="1")
    return replace(lane, chosen_by=frozenset(chosen_by), parts=parts)


# tests/mutants measures what these find.
GATE_TESTS = "not real and not longer and not nightly"
# Only in a fresh clone: there each worker would rewrite and compile all tests itself, 25 s of a core.
COMPILE = Lane("compile", (PYTHON, "-m", "pytest", "--collect-only", "-qq", "-p", "no:cacheprovider"))
# Two queues at once: the tests, and all other lanes in order.
GATE = (
    # No test of the gate connects beyond loopback: without the authorities that this variable names, which takes 40 ms a client.
    (COMPILE, marked("tests", GATE_TESTS, SSL_CERT_FILE="")),
    (
        Lane("types", (str(BIN / "mypy"),)),
        Lane("lint", (str(BIN / "ruff"), "check", ".")),
        Lane("format", (str(BIN / "ruff"), "format", "--check", ".")),
        Lane("import-layers", (str(BIN / "lint-imports"),)),
        Lane("dead-code", (PYTHON, "-m", "tests.repository.dead_code")),
        Lane("generated-crds", (PYTHON, "-m", "brokergroup_operator.api.definitions.generate", "--check")),
        Lane("generated-dashboards", (PYTHON, "-m", "brokergroup_operator.observe.dashboards", "--check")),
        Lane("chart-copies", (PYTHON, "charts/sync.py", "--check")),
        Lane("docs-site", (PYTHON, "-m", "mkdocs", "build", "--strict", "--config-file", "docs/site/mkdocs.yml")),
        Lane("sieve-sample", (PYTHON, "tests/sieve/run.py", "--gate")),
    ),
)
API = ("kube-apiserver", "etcd", "helm")
RELEASES = ("rocketmq", "newest-rocketmq", "older-rocketmq")
CONTROLLERS = ("java", "rocketmq", "newest-rocketmq", "older-java-controller")
JAVA = (*CONTROLLERS, "older-rocketmq", "table-rocketmq", "netns", "nft")
GRPC = ("rocketmq-proxy", "rocketmq-python-client")
NODE = (
    "root",
    "node-packages",
    "node-programs",
    *API,
    "pause",
    "coredns",
    "csi",
    "rocketmq-image",
    "rocketmq-python-client",
)
# Each night has other draws; the printed and stored command repeats them.
NIGHT = time.strftime("%Y%m%d")
TODAY = f"{NIGHT}00000"
# Quick lanes first; those that need only Python before those that build parts.
PROOFS = (
    marked("whole", "(longer or sampled) and not real and not nightly", "not real", BROKERGROUP_WHOLE="1"),
    program("sieve", "tests/sieve/run.py", "--every 3"),
    program("simulate", "-m tests.simulate.run", "--seeds 200", f"--seeds 10000 --from {TODAY}"),
    program("faulty-lives", "-m tests.replica.faulty_lives", "--lives 1000", f"--seed {TODAY}"),
    program("fuzz", "tests/fuzz/run.py", "", f"--transitions 2000 --seed {TODAY}"),
    program("attack", "tests/attack/run.py"),
    only_by_night(program("mutants", "-m tests.mutants.run")),
    program("sla-draws", "-m tests.sla.planted.draws", "--draws 2000", f"--first {TODAY}"),
    program(
        "sla-truth",
        "-m tests.sla.truth",
        "--groups 2 --step-seconds 120 --draws 200",
        f"--seed {NIGHT}50000",
        "java",
        "prometheus",
    ),
    real("charts", PARTS, "helm", "prometheus", "alertmanager", "actionlint", "package-index", "krew"),
    real("spark", ["java", "s3-server", "browser"], "java", "prometheus", "s3-server", "browser", "package-index"),
    real("api", ["kube-apiserver", "etcd", "netns", "nft"], *API, "java", "prometheus", "netns", "nft"),
    program("parity", "tests/parity/run.py", "", "", "kube-apiserver", "etcd"),
    program("page", "-m tests.page.run", "", "", "browser", "nft"),
    program("observability", "-m tests.observability.run", "", "", "java", "prometheus", "kube-apiserver"),
    program("differential", "tests/differential/run.py", "--sequences 400", f"--seed {TODAY}", *CONTROLLERS),
    # 33 to 41 minutes.
    replace(
        real("brokers", ["rocketmq", "newest-rocketmq", "older-java-controller"], *JAVA, *API, "prometheus", *GRPC),
        minutes=60,
    ),
    replace(
        only_by_night(marked("release", "release and not nightly", "release", workers=1, REQUIRE_REAL="1")),
        chosen_by=frozenset({"cosign"}),
        parts=("cosign", "crane", "helm", "package-index", "base-image", "base-image-arm64"),
        minutes=150,
    ),
    program("interop", "tests/interop/run.py", "", "", *RELEASES, *GRPC),
    program(
        "fence",
        "-m tests.fence.run",
        "--freezes 3 --partitions 3 --severed 2 --outages 1 --api-outages 1 --control 0",
        f"--freezes 30 --partitions 30 --severed 10 --outages 3 --api-outages 3 --control 12 --seed {TODAY}",
        *("rocketmq", "netns"),
    ),
    program(
        "switchover",
        "-m tests.switchover.run",
        "--switchovers 5 --rolls 1 --drains 1 --warm-up 1",
        "--switchovers 30 --rolls 3 --drains 5",
        *("rocketmq", "netns", "kube-apiserver", "etcd"),
    ),
    program("nodes", "-m tests.node.run", "", "--all", *NODE),
    replace(program("e2e", "-m tests.node.e2e", "", "", *NODE), minutes=60),
    program("helm-demo", "-m tests.node.helm_demo", "", "", *NODE),
    only_by_night(program("real-hour", "-m tests.sla.real_hour", "", "", "java", "prometheus")),
)


def lane_of(parts: set[str]) -> str:
    """Return the last lane that fits these parts. ValueError if a part is unknown, or if that lane does not install it."""
    if not parts or parts - PARTS.keys():
        raise ValueError(f"marker real({', '.join(sorted(parts))}): expected one or more of {', '.join(PARTS)}")
    lane = next(lane for lane in reversed(PROOFS) if parts & lane.chosen_by)
    if without := parts.difference(*(everything_needed(part) for part in lane.parts)):
        raise ValueError(f"the lane {lane.name} does not install {', '.join(sorted(without))} (tests/lanes.py)")
    return lane.name
