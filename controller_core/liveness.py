"""Which replicas of one group are alive: its heartbeat table, with the time passed in. One table for each group and process.

Times are monotonic seconds of one process. docs/reference/controller.md (904) compares it with Java's table. Unlike there, the
latest connection of a replica counts, and epoch and offsets belong to one process, so that a replica with an empty disk does not
look longest. A heartbeat that says less than an earlier one of its process may have been overtaken by it: the next one decides
(`LiveReplica.doubted`).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from controller_core.holdings import demand_of, falls_short, highest, told_mark
from controller_core.model import BrokerGroupRecord, LiveReplica, Mark
from controller_core.requests import Demand, Holding

NOTHING_DEMANDED = Demand()
# Two heartbeats of one process this far apart did not wait in the same socket: the second was made after the first came.
MADE_LATER_SECONDS = 0.25
# Longer ago than any heartbeat: what a process tells by the connection on which it registered was made afterwards.
REGISTERED = -math.inf


class HeartbeatEntry(NamedTuple):
    """One replica's line in the table. `connection_id` is None once its connection closed."""

    replica: LiveReplica
    connection_id: int | None
    last_seen_seconds: float
    timeout_seconds: float
    deadline_seconds: float
    # `demanded` of the replica was known here at `demanded_seconds`, when a heartbeat came; `seen` is what its report must reach
    # (`_held_to`).
    demanded: Demand = NOTHING_DEMANDED
    demanded_seconds: float = 0.0
    seen: Demand = NOTHING_DEMANDED
    told_as_member: bool = True
    # When the first heartbeat since the master's loss came; `REGISTERED`: none since the process registered; None: none came, or
    # no loss was noted.
    first_since_loss_seconds: float | None = None

    def gone_on(
        self, now_seconds: float, told: LiveReplica, connection_id: int, timeout_seconds: float
    ) -> "HeartbeatEntry":
        """Return the entry after a heartbeat that only goes on from the last one."""
        replica = LiveReplica(*told[:6], self.replica.epoch_first_offset)
        demanded, demanded_seconds = self.demanded, self.demanded_seconds
        deadline_seconds = now_seconds + timeout_seconds
        if now_seconds - demanded_seconds >= MADE_LATER_SECONDS:
            demanded_seconds = now_seconds
        # By position: by keyword it costs a third more.
        return HeartbeatEntry(
            replica, connection_id, now_seconds, timeout_seconds, deadline_seconds, demanded, demanded_seconds, demanded
        )

    def alive(self, now_seconds: float) -> bool:
        return self.connection_id is not None and now_seconds <= self.deadline_seconds


