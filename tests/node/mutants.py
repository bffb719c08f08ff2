"""The faults that a real cluster once found, put back one by one: each has to be found again, by a check of `make test-node`, or by
a test where the nodes meet the fault by luck only.

    python -m tests.node.mutants              all
    python -m tests.node.mutants a d          these

Each is a copy of the checkout with a few words changed; for the nodes also its image and its chart, on a cluster of its own, which
takes two to three minutes. The last line of standard output is JSON, and the exit code is 0 only if each was found, by a check or a
test that is named for it.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.node.cluster import say
from tests.node.places import REPOSITORY

SECONDS = 900.0


@dataclass(frozen=True)
class Edit:
    """Words that are there once, and what stands there instead."""

    file: str
    old: str
    new: str

    def apply(self, checkout: Path) -> None:
        path = checkout / self.file
        text = path.read_text(encoding="utf-8")
        if text.count(self.old) != 1:
            raise ValueError(f"{self.file}: {self.old!r} is there {text.count(self.old)} times: expected once")
        path.write_text(text.replace(self.old, self.new), encoding="utf-8")


@dataclass(frozen=True)
class Mutant:
    """A fault: what it was, how it is put back, and which of the checks on the nodes, or which tests, may find it."""

    what: str
    edits: tuple[Edit, ...]
    found_by: tuple[str, ...] = ()
    tests: tuple[str, ...] = ()


MUTANTS = {
    "a": Mutant(
        "kopf asks for the user's name, the image has none: the watch ends once a second",
        (
            Edit(
                "operator/brokergroup_operator/reconcile/run/watch.py",
                "            identity=self._identity,  # type: ignore[arg-type]  # kopf's own type of text\n",
                "",
            ),
            Edit(".ci/slim_image.py", '(("passwd", ACCOUNT), ("group"', '(("passwd", ""), ("group"'),
        ),
        ("watch-lives", "quickstart", "spec-change"),
    ),
    "b": Mutant(
        "a fence timeout below the kubelet's least grace, and nothing in the pod that kills sooner",
        (
            Edit(
                "operator/brokergroup_operator/api/failover_fields.py",
                "fence_milliseconds=max(timeout, LEAST_FENCE),",
                "fence_milliseconds=2000,",
            ),
            Edit(
                "operator/brokergroup_operator/fence/watchman.py",
                "self._leaving and self._processes.broker_is_stopped()",
                "False",
            ),
            Edit(
                "operator/brokergroup_operator/fence/deletion.py",
                "if leaving and self._processes.broker_is_stopped():",
                "if False:",
            ),
            Edit("charts/brokergroup-operator/values.yaml", "  signedFence: true\n", "  signedFence: false\n"),
        ),
        ("freeze",),
    ),
    "c": Mutant(
        "every pod that believes in a loss tells of it, and only the one that reconciles writes the status",
        (
            Edit(
                "operator/brokergroup_operator/controller/group/elections.py",
                "    timeline.outcome = Outcome.CANCELLED\n",
                "    return finish(group, timeline, Outcome.CANCELLED)\n",
            ),
            Edit(
                "operator/brokergroup_operator/cli/operator_process.py",
                "EventObserver(events), history, *(",
                "EventObserver(events), *(",
            ),
        ),
        ("freeze", "kill"),
    ),
    "d": Mutant(
        "a plane that never heard a starting broker dials it, and finds it dead",
        (
            Edit(
                "operator/brokergroup_operator/controller/detect/master_watch.py",
                "self.is_warm(group) and not self._may_be_starting(group)",
                "True",
            ),
            Edit(
                "operator/brokergroup_operator/controller/detect/master_watch.py",
                "return None if await self._is_starting(case, verdict) else verdict",
                "return verdict",
            ),
        ),
        # A second pod would have to dial just between registration and open port: on the nodes that is luck.
        tests=("tests/controller/test_corroboration.py",),
    ),
}


def copied_checkout(folder: Path) -> Path:
    """Copy the work tree's files that git tracks; the environment is shared."""
    copy = folder / "checkout"
    names = subprocess.run(["git", "ls-files", "-z"], cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout
    for name in names.split("\0"):
        if name and (REPOSITORY / name).exists():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(REPOSITORY / name, copy / name)
    (copy / ".venv").symlink_to(REPOSITORY / ".venv")
    return copy


def why_found(mutant: Mutant) -> dict[str, str]:
    """The checks that failed, and with which words; those that are not named for the mutant too."""
    with tempfile.TemporaryDirectory(prefix="node-mutant-") as folder:
        copy = copied_checkout(Path(folder))
        for edit in mutant.edits:
            edit.apply(copy)
        if mutant.tests:
            return failed_tests(mutant, copy)
        wanted = [word for name in mutant.found_by for word in ("--only", name)]
        done = subprocess.run(
            [sys.executable, "-m", "tests.node.run", *wanted],
            cwd=copy,
            env=environment_of(copy),
            stdout=subprocess.PIPE,
            text=True,
            timeout=SECONDS,
            check=False,
        )
    told: dict[str, str] = json.loads(done.stdout.strip().splitlines()[-1])["why"]
    return told


def environment_of(copy: Path) -> dict[str, str]:
    """The copy's packages, not those that the shared environment names."""
    return {**os.environ, "PYTHONPATH": f"{copy}:{copy / 'operator'}"}


def failed_tests(mutant: Mutant, copy: Path) -> dict[str, str]:
    """The tests that failed; each of them passes without the mutant, in `make test`."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=no", "-rf", *mutant.tests],
        cwd=copy,
        env=environment_of(copy),
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    lines = [line.removeprefix("FAILED ") for line in done.stdout.splitlines() if line.startswith("FAILED ")]
    if done.returncode not in (0, 1):
        raise RuntimeError(f"pytest ended with {done.returncode}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    return {name: why for name, _, why in (line.partition(" - ") for line in lines)}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mutants", nargs="*", metavar="MUTANT", help=f"of {', '.join(MUTANTS)}")
    options = parser.parse_args(arguments)
    unknown = set(options.mutants) - set(MUTANTS)
    if unknown:
        parser.error(f"{', '.join(sorted(unknown))}: expected some of {', '.join(MUTANTS)}")
    found: dict[str, dict[str, str]] = {}
    for name in options.mutants or MUTANTS:
        say(f"mutant {name}: {MUTANTS[name].what}")
        told = why_found(MUTANTS[name])
        named = (*MUTANTS[name].found_by, *MUTANTS[name].tests)
        found[name] = {check: why for check, why in told.items() if check.partition("::")[0] in named}
        say(f"mutant {name}: {'found by ' + ', '.join(found[name]) if found[name] else f'NOT FOUND: {told}'}")
    not_found = [name for name, by in found.items() if not by]
    print(json.dumps({"mutants": len(found), "not_found": not_found, "found_by": found}))
    return 1 if not_found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
