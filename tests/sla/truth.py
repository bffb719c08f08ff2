"""Planted truth: every reader's samples and the report equal the planted month.

    python -m tests.sla.truth [--seed 1] [--groups 3] [--step-seconds 60] [--draws 400] [--keep FOLDER]

A synthetic month goes through promtool's backfill into a real Prometheus, and from there and from files through every reader.
For each series the number of samples and a checksum over times and values must be those of the truth, and its report
must have the planted incidents and times to the millisecond. The last line is one JSON object; the exit code is 1 if
there is a difference.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as sql

from sla_reports.measures.summary import Agreement, summarise
from sla_reports.readers import json_forms, lake, prometheus
from sla_reports.readers.samples import readable_errors
from sla_reports.readers.text import read_openmetrics, read_tsdb_dump
from sla_reports.report import evidence, reduce_for_report
from sla_reports.session import start_session
from sla_reports.states.logged import read_logs
from sla_reports.states.spans import Window
from tests.sla.planted import exports
from tests.sla.planted.draws import violations
from tests.sla.planted.exports import incidents_found, mismatches
from tests.sla.planted.month import Month, Planted, plant

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

Sums = dict[str, tuple[int, int]]


def checksums(frame: DataFrame) -> Sums:
    """Return, for each series, the number of samples and the exclusive or of the hashes of time and value."""
    rows = frame.groupBy("series").agg(
        sql.count("*").alias("samples"), sql.bit_xor(sql.xxhash64("ts_ms", "value")).alias("checksum")
    )
    with readable_errors():
        return {row["series"]: (row["samples"], row["checksum"]) for row in rows.collect()}


def differences(truth: Sums, found: Sums) -> list[str]:
    """Return the series that differ."""
    return sorted(series for series in truth.keys() | found.keys() if truth.get(series) != found.get(series))


@dataclass
class Exports:
    """The month in all its forms."""

    openmetrics: Path
    days: Path
    twice: int
    victoriametrics: Path
    dump: Path
    answers: Path
    truth: Path
    incidents: Path


def prepare(planted: Planted, folder: Path) -> tuple[Exports, Any]:
    """Write the files, fill the blocks, start the server, save its answers. The caller stops the server."""
    made = exports.write_openmetrics(planted, folder / "month.om")
    exports.backfill(made, folder / "prometheus" / "data")
    # One day is also in a separate block: blocks overlap, as after a repair.
    overlap = Planted(planted.month)
    day_ms = planted.month.start_ms + 9 * 86_400_000
    for series, (ts_ms, values) in planted.series.items():
        inside = (ts_ms >= day_ms) & (ts_ms < day_ms + 86_400_000)
        overlap.series[series] = (ts_ms[inside], values[inside])
    exports.backfill(exports.write_openmetrics(overlap, folder / "overlap.om"), folder / "prometheus" / "data")
    dumped = exports.dump(folder / "prometheus" / "data", folder / "month.dump")
    server = exports.serve(folder / "prometheus")
    days, twice = exports.write_openmetrics_days(planted, folder / "days")
    return Exports(
        openmetrics=made,
        days=days,
        twice=twice,
        victoriametrics=exports.write_victoriametrics(planted, folder / "month.jsonl"),
        dump=dumped,
        answers=exports.write_answers(server, planted, folder / "answers"),
        truth=exports.write_parquet(planted, folder / "truth.parquet"),
        incidents=exports.write_incident_log(planted, folder / "incidents.jsonl"),
    ), server


def readers(
    spark: SparkSession, planted: Planted, files: Exports, url: str, folder: Path
) -> dict[str, Callable[[dict[str, Any]], DataFrame]]:
    """Yield each reader's frame, with the reader's note if any."""
    month = planted.month
    bounds: dict[str, Any] = {"start_ms": month.start_ms, "end_ms": month.end_ms}

    def with_duplicates(notes: dict[str, Any]) -> DataFrame:
        every = read_openmetrics(spark, [files.days]).frame
        notes["planted_twice"] = files.twice
        notes["equal_duplicates"] = every.count() - every.distinct().count()
        return every.distinct()

    def through_lake(notes: dict[str, Any]) -> DataFrame:
        half = (month.start_ms + month.end_ms) // 2
        source = read_openmetrics(spark, [files.openmetrics]).frame
        # The second half comes first, and one day twice: late data.
        written = [
            lake.write(spark, source.where(sql.col("ts_ms") >= half), folder / "lake"),
            lake.write(spark, source.where(sql.col("ts_ms") < half + 86_400_000), folder / "lake"),
        ]
        notes["equal_duplicates"] = sum(one.equal_duplicates for one in written)
        return lake.read(spark, folder / "lake", **bounds).frame

    return {
        "openmetrics": lambda _: read_openmetrics(spark, [files.openmetrics], split_bytes=16_000_000).frame,
        "openmetrics_days": with_duplicates,
        "victoriametrics": lambda _: json_forms.read_victoriametrics(spark, [files.victoriametrics]).frame,
        "tsdb_dump": lambda _: read_tsdb_dump(spark, [files.dump]).frame,
        "query_range": lambda _: json_forms.read_answers(spark, [files.answers]).frame,
        "prometheus": lambda _: prometheus.read(spark, url, slice_hours=24 * 8, **bounds).frame,
        "prometheus_shards": lambda _: (
            prometheus.read(spark, url, slice_hours=24 * 5, shard_label="broker_group", shards=2, **bounds).frame
        ),
        "lake": through_lake,
    }


def compare(
    name: str, make: Callable[[dict[str, Any]], DataFrame], truth: Sums, planted: Planted, incidents: Path
) -> dict[str, Any]:
    """Read, report, and compare both with the truth; return the reader's part of the result line."""
    notes: dict[str, Any] = {}
    begun = time.monotonic()
    frame = make(notes).persist()
    found = checksums(frame)
    wrong = [f"{one}: planted {truth.get(one)}, read {found.get(one)}" for one in differences(truth, found)]
    logs = read_logs([incidents])
    summary = summarise(
        Agreement(Window(planted.month.start_ms, planted.month.end_ms), 0.9995),
        evidence(reduce_for_report(frame), logs.incidents, circumstances=logs.circumstances),
    )
    frame.unpersist()
    wrong += mismatches(planted, summary)
    for text in wrong[:5]:
        say(f"  {name}: {text}")
    samples, seconds = sum(count for count, _ in found.values()), round(time.monotonic() - begun, 2)
    told = {"reader": name, "samples": samples, "mismatches": len(wrong), "incidents_found": incidents_found(summary)}
    say(f"{name}: {samples} samples, {told['incidents_found']} incidents, {len(wrong)} mismatches, {seconds} s")
    return {**told, "wall_s": seconds, **notes}


