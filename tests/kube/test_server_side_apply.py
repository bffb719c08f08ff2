"""Server-side apply through the official client: our deadlines, our errors, sent once, never aborted."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from aiohttp import web

from brokergroup_operator.kube.client import KubernetesApi
from brokergroup_operator.kube.errors import (
    ApiUnavailableError,
    ConflictError,
    InvalidError,
    NotLeadingError,
    OutcomeUnknownError,
)
from brokergroup_operator.kube.resources import CONFIG_MAPS
from brokergroup_operator.kube.server_side_apply import ServerSideApplier
from brokergroup_operator.reconcile.access import ClusterAccess
from kube_sandbox.api_server.server import SandboxApiServer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

OBJECT = {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "metadata": {"name": "one", "namespace": "default"},
    "data": {"a": "1"},
}


class Server:
    """An API server that answers when the test allows, and counts requests."""

    def __init__(self, server: SandboxApiServer) -> None:
        self.url = server.url
        self.sent: list[str] = []
        self.asked = asyncio.Event()
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        server.before_request = self._wait

    async def _wait(self, request: Any) -> None:
        self.sent.append(f"{request.method} {request.path}")
        self.asked.set()
        await self.may_answer.wait()


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    server = SandboxApiServer()
    await server.start()
    made = Server(server)
    yield made
    made.may_answer.set()
    await server.stop()


@pytest.fixture
async def applier_at(server: Server) -> AsyncIterator[Callable[..., ServerSideApplier]]:
    made: list[ServerSideApplier] = []

    def make(url: str = "", **options: Any) -> ServerSideApplier:
        access = ClusterAccess(url=url or server.url)
        values: dict[str, Any] = {"field_manager": "test", "timeout_seconds": 30.0} | options
        made.append(ServerSideApplier(access.official_client, **values))
        return made[-1]

    yield make
    server.may_answer.set()
    for applier in made:
        await applier.close()


async def test_what_is_applied_is_there_and_what_is_no_more_applied_goes(
    server: Server, applier_at: Callable[..., ServerSideApplier]
) -> None:
    applier = applier_at()
    await applier.apply(CONFIG_MAPS, OBJECT)
    await applier.apply(CONFIG_MAPS, OBJECT | {"data": {"b": "2"}})
    async with KubernetesApi.from_url(server.url) as api:
        found = await api.get(CONFIG_MAPS, "one", namespace="default")
    assert found["data"] == {"b": "2"}
    assert [one["manager"] for one in found["metadata"]["managedFields"]] == ["test"]


async def test_the_types_of_errors_say_what_to_do(applier_at: Callable[..., ServerSideApplier]) -> None:
    applier = applier_at()
    with pytest.raises(InvalidError):
        await applier.apply(CONFIG_MAPS, OBJECT | {"data": {"bad key": "x"}})
    await applier.apply(CONFIG_MAPS, OBJECT)
    with pytest.raises(ConflictError):
        await applier_at(field_manager="other").apply(CONFIG_MAPS, OBJECT | {"data": {"a": "2"}}, force=False)


async def test_a_server_that_is_not_there_was_sent_nothing(applier_at: Callable[..., ServerSideApplier]) -> None:
    with pytest.raises(ApiUnavailableError):
        await applier_at("http://127.0.0.1:1").apply(CONFIG_MAPS, OBJECT)


async def test_a_write_without_an_answer_is_of_unknown_outcome_and_sent_once(
    server: Server, applier_at: Callable[..., ServerSideApplier]
) -> None:
    server.may_answer.clear()
    with pytest.raises(OutcomeUnknownError):
        await applier_at(timeout_seconds=0.05).apply(CONFIG_MAPS, OBJECT)
    assert len(server.sent) <= 1


@pytest.mark.parametrize("text", ["<html>Sign in</html>", '{"error": "session expired"}', '"signed out"'])
@pytest.mark.parametrize("status", [200, 302, 404])
async def test_a_page_in_the_api_servers_place_is_no_answer(
    applier_at: Callable[..., ServerSideApplier], status: int, text: str
) -> None:
    async def page(_request: web.BaseRequest) -> web.Response:
        return web.Response(status=status, text=text, content_type="text/html" if "<" in text else "application/json")

    runner = web.ServerRunner(web.Server(page))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        with pytest.raises(OutcomeUnknownError):
            await applier_at(f"http://127.0.0.1:{runner.addresses[0][1]}").apply(CONFIG_MAPS, OBJECT)
    finally:
        await runner.cleanup()


async def test_a_process_that_does_not_lead_sends_nothing(
    server: Server, applier_at: Callable[..., ServerSideApplier]
) -> None:
    with pytest.raises(NotLeadingError):
        await applier_at(may_write_seconds=lambda: 0.0).apply(CONFIG_MAPS, OBJECT)
    assert server.sent == []


async def test_a_caller_that_is_cancelled_leaves_its_request_to_be_settled(
    server: Server, applier_at: Callable[..., ServerSideApplier]
) -> None:
    """The outcome of every write must be known before the Lease is released."""
    applier = applier_at()
    server.may_answer.clear()
    caller = asyncio.create_task(applier.apply(CONFIG_MAPS, OBJECT))
    await server.asked.wait()
    caller.cancel()
    await asyncio.gather(caller, return_exceptions=True)
    settling = asyncio.create_task(applier.settle())
    for _ in range(5):
        await asyncio.sleep(0)
    assert not settling.done()
    server.may_answer.set()
    await settling
    async with KubernetesApi.from_url(server.url) as api:
        assert (await api.get(CONFIG_MAPS, "one", namespace="default"))["data"] == {"a": "1"}
