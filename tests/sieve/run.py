"""Sieve: whatever goes wrong once between the operator and the Kubernetes API, the end is the same, and at rest.

    python tests/sieve/run.py                         every fault at every place of every workload
    python tests/sieve/run.py --workload create       one workload
    python tests/sieve/run.py --workload create --fault STALE_READ --number 17     one run, with the operator's log

Each workload is run once undisturbed, which gives its end state and how many reads, writes and watch events the operator has in
it; then once for each of them and each fault that fits it (reliability-security.md I16; Sieve, OSDI 2022). A run diverges when
its end state differs, when it comes to no rest, or when on the way an epoch fell, had two masters, or a broker id was given
twice. The last line is `{"perturbations", "workloads", "diverged", "seconds"}`; exit code 0 only without divergence.
"""

from __future__ import annotations

import argparse
import json
import logging
import multiprocessing
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "operator")]

import structlog  # noqa: E402

from tests.sieve.perturbed_api import Fault, Perturbation  # noqa: E402
from tests.sieve.workloads import WORKLOADS  # noqa: E402
from tests.sieve.world import told  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.sieve.world import Outcome

SHOWN_DIFFERENCES = 12
_references: dict[str, Outcome] = {}


def quiet(level: int = logging.CRITICAL) -> None:
    """The operator's log is of interest in a single run only."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(level))
    logging.disable(level - 1)


def differences(expected: Any, found: Any, path: str = "") -> Iterator[str]:
    """Where two end states differ."""
    if isinstance(expected, dict) and isinstance(found, dict):
        for key in sorted({*expected, *found}):
            if expected.get(key) != found.get(key):
                yield from differences(expected.get(key), found.get(key), f"{path}/{key}")
    elif isinstance(expected, list) and isinstance(found, list) and len(expected) == len(found):
        for index, (one, other) in enumerate(zip(expected, found, strict=True)):
            yield from differences(one, other, f"{path}/{index}")
    elif expected != found:
        yield f"{path}: {expected!r} undisturbed, {found!r} here"


def complaints(workload: str, perturbation: Perturbation) -> list[str]:
    """Run one perturbation; what is wrong with its end."""
    reference = _references[workload]
    try:
        outcome = told(WORKLOADS[workload], perturbation)
    except (AssertionError, RuntimeError) as error:
        return [f"{type(error).__name__}: {str(error)[:600]}"]
    return outcome.laws_broken + list(differences(reference.end, outcome.end))


def _one(task: tuple[str, Perturbation]) -> tuple[str, Perturbation, list[str]]:
    return (*task, complaints(*task))


def perturbations(outcome: Outcome, faults: list[Fault]) -> Iterator[Perturbation]:
    """Every place that each fault fits."""
    for fault in faults:
        for number in range(len(getattr(outcome.counts, fault.target))):
            yield Perturbation(fault, number)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", action="append", choices=sorted(WORKLOADS), help="only these (default: all)")
    parser.add_argument("--fault", action="append", choices=[fault.name for fault in Fault], help="only these")
    parser.add_argument("--number", type=int, help="only this place, in this process, with the operator's log")
    options = parser.parse_args(arguments)
    workloads = options.workload or list(WORKLOADS)
    faults = [Fault[name] for name in options.fault] if options.fault else list(Fault)
    started = time.monotonic()
    quiet()
    for workload in workloads:
        _references[workload] = told(WORKLOADS[workload])
    if options.number is not None:
        quiet(logging.INFO)
        for line in complaints(workloads[0], Perturbation(faults[0], options.number)):
            print(line)
        return 0
    tasks = [(workload, one) for workload in workloads for one in perturbations(_references[workload], faults)]
    diverged: Counter[str] = Counter()
    # Forked, so that the references and the imports are there already.
    with multiprocessing.get_context("fork").Pool() as pool:
        for workload, perturbation, wrong in pool.imap_unordered(_one, tasks, chunksize=8):
            if wrong:
                diverged[workload] += 1
                where = getattr(_references[workload].counts, perturbation.fault.target)[perturbation.number]
                print(f"\n{workload}: {perturbation.fault.name} {perturbation.number} ({where})")
                print("\n".join(f"    {line}" for line in wrong[:SHOWN_DIFFERENCES]), flush=True)
    print(
        json.dumps(
            {
                "perturbations": len(tasks),
                "workloads": {name: sum(task[0] == name for task in tasks) for name in workloads},
                "diverged": diverged.total(),
                "seconds": round(time.monotonic() - started, 1),
            }
        )
    )
    return 1 if diverged else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
