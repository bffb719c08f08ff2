"""Members of consumer groups, and locks of queues for ordered consumption. Pure, in memory only.

Clients send a heartbeat every 30 seconds, and ordered consumers renew their locks every 20.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from rocketmq_remoting.connection import RemotingConnection

CLIENT_EXPIRY_SECONDS = 120.0
MAX_GROUPS = 10_000
"""The limit of consumer groups in all heartbeats to this process."""
MAX_SUBSCRIPTIONS_OF_A_GROUP = 1000
EXPIRY_SECONDS = 60.0
# Any peer can request locks of invented groups and queues, which must not fill the memory.
MOST_LOCKS = 100_000


@dataclass(frozen=True)
class _Lock:
    client_id: str
    at_seconds: float


class QueueLocks:
    """Locks by group, topic and queue id; they expire.

    As in Java only the master's memory has them: after a failover consumers lock again, and two may hold a queue until the older
    one renews its lock (41, 42).
    """

    def __init__(self) -> None:
        self._locks: dict[tuple[str, str, int], _Lock] = {}

    def lock(self, group: str, topic: str, queue_id: int, client_id: str, *, now_seconds: float) -> bool:
        """Lock a queue. Return whether the client has it now."""
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
        """Unlock a queue, if the client has it."""
        key = (group, topic, queue_id)
        held = self._locks.get(key)
        if held is not None and held.client_id == client_id:
            del self._locks[key]


class TooManyGroupsError(Exception):
    """A heartbeat would exceed the limit of groups."""


@dataclass(frozen=True)
class Subscription:
    """A group's subscription to a topic: messages with one of these tags; all messages if there are none."""

    tags: frozenset[str]
    expression_type: str
    version: int


@dataclass
class _Seen:
    connection: RemotingConnection
    at_seconds: float


class Clients:
    """The clients of each consumer group, by heartbeat, and the connections they use."""

    def __init__(self) -> None:
        self._groups: dict[str, dict[str, _Seen]] = {}
        self._subscriptions: dict[str, dict[str, Subscription]] = {}

    def subscribe(self, group: str, subscriptions: Mapping[str, Subscription]) -> None:
        """Set a group's subscriptions by topic; the highest version counts, as in Java."""
        known = self._subscriptions.setdefault(group, {})
        for topic, subscription in subscriptions.items():
            if topic in known or len(known) < MAX_SUBSCRIPTIONS_OF_A_GROUP:
                known[topic] = max(known.get(topic, subscription), subscription, key=lambda each: each.version)

    def subscription(self, group: str, topic: str) -> Subscription | None:
        """Return a group's subscription to a topic; None if its consumers sent none."""
        return self._subscriptions.get(group, {}).get(topic)

    def heartbeat(
        self, client_id: str, groups: Iterable[str], connection: RemotingConnection, *, now_seconds: float
    ) -> set[str]:
        """Take a client's heartbeat. Return the groups that it joined. After TooManyGroupsError nothing has changed."""
        groups = set(groups)
        new = len(groups - self._groups.keys())
        if new and len(self._groups) + new > MAX_GROUPS:
            raise TooManyGroupsError(
                f"{new} new consumer groups beside {len(self._groups)}, expected at most {MAX_GROUPS}"
            )
        joined = set()
        for group in groups:
            clients = self._groups.setdefault(group, {})
            seen = clients.get(client_id)
            if seen is None or now_seconds - seen.at_seconds > CLIENT_EXPIRY_SECONDS:
                joined.add(group)
            clients[client_id] = _Seen(connection, now_seconds)
        return joined

    def unregister(self, client_id: str, group: str) -> set[str]:
        """Remove a client from a group. Return the group if the client was in it."""
        return set() if self._groups.get(group, {}).pop(client_id, None) is None else {group}

    def connection_closed(self, connection: RemotingConnection) -> set[str]:
        """Remove the clients whose last heartbeat came over this connection. Return the groups that they left."""
        left = set()
        for group, clients in self._groups.items():
            gone = [client_id for client_id, seen in clients.items() if seen.connection is connection]
            for client_id in gone:
                del clients[client_id]
                left.add(group)
        return left

    def members(self, group: str, *, now_seconds: float) -> tuple[str, ...]:
        """Return the clients of a group with a recent heartbeat."""
        clients = self._groups.get(group, {})
        return tuple(
            sorted(each for each, seen in clients.items() if now_seconds - seen.at_seconds <= CLIENT_EXPIRY_SECONDS)
        )

    def connections(self, group: str) -> set[RemotingConnection]:
        """Return the open connections of a group's clients."""
        return {seen.connection for seen in self._groups.get(group, {}).values() if seen.connection.is_open}

    def readers(self, topic: str, *, now_seconds: float) -> set[str]:
        """Return the groups with a subscription to the topic and a consumer with a recent heartbeat."""
        subscribed = (group for group, topics in self._subscriptions.items() if topic in topics)
        return {group for group in subscribed if self.members(group, now_seconds=now_seconds)}

    def groups(self) -> set[str]:
        """Return every group seen since the start."""
        return set(self._groups)
