"""What a replica holds against what it must hold: marks, seats, and whether a report is news (safety rules 1 to 3).

A replica's *mark* is the epoch and offset that its later reports must reach; a replica that falls short has lost data, and
loses its seat (as in KIP-966). A healthy replica's report may fall too, because it truncates what was not acknowledged when it
follows another master. So a mark says no more than what no truncation can take:

* A report counts under the record's epoch: a replica has that epoch from the present master's log, after it truncated. If Java
  did not write the epoch (it refuses two epochs that begin at one offset), what a member told since it is in the set counts.
* The offset is the confirmed one, if told: a killed process may lose the torn end of its log.
* The epoch counts once the process got bytes of it: a truncation to the very beginning of an epoch drops the epoch.
* A member that joins has reached the master's mark. If its last report is older than that, it gets the lower of the two.
* An election lowers the marks of all that keep a seat to the lowest of them: up to there all their logs agree.

A report is held only to marks that this process knew before the report was made (`Holding.seen`): another controller may have
written them since. Marks follow in steps of `held_bucket_bytes`; what this process heard from an earlier process of a member
(`known_*`) is exact.
"""

from collections.abc import Iterable
from enum import Enum

from controller_core.events import Mark
from controller_core.model import MAX_EPOCH, BrokerGroupRecord, LiveReplica, Replica
from controller_core.requests import Demand, Holding
from controller_core.settings import ControllerSettings


class News(Enum):
    """What a report changes. `ReportHoldings` commits all but `NOTHING` and `JUMP`; only `MARK` may wait."""

    NOTHING = "nothing"
    MARK = "mark"
    LOSS = "loss"
    REGAINED = "regained"
    FLOOR = "floor"
    JUMP = "jump"


def report_is_news(record: BrokerGroupRecord | None, holding: Holding, settings: ControllerSettings) -> News:  # noqa: PLR0911
    """Return what a report means for the record. Cheap: called for every heartbeat."""
    replica = record.claimed_replica(holding.broker_id) if record is not None else None
    if record is None or replica is None or not has_reported(holding.epoch, holding.max_offset):
        return News.NOTHING
    if holding.epoch > record.master_epoch:
        return News.JUMP if is_jump(record, holding.epoch, settings) else News.FLOOR
    if holding.broker_id in record.lost_seats:
        return News.REGAINED if _has_it_again(record, replica, holding) else News.NOTHING
    if record.eligible and not usable_eligible(record, settings):
        return News.LOSS
    if holding.broker_id not in record.seats:
        return News.NOTHING
    if falls_short(holding, bar_of(record, replica, holding)):
        return News.LOSS
    return News.MARK if _is_worth_a_mark(record, replica, holding, settings) else News.NOTHING


def is_jump(record: BrokerGroupRecord, epoch: int, settings: ControllerSettings) -> bool:
    """Whether an epoch is too far above the record's to be followed without a person: one poisoned broker is enough to report
    it. The floor, and a grant above it, must still fit into an int.
    """
    allowed = max(record.master_epoch + settings.max_epoch_jump, settings.accepted_epoch)
    return epoch > min(allowed, MAX_EPOCH - 2)


def usable_eligible(record: BrokerGroupRecord, settings: ControllerSettings) -> frozenset[int]:
    """Return the eligible replicas (rule 1) while nothing can be acknowledged: the floor is on, and the set below it."""
    below = settings.shrink_floor and len(record.sync_state_set) < settings.min_in_sync_replicas
    return record.eligible if below else frozenset()


def has_reported(epoch: int, max_offset: int) -> bool:
    """Whether a heartbeat told what the disk holds."""
    return epoch >= 0 or max_offset >= 0


def mark_of(replica: Replica) -> Mark:
    """Return the replica's mark."""
    return Mark(replica.broker_id, replica.held_epoch, replica.held_offset)


def demand_of(record: BrokerGroupRecord | None, broker_id: int) -> Demand:
    """Return what the record holds the replica to."""
    replica = record.claimed_replica(broker_id) if record is not None else None
    if record is None or replica is None:
        return Demand()
    return Demand(replica.held_epoch, replica.held_offset, broker_id in record.lost_seats)


