"""How fast a Spark session starts with the class archive and without: pairs side by side, each in a process of its own.

    .venv/bin/python benchmarks/spark_start.py --pairs 5

A run is what a small report pays before and after its own work: session, two small jobs, stop. Which of a pair is first changes
with each. Processor time is the one to trust on a machine with company. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from typing import TYPE_CHECKING

from sla_reports.class_archive import ARCHIVE_VARIABLE, make_archive

if TYPE_CHECKING:
    from pathlib import Path

# The JVM is waited for: else its processor time is not counted.
JOB = """
from sla_reports.session import start_session
spark = start_session("start", master="local[2]")
spark.range(1000).repartition(2).count()
spark.sql("select sum(id) from range(1000)").collect()
gateway = spark.sparkContext._gateway
spark.stop()
gateway.shutdown()
gateway.proc.stdin.close()
gateway.proc.wait()
"""


def run_once(archive: Path) -> dict[str, float]:
    """One process: its wall time, and the processor time of it and its JVM."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    subprocess.run(
        [sys.executable, "-c", JOB], env={**os.environ, ARCHIVE_VARIABLE: str(archive)}, check=True, capture_output=True
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"wall_s": round(time.monotonic() - began, 2), "cpu_s": round(used, 2)}


def figures(runs: list[dict[str, float]]) -> dict[str, float]:
    """Median and worst of each."""
    told = {}
    for name in ("cpu_s", "wall_s"):
        told[f"{name}_median"] = statistics.median(run[name] for run in runs)
        told[f"{name}_worst"] = max(run[name] for run in runs)
    return told


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=5)
    pairs: int = parser.parse_args().pairs
    archive = make_archive()
    archives = {"with": archive, "without": archive.with_name("none.jsa")}
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in archives}
    for pair in range(pairs):
        for name in sorted(archives, reverse=pair % 2 == 1):
            runs[name].append(run_once(archives[name]))
            print(
                f"pair {pair + 1}, {name} the archive: {runs[name][-1]}, load {os.getloadavg()[0]:.1f}", file=sys.stderr
            )
    print(json.dumps({"pairs": pairs, **{name: figures(done) for name, done in runs.items()}}))


if __name__ == "__main__":
    main()
