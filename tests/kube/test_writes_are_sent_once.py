"""A write without an answer is unknown, and this client never sends one twice.

The server here is a bare socket: it answers the first request and then, on the same kept-alive connection, reads the next
one and hangs up. That is what an API server does that dies after its commit, and where aiohttp would quietly try again.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from brokergroup_operator.kube import ApiUnavailableError, KubernetesApi, OutcomeUnknownError
from brokergroup_operator.kube.resources import CONFIG_MAPS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

OBJECT = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "namespace": "n", "resourceVersion": "1"}}
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"


class HangsUpOnTheSecondRequest:
    def __init__(self) -> None:
        self.requests: list[str] = []
        self.serving: set[asyncio.Task[None] | None] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.serving.add(asyncio.current_task())
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                lengths = [
                    line.split(":")[1] for line in head.lower().splitlines() if line.startswith("content-length:")
                ]
                await reader.readexactly(int(lengths[0]) if lengths else 0)
                self.requests.append(head.split("\r\n")[0])
                if len(self.requests) == 2:
                    return
                writer.write(ANSWER)
                await writer.drain()
        except asyncio.IncompleteReadError:
            pass
        finally:
            writer.close()
            await writer.wait_closed()


@asynccontextmanager
async def hanging_up() -> AsyncIterator[tuple[HangsUpOnTheSecondRequest, KubernetesApi]]:
    behaviour = HangsUpOnTheSecondRequest()
    server = await asyncio.start_server(behaviour.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server:
        async with KubernetesApi.from_url(f"http://127.0.0.1:{port}") as api:
            yield behaviour, api
        await asyncio.gather(*(task for task in behaviour.serving if task is not None))


WRITES = {
    "replace": lambda api: api.replace(CONFIG_MAPS, OBJECT),
    "delete": lambda api: api.delete(CONFIG_MAPS, "a", namespace="n"),
    "create": lambda api: api.create(CONFIG_MAPS, OBJECT),
    "patch": lambda api: api.patch(CONFIG_MAPS, "a", {"data": {}}, namespace="n"),
}


@pytest.mark.parametrize("verb", WRITES)
async def test_a_write_on_a_dying_connection_is_unknown_and_not_repeated(verb: str) -> None:
    async with hanging_up() as (server, api):
        await api.get(CONFIG_MAPS, "a", namespace="n")
        with pytest.raises(OutcomeUnknownError, match="may or may not"):
            await WRITES[verb](api)
        assert len(server.requests) == 2


async def test_a_read_on_a_dying_connection_is_merely_unavailable() -> None:
    async with hanging_up() as (_, api):
        await api.get(CONFIG_MAPS, "a", namespace="n")
        with pytest.raises(ApiUnavailableError):
            await api.get(CONFIG_MAPS, "a", namespace="n")


async def test_a_write_that_never_left_is_unavailable_not_unknown() -> None:
    async with hanging_up() as (_, api):
        url = api.url
    async with KubernetesApi.from_url(url) as nobody_there:
        with pytest.raises(ApiUnavailableError):
            await nobody_there.replace(CONFIG_MAPS, OBJECT)


async def test_a_write_that_is_not_answered_in_time_is_unknown() -> None:
    asked, ended = asyncio.Event(), asyncio.Event()

    async def never_answers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        asked.set()
        await reader.read()
        writer.close()
        await writer.wait_closed()
        ended.set()

    server = await asyncio.start_server(never_answers, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server:
        async with KubernetesApi.from_url(f"http://127.0.0.1:{port}") as api:
            with pytest.raises(OutcomeUnknownError):
                await api.replace(CONFIG_MAPS, OBJECT, timeout_seconds=0.2)
            assert asked.is_set()
        async with asyncio.timeout(10):
            await ended.wait()
