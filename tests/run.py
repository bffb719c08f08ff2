"""Run the lanes of tests/lanes.py: the gate, or the proofs.

    python tests/run.py [--lane lint ...]     the gate: static checks, every test without real parts (`make test`)
    python tests/run.py --proofs              every proof, one at a time, each alone on the machine (`make proofs`)
        --lane fence sieve                    these
        --changed COMMIT                      those of the files changed since this commit, by the table in tests/README.md
        --nightly                             with the full numbers
        --list                                only list them
        --runs                                the table of all recorded runs of this checkout

The last line is `{"passed", "failed", "left_out": [{"what", "why"}], "seconds", "lanes": {name: {"holds", "passed", "failed",
"left_out", "seconds"}}, "red": [names]}`, with the proofs also `"commit"`; exit code 0 only if all lanes hold. Each lane's output
is in build/test-results or build/proofs, beside it the last line in lanes.json, and a proof's verdict in LANE.json.

A leftover process, namespace or network device is a failure. The runner ends such processes, and removes the others if they have
our names, also after SIGTERM.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import re
import shlex
import shutil
import statistics
import subprocess
import sys
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from tests.lanes import COMPILE, GATE, PROOFS, PYTHON, Lane  # noqa: E402
from tests.support import lane_runner  # noqa: E402
from tests.support.alone import hold_machine  # noqa: E402
from tests.support.lane_runner import RESULTS, Outcome, run_lane  # noqa: E402

PROVED = ROOT / "build" / "proofs"
# One line for each run in this checkout: only many runs show a lane's reliability.
RUNS = "runs.jsonl"
KEPT = ("lane", "commit", "date", "holds", "why", "seconds")
PAGE = ROOT / "tests" / "README.md"
NAMES = tuple(lane.name for lane in PROOFS)
ROW = re.compile(r"^\| `(?P<path>[^`|]+)` \| (?P<lanes>[a-z0-9, -]+) \|$", re.MULTILINE)
# Characters shown of the beginning and of the end of a failed lane's output: a CI shows an excerpt.
SHOWN_CHARACTERS = 10_000
# The host ends of a deleted namespace's devices disappear a moment later.
GRACE_SECONDS = 5.0
BEGAN = time.monotonic()
# Prefixes of bridges and namespaces of our tests, demos and nodes; any other new one is reported and stays.
OUR_PREFIX = "bg"


async def run_gate(names: list[str] | None) -> int:
    """Run the gate's queues at once, and each queue's lanes in order."""
    # Remove an earlier run's logs.
    shutil.rmtree(RESULTS, ignore_errors=True)
    is_compiled = any(ROOT.glob("tests/*/__pycache__/*-pytest-*.pyc"))

    def is_wanted(lane: Lane) -> bool:
        return not (lane is COMPILE and is_compiled) if names is None else lane.name in names

    async def run_queue(queue: tuple[Lane, ...]) -> list[Outcome]:
        return [report(await run_lane(lane), RESULTS) for lane in queue if is_wanted(lane)]

    with lane_runner.scratch_folder() as scratch:
        os.environ["TMPDIR"] = str(scratch)
        outcomes = [one for queue in await asyncio.gather(*map(run_queue, GATE)) for one in queue]
        left_behind = lane_runner.end_descendants()
    return end(outcomes, RESULTS, left_behind=left_behind)


async def run_proofs(proofs: list[Lane], *, by_night: bool) -> int:
    """Run the proofs in order."""
    outcomes = [report(await prove(lane, by_night=by_night), PROVED) for lane in proofs]
    return end(outcomes, PROVED, commit=_checkout()[0])


async def prove(lane: Lane, *, by_night: bool) -> Outcome:
    """Install a lane's parts, run it, remove its leftovers, and write build/proofs/LANE.json."""
    command = shlex.join(lane.words(by_night=by_night))
    print(f"==> {lane.name}: {command}", flush=True)
    checkout, before = _checkout(), _namespaces_and_devices()
    outcome = await _install(lane) or await run_lane(lane, PROVED, by_night=by_night)
    outcome.left_behind = lane_runner.end_descendants() + _remove_new(before)
    if not outcome.why and _checkout() != checkout:
        outcome.why = "the checkout changed while it ran"
    elif not outcome.why and outcome.left_out:
        outcome.why = "it left tests out"
    verdict = {
        "lane": lane.name,
        "command": command,
        "commit": checkout[0],
        "uncommitted_changes": bool(checkout[1]),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "holds": outcome.holds,
        "why": outcome.why,
        "left_behind": outcome.left_behind,
        **outcome.counts(),
        "left_out": outcome.left_out,
        "result": outcome.result,
    }
    (PROVED / f"{lane.name}.json").write_text(json.dumps(verdict, indent=1) + "\n", encoding="utf-8")
    with (PROVED / RUNS).open("a", encoding="utf-8") as file:
        load = round(os.getloadavg()[0], 1)
        file.write(json.dumps({name: verdict[name] for name in KEPT} | {"load": load}) + "\n")
    return outcome


