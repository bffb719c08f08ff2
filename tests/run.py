"""Run every check of the house and end with one line of JSON: what `make test` is.

    python tests/run.py            lint, types, import layers, generated files, fast tests, sieve, then what needs real parts
    python tests/run.py --quick    the same without the tests that need real parts

Each check counts as one, each test as one. What is left out is named with its reason and never counted as passed; under
`REQUIRE_REAL=1` the real parts are installed first and anything left out makes the run fail. The last line of standard
output is `{"passed": n, "failed": n, "left_out": [{"what", "why"}]}`.

A run that has used up its `--limit-minutes` ends by itself: what runs then is interrupted, the rest is named as not run, and
the run has failed. Killed from outside it would end without a word about what it had found.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
PROCESSORS = Path("/proc/stat")
# CI ends a run after 90 minutes, and what is before and after this program is in them.
CI_LIMIT_MINUTES = 85.0
# So long may an interrupted command take to clean up and tell what it found.
CLEAN_UP_SECONDS = 90.0
POLL_SECONDS = 0.2


@dataclass
class Tally:
    """What passed, what failed, what was left out and why."""

    passed: int = 0
    failed: int = 0
    left_out: list[dict[str, str]] = field(default_factory=list)

    def add(self, counts: Tally) -> None:
        self.passed += counts.passed
        self.failed += counts.failed
        self.left_out.extend(counts.left_out)


def say(line: str) -> None:
    print(line, flush=True)


@dataclass(frozen=True)
class TimeLimit:
    """When the run has to end by itself; without minutes, never."""

    minutes: float | None = None
    clock: Callable[[], float] = time.monotonic
    started: float = field(default_factory=time.monotonic)

    def is_up(self) -> bool:
        return self.minutes is not None and self.clock() - self.started > 60 * self.minutes

    def __str__(self) -> str:
        return f"the run's {self.minutes:g} minutes (--limit-minutes) are used up"


def run(command: list[str], limit: TimeLimit, **environment: str) -> int:
    """Run one command from the root of the tree, its output shown as it comes. Never 0 for one that was interrupted."""
    say(f"\n==> {' '.join(command)}")
    started, busy_before = time.monotonic(), busy_seconds()
    with subprocess.Popen(command, cwd=ROOT, env={**os.environ, **environment}, stdin=subprocess.DEVNULL) as process:
        while process.poll() is None and not limit.is_up():
            time.sleep(POLL_SECONDS)
        code = process.returncode if process.poll() is not None else interrupt(process, limit)
    took = time.monotonic() - started
    say(f"<== {took:.0f} s, {(busy_seconds() - busy_before) / took:.1f} of {os.cpu_count()} processors busy")
    return code


def busy_seconds() -> float:
    """Of all processors, whoever used them: what a killed pod used is in no parent's count. 0 where Linux does not tell."""
    with contextlib.suppress(FileNotFoundError):
        user, nice, system, _idle, _waiting, *interrupts = map(int, PROCESSORS.read_text().splitlines()[0].split()[1:8])
        return (user + nice + system + sum(interrupts)) / os.sysconf("SC_CLK_TCK")
    return 0.0


def interrupt(process: subprocess.Popen[bytes], limit: TimeLimit) -> int:
    """As by Ctrl-C: pytest then cleans up, shows its failures and leaves its count."""
    say(f"\nOUT OF TIME: {limit}; interrupted")
    process.send_signal(signal.SIGINT)
    try:
        return process.wait(CLEAN_UP_SECONDS) or 1
    except subprocess.TimeoutExpired:
        say(f"killed: it was still there {CLEAN_UP_SECONDS:.0f} s later")
        process.kill()
        return process.wait() or 1


def check(name: str, command: list[str], limit: TimeLimit) -> Tally:
    """One check, counted as one."""
    code = run(command, limit)
    say(f"{name}: {'passed' if code == 0 else f'FAILED (exit code {code})'}")
    return Tally(passed=1) if code == 0 else Tally(failed=1)


