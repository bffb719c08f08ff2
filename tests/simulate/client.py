"""A producer that uses no routes: it sends to every broker, and counts each broker's answers."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from typing import TYPE_CHECKING, Any

from tests.simulate.broker import CLIENT_PORT
from tests.simulate.lines import LineConnection

if TYPE_CHECKING:
    from tests.simulate.world import World

SEND_SECONDS = 0.04
REFUSED_SECONDS = 0.3
LOOK_SECONDS = 0.2
# The backlog in the sockets of a stopped broker.
MOST_UNANSWERED = 60


class Client:
    """A producer; `acknowledged` has the messages that must not be lost."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._numbers = itertools.count(1)
        self.acknowledged: list[int] = []

    async def run(self) -> None:
        """Run one sender for each broker that exists."""
        senders: dict[str, asyncio.Task[None]] = {}
        while True:
            for pod in list(self._world.kubelet.pods.values()):
                if pod.process and pod.process not in senders:
                    senders[pod.process] = asyncio.create_task(self._send_to(pod.host))
            for process in [one for one, task in senders.items() if task.done()]:
                del senders[process]
            await asyncio.sleep(LOOK_SECONDS)

    async def _send_to(self, host: str) -> None:
        unanswered: set[int] = set()
        refused = False

        def heard(_: LineConnection, line: dict[str, Any]) -> None:
            nonlocal refused
            unanswered.discard(line["message"])
            refused = not line["stored"]
            if line["stored"]:
                self.acknowledged.append(line["message"])

        loop = asyncio.get_running_loop()
        connection: LineConnection | None = None
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(1.0):
                _, connection = await loop.create_connection(
                    lambda: LineConnection(heard, lambda _: None), host, CLIENT_PORT
                )
        while connection is not None and connection.is_open:
            if len(unanswered) < MOST_UNANSWERED:
                message = next(self._numbers)
                unanswered.add(message)
                connection.send(send=message)
            await asyncio.sleep(REFUSED_SECONDS if refused else SEND_SECONDS)
