"""The proofs: what the gate leaves out because it needs real parts or more time. One lane at a time, each alone on the machine.

    make proofs                       every lane
    make proofs LANE="fence sieve"    these
    make proofs CHANGED=1             those of what changed since origin/main (or SINCE=COMMIT), by the table in tests/README.md
    make test-nightly                 the gate, then every lane with its full numbers

A lane's real parts are installed when its turn comes (tests/real/parts). Its own line of JSON is in `build/proofs/LANE.json`,
with commit, date, whether it holds, and what it left behind; its output beside it in LANE.log. A process, a namespace or a network
device that a lane leaves behind makes it red; processes are ended, of the others those with our names removed. The last line is
`{"commit", "lanes": {name: {"holds", "seconds"}}, "red": [names]}`; exit code 0 only if every lane holds.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from kube_sandbox.kubelet.network import hold_name  # noqa: E402
from tests.run import PYTHON, WORKERS, pytest_lane  # noqa: E402
from tests.support import lanes  # noqa: E402
from tests.support.lanes import Lane, Outcome, run_lane  # noqa: E402
from tests.support.real_lanes import API, REAL_LANES  # noqa: E402

FOLDER = ROOT / "build" / "proofs"
PAGE = ROOT / "tests" / "README.md"
INSTALL = (PYTHON, "tests/real/parts/install.py")
ROW = re.compile(r"^\| `(?P<path>[^`|]+)` \| (?P<lanes>[a-z0-9, -]+) \|$", re.MULTILINE)
CLASS_ARCHIVE = (PYTHON, "-m", "sla_reports.class_archive", "--optional")
NODE = ("root", "node-packages", "node-programs", *API, "pause", "coredns", "rocketmq-image", "rocketmq-python-client")
SHOWN_CHARACTERS = 6_000
DAY_MINUTES, NIGHT_MINUTES = 40, 600
# Host ends of the devices of a namespace that was deleted go a moment later.
GRACE_SECONDS = 5.0
# What our tests, demos and nodes name their bridges and namespaces with; anything else that is new is reported and left.
OUR_PREFIX = "bg"


@dataclass(frozen=True)
class Proof:
    """`lane` runs by day, `by_night` with the full numbers. `parts`: the real parts it needs.

    `only_by_night`: by day it runs only by name.
    """

    lane: Lane
    by_night: Lane
    parts: tuple[str, ...] = ()
    only_by_night: bool = False


def program(
    name: str,
    *command: str,
    by_day: tuple[str, ...] = (),
    by_night: tuple[str, ...] = (),
    parts: tuple[str, ...] = (),
    only_by_night: bool = False,
) -> Proof:
    """A program that ends with its own line of JSON; its further arguments by day and by night."""
    minutes = NIGHT_MINUTES if only_by_night else DAY_MINUTES
    day = Lane(name, (PYTHON, *command, *by_day), says_json=True, limit_minutes=minutes)
    night = replace(day, command=(PYTHON, *command, *by_night), limit_minutes=NIGHT_MINUTES)
    return Proof(day, night, parts, only_by_night)


def marked_tests(name: str, by_day: str, by_night: str, parts: tuple[str, ...] = (), **more: str) -> Proof:
    """The tests of a marker expression. With real parts two workers: more JVMs starve one another."""
    workers = 2 if parts else WORKERS
    day = pytest_lane(name, by_day, workers=workers, minutes=DAY_MINUTES, **more)
    return Proof(day, pytest_lane(name, by_night, workers=workers, minutes=NIGHT_MINUTES, **more), parts)


LONG = "(longer or sampled) and not real and not nightly"
# A night's draws begin where no other night's do.
TODAY = f"{time.strftime('%Y%m%d')}00000"
REAL = {
    lane.name: marked_tests(lane.name, f"{lane.name} and not nightly", lane.name, lane.parts, REQUIRE_REAL="1")
    for lane in REAL_LANES
}
# Quick ones first; those that need nothing but Python before those that build parts.
PROOFS = (
    marked_tests("whole", LONG, "not real", BROKERGROUP_WHOLE="1"),
    program("sieve", "tests/sieve/run.py", by_day=("--every", "3")),
    program(
        "simulate",
        "-m",
        "tests.simulate.run",
        by_day=("--seeds", "200", "--no-mutants"),
        by_night=("--seeds", "10000", "--from", TODAY),
    ),
    program("faulty-lives", "-m", "tests.replica.faulty_lives", by_day=("--lives", "1000"), by_night=("--seed", TODAY)),
    program("fuzz", "tests/fuzz/run.py", by_night=("--transitions", "2000", "--seed", TODAY)),
    program("attack", "tests/attack/run.py"),
    program("mutants", "-m", "tests.mutants.run", only_by_night=True),
    program("sla-draws", "-m", "tests.sla.planted.draws", by_day=("--draws", "2000")),
    program(
        "sla-truth",
        "tests/sla/truth.py",
        by_day=("--groups", "2", "--step-seconds", "120", "--draws", "200"),
        parts=("java", "prometheus"),
    ),
    REAL["spark"],
    REAL["charts"],
    REAL["api"],
    program("parity", "tests/parity/run.py", parts=("kube-apiserver", "etcd")),
    program("page", "-m", "tests.page.run", parts=("browser",)),
    program("observability", "-m", "tests.observability.run", parts=("java", "prometheus", "kube-apiserver")),
    program(
        "differential",
        "tests/differential/run.py",
        by_day=("--sequences", "400"),
        by_night=("--seed", TODAY),
        parts=("java", "rocketmq", "newest-rocketmq", "older-java-controller"),
    ),
    REAL["brokers"],
    program(
        "interop",
        "tests/interop/run.py",
        parts=("rocketmq", "newest-rocketmq", "older-rocketmq", "rocketmq-proxy", "rocketmq-python-client"),
    ),
    program(
        "fence",
        *("-m", "tests.fence.run"),
        by_day=("--freezes", "3", "--partitions", "3", "--outages", "1", "--control", "0"),
        by_night=("--freezes", "30", "--partitions", "30", "--outages", "3", "--control", "12"),
        parts=("rocketmq", "netns"),
    ),
    program(
        "switchover",
        *("-m", "tests.switchover.run"),
        by_day=("--switchovers", "5", "--rolls", "1", "--drains", "1", "--warm-up", "1"),
        by_night=("--switchovers", "30", "--rolls", "3", "--drains", "5"),
        parts=("rocketmq", "netns"),
    ),
    program("nodes", "-m", "tests.node.run", by_night=("--all",), parts=NODE),
    program("real-hour", "tests/sla/real_hour.py", parts=("java", "prometheus"), only_by_night=True),
)
NAMES = tuple(proof.lane.name for proof in PROOFS)


def lanes_of_changes(since: str) -> list[str]:
    """The lanes whose paths changed since that commit, in the order of `PROOFS`. SystemExit if the commit is not there."""
    verify = ["git", "rev-parse", "--verify", "--quiet", f"{since}^{{commit}}"]
    if shutil.which("git") is None or subprocess.run(verify, cwd=ROOT, capture_output=True, check=False).returncode:
        raise SystemExit(f"CHANGED=1: there is no commit {since}: expected SINCE=COMMIT, the last one that landed")
    # Without renames: a file that moved changed at both places.
    changed = _git("diff", "--no-renames", "--name-only", since).splitlines()
    changed += _git("ls-files", "--others", "--exclude-standard").splitlines()
    rows = table()
    wanted = {lane for path in changed for lane in lanes_of_path(path, rows)}
    print(f"{len(changed)} files changed since {since}: {', '.join(sorted(wanted)) or 'no lane'}", file=sys.stderr)
    return [name for name in NAMES if name in wanted]


def table() -> dict[str, tuple[str, ...]]:
    """Beginning of a path -> lanes, as tests/README.md has it. SystemExit if it names a lane that is not there."""
    rows = {row["path"]: tuple(row["lanes"].split(", ")) for row in ROW.finditer(PAGE.read_text(encoding="utf-8"))}
    for path, names in rows.items():
        if unknown := [name for name in names if name not in (*NAMES, "none")]:
            raise SystemExit(f"tests/README.md: {path}: {unknown[0]!r} is no lane: expected one of {', '.join(NAMES)}")
    return rows


def lanes_of_path(path: str, rows: dict[str, tuple[str, ...]]) -> tuple[str, ...]:
    """Those of the longest beginning that fits; a path that no row names has every lane."""
    fitting = [start for start in rows if path.startswith(start)]
    names = rows[max(fitting, key=len)] if fitting else NAMES
    return tuple(name for name in names if name != "none")


def run_proof(proof: Proof, *, by_night: bool) -> dict[str, Any]:
    """Install its parts, run it, remove what it left behind, and write build/proofs/LANE.json."""
    lane = proof.by_night if by_night else proof.lane
    checkout, before = _checkout(), _namespaces_and_devices()
    (FOLDER / f"{lane.name}.log").unlink(missing_ok=True)
    outcome = _prepare(proof, lane) or run_lane(lane, FOLDER)
    left_behind = lanes.end_descendants() + _remove_new(before)
    why = outcome.why or ("the checkout changed while it ran" if _checkout() != checkout else "")
    commit, uncommitted = checkout
    verdict = {
        "lane": lane.name,
        "commit": commit,
        "uncommitted_changes": bool(uncommitted),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "holds": outcome.holds and not why and not left_behind and not outcome.left_out,
        "why": why,
        "left_behind": left_behind,
        **outcome.counts(),
        "left_out": outcome.left_out,
        "result": outcome.result,
    }
    (FOLDER / f"{lane.name}.json").write_text(json.dumps(verdict, indent=1) + "\n", encoding="utf-8")
    _report(outcome, verdict)
    return verdict


def _prepare(proof: Proof, lane: Lane) -> Outcome | None:
    """Install its parts, and for Spark the archive that makes its JVM start fast. None if the lane can begin."""
    if not proof.parts:
        return None
    steps = [("parts", (*INSTALL, *proof.parts))] + (
        [("class-archive", CLASS_ARCHIVE)] if "java" in proof.parts else []
    )
    for what, command in steps:
        step = run_lane(Lane(f"{lane.name}-{what}", command, limit_minutes=60), FOLDER)
        if not step.holds:
            return replace(step, lane=lane, why=f"{step.why}: see {step.lane.name}.log")
    return None


def _report(outcome: Outcome, verdict: dict[str, Any]) -> None:
    name, log = verdict["lane"], FOLDER / f"{verdict['lane']}.log"
    if not verdict["holds"]:
        if log.exists():
            print(log.read_text(encoding="utf-8", errors="replace")[-SHOWN_CHARACTERS:])
        print(f"--- {name} is red: {verdict['why'] or verdict['left_behind'] or verdict['left_out'] or 'see above'}")
    short = {"lane": name, "holds": verdict["holds"], "seconds": outcome.seconds}
    print(json.dumps({**(outcome.result or outcome.counts()), **short}), flush=True)


def _checkout() -> tuple[str, str]:
    """The commit, and what differs from it."""
    return _git("rev-parse", "HEAD").strip(), _git("status", "--porcelain")


def _namespaces_and_devices() -> set[tuple[str, str]]:
    found = set()
    for kind, folder in (("netns", Path("/run/netns")), ("link", Path("/sys/class/net"))):
        with contextlib.suppress(FileNotFoundError):
            found |= {(kind, entry.name) for entry in folder.iterdir()}
    return found


def _remove_new(before: set[tuple[str, str]]) -> list[str]:
    """Return the namespaces and devices that are new and stay; those that are ours by name are removed."""
    deadline = time.monotonic() + GRACE_SECONDS
    while (new := _namespaces_and_devices() - before) and time.monotonic() < deadline:
        time.sleep(0.1)
    for kind, name in sorted(new):
        if name.startswith(OUR_PREFIX):
            subprocess.run(["ip", kind, "delete", name], capture_output=True, check=False)
    return sorted(f"{kind} {name}" for kind, name in new)


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout


def chosen(options: argparse.Namespace) -> list[Proof]:
    """The lanes of this run. SystemExit if a name is no lane's."""
    if unknown := [name for name in options.lane or () if name not in NAMES]:
        raise SystemExit(f"LANE={unknown[0]}: expected one of {', '.join(NAMES)}")
    if options.lane:
        return [proof for proof in PROOFS if proof.lane.name in options.lane]
    wanted = lanes_of_changes(options.changed) if options.changed else NAMES
    return [proof for proof in PROOFS if proof.lane.name in wanted and (options.nightly or not proof.only_by_night)]


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lane", action="extend", nargs="+", metavar="NAME", help=f"one or more of {', '.join(NAMES)}")
    parser.add_argument("--changed", metavar="COMMIT", help="only the lanes of what changed since this commit")
    parser.add_argument("--nightly", action="store_true", help="the full numbers, and the lanes for the night")
    parser.add_argument("--list", action="store_true", help="only say which lanes would run")
    options = parser.parse_args(arguments)
    proofs = chosen(options)
    if options.list:
        print(json.dumps([proof.lane.name for proof in proofs]))
        return 0
    # Two lanes side by side took a machine of two processors to a load of 60: brokers missed their heartbeats.
    if (alone := hold_name("brokergroup-proofs")) is None:
        raise SystemExit("make proofs: another one runs on this machine: expected none beside it")
    if options.nightly:
        os.environ["BROKERGROUP_NIGHTLY"] = "1"
    lanes.adopt_orphans()
    with alone:
        return run_proofs(proofs, by_night=options.nightly)


def run_proofs(proofs: list[Proof], *, by_night: bool) -> int:
    """One after the other, until an interrupt. Return the exit code: 0 if every lane ran and holds."""
    verdicts: list[dict[str, Any]] = []
    for proof in proofs:
        if lanes.is_stopping():
            break
        print(f"==> {proof.lane.name}", flush=True)
        verdicts.append(run_proof(proof, by_night=by_night))
    ran = {verdict["lane"]: {"holds": verdict["holds"], "seconds": verdict["seconds"]} for verdict in verdicts}
    red = [proof.lane.name for proof in proofs if not ran.get(proof.lane.name, {}).get("holds")]
    print(json.dumps({"commit": _checkout()[0], "lanes": ran, "red": red}), flush=True)
    return 1 if red else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
