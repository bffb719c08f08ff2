"""Writes a planted month in every form that a reader accepts, and loads it into a real Prometheus.

Only OpenMetrics and VictoriaMetrics's form are written here. promtool makes the dump, and the server the answers.
"""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from typer.testing import CliRunner

from brokergroup_operator.cli.main import app
from brokergroup_operator.observe.incidents import (
    circumstance_to_json,
    circumstances_beside,
    incident_to_json,
)
from sla_reports.readers import lake
from sla_reports.readers.text import read_openmetrics
from sla_reports.series import parse_series
from sla_reports.session import start_session
from sla_reports.sources import Form
from sla_reports.states.incidents import Source
from tests.real.parts import install
from tests.real.parts.prometheus import Prometheus, start_prometheus

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from sla_reports.measures.summary import GroupFigures, Summary
    from tests.sla.planted.month import Planted, PlantedIncident

_BACKFILL_SECONDS = 600
_ROWS_PER_LINE = 20_000
_DAY_MS = 86_400_000
# The name in the folder of each form that is read from files.
FILES = {
    Form.OPENMETRICS: "day.om", Form.VICTORIAMETRICS: "day.jsonl", Form.TSDB_DUMP: "day.dump",
    Form.QUERY_RANGE: "answers", Form.LAKE: "lake",
}  # fmt: skip
# The operator's verdict on a cause without circumstances; oom, disk and a node's partition need them.
_CAUSES_OF_LOG = {"oom": "crash", "partition": "unknown", "disk": "unknown"}


def write_openmetrics(planted: Planted, path: Path) -> Path:
    """Write one file with everything, as promtool requires."""
    with path.open("w") as stream:
        for series, (ts_ms, values) in planted.series.items():
            stream.writelines(_lines(series, ts_ms, values))
        stream.write("# EOF\n")
    return path


def write_openmetrics_days(planted: Planted, folder: Path) -> tuple[Path, int]:
    """Write a file for each day. The first two days are in both of their files; return the number of doubled samples too."""
    folder.mkdir(parents=True, exist_ok=True)
    month, twice = planted.month, 0
    for number, begin_ms in enumerate(range(month.start_ms, month.end_ms, _DAY_MS)):
        from_ms = begin_ms - _DAY_MS if number == 1 else begin_ms
        with (folder / f"{number:02d}.om").open("w") as stream:
            for series, (ts_ms, values) in planted.series.items():
                day = (ts_ms >= from_ms) & (ts_ms < begin_ms + _DAY_MS)
                twice += int(((ts_ms >= from_ms) & (ts_ms < begin_ms)).sum())
                stream.writelines(_lines(series, ts_ms[day], values[day]))
            stream.write("# EOF\n")
    return folder, twice


def _lines(series: str, ts_ms: Any, values: Any) -> Iterator[str]:
    for at_ms, value in zip(ts_ms.tolist(), values.tolist(), strict=True):
        yield f"{series} {'NaN' if math.isnan(value) else repr(value)} {at_ms // 1000}.{at_ms % 1000:03d}\n"


def write_victoriametrics(planted: Planted, path: Path) -> Path:
    """Write JSON lines of bounded length; stale markers are null."""
    with path.open("w") as stream:
        for series, (ts_ms, values) in planted.series.items():
            parts = parse_series(series)
            metric = {"__name__": parts.metric, **dict(parts.labels)}
            for begin in range(0, len(ts_ms), _ROWS_PER_LINE):
                some = values[begin : begin + _ROWS_PER_LINE].tolist()
                line = {
                    "metric": metric,
                    "values": [None if math.isnan(value) else value for value in some],
                    "timestamps": ts_ms[begin : begin + _ROWS_PER_LINE].tolist(),
                }
                stream.write(json.dumps(line) + "\n")
    return path


