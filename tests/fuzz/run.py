"""Spec fuzz in Acto's way: changes of a BrokerGroup drawn from its own schema, each reached, explained or refused, and taken back.

    python tests/fuzz/run.py                              one round: every leaf of the schema once
    python tests/fuzz/run.py --transitions 2000 --seed 7  this many changes; a seed repeats its run

A violation is shown with the story that led to it, in its smallest form. The last line is `{"transitions", "refused", "reached",
"explained", "rolled_back", "leaves", "leaves_drawn", "not_drawn", "violations", "seconds"}`; exit code 0 only if nothing was
violated and every leaf was drawn.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "operator")]

from tests.fuzz import schema, stories  # noqa: E402
from tests.fuzz.story import Tally  # noqa: E402
from tests.sieve.run import quiet  # noqa: E402

EXAMPLES = 4
# Stories about a leaf that no earlier story changed. Changes of a leaf with rules about other fields are mostly refused.
ATTEMPTS = 10


def show(subjects: tuple[str, ...], error: Exception) -> None:
    print(f"\n{', '.join(subjects)}\n{type(error).__name__}: {error}", flush=True)
    for line in getattr(error, "__notes__", ()):
        print(line, flush=True)


def run(transitions: int, seed: int) -> tuple[Tally, int]:
    """Run rounds over all leaves up to this many changes, then stories of leaves that none has drawn."""
    tally, violations, number = Tally(), 0, seed
    while number == seed or tally.transitions < transitions:
        subjects = list(stories.round_of_subjects(number))
        for index, some in enumerate(subjects):
            violations += _told(some, tally, seed_number=1000 * number + index)
            if tally.transitions >= transitions and number > seed:
                break
        number += 1
    for attempt in range(ATTEMPTS):
        for leaf in sorted(schema.leaves().keys() - tally.drawn):
            violations += _told((leaf,), tally, seed_number=seed + attempt, examples=3 * EXAMPLES)
    return tally, violations


def _told(subjects: tuple[str, ...], tally: Tally, *, seed_number: int, examples: int = EXAMPLES) -> int:
    try:
        stories.tell(subjects, tally, examples=examples, seed_number=seed_number)
    except (AssertionError, RuntimeError) as error:
        show(subjects, error)
        return 1
    return 0


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--transitions", type=int, default=0, help="how many changes at least (default: one round)")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    started = time.monotonic()
    quiet()
    tally, violations = run(options.transitions, options.seed)
    leaves = schema.leaves().keys()
    print(
        json.dumps(
            {
                "transitions": tally.transitions,
                "refused": tally.refused,
                "reached": tally.reached,
                "explained": tally.explained,
                "rolled_back": tally.rolled_back,
                "leaves": len(leaves),
                "leaves_drawn": len(leaves & tally.drawn),
                "not_drawn": sorted(leaves - tally.drawn),
                "violations": violations,
                "seconds": round(time.monotonic() - started, 1),
            }
        )
    )
    return 1 if violations or leaves - tally.drawn else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
