"""An hour of the real system with failovers: the SLA report agrees with the operator's own records and with clients.

    python tests/sla/real_hour.py [--minutes 60] [--folder FOLDER] [--again]

The real operator runs three groups of Python replicas on the embedded Kubernetes API; a real Prometheus scrapes it every 15 s;
clients send all the time. Masters are killed, frozen, moved and restarted, and one group loses so many members that no send
is acknowledged for a while. Then `brokergroup sla report` reads the hour by several readers, and each report is compared with
the operator's log, record, status and counters, and the clients' gaps (`hour/compare.py`).

The last line is one JSON object; the exit code is 1 if there is a difference. With `--folder` all files are kept, and `--again`
repeats the reports and comparisons of a kept hour. Three minutes have each fault once.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "operator")]

from tests.real.parts.prometheus import start_prometheus  # noqa: E402
from tests.sla.hour.compare import Told, differences, gaps_of, make_reports, read_log, system_differences, take_exports  # noqa: E402
from tests.sla.hour.stage import (  # noqa: E402
    GROUPS,
    Evidence,
    plan_of,
    play,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.real.parts.prometheus import Prometheus

_EVIDENCE = "evidence.json"


def run(minutes: float, folder: Path) -> Evidence:
    """Run the hour; its files are in the folder."""

    def at_end(prometheus: Prometheus, evidence: Evidence) -> None:
        take_exports(prometheus, evidence, folder)
        evidence.write(folder / _EVIDENCE)

    return asyncio.run(play(folder, plan_of(minutes), at_end))


def judge(folder: Path, evidence: Evidence) -> dict[str, Any]:
    """Make reports of the folder's files, and return the result line."""
    log = read_log(folder / "house" / "operator-incidents.jsonl")
    with contextlib.ExitStack() as open_server:
        prometheus = open_server.enter_context(_served(folder / "prometheus"))
        reports = make_reports(prometheus, evidence, folder)
    wrong = system_differences(evidence, log)
    for told in reports:
        wrong += differences(told, log, evidence)
    for text in wrong:
        print(f"mismatch: {text}", flush=True)
    return result_of(evidence, log, reports, wrong)


def result_of(
    evidence: Evidence, log: list[dict[str, Any]], reports: list[Told], wrong: list[str]
) -> dict[str, Any]:  # fmt: skip
    """Return the last line."""
    gaps = [gap for group in evidence.groups.values() for gap in gaps_of(group, evidence)]
    caused: dict[str, int] = {}
    for stroke in evidence.strokes:
        caused[stroke.kind] = caused.get(stroke.kind, 0) + 1
    rto = reports[0].summary["recovery"]["rto"]
    return {
        "minutes": round((evidence.ended_ms - evidence.began_ms) / 60_000, 1), "groups": len(GROUPS),
        "failovers_caused": caused, "incidents_recorded": sum(line["outcome"] != "cancelled" for line in log),
        "incidents_reported": len(reports[0].incidents),
        "of_them_by_gauge_only": sum(one["source"] == "gauge" for one in reports[0].incidents),
        "mismatches": len(wrong),
        "readers": [
            {"reader": told.reader, "incidents": len(told.incidents), "wall_s": told.wall_s} for told in reports
        ],
        "client_gaps": len(gaps), "client_gap_ms": sum(gap.end_ms - gap.start_ms for gap in gaps),
        "acknowledged": sum(len(group.acks_ms) for group in evidence.groups.values()),
        "down_ms": {one["brokerGroup"]: one["write"]["downMs"] for one in reports[0].summary["groups"]},
        "rto_ms": {name: rto[name] for name in ("n", "p50Ms", "p95Ms", "maxMs")},
        "client_stalls": len(evidence.stalls),
    }  # fmt: skip


@contextlib.contextmanager
def _served(folder: Path) -> Iterator[Prometheus]:
    """Restart the hour's Prometheus over its data, without scrapes."""
    server = start_prometheus(folder, targets=[], arguments=["--storage.tsdb.retention.time=400d"])
    try:
        yield server
    finally:
        server.process.stop()


def main() -> None:
    """Run the program."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--again", action="store_true", help="Only the reports, of a folder that was kept")
    arguments = parser.parse_args()
    # Timeouts of sends to a frozen broker are intended.
    logging.getLogger("rocketmq_remoting").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as temporary:
        folder = (arguments.folder or Path(temporary)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        evidence = Evidence.read(folder / _EVIDENCE) if arguments.again else run(arguments.minutes, folder)
        result = judge(folder, evidence)
    print(json.dumps(result), flush=True)
    sys.exit(1 if result["mismatches"] else 0)


if __name__ == "__main__":
    main()
