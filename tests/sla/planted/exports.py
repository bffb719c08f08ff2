"""Writes a planted month in every form that a reader takes, and brings it into a real Prometheus.

Only OpenMetrics and VictoriaMetrics's form are written here. The dump is promtool's own, the answers are the server's own.
"""

from __future__ import annotations

import json
import math
import shutil
import subprocess
from typing import TYPE_CHECKING, Any

import numpy as np

from brokergroup_operator.observe.circumstances import circumstance_to_json
from brokergroup_operator.observe.incidents import SCHEMA_VERSION, circumstances_beside, incident_to_json
from sla_reports.series import parse_series
from tests.real.parts import install
from tests.real.parts.prometheus import Prometheus, start_prometheus

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.sla.planted.month import Planted

_BACKFILL_SECONDS = 600
_ROWS_PER_LINE = 20_000
_DAY_MS = 86_400_000


def write_openmetrics(planted: Planted, path: Path) -> Path:
    """One file with everything, as promtool wants it."""
    with path.open("w") as stream:
        for series, (ts_ms, values) in planted.series.items():
            stream.writelines(_lines(series, ts_ms, values))
        stream.write("# EOF\n")
    return path


def write_openmetrics_days(planted: Planted, folder: Path) -> tuple[Path, int]:
    """A file a day. The first two days stand in both of their files; also told is how many samples stand twice."""
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
    """JSON lines of bounded length; stale markers are null."""
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
    """The truth itself, as a table that no reader has touched."""
    import pyarrow as pa
    import pyarrow.parquet as pq

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
    """As the operator writes it, with what was going on beside it."""
    path.write_text("".join(json.dumps(incident_to_json(one.timeline())) + "\n" for one in planted.incidents))
    noted = (circumstance_to_json(one, schema_version=SCHEMA_VERSION) for one in planted.circumstances)
    circumstances_beside(path).write_text("".join(json.dumps(one) + "\n" for one in noted))
    return path


def backfill(openmetrics: Path, data: Path) -> None:
    """Make blocks of it. One large block a month: with two hours each, promtool reads the file once a block."""
    command = [str(install.prometheus_program("promtool")), "tsdb", "create-blocks-from", "openmetrics", "--quiet"]
    command += ["--max-block-duration=744h", str(openmetrics), str(data)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_BACKFILL_SECONDS, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"promtool: {done.stderr[-2000:]}")


def dump(data: Path, path: Path) -> Path:
    """promtool's dump of the blocks, from a copy: the server has the data folder."""
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
    """A real Prometheus over `folder/data`: old blocks are kept, and blocks may overlap."""
    kept = ["--storage.tsdb.retention.time=400d", "--storage.tsdb.allow-overlapping-blocks"]
    return start_prometheus(folder, targets=[], arguments=kept)


def write_answers(prometheus: Prometheus, planted: Planted, folder: Path) -> Path:
    """The server's own answers, a file a day: raw samples by a range selector."""
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
