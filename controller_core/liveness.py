"""Who is alive: the heartbeat table, with the time passed in.

Beside Java's: docs/reference/controller.md, 904. Times are monotonic seconds of one process and mean nothing to another.
What differs from Java's table, and why:

* A heartbeat binds the replica to the connection it came on: *the latest connection wins*. Java never rebinds, so the
  late close of an old connection evicts a healthy master (issue 11045).
* A closed connection reports every replica it carried, not only the first (a broker container shares one).
* Epoch and offsets belong to one incarnation of the broker's process. Java only ever raises them, so a replica that
  came back with an empty disk still looks longest. Here a new registration forgets them; what an incarnation's later
  heartbeats say replaces what the earlier ones said.
* A request of the broker's own is a sign of life too: its ElectMaster may overtake its heartbeat.
* After the controller itself was paused, or has just started, nobody's silence counts yet (`restart_deadlines`).
* The timeout may follow the broker's own rhythm (`adaptive_timeout.py`), if the heartbeat gives a lower bound.

* A heartbeat that says less than an earlier one of the same process may have been overtaken by it (they are one-way, and come
  over more than one connection). So the next one decides; until then the member holds its seat and cannot be elected.

* What a report is held to was known here when an earlier heartbeat, or the registration, of the same process came
  (`HeartbeatEntry.seen`): another controller hears the replica too, and may write a mark while an older heartbeat is under way.

The table also remembers what members of a SyncStateSet told while they were in it (`note_seats`): a later report of the
same member that says less is a lost disk (safety rule 2), and more exact than the record's marks. And it knows which
reports may be older than the last loss in their group (`LiveReplica.fresh`, safety rule 1), whether that was noticed here or is
known by the record alone: a heartbeat that comes after the loss was noticed may have lain in its socket since before, so the first
one after a loss proves nothing, and one that comes `MADE_LATER_SECONDS` after that first one was made after the loss.

Expiry is in two steps for the caller's sake: a silent replica is not in `live` from its deadline on, but stays in the
table, and in `expired`, until the caller has dealt with it and says `forget`.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from controller_core.adaptive_timeout import NO_RHYTHM, Rhythm, adaptive_timeout_seconds
from controller_core.events import Mark
from controller_core.holdings import demand_of, falls_short, highest, told_mark
from controller_core.model import DEFAULT_ELECTION_PRIORITY, BrokerGroupRecord, LiveReplica
from controller_core.requests import Demand, Holding

NOTHING_DEMANDED = Demand()
# Two heartbeats of one process this far apart did not wait for us in the same socket.
MADE_LATER_SECONDS = 0.25


class BrokerIdentity(NamedTuple):
    """Which replica: the only names that never change hands (safety rule 8). `group` is the caller's key of the group."""

    group: str
    broker_id: int


class Heartbeat(NamedTuple):
    """904, as sent. A broker that leaves out its timeout or priority gets the defaults.

    With `minimum_timeout_seconds` below the timeout, the timeout is the upper bound of one that follows the broker's rhythm.
    """

    identity: BrokerIdentity
    address: str = ""
    epoch: int = -1
    max_offset: int = -1
    confirm_offset: int = -1
    heartbeat_timeout_seconds: float | None = None
    election_priority: int = DEFAULT_ELECTION_PRIORITY
    minimum_timeout_seconds: float | None = None


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


class HeartbeatEntry(NamedTuple):
    """One replica's line in the table. `connection_id` is None once its connection closed.

    `mark` is what its heartbeats prove that it holds (`told_mark`).
    `last_beat_seconds` is None where the next interval says nothing about the broker's rhythm: on a new connection, after a
    silence of our own.
    """

    identity: BrokerIdentity
    replica: LiveReplica
    connection_id: int | None
    last_seen_seconds: float
    timeout_seconds: float
    deadline_seconds: float
    mark: Mark
    last_beat_seconds: float | None = None
    rhythm: Rhythm = NO_RHYTHM
    told_as_member: bool = True
    # What the replica's words are held to: `demanded` was known when it was heard at `demanded_seconds`, and becomes `seen` with a
    # heartbeat that came so much later that it was made later.
    demanded: Demand = NOTHING_DEMANDED
    demanded_seconds: float = 0.0
    seen: Demand = NOTHING_DEMANDED
    # When the first heartbeat, or the registration, came since the last loss in the group; None: none came, or no loss was noted.
    first_since_loss_seconds: float | None = None

    def alive(self, now_seconds: float) -> bool:
        """Whether the replica counts as alive: connected, and heard of within its timeout."""
        return self.connection_id is not None and now_seconds <= self.deadline_seconds


