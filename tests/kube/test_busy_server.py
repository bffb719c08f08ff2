"""A server under load: its Retry-After, the bound on requests under way, and lists in pages."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from aiohttp import web

from brokergroup_operator.kube import ApiUnavailableError, KubernetesApi
from brokergroup_operator.kube.client import MOST_READS_IN_FLIGHT, PAGE_OBJECTS
from brokergroup_operator.kube.reflector import Reflector
from brokergroup_operator.kube.resources import CONFIG_MAPS
from brokergroup_operator.records.kubernetes import KubernetesRecordStore
from brokergroup_operator.records.store import GroupKey
from tests.kube.serving import serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class BusyServer:
    """Counts requests; refuses the first ``refusals`` of them; holds the others until it is released."""

    def __init__(self) -> None:
        self.refusals = 0
        self.asked_at_seconds: list[float] = []
        self.under_way = self.most_under_way = 0
        self.released = asyncio.Event()
        self.released.set()
        self.queries: list[dict[str, str]] = []
        self.url = ""

    async def answer(self, request: web.Request) -> web.Response:
        self.asked_at_seconds.append(asyncio.get_running_loop().time())
        self.queries.append(dict(request.query))
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            await self.released.wait()
        finally:
            self.under_way -= 1
        if len(self.asked_at_seconds) <= self.refusals:
            return web.json_response({"kind": "Status", "message": "busy"}, status=429, headers={"Retry-After": "1"})
        if "limit" in request.query:
            start = int(request.query.get("continue", "0"))
            names = [f"m{number}" for number in range(start, min(start + int(request.query["limit"]), 600))]
            metadata = {"resourceVersion": "7"} | ({"continue": str(start + len(names))} if names[-1] != "m599" else {})
            items = [
                {"metadata": {"namespace": "n", "name": name, "uid": name, "resourceVersion": "1"}} for name in names
            ]
            return web.json_response({"metadata": metadata, "items": items})
        return web.json_response({"kind": "Status", "reason": "NotFound", "message": "no"}, status=404)


@pytest.fixture
async def busy() -> AsyncIterator[BusyServer]:
    busy = BusyServer()
    async with serving(busy.answer) as busy.url:
        yield busy


async def test_a_server_that_wants_to_be_left_alone_says_for_how_long(busy: BusyServer) -> None:
    busy.refusals = 1
    async with KubernetesApi.from_url(busy.url) as api:
        with pytest.raises(ApiUnavailableError) as refused:
            await api.get(CONFIG_MAPS, "a", namespace="n")
    assert refused.value.retry_after_seconds == 1.0


async def test_a_record_is_asked_for_again_when_the_server_wants_it(busy: BusyServer) -> None:
    """The client had retried every 20 ms, regardless of Retry-After."""
    busy.refusals = 1
    async with KubernetesApi.from_url(busy.url) as api:
        assert await KubernetesRecordStore(api).read(GroupKey("n", "a"), deadline_seconds=60.0) is None
    first_seconds, second_seconds = busy.asked_at_seconds
    assert second_seconds - first_seconds >= 1.0


async def test_requests_under_way_are_bounded(busy: BusyServer) -> None:
    busy.released.clear()
    async with KubernetesApi.from_url(busy.url) as api:
        asking = [
            asyncio.create_task(api.get(CONFIG_MAPS, f"m{number}", namespace="n", timeout_seconds=60.0))
            for number in range(3 * MOST_READS_IN_FLIGHT)
        ]
        while busy.under_way < MOST_READS_IN_FLIGHT:  # noqa: ASYNC110 - what the server sees is what is waited for
            await asyncio.sleep(0.01)
        with pytest.raises(ApiUnavailableError, match="not sent, too many requests were under way"):
            await api.get(CONFIG_MAPS, "late", namespace="n", timeout_seconds=0.1)
        busy.released.set()
        await asyncio.gather(*asking, return_exceptions=True)
    assert len(busy.asked_at_seconds) == 3 * MOST_READS_IN_FLIGHT
    assert busy.most_under_way == MOST_READS_IN_FLIGHT


async def test_a_list_comes_in_pages_and_is_taken_in_whole(busy: BusyServer) -> None:
    async with KubernetesApi.from_url(busy.url) as api:
        listed = await api.list(CONFIG_MAPS)
        assert (len(listed.items), listed.resource_version) == (600, "7")
        assert [query["limit"] for query in busy.queries] == [str(PAGE_OBJECTS)] * 3
        reflector = Reflector(api, CONFIG_MAPS)
        running = asyncio.create_task(reflector.run())
        await reflector.wait_synced(60.0)
        assert len(reflector.objects) == 600
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