def write_parquet(planted: Planted, path: Path) -> Path:
    """Write the truth itself as a table, without any reader."""
    names = pa.array(list(planted.series), pa.string())
    lengths = [len(ts_ms) for ts_ms, _ in planted.series.values()]
    table = {
        "series": names.take(pa.array(np.repeat(np.arange(len(names)), lengths))),
        "ts_ms": np.concatenate([ts_ms for ts_ms, _ in planted.series.values()]),
        "value": np.concatenate([values for _, values in planted.series.values()]),
    }
    pq.write_table(pa.table(table), path)
    return path


def write_incident_log(planted: Planted, path: Path) -> Path:
    """Write the incident log as the operator does, with the circumstances."""
    path.write_text("".join(json.dumps(incident_to_json(one.timeline())) + "\n" for one in planted.incidents))
    noted = (circumstance_to_json(one) for one in planted.circumstances)
    circumstances_beside(path).write_text("".join(json.dumps(one) + "\n" for one in noted))
    return path


def backfill(openmetrics: Path, data: Path) -> None:
    """Make blocks. One large block for the month: with blocks of two hours promtool reads the file once for each."""
    command = [str(install.prometheus_program("promtool")), "tsdb", "create-blocks-from", "openmetrics", "--quiet"]
    command += ["--max-block-duration=744h", str(openmetrics), str(data)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_BACKFILL_SECONDS, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"promtool: {done.stderr[-2000:]}")


def dump(data: Path, path: Path) -> Path:
    """Run promtool's dump of a copy of the blocks: the server holds the data folder."""
    copy = path.with_suffix(".blocks")
    shutil.copytree(data, copy, ignore=shutil.ignore_patterns("wal", "chunks_head", "lock", "queries.active"))
    (copy / "wal").mkdir(exist_ok=True)
    with path.open("w") as stream:
        command = [str(install.prometheus_program("promtool")), "tsdb", "dump", str(copy)]
        done = subprocess.run(
            command, stdout=stream, stderr=subprocess.PIPE, text=True, timeout=_BACKFILL_SECONDS, check=False
        )
    if done.returncode != 0:
        raise RuntimeError(f"promtool: {done.stderr[-2000:]}")
    return path


def serve(folder: Path) -> Prometheus:
    """Start a real Prometheus over `folder/data`, which keeps old blocks and allows overlaps."""
    kept = ["--storage.tsdb.retention.time=400d", "--storage.tsdb.allow-overlapping-blocks"]
    return start_prometheus(folder, targets=[], arguments=kept)


def write_answers(prometheus: Prometheus, planted: Planted, folder: Path) -> Path:
    """Write the server's own answers, a file for each day: raw samples by a range selector."""
    folder.mkdir(parents=True, exist_ok=True)
    month = planted.month
    for begin_ms in range(month.start_ms, month.end_ms, _DAY_MS):
        end_ms = min(month.end_ms, begin_ms + _DAY_MS)
        query = f'{{__name__=~"brokergroup_.+"}}[{end_ms - begin_ms}ms]'
        data = prometheus.api("query", query=query, time=f"{(end_ms - 1) / 1000:.3f}")
        # Prometheus 2 closes the range at both ends; a sample at the left one belongs to the day before.
        for entry in data["result"]:
            entry["values"] = [pair for pair in entry["values"] if round(pair[0] * 1000) >= begin_ms]
        (folder / f"{begin_ms}.json").write_text(json.dumps({"status": "success", "data": data}))
    return folder


def main(folder: Path, url: str, period: str) -> dict[str, str]:
    """Run the command on each form; return each last line without the page's path, and check that the page exists."""
    spark = start_session("lake", short_jobs=True)
    lake.write(spark, read_openmetrics(spark, [folder / FILES[Form.OPENMETRICS]]).frame, folder / FILES[Form.LAKE])
    spark.stop()
    told = {}
    for form in (Form.HTTP, *FILES):
        where = ["--url", url] if form is Form.HTTP else ["--export", str(folder / FILES[form])]
        words = ["sla", "report", "--from", form.value, *where, "--incidents", str(folder / "incidents.jsonl")]
        words += ["--period", period, "--out", str(folder / "reports" / form.value), "--no-progress"]
        done = CliRunner().invoke(app, words)
        if done.exit_code != 0:
            sys.exit(f"{' '.join(words)}: {done.exit_code}\n{done.output}\n{done.exception!r}")
        line = json.loads(done.output.splitlines()[-1])
        page = folder / "reports" / form.value / "report.html"
        if (named := line.pop("page")) != page.as_uri() or not page.is_file():
            sys.exit(f"{form.value}: the last line names {named}, expected {page.as_uri()}")
        told[form.value] = json.dumps(line)
    return told


