"""A plane's connection to the Kubernetes API: late or lost answers, lost writes, stopped watches, an API that is down.

The API's own process carries out requests: a write lands even if its client has given up or died.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from brokergroup_operator.kube.client import DEFAULT_TIMEOUT_SECONDS
from brokergroup_operator.kube.errors import (
    ApiUnavailableError,
    GoneError,
    OutcomeUnknownError,
    error_from_status,
)
from tests.support.memory_api import MemoryApi

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from brokergroup_operator.kube.client import WatchEvent
    from brokergroup_operator.kube.resources import Resource
    from tests.simulate.world import World
    from tests.support.memory_api import MemoryApiServer

WATCH_POLL_SECONDS = 0.05
# The client of the current write: the commit's listener reads it.
WRITER: contextvars.ContextVar[str] = contextvars.ContextVar("writer", default="")


@dataclass
class ApiTrouble:
    """The API's current faults for one plane. Each number counts the next record writes that the fault hits."""

    down: bool = False
    watches_stand: bool = False
    delay_seconds: float = 0.0
    answers_lost: int = 0
    requests_lost: int = 0
    conflicts: int = 0
    too_many: int = 0


class PlaneApi(MemoryApi):
    """The client of one plane."""

    def __init__(self, server: MemoryApiServer, world: World, node: str, trouble: ApiTrouble) -> None:
        super().__init__(server)
        self._world, self._node, self._trouble = world, node, trouble

    async def _request(
        self, method: str, path: str, *, timeout_seconds: float | None, **options: Any
    ) -> dict[str, Any]:
        timeout_seconds = DEFAULT_TIMEOUT_SECONDS if timeout_seconds is None else timeout_seconds
        trouble, what = self._trouble, f"{method} {path.rpartition('/namespaces/')[2]}"
        is_write = method != "GET"
        unknown = OutcomeUnknownError if is_write else ApiUnavailableError
        if trouble.down:
            await asyncio.sleep(self._world.draw(0.001, 0.005))
            raise ApiUnavailableError(f"{what}: connection refused")
        counted = is_write and "brokergroupstates" in path
        if is_write:
            await self._world.effect(f"api {method}", what, sender=self._node, receiver="api")
        if counted and trouble.conflicts > 0:
            trouble.conflicts -= 1
            self._world.story.tell(f"api answers {self._node} 409")
            raise error_from_status(what, 409, {"reason": "Conflict"}, write=True)
        if counted and trouble.too_many > 0:
            trouble.too_many -= 1
            raise error_from_status(what, 429, {"reason": "TooManyRequests"}, write=True)
        if counted and trouble.requests_lost > 0:
            trouble.requests_lost -= 1
            self._world.story.tell(f"api never gets {what} of {self._node}")
            await asyncio.sleep(min(timeout_seconds, 0.3))
            raise unknown(f"{what}: connection lost")
        done = self._world.loop.spawn("api/1", self._serve(method, path, trouble.delay_seconds, options))
        await asyncio.wait([done], timeout=timeout_seconds)
        if not done.done():
            self._world.story.tell(f"api has not answered {self._node} in time: {what}")
            done.add_done_callback(lambda late: late.cancelled() or late.exception())
            raise unknown(f"{what}: no answer within {timeout_seconds} s")
        if counted and trouble.answers_lost > 0:
            trouble.answers_lost -= 1
            done.exception()
            self._world.story.tell(f"api's answer to {what} of {self._node} is lost")
            raise unknown(f"{what}: the answer was lost")
        answer: dict[str, Any] = done.result()
        if is_write:
            await self._world.effect_done(f"api {method}", sender=self._node, receiver="api")
        return answer

    async def _serve(self, method: str, path: str, delay_seconds: float, options: dict[str, Any]) -> dict[str, Any]:
        WRITER.set(self._node)
        await asyncio.sleep(self._world.draw(0.001, 0.006) + self._world.draw(0.0, 2 * delay_seconds))
        return await super()._request(method, path, timeout_seconds=0.0, **options)

    async def watch(self, resource: Resource, **options: Any) -> AsyncGenerator[WatchEvent]:
        if self._trouble.down:
            raise ApiUnavailableError(f"WATCH {resource.plural}: connection refused")
        async with contextlib.aclosing(super().watch(resource, **options)) as events:
            async for event in events:
                while self._trouble.watches_stand:  # noqa: ASYNC110 - another process of the simulation clears it
                    await asyncio.sleep(WATCH_POLL_SECONDS)
                if self._trouble.down:
                    raise GoneError(f"WATCH {resource.plural}: the API was started again", status=410)
                yield event
