"""What replicas report against what they must hold: marks, seats, and what a report changes (safety rules 1 to 3).

A replica's *mark* is the epoch and offset that its later reports must reach (docs/concepts/architecture.md, "Seats and marks"). It
says no more than what no truncation can take (`_proven`, `told_mark`, `joining_mark`, `election_marks`). A report is held only to
marks that this process knew before the report was made (`Holding.seen`): another controller may have written them since.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from controller_core import decision
from controller_core.decision import Decision, decided
from controller_core.model import MAX_EPOCH, BrokerGroupRecord, Live, LiveReplica, Mark, Replica, draw_ids
from controller_core.requests import Demand, Holding, ReportAhead, ReportHoldings
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
    if record is None or replica is None or max(holding.epoch, holding.max_offset) < 0:
        return News.NOTHING
    if holding.epoch > record.master_epoch:
        return News.JUMP if is_jump(record, holding.epoch, settings) else News.FLOOR
    if holding.broker_id in record.lost_seats:
        # It has its data after all, its loss was known when it told that, and no master was elected meanwhile.
        has_it = holding.max_offset > 0 and not falls_short(holding, mark_of(replica))
        is_in_time = holding.seen.lost and record.master_broker_id is None
        return News.REGAINED if has_it and is_in_time else News.NOTHING
    if record.eligible and not usable_eligible(record, settings):
        return News.LOSS
    if holding.broker_id not in record.seats:
        return News.NOTHING
    if falls_short(holding, bar_of(record, replica, holding)):
        return News.LOSS
    told = _proven(record, holding)
    is_far = told.epoch > max(replica.held_epoch, 0) or told.offset >= _next_mark_offset(replica, settings)
    return News.MARK if told.offset > 0 and is_far else News.NOTHING


@dataclass(slots=True)
class Quiet:
    """Which further heartbeats of one process are certainly no news: `report_is_news` costs more than all else of a heartbeat."""

    record: BrokerGroupRecord
    settings: ControllerSettings
    seen: Demand
    epoch: int
    offset: int
    below_offset: float

    def goes_on(
        self, record: BrokerGroupRecord, settings: ControllerSettings, replica: LiveReplica, seen: Demand
    ) -> bool:
        """Whether this report is one of them; it becomes the last one."""
        if record is not self.record or settings is not self.settings or replica.epoch != self.epoch:
            return False
        if not self.offset <= replica.max_offset < self.below_offset or seen != self.seen:
            return False
        self.offset = replica.max_offset
        return True


def quiet_after(record: BrokerGroupRecord, holding: Holding, settings: ControllerSettings) -> Quiet | None:
    """Return which reports need not be judged after this one, which was no news; None: the next one must be."""
    replica = record.claimed_replica(holding.broker_id)
    below_offset = math.inf
    if replica is None or holding.broker_id in record.lost_seats:
        return None
    if holding.broker_id in record.seats:
        if holding.epoch > max(replica.held_epoch, 0):
            return None  # its first bytes of that epoch are a mark
        below_offset = _next_mark_offset(replica, settings)
    return Quiet(record, settings, holding.seen, holding.epoch, holding.max_offset, below_offset)


def is_jump(record: BrokerGroupRecord, epoch: int, settings: ControllerSettings) -> bool:
    """Whether an epoch is too far above the record's to be followed without a person: one poisoned broker can report it."""
    # The epoch that is raised above it, and a grant above that, must still fit into an int.
    return epoch > min(max(record.master_epoch + settings.max_epoch_jump, settings.accepted_epoch), MAX_EPOCH - 2)


def usable_eligible(record: BrokerGroupRecord, settings: ControllerSettings) -> frozenset[int]:
    """Return the eligible replicas (rule 1) while nothing can be acknowledged: the floor is on, and the set below it."""
    return record.eligible if len(record.sync_state_set) < settings.floor else frozenset()


def mark_of(replica: Replica) -> Mark:
    return Mark(replica.broker_id, replica.held_epoch, replica.held_offset)


def demand_of(record: BrokerGroupRecord | None, broker_id: int) -> Demand:
    replica = record.claimed_replica(broker_id) if record is not None else None
    if record is None or replica is None:
        return Demand()
    return Demand(replica.held_epoch, replica.held_offset, broker_id in record.lost_seats)


def bar_of(record: BrokerGroupRecord, replica: Replica, holding: Holding) -> Mark:
    """Return what the report must reach: a mark older than it, and for a member what an earlier process of it told here."""
    epoch, offset = min(replica.held_epoch, holding.seen.epoch), min(replica.held_offset, holding.seen.offset)
    if replica.broker_id in record.sync_state_set:
        epoch, offset = max(epoch, holding.known.epoch), max(offset, holding.known.offset)
    return Mark(replica.broker_id, epoch, offset)


