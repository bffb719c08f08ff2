"""The gate: what `make test` and CI run. Static checks, every test without real parts, a sample of sieve's write faults.

    python tests/run.py                       the gate
    python tests/run.py --lane lint           only this lane; repeatable

Two queues run side by side: the tests, and everything else one after the other. No JVM, Go, kubelet, namespace, nor network
beyond loopback. Each check counts as one, each test as one. The last line of standard output is `{"passed", "failed",
"left_out": [{"what", "why"}], "seconds", "lanes": {name: {"passed", "failed", "left_out", "seconds"}}}`; exit code 0 only if
nothing failed. What needs real parts or more time is `make proofs` (tests/proofs.py).
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from tests.support import lanes  # noqa: E402
from tests.support.lanes import RESULTS, Lane, Outcome, run_lane  # noqa: E402

PYTHON = sys.executable
BIN = Path(PYTHON).parent
# Tests wait for one another's deadlines more than they compute.
WORKERS = 3 * (os.cpu_count() or 1)
# Of a failed lane's output so much is shown of its beginning and of its end: a CI shows an excerpt.
SHOWN_CHARACTERS = 10_000


def pytest_lane(name: str, marker: str, *, workers: int = WORKERS, minutes: float = 40, **environment: str) -> Lane:
    """Tests by an expression of markers; those that share a system stay on one worker (`support/order.py`)."""
    options = ("-q", "-p", "no:cacheprovider", "--durations=25", "-n", str(workers))
    distribution = ("--dist", "loadgroup", "--no-loadscope-reorder")
    command = (PYTHON, "-m", "pytest", *options, *distribution, "-m", marker)
    return Lane(name, command, tests=True, limit_minutes=minutes, environment=tuple(environment.items()))


# tests/mutants measures how much these find.
GATE = "not real and not longer and not nightly"
TESTS = pytest_lane("tests", GATE, minutes=25)
CHECKS = (
    Lane("types", (str(BIN / "mypy"),)),
    Lane("lint", (str(BIN / "ruff"), "check", ".")),
    Lane("format", (str(BIN / "ruff"), "format", "--check", ".")),
    Lane("import-layers", (str(BIN / "lint-imports"),)),
    Lane("dead-code", (PYTHON, "-m", "tests.repository.dead_code")),
    Lane("generated-crds", (PYTHON, "-m", "brokergroup_operator.api.definitions.generate", "--check")),
    Lane("generated-dashboards", (PYTHON, "-m", "brokergroup_operator.observe.dashboards", "--check")),
    Lane("chart-copies", (PYTHON, "charts/sync.py", "--check")),
    Lane("list-of-deviations", (PYTHON, "-m", "tests.differential.documents", "--check")),
    Lane("docs-site", (PYTHON, "-m", "mkdocs", "build", "--strict", "--config-file", "docs/site/mkdocs.yml")),
    Lane("sieve-sample", (PYTHON, "tests/sieve/run.py", "--gate")),
)


def run_queue(queue: list[Lane]) -> list[Outcome]:
    """One after the other. After an interrupt none begins."""
    outcomes = []
    for lane in queue:
        not_run = Outcome(lane, failed=1, why="not run: the run was interrupted")
        outcome = not_run if lanes.is_stopping() else run_lane(lane)
        report(outcome)
        outcomes.append(outcome)
    return outcomes


def report(outcome: Outcome) -> None:
    """One line; of a lane that failed, what it printed too."""
    lane, log = outcome.lane, RESULTS / f"{outcome.lane.name}.log"
    lines = [f"{lane.name}: {outcome.passed} passed, {outcome.failed} failed, {outcome.seconds:.0f} s"]
    if not outcome.holds:
        printed = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
        lines = [f"\n--- {lane.name} FAILED: {outcome.why or 'see its output'}", _shown(printed), *lines]
    print("\n".join(lines), flush=True)


def _shown(printed: str) -> str:
    """The end, and of pytest's output the beginning of its failures: what a test captured may be longer than all of it."""
    start = max(0, printed.find("= FAILURES ="))
    if len(printed) - start <= 2 * SHOWN_CHARACTERS:
        return printed[start:]
    return f"{printed[start : start + SHOWN_CHARACTERS]}\n[…]\n{printed[-SHOWN_CHARACTERS:]}"


def chosen_lanes(names: list[str] | None) -> list[list[Lane]]:
    """The two queues, with only the lanes of these names. SystemExit if a name is no lane's."""
    known = [lane.name for lane in (TESTS, *CHECKS)]
    if unknown := [name for name in names or () if name not in known]:
        raise SystemExit(f"--lane {unknown[0]!r}: expected one of {', '.join(known)}")
    queues = [[TESTS], list(CHECKS)]
    return [[lane for lane in queue if names is None or lane.name in names] for queue in queues]


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lane", action="append", metavar="NAME", help="only this one; repeatable")
    queues = chosen_lanes(parser.parse_args(arguments).lane)
    began = time.monotonic()
    # The logs of an earlier run are not this run's.
    shutil.rmtree(RESULTS, ignore_errors=True)
    RESULTS.mkdir(parents=True)
    lanes.adopt_orphans()
    with lanes.scratch_folder() as scratch:
        # pytest's own variable, and everybody's.
        os.environ |= {"PYTEST_DEBUG_TEMPROOT": str(scratch), "TMPDIR": str(scratch)}
        with ThreadPoolExecutor(len(queues)) as pool:
            outcomes = [outcome for queue in pool.map(run_queue, queues) for outcome in queue]
        left_behind = lanes.end_descendants()
    for command in left_behind:
        print(f"FAILED: a process outlived its lane: {command}")
    passed = sum(one.passed for one in outcomes)
    failed = sum(one.failed for one in outcomes) + len(left_behind)
    verdict = {
        "passed": passed,
        "failed": failed,
        "left_out": [entry for one in outcomes for entry in one.left_out],
        "seconds": round(time.monotonic() - began),
        "lanes": {one.lane.name: one.counts() for one in outcomes},
    }
    (RESULTS / "lanes.json").write_text(json.dumps(verdict["lanes"], indent=1) + "\n", encoding="utf-8")
    print(f"\n{passed} passed, {failed} failed\n{json.dumps(verdict)}", flush=True)
    return 0 if failed == 0 else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
