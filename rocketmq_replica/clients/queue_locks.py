"""Which client of a group may consume which queue in order: locks that expire. Pure.

Ordered consumers ask again every 20 seconds (41) and give back what they leave (42). As in Java the locks are the master's
memory only: after a failover consumers lock anew, and two may hold one queue for as long as the older one does not ask again.
"""

from __future__ import annotations

from dataclasses import dataclass

EXPIRY_SECONDS = 60.0
# Whoever can reach the port can ask for locks of made-up groups and queues; they must not fill the memory.
MOST_LOCKS = 100_000


@dataclass(frozen=True)
class _Lock:
    client_id: str
    at_seconds: float


class QueueLocks:
    """Locks by group, topic and queue id."""

    def __init__(self) -> None:
        """Nothing is locked."""
        self._locks: dict[tuple[str, str, int], _Lock] = {}

    def lock(self, group: str, topic: str, queue_id: int, client_id: str, *, now_seconds: float) -> bool:
        """True if the queue is the client's now."""
        key = (group, topic, queue_id)
        held = self._locks.get(key)
        if held is not None and held.client_id != client_id and now_seconds - held.at_seconds <= EXPIRY_SECONDS:
            return False
        if held is None and len(self._locks) >= MOST_LOCKS:
            self._forget_expired(now_seconds)
            if len(self._locks) >= MOST_LOCKS:
                return False
        self._locks[key] = _Lock(client_id, now_seconds)
        return True

    def _forget_expired(self, now_seconds: float) -> None:
        self._locks = {
            key: held for key, held in self._locks.items() if now_seconds - held.at_seconds <= EXPIRY_SECONDS
        }

    def unlock(self, group: str, topic: str, queue_id: int, client_id: str) -> None:
        """The client leaves the queue; nothing happens if it is somebody else's."""
        key = (group, topic, queue_id)
        held = self._locks.get(key)
        if held is not None and held.client_id == client_id:
            del self._locks[key]