def pytest_run(name: str, arguments: list[str], limit: TimeLimit) -> Tally:
    """One pytest run, counted test by test. A run that dies without its count, or that ran nothing, is a failure."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--durations=40", *arguments]
        code = run(command, limit, BROKERGROUP_TEST_REPORT=str(report))
        if not report.exists():
            say(f"{name}: FAILED: pytest ended with exit code {code} and left no count")
            return Tally(failed=1)
        counts = Tally(**json.loads(report.read_text(encoding="utf-8")))
    if code != 0 and counts.failed == 0:
        say(f"{name}: FAILED: pytest ended with exit code {code} although no test failed")
        counts.failed = 1
    return counts


@dataclass(frozen=True)
class Proof:
    """A program that ends with its own line of JSON; left out without its real parts, unless nothing may be."""

    name: str
    command: list[str]
    parts: tuple[str, ...]


# With the numbers of CI; the make targets of the same names prove more.
PROOFS = (
    Proof("differential test", ["tests/differential/run.py"], ("rocketmq", "older-java-controller")),
    Proof("sandbox parity", ["tests/parity/run.py"], ("kube-apiserver", "etcd")),
    Proof("SLA truth", ["tests/sla/truth.py"], ("java", "prometheus")),
    Proof(
        "interop",
        ["tests/interop/run.py"],
        ("rocketmq", "older-rocketmq", "rocketmq-proxy", "rocketmq-python-client"),
    ),
    Proof(
        "fence",
        ["-m", "tests.fence.run", "--freezes", "3", "--partitions", "3", "--outages", "1", "--control", "0"],
        ("rocketmq", "netns"),
    ),
    Proof(
        "switchover, Java brokers",
        ["-m", "tests.switchover.run", "--switchovers", "5", "--rolls", "1", "--drains", "1", "--warm-up", "1"],
        ("rocketmq", "netns"),
    ),
)


def proof_run(proof: Proof, limit: TimeLimit, *, required: bool) -> Tally:
    """One proof, counted as one."""
    installer = [sys.executable, "tests/real/parts/install.py", "--missing", *proof.parts]
    told = subprocess.run(installer, cwd=ROOT, capture_output=True, text=True, check=False)
    if told.returncode != 0 and not required:
        return Tally(left_out=[{"what": proof.name, "why": told.stdout.strip()}])
    return check(proof.name, [sys.executable, *proof.command], limit)


STATIC_CHECKS = {
    "lint": [str(BIN / "ruff"), "check", "."],
    "format": [str(BIN / "ruff"), "format", "--check", "."],
    "types": [str(BIN / "mypy")],
    "import layers": [str(BIN / "lint-imports")],
    "generated CRDs": [sys.executable, "-m", "brokergroup_operator.api.generate", "--check"],
    "generated dashboards": [sys.executable, "-m", "brokergroup_operator.observe.dashboards", "--check"],
    "list of deviations": [sys.executable, "-m", "tests.differential.documents", "--check"],
    "chart copies": [sys.executable, "charts/sync.py", "--check"],
}


Lanes = dict[str, Callable[[TimeLimit], Tally]]


def lanes_of_the_house(*, quick: bool, required: bool) -> Lanes:
    """By their names, in the order in which they run."""
    lanes: Lanes = {}

    def add_check(name: str, *command: str) -> None:
        lanes[name] = lambda limit: check(name, list(command), limit)

    def add_tests(name: str, *arguments: str) -> None:
        lanes[name] = lambda limit: pytest_run(name, list(arguments), limit)

    def add_proof(proof: Proof) -> None:
        lanes[proof.name] = lambda limit: proof_run(proof, limit, required=required)

    if required:
        add_check("real parts", sys.executable, "tests/real/parts/install.py", "--all", "--list")
    # Each Spark process of the tests starts faster; without Java it says so and is passed.
    add_check("class archive", sys.executable, "-m", "sla_reports.class_archive", "--optional")
    for name, command in STATIC_CHECKS.items():
        add_check(name, *command)
    add_tests("fast tests", "-n", "2", "-m", "not real")
    add_check("sieve", sys.executable, "tests/sieve/run.py")
    if not quick:
        add_tests("real tests", "-m", "real")
        for proof in PROOFS:
            add_proof(proof)
    return lanes


def run_lanes(lanes: Lanes, limit: TimeLimit) -> Tally:
    """One after the other; what the time is too short for is named, and each is a failure."""
    # Started in the background by a shell, we and our children would ignore the interrupt that ends them in time.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    tally = Tally()
    for name, lane in lanes.items():
        if limit.is_up():
            say(f"{name}: FAILED: not run: {limit}")
            tally.add(Tally(failed=1, left_out=[{"what": name, "why": f"not run: {limit}"}]))
        else:
            tally.add(lane(limit))
    return tally


def main(arguments: list[str]) -> int:
    required = os.environ.get("REQUIRE_REAL") == "1"
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="leave out the tests that need real parts")
    parser.add_argument(
        "--limit-minutes",
        type=float,
        default=CI_LIMIT_MINUTES if required else None,
        help=f"end by itself, as failed, after so long (under REQUIRE_REAL=1: {CI_LIMIT_MINUTES:g}; else no limit)",
    )
    options = parser.parse_args(arguments)
    lanes = lanes_of_the_house(quick=options.quick, required=required)
    tally = run_lanes(lanes, TimeLimit(options.limit_minutes))
    if options.quick:
        tally.left_out.append({"what": "tests that need real parts", "why": "--quick"})
    good = tally.failed == 0 and not (required and tally.left_out)
    say(f"\n{tally.passed} passed, {tally.failed} failed")
    say(json.dumps({"passed": tally.passed, "failed": tally.failed, "left_out": tally.left_out}))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
