"""The streaming source against a real Prometheus while it scrapes: each sample once, also over a restart from the checkpoint."""

from __future__ import annotations

import itertools
import json
import threading
import time
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest

from metric_names import GROUP_WRITABLE
from sla_reports.readers.prometheus import NAME, PrometheusSource
from sla_reports.series import series_text
from tests.real.parts.prometheus import Prometheus, start_prometheus

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

DEADLINE_SECONDS = 240.0
# Longer than a scrape of this page can take on a machine that is busy with other tests.
LAG_SECONDS = 8
GROUPS = ("orders", "payments")


@contextmanager
def _page() -> Iterator[str]:
    """A page whose gauges have another value at each scrape."""
    scrapes = itertools.count(1)

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            value = next(scrapes)
            lines = [f'{GROUP_WRITABLE}{{broker_group="{group}"}} {value}\n' for group in GROUPS]
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.end_headers()
            self.wfile.write("".join(lines).encode())

        def log_message(self, *_: object) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Page)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _stream(spark: Any, url: str, start_ms: int, folder: Path) -> Any:
    options = {"url": url, "match": GROUP_WRITABLE, "start_ms": str(start_ms), "lag_seconds": str(LAG_SECONDS)}
    samples = spark.readStream.format(NAME).options(**options).load()
    return (
        samples.writeStream.format("parquet")
        .option("path", str(folder / "samples"))
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(processingTime="1 second")
        .start()
    )


def _run_batches(start: Callable[[], Any], count: int) -> tuple[int, int]:
    """Run until `count` batches had samples, stop; the batches it made and the end of the last one.

    Spark gives a Python process ten seconds to come up. One that was slower on a busy machine has read nothing: once more.
    """
    batches: dict[int, Any] = {}
    deadline = time.monotonic() + DEADLINE_SECONDS
    query = start()
    try:
        while len(batches) < count:
            assert time.monotonic() < deadline, f"{len(batches)} batches: {query.status} {query.exception()}"
            if not query.isActive:
                assert "failed to connect back" in str(query.exception()), str(query.exception())
                query = start()
            # Spark forgets old progress: what had samples is kept here.
            batches |= {one["batchId"]: one for one in query.recentProgress if one["numInputRows"] > 0}
            time.sleep(0.1)
    finally:
        query.stop()
    end = batches[max(batches)]["sources"][0]["endOffset"]
    return len(batches), int((json.loads(end) if isinstance(end, str) else end)["end_ms"])


def _scraped(server: Prometheus, start_ms: int, end_ms: int) -> list[tuple[str, int, float]]:
    query = f"{GROUP_WRITABLE}[{end_ms - start_ms}ms]"
    found = server.api("query", query=query, time=f"{end_ms / 1000:.3f}")["result"]
    return sorted(
        (series_text(GROUP_WRITABLE, {k: v for k, v in one["metric"].items() if k != "__name__"}), at_ms, float(value))
        for one in found
        for at, value in one["values"]
        if start_ms <= (at_ms := round(at * 1000)) < end_ms
    )


@pytest.mark.real("java", "prometheus")
@pytest.mark.timeout(900)
def test_each_sample_once_over_batches_and_a_restart(spark: Any, tmp_path: Path) -> None:
    spark.dataSource.register(PrometheusSource)
    with _page() as target:
        server = start_prometheus(tmp_path / "prometheus", targets=[target], scrape_interval="500ms")
        try:
            start_ms = time.time_ns() // 1_000_000
            start = partial(_stream, spark, server.url, start_ms, tmp_path)
            first, until_ms = _run_batches(start, 3)
            # The checkpoint decides where it goes on, not the option.
            second, end_ms = _run_batches(start, 2)
            found = sorted(
                (row["series"], row["ts_ms"], row["value"])
                for row in spark.read.parquet(str(tmp_path / "samples")).collect()
            )
            assert first >= 3
            assert second >= 2
            assert start_ms < until_ms < end_ms
            # What a batch that was being stopped had written already may lie behind the last end we were told of.
            latest_ms = max(end_ms, max(at_ms for _, at_ms, _ in found) + 1)
            assert found == _scraped(server, start_ms, latest_ms)
            assert {name.partition('broker_group="')[2].partition('"')[0] for name, *_ in found} == set(GROUPS)
        finally:
            server.process.stop()
