"""Objects that are read by name: a watch needs the right to list every Secret, and brings every heartbeat of every node.

Names are read when they first come up, every few seconds while they are missing, and from time to time. The last value stays in
force.

An API that is away is tried with one name, with backoff. An API that answers 500 may be unable to give that one object (a
Secret that it cannot decrypt): such names are retried one at a time, and no other name, and no failover, waits for them
(`tests/simulate/test_look_ups.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

import structlog

from brokergroup_operator.controller.peers.services import Patience
from brokergroup_operator.kube.errors import ApiError, ApiUnavailableError, Backoff

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from brokergroup_operator.kube.reflector import ObjectKey

Value = TypeVar("Value")
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.5, 5.0
# The answer about one object; 429, 503 and 504 are the server's about itself.
CANNOT_GIVE = 500

log = structlog.get_logger(__name__)


@dataclass(kw_only=True, eq=False)
class LookUps(Generic[Value]):
    """Values by `(namespace, name)`. `read` returns None for what is missing and raises `ApiError` if it cannot tell."""

    wanted: Callable[[], Iterable[ObjectKey]]
    read: Callable[[ObjectKey], Awaitable[Value | None]]
    on_change: Callable[[ObjectKey], None]
    refresh_seconds: float
    missing_seconds: float

    def __post_init__(self) -> None:
        self._values: dict[ObjectKey, Value | None] = {}
        # In the order in which they are read.
        self._asked: dict[ObjectKey, None] = {}
        # Those that the API could not give, the longest waiting first, and when the next of them is tried.
        self._failed: dict[ObjectKey, None] = {}
        self._patience = Patience(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)
        self._wake = asyncio.Event()

    def get(self, key: ObjectKey) -> Value | None:
        return self._values.get(key)

    def look_again(self, key: ObjectKey) -> None:
        self._asked[key] = None
        self._wake.set()

    def is_known(self, key: ObjectKey) -> bool:
        """Whether an answer about it was ever received."""
        return key in self._values

    async def refresh(self) -> ApiUnavailableError | None:
        """Read every wanted one now, and forget the others. Return the error of an API that is away."""
        wanted = set(self.wanted())
        for known in (self._values, self._failed):
            for key in known.keys() - wanted:
                del known[key]
        self._ask(wanted)
        return await self._read_due()

    async def run(self) -> None:
        """Read what is due, for ever; cancel the task to stop."""
        clock = asyncio.get_running_loop().time
        refresh_at_seconds, missing_at_seconds = clock() + self.refresh_seconds, clock() + self.missing_seconds
        backoff = Backoff(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)
        while True:
            if clock() >= missing_at_seconds:
                missing_at_seconds = clock() + self.missing_seconds
                self._ask({key for key in self.wanted() if self._values.get(key) is None})
            if clock() >= refresh_at_seconds:
                refresh_at_seconds = clock() + self.refresh_seconds
                away = await self.refresh()
            else:
                away = await self._read_due()
            if away is not None:
                await asyncio.sleep(backoff.next_seconds(away.retry_after_seconds))
                continue
            backoff.reset()
            next_seconds = min(missing_at_seconds, self._patience.until_seconds if self._failed else math.inf)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, next_seconds - clock())):
                    await self._wake.wait()
            self._wake.clear()

    def _ask(self, keys: set[ObjectKey]) -> None:
        self._asked |= dict.fromkeys(sorted(keys - self._failed.keys()))

    async def _read_due(self) -> ApiUnavailableError | None:
        """Read all that are asked for, then those that failed, if their time has come. Return the error of an API that is away."""
        while self._asked or (self._failed and self._patience.is_over):
            queue = self._asked or self._failed
            key = next(iter(queue))
            del queue[key]
            error = await self._try(key)
            if error is None:
                self._failed.pop(key, None)
                if queue is self._failed:
                    self._patience.answered()
            elif error.status == CANNOT_GIVE:
                if queue is self._failed or not self._failed:
                    self._patience.failed()
                self._failed[key] = None
            else:
                queue[key] = None  # the others first, the next time
                return error
        return None

    async def _try(self, key: ObjectKey) -> ApiUnavailableError | None:
        """Read one; return the error of an API that is away or cannot give it."""
        try:
            value = await self.read(key)
        except ApiError as error:
            log.warning("not read, what was known of it stays in force", what="/".join(key), error=str(error))
            return error if isinstance(error, ApiUnavailableError) else None
        changed = key not in self._values or self._values[key] != value
        self._values[key] = value
        if changed:
            self.on_change(key)
        return None
