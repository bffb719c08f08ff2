"""Who is alive: the heartbeat table, with the time passed in.

Source: `controller-protocol.md` §2.8 and §6. Times are monotonic seconds of one process and mean nothing to another.
What differs from Java's table, and why:

* A heartbeat binds the replica to the connection it came on: *the latest connection wins*. Java never rebinds, so the
  late close of an old connection evicts a healthy master (issue 11045).
* A closed connection reports every replica it carried, not only the first (a broker container shares one).
* Epoch and offsets belong to one incarnation of the broker's process. Java only ever raises them, so a replica that
  came back with an empty disk still looks longest. Here a new registration forgets them; what an incarnation's later
  heartbeats say replaces what the earlier ones said.
* A request of the broker's own is a sign of life too: its ElectMaster may overtake its heartbeat.
* After the controller itself was paused, or has just started, nobody's silence counts yet (`restart_deadlines`).

Expiry is in two steps for the caller's sake: a silent replica is not in `live` from its deadline on, but stays in the
table, and in `expired`, until the caller has dealt with it and says `forget`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from controller_core.model import DEFAULT_ELECTION_PRIORITY, LiveReplica


@dataclass(frozen=True, slots=True, order=True)
class BrokerIdentity:
    """Which replica: the only names that never change hands (safety rule 8). `group` is the caller's key of the group."""

    group: str
    broker_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """904, as sent. A broker that leaves out its timeout or priority gets the defaults."""

    identity: BrokerIdentity
    address: str = ""
    epoch: int = -1
    max_offset: int = -1
    confirm_offset: int = -1
    heartbeat_timeout_seconds: float | None = None
    election_priority: int = DEFAULT_ELECTION_PRIORITY