def runs_as_table(lines: Iterable[str]) -> str:
    """Return all recorded runs of each lane as Markdown: how many held, their seconds, and the reason of each failure."""
    runs: dict[str, list[dict[str, Any]]] = {}
    for line in lines:
        runs.setdefault((run := json.loads(line))["lane"], []).append(run)
    rows = ["| lane | runs | held | seconds, median and worst | commits | did not hold |", "|---|---|---|---|---|---|"]
    for lane, of_lane in sorted(runs.items()):
        seconds = [run["seconds"] for run in of_lane]
        commits = ", ".join(dict.fromkeys(run["commit"][:7] for run in of_lane))
        held = sum(run["holds"] for run in of_lane)
        not_held = "; ".join(
            f"{run['commit'][:7]}, load {run['load']}: {run['why'] or 'see its log'}"
            for run in of_lane
            if not run["holds"]
        )
        measured = f"{statistics.median(seconds):.0f} / {max(seconds):.0f}"
        rows.append(f"| {lane} | {len(of_lane)} | {held} | {measured} | {commits} | {not_held} |")
    return "\n".join(rows)


def report(outcome: Outcome, folder: Path) -> Outcome:
    """Print one line of JSON; for a failed lane also its output's end, and the beginning of pytest's failures."""
    if not outcome.holds:
        log = folder / f"{outcome.lane.name}.log"
        printed = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
        printed = printed[max(0, printed.find("= FAILURES =")) :]
        if len(printed) > 2 * SHOWN_CHARACTERS:
            printed = f"{printed[:SHOWN_CHARACTERS]}\n[…]\n{printed[-SHOWN_CHARACTERS:]}"
        why = "; ".join(filter(None, [outcome.why, *outcome.left_behind, *(one["why"] for one in outcome.left_out)]))
        print(f"\n--- {outcome.lane.name} FAILED: {why or 'see its output'}\n{printed}")
    said = {"lane": outcome.lane.name, "holds": outcome.holds, "seconds": outcome.seconds}
    print(json.dumps({**(outcome.result or outcome.counts()), **said}), flush=True)
    return outcome


def end(outcomes: list[Outcome], folder: Path, *, left_behind: Sequence[str] = (), **said: str) -> int:
    """Print the last line, and write it to lanes.json in this folder. Return the exit code."""
    for command in left_behind:
        print(f"FAILED: a process outlived its lane: {command}")
    red = [one.lane.name for one in outcomes if not one.holds]
    verdict = {
        **said,
        "passed": sum(one.passed for one in outcomes),
        "failed": sum(max(one.failed, not one.holds) for one in outcomes) + len(left_behind),
        "left_out": [entry for one in outcomes for entry in one.left_out],
        "seconds": round(time.monotonic() - BEGAN),
        "lanes": {one.lane.name: {"holds": one.holds, **one.counts()} for one in outcomes},
        "red": red,
    }
    line = json.dumps(verdict)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "lanes.json").write_text(line + "\n", encoding="utf-8")
    print(line, flush=True)
    return 1 if verdict["failed"] else 0


async def _install(lane: Lane) -> Outcome | None:
    """Install a lane's parts, and for Spark the archive that makes its JVM start fast. None if the lane can start."""
    commands = {}
    if lane.parts:
        commands["parts"] = ("tests/real/parts/install.py", *lane.parts)
    if "java" in lane.parts:
        commands["class-archive"] = ("-m", "sla_reports.class_archive", "--optional")
    for what, command in commands.items():
        step = await run_lane(Lane(f"{lane.name}-{what}", (PYTHON, *command), minutes=60), PROVED)
        if not step.holds:
            return replace(step, lane=lane, why=f"{step.why}: see {step.lane.name}.log")
    return None


def _checkout() -> tuple[str, str]:
    """Return the commit and the checkout's differences from it."""
    return _git("rev-parse", "HEAD").strip(), _git("status", "--porcelain")


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout


