"""`make test-interop`: Java brokers and Python replicas in one group, failing over to each other under Java's own clients.

    python tests/interop/run.py                              what CI runs
    python tests/interop/run.py --messages 1000 --keep       fewer messages; the folder with all logs stays

Groups: Java 5.5.1, 5.5.0 and 5.3.3, each with Python; 5.5.0, 5.3.3 and Python. Afterwards all commit logs are equal byte by byte,
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
import signal
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = str(Path(__file__).resolve().parents[2])
if ROOT not in sys.path:
    sys.path.insert(0, ROOT)

from rocketmq_remoting.errors import RemotingError  # noqa: E402
from tests.interop.campaign import Campaign, Cast, Outcome  # noqa: E402
from tests.interop.clients import ClientError  # noqa: E402
from tests.interop.lab import PYTHON, LabError  # noqa: E402
from tests.interop.proxy import ProxyOutcome, run_through_proxy  # noqa: E402
from tests.real.parts import install  # noqa: E402
from tests.real.parts.process import RealProcessError  # noqa: E402

NEWEST = install.NEWEST_ROCKETMQ_VERSION
NEWER, OLDER = install.ROCKETMQ_VERSION, install.OLDER_ROCKETMQ_VERSION
MESSAGES = 10_000
QUICK_MESSAGES = 1_000
QUICK_PARTS = ["newest", "newer", "older", "proxy"]
CASTS = {
    "newest": Cast(NEWEST, {"java": NEWEST, "python": PYTHON}, ("kill", "kill", "python", "java", "kill")),
    "newer": Cast(NEWER, {"java": NEWER, "python": PYTHON}, ("kill", "kill", "python", "java", "kill")),
    "older": Cast(OLDER, {"python": PYTHON, "java": OLDER}, ("kill", "kill", "java", "python", "kill")),
    "together": Cast(
        NEWER,
        {"older": OLDER, "python": PYTHON, "newer": NEWER},
        ("python", "kill", "newer", "kill", "older", "python"),
    ),
}
PROXY = "proxy"
PARTS = [*CASTS, PROXY]
REAL_PARTS = ["rocketmq", "newest-rocketmq", "older-rocketmq", "rocketmq-proxy", "rocketmq-python-client"]
MOST_COMPLAINTS = 40
began = time.monotonic()


def say(line: str) -> None:
    print(f"[{time.monotonic() - began:6.1f}] {line}", flush=True)


@dataclass
class Results:
    """The results of all parts."""

    groups: Outcome = field(default_factory=Outcome)
    asked: int = 0
    broken_off: str | None = None
    versions: set[str] = field(default_factory=set)
    proxy: ProxyOutcome | None = None

    def complaints(self) -> list[str]:
        """Every reason not to exit 0."""
        account, comparison = self.groups.account, self.groups.comparison
        found = [self.broken_off] if self.broken_off is not None else []
        found += [*comparison.mismatches, *account.lost, *account.duplicates_beyond_retry]
        if self.groups.messages != self.asked:
            found.append(f"{self.groups.messages} messages acknowledged, {self.asked} asked for")
        if self.proxy is not None:
            found += [*self.proxy.complaints, *self.proxy.lost, *self.proxy.comparison.mismatches]
        return found

    def summary(self) -> dict[str, Any]:
        """The last line."""
        account, comparison, proxy = self.groups.account, self.groups.comparison, self.proxy or ProxyOutcome()
        return {
            "messages": self.groups.messages + proxy.sent,
            "failovers": self.groups.failovers + proxy.failovers,
            "log_mismatches": len(comparison.mismatches) + len(proxy.comparison.mismatches),
            "lost": len(account.lost) + len(proxy.lost),
            "duplicates_beyond_retry": len(account.duplicates_beyond_retry),
            "java_versions": sorted(self.versions),
            "java_traps": dict(comparison.traps + proxy.comparison.traps),
            "grpc": {
                "sent": proxy.sent,
                "received": proxy.received,
                "redelivered": proxy.redelivered,
                "proxies_died": proxy.died,
                "complaints": len(proxy.complaints),
            },
        }


async def run_all(options: argparse.Namespace, folder: Path) -> Results:
    """Every part asked for, one after the other; one that cannot be played to its end ends the run."""
    results = Results()
    try:
        await play(options, folder, results)
    except (ClientError, LabError, RealProcessError, RemotingError) as error:
        results.broken_off = f"{type(error).__name__}: {error}"
    return results


async def play(options: argparse.Namespace, folder: Path, results: Results) -> None:
    for name in options.only or PARTS:
        say(f"==== {name}")
        if name == PROXY:
            results.proxy = await run_through_proxy(folder / PROXY, say)
            results.versions.add(NEWER)
            continue
        cast = CASTS[name]
        results.groups.add(await Campaign(cast, options.messages, folder / name, say).run())
        results.asked += options.messages
        results.versions |= {kind for kind in cast.kinds.values() if kind != PYTHON}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=MESSAGES, help="per group")
    parser.add_argument(
        "--quick", action="store_true", help=f"{QUICK_MESSAGES} messages a group, and not all three together"
    )
    parser.add_argument("--only", choices=PARTS, action="append", help="only this part; repeatable")
    parser.add_argument("--keep", action="store_true", help="keep the folder with everybody's files")
    options = parser.parse_args(arguments)
    if options.quick:
        options.messages, options.only = QUICK_MESSAGES, options.only or QUICK_PARTS
    failed = install.bring_all(REAL_PARTS)
    if failed:
        print(json.dumps({"messages": 0, "failed": failed}), flush=True)
        return 1
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # or a dozen Java processes outlive us
    folder = Path(tempfile.mkdtemp(prefix="interop-"))
    try:
        results = asyncio.run(run_all(options, folder))
    finally:
        if options.keep:
            say(f"kept: {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    complaints = results.complaints()
    for complaint in complaints[:MOST_COMPLAINTS]:
        say(complaint)
    print(json.dumps(results.summary()), flush=True)
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
