"""What members report, made durable: a record that went back in time (safety rule 3), seats lost and regained, marks (rules 1
and 2).

Every epoch that a broker reports was committed before it was granted. So a report above the record's epoch proves that the
record is older than the disks (etcd was restored, the object created again). Its SyncStateSet is then worthless, and brokers
ignore every epoch that is not above their own. The record goes on at the highest epoch seen + 1, without master and seats: with
the very epoch seen, a polling Java master would take the empty set from it. The set epoch rises by as much as an epoch may
jump, because only a broker's own 1001 tells its set epoch. Then it is a first election on disks with data.

A seat lost makes the set smaller without the master, under the shrink floor too. A Java master that learns of a set of one
acknowledges what waits; its own broken link did that already (5.5.0). To keep the loser in the set would be worse: it would
stay electable without the data. If no seat is left, the losers are remembered: one that has its data again before an election
gets its seat back.
"""

from collections.abc import Mapping

from controller_core.decision import Decision, ReportHoldingsAnswer, decided
from controller_core.events import (
    EligibleForgotten,
    EpochFloorRaised,
    Event,
    HoldingsMarked,
    Mark,
    SeatsLost,
    SeatsRegained,
    apply_events,
)
from controller_core.holdings import News, bar_of, is_jump, raised_mark, report_is_news, usable_eligible
from controller_core.model import MAX_EPOCH, BrokerGroupRecord, LiveReplica, draw_ids
from controller_core.requests import Holding, ReportAhead, ReportHoldings
from controller_core.settings import ControllerSettings


def epoch_floor(
    record: BrokerGroupRecord, settings: ControllerSettings, *, seen_epoch: int, seen_set_epoch: int = 0
) -> EpochFloorRaised:
    """Return the event that sets the record above what was seen."""
    set_epoch = max(record.sync_state_set_epoch, seen_set_epoch) + settings.max_epoch_jump
    return EpochFloorRaised(
        epoch=min(max(record.master_epoch, seen_epoch) + 1, MAX_EPOCH - 1),
        sync_state_set_epoch=min(set_epoch, MAX_EPOCH - 1),
    )


def epoch_seen_above(record: BrokerGroupRecord, live: Mapping[int, LiveReplica]) -> int | None:
    """Return the highest epoch that a living replica of the group reports above the record's."""
    epochs = [live[one].epoch for one in record.replicas if one in live and record.claimed_replica(one) is not None]
    highest = max(epochs, default=-1)
    return highest if highest > record.master_epoch else None


def waiting_jump(
    record: BrokerGroupRecord, live: Mapping[int, LiveReplica], settings: ControllerSettings
) -> int | None:
    """Return an epoch that waits for a person (`settings.accepted_epoch`), if one is reported."""
    highest = epoch_seen_above(record, live)
    return highest if highest is not None and is_jump(record, highest, settings) else None


def is_ahead(record: BrokerGroupRecord, report: ReportAhead, settings: ControllerSettings) -> bool:
    """Whether a replica of the group knows of a commit that the record has forgotten, within what may be followed."""
    if record.claimed_replica(report.broker_id) is None or is_jump(record, report.master_epoch, settings):
        return False
    if report.master_epoch != record.master_epoch:
        return report.master_epoch > record.master_epoch
    ahead = report.sync_state_set_epoch - record.sync_state_set_epoch
    return report.broker_id == record.granted_master_id and 0 < ahead <= settings.max_epoch_jump


def report_ahead(record: BrokerGroupRecord | None, request: ReportAhead, settings: ControllerSettings) -> Decision:
    """Raise the epoch above what a replica was told by a commit that the record has forgotten."""
    if record is None or not is_ahead(record, request, settings):
        why = f"{request.broker_id} knows no more than the record"
        return decided(record, ReportHoldingsAnswer(), why)
    near = request.sync_state_set_epoch <= record.sync_state_set_epoch + settings.max_epoch_jump
    floor = epoch_floor(
        record,
        settings,
        seen_epoch=request.master_epoch,
        seen_set_epoch=request.sync_state_set_epoch if near else 0,
    )
    why = (
        f"rule 3: {request.broker_id} was told epoch {request.master_epoch}, set epoch {request.sync_state_set_epoch}; "
        f"the record has {record.master_epoch} and {record.sync_state_set_epoch}: it went back in time"
    )
    return decided(record, ReportHoldingsAnswer(epoch_floor=floor.epoch), why, floor)


