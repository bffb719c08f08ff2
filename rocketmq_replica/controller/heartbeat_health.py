"""When each controller was last sent a heartbeat, and why not since. Pure.

A heartbeat has no answer (one-way), so this is what was handed to the connection, not what a controller heard.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

NOT_TRIED = "none has been tried yet"


@dataclass(frozen=True)
class HeartbeatFact:
    """One controller: how long ago its last heartbeat left, or since when one is due; ``problem`` says why none has left since."""

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
    """One line for each controller that is to be sent heartbeats."""

    def __init__(self, addresses: Iterable[str], *, now_seconds: float) -> None:
        """A heartbeat is due to all of these from now on."""
        self._contacts: dict[str, _Contact] = {}
        self.due(addresses, now_seconds=now_seconds)

    def due(self, addresses: Iterable[str], *, now_seconds: float) -> None:
        """These are the controllers now; others are forgotten."""
        self._contacts = {address: self._contacts.get(address) or _Contact(now_seconds) for address in addresses}

    def sent(self, address: str, *, now_seconds: float) -> None:
        """A heartbeat was handed to the connection."""
        if address in self._contacts:
            self._contacts[address] = _Contact(now_seconds, ever_sent=True, problem="")

    def failed(self, address: str, problem: str) -> None:
        """A heartbeat could not be sent."""
        if address in self._contacts:
            self._contacts[address].problem = problem

    def facts(self, *, now_seconds: float) -> tuple[HeartbeatFact, ...]:
        """Every controller, in the order of their addresses."""
        return tuple(
            HeartbeatFact(address, max(now_seconds - contact.since_seconds, 0.0), contact.ever_sent, contact.problem)
            for address, contact in sorted(self._contacts.items())
        )
