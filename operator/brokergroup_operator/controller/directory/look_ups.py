"""Objects that are read by name instead of being watched: a Secret of credentials, the zone of a node.

A watch would need the right to list every Secret of a namespace, and would bring every heartbeat of every node. A GET of the few
names that a group mentions needs neither. Names are read when they first come up, while they are missing every few seconds, and
from time to time anyway. An API that is away changes nothing: what was read last stays in force, and one name is tried after a
pause that doubles.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Generic, TypeVar

import structlog

from brokergroup_operator.kube.backoff import Backoff
from brokergroup_operator.kube.errors import ApiError, ApiUnavailableError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from brokergroup_operator.kube.reflector import ObjectKey

Value = TypeVar("Value")
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.5, 5.0

log = structlog.get_logger(__name__)


class LookUps(Generic[Value]):
    """Values by ``(namespace, name)``. ``read`` answers None for what is missing and raises ApiError where it can't tell."""

    def __init__(
        self,
        *,
        wanted: Callable[[], Iterable[ObjectKey]],
        read: Callable[[ObjectKey], Awaitable[Value | None]],
        on_change: Callable[[ObjectKey], None],
        refresh_seconds: float,
        missing_seconds: float,
    ) -> None:
        self._wanted = wanted
        self._read = read
        self._on_change = on_change
        self._refresh_seconds = refresh_seconds
        self._missing_seconds = missing_seconds
        self._values: dict[ObjectKey, Value | None] = {}
        # In the order in which they are read.
        self._asked: dict[ObjectKey, None] = {}
        self._wake = asyncio.Event()

    def get(self, key: ObjectKey) -> Value | None:
        """What was read last; None where nothing was, or there is none."""
        return self._values.get(key)

    def look_again(self, key: ObjectKey) -> None:
        """Read this one at the next turn of ``run``."""
        self._asked[key] = None
        self._wake.set()

    def is_known(self, key: ObjectKey) -> bool:
        """Whether an answer about it was ever had."""
        return key in self._values

    async def refresh(self) -> ApiUnavailableError | None:
        """Read every wanted one now, and forget the others. Return the error of an API that is away."""
        wanted = set(self._wanted())
        for key in [key for key in self._values if key not in wanted]:
            del self._values[key]
        self._ask(wanted)
        return await self._read_asked()

    async def run(self) -> None:
        """Read what is due, for ever; cancel the task to stop."""
        clock = asyncio.get_running_loop().time
        refresh_at_seconds = clock() + self._refresh_seconds
        backoff = Backoff(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)
        while True:
            if clock() >= refresh_at_seconds:
                refresh_at_seconds = clock() + self._refresh_seconds
                away = await self.refresh()
            else:
                away = await self._read_asked()
            if away is not None:
                await asyncio.sleep(backoff.next_seconds(away.retry_after_seconds))
                continue
            backoff.reset()
            try:
                async with asyncio.timeout(self._missing_seconds):
                    await self._wake.wait()
            except TimeoutError:
                self._ask(key for key in set(self._wanted()) if self._values.get(key) is None)
            self._wake.clear()

    def _ask(self, keys: Iterable[ObjectKey]) -> None:
        self._asked |= dict.fromkeys(sorted(keys))

    async def _read_asked(self) -> ApiUnavailableError | None:
        """Read until none is left, or until the API is away: return that error."""
        while self._asked:
            key = next(iter(self._asked))
            del self._asked[key]
            try:
                value = await self._read(key)
            except ApiError as error:
                log.warning("not read, what was known of it stays in force", what="/".join(key), error=str(error))
                if isinstance(error, ApiUnavailableError):
                    # At the end: one that the API can never read, as a Secret that it cannot decrypt, is in no other's way.
                    self._asked[key] = None
                    return error
                continue
            changed = key not in self._values or self._values[key] != value
            self._values[key] = value
            if changed:
                self._on_change(key)
        return None
