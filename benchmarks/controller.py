"""What a heartbeat, a first list of pods and a death cost the controller plane, and whether that grows with the number of groups.

    .venv/bin/python benchmarks/controller.py [--groups 10,1000,10000] [--no-java]

Progress on stderr, one line of JSON on stdout; exit 0 only if the bounds hold. What each figure measures: benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import statistics
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "operator")]

import structlog  # noqa: E402
import uvloop  # noqa: E402

from benchmarks.controller_in_process import MEMBERS, deaths_decided, first_list, heartbeats_per_cpu_second  # noqa: E402
from benchmarks.controller_sockets import SIZES, over_sockets  # noqa: E402
from brokergroup_operator.cli.running import BriefCollections  # noqa: E402

LARGEST = 10_000
# A turn of heartbeats takes a second. The first ones may find a processor that has rested: half as fast again for a while.
TURNS_A_RUN = 4
LEAST_HEARTBEATS_PER_CPU_SECOND = 20_000
HIGHEST_COST_RATIO = 1.3
LONGEST_FIRST_LIST_SECONDS = 5.0
LONGEST_BLOCK_SECONDS = 0.05
# A change of master under way has 5 s of it.
LONGEST_END_SECONDS = 10.0
# Each connection costs its own reads: thirty connections bring several heartbeats a read, three thousand never.
HIGHEST_SOCKETS_RATIO = 2.0
# One for each broker that does not confirm, not one for each attempt.
MOST_WARNINGS_PER_BROKER = 1.0


def say(text: str) -> None:
    """Progress, for a person."""
    print(text, file=sys.stderr, flush=True)


async def measure(counts: list[int], *, runs: int, java: bool) -> dict[str, Any]:
    """Measure everything; the sizes take turns in each run, so that a slow minute of the machine strikes all of them alike."""
    lists = [await first_list(max(counts)) for _ in range(runs)]
    listed_seconds = statistics.median(one.seconds for one in lists)
    longest_block_seconds = statistics.median(one.longest_block_seconds for one in lists)
    say(f"first lists of {max(counts)} groups: {lists}")
    rates = await heartbeats_per_cpu_second(counts, runs=TURNS_A_RUN * runs, say=say)
    deaths = await deaths_decided(1000)
    say(f"1,000 deaths decided: p99 {deaths.p99_seconds:.2f} s")
    whole = await over_sockets(java=java, say=say)
    sockets = {size: whole[str(size)] for size in SIZES}
    ended_seconds = max(one.sigterm_seconds for one in sockets.values())
    turns = zip(sockets[min(SIZES)].alone, sockets[max(SIZES)].alone, strict=True)
    sockets_ratio = statistics.median(fewest / most for fewest, most in turns)
    warnings_per_broker = max(one.warnings / (size * len(MEMBERS)) for size, one in sockets.items())
    figures: dict[str, Any] = {
        "heartbeats_per_cpu_second": {str(count): round(rate) for count, rate in rates.items()},
        "cost_ratio_10000_to_10": round(rates[min(counts)] / rates[max(counts)], 3),
        "first_list_s_10000": round(listed_seconds, 2),
        "first_list_longest_block_s": round(longest_block_seconds, 3),
        "deaths_1000_decided_s_p99": round(deaths.p99_seconds, 2),
        "over_sockets_heartbeats_per_cpu_second": {
            str(size): round(one.heartbeats_per_cpu_second) for size, one in sockets.items()
        },
        "over_sockets_cost_ratio_1000_to_10": round(sockets_ratio, 3),
        "over_sockets_warnings": {str(size): one.warnings for size, one in sockets.items()},
        "ended_after_sigterm_s": round(ended_seconds, 1),
        "java_heartbeats_per_cpu_second": round(whole["java"].heartbeats_per_cpu_second) if java else None,
    }
    figures["holds"] = (
        rates[max(counts)] >= LEAST_HEARTBEATS_PER_CPU_SECOND
        and figures["cost_ratio_10000_to_10"] <= HIGHEST_COST_RATIO
        and listed_seconds <= LONGEST_FIRST_LIST_SECONDS
        and longest_block_seconds <= LONGEST_BLOCK_SECONDS
        and ended_seconds <= LONGEST_END_SECONDS
        and sockets_ratio <= HIGHEST_SOCKETS_RATIO
        and warnings_per_broker <= MOST_WARNINGS_PER_BROKER
        and (not java or figures["java_heartbeats_per_cpu_second"] is not None)
    )
    return figures


def main() -> int:
    """Measure, print the line, and say by the exit code whether the bounds hold."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--groups", default=f"10,1000,{LARGEST}")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--no-java", action="store_true")
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    # As the controller's process: its searches for cycles, its event loop.
    gc.callbacks.append(BriefCollections())
    counts = [int(count) for count in arguments.groups.split(",")]
    figures = uvloop.run(measure(counts, runs=arguments.runs, java=not arguments.no_java))
    print(json.dumps(figures))
    return 0 if figures["holds"] else 1


if __name__ == "__main__":
    sys.exit(main())
