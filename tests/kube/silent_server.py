"""Run in a network namespace of its own: an API server's machine goes without a word, beside a watch and a pooled connection.

The last line is JSON: how the watch ended (null: not within its 30 s), and how many of the connections are left then.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
from contextlib import aclosing
from typing import TYPE_CHECKING, cast

from brokergroup_operator.kube.client import KubernetesApi
from brokergroup_operator.kube.errors import ApiError
from brokergroup_operator.kube.resources import CONFIG_MAPS

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from brokergroup_operator.kube.client import WatchEvent

# Without probes a watch of 60 s ends after 65.
WATCHED_SECONDS = 30.0
# Each after 0.1 s: aiohttp closes a connection that was not used for 15 s.
POOLED_LOOKS = 100
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
OBJECT = b'{"metadata": {"name": "a", "namespace": "n", "resourceVersion": "2"}}'
EVENT = b'{"type": "MODIFIED", "object": %s}\n' % OBJECT


callers: list[int] = []


class Server(asyncio.Protocol):
    """Answers each request with the object, and a watch with one event. `callers` gets each client's port."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        callers.append(transport.get_extra_info("peername")[1])
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        if b"watch=true" in data:
            self._transport.write(b"%sTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n" % (HEAD, len(EVENT), EVENT))
        else:
            self._transport.write(b"%sContent-Length: %d\r\n\r\n%s" % (HEAD, len(OBJECT), OBJECT))


def forget(ports: list[int]) -> None:
    """Drop every packet of the connections from these ports, both ways."""
    named, rule = ", ".join(map(str, ports)), "add rule inet forgets in tcp"
    chain = "add table inet forgets; add chain inet forgets in { type filter hook input priority 0; }"
    subprocess.run(["nft", f"{chain}; {rule} sport {{ {named} }} drop; {rule} dport {{ {named} }} drop"], check=True)


async def main() -> None:
    listening = await asyncio.get_running_loop().create_server(Server, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    async with KubernetesApi.from_url(f"http://127.0.0.1:{port}") as api:
        async with aclosing(api.watch(CONFIG_MAPS, namespace="n", resource_version="1")) as watch:
            await anext(watch)
            await api.get(CONFIG_MAPS, "a", namespace="n")
            forget(callers)
            ended = await how_it_ends(watch)
        left = await still_open(port)
    print(json.dumps({"ended": ended, "left": left}))


async def how_it_ends(watch: AsyncGenerator[WatchEvent]) -> str | None:
    try:
        async with asyncio.timeout(WATCHED_SECONDS):
            await anext(watch)
    except ApiError as error:
        return str(error)
    except TimeoutError:
        return None
    raise AssertionError("an event of a connection whose packets are dropped")


async def still_open(port: int) -> int:
    """Return how many connections to this port are left; the pooled one's probes began a little later than the watch's."""
    for _ in range(POOLED_LOOKS):
        if not connections_to(port):
            return 0
        await asyncio.sleep(0.1)
    return connections_to(port)


def connections_to(port: int) -> int:
    listed = ["ss", "-Htn", "state", "established", f"dport = :{port}"]
    return len(subprocess.run(listed, check=True, capture_output=True).stdout.splitlines())


if __name__ == "__main__":
    asyncio.run(main())
