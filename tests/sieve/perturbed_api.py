"""The operator's client of the Kubernetes API, in memory, with one fault at one exact place.

A run counts the operator's actions after a mark: its reads, its writes, and the events of its watches. A
`Perturbation` names one of them and its fault. Undisturbed, a run has the same actions in the same order (the
loop's time is virtual and the API in the same process), so a number identifies each of them.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol

from brokergroup_operator.kube.errors import GoneError, OutcomeUnknownError, error_from_status
from tests.support.memory_api import MemoryApi, MemoryApiServer, MemoryRequest

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from brokergroup_operator.kube.client import WatchEvent
    from brokergroup_operator.kube.resources import Resource

# A stale answer is this many commits behind.
STALE_COMMITS = 6


class Fault(Enum):
    """A fault and its target."""

    KILLED_BEFORE_WRITE = "write: the operator dies before it"
    KILLED_AFTER_WRITE = "write: done, and the operator dies"
    REPLY_LOST = "write: done, and its answer lost"
    CONFLICT = "write: 409"
    TOO_MANY_REQUESTS = "write: 429"
    SERVER_ERROR = "write: 500, not done"
    STALE_READ = "read: served from the past"
    READ_GONE = "read: 410"
    READ_TOO_MANY_REQUESTS = "read: 429"
    READ_SERVER_ERROR = "read: 500"
    EVENT_DROPPED = "event: dropped"
    EVENT_DOUBLED = "event: doubled"
    EVENT_LATE = "event: handed over after the next one"
    WATCH_EXPIRED = "event: 410 in its place"

    @property
    def target(self) -> str:
        """Return `write`, `read` or `event`."""
        return self.value.partition(":")[0]


STATUS_OF = {
    Fault.CONFLICT: (409, "Conflict"),
    Fault.TOO_MANY_REQUESTS: (429, "TooManyRequests"),
    Fault.SERVER_ERROR: (500, "InternalError"),
    Fault.READ_GONE: (410, "Expired"),
    Fault.READ_TOO_MANY_REQUESTS: (429, "TooManyRequests"),
    Fault.READ_SERVER_ERROR: (500, "InternalError"),
}


class Plan(Protocol):
    """The faults of a run."""

    def fault_at(self, target: str, number: int) -> Fault | None:
        """Return the fault of the n-th read, write or event after the mark."""


@dataclass(frozen=True)
class Perturbation:
    """A fault at the n-th action of its target (from 0) after the mark."""

    fault: Fault
    number: int

    def fault_at(self, target: str, number: int) -> Fault | None:
        """Return the fault at its place."""
        return self.fault if (self.fault.target, self.number) == (target, number) else None

    def __str__(self) -> str:
        return f"{self.fault.value} (number {self.number})"


@dataclass
class Counts:
    """The operator's actions since the mark, in order."""

    write: list[str] = field(default_factory=list)
    read: list[str] = field(default_factory=list)
    event: list[str] = field(default_factory=list)


class PerturbedApi(MemoryApi):
    """The operator's client: counts from `mark` on, and applies the plan's faults. `kill` ends the operator."""

    def __init__(self, server: MemoryApiServer, kill: Callable[[], None], is_dead: Callable[[], bool]) -> None:
        super().__init__(server)
        self.counts: Counts | None = None
        self.plan: Plan | None = None
        self._kill = kill
        self._is_dead = is_dead

    def _fault(self, target: str, what: str) -> Fault | None:
        """Count one action, and return its fault."""
        if self.counts is None:
            return None
        done: list[str] = getattr(self.counts, target)
        done.append(what)
        return None if self.plan is None else self.plan.fault_at(target, len(done) - 1)

    async def _request(self, method: str, path: str, **options: Any) -> dict[str, Any]:
        if self._is_dead():
            raise OutcomeUnknownError(f"{method} {path}: the client was killed")
        if path.endswith("/events"):  # Events are best effort, and differ with the faults
            return await super()._request(method, path, **options)
        fault = self._fault("read" if method == "GET" else "write", f"{method} {path}")
        if fault in STATUS_OF:
            status, reason = STATUS_OF[fault]
            raise error_from_status(f"{method} {path}", status, {"reason": reason}, write=method != "GET")
        if fault is Fault.KILLED_BEFORE_WRITE:
            await self._die()
        if fault is Fault.STALE_READ:
            with self.server.past(STALE_COMMITS):
                status, decoded = await self.server.answer(
                    MemoryRequest(method, path, options.get("parameters") or {}, b"", "application/json")
                )
            if status >= 400:
                raise error_from_status(f"{method} {path}", status, decoded, write=False)
            return dict(decoded)
        answer = await super()._request(method, path, **options)
        if fault is Fault.KILLED_AFTER_WRITE:
            await self._die()
        if fault is Fault.REPLY_LOST:
            raise OutcomeUnknownError(f"{method} {path}: the answer was lost", status=None)
        return answer

    async def _die(self) -> None:
        self._kill()
        await asyncio.Event().wait()

    async def watch(self, resource: Resource, **options: Any) -> AsyncGenerator[WatchEvent]:
        late: WatchEvent | None = None
        async with contextlib.aclosing(super().watch(resource, **options)) as events:
            async for event in events:
                name = event.object["metadata"].get("name", "")
                fault = self._fault("event", f"{event.type} {resource.plural}/{name}")
                if fault is Fault.WATCH_EXPIRED:
                    raise GoneError(f"WATCH {resource.plural}: too old", status=410)
                if fault is Fault.EVENT_DROPPED:
                    continue
                if fault is Fault.EVENT_LATE:
                    late = event
                    continue
                yield event
                if fault is Fault.EVENT_DOUBLED:
                    yield event
                if late is not None:
                    yield late
                    late = None
