"""Beginning, taking over, giving up and ending a change of master in the record (`plan.py`). Ours, never on the wire.

A change that waits for its election (`Fencing`, `Quieting`) keeps out every other one that would begin so; an election itself
is kept out by nothing: who finds the master dead for certain elects, and the plan under way becomes that election's. A change
that has been decided is superseded by the next one, which takes over what is still to be restored.
"""

from dataclasses import replace

from controller_core.codes import ControllerCode
from controller_core.decision import ChangeAnswer, Decision
from controller_core.events import (
    ChangeBegun,
    ChangeEnded,
    ChangeGivenUp,
    ChangeTakenOver,
    ChangeTold,
    Event,
    apply_events,
)
from controller_core.model import BrokerGroupRecord
from controller_core.plan import Phase
from controller_core.requests import BeginChange, EndChange, GiveUpChange, TakeOverChange

WAITS_FOR_ITS_ELECTION = (Phase.FENCING, Phase.QUIETING)


def begin_change(record: BrokerGroupRecord | None, request: BeginChange) -> Decision:
    """Give the change the next id. A minimum that an earlier change has still to restore is the one that this one restores."""
    wanted = request.change
    if record is None or (record.granted_master_id, record.master_epoch) != (
        wanted.from_broker_id,
        request.master_epoch,
    ):
        return _refused(record, f"{wanted.from_broker_id} is not master of epoch {request.master_epoch}")
    under_way = record.change
    if under_way is not None and under_way.phase in WAITS_FOR_ITS_ELECTION:
        return _refused(
            record, f"change {under_way.id} ({under_way.kind}) is under way, carried out by {under_way.carried_out_by}"
        )
    left = under_way.restore if under_way is not None else None
    if left is not None and wanted.restore is not None and left.broker_id != wanted.restore.broker_id:
        left = None  # one minimum is remembered; the keeper finds the other one
    change = replace(wanted, id=record.change_id + 1, restore=left or wanted.restore, before=record.as_before)
    return _decided(record, ChangeBegun(change=change), f"change {change.id} ({change.kind}) begins: {change.phase}")


def take_over_change(record: BrokerGroupRecord | None, request: TakeOverChange) -> Decision:
    """Only what was looked at for a while is taken over: a change that has moved since belongs to somebody alive."""
    if record is None or record.change != request.change:
        return _refused(record, f"change {request.change.id} has moved on")
    by = request.carried_out_by
    return _decided(
        record,
        ChangeTakenOver(carried_out_by=by),
        f"change {request.change.id} is carried out by {by} from now on, not by {request.change.carried_out_by}",
    )


def give_up_change(record: BrokerGroupRecord | None, request: GiveUpChange) -> Decision:
    """Nobody is elected in it any more. Without anything to restore it ends at once."""
    change = record.change if record is not None else None
    if (
        record is None
        or change is None
        or (change.id, change.carried_out_by) != (request.change_id, request.carried_out_by)
    ):
        return _refused(record, f"change {request.change_id} is over, or carried out by another plane")
    if change.phase not in WAITS_FOR_ITS_ELECTION:
        return _refused(record, f"change {change.id} has its election: {change.phase}")
    event: Event = ChangeGivenUp() if change.restore is not None else ChangeEnded()
    return _decided(record, event, f"change {change.id} ({change.kind}) is given up")


def end_change(record: BrokerGroupRecord | None, request: EndChange) -> Decision:
    """Take it out of the record, if it is still that one and this plane's."""
    change = record.change if record is not None else None
    if (
        record is None
        or change is None
        or (change.id, change.carried_out_by) != (request.change_id, request.carried_out_by)
    ):
        return _refused(record, f"change {request.change_id} is over, or carried out by another plane")
    if request.incident_open and not change.is_decided:
        return _refused(record, f"change {change.id} has no election: {change.phase}")
    if request.incident_open:
        return _decided(record, ChangeTold(), f"change {change.id} ({change.kind}) is told")
    return _decided(record, ChangeEnded(), f"change {change.id} ({change.kind}) ends")


def _decided(record: BrokerGroupRecord, event: Event, why: str) -> Decision:
    after = apply_events(record, (event,))
    return Decision(
        code=ControllerCode.SUCCESS,
        answer=ChangeAnswer(change=after.change if after is not None else None),
        events=(event,),
        record=after,
        why=why,
    )


def _refused(record: BrokerGroupRecord | None, why: str) -> Decision:
    return Decision(
        code=ControllerCode.CONTROLLER_INVALID_MASTER,
        answer=ChangeAnswer(change=record.change if record is not None else None),
        record=record,
        why=why,
    )
