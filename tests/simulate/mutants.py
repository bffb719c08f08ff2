"""Twelve one-line changes of the product, each of which breaks one rule of a change of master: a seed must find each.

A mutant replaces a few words that occur once in the source text. It runs in processes that import
a copied tree, so the tested files never change. The seed that last found it is tried first; if that seed's story has changed,
a search from seed 1 follows.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CODE = ("controller_core", "metric_names", "rocketmq_remoting", "kube_sandbox", "operator", "crds", "tests")
# Seeds to try before a mutant counts as not found.
MOST_SEEDS = 600
CONTROLLER = "operator/brokergroup_operator/controller"


@dataclass(frozen=True)
class Mutant:
    """The broken rule and the change that breaks it."""

    what: str
    file: str
    old: str
    new: str
    found_by: int = 1

    def apply(self, checkout: Path) -> None:
        path = checkout / self.file
        text = path.read_text(encoding="utf-8")
        if text.count(self.old) != 1:
            raise ValueError(f"{self.file}: {self.old!r} is there {text.count(self.old)} times: expected once")
        path.write_text(text.replace(self.old, self.new), encoding="utf-8")


MUTANTS = {
    "new-before-old": Mutant(
        "a switchover tells the others before the old master has answered",
        "controller_core/change.py",
        "        Stage(_tells(record, {old}, seen)),  # also one that is silent",
        "        Stage(_tells(record, {old}, seen), waits_for=()),  # also one that is silent",
        found_by=2,
    ),
    "restore-early": Mutant(
        "the old master acknowledges again before the commit is known",
        f"{CONTROLLER}/change/switchover.py",
        "            await self._still_quiet(run.address)\n",
        "            await self._calls.set_min_in_sync_replicas(run.address, change.restore.min_in_sync_replicas)\n",
        found_by=5,
    ),
    "no-quiet": Mutant(
        # All brokers assume a minimum of 1 then: an omitted step would be noticed before the commit.
        "the old master is not kept from acknowledging while it is replaced",
        f"{CONTROLLER}/peers/broker_calls.py",
        "FENCING_MIN_IN_SYNC_REPLICAS = 99\n",
        "FENCING_MIN_IN_SYNC_REPLICAS = 1\n",
        found_by=5,
    ),
    "no-fence": Mutant(
        "a silent master is replaced without being killed",
        # Not killing it, with `unfenced` in the record, would keep the promise.
        f"{CONTROLLER}/change/failover.py",
        '            outcome.append(await self._kill(group, master, record.address_of(master) or ""))\n',
        '            outcome.append(FenceOutcome(confirmed=True, how=""))\n',
    ),
    "fence-unseen": Mutant(
        "a deleted pod counts as dead before its containers have ended",
        "operator/brokergroup_operator/kube/pods.py",
        '    return bool(statuses) and all((status.get("state") or {}).get("terminated") is not None for status in statuses)\n',
        "    return bool(statuses) and 'deletionTimestamp' in pod['metadata']\n",
    ),
    "same-epoch": Mutant(
        "the next master is granted the epoch of the one before it",
        "controller_core/decision.py",
        "        master_epoch=_raised(record.master_epoch),\n",
        "        master_epoch=max(1, record.master_epoch),\n",
    ),
    "any-epoch-alters": Mutant(
        # A single condition is no rule of its own: an election raises the set's epoch as well as the master's.
        "a master of another epoch may alter the set",
        "controller_core/sync_state.py",
        "        _check_sender(record, request)\n        or _check_members(",
        "        _check_members(",
        found_by=151,
    ),
    "leftover-stays": Mutant(
        "what a dead plane told an old master is not told back",
        "controller_core/change.py",
        "        return (Stage((GiveUp(),)),)\n    return tuple(Stage((step,)) for step in steps)\n",
        "        return ()\n    return tuple(Stage((step,)) for step in steps)\n",
        found_by=5,
    ),
    "unknown-is-done": Mutant(
        "a write without an answer counts as done",
        f"{CONTROLLER}/group/group.py",
        "error.write_id))\n            raise\n",
        "error.write_id))\n                return True\n            raise\n",
        found_by=171,
    ),
    "no-version": Mutant(
        "a record is written over whatever is there by then",
        "operator/brokergroup_operator/records/kubernetes.py",
        "    async def _replace(self, obj: JsonObject, limit_seconds: float) -> JsonObject:\n",
        "    async def _replace(self, obj: JsonObject, limit_seconds: float) -> JsonObject:\n"
        '        key = GroupKey(obj["metadata"]["namespace"], obj["metadata"]["name"])\n'
        '        obj["metadata"]["resourceVersion"] = (await self._get(key, limit_seconds))["metadata"]["resourceVersion"]\n',
    ),
    "told-uncommitted": Mutant(
        "an election is told although its commit was refused",
        f"{CONTROLLER}/group/group.py",
        "                self.observer.record_conflict(self.key, before)\n                return False\n",
        "                return True\n",
        found_by=2,
    ),
    "keeper-silent": Mutant(
        "who was not told in order is never told again",
        f"{CONTROLLER}/upkeep/keeper.py",
        "        if due and not is_outdated(group, record):\n",
        "        if False:\n",
        found_by=28,
    ),
}

PROGRAM = """
import json, sys
from tests.simulate.run import outcomes, quiet
quiet()
for outcome in outcomes([int(seed) for seed in sys.argv[1:]], in_order=True):
    if outcome.violations:
        print(json.dumps({"seed": outcome.seed, "why": outcome.violations[0][:200]}), flush=True)
        break
"""


def found_by(name: str) -> dict[str, object] | None:
    """Return the first seed that finds the mutant, with the violation; None if no seed does."""
    mutant = MUTANTS[name]
    with tempfile.TemporaryDirectory(prefix="simulate-mutant-") as folder:
        copy = Path(folder)
        for part in CODE:
            if (ROOT / part).exists():
                shutil.copytree(ROOT / part, copy / part, ignore=shutil.ignore_patterns("__pycache__"))
        mutant.apply(copy)
        others = (seed for seed in range(1, MOST_SEEDS + 1) if seed != mutant.found_by)
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, *map(str, (mutant.found_by, *others))],
            cwd=copy,
            env={**os.environ, "PYTHONPATH": f"{copy}:{copy / 'operator'}"},
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
    lines = done.stdout.strip().splitlines()
    found: dict[str, object] | None = json.loads(lines[-1]) if lines else None
    print(f"mutant {name} ({mutant.what}): {found or 'NOT FOUND'}", file=sys.stderr, flush=True)
    return found
