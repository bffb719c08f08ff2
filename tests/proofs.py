"""The proofs: what the gate leaves out because it needs real parts or more time. One lane at a time, each alone on the machine.

    make proofs                       every lane
    make proofs LANE="fence sieve"    these
    make proofs CHANGED=1             those of what changed since origin/main (or SINCE=COMMIT), by the table in tests/README.md
    make test-nightly                 the gate, then every lane with its full numbers

A lane's real parts are installed when its turn comes (tests/real/parts). Its own line of JSON is in `build/proofs/LANE.json`,
with commit, date, whether it holds, and what it left behind; its output beside it in LANE.log. A process, a namespace or a network
device that a lane leaves behind is removed and makes the lane red. The last line is
`{"commit", "lanes": {name: {"holds", "seconds"}}, "red": [names]}`; exit code 0 only if every lane holds.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
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
from tests.run import PYTHON, pytest_lane  # noqa: E402
from tests.support import lanes  # noqa: E402
from tests.support.lanes import Lane, Outcome, run_lane  # noqa: E402

FOLDER = ROOT / "build" / "proofs"
PAGE = ROOT / "tests" / "README.md"
INSTALL = (PYTHON, "tests/real/parts/install.py")
ROW = re.compile(r"^\| `(?P<path>[^`|]+)` \| (?P<lanes>[a-z0-9, -]+) \|$", re.MULTILINE)
JAVA = ("java", "rocketmq", "older-java-controller", "netns", "nft")
API = ("kube-apiserver", "etcd", "helm")
NODE = ("root", "node-packages", "node-programs", *API, "pause", "coredns", "rocketmq-image", "rocketmq-python-client")
SHOWN_CHARACTERS = 6_000
TODAY = time.strftime("%Y%m%d")


@dataclass(frozen=True)
class Proof:
    """A lane, the real parts it needs, and what its command is by night; None: the same. `only_by_night`: by name also by day."""

    lane: Lane
    parts: tuple[str, ...] = ()
    by_night: Lane | None = None
    only_by_night: bool = False


def program(
    name: str, *command: str, by_day: tuple[str, ...] = (), by_night: tuple[str, ...] = (), **more: Any
) -> Proof:
    """A program that ends with its own line of JSON; its further arguments by day and by night."""
    start = (PYTHON, *command)
    day = Lane(name, (*start, *by_day), limit_minutes=more.pop("limit_minutes", 40))
    return Proof(day, by_night=Lane(name, (*start, *by_night), limit_minutes=600), **more)


def real_tests(name: str, *parts: str) -> Proof:
    """The tests that `conftest.py` gives this marker, by the parts they name. Two workers: more JVMs starve one another."""
    by_day = pytest_lane(name, f"{name} and not nightly", workers=2, REQUIRE_REAL="1")
    by_night = pytest_lane(name, name, workers=2, REQUIRE_REAL="1", BROKERGROUP_NIGHTLY="1")
    return Proof(by_day, parts, replace(by_night, limit_minutes=600))


WHOLE = "(longer or sampled) and not real"
# Quick ones first; those that need nothing but Python before those that build parts.
PROOFS = (
    Proof(
        pytest_lane("whole", f"{WHOLE} and not nightly", BROKERGROUP_WHOLE="1"),
        by_night=replace(pytest_lane("whole", "not real", BROKERGROUP_NIGHTLY="1"), limit_minutes=600),
    ),
    program("sieve", "tests/sieve/run.py", by_day=("--every", "3")),
    program(
        "simulate",
        "-m",
        "tests.simulate.run",
        by_day=("--seeds", "200", "--no-mutants"),
        by_night=("--seeds", "10000", "--from", f"{TODAY}00000"),
    ),
    program("faulty-lives", "-m", "tests.replica.faulty_lives", by_day=("--lives", "1000"), by_night=("--seed", TODAY)),
    program("fuzz", "tests/fuzz/run.py", by_night=("--transitions", "2000", "--seed", TODAY)),
    program("attack", "tests/attack/run.py"),
    program("mutants", "-m", "tests.mutants.run", only_by_night=True, limit_minutes=240),
    program("sla-draws", "-m", "tests.sla.planted.draws", by_day=("--draws", "2000")),
    program(
        "sla-truth",
        "tests/sla/truth.py",
        by_day=("--groups", "2", "--step-seconds", "120", "--draws", "200"),
        parts=("java", "prometheus"),
    ),
    real_tests("spark", "java", "prometheus"),
    real_tests("charts", "helm", "prometheus", "actionlint", "package-index", "java"),
    real_tests("api", *API, "java", "prometheus", "netns", "nft"),
    program("parity", "tests/parity/run.py", parts=("kube-apiserver", "etcd")),
    program("page", "-m", "tests.page.run", parts=("browser",)),
    program("observability", "-m", "tests.observability.run", parts=("java", "prometheus", "kube-apiserver")),
    program(
        "differential",
        "tests/differential/run.py",
        by_day=("--sequences", "400"),
        by_night=("--seed", TODAY),
        parts=JAVA[:3],
    ),
    real_tests("brokers", *JAVA, *API, "prometheus"),
    program(
        "interop",
        "tests/interop/run.py",
        parts=("rocketmq", "older-rocketmq", "rocketmq-proxy", "rocketmq-python-client"),
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
    program("real-hour", "tests/sla/real_hour.py", parts=("java", "prometheus"), only_by_night=True, limit_minutes=120),
)
NAMES = tuple(proof.lane.name for proof in PROOFS)


def lanes_of_changes(since: str) -> list[str]:
    """The lanes whose paths changed since that commit, in the order of `PROOFS`. SystemExit if the commit is not there."""
    known = subprocess.run(
        ["git", "rev-parse", "--verify", "--quiet", f"{since}^{{commit}}"], cwd=ROOT, capture_output=True, check=False
    )
    if known.returncode:
        raise SystemExit(f"CHANGED=1: there is no commit {since}: expected SINCE=COMMIT, the last one that landed")
    changed = _git("diff", "--name-only", f"{since}...").splitlines() + _git("diff", "--name-only", "HEAD").splitlines()
    changed += _git("ls-files", "--others", "--exclude-standard").splitlines()
    wanted = {lane for path in changed for lane in lanes_of_path(path, table())}
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
    lane = (proof.by_night or proof.lane) if by_night else proof.lane
    before = _namespaces_and_devices()
    installed = run_lane(Lane(f"{lane.name}-parts", (*INSTALL, *proof.parts)), FOLDER) if proof.parts else None
    if installed is not None and not installed.holds:
        outcome = replace(installed, lane=lane, why=f"its parts cannot be installed: see {lane.name}-parts.log")
    else:
        outcome = run_lane(lane, FOLDER)
    left_behind = lanes.end_descendants() + _remove(_namespaces_and_devices() - before)
    verdict = {
        "lane": lane.name,
        "commit": _git("rev-parse", "HEAD").strip(),
        "uncommitted_changes": bool(_git("status", "--porcelain")),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "holds": outcome.holds and not left_behind and not outcome.left_out,
        "left_behind": left_behind,
        "why": outcome.why,
        **outcome.counts(),
        "left_out": outcome.left_out,
        "said": outcome.said,
    }
    (FOLDER / f"{lane.name}.json").write_text(json.dumps(verdict, indent=1) + "\n", encoding="utf-8")
    _tell(outcome, verdict)
    return verdict


def _tell(outcome: Outcome, verdict: dict[str, Any]) -> None:
    name, log = verdict["lane"], FOLDER / f"{verdict['lane']}.log"
    if not verdict["holds"] and log.exists():
        print(log.read_text(encoding="utf-8", errors="replace")[-SHOWN_CHARACTERS:])
        print(f"--- {name} is red: {outcome.why or verdict['left_behind'] or verdict['left_out'] or 'see above'}")
    print(
        json.dumps(
            {"lane": name, "holds": verdict["holds"], "seconds": outcome.seconds, **(outcome.said or outcome.counts())}
        ),
        flush=True,
    )


def _namespaces_and_devices() -> set[tuple[str, str]]:
    found = set()
    for kind, folder in (("netns", Path("/run/netns")), ("link", Path("/sys/class/net"))):
        with contextlib.suppress(FileNotFoundError):
            found |= {(kind, entry.name) for entry in folder.iterdir()}
    return found


def _remove(left_behind: set[tuple[str, str]]) -> list[str]:
    for kind, name in sorted(left_behind):
        subprocess.run(["ip", kind, "delete", name], capture_output=True, check=False)
    return sorted(f"{kind} {name}" for kind, name in left_behind)


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
    verdicts: list[dict[str, Any]] = []
    for proof in proofs:
        if lanes.is_stopping():
            break
        print(f"==> {proof.lane.name}", flush=True)
        verdicts.append(run_proof(proof, by_night=options.nightly))
    ran = {verdict["lane"]: {"holds": verdict["holds"], "seconds": verdict["seconds"]} for verdict in verdicts}
    red = [proof.lane.name for proof in proofs if not ran.get(proof.lane.name, {}).get("holds")]
    alone.close()
    print(json.dumps({"commit": _git("rev-parse", "HEAD").strip(), "lanes": ran, "red": red}), flush=True)
    return 1 if red else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