def bar_of(record: BrokerGroupRecord, replica: Replica, holding: Holding) -> Mark:
    """Return what the report must reach: the mark, if it is older than the report, and for a member what an earlier process of
    it told here.
    """
    epoch, offset = replica.held_epoch, replica.held_offset
    if holding.seen is not None:
        epoch, offset = min(epoch, holding.seen.epoch), min(offset, holding.seen.offset)
    if replica.broker_id in record.sync_state_set:
        epoch, offset = max(epoch, holding.known_epoch), max(offset, holding.known_offset)
    return Mark(replica.broker_id, epoch, offset)


def falls_short(reported: Holding | LiveReplica, bar: Mark) -> bool:
    """Whether a report is below what it must reach, in epoch or in offset."""
    return reported.epoch < bar.epoch or reported.max_offset < bar.offset


def below_its_mark(record: BrokerGroupRecord, replica: LiveReplica) -> bool:
    """Whether a holder of a seat reports less than its mark: it is no candidate, even before the loss is committed."""
    recorded = record.claimed_replica(replica.broker_id)
    return recorded is not None and replica.broker_id in record.seats and falls_short(replica, mark_of(recorded))


def highest(one: Mark, other: Mark) -> Mark:
    """Return what both demand."""
    return Mark(one.broker_id, max(one.epoch, other.epoch), max(one.offset, other.offset))


def lowest(broker_id: int, marks: Iterable[Mark]) -> Mark:
    """Return what all of them demand at least."""
    found = list(marks)
    return Mark(
        broker_id, min((mark.epoch for mark in found), default=-1), min((mark.offset for mark in found), default=-1)
    )


def raised_mark(record: BrokerGroupRecord, replica: Replica, holding: Holding) -> Mark:
    """Return the mark that a report justifies; the present one if it justifies no more."""
    told = Mark(replica.broker_id, holding.sure_epoch, holding.sure_offset)
    if holding.epoch == record.master_epoch and (holding.sure_epoch, holding.sure_offset) == (-1, -1):
        told = Mark(replica.broker_id, -1, _confirmed(holding.max_offset, holding.confirm_offset))
    if told.offset <= 0:
        return mark_of(replica)
    return highest(mark_of(replica), told)


def told_mark(replica: LiveReplica) -> Mark:
    """Return what the replica's reports prove that it holds, if they are no older than its last truncation."""
    offset = _confirmed(replica.max_offset, replica.confirm_offset)
    return Mark(replica.broker_id, replica.epoch if offset > max(replica.epoch_first_offset, 0) else -1, offset)


def joining_mark(record: BrokerGroupRecord, replica: LiveReplica) -> Mark:
    """Return the mark of a replica that joins the set now (module docstring)."""
    told = told_mark(replica)
    if replica.epoch >= record.master_epoch:
        return told
    master = record.claimed_replica(record.master_broker_id)
    return lowest(replica.broker_id, [told, mark_of(master)] if master is not None else [])


def election_marks(record: BrokerGroupRecord, winner: LiveReplica, eligible: frozenset[int]) -> tuple[Mark, ...]:
    """Return the marks after an election: the winner keeps its own, all others with a seat get the lowest of all."""
    holders = [mark_of(record.replicas[one]) for one in sorted(record.seats) if one in record.replicas]
    own = (
        mark_of(record.replicas[winner.broker_id]) if winner.broker_id in record.seats else lowest(winner.broker_id, [])
    )
    if winner.epoch >= record.master_epoch:
        own = highest(own, told_mark(winner))
    least = lowest(winner.broker_id, holders)
    return (own, *(Mark(one, least.epoch, least.offset) for one in sorted(eligible)))


def _confirmed(max_offset: int, confirm_offset: int) -> int:
    return min(max_offset, confirm_offset) if confirm_offset >= 0 else max_offset


def _has_it_again(record: BrokerGroupRecord, replica: Replica, holding: Holding) -> bool:
    """Whether a replica that lost its seat has its data after all, and no master was elected meanwhile."""
    nobody_elected = record.master_broker_id is None
    loss_was_known = holding.seen is None or holding.seen.lost
    return nobody_elected and loss_was_known and holding.max_offset > 0 and not falls_short(holding, mark_of(replica))


def _is_worth_a_mark(
    record: BrokerGroupRecord, replica: Replica, holding: Holding, settings: ControllerSettings
) -> bool:
    """Whether the mark moves by enough to be written: another epoch, a full bucket, or, while small, twice as much."""
    mark = raised_mark(record, replica, holding)
    if mark.epoch > max(replica.held_epoch, 0):
        return True
    held = max(replica.held_offset, 0)
    return mark.offset - held >= min(settings.held_bucket_bytes, max(held, 1))