def say(text: str) -> None:
    """Print progress to stderr; stdout has the result."""
    print(text, file=sys.stderr, flush=True)


def run(month: Month, folder: Path) -> dict[str, Any]:
    """Run all readers; return the result."""
    planted = plant(month)
    say(f"planted {len(planted.incidents)} incidents, {len(planted.series)} series, {planted.samples} samples")
    files, server = prepare(planted, folder)
    try:
        spark = start_session("truth", master="local[2]", short_jobs=True)
        truth = checksums(spark.read.parquet(str(files.truth)))
        results = [
            compare(name, make, truth, planted, files.incidents)
            for name, make in readers(spark, planted, files, server.url, folder).items()
        ]
        spark.stop()
    finally:
        server.process.stop()
    return {
        "incidents_planted": len(planted.incidents),
        "incidents_found": min(one["incidents_found"] for one in results),
        "mismatches": sum(one["mismatches"] for one in results),
        "samples_planted": planted.samples,
        "readers": results,
    }


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--groups", type=int, default=3)
    parser.add_argument("--step-seconds", type=int, default=60)
    parser.add_argument("--draws", type=int, default=400, help="histories with sources that contradict each other")
    parser.add_argument("--keep", type=Path, help="leave the files here")
    options = parser.parse_args()
    month = Month(seed=options.seed, groups=options.groups, step_ms=options.step_seconds * 1000)
    with tempfile.TemporaryDirectory(prefix="sla-truth-") as scratch:
        folder = options.keep or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        result = run(month, folder)
    say(f"drawing {options.draws} histories: the figures add up, and the bounds contain what was planted")
    found = [fault for seed in range(options.seed, options.seed + options.draws) for fault in violations(seed)]
    for text in found[:5]:
        say(f"  {text}")
    print(json.dumps({**result, "draws": options.draws, "violations": len(found)}))
    return 1 if result["mismatches"] or found else 0


if __name__ == "__main__":
    sys.exit(main())
