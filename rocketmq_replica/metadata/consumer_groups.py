"""Consumers of this replica: how far each group has read, and which clients are in it.

Offsets are kept in ``config/consumerOffset.json`` as Java writes it, saved every few seconds: losing the last seconds means reading
some messages twice, which at-least-once consumers expect. Clients are memory only; they send a heartbeat every 30 seconds.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from rocketmq_replica.log.durable_files import StoreFileError, replace_file, sync_names

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from collections.abc import Set as AbstractSet
    from pathlib import Path

    from rocketmq_remoting.connection import RemotingConnection

CLIENT_EXPIRY_SECONDS = 120.0
MAX_GROUPS = 10_000
"""Consumer groups that heartbeats may name while this process runs."""
MAX_SUBSCRIPTIONS_OF_A_GROUP = 1000
_SEPARATOR = "@"


class TakenOffset(NamedTuple):
    """How far a group has read a queue at a slave."""

    group: str
    topic: str
    queue_id: int
    offset: int


class ConsumerOffsets:
    """``topic@group`` -> queue id -> next offset."""

    def __init__(self, path: Path) -> None:
        """Load the file, if there is one."""
        self._path = path
        self._table: dict[str, dict[int, int]] = {}
        # What consumers told this slave, and no copy of the master's table had so far, by (topic@group, queue id).
        self._taken: dict[tuple[str, int], int] = {}
        self._changed = False
        sync_names(path.parent)
        if path.exists():
            try:
                self.replace_all(json.loads(path.read_bytes())["offsetTable"])
            except (ValueError, OverflowError, RecursionError, KeyError, TypeError, AttributeError) as error:
                raise StoreFileError(f"{path}: is no offset table: {error!r}") from error
            self._changed = False

    def get(self, group: str, topic: str, queue_id: int) -> int | None:
        """The next offset the group wants to read."""
        return self._table.get(f"{topic}{_SEPARATOR}{group}", {}).get(queue_id)

    def put(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """The group has read up to here."""
        self._table.setdefault(f"{topic}{_SEPARATOR}{group}", {})[queue_id] = offset
        self._changed = True

    def advance(self, group: str, topic: str, queue_id: int, offset: int) -> bool:
        """The group has read up to here, or further: False if it is known to be as far already."""
        known = self.get(group, topic, queue_id)
        if known is not None and offset <= known:
            return False
        self.put(group, topic, queue_id, offset)
        return True

    def take(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """A consumer says to a slave that the group has read up to here: kept until the master knows it.

        Only forward: another consumer of the group may read the same queue at the master, and be further.
        """
        if self.advance(group, topic, queue_id, offset):
            self._taken[f"{topic}{_SEPARATOR}{group}", queue_id] = offset

    def taken(self) -> list[TakenOffset]:
        """What the master is to be told."""
        found = ((key.partition(_SEPARATOR), queue_id, offset) for (key, queue_id), offset in self._taken.items())
        return [TakenOffset(group, topic, queue_id, offset) for (topic, _, group), queue_id, offset in found]

    def told(self, one: TakenOffset) -> None:
        """The master has it, or will not have it."""
        key = (f"{one.topic}{_SEPARATOR}{one.group}", one.queue_id)
        if self._taken.get(key) == one.offset:
            del self._taken[key]

    def tell_last(self, one: TakenOffset) -> None:
        """The master could not take it: the others are told first the next time."""
        key = (f"{one.topic}{_SEPARATOR}{one.group}", one.queue_id)
        if (offset := self._taken.pop(key, None)) is not None:
            self._taken[key] = offset

    def forget_taken(self) -> None:
        """This replica is master: nobody is to be told."""
        self._taken = {}

    def replace_all(self, table: Mapping[str, Mapping[str, int]]) -> None:
        """Take the master's table, and keep what consumers told this slave and the master does not know yet."""
        new = {key: {int(queue): int(offset) for queue, offset in queues.items()} for key, queues in table.items()}
        self._taken = {
            (key, queue): offset
            for (key, queue), offset in self._taken.items()
            if offset > new.get(key, {}).get(queue, -1)
        }
        for (key, queue), offset in self._taken.items():
            new.setdefault(key, {})[queue] = offset
        self._changed = self._changed or new != self._table
        self._table = new

    def forget_topics(self, topics: AbstractSet[str]) -> None:
        """These topics are deleted: no group has read any of them."""
        kept = {key: queues for key, queues in self._table.items() if key.partition(_SEPARATOR)[0] not in topics}
        self._changed = self._changed or len(kept) < len(self._table)
        self._table = kept
        self._taken = {(key, queue): offset for (key, queue), offset in self._taken.items() if key in kept}

    def groups(self) -> set[str]:
        """Every group that ever committed an offset."""
        return {key.partition(_SEPARATOR)[2] for key in self._table}

    def to_json(self) -> dict[str, Any]:
        """Java's ConsumerOffsetSerializeWrapper."""
        table = {key: {str(queue): offset for queue, offset in queues.items()} for key, queues in self._table.items()}
        return {"offsetTable": table}

    def take_changes(self) -> bytes | None:
        """The file's new content, if anything changed since it was last asked for."""
        if not self._changed:
            return None
        self._changed = False
        return json.dumps(self.to_json(), separators=(",", ":")).encode()

    def write(self, content: bytes) -> None:
        """Make the content durable; may run in a thread. If that fails it is asked for again."""
        try:
            replace_file(self._path, content)
        except OSError:
            self._changed = True
            raise