def incidents_found(summary: Summary) -> int:
    """Return the report's number of incidents."""
    return sum(len(figures.incidents) for figures in summary.groups)


def mismatches(planted: Planted, summary: Summary, *, with_circumstances: bool = True) -> list[str]:
    """Return the report's differences from the planted month; the expected result is empty."""
    told = {figures.group.broker_group: figures for figures in summary.groups}
    wrong = []
    for group in sorted({one.group for one in planted.incidents} | set(told)):
        ours = [one for one in planted.incidents if one.group == group]
        if group not in told:
            wrong.append(f"{group}: not in the report")
            continue
        wrong += [f"{group}: {text}" for text in _of_group(planted, ours, told[group], with_circumstances)]
    return wrong


def _of_group(
    planted: Planted, ours: list[PlantedIncident], figures: GroupFigures, with_circumstances: bool
) -> Iterable[str]:
    want: list[tuple[Any, ...]] = sorted(
        (
            one.fault_ms,
            one.in_sync_ms,
            one.is_planned,
            one.cause if with_circumstances or one.cut_off else _CAUSES_OF_LOG.get(one.cause, one.cause),
        )
        for one in ours
    )
    found = sorted((one.start_ms, one.end_ms or 0, one.planned, one.cause) for one in figures.incidents)
    yield from (f"planted and not told: {one}" for one in want if one not in found)
    yield from (f"told and not planted: {one}" for one in found if one not in want)
    yield from (f"not from the log: {one.id}" for one in figures.incidents if one.source is not Source.LOG)
    down_ms = sum(one.in_sync_ms - one.fault_ms for one in ours)
    if figures.availability.down_ms != down_ms:
        yield f"down {figures.availability.down_ms} ms, planted {down_ms} ms"
    by_node = {node: told.down_ms for node, told in figures.by_place["node"].items() if told.down_ms}
    planted_by_node: dict[str, int] = {}
    for one in ours:
        node = f"node-{one.from_broker_id}"
        planted_by_node[node] = planted_by_node.get(node, 0) + one.in_sync_ms - one.fault_ms
    if by_node != planted_by_node:
        yield f"down by node {by_node}, planted {planted_by_node}"
    length_ms = planted.month.end_ms - planted.month.start_ms
    if figures.availability.total_ms != length_ms:
        yield f"{figures.availability.total_ms} ms in all, planted {length_ms} ms"
    # Only the log knows the state in a gap: each gap is unknown, with up to two scrapes more at its edges.
    gaps_ms = sum(gap.end_ms - gap.start_ms for gap in planted.gaps)
    known_ms = sum(
        max(0, min(one.in_sync_ms, gap.end_ms) - max(one.fault_ms, gap.start_ms))
        for one in ours
        for gap in planted.gaps
    )
    slack_ms = (2 * len(planted.gaps) + 2) * planted.month.step_ms
    if not gaps_ms - known_ms <= figures.availability.unknown_ms <= gaps_ms - known_ms + slack_ms:
        yield f"unknown {figures.availability.unknown_ms} ms, planted {gaps_ms - known_ms} ms (+ {slack_ms} ms)"
    unplanned = [float(one.in_sync_ms - one.fault_ms) for one in ours if not one.is_planned]
    if (figures.recovery.total.n, figures.recovery.total.max_ms) != (len(unplanned), max(unplanned, default=None)):
        yield f"RTO of {figures.recovery.total}, planted {len(unplanned)}, longest {max(unplanned, default=None)}"


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), sys.argv[2], sys.argv[3])))
