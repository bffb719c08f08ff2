"""`make test-differential`: the same requests to real Java controllers and to ours; a difference that is not listed fails.

    python tests/differential/run.py                          1,000 sequences at 5.5.0, 600 at 5.5.1, 400 at 5.3.3
    python tests/differential/run.py --sequences 20000 --seed 7 --java-version 5.5.0

A seed repeats its sequences. A sequence that differs is shrunk and printed as a trace (to be kept under
tests/differential/traces, if it showed a bug of ours). The last line of standard output is `{"sequences", "steps", "java_versions",
"listed_deviations": {name: count}, "unlisted": n}`; exit 0 only if nothing is unlisted and, from 1,500 sequences on, every
entry of the list occurred.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import sys
import tempfile
import time
from pathlib import Path

import structlog

ROOT = str(Path(__file__).resolve().parents[2])
if ROOT not in sys.path:
    sys.path.insert(0, ROOT)

from tests.differential.campaign import MOST_STEPS, Campaign, Tally  # noqa: E402
from tests.differential.deviation_list import BY_THE_COMPARISON, DEVIATIONS  # noqa: E402
from tests.differential.shapes import SHAPES  # noqa: E402
from tests.real.parts import install  # noqa: E402

SHARES = {
    install.ROCKETMQ_VERSION: 0.5,
    install.NEWEST_ROCKETMQ_VERSION: 0.3,
    install.OLDER_CONTROLLER_VERSION: 0.2,
}
SEQUENCES = 2000
# Fewer sequences than this may miss entries of the list.
ENOUGH_FOR_REACH = 1500


def say(line: str) -> None:
    print(line, flush=True)


async def run_all(options: argparse.Namespace) -> tuple[Tally, dict[str, int]]:
    """Run every version in turn, and add up the results."""
    whole, by_version = Tally(), {}
    for version, share in shares(options.java_version).items():
        campaign = Campaign(version, options.seed, round(options.sequences * share), options.steps)
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            tally = await campaign.run(Path(folder))
        say(f"java {version}: {tally.sequences} sequences, {tally.steps} steps, {time.monotonic() - began:.1f} s")
        by_version[version] = tally.steps
        whole.sequences += tally.sequences
        whole.steps += tally.steps
        whole.deviations.update(tally.deviations)
        whole.failures += tally.failures
    return whole, by_version


def shares(version: str | None) -> dict[str, float]:
    """Return each version's number of sequences."""
    return SHARES if version is None else {version: 1.0}


def never_met(tally: Tally) -> list[str]:
    """Return entries that did not occur: the sequences do not reach them, or they are outdated."""
    names = [one.name for one in (*DEVIATIONS, *BY_THE_COMPARISON) if not one.special]
    names += [one.name for one in SHAPES]
    return [name for name in names if tally.deviations[name] == 0]


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sequences", type=int, default=SEQUENCES, help="over all versions together")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=MOST_STEPS, help="the most steps of one sequence")
    parser.add_argument("--java-version", choices=list(SHARES), help="only this one")
    options = parser.parse_args(arguments)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    failed = install.bring_all(["rocketmq", "newest-rocketmq", "older-java-controller"])
    tally, by_version = asyncio.run(run_all(options)) if not failed else (Tally(), {})
    for failure in tally.failures:
        say(f"\n==== an unlisted difference\n{failure}")
    missing = never_met(tally) if options.sequences >= ENOUGH_FOR_REACH else []
    for name in missing:
        say(f"listed, and never met: {name}")
    for name, why in failed.items():
        say(f"{name}: {why}")
    summary = {
        "sequences": tally.sequences,
        "steps": tally.steps,
        "java_versions": list(by_version),
        "listed_deviations": dict(sorted(tally.deviations.items())),
        "unlisted": len(tally.failures),
    }
    say(json.dumps(summary))
    return 1 if failed or missing or tally.failures or not tally.sequences else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