class TooManyGroupsError(Exception):
    """A heartbeat names groups that would be too many; the message says how many."""


@dataclass(frozen=True)
class Subscription:
    """What a group wants of one topic: messages with one of these tags, or all without any."""

    tags: frozenset[str]
    expression_type: str
    version: int


@dataclass
class _Seen:
    connection: RemotingConnection
    at_seconds: float


class Clients:
    """Which clients are in which consumer group, by heartbeat, and over which connection they sent it."""

    def __init__(self) -> None:
        """Nobody."""
        self._groups: dict[str, dict[str, _Seen]] = {}
        self._subscriptions: dict[str, dict[str, Subscription]] = {}

    def subscribe(self, group: str, subscriptions: Mapping[str, Subscription]) -> None:
        """What a group wants, by topic; the newest word counts, as in Java."""
        known = self._subscriptions.setdefault(group, {})
        for topic, subscription in subscriptions.items():
            if topic in known or len(known) < MAX_SUBSCRIPTIONS_OF_A_GROUP:
                known[topic] = max(known.get(topic, subscription), subscription, key=lambda each: each.version)

    def subscription(self, group: str, topic: str) -> Subscription | None:
        """What its consumers last said; None if they said nothing."""
        return self._subscriptions.get(group, {}).get(topic)

    def heartbeat(
        self, client_id: str, groups: Iterable[str], connection: RemotingConnection, *, now_seconds: float
    ) -> set[str]:
        """A client says it is there; the groups in which it was not. TooManyGroupsError: nothing has changed."""
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
        """A client leaves a group; that group if it was in it."""
        return set() if self._groups.get(group, {}).pop(client_id, None) is None else {group}

    def connection_closed(self, connection: RemotingConnection) -> set[str]:
        """Whoever spoke over it is gone, unless he has spoken over another since; the groups that somebody left."""
        left = set()
        for group, clients in self._groups.items():
            gone = [client_id for client_id, seen in clients.items() if seen.connection is connection]
            for client_id in gone:
                del clients[client_id]
                left.add(group)
        return left

    def members(self, group: str, *, now_seconds: float) -> tuple[str, ...]:
        """Who is in the group and was heard of lately."""
        clients = self._groups.get(group, {})
        return tuple(
            sorted(each for each, seen in clients.items() if now_seconds - seen.at_seconds <= CLIENT_EXPIRY_SECONDS)
        )

    def connections(self, group: str) -> set[RemotingConnection]:
        """Where its clients can be reached."""
        return {seen.connection for seen in self._groups.get(group, {}).values() if seen.connection.is_open}

    def groups(self) -> set[str]:
        """Every group seen since the start."""
        return set(self._groups)
