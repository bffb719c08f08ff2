"""Scrapes the operator's metrics at a fixed interval and keeps them as a Prometheus would, for `make sla-report`.

A sample's time is the begin of its scrape, as in Prometheus. A failed scrape leaves no samples, so a gap in the export is a time
when the operator did not answer.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

import aiohttp
import structlog
from prometheus_client.parser import text_string_to_metric_families

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from pathlib import Path

log = structlog.get_logger(__name__)

INTERVAL_SECONDS: Final = 1.0
# How often the file is rewritten, so that a report can be made while the demo runs.
_WRITE_EVERY_SCRAPES: Final = 15
# The scrapes of four hours, some twenty MiB; a demo that runs longer keeps the last ones.
_MOST_SCRAPES: Final = 14_400
_PREFIX: Final = "brokergroup_"
JOB: Final = "brokergroup-demo"

Series = tuple[tuple[str, str], ...]


class Scraper:
    """Scrapes `endpoint` (host:port); `write` puts everything kept into a file of Prometheus's own answer form."""

    def __init__(self, endpoint: str, target: Path, *, interval_seconds: float = INTERVAL_SECONDS) -> None:
        self._endpoint = endpoint
        self._target = target
        self._interval_seconds = interval_seconds
        self._scrapes: deque[tuple[float, Mapping[Series, float]]] = deque(maxlen=_MOST_SCRAPES)

    async def run(self) -> None:
        """Scrape until cancelled; write every 15 scrapes."""
        begun, number = time.monotonic(), 0
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=self._interval_seconds)) as session:
            while True:
                await self._scrape(session)
                # On a grid: a slow scrape does not move later ones; those that it overlaps are left out.
                number = max(number + 1, int((time.monotonic() - begun) / self._interval_seconds) + 1)
                if len(self._scrapes) % _WRITE_EVERY_SCRAPES == 0 and self._scrapes:
                    await asyncio.to_thread(self.write)
                await asyncio.sleep(begun + number * self._interval_seconds - time.monotonic())

    async def _scrape(self, session: aiohttp.ClientSession) -> None:
        at_seconds = time.time()
        try:
            async with session.get(f"http://{self._endpoint}/metrics") as answer:
                answer.raise_for_status()
                page = await answer.text()
        except (aiohttp.ClientError, TimeoutError) as error:
            log.info("scrape failed", endpoint=self._endpoint, error=str(error) or repr(error))
            return
        self._scrapes.append((at_seconds, samples_of(page, instance=self._endpoint)))

    def write(self) -> None:
        """Write all samples as `{"status": "success", "data": {"resultType": "matrix", "result": [...]}}`, atomically."""
        values: dict[Series, list[list[Any]]] = {}
        for at_seconds, samples in list(self._scrapes):
            for series, value in samples.items():
                values.setdefault(series, []).append([round(at_seconds, 3), repr(value)])
        result = [{"metric": dict(series), "values": found} for series, found in values.items()]
        temporary = self._target.with_suffix(".new")
        temporary.write_text(json.dumps({"status": "success", "data": {"resultType": "matrix", "result": result}}))
        temporary.replace(self._target)


def samples_of(page: str, *, instance: str) -> dict[Series, float]:
    """Return the operator's own samples on a page of metrics, with the labels that a Prometheus adds."""
    ours = "\n".join(line for line in page.splitlines() if line.removeprefix("# TYPE ").startswith(_PREFIX))
    added = {"job": JOB, "instance": instance}
    return {
        tuple(sorted({"__name__": sample.name, **sample.labels, **added}.items())): sample.value
        for family in text_string_to_metric_families(ours + "\n")
        for sample in family.samples
    }


@asynccontextmanager
async def scraping(endpoint: str, target: Path) -> AsyncIterator[None]:
    """Scrape for the length of a block, and write the export to `target` however it ends."""
    scraper = Scraper(endpoint, target)
    task = asyncio.create_task(scraper.run())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        scraper.write()