@dataclass(slots=True)
class HeartbeatTable:
    # The timeout of a replica that asks for none.
    timeout_seconds: float = 10.0
    _entries: dict[int, HeartbeatEntry] = field(default_factory=dict)
    # The last record seen, what it holds its replicas to, and the epoch under which the members' reports count (`note_seats`).
    _record: BrokerGroupRecord | None = None
    _demands: dict[int, Demand] = field(default_factory=dict)
    _epoch: int | None = None
    # What the members of the SyncStateSet, and no others, told while they were in it.
    _held: dict[int, Mark] = field(default_factory=dict)
    # When the last loss of a master was noted here; None: none was. Only reports made later are fresh.
    lost_seconds: float | None = None

    def heartbeat(
        self, now_seconds: float, told: LiveReplica, connection_id: int, *, timeout_seconds: float | None = None
    ) -> bool:
        """Take a heartbeat (904), as sent. Return whether the replica was not alive before."""
        entry = self._entries.get(told.broker_id)
        was_alive = entry is not None and entry.alive(now_seconds)
        timeout_seconds = self.timeout_seconds if timeout_seconds is None else timeout_seconds
        if entry is not None and self._goes_on(entry, told):
            self._entries[told.broker_id] = entry.gone_on(now_seconds, told, connection_id, timeout_seconds)
            return not was_alive
        first_since_loss_seconds = self._first_since_loss(entry, now_seconds, connection_id)
        waited_seconds = 0.0 if first_since_loss_seconds is None else now_seconds - first_since_loss_seconds
        fresh = first_since_loss_seconds is None or waited_seconds >= MADE_LATER_SECONDS
        self._remember(entry)
        replica = self._told(entry, told, fresh=fresh)
        self._entries[told.broker_id] = HeartbeatEntry(
            replica,
            connection_id,
            now_seconds,
            timeout_seconds,
            now_seconds + timeout_seconds,
            *self._held_to(entry, told.broker_id, now_seconds),
            first_since_loss_seconds=None if replica.fresh else first_since_loss_seconds,
        )
        return not was_alive

    def _goes_on(self, entry: HeartbeatEntry, told: LiveReplica) -> bool:
        """Whether this heartbeat only goes on from the last one, as nearly all do: nothing is in doubt, and it says no less in any
        field. Then the entry's mark covers what earlier ones told, and `_remember` may wait.
        """
        before, held = entry.replica, self._held.get(told.broker_id)
        return (
            before.fresh
            and before.has_reported
            and told.epoch == before.epoch
            and told.max_offset >= before.max_offset
            # The first one that is told (it is -1 before) may prove less than the offset alone did.
            and (told.confirm_offset > before.confirm_offset >= 0 or told.confirm_offset == before.confirm_offset)
            and entry.seen == entry.demanded == self._demands.get(told.broker_id, NOTHING_DEMANDED)
            and (held is None or (told.epoch >= held.epoch and told.max_offset >= held.offset))
        )

    def _first_since_loss(self, entry: HeartbeatEntry | None, now_seconds: float, connection_id: int) -> float | None:
        """Return when the first heartbeat since the last loss came, perhaps this one; None: no loss makes its report doubtful."""
        if entry is None:
            return None if self.lost_seconds is None else now_seconds
        if entry.replica.fresh:
            return None
        # After a registration the last process's heartbeats may still come, but not by the connection of the new one.
        is_of_last = entry.first_since_loss_seconds == REGISTERED and entry.connection_id != connection_id
        first_seconds = None if is_of_last else entry.first_since_loss_seconds
        return now_seconds if first_seconds is None else first_seconds

    def _told(self, entry: HeartbeatEntry | None, told: LiveReplica, *, fresh: bool) -> LiveReplica:
        """Return what counts after this heartbeat: what it says, or what was said before and is in doubt now."""
        first_offset = told.max_offset
        before = entry.replica if entry is not None else None
        if before is not None and before.epoch == told.epoch and (before.has_reported or before.doubted):
            first_offset = min(before.epoch_first_offset, told.max_offset)
        # Up to `address` as the heartbeat says. `_replace` costs twice as much.
        replica = LiveReplica(*told[:6], first_offset, fresh)
        if entry is None or not entry.replica.has_reported or not entry.told_as_member:
            return replica  # the first report of its process, or of its membership, or the one that decides
        held = self._held.get(told.broker_id)  # what the entry says is in it: it was remembered
        if held is None or not falls_short(replica, held):
            return replica
        return entry.replica._replace(address=told.address, doubted=True)

    def reported(self, broker_id: int, *, epoch: int, max_offset: int) -> None:
        """Take what a replica answered to a question that was asked after the last loss of a master: it is fresh."""
        if (entry := self._entries.get(broker_id)) is None:
            return
        self._remember(entry)
        replica = self._told(entry, entry.replica._replace(epoch=epoch, max_offset=max_offset), fresh=True)
        first_since_loss_seconds = None if replica.fresh else entry.first_since_loss_seconds
        self._entries[broker_id] = entry._replace(replica=replica, first_since_loss_seconds=first_since_loss_seconds)

    def sign_of_life(self, now_seconds: float, broker_id: int, connection_id: int, *, address: str = "") -> None:
        """Take another request of the replica itself as proof that it lives. What it told before is kept."""
        if (entry := self._entries.get(broker_id)) is None:
            replica = LiveReplica(broker_id=broker_id, address=address, fresh=self.lost_seconds is None)
            demanded = self._demands.get(broker_id, NOTHING_DEMANDED)
            times = now_seconds, self.timeout_seconds, now_seconds
            entry = HeartbeatEntry(replica, connection_id, *times, demanded, now_seconds)
        # Brokers may send requests and heartbeats on different connections: only the end of the heartbeats' is evidence.
        bound = entry.connection_id if entry.connection_id is not None else connection_id
        self._entries[broker_id] = entry._replace(
            connection_id=bound, last_seen_seconds=now_seconds, deadline_seconds=now_seconds + entry.timeout_seconds
        )

    def registered(self, now_seconds: float, broker_id: int, connection_id: int, *, address: str = "") -> None:
        """Begin a new process: what an earlier one said does not count any more, but what it held as a member must be there."""
        self._remember(self._entries.pop(broker_id, None))
        if self._may_write(broker_id):
            self.ask_anew(now_seconds)
        # A registration that came this long after the loss did not wait in its socket since before it.
        is_after_loss = self.lost_seconds is not None and now_seconds - self.lost_seconds >= MADE_LATER_SECONDS
        self.sign_of_life(now_seconds, broker_id, connection_id, address=address)
        entry = self._entries[broker_id]
        self._entries[broker_id] = entry._replace(
            seen=entry.demanded,
            demanded_seconds=-math.inf,
            first_since_loss_seconds=REGISTERED if is_after_loss else now_seconds,
        )

    def connection_closed(self, now_seconds: float, connection_id: int) -> tuple[int, ...]:
        """Return every replica that was alive and is not any more because this connection carried its heartbeats."""
        lost = {one: entry for one, entry in self._entries.items() if entry.connection_id == connection_id}
        for broker_id, entry in lost.items():
            self._entries[broker_id] = entry._replace(connection_id=None)
        if any(map(self._may_write, lost)):
            self.ask_anew(now_seconds)
        return tuple(sorted(one for one, entry in lost.items() if entry.alive(now_seconds)))

    def live(self, now_seconds: float) -> dict[int, LiveReplica]:
        """Return the living replicas in the order of their broker ids."""
        return {one: entry.replica for one, entry in sorted(self._entries.items()) if entry.alive(now_seconds)}

    def entry(self, broker_id: int) -> HeartbeatEntry | None:
        return self._entries.get(broker_id)

    def entries(self) -> Mapping[int, HeartbeatEntry]:
        return self._entries

    def restart_deadlines(self, now_seconds: float) -> None:
        """Restart every silence: this process may have been paused. Closed connections stay closed."""
        for broker_id, entry in self._entries.items():
            if entry.connection_id is not None:
                deadline_seconds = now_seconds + entry.timeout_seconds
                # What waited for us in a socket is older than what the others have written meanwhile.
                self._entries[broker_id] = entry._replace(deadline_seconds=deadline_seconds, demanded=NOTHING_DEMANDED)

    def _may_write(self, broker_id: int) -> bool:
        """Whether the others' logs may have grown by this replica until it was lost: only a master makes them grow."""
        record = self._record
        return record is None or broker_id == record.master_broker_id or broker_id in record.unfenced

    def ask_anew(self, now_seconds: float) -> None:
        """Note that the master was just lost or fenced: what the others told before is not fresh any more."""
        self.lost_seconds = now_seconds
        for broker_id, entry in self._entries.items():
            replica = entry.replica._replace(fresh=False)
            self._entries[broker_id] = entry._replace(replica=replica, first_since_loss_seconds=None)

    def note_seats(self, record: BrokerGroupRecord | None, now_seconds: float = math.inf) -> None:
        """Note the members of the SyncStateSet and the master epoch. Call it with each record seen, before `holding`; cheap.

        A report under another epoch, or from before its replica joined, may be older than a truncation and is forgotten.
        """
        if record is None:
            self._record, self._demands, self._epoch, self._held = None, {}, 0, {}
            return
        if record is self._record:
            return
        last, is_lost = self._record, record.granted_master_id is None
        if last is not None:
            master = last.granted_master_id
            is_lost = master is not None and not record.is_granted(master, last.master_epoch)
        if is_lost:  # this process may be cut off from the brokers and have noticed none
            self.ask_anew(now_seconds)
        self._record = record
        self._demands = {broker_id: demand_of(record, broker_id) for broker_id in record.replicas}
        before, members = self._epoch, record.sync_state_set
        # Losing a master raises the epoch, but makes no replica truncate: that takes an election.
        if before is None or record.master_broker_id is not None:
            self._epoch = record.master_epoch
        stayed = members & self._held.keys() if before == self._epoch else frozenset[int]()
        self._held = {one: self._held[one] if one in stayed else Mark(one) for one in members}
        for broker_id in members - stayed:
            if broker_id in self._entries:
                self._entries[broker_id] = self._entries[broker_id]._replace(told_as_member=False)

    def holding(self, broker_id: int) -> Holding | None:
        """Return what a replica reports, against what it told before as a member. None: a member has reported nothing since it
        joined, or another replica nothing at all.
        """
        entry = self._entries.get(broker_id)
        if entry is None or not entry.replica.has_reported:
            return None
        is_member = broker_id in self._held
        if is_member and not entry.told_as_member:
            return None
        counts = is_member or entry.replica.epoch == self._epoch
        replica, known = entry.replica, self._held.get(broker_id, Mark(broker_id))
        sure = told_mark(replica) if counts else Mark(broker_id)
        return Holding(broker_id, replica.epoch, replica.max_offset, known, sure, entry.seen, replica.confirm_offset)

    def forget(self, broker_id: int) -> None:
        """Drop a replica from the table. What it told as a member is kept: it may come back with less."""
        self._remember(self._entries.pop(broker_id, None))

    def _remember(self, entry: HeartbeatEntry | None) -> None:
        """Keep what the entry says, if it was told as a member, before another entry replaces it."""
        held = self._held.get(entry.replica.broker_id) if entry is not None and entry.told_as_member else None
        if entry is not None and held is not None:
            self._held[held.broker_id] = highest(held, told_mark(entry.replica))

    def _held_to(
        self, before: HeartbeatEntry | None, broker_id: int, now_seconds: float
    ) -> tuple[Demand, float, Demand]:
        """Return `demanded`, `demanded_seconds` and `seen` of a heartbeat's entry: it is held to what was known here when an
        earlier one came. Heartbeats that lay in a socket come all at once, so that one must be `MADE_LATER_SECONDS` older.
        """
        if before is not None and now_seconds - before.demanded_seconds < MADE_LATER_SECONDS:
            return before.demanded, before.demanded_seconds, before.seen
        seen = NOTHING_DEMANDED if before is None else before.demanded
        return self._demands.get(broker_id, NOTHING_DEMANDED), now_seconds, seen
