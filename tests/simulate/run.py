"""Three controller planes, scripted brokers and a faulty Kubernetes API in virtual time: no acknowledged message is lost.

    python -m tests.simulate.run                        2,000 seeds, and the twelve mutants
    python -m tests.simulate.run --seeds 200            that many; --from 5000 begins elsewhere
    python -m tests.simulate.run --seed 17              one run, with its story
    python -m tests.simulate.run --mutants              the mutants alone; or those that are named

A seed has a violation if at its end not exactly one master serves, an acknowledged message is missing, a broker still has a
setting that was meant for one change only, an epoch fell, an id was assigned twice, a role was sent without a commit, or a
change of master is not one incident. The last line is JSON; exit code 0 only if no seed has a violation, and each mutant has.
"""

from __future__ import annotations

import argparse
import json
import logging
import multiprocessing
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "operator")]

import structlog  # noqa: E402

from tests.simulate.mutants import MUTANTS, found_by  # noqa: E402
from tests.simulate.world import Outcome, simulate  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

SEEDS = 2000
# After this many seeds a worker process is replaced, to free memory.
SEEDS_OF_A_PROCESS = 50


def quiet() -> None:
    """Silence the planes' log: the story has all events."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    logging.disable(logging.ERROR)


def command_of(seed: int) -> str:
    return f"python -m tests.simulate.run --seed {seed}"


def outcomes(seeds: Sequence[int], *, in_order: bool = False) -> Iterator[Outcome]:
    """Run all seeds on all processors."""
    context = multiprocessing.get_context("fork")
    with context.Pool(len(os.sched_getaffinity(0)), quiet, maxtasksperchild=SEEDS_OF_A_PROCESS) as pool:
        yield from pool.imap(simulate, seeds) if in_order else pool.imap_unordered(simulate, seeds)


def show(outcome: Outcome) -> None:
    """Print the story, and the command that repeats it."""
    print("\n".join((f"\nseed {outcome.seed}: {command_of(outcome.seed)}", *outcome.story)))
    for violation in outcome.violations:
        print(f"    VIOLATION: {violation}")
    sys.stdout.flush()


def run_seeds(seeds: range) -> dict[str, Any]:
    """Simulate all seeds; print the stories of those with a violation."""
    began = time.monotonic()
    virtual_seconds, acknowledged, excused, failed = 0.0, 0, 0, []
    for outcome in outcomes(seeds):
        virtual_seconds += outcome.virtual_seconds
        acknowledged += outcome.acknowledged
        excused += outcome.excused
        if outcome.violations:
            failed.append(outcome.seed)
            show(outcome)
    return {
        "seeds": len(seeds),
        "ratio_to_real_time": round(virtual_seconds / (time.monotonic() - began), 1),
        "acked": acknowledged,
        "lost_as_announced": excused,
        "violations": len(failed),
        "failed_seeds": sorted(failed),
    }


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=SEEDS, help=f"how many (default {SEEDS})")
    parser.add_argument("--from", type=int, default=1, dest="first", help="the first one (default 1)")
    parser.add_argument("--seed", type=int, help="only this one, with its story")
    parser.add_argument("--mutants", nargs="*", choices=MUTANTS, metavar="MUTANT", help="only mutants, these or all")
    parser.add_argument("--no-mutants", action="store_true", help="only seeds")
    options = parser.parse_args(arguments)
    quiet()
    if options.seed is not None:
        outcome = simulate(options.seed)
        show(outcome)
        print(json.dumps({"seed": options.seed, "digest": outcome.digest, "violations": list(outcome.violations)}))
        return 1 if outcome.violations else 0
    verdict: dict[str, Any] = {}
    if options.mutants is None:
        verdict = run_seeds(range(options.first, options.first + options.seeds))
    if options.mutants is not None or not options.no_mutants:
        names = options.mutants or list(MUTANTS)
        found = {name: found_by(name) for name in names}
        verdict |= {
            "mutants": len(names),
            "mutants_found": sum(seed is not None for seed in found.values()),
            "found_by_seed": found,
        }
    print(json.dumps(verdict))
    whole = not verdict.get("violations") and verdict.get("mutants") == verdict.get("mutants_found")
    return 0 if whole else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
