"""`/healthz`: 200 while no part tells a trouble that a restart would end, else 503 and the troubles."""

from __future__ import annotations

import aiohttp

from brokergroup_operator.observe.metrics import Metrics


async def test_healthz_tells_each_trouble() -> None:
    metrics = Metrics()
    trouble: str | None = None
    metrics.health.ask(lambda: trouble)
    metrics.health.ask(lambda: None)
    await metrics.start("127.0.0.1", 0)
    try:
        async with aiohttp.ClientSession(f"http://127.0.0.1:{metrics.port}") as session:
            async with session.get("/healthz") as answer:
                assert (answer.status, await answer.text()) == (200, "ok\n")
            trouble = "no watch for 61 s: KeyError('getpwuid()')"
            async with session.get("/healthz") as answer:
                assert (answer.status, await answer.text()) == (503, trouble + "\n")
    finally:
        await metrics.stop()