def falls_short(reported: Holding | LiveReplica, bar: Mark) -> bool:
    return reported.epoch < bar.epoch or reported.max_offset < bar.offset


def below_its_mark(record: BrokerGroupRecord, replica: LiveReplica) -> bool:
    """Whether a holder of a seat reports less than its mark: it is no candidate, even before the loss is committed."""
    recorded = record.claimed_replica(replica.broker_id)
    # The master's heartbeat may be older than its mark; `report_holdings` withdraws its seat if it has lost its log.
    if recorded is None or not replica.has_reported or replica.broker_id == record.granted_master_id:
        return False
    return replica.broker_id in record.seats and falls_short(replica, mark_of(recorded))


def highest(one: Mark, other: Mark) -> Mark:
    return Mark(one.broker_id, max(one.epoch, other.epoch), max(one.offset, other.offset))


def lowest(broker_id: int, marks: Iterable[Mark]) -> Mark:
    """Return the least of them; -1: there is none."""
    found = list(marks) or [Mark(broker_id)]
    return Mark(broker_id, min(mark.epoch for mark in found), min(mark.offset for mark in found))


def _proven(record: BrokerGroupRecord, holding: Holding) -> Mark:
    """Return what the report proves: an offset below zero if nothing.

    Under the record's epoch it proves all that it says: a replica has that epoch from the present master's log, after it truncated.
    If Java did not write the epoch (it refuses two that begin at one offset), what a member told since it is in the set counts.
    """
    told = holding.sure
    if told.epoch == told.offset == -1 and holding.epoch == record.master_epoch:
        return Mark(holding.broker_id, offset=_confirmed(holding.max_offset, holding.confirm_offset))
    return told


def told_mark(replica: LiveReplica) -> Mark:
    """Return what the replica's reports prove that it holds, if they are no older than its last truncation."""
    offset = _confirmed(replica.max_offset, replica.confirm_offset)
    # A truncation to the very beginning of an epoch drops the epoch.
    return Mark(replica.broker_id, replica.epoch if offset > max(replica.epoch_first_offset, 0) else -1, offset)


def joining_mark(record: BrokerGroupRecord, replica: LiveReplica) -> Mark:
    told = told_mark(replica)
    if replica.epoch >= record.master_epoch:
        return told
    # It has reached the master's mark, but its last report is older than that.
    master = record.claimed_replica(record.master_broker_id)
    return lowest(replica.broker_id, [told, mark_of(master)] if master is not None else [])


def election_marks(record: BrokerGroupRecord, winner: LiveReplica, eligible: frozenset[int]) -> tuple[Mark, ...]:
    """Return the marks after an election: the winner keeps its own, all others get the lowest, up to which all their logs agree."""
    holders = {one: mark_of(record.replicas[one]) for one in record.seats & record.replicas.keys()}
    own = holders.get(winner.broker_id, Mark(winner.broker_id))
    if winner.epoch >= record.master_epoch:
        own = highest(own, told_mark(winner))
    least = lowest(winner.broker_id, holders.values())
    return (own, *(Mark(one, least.epoch, least.offset) for one in sorted(eligible)))


def _confirmed(max_offset: int, confirm_offset: int) -> int:
    # A killed process may lose the torn end of its log.
    return min(max_offset, confirm_offset) if confirm_offset >= 0 else max_offset


def _next_mark_offset(replica: Replica, settings: ControllerSettings) -> int:
    """Return from which offset on a new mark is worth a write: a full bucket further, or, while small, twice as far."""
    held = max(replica.held_offset, 0)
    return held + min(settings.held_bucket_bytes, max(held, 1))


# A report above the record's epoch proves that the record is older than the disks, and its SyncStateSet worthless (rule 3). The
# record goes on at the highest epoch seen + 1: with the very epoch seen, a polling Java master would take the empty set from it.
# The set epoch rises by as much as an epoch may jump, because only a broker's own 1001 tells its set epoch.
#
# A seat lost makes the set smaller without the master, under the shrink floor too: in the set the loser would stay electable
# without the data (rule 2).


def epoch_floor(
    record: BrokerGroupRecord, settings: ControllerSettings, *, seen_epoch: int, seen_set_epoch: int = 0
) -> decision.EpochFloorRaised:
    epoch = max(record.master_epoch, seen_epoch) + 1
    set_epoch = max(record.sync_state_set_epoch, seen_set_epoch) + settings.max_epoch_jump
    last = MAX_EPOCH - 1
    return decision.EpochFloorRaised(epoch=min(epoch, last), sync_state_set_epoch=min(set_epoch, last))


def epoch_seen_above(record: BrokerGroupRecord, live: Live) -> int | None:
    """Return the highest epoch that a living replica of the group reports above the record's."""
    epochs = (live[one].epoch for one, replica in record.replicas.items() if one in live and replica.claimed)
    return max((epoch for epoch in epochs if epoch > record.master_epoch), default=None)