@dataclass(frozen=True, slots=True, kw_only=True)
class LivenessSettings:
    """How long silence is life. What a broker asks for is kept within the bounds; without a wish it gets `timeout_seconds`."""

    timeout_seconds: float = 10.0
    minimum_timeout_seconds: float = 0.0
    maximum_timeout_seconds: float = float("inf")

    def timeout_for(self, wished_seconds: float | None) -> float:
        """Return the timeout that applies to a broker."""
        wished = self.timeout_seconds if wished_seconds is None else wished_seconds
        return min(max(wished, self.minimum_timeout_seconds), self.maximum_timeout_seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatEntry:
    """One replica's line in the table. `connection_id` is None once its connection closed."""

    identity: BrokerIdentity
    replica: LiveReplica
    connection_id: int | None
    last_seen_seconds: float
    timeout_seconds: float
    deadline_seconds: float

    def alive(self, now_seconds: float) -> bool:
        """Whether the replica counts as alive: connected, and heard of within its timeout."""
        return self.connection_id is not None and now_seconds <= self.deadline_seconds


@dataclass(slots=True)
class HeartbeatTable:
    """The replicas heard of, per controller process: perishable, never shared, never durable."""

    settings: LivenessSettings = field(default_factory=LivenessSettings)
    _entries: dict[BrokerIdentity, HeartbeatEntry] = field(default_factory=dict)

    def heartbeat(self, now_seconds: float, heartbeat: Heartbeat, connection_id: int) -> bool:
        """Take a heartbeat. Return whether the replica was not alive before."""
        entry = self._entries.get(heartbeat.identity)
        was_alive = entry is not None and entry.alive(now_seconds)
        timeout_seconds = self.settings.timeout_for(heartbeat.heartbeat_timeout_seconds)
        replica = LiveReplica(
            broker_id=heartbeat.identity.broker_id,
            epoch=heartbeat.epoch,
            max_offset=heartbeat.max_offset,
            confirm_offset=heartbeat.confirm_offset,
            election_priority=heartbeat.election_priority,
            address=heartbeat.address,
        )
        self._put(heartbeat.identity, replica, connection_id, now_seconds, timeout_seconds)
        return not was_alive

    def sign_of_life(
        self, now_seconds: float, identity: BrokerIdentity, connection_id: int, *, address: str = ""
    ) -> None:
        """Take any other request of the replica itself as proof that it lives.

        What it told before is kept. It is bound to this connection only if it has no other: brokers may send requests and
        heartbeats on different connections, and it is the heartbeats' one whose end means something.
        """
        entry = self._entries.get(identity)
        if entry is None:
            replica = LiveReplica(broker_id=identity.broker_id, address=address)
            self._put(identity, replica, connection_id, now_seconds, self.settings.timeout_for(None))
            return
        bound = entry.connection_id if entry.connection_id is not None else connection_id
        self._put(identity, entry.replica, bound, now_seconds, entry.timeout_seconds)

    def registered(
        self, now_seconds: float, identity: BrokerIdentity, connection_id: int, *, address: str = ""
    ) -> None:
        """Begin a new incarnation: nothing that an earlier process of this replica said is true any more."""
        self.forget(identity)
        self.sign_of_life(now_seconds, identity, connection_id, address=address)

    def connection_closed(self, now_seconds: float, connection_id: int) -> tuple[BrokerIdentity, ...]:
        """Return every replica that was alive and is not any more because this connection carried its heartbeats."""
        lost = [entry for entry in self._entries.values() if entry.connection_id == connection_id]
        for entry in lost:
            self._entries[entry.identity] = replace(entry, connection_id=None)
        return tuple(sorted(entry.identity for entry in lost if entry.alive(now_seconds)))

    def expired(self, now_seconds: float) -> tuple[BrokerIdentity, ...]:
        """Return every replica in the table that is not alive, until it is heard again or forgotten."""
        return tuple(sorted(entry.identity for entry in self._entries.values() if not entry.alive(now_seconds)))

    def live(self, group: str, now_seconds: float) -> dict[int, LiveReplica]:
        """Return the group's living replicas by broker id: what `step` wants to know."""
        return {entry.identity.broker_id: entry.replica for entry in self._of_group(group) if entry.alive(now_seconds)}

    def entry(self, identity: BrokerIdentity) -> HeartbeatEntry | None:
        """Return what is known of a replica, alive or not."""
        return self._entries.get(identity)

    def entries(self, group: str) -> Mapping[int, HeartbeatEntry]:
        """Return what is known of a group's replicas, alive or not."""
        return {entry.identity.broker_id: entry for entry in self._of_group(group)}

    def next_deadline_seconds(self) -> float | None:
        """Return when the next silence becomes a death, or None if nobody is alive. May lie in the past."""
        deadlines = [entry.deadline_seconds for entry in self._entries.values() if entry.connection_id is not None]
        return min(deadlines, default=None)

    def restart_deadlines(self, now_seconds: float) -> None:
        """Distrust ourselves: we may have been asleep, so every silence starts anew. Closed connections stay closed."""
        for identity, entry in self._entries.items():
            if entry.connection_id is not None:
                self._entries[identity] = replace(entry, deadline_seconds=now_seconds + entry.timeout_seconds)

    def forget(self, identity: BrokerIdentity) -> None:
        """Drop a replica from the table."""
        self._entries.pop(identity, None)

    def forget_group(self, group: str) -> None:
        """Drop a group's replicas from the table."""
        for entry in list(self._of_group(group)):
            self.forget(entry.identity)

    def _of_group(self, group: str) -> Iterable[HeartbeatEntry]:
        return sorted(
            (entry for entry in self._entries.values() if entry.identity.group == group),
            key=lambda entry: entry.identity,
        )

    def _put(
        self,
        identity: BrokerIdentity,
        replica: LiveReplica,
        connection_id: int,
        now_seconds: float,
        timeout_seconds: float,
    ) -> None:
        self._entries[identity] = HeartbeatEntry(
            identity=identity,
            replica=replica,
            connection_id=connection_id,
            last_seen_seconds=now_seconds,
            timeout_seconds=timeout_seconds,
            deadline_seconds=now_seconds + timeout_seconds,
        )
