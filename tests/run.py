"""Run every check of the house and end with one line of JSON: what `make test` is.

    python tests/run.py            lint, types, import layers, generated files, fast tests, sieve, then what needs real parts
    python tests/run.py --quick    the same without the tests that need real parts

Each check counts as one, each test as one. What is left out is named with its reason and never counted as passed; under
`REQUIRE_REAL=1` the real parts are installed first and anything left out makes the run fail. The last line of standard
output is `{"passed": n, "failed": n, "left_out": [{"what", "why"}]}`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent


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


def run(command: list[str], **environment: str) -> int:
    """Run one command from the root of the tree, its output shown as it comes."""
    say(f"\n==> {' '.join(command)}")
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, **environment}, stdin=subprocess.DEVNULL, check=False)
    return done.returncode


def check(name: str, command: list[str]) -> Tally:
    """One check, counted as one."""
    code = run(command)
    say(f"{name}: {'passed' if code == 0 else f'FAILED (exit code {code})'}")
    return Tally(passed=1) if code == 0 else Tally(failed=1)


def pytest_run(name: str, arguments: list[str]) -> Tally:
    """One pytest run, counted test by test. A run that dies without its count, or that ran nothing, is a failure."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
        code = run(command, BROKERGROUP_TEST_REPORT=str(report))
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


def proof_run(proof: Proof, *, required: bool) -> Tally:
    """One proof, counted as one."""
    installer = [sys.executable, "tests/real/parts/install.py", "--missing", *proof.parts]
    told = subprocess.run(installer, cwd=ROOT, capture_output=True, text=True, check=False)
    if told.returncode != 0 and not required:
        return Tally(left_out=[{"what": proof.name, "why": told.stdout.strip()}])
    return check(proof.name, [sys.executable, *proof.command])


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


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="leave out the tests that need real parts")
    options = parser.parse_args(arguments)
    required = os.environ.get("REQUIRE_REAL") == "1"
    tally = Tally()
    if required:
        tally.add(check("real parts", [sys.executable, "tests/real/parts/install.py", "--all", "--list"]))
    # Each Spark process of the tests starts faster; without Java it says so and is passed.
    tally.add(check("class archive", [sys.executable, "-m", "sla_reports.class_archive", "--optional"]))
    for name, command in STATIC_CHECKS.items():
        tally.add(check(name, command))
    tally.add(pytest_run("fast tests", ["-n", "2", "-m", "not real"]))
    tally.add(check("sieve", [sys.executable, "tests/sieve/run.py"]))
    if options.quick:
        tally.left_out.append({"what": "tests that need real parts", "why": "--quick"})
    else:
        tally.add(pytest_run("real tests", ["-m", "real"]))
        for proof in PROOFS:
            tally.add(proof_run(proof, required=required))
    good = tally.failed == 0 and not (required and tally.left_out)
    say(f"\n{tally.passed} passed, {tally.failed} failed")
    say(json.dumps({"passed": tally.passed, "failed": tally.failed, "left_out": tally.left_out}))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
