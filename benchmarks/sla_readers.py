"""Every reader over the same samples in its own form: how many a second of processor time.

    python benchmarks/sla_readers.py FOLDER --samples 4000000 --runs 3

Files are written first, and not counted. A run reads everything and adds it up in one Spark job, so that nothing is left unread;
the sums must be those of what was written. The server of the `prometheus` reader is a process of its own that hands out answers
which lie ready: what is measured is the reader.
"""

from __future__ import annotations

import argparse
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

from benchmarks.sla_meter import tree_cpu_seconds  # noqa: E402
from benchmarks.sla_samples import DAY_MS, DAYS, START_MS, Lake, make_lake  # noqa: E402
from sla_reports.readers import lake, openmetrics, prometheus, query_range, tsdb_dump, victoriametrics  # noqa: E402
from sla_reports.series import parse_series  # noqa: E402
from sla_reports.session import start_session  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame, SparkSession

Sums = tuple[int, int, float]


def write_forms(made: Lake, folder: Path) -> Sums:
    """The lake's samples in every other form; hands back what a reader must find."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "answers").mkdir(exist_ok=True)
    count, times, values = 0, 0, 0.0
    with (
        (folder / "month.om").open("wb") as om,
        (folder / "month.dump").open("wb") as dump,
        (folder / "month.jsonl").open("w") as lines,
    ):
        for number, path in enumerate(made.files()):
            table = pq.read_table(path, partitioning=None)
            count, times = count + len(table), times + pc.sum(table["ts_ms"]).as_py()
            known = table["value"].filter(pc.invert(pc.is_nan(table["value"])))
            values += pc.sum(known).as_py()
            om.write(_lines(table, as_seconds=True))
            dump.write(_lines(_as_dumped(table), as_seconds=False))
            entries = list(_by_series(table))
            lines.writelines(_victoria(entry) for entry in entries)
            (folder / "answers" / f"{START_MS + number * DAY_MS}.json").write_text(json.dumps(_answer(entries)))
        om.write(b"# EOF\n")
    return count, times, values


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
    limits = {"start_ms": START_MS, "end_ms": START_MS + DAYS * DAY_MS}
    return {
        "lake": lambda: lake.read(spark, made.folder).frame,
        "openmetrics": lambda: openmetrics.read(spark, [folder / "month.om"]).frame,
        "tsdb_dump": lambda: tsdb_dump.read(spark, [folder / "month.dump"]).frame,
        "victoriametrics": lambda: victoriametrics.read(spark, [folder / "month.jsonl"]).frame,
        "query_range": lambda: query_range.read(spark, [folder / "answers"]).frame,
        "prometheus": lambda: prometheus.read(spark, f"http://127.0.0.1:{port}", **limits).frame,
    }


def sums(frame: DataFrame) -> Sums:
    """One row out of all samples; it needs every column of each."""
    known = sql.when(~sql.isnan("value"), sql.col("value"))
    row = frame.agg(sql.count("series"), sql.sum("ts_ms"), sql.sum(known)).collect()[0]
    return row[0], row[1], row[2]


def main() -> None:
    """A line of JSON for each reader."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--samples", type=int, default=4_000_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--readers", nargs="*")
    arguments = parser.parse_args()
    made = make_lake(arguments.folder / f"lake-of-readers-{arguments.samples}", samples=arguments.samples)
    expected = write_forms(made, arguments.folder / "forms")
    port = multiprocessing.Value("i", 0)
    # Started away from Spark and with a double fork's effect: its processor time is not the reader's.
    server = multiprocessing.Process(target=serve, args=(arguments.folder / "forms" / "answers", port), daemon=True)
    server.start()
    while port.value == 0:
        time.sleep(0.05)
    own = tree_cpu_seconds
    spark = start_session("readers")
    print(json.dumps({"start_cpu_s": round(own(), 2)}), flush=True)
    for name, make in readers(spark, made, arguments.folder / "forms", port.value).items():
        if arguments.readers and name not in arguments.readers:
            continue
        costs = []
        for _ in range(arguments.runs):
            before = own() - own(server.pid)
            found = sums(make())
            costs.append(own() - own(server.pid) - before)
            if found[:2] != expected[:2] or abs(found[2] - expected[2]) > 1e-6:
                raise SystemExit(f"{name}: read {found}; expected {expected}")
        warm = statistics.median(costs[1:] or costs)
        told = {"reader": name, "samples": expected[0], "cold_cpu_s": round(costs[0], 2), "cpu_s": round(warm, 2)}
        print(json.dumps({**told, "samples_per_cpu_s": round(expected[0] / warm)}), flush=True)
    server.terminate()
    spark.stop()


if __name__ == "__main__":
    main()
