"""The strength of the gate: each mutant is one changed line of the product, and a test has to find it.

    python -m tests.mutants.run                   all mutants, against what `make test` runs
    python -m tests.mutants.run --only u03 r07    these
    python -m tests.mutants.run --whole           also against the tests whose whole form is a proof

`unread.yaml` was written by an author that had not read the tests, `read.yaml` by one that had; both before the tests were
shortened. `heart.yaml` puts the twelve faults back that issue 16 found in the heart. Each mutant changes a copy of the tracked
files. Its package's own tests run first; the first failure ends it. The unchanged copy comes first: it has to pass. The last
line is `{"mutants", "found", "missed", "by"}`; exit code 0 if at least the share `--at-least` (default 0.85) of them is found.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from tests.lanes import GATE_TESTS, WORKERS
from tests.support.lane_runner import scratch_folder

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
OPERATOR = "operator/brokergroup_operator/"
# The tests that know a package best run first.
OWN_TESTS = {
    "controller_core/": ("tests/core",),
    f"{OPERATOR}controller/": ("tests/controller", "tests/upstream", "tests/security"),
    f"{OPERATOR}reconcile/": ("tests/reconcile", "tests/operations"),
    f"{OPERATOR}fence/": ("tests/fence",),
    f"{OPERATOR}records/": ("tests/records", "tests/controller"),
    "rocketmq_replica/": ("tests/replica",),
}
WHOLE = "not real"
# A mutant may make a test wait for ever: the test's own limit fails it. A mutant whose whole run takes longer is not found.
TEST_SECONDS, MUTANT_SECONDS = 120, 2400
GOAL = 0.85
TEMPORARY = "temporary"


@dataclass(frozen=True)
class Mutant:
    """One changed line. `harm` says what a user would see."""

    id: str
    file: str
    before: str
    after: str
    harm: str

    def apply(self, root: Path) -> None:
        """Change the line. ValueError if the file no longer has it exactly once."""
        path = root / self.file
        text = path.read_text(encoding="utf-8")
        if (times := text.count(self.before)) != 1:
            raise ValueError(f"mutant {self.id}: {self.file} has {self.before!r} {times} times, expected 1")
        path.write_text(text.replace(self.before, self.after), encoding="utf-8")

    def own_tests(self) -> tuple[str, ...]:
        """Return the test folders of the mutant's package."""
        return next(folders for start, folders in OWN_TESTS.items() if self.file.startswith(start))


def mutants() -> list[Mutant]:
    """Return all mutants, first those of the author that had not read the tests."""
    return [
        Mutant(**one)
        for name in ("unread.yaml", "read.yaml", "heart.yaml")
        for one in yaml.load((HERE / name).read_text(encoding="utf-8"), Loader=yaml.CSafeLoader)
    ]


def found_by(mutant: Mutant, copy: Path, *, whole: bool) -> str | None:
    """Return the test that failed on this mutant; None if none did."""
    return _found_in_copy(mutant.apply, copy, mutant.own_tests(), whole=whole)


def _found_in_copy(change: Callable[[Path], None], copy: Path, own: tuple[str, ...], *, whole: bool) -> str | None:
    restore(copy)
    change(copy)
    deadline = time.monotonic() + MUTANT_SECONDS
    for command in (
        *([_tests(WHOLE if whole else GATE_TESTS, *own)] if own else []),
        _tests(WHOLE if whole else GATE_TESTS, *(f"--ignore={folder}" for folder in own)),
        [sys.executable, "tests/sieve/run.py", *([] if whole else ["--gate"])],
    ):
        if (failure := _failure(command, copy, deadline, whole=whole)) is not None:
            return failure
    return None


def restore(copy: Path) -> None:
    """Make `copy` hold the tracked files as they are here, and nothing else but compiled modules; empty TEMPORARY beside it.

    All mutants use one path, and an unchanged file keeps its time: its compiled module stays valid. Compiling all tests anew for
    each mutant would cost 25 s of a core per worker.
    """
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    tracked = {copy / name: ROOT / name for name in listed.decode().split("\0") if name and (ROOT / name).is_file()}
    for path in sorted(copy.rglob("*"), reverse=True):
        if path.is_dir() and not path.is_symlink():
            if not any(path.iterdir()):
                path.rmdir()
        elif path not in tracked and path.parent.name != "__pycache__":
            path.unlink()
    shutil.rmtree(copy.parent / TEMPORARY, ignore_errors=True)
    (copy.parent / TEMPORARY).mkdir(parents=True)
    for path, source in tracked.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, path)


def _tests(marker: str, *arguments: str) -> list[str]:
    options = ["-q", "-x", "-p", "no:cacheprovider", "-n", str(WORKERS), "--dist", "loadgroup", "-o"]
    # This test checks that each mutant applies: it finds no mutant.
    options += [f"timeout={TEST_SECONDS}", "--no-loadscope-reorder", "--ignore=tests/repository/test_mutants.py"]
    return [sys.executable, "-m", "pytest", *options, "-m", marker, *arguments]


def _failure(command: list[str], copy: Path, deadline: float, *, whole: bool) -> str | None:
    """Run the command in the copy; the first failed test, or how it ended; None if it passed."""
    # Before the editable install of this checkout, for every process that a test starts.
    # By night, too, the gate is what it is by day.
    environment = {**os.environ, "BROKERGROUP_NIGHTLY": "", "BROKERGROUP_WHOLE": "1" if whole else ""}
    environment |= {"PYTHONPATH": f"{copy}:{copy / 'operator'}", "TMPDIR": str(copy.parent / TEMPORARY)}
    process = subprocess.Popen(
        command,
        cwd=copy,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=max(1.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        print(f"no end within {MUTANT_SECONDS} s", file=sys.stderr)
        return None
    if process.returncode == 0:
        return None
    failed = re.search(r"^(?:FAILED|ERROR) (\S+)", output, re.MULTILINE)
    return failed[1] if failed else f"{Path(command[1]).name}: exit code {process.returncode}: {output[-300:]}"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="ID")
    parser.add_argument("--whole", action="store_true")
    parser.add_argument("--at-least", type=float, default=GOAL, help="this share of the mutants has to be found")
    options = parser.parse_args(arguments)
    chosen = [one for one in mutants() if options.only is None or one.id in options.only]
    if options.only is not None and len(chosen) != len(options.only):
        parser.error(f"--only {' '.join(options.only)}: expected ids of {', '.join(one.id for one in mutants())}")
    by: dict[str, str | None] = {}
    with scratch_folder() as folder:
        copy = folder / "checkout"
        if failure := _found_in_copy(lambda _copy: None, copy, (), whole=options.whole):
            raise SystemExit(f"the unchanged copy fails {failure}: expected it to pass before any mutant is tried")
        for one in chosen:
            began = time.monotonic()
            by[one.id] = found_by(one, copy, whole=options.whole)
            seconds = time.monotonic() - began
            print(f"{one.id} {one.file}: {by[one.id] or 'NOT FOUND'} ({seconds:.0f} s)", file=sys.stderr, flush=True)
    missed = [name for name, test in by.items() if test is None]
    found = len(by) - len(missed)
    print(json.dumps({"mutants": len(by), "found": found, "missed": missed, "by": by}))
    return 0 if found >= math.ceil(options.at_least * len(by) - 1e-9) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