def waiting_jump(record: BrokerGroupRecord, live: Live, settings: ControllerSettings) -> int | None:
    """Return an epoch that waits for a person (`settings.accepted_epoch`), if one is reported."""
    highest = epoch_seen_above(record, live)
    return highest if highest is not None and is_jump(record, highest, settings) else None


def is_ahead(record: BrokerGroupRecord, report: ReportAhead, settings: ControllerSettings) -> bool:
    """Whether a replica knows of a commit that the record has forgotten, within what may be followed."""
    if record.claimed_replica(report.broker_id) is None or is_jump(record, report.master_epoch, settings):
        return False
    if report.master_epoch != record.master_epoch:
        return report.master_epoch > record.master_epoch
    ahead = report.sync_state_set_epoch - record.sync_state_set_epoch
    return report.broker_id == record.granted_master_id and 0 < ahead <= settings.max_epoch_jump


def report_ahead(record: BrokerGroupRecord, request: ReportAhead, settings: ControllerSettings) -> Decision:
    if not is_ahead(record, request, settings):
        return decided(record, None, f"{request.broker_id} knows no more than the record")
    near = request.sync_state_set_epoch <= record.sync_state_set_epoch + settings.max_epoch_jump
    set_epoch = request.sync_state_set_epoch if near else 0
    floor = epoch_floor(record, settings, seen_epoch=request.master_epoch, seen_set_epoch=set_epoch)
    why = (
        f"rule 3: {request.broker_id} was told epoch {request.master_epoch}, set epoch {request.sync_state_set_epoch}; "
    )
    why += f"the record has {record.master_epoch} and {record.sync_state_set_epoch}: it went back in time"
    return decided(record, None, why, floor)


def report_holdings(record: BrokerGroupRecord, request: ReportHoldings, settings: ControllerSettings) -> Decision:
    """Take the reports into the record: an epoch above it first, then seats, then marks."""
    if not record.is_known:
        return decided(record, None, "no broker of the group holds an id")
    of_kind: dict[News, list[Holding]] = {kind: [] for kind in News}
    for holding in request.holdings:
        of_kind[report_is_news(record, holding, settings)].append(holding)
    if of_kind[News.FLOOR]:
        highest = max(of_kind[News.FLOOR], key=lambda holding: (holding.epoch, holding.broker_id))
        floor = epoch_floor(record, settings, seen_epoch=highest.epoch)
        why = f"rule 3: {highest.broker_id} reports epoch {highest.epoch}, the record has {record.master_epoch}"
        return decided(record, None, f"{why}: it went back in time", floor)
    return _seats(record, request, of_kind, settings)


def _seats(
    record: BrokerGroupRecord, request: ReportHoldings, of_kind: dict[News, list[Holding]], settings: ControllerSettings
) -> Decision:
    happened: list[decision.Event] = []
    reasons: list[str] = []
    if of_kind[News.JUMP]:
        jump = max(holding.epoch for holding in of_kind[News.JUMP])
        reasons.append(f"rule 3: epoch {jump} is too far above {record.master_epoch} to be followed")
    if record.eligible and not usable_eligible(record, settings):
        happened.append(decision.EligibleForgotten())
        reasons.append(f"rule 1: {draw_ids(record.eligible)} are not eligible any more, the set is not below the floor")
    # Judged again without those: a report that was only news because of them has lost nothing.
    known = decision.apply_events(record, happened)
    lost = {one.broker_id: one for one in request.holdings if report_is_news(known, one, settings) is News.LOSS}
    if lost:
        bars = tuple(bar_of(known, known.replicas[one], holding) for one, holding in sorted(lost.items()))
        happened.append(decision.SeatsLost(broker_ids=frozenset(lost), marks=bars))
        reasons += [f"rule 2: {draw_report(lost[bar.broker_id])} is less than {_draw_mark(bar)}" for bar in bars]
    regained = frozenset(holding.broker_id for holding in of_kind[News.REGAINED])
    if regained:
        happened.append(decision.SeatsRegained(broker_ids=regained))
        reasons.append(f"rule 2: {draw_ids(regained)} have what they had")
    marks = tuple(
        highest(mark_of(known.replicas[one.broker_id]), _proven(known, one))
        for one in sorted(of_kind[News.MARK], key=lambda holding: holding.broker_id)
        if one.broker_id in known.seats
    )
    if marks:
        happened.append(decision.HoldingsMarked(marks=marks))
        reasons.append("; ".join(f"{mark.broker_id} holds {_draw_mark(mark)}" for mark in marks))
    return decided(record, None, "; ".join(reasons) or "nothing new", *happened)


def draw_report(reported: Holding | LiveReplica) -> str:
    return f"{reported.broker_id} (epoch {reported.epoch}, offset {reported.max_offset})"


def _draw_mark(mark: Mark) -> str:
    return f"(epoch {mark.epoch}, offset {mark.offset})"
