"""Heartbeats (904) to every controller, independently: an unreachable controller delays no other.

Their health is logged if a controller gets none for a while, and shown by request 28. An unexpected error ends the process: a
replica that no controller hears is worse than one that restarts.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rocketmq_remoting.errors import RemotingError
from rocketmq_replica.broker import monotonic_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from rocketmq_remoting.client import RemotingClient
    from rocketmq_remoting.command import RemotingCommand
    from rocketmq_replica.broker import LiveSettings
    from rocketmq_replica.configuration import ReplicaConfiguration


logger = logging.getLogger(__name__)

_TIMEOUT_SECONDS = 1.0
_SILENT_AFTER_BEATS = 3
_SILENT_AFTER_SECONDS = 1.0
_SAY_AGAIN_SECONDS = 60.0


class Heartbeats:
    """Sends heartbeats for as long as ``run`` runs."""

    def __init__(self, client: RemotingClient, configuration: ReplicaConfiguration, live: LiveSettings) -> None:
        """The caller closes ``client``. ``live`` has the controllers' addresses."""
        self._client = client
        self._live = live
        self._every_seconds = configuration.broker_heartbeat_interval_seconds
        self._silent_after_seconds = max(_SILENT_AFTER_BEATS * self._every_seconds, _SILENT_AFTER_SECONDS)
        self._health = HeartbeatHealth(live.controller_addresses, now_seconds=monotonic_seconds())
        self._said_seconds: dict[str, float] = {}
        self._sending: dict[str, asyncio.Task[None]] = {}
        self._tasks: asyncio.TaskGroup | None = None

    async def run(self, beat: Callable[[], None]) -> None:
        """Send heartbeats until cancelled. ``beat`` calls `send` or `hold_back`."""
        try:
            async with asyncio.TaskGroup() as self._tasks:
                while True:
                    beat()
                    self._say()
                    await asyncio.sleep(self._every_seconds)
        finally:
            self._tasks = None

    def send(self, command: RemotingCommand, *, leader: str) -> None:
        """Send one to each controller, and to the leader if it has another address, without waiting."""
        addresses = {*self._live.controller_addresses, *([leader] if leader else [])}
        self._health.due(addresses, now_seconds=monotonic_seconds())
        if self._tasks is None:
            return
        for address in addresses:
            running = self._sending.get(address)
            if running is None or running.done():
                self._sending[address] = self._tasks.create_task(self._send(address, command))

    def hold_back(self, why: str) -> None:
        """Record why none is sent."""
        for address in self._live.controller_addresses:
            self._health.failed(address, why)

    def facts(self) -> tuple[HeartbeatFact, ...]:
        """Return each controller's last heartbeat, and why none was sent since."""
        return self._health.facts(now_seconds=monotonic_seconds())

    def is_silent(self, fact: HeartbeatFact) -> bool:
        """Whether the last heartbeat is older than the interval explains."""
        return fact.seconds > self._silent_after_seconds

    async def _send(self, address: str, command: RemotingCommand) -> None:
        try:
            await self._client.invoke_oneway(address, command, timeout_seconds=_TIMEOUT_SECONDS)
        except RemotingError as error:
            logger.debug("heartbeat to %s: %s", address, error)
            self._health.failed(address, str(error))
        else:
            self._health.sent(address, now_seconds=monotonic_seconds())

    def _say(self) -> None:
        """Log a controller without heartbeats once, then once a minute, and once when it gets them again."""
        now_seconds = monotonic_seconds()
        for fact in self.facts():
            said_seconds = self._said_seconds.get(fact.address)
            if not self.is_silent(fact):
                if said_seconds is not None:
                    del self._said_seconds[fact.address]
                    logger.info("heartbeats to controller %s again", fact.address)
            elif said_seconds is None or now_seconds >= said_seconds + _SAY_AGAIN_SECONDS:
                self._said_seconds[fact.address] = now_seconds
                logger.warning("%s", fact)


NOT_TRIED = "none has been tried yet"


@dataclass(frozen=True)
class HeartbeatFact:
    """One controller: seconds since its last heartbeat, or since the first one was due, and the reason why none was sent since."""

    address: str
    seconds: float
    ever_sent: bool
    problem: str

    def __str__(self) -> str:
        since = "" if self.ever_sent else ", none was ever sent"
        why = self.problem or "this process has not tried"
        return f"no heartbeat to controller {self.address} for {self.seconds:.1f} s{since}: {why}"


@dataclass
class _Contact:
    since_seconds: float
    ever_sent: bool = False
    problem: str = NOT_TRIED


class HeartbeatHealth:
    """The last heartbeat to each controller. 904 has no answer, so this is what was written, not what a controller received."""

    def __init__(self, addresses: Iterable[str], *, now_seconds: float) -> None:
        """Heartbeats to all these addresses are due from now on."""
        self._contacts: dict[str, _Contact] = {}
        self.due(addresses, now_seconds=now_seconds)

    def due(self, addresses: Iterable[str], *, now_seconds: float) -> None:
        """Set the controllers; others are removed."""
        self._contacts = {address: self._contacts.get(address) or _Contact(now_seconds) for address in addresses}

    def sent(self, address: str, *, now_seconds: float) -> None:
        """Record a heartbeat that was written to the connection."""
        if address in self._contacts:
            self._contacts[address] = _Contact(now_seconds, ever_sent=True, problem="")

    def failed(self, address: str, problem: str) -> None:
        """Record why a heartbeat could not be sent."""
        if address in self._contacts:
            self._contacts[address].problem = problem

    def facts(self, *, now_seconds: float) -> tuple[HeartbeatFact, ...]:
        """Return the facts of every controller, sorted by address."""
        return tuple(
            HeartbeatFact(address, max(now_seconds - contact.since_seconds, 0.0), contact.ever_sent, contact.problem)
            for address, contact in sorted(self._contacts.items())
        )
