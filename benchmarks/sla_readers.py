"""Every reader over the same samples in its own form: how many a second of processor time.

    python benchmarks/sla_readers.py FOLDER --samples 10000000 --runs 3

Files are written first, and not counted. A run reads everything and adds it up in one Spark job, so that nothing is left unread;
the sums must be those of what was written. The processor time is that of all that takes part, the JVM that receives the samples
and the job's planning included: what a report pays until its reduction begins. A job costs something however little it reads, so
each reader is measured at two sizes, and both are printed: the larger one as it was, and what a job and a sample cost apart. The
server of the `prometheus` reader is a process of its own that hands out answers which lie ready: what is measured is the reader.
"""

from __future__ import annotations

import argparse
import contextlib
import http.server
import json
import math
import multiprocessing
import statistics
import sys
import time
import urllib.parse
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "operator")]

import numpy as np  # noqa: E402
import pyarrow as pa  # noqa: E402
import pyarrow.compute as pc  # noqa: E402
import pyarrow.parquet as pq  # noqa: E402
from pyspark.sql import functions as sql  # noqa: E402

from benchmarks.sla_lab import DAY_MS, DAYS, START_MS, Lake, make_lake, tree_cpu_seconds  # noqa: E402
from sla_reports.readers import json_forms, lake, prometheus  # noqa: E402
from sla_reports.readers.text import read_openmetrics, read_tsdb_dump  # noqa: E402
from sla_reports.series import parse_series  # noqa: E402
from sla_reports.session import start_session  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame, SparkSession

# How many samples there are; sums of their times since the month began, of their series' bytes, of their values.
Sums = tuple[int, int, int, float]
READERS = ["lake", "openmetrics", "tsdb_dump", "victoriametrics", "query_range", "prometheus"]
# The second size that every reader is measured at is so many times smaller.
_SMALLER = 4


def write_forms(made: Lake, folder: Path) -> Sums:
    """The lake's samples in every other form; hands back what a reader must find."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "answers").mkdir(exist_ok=True)
    count, times, names, values = 0, 0, 0, 0.0
    with (
        (folder / "month.om").open("wb") as om,
        (folder / "month.dump").open("wb") as dump,
        (folder / "month.jsonl").open("w") as lines,
    ):
        for number, path in enumerate(made.files()):
            table = pq.read_table(path, partitioning=None)
            count += len(table)
            times += pc.sum(pc.subtract(table["ts_ms"], START_MS)).as_py()
            names += pc.sum(pc.binary_length(table["series"])).as_py()
            known = table["value"].filter(pc.invert(pc.is_nan(table["value"])))
            values += pc.sum(known).as_py()
            om.write(_lines(table, as_seconds=True))
            dump.write(_lines(_as_dumped(table), as_seconds=False))
            entries = list(_by_series(table))
            lines.writelines(_victoria(entry) for entry in entries)
            (folder / "answers" / f"{START_MS + number * DAY_MS}.json").write_text(json.dumps(_answer(entries)))
        om.write(b"# EOF\n")
    return count, times, names, values


def write_openmetrics(days: list[Path], export: Path) -> None:
    """A lake's days as one text."""
    with export.open("wb") as om:
        for path in days:
            om.write(_lines(pq.read_table(path, partitioning=None), as_seconds=True))
        om.write(b"# EOF\n")


def _lines(table: pa.Table, *, as_seconds: bool) -> bytes:
    value = pc.replace_substring(pc.cast(table["value"], pa.string()), "nan", "NaN")
    stamp = pc.cast(table["ts_ms"], pa.string())
    if as_seconds:
        stamp = pc.binary_join_element_wise(
            pc.utf8_slice_codeunits(stamp, 0, 10), pc.utf8_slice_codeunits(stamp, 10), "."
        )
    lines = pc.binary_join_element_wise(table["series"], value, stamp, " ")
    return ("\n".join(lines.to_pylist()) + "\n").encode()


def _as_dumped(table: pa.Table) -> pa.Table:
    series = table["series"].combine_chunks().dictionary_encode()
    names = []
    for text in series.dictionary.to_pylist():
        parts = parse_series(text)
        labels = (("__name__", parts.metric), *parts.labels)
        names.append("{" + ", ".join(f'{name}="{value}"' for name, value in labels) + "}")
    return table.set_column(0, "series", pa.array(names).take(series.indices))


def _by_series(table: pa.Table) -> Iterator[dict[str, Any]]:
    series = table["series"].combine_chunks().dictionary_encode()
    codes = series.indices.to_numpy()
    starts = np.append([0], np.flatnonzero(codes[1:] != codes[:-1]) + 1)
    for begin, end in zip(starts, np.append(starts[1:], len(codes)), strict=True):
        parts = parse_series(series.dictionary[int(codes[begin])].as_py())
        part = table.slice(begin, end - begin)
        metric = {"__name__": parts.metric, **dict(parts.labels)}
        yield {"metric": metric, "timestamps": part["ts_ms"].to_pylist(), "values": part["value"].to_pylist()}


def _victoria(entry: dict[str, Any]) -> str:
    return json.dumps({**entry, "values": [None if math.isnan(one) else one for one in entry["values"]]}) + "\n"