@dataclass(slots=True)
class HeartbeatTable:
    """The replicas heard of, per controller process: perishable, never shared, never durable."""

    settings: LivenessSettings = field(default_factory=LivenessSettings)
    _entries: dict[BrokerIdentity, HeartbeatEntry] = field(default_factory=dict)
    _seats: dict[str, tuple[int, frozenset[int]]] = field(default_factory=dict)
    _records: dict[str, BrokerGroupRecord | None] = field(default_factory=dict)
    # What the record of each group holds its replicas to.
    _demands: dict[str, dict[int, Demand]] = field(default_factory=dict)
    _held: dict[BrokerIdentity, Mark] = field(default_factory=dict)
    # The groups in which a loss was noted: a replica that was not heard before it is no fresher than the others.
    _bereft: set[str] = field(default_factory=set)

    def heartbeat(self, now_seconds: float, heartbeat: Heartbeat, connection_id: int) -> bool:
        """Take a heartbeat. Return whether the replica was not alive before."""
        entry = self._entries.get(heartbeat.identity)
        was_alive = entry is not None and entry.alive(now_seconds)
        first_since_loss_seconds = self._first_since_loss(entry, heartbeat.identity.group, now_seconds)
        waited_seconds = 0.0 if first_since_loss_seconds is None else now_seconds - first_since_loss_seconds
        fresh = first_since_loss_seconds is None or waited_seconds >= MADE_LATER_SECONDS
        self._remember(entry)
        replica = self._told(entry, heartbeat, fresh=fresh)
        rhythm = _rhythm(entry, now_seconds, connection_id)
        timeout_seconds = self._timeout_seconds(heartbeat, rhythm)
        demanded, demanded_seconds, seen = self._held_to(entry, heartbeat.identity, now_seconds)
        self._entries[heartbeat.identity] = HeartbeatEntry(
            identity=heartbeat.identity,
            replica=replica,
            connection_id=connection_id,
            last_seen_seconds=now_seconds,
            timeout_seconds=timeout_seconds,
            deadline_seconds=now_seconds + timeout_seconds,
            mark=told_mark(replica),
            last_beat_seconds=now_seconds,
            rhythm=rhythm,
            demanded=demanded,
            demanded_seconds=demanded_seconds,
            seen=seen,
            first_since_loss_seconds=None if replica.fresh else first_since_loss_seconds,
        )
        return not was_alive

    def _first_since_loss(self, entry: HeartbeatEntry | None, group: str, now_seconds: float) -> float | None:
        """When the first heartbeat since the last loss came, perhaps this one; None where no loss stands against what it says."""
        if entry is None:
            return now_seconds if group in self._bereft else None
        if entry.replica.fresh:
            return None
        return now_seconds if entry.first_since_loss_seconds is None else entry.first_since_loss_seconds

    def _told(self, entry: HeartbeatEntry | None, heartbeat: Heartbeat, *, fresh: bool) -> LiveReplica:
        """What counts after this heartbeat: what it says, or what was said before and is in doubt now."""
        replica = LiveReplica(
            broker_id=heartbeat.identity.broker_id,
            epoch=heartbeat.epoch,
            max_offset=heartbeat.max_offset,
            confirm_offset=heartbeat.confirm_offset,
            election_priority=heartbeat.election_priority,
            address=heartbeat.address,
            epoch_first_offset=_first_offset(entry, heartbeat),
            fresh=fresh,
        )
        if entry is None or not entry.replica.has_reported or not entry.told_as_member:
            return replica  # the first report of its process, or of its membership, or the one that decides
        held = self._held.get(heartbeat.identity)  # what the entry says is in it: it was remembered
        if held is None or not falls_short(replica, held):
            return replica
        return entry.replica._replace(address=heartbeat.address, doubted=True)

    def sign_of_life(
        self, now_seconds: float, identity: BrokerIdentity, connection_id: int, *, address: str = ""
    ) -> None:
        """Take any other request of the replica itself as proof that it lives.

        What it told before is kept. It is bound to this connection only if it has no other: brokers may send requests and
        heartbeats on different connections, and it is the heartbeats' one whose end means something.
        """
        entry = self._entries.get(identity)
        if entry is None:
            fresh = identity.group not in self._bereft
            replica = LiveReplica(broker_id=identity.broker_id, address=address, fresh=fresh)
            timeout_seconds = self.settings.timeout_for(None)
            self._entries[identity] = HeartbeatEntry(
                identity=identity,
                replica=replica,
                connection_id=connection_id,
                last_seen_seconds=now_seconds,
                timeout_seconds=timeout_seconds,
                deadline_seconds=now_seconds + timeout_seconds,
                mark=told_mark(replica),
                demanded=self._demand(identity),
                demanded_seconds=now_seconds,
            )
            return
        bound = entry.connection_id if entry.connection_id is not None else connection_id
        self._entries[identity] = entry._replace(
            connection_id=bound,
            last_seen_seconds=now_seconds,
            deadline_seconds=now_seconds + entry.timeout_seconds,
        )

    def registered(
        self, now_seconds: float, identity: BrokerIdentity, connection_id: int, *, address: str = ""
    ) -> None:
        """Begin a new incarnation: nothing that an earlier process of this replica said is true any more.

        What it had as a member is remembered all the same: the new process must have it too. A second registration on one
        connection is of the same process, and leaves the other replicas' heartbeats fresh. The record's master is the exception: a
        broker container may have started a new broker on its old connection.
        """
        before = self._entries.pop(identity, None)
        self._remember(before)
        record = self._records.get(identity.group)
        is_master = record is not None and record.master_broker_id == identity.broker_id
        if before is None or before.connection_id != connection_id or is_master:
            self.ask_anew(identity.group)
        self.sign_of_life(now_seconds, identity, connection_id, address=address)
        # The new process tells whatever it tells after it registered.
        entry = self._entries[identity]
        self._entries[identity] = entry._replace(
            seen=entry.demanded, demanded_seconds=-math.inf, first_since_loss_seconds=now_seconds
        )

    def connection_closed(self, now_seconds: float, connection_id: int) -> tuple[BrokerIdentity, ...]:
        """Return every replica that was alive and is not any more because this connection carried its heartbeats."""
        lost = [entry for entry in self._entries.values() if entry.connection_id == connection_id]
        for entry in lost:
            self._entries[entry.identity] = entry._replace(connection_id=None)
        for group in {entry.identity.group for entry in lost}:
            self.ask_anew(group)
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
                self._entries[identity] = entry._replace(
                    deadline_seconds=now_seconds + entry.timeout_seconds,
                    last_beat_seconds=None,
                    # What waited for us in a socket is older than what the others have written meanwhile.
                    demanded=NOTHING_DEMANDED,
                )

    def ask_anew(self, group: str) -> None:
        """Say that a replica of the group was just lost, or fenced: what the others told before is not fresh any more."""
        self._bereft.add(group)
        for entry in self._of_group(group):
            self._entries[entry.identity] = entry._replace(
                replica=entry.replica._replace(fresh=False), first_since_loss_seconds=None
            )

    def note_seats(self, group: str, record: BrokerGroupRecord | None) -> None:
        """Take note of who is in the SyncStateSet under which epoch. Call it with each record seen, before `holding`; cheap.

        What a member tells counts from here on. What was told under another epoch, or before it joined, may be older than a
        truncation and is forgotten.
        """
        if record is not (known := self._records.get(group)):
            if record is not None and _is_master_lost(known, record):
                self.ask_anew(group)
            self._records[group] = record
            replicas = record.replicas if record is not None else {}
            self._demands[group] = {broker_id: demand_of(record, broker_id) for broker_id in replicas}
        members = record.sync_state_set if record is not None else frozenset[int]()
        before = self._seats.get(group)
        # Losing a master raises the epoch, but makes nobody truncate: that takes an election.
        masterless = record is not None and record.master_broker_id is None and before is not None
        epoch = before[0] if masterless and before is not None else record.master_epoch if record is not None else 0
        now = (epoch, members)
        if now == before:
            return
        same_epoch = before is not None and before[0] == now[0]
        stayed = members & before[1] if before is not None and same_epoch else frozenset[int]()
        self._seats[group] = now
        for identity in [one for one in self._held if one.group == group and one.broker_id not in stayed]:
            del self._held[identity]
        for broker_id in members - stayed:
            self._held[BrokerIdentity(group, broker_id)] = Mark(broker_id, -1, -1)
            entry = self._entries.get(BrokerIdentity(group, broker_id))
            if entry is not None:
                self._entries[entry.identity] = entry._replace(told_as_member=False)

    def holding(self, identity: BrokerIdentity) -> Holding | None:
        """Return what a replica reports, against what it told before as a member.

        None if it has reported nothing, or, being a member, nothing since it joined: that may be older than its membership.
        """
        entry = self._entries.get(identity)
        if entry is None or not entry.replica.has_reported:
            return None
        if identity in self._held and not entry.told_as_member:
            return None
        known = self._held.get(identity, Mark(identity.broker_id, -1, -1))
        epoch, _ = self._seats.get(identity.group, (None, None))
        counts = (entry.told_as_member and identity in self._held) or entry.replica.epoch == epoch
        sure = entry.mark if counts else Mark(identity.broker_id, -1, -1)
        return Holding(
            broker_id=identity.broker_id,
            epoch=entry.replica.epoch,
            max_offset=entry.replica.max_offset,
            known_epoch=known.epoch,
            known_offset=known.offset,
            sure_epoch=sure.epoch,
            sure_offset=sure.offset,
            confirm_offset=entry.replica.confirm_offset,
            seen=entry.seen,
        )

    def forget(self, identity: BrokerIdentity) -> None:
        """Drop a replica from the table. What it told as a member is kept: it may come back with less."""
        self._remember(self._entries.get(identity))
        self._entries.pop(identity, None)

    def _remember(self, entry: HeartbeatEntry | None) -> None:
        """Keep what the entry says, if it was told as a member, before something replaces it."""
        held = self._held.get(entry.identity) if entry is not None and entry.told_as_member else None
        if entry is not None and held is not None:
            self._held[entry.identity] = highest(held, entry.mark)

    def _demand(self, identity: BrokerIdentity) -> Demand:
        demands = self._demands.get(identity.group)
        return NOTHING_DEMANDED if demands is None else demands.get(identity.broker_id, NOTHING_DEMANDED)

    def _held_to(
        self, before: HeartbeatEntry | None, identity: BrokerIdentity, now_seconds: float
    ) -> tuple[Demand, float, Demand]:
        """What is demanded, since when that counts, and what a heartbeat is held to: what was known when an earlier one came.

        Heartbeats that lay in a socket come all at once, so the earlier one is at least `MADE_LATER_SECONDS` older.
        """
        if before is not None and now_seconds - before.demanded_seconds < MADE_LATER_SECONDS:
            return before.demanded, before.demanded_seconds, before.seen
        return self._demand(identity), now_seconds, NOTHING_DEMANDED if before is None else before.demanded

    def _timeout_seconds(self, heartbeat: Heartbeat, rhythm: Rhythm) -> float:
        longest_seconds = self.settings.timeout_for(heartbeat.heartbeat_timeout_seconds)
        if heartbeat.minimum_timeout_seconds is None:
            return longest_seconds
        return adaptive_timeout_seconds(
            rhythm, minimum_seconds=heartbeat.minimum_timeout_seconds, maximum_seconds=longest_seconds
        )

    def _of_group(self, group: str) -> Iterable[HeartbeatEntry]:
        return sorted(
            (entry for entry in self._entries.values() if entry.identity.group == group),
            key=lambda entry: entry.identity,
        )


def _is_master_lost(before: BrokerGroupRecord | None, now: BrokerGroupRecord) -> bool:
    """Whether the record tells of a loss: this process may be cut off from the brokers, and may not have noticed it itself."""
    if before is None:
        return now.granted_master_id is None
    master = before.granted_master_id
    return master is not None and (master, before.master_epoch) != (now.granted_master_id, now.master_epoch)


def _first_offset(entry: HeartbeatEntry | None, heartbeat: Heartbeat) -> int:
    """Return the offset with which this process first reported its present epoch (`LiveReplica.epoch_first_offset`)."""
    reported = entry is not None and (entry.replica.has_reported or entry.replica.doubted)
    if entry is None or entry.replica.epoch != heartbeat.epoch or not reported:
        return heartbeat.max_offset
    return min(entry.replica.epoch_first_offset, heartbeat.max_offset)


def _rhythm(entry: HeartbeatEntry | None, now_seconds: float, connection_id: int) -> Rhythm:
    if entry is None:
        return NO_RHYTHM
    if entry.connection_id != connection_id or entry.last_beat_seconds is None:
        return entry.rhythm
    return entry.rhythm.after(now_seconds - entry.last_beat_seconds)
