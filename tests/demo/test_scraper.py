"""The demo's own scrapes: the samples that Prometheus would have kept, only from answered scrapes."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

from aiohttp import web

from brokergroup_operator.demo.scraper import Scraper, samples_of

if TYPE_CHECKING:
    from pathlib import Path

PAGE = """\
# HELP brokergroup_writable Whether the group takes writes.
# TYPE brokergroup_writable gauge
brokergroup_writable{namespace="default",broker_group="a \\"b\\""} 1.0
# TYPE brokergroup_failover_phase_seconds histogram
brokergroup_failover_phase_seconds_bucket{le="0.1",phase="fenced"} 2.0
brokergroup_failover_phase_seconds_bucket{le="+Inf",phase="fenced"} 3.0
# TYPE python_gc_objects_collected_total counter
python_gc_objects_collected_total{generation="0"} 5.0
# TYPE broker_something gauge
broker_something 4.0
"""


def test_our_series_are_kept_with_the_labels_that_a_prometheus_adds() -> None:
    samples = {tuple(sorted(dict(series).items())): value for series, value in samples_of(PAGE, instance="h:1").items()}
    added = {"job": "brokergroup-demo", "instance": "h:1"}
    bucket = {"__name__": "brokergroup_failover_phase_seconds_bucket", "phase": "fenced", **added}
    writable = {"__name__": "brokergroup_writable", "namespace": "default", "broker_group": 'a "b"', **added}
    assert samples == {
        tuple(sorted(writable.items())): 1.0,
        tuple(sorted({**bucket, "le": "0.1"}.items())): 2.0,
        tuple(sorted({**bucket, "le": "+Inf"}.items())): 3.0,
    }


async def test_a_scrape_that_failed_is_a_gap_and_the_rest_keeps_its_times(tmp_path: Path) -> None:
    """Two are kept, four fail, three are kept: an answer that comes too late on a busy machine is a failure."""
    asked = 0
    failed: list[int] = []
    enough = asyncio.Event()

    async def metrics(_: web.Request) -> web.Response:
        nonlocal asked
        asked += 1
        kept = len(scraper._scrapes)
        if kept >= 5:
            enough.set()
        if kept == 2 and len(failed) < 4:
            failed.append(asked)
            return web.Response(status=503)
        return web.Response(text=f"# TYPE brokergroup_x gauge\nbrokergroup_x {asked}\n")

    app = web.Application()
    app.router.add_get("/metrics", metrics)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    target = tmp_path / "prometheus.json"
    scraper = Scraper("{}:{}".format(*runner.addresses[0]), target, interval_seconds=0.1)
    task = asyncio.create_task(scraper.run())
    await enough.wait()
    task.cancel()
    await asyncio.wait([task])
    await runner.cleanup()
    scraper.write()
    answer: dict[str, Any] = json.loads(target.read_text())
    assert answer["status"] == "success"
    assert answer["data"]["resultType"] == "matrix"
    [series] = answer["data"]["result"]
    times, values = zip(*((at, int(float(value))) for at, value in series["values"]), strict=True)
    assert values[1] < failed[0] < failed[-1] < values[2]
    assert not set(values).intersection(failed)
    assert list(times) == sorted(times)
    assert times[2] - times[1] > 0.35, "the four failed scrapes are a gap"
