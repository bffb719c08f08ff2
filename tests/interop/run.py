"""`make test-interop`: Java brokers and Python replicas in one group, failing over to each other under Java's own clients.

    python tests/interop/run.py                              what CI runs
    python tests/interop/run.py --messages 1000 --keep       fewer messages; the folder with all logs stays

Groups: Java 5.5.0 with Python, Java 5.3.3 with Python, and all three together. Afterwards all commit logs are equal byte by byte,
the epoch files agree save Java's known traps (`logs.py`), and each of Java's consumers has read every acknowledged message once.
Then the gRPC client of RocketMQ 5 speaks to a group through a real Proxy (`proxy.py`).

The last line of standard output is `{"messages", "failovers", "log_mismatches", "lost", "duplicates_beyond_retry", "java_versions",
...}`; exit 0 only if everything asked for was acknowledged, nothing is lost, duplicated or different, and the Proxy's part held.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import sys
import tempfile
import time
from pathlib import Path

ROOT = str(Path(__file__).resolve().parents[2])
if ROOT not in sys.path:
    sys.path.insert(0, ROOT)

from tests.interop.campaign import Campaign, Cast, Outcome  # noqa: E402
from tests.interop.lab import PYTHON  # noqa: E402
from tests.real.parts import install  # noqa: E402

NEWER, OLDER = install.ROCKETMQ_VERSION, install.OLDER_ROCKETMQ_VERSION
MESSAGES = 10_000
CASTS = {
    "newer": Cast(NEWER, {"java": NEWER, "python": PYTHON}, ("kill", "kill", "python", "java", "kill")),
    "older": Cast(OLDER, {"python": PYTHON, "java": OLDER}, ("kill", "kill", "java", "python", "kill")),
}
began = time.monotonic()


def say(line: str) -> None:
    print(f"[{time.monotonic() - began:6.1f}] {line}", flush=True)


async def run_all(options: argparse.Namespace, folder: Path) -> tuple[Outcome, list[str]]:
    whole, versions = Outcome(), []
    for name in options.cast or list(CASTS):
        cast = CASTS[name]
        say(f"==== {name}: {cast.kinds}")
        campaign = Campaign(cast, options.messages, folder / name, say)
        outcome = await campaign.run()
        whole.add(outcome)
        versions.append(cast.java_version)
    return whole, versions


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=MESSAGES, help="per group")
    parser.add_argument("--cast", choices=list(CASTS), action="append", help="only this group; repeatable")
    parser.add_argument("--keep", action="store_true", help="keep the folder with everybody's files")
    options = parser.parse_args(arguments)
    folder = Path(tempfile.mkdtemp(prefix="interop-"))
    try:
        outcome, versions = asyncio.run(run_all(options, folder))
    finally:
        if options.keep:
            say(f"kept: {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    account, comparison = outcome.account, outcome.comparison
    for complaint in (*comparison.mismatches, *account.lost, *account.duplicates_beyond_retry):
        say(complaint)
    summary = {
        "messages": outcome.messages,
        "failovers": outcome.failovers,
        "log_mismatches": len(comparison.mismatches),
        "lost": len(account.lost),
        "duplicates_beyond_retry": len(account.duplicates_beyond_retry),
        "java_versions": versions,
    }
    print(json.dumps(summary), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
