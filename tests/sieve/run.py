"""Sieve: after any single fault between the operator and the Kubernetes API, the group settles in the same end state.

    python tests/sieve/run.py                         every fault at every place of every workload
    python tests/sieve/run.py --workload create       one workload
    python tests/sieve/run.py --every 3               every write, every third read and watch event: what `make proofs` runs
    python tests/sieve/run.py --gate                  one fault at every second write of every workload: what `make test` runs
    python tests/sieve/run.py --workload create --fault STALE_READ --number 17     one run, with the operator's log

Each workload runs once undisturbed, which gives its end state and its number of reads, writes and watch
events; then once for each of them and each fitting fault (Sieve, OSDI 2022), all from one walk (``crossroads.py``), which
shares the steps before a fault. `--gate` perturbs every second write once, by one of the six faults of a write: the same
one in each run, from a fixed seed. A run diverges if its end state differs, if it does not settle, or if meanwhile an
epoch fell, had two masters, or a broker id was assigned twice. The last line is `{"perturbations", "of", "workloads", "diverged",
"seconds"}`, where `of` counts the perturbations without `--gate` and `--every`; exit code 0 only without divergence.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import random
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "operator")]

import structlog  # noqa: E402

from tests.sieve.crossroads import AS_IT_SHOULD, DIVERGED, places, walk  # noqa: E402
from tests.sieve.perturbed_api import Fault, Perturbation  # noqa: E402
from tests.sieve.workloads import WORKLOADS  # noqa: E402
from tests.sieve.world import told  # noqa: E402
from tests.support.draws import SEED  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.sieve.perturbed_api import Counts, Plan
    from tests.sieve.world import Outcome

SHOWN_DIFFERENCES = 12
WRITE_FAULTS = [fault for fault in Fault if fault.target == "write"]


def quiet(level: int = logging.CRITICAL) -> None:
    """Silence the operator's log, except in a single run."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(level))
    logging.disable(level - 1)


def differences(expected: Any, found: Any, path: str = "") -> Iterator[str]:
    """Return the differences of two end states."""
    if isinstance(expected, dict) and isinstance(found, dict):
        for key in sorted({*expected, *found}):
            if expected.get(key) != found.get(key):
                yield from differences(expected.get(key), found.get(key), f"{path}/{key}")
    elif isinstance(expected, list) and isinstance(found, list) and len(expected) == len(found):
        for index, (one, other) in enumerate(zip(expected, found, strict=True)):
            yield from differences(one, other, f"{path}/{index}")
    elif expected != found:
        yield f"{path}: {expected!r} undisturbed, {found!r} here"


def complaints(workload: str, reference: Outcome, plan: Plan) -> list[str]:
    """Run a workload by a plan; return the complaints about its end."""
    try:
        outcome = told(WORKLOADS[workload], plan)
    except (AssertionError, RuntimeError) as error:
        return [f"{type(error).__name__}: {str(error)[:3000]}"]
    return (outcome.laws_broken + list(differences(reference.end, outcome.end)))[:SHOWN_DIFFERENCES]


def chosen_places(workload: str, counts: Counts, faults: list[Fault], every: int, *, gate: bool) -> list[Perturbation]:
    """Return the perturbations of this run. The gate has one fault at every second write, the same in each run."""
    if not gate:
        return list(places(counts, faults, every))
    chance = random.Random(f"{SEED} {workload}")
    return [Perturbation(chance.choice(faults), number) for number in range(0, len(counts.write), 2)]


def walked(workload: str, faults: list[Fault], every: int, *, gate: bool) -> tuple[dict[Perturbation, int], int]:
    """Return each chosen perturbation's outcome, and the number of all. RuntimeError if a chosen one was not reached."""
    reference = told(WORKLOADS[workload])
    chosen = chosen_places(workload, reference.counts, faults, every, gate=gate)
    there_are = sum(1 for _ in places(reference.counts, faults))
    print(f"{workload}: {len(chosen)} of {there_are} perturbations", file=sys.stderr)

    def heading(one: Perturbation) -> str:
        where = getattr(reference.counts, one.fault.target)[one.number]
        return f"{workload}: {one.fault.name} {one.number} ({where})"

    at_once = len(os.sched_getaffinity(0))
    ended = walk(lambda plan: complaints(workload, reference, plan), chosen, at_once=at_once, heading=heading)
    if missed := [str(one) for one in chosen if one not in ended]:
        raise RuntimeError(f"{workload}: not met: {missed[:SHOWN_DIFFERENCES]}")
    for one, code in ended.items():
        if code not in (AS_IT_SHOULD, DIVERGED):
            print(f"\n{heading(one)}: its process ended with {code}", flush=True)
    return ended, there_are


def only_one(workload: str, perturbation: Perturbation) -> int:
    """Run one perturbation from the start, with the operator's log."""
    reference = told(WORKLOADS[workload])
    quiet(logging.INFO)
    wrong = complaints(workload, reference, perturbation)
    print("\n".join(wrong))
    return DIVERGED if wrong else AS_IT_SHOULD


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", action="append", choices=sorted(WORKLOADS), help="only these (default: all)")
    parser.add_argument("--fault", action="append", choices=[fault.name for fault in Fault], help="only these")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="only every N-th read and watch event")
    parser.add_argument("--gate", action="store_true", help="one fault of a write at every second write")
    parser.add_argument("--number", type=int, help="only this place, from the beginning, with the operator's log")
    options = parser.parse_args(arguments)
    workloads = options.workload or list(WORKLOADS)
    if options.gate and (options.fault or options.every != 1):
        parser.error("--gate chooses the faults and their places: expected no --fault and no --every")
    faults = [Fault[name] for name in options.fault or ()] or (WRITE_FAULTS if options.gate else list(Fault))
    started = time.monotonic()
    quiet()
    if options.number is not None:
        return only_one(workloads[0], Perturbation(faults[0], options.number))
    found = {workload: walked(workload, faults, options.every, gate=options.gate) for workload in workloads}
    diverged = sum(code != AS_IT_SHOULD for ended, _ in found.values() for code in ended.values())
    verdict = {
        "perturbations": sum(len(ended) for ended, _ in found.values()),
        "of": sum(there_are for _, there_are in found.values()),
        "workloads": {workload: len(ended) for workload, (ended, _) in found.items()},
        "diverged": diverged,
        "seconds": round(time.monotonic() - started, 1),
    }
    print(json.dumps(verdict))
    return 1 if diverged else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
