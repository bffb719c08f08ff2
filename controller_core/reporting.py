"""ReportHoldings: what the members' heartbeats say of their disks, made durable (safety rules 1, 2, 3).

In the order of weight: an epoch above the record's means that the record itself went back in time, and then no seat means
anything (`recovery.py`). Else whoever came back with less than it had loses its seat in the set (sync state set epoch
+ 1) and among the eligible, and the mastership with it (epoch + 1), in one commit. Where nobody holds a seat afterwards
the losers are remembered: one that has its data again while nobody was elected, because an empty mount was corrected,
gets its seat back.

A seat lost makes the set smaller without the master's doing, under the shrink floor too. A Java master that learns of a
set of one acknowledges what waits. That releases no more than its own broken link
already did: the loser's report comes from a new process, so the link to the old one is closed, and Java 5.5.0 applied
the smaller set to itself in that moment, asked or not. What was put since was refused (the set is below the minimum)
or waits for the members that are left. To keep the loser in the set instead would be worse: it would be waited for
correctly, but stay electable without the data, or never become so again.
"""

from controller_core.codes import ControllerCode
from controller_core.decision import Decision, ReportHoldingsAnswer
from controller_core.events import (
    EligibleForgotten,
    Event,
    HoldingsMarked,
    Mark,
    SeatsLost,
    SeatsRegained,
    apply_events,
)
from controller_core.holdings import News, bar_of, raised_mark, report_is_news, usable_eligible
from controller_core.model import BrokerGroupRecord, draw_ids
from controller_core.recovery import epoch_floor
from controller_core.requests import Holding, ReportHoldings
from controller_core.settings import ControllerSettings


def report_holdings(
    record: BrokerGroupRecord | None, request: ReportHoldings, settings: ControllerSettings
) -> Decision:
    """Take the reports into the record."""
    if record is None or not record.is_known:
        return _decide(record, (), ReportHoldingsAnswer(), why=f"no broker of {request.broker_name} holds an id")
    of_kind: dict[News, list[Holding]] = {kind: [] for kind in News}
    for holding in request.holdings:
        of_kind[report_is_news(record, holding, settings)].append(holding)
    jump = max((holding.epoch for holding in of_kind[News.JUMP]), default=None)
    if of_kind[News.FLOOR]:
        highest = max(of_kind[News.FLOOR], key=lambda holding: (holding.epoch, holding.broker_id))
        floor = epoch_floor(record, settings, seen_epoch=highest.epoch)
        answer = ReportHoldingsAnswer(epoch_floor=floor.epoch, epoch_jump=jump)
        why = f"rule 3: {highest.broker_id} reports epoch {highest.epoch}, the record has {record.master_epoch}"
        return _decide(record, (floor,), answer, why=f"{why}: it went back in time")
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
    return _decide(record, tuple(events), answer, why="; ".join(reasons) or "nothing new")


def _losers(record: BrokerGroupRecord, request: ReportHoldings, settings: ControllerSettings) -> dict[int, Holding]:
    return {
        holding.broker_id: holding
        for holding in request.holdings
        if report_is_news(record, holding, settings) is News.LOSS
    }


def _marks(record: BrokerGroupRecord, holdings: list[Holding]) -> tuple[Mark, ...]:
    """Return the marks that were raised, of those who still have a seat."""
    return tuple(
        raised_mark(record, record.replicas[holding.broker_id], holding)
        for holding in sorted(holdings, key=lambda holding: holding.broker_id)
        if holding.broker_id in record.seats
    )


def _decide(
    record: BrokerGroupRecord | None, events: tuple[Event, ...], answer: ReportHoldingsAnswer, *, why: str
) -> Decision:
    return Decision(
        code=ControllerCode.SUCCESS,
        answer=answer,
        events=events,
        record=apply_events(record, events),
        why=why,
    )


def _draw(holding: Holding) -> str:
    return f"{holding.broker_id} (epoch {holding.epoch}, offset {holding.max_offset})"


def _draw_mark(mark: Mark) -> str:
    return f"(epoch {mark.epoch}, offset {mark.offset})"
