"""Objects that are read by name instead of being watched: a Secret of credentials, the zone of a node.

A watch would need the right to list every Secret of a namespace, and would bring every heartbeat of every node. A GET of the few
names that a group mentions needs neither. Names are read when they first come up, while they are missing every few seconds, and
from time to time anyway. An API that is away changes nothing: what was read last stays in force.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Generic, TypeVar

import structlog

from brokergroup_operator.kube.errors import ApiError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from brokergroup_operator.kube.reflector import ObjectKey

Value = TypeVar("Value")

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
        self._asked: set[ObjectKey] = set()
        self._wake = asyncio.Event()

    def get(self, key: ObjectKey) -> Value | None:
        """What was read last; None where nothing was, or there is none."""
        return self._values.get(key)

    def look_again(self, key: ObjectKey) -> None:
        """Read this one at the next turn of ``run``."""
        self._asked.add(key)
        self._wake.set()

    def is_known(self, key: ObjectKey) -> bool:
        """Whether an answer about it was ever had."""
        return key in self._values

    async def refresh(self) -> None:
        """Read every wanted one now, and forget the others."""
        wanted = set(self._wanted())
        for key in [key for key in self._values if key not in wanted]:
            del self._values[key]
        await self._read_all(wanted)

    async def run(self) -> None:
        """Read what is due, for ever; cancel the task to stop."""
        clock = asyncio.get_running_loop().time
        refresh_at_seconds = clock() + self._refresh_seconds
        while True:
            try:
                async with asyncio.timeout(self._missing_seconds):
                    await self._wake.wait()
            except TimeoutError:
                wanted = set(self._wanted())
                self._asked |= {key for key in wanted if self._values.get(key) is None}
            self._wake.clear()
            if clock() >= refresh_at_seconds:
                refresh_at_seconds = clock() + self._refresh_seconds
                self._asked.clear()
                await self.refresh()
            asked, self._asked = self._asked, set()
            await self._read_all(asked)

    async def _read_all(self, keys: Iterable[ObjectKey]) -> None:
        for key in sorted(keys):
            try:
                value = await self._read(key)
            except ApiError as error:
                log.warning("not read, what was known of it stays in force", what="/".join(key), error=str(error))
                continue
            changed = key not in self._values or self._values[key] != value
            self._values[key] = value
            if changed:
                self._on_change(key)
