"""One program of the benchmark in a process of its own: timed, watched, and stopped before it takes the machine with it.

It tells a line of JSON for its start and one for each run. What it writes beside that goes to a folder that is removed with
everything in it, also where it was killed: a Spark that is stopped in the middle of a sort leaves gigabytes behind otherwise.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from benchmarks.sla_meter import available_memory_bytes, tree_usage

_PROGRAMS: Final = Path(__file__).resolve().parent
_SAMPLED_EVERY_SECONDS: Final = 0.2
# With less than that on the disk or in memory something else on the machine fails first.
_LEAST_FREE_BYTES: Final = 1 << 30


def measured(program: str, arguments: list[str], *, limit_seconds: float) -> dict[str, Any]:
    """Its `lines`, the peak of its memory, and why it has no more lines: `stopped_for` (and what it had used) or `failed`."""
    command = [sys.executable, str(_PROGRAMS / program), *arguments]
    begun, peak_bytes, used_seconds, stopped_for = time.monotonic(), 0, 0.0, None
    with (
        tempfile.TemporaryDirectory(prefix="bench-sla-of-one-", ignore_cleanup_errors=True) as scratch,
        tempfile.TemporaryFile("w+") as told,
        tempfile.TemporaryFile("w+") as said,
    ):
        environment = {**os.environ, "TMPDIR": scratch, "SPARK_LOCAL_DIRS": scratch}
        process = subprocess.Popen(command, stdout=told, stderr=said, env=environment, start_new_session=True)
        try:
            while process.poll() is None and stopped_for is None:
                now_seconds, now_bytes = tree_usage(process.pid)
                used_seconds, peak_bytes = max(used_seconds, now_seconds), max(peak_bytes, now_bytes)
                stopped_for = _reason_to_stop(time.monotonic() - begun, limit_seconds, Path(scratch))
                time.sleep(_SAMPLED_EVERY_SECONDS)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        found: dict[str, Any] = {"peak_mib": round(peak_bytes / 2**20)}
        if stopped_for is not None:
            found |= {"stopped_for": stopped_for, "stopped_after_s": round(time.monotonic() - begun)}
            found["used_cpu_s"] = round(used_seconds, 2)
        elif process.returncode != 0:
            said.seek(0)
            found["failed"] = f"exit code {process.returncode}: {said.read().strip()[-1000:]}"
        told.seek(0)
        # Who is killed may leave half a line.
        found["lines"] = [json.loads(line) for line in told if line.endswith("\n")]
    return found


def _reason_to_stop(passed_seconds: float, limit_seconds: float, scratch: Path) -> str | None:
    if passed_seconds > limit_seconds:
        return "time"
    if shutil.disk_usage(scratch).free < _LEAST_FREE_BYTES:
        return "disk"
    if available_memory_bytes() < _LEAST_FREE_BYTES:
        return "memory"
    return None


def row_of(told: dict[str, Any]) -> dict[str, Any]:
    """An engine's figures. `cpu_s` and `wall_s` are the warm runs' median, or the cold one's where it is alone.

    Who was stopped before the end of the first run has `cpu_s_at_least` instead: what that run had used.
    """
    lines = told.pop("lines")
    runs = lines[1:]
    row = {**told, "start_cpu_s": lines[0]["start_cpu_s"] if lines else None, "runs": len(runs)}
    if not runs:
        if lines and "used_cpu_s" in row:
            row["cpu_s_at_least"] = round(row["used_cpu_s"] - row["start_cpu_s"], 2)
        return row
    warm = runs[1:] or runs
    row["cold"] = {"cpu_s": runs[0]["cpu_s"], "wall_s": runs[0]["wall_s"]}
    row["warm"] = len(runs) > 1
    row |= {name: round(statistics.median(run[name] for run in warm), 2) for name in ("cpu_s", "wall_s")}
    answers = {json.dumps(run["answer"], sort_keys=True) for run in runs}
    row["answer"] = runs[0]["answer"] if len(answers) == 1 else {"differ": sorted(answers)}
    return row


def runs_that_fit(engine: str, samples: int, smaller: list[dict[str, Any]], runs: int, limit_seconds: float) -> int:
    """How many runs the next smaller lake says that there is time for: fewer than asked for, or none."""
    each = expected_seconds(engine, samples, smaller)
    return runs if each * runs <= limit_seconds else int(limit_seconds / each)


def expected_seconds(engine: str, samples: int, smaller: list[dict[str, Any]]) -> float:
    """What the next smaller lake says that a run will take, at the least."""
    if not smaller:
        return 0.0
    told = smaller[-1].get(engine, {})
    each: float = told.get("wall_s", told.get("stopped_after_s", told.get("left_out_because_a_run_would_take_s", 0.0)))
    size: int = smaller[-1]["size"]
    return each * samples / size