def report_holdings(
    record: BrokerGroupRecord | None, request: ReportHoldings, settings: ControllerSettings
) -> Decision:
    """Take the reports into the record: an epoch above it first, then seats, then marks."""
    if record is None or not record.is_known:
        return decided(record, ReportHoldingsAnswer(), f"no broker of {request.broker_name} holds an id")
    of_kind: dict[News, list[Holding]] = {kind: [] for kind in News}
    for holding in request.holdings:
        of_kind[report_is_news(record, holding, settings)].append(holding)
    jump = max((holding.epoch for holding in of_kind[News.JUMP]), default=None)
    if of_kind[News.FLOOR]:
        highest = max(of_kind[News.FLOOR], key=lambda holding: (holding.epoch, holding.broker_id))
        floor = epoch_floor(record, settings, seen_epoch=highest.epoch)
        answer = ReportHoldingsAnswer(epoch_floor=floor.epoch, epoch_jump=jump)
        why = f"rule 3: {highest.broker_id} reports epoch {highest.epoch}, the record has {record.master_epoch}"
        return decided(record, answer, f"{why}: it went back in time", floor)
    return _seats(record, request, of_kind, settings, jump=jump)


def _seats(
    record: BrokerGroupRecord,
    request: ReportHoldings,
    of_kind: dict[News, list[Holding]],
    settings: ControllerSettings,
    *,
    jump: int | None,
) -> Decision:
    events: list[Event] = []
    reasons = (
        [f"rule 3: epoch {jump} is too far above {record.master_epoch} to be followed"] if jump is not None else []
    )
    if record.eligible and not usable_eligible(record, settings):
        events.append(EligibleForgotten())
        reasons.append(f"rule 1: {draw_ids(record.eligible)} are not eligible any more, the set is not below the floor")
    # Judged again without those: a report that was only news because of them has lost nothing.
    known = apply_events(record, events) or record
    lost = _losers(known, request, settings)
    if lost:
        bars = tuple(bar_of(known, known.replicas[one], holding) for one, holding in sorted(lost.items()))
        events.append(SeatsLost(broker_ids=frozenset(lost), marks=bars))
        reasons += [f"rule 2: {_draw(lost[bar.broker_id])} is less than {_draw_mark(bar)}" for bar in bars]
    regained = frozenset(holding.broker_id for holding in of_kind[News.REGAINED])
    if regained:
        events.append(SeatsRegained(broker_ids=regained))
        reasons.append(f"rule 2: {draw_ids(regained)} have what they had")
    marks = _marks(known, of_kind[News.MARK])
    if marks:
        events.append(HoldingsMarked(marks=marks))
        reasons.append("; ".join(f"{mark.broker_id} holds {_draw_mark(mark)}" for mark in marks))
    answer = ReportHoldingsAnswer(lost=frozenset(lost), regained=regained, epoch_jump=jump)
    return decided(record, answer, "; ".join(reasons) or "nothing new", *events)


def _losers(record: BrokerGroupRecord, request: ReportHoldings, settings: ControllerSettings) -> dict[int, Holding]:
    return {
        holding.broker_id: holding
        for holding in request.holdings
        if report_is_news(record, holding, settings) is News.LOSS
    }


def _marks(record: BrokerGroupRecord, holdings: list[Holding]) -> tuple[Mark, ...]:
    """Return the raised marks of replicas that still have a seat."""
    return tuple(
        raised_mark(record, record.replicas[holding.broker_id], holding)
        for holding in sorted(holdings, key=lambda holding: holding.broker_id)
        if holding.broker_id in record.seats
    )


def _draw(holding: Holding) -> str:
    return f"{holding.broker_id} (epoch {holding.epoch}, offset {holding.max_offset})"


def _draw_mark(mark: Mark) -> str:
    return f"(epoch {mark.epoch}, offset {mark.offset})"