def _namespaces_and_devices() -> set[tuple[str, str]]:
    found = set()
    for kind, folder in (("netns", Path("/run/netns")), ("link", Path("/sys/class/net"))):
        with contextlib.suppress(FileNotFoundError):
            found |= {(kind, entry.name) for entry in folder.iterdir()}
    return found


def _remove_new(before: set[tuple[str, str]]) -> list[str]:
    """Return the namespaces and devices that are new and stay; remove those with our names."""
    deadline = time.monotonic() + GRACE_SECONDS
    while (new := _namespaces_and_devices() - before) and time.monotonic() < deadline:
        time.sleep(0.1)
    for kind, name in sorted(new):
        if name.startswith(OUR_PREFIX):
            subprocess.run(["ip", kind, "delete", name], capture_output=True, check=False)
    return sorted(f"{kind} {name}" for kind, name in new)


def lanes_of_changes(since: str) -> list[str]:
    """Return the lanes of paths changed since that commit. SystemExit if the commit does not exist."""
    verify = ["git", "rev-parse", "--verify", "--quiet", f"{since}^{{commit}}"]
    if shutil.which("git") is None or subprocess.run(verify, cwd=ROOT, capture_output=True, check=False).returncode:
        raise SystemExit(f"CHANGED=1: there is no commit {since}: expected SINCE=COMMIT, the last one that landed")
    # Without renames: a file that moved changed at both places.
    changed = _git("diff", "--no-renames", "--name-only", since).splitlines()
    changed += _git("ls-files", "--others", "--exclude-standard").splitlines()
    rows = table()
    wanted = {lane for path in changed for lane in lanes_of_path(path, rows)}
    print(f"{len(changed)} files changed since {since}: {', '.join(sorted(wanted)) or 'no lane'}", file=sys.stderr)
    return sorted(wanted)


def table() -> dict[str, tuple[str, ...]]:
    """Return the table of tests/README.md: path prefix to lanes. SystemExit if it names an unknown lane."""
    rows = {row["path"]: tuple(row["lanes"].split(", ")) for row in ROW.finditer(PAGE.read_text(encoding="utf-8"))}
    for path, names in rows.items():
        if unknown := [name for name in names if name not in (*NAMES, "none")]:
            raise SystemExit(f"tests/README.md: {path}: {unknown[0]!r} is no lane: expected one of {', '.join(NAMES)}")
    return rows


def lanes_of_path(path: str, rows: dict[str, tuple[str, ...]]) -> tuple[str, ...]:
    """Return the lanes of the longest matching prefix; a path without a row has every lane."""
    fitting = [start for start in rows if path.startswith(start)]
    names = rows[max(fitting, key=len)] if fitting else NAMES
    return tuple(name for name in names if name != "none")


def chosen(options: argparse.Namespace) -> list[Lane]:
    """Return the proofs of this run. By day a lane for the night runs only by name."""
    if options.lane:
        return [lane for lane in PROOFS if lane.name in options.lane]
    wanted = lanes_of_changes(options.changed) if options.changed else NAMES
    return [lane for lane in PROOFS if lane.name in wanted and (options.nightly or not lane.only_by_night)]


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--proofs", action="store_true")
    parser.add_argument("--lane", action="extend", nargs="+", metavar="NAME")
    parser.add_argument("--changed", metavar="COMMIT")
    parser.add_argument("--nightly", action="store_true")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--runs", action="store_true")
    options = parser.parse_args(arguments)
    if not options.proofs and (options.changed or options.nightly or options.list or options.runs):
        parser.error("--changed, --nightly, --list, --runs: expected --proofs before them")
    known = NAMES if options.proofs else tuple(lane.name for queue in GATE for lane in queue)
    if unknown := [name for name in options.lane or () if name not in known]:
        parser.error(f"lane {unknown[0]}: expected one of {', '.join(known)}")
    if not options.proofs:
        lane_runner.adopt_orphans()
        return asyncio.run(run_gate(options.lane))
    proofs = chosen(options)
    if options.runs:
        kept = PROVED / RUNS
        print(runs_as_table(kept.read_text(encoding="utf-8").splitlines() if kept.exists() else ()))
        return 0
    if options.list:
        print(json.dumps([lane.name for lane in proofs]))
        return 0
    if options.nightly:
        os.environ["BROKERGROUP_NIGHTLY"] = "1"
    with hold_machine():
        lane_runner.adopt_orphans()
        return asyncio.run(run_proofs(proofs, by_night=options.nightly))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