def _answer(entries: list[dict[str, Any]]) -> dict[str, Any]:
    result = [
        {
            "metric": entry["metric"],
            "values": [
                [at_ms / 1000, "NaN" if math.isnan(value) else f"{value:g}"]
                for at_ms, value in zip(entry["timestamps"], entry["values"], strict=True)
            ],
        }
        for entry in entries
    ]
    return {"status": "success", "data": {"resultType": "matrix", "result": result}}


def serve(folder: Path, port: Any) -> None:
    """A server that answers an instant query with a range selector by the day that ends then."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:  # the name is http.server's
            form = urllib.parse.parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
            day = (round(float(form["time"][0]) * 1000) - START_MS) // DAY_MS
            content = (folder / f"{START_MS + day * DAY_MS}.json").read_bytes()
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            """Says nothing."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    port.value = server.server_port
    server.serve_forever()


def readers(spark: SparkSession, made: Lake, folder: Path, port: int) -> dict[str, Callable[[], DataFrame]]:
    """Each reader's frame."""
    limits: dict[str, Any] = {"start_ms": START_MS, "end_ms": START_MS + DAYS * DAY_MS}
    return {
        "lake": lambda: lake.read(spark, made.folder).frame,
        "openmetrics": lambda: read_openmetrics(spark, [folder / "month.om"]).frame,
        "tsdb_dump": lambda: read_tsdb_dump(spark, [folder / "month.dump"]).frame,
        "victoriametrics": lambda: json_forms.read_victoriametrics(spark, [folder / "month.jsonl"]).frame,
        "query_range": lambda: json_forms.read_answers(spark, [folder / "answers"]).frame,
        "prometheus": lambda: prometheus.read(spark, f"http://127.0.0.1:{port}", **limits).frame,
    }


def sums(frame: DataFrame) -> Sums:
    """One row out of all samples; it needs every column of each."""
    known = sql.when(~sql.isnan("value"), sql.col("value"))
    times, names = sql.sum(sql.col("ts_ms") - START_MS), sql.sum(sql.octet_length("series"))
    row = frame.agg(sql.count("series"), times, names, sql.sum(known)).collect()[0]
    return row[0], row[1], row[2], row[3]


def measure(make: Callable[[], DataFrame], expected: Sums, runs: int, own: Callable[[], float]) -> list[float]:
    """The processor time of each run, the first one cold."""
    costs = []
    for _ in range(runs):
        before = own()
        found = sums(make())
        costs.append(own() - before)
        if found[:3] != expected[:3] or abs(found[3] - expected[3]) > 1e-6:
            raise SystemExit(f"read {found}; expected {expected}")
    return costs


def row_of(name: str, samples: tuple[int, int], costs: tuple[list[float], list[float]]) -> dict[str, Any]:
    """A reader's figures: of the larger export as it was, and what two sizes say of a job's own cost and of a sample's."""
    few, many = (statistics.median(each[1:] or each) for each in costs)
    told = {"reader": name, "samples": samples[1], "cold_cpu_s": round(costs[1][0], 2), "cpu_s": round(many, 2)}
    told["samples_per_cpu_s"] = round(samples[1] / many)
    a_sample = (many - few) / (samples[1] - samples[0])
    told["without_the_job"] = {
        "smaller": {"samples": samples[0], "cpu_s": round(few, 2)},
        "job_cpu_s": round(few - a_sample * samples[0], 2),
        "samples_per_cpu_s": round(1 / a_sample) if a_sample > 0 else None,
    }
    return told


@contextlib.contextmanager
def served(folder: Path) -> Iterator[tuple[int, int]]:
    """A server over a folder of answers: its port and its process, whose time is not the reader's."""
    port = multiprocessing.Value("i", 0)
    server = multiprocessing.Process(target=serve, args=(folder, port), daemon=True)
    server.start()
    try:
        while port.value == 0:
            time.sleep(0.05)
        assert server.pid is not None
        yield port.value, server.pid
    finally:
        server.terminate()


def main() -> None:
    """A line of JSON for each reader."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--samples", type=int, default=10_000_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--readers", nargs="+", choices=READERS, default=READERS)
    arguments = parser.parse_args()
    forms, expected, made = [], [], []
    for samples in (arguments.samples // _SMALLER, arguments.samples):
        made.append(make_lake(arguments.folder / f"lake-of-readers-{samples}", samples=samples))
        forms.append(arguments.folder / f"forms-{samples}")
        expected.append(write_forms(made[-1], forms[-1]))
    with served(forms[0] / "answers") as few, served(forms[1] / "answers") as many:

        def own() -> float:
            return tree_cpu_seconds() - tree_cpu_seconds(few[1]) - tree_cpu_seconds(many[1])

        spark = start_session("readers")
        print(json.dumps({"start_cpu_s": round(own(), 2)}), flush=True)
        of_few, of_many = (readers(spark, made[at], forms[at], (few, many)[at][0]) for at in (0, 1))
        for name in arguments.readers:
            costs = tuple(
                measure(frames[name], sums_of, arguments.runs, own)
                for frames, sums_of in ((of_few, expected[0]), (of_many, expected[1]))
            )
            print(json.dumps(row_of(name, (expected[0][0], expected[1][0]), (costs[0], costs[1]))), flush=True)
        spark.stop()


if __name__ == "__main__":
    main()
