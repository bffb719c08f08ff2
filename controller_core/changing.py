"""The plane's own requests about the master: begin, take over and end a change (`plan.py`), or renew the master's epoch.

A change that waits for its election keeps out others that would begin so. It does not keep out an election: a plane that knows
that the master is dead elects, and the plan becomes that election's. A decided change is superseded by the next one, which takes
over what must be restored.
"""

from dataclasses import replace

from controller_core.decision import ControllerCode, Decision, decided, refused
from controller_core.events import ChangeWritten, MasterRenewed, apply_event
from controller_core.holdings import epoch_seen_above
from controller_core.model import MAX_EPOCH, BrokerGroupRecord, Live
from controller_core.plan import Change, Phase
from controller_core.requests import BeginChange, EndChange, Ending, RenewMaster, TakeOverChange


def begin_change(record: BrokerGroupRecord | None, request: BeginChange) -> Decision:
    """Give the change the next id. It restores the minimum that an earlier change has still to restore."""
    wanted = request.change
    master = (wanted.from_broker_id, request.master_epoch)
    if record is None or (record.granted_master_id, record.master_epoch) != master:
        return _refused(record, f"{wanted.from_broker_id} is not master of epoch {request.master_epoch}")
    under_way = record.change
    if under_way is not None and under_way.waits_for_election:
        by = under_way.carried_out_by
        return _refused(record, f"change {under_way.id} ({under_way.kind}) is under way, carried out by {by}")
    left = under_way.restore if under_way is not None else None
    if left is not None and wanted.restore is not None and left.broker_id != wanted.restore.broker_id:
        left = None  # one minimum is remembered; the keeper finds the other one
    change = replace(wanted, id=record.change_id + 1, restore=left or wanted.restore, before=record.as_before)
    why = f"change {change.id} ({change.kind}) begins: {change.phase}"
    return decided(record, None, why, ChangeWritten(change=change))


def take_over_change(record: BrokerGroupRecord | None, request: TakeOverChange) -> Decision:
    """Take over a change that has not moved since it was looked at: one that has moved belongs to a living plane."""
    if record is None or record.change != request.change:
        return _refused(record, f"change {request.change.id} has moved on")
    by, before = request.carried_out_by, request.change.carried_out_by
    why = f"change {request.change.id} is carried out by {by} from now on, not by {before}"
    return decided(record, None, why, ChangeWritten(change=replace(request.change, carried_out_by=by)))


def end_change(record: BrokerGroupRecord | None, request: EndChange) -> Decision:
    """Give the change up, note that all were told, or take it out of the record, if it is still that one and this plane's."""
    change = record.change if record is not None else None
    is_own = change is not None and (change.id, change.carried_out_by) == (request.change_id, request.carried_out_by)
    if record is None or change is None or not is_own:
        return _refused(record, f"change {request.change_id} is over, or carried out by another plane")
    left: Change | None = None
    if request.how is Ending.GIVEN_UP:
        if not change.waits_for_election:
            return _refused(record, f"change {change.id} has its election: {change.phase}")
        left = replace(change, phase=Phase.RESTORING) if change.restore is not None else None
    elif request.how is Ending.TOLD:
        if not change.is_decided:
            return _refused(record, f"change {change.id} has no election: {change.phase}")
        left = change.told
    return decided(record, None, f"change {change.id} ({change.kind}) {request.how}", ChangeWritten(change=left))


def _refused(record: BrokerGroupRecord | None, why: str) -> Decision:
    return refused(record, ControllerCode.CONTROLLER_INVALID_MASTER, None, why)


def renew_master(record: BrokerGroupRecord | None, request: RenewMaster, live: Live) -> Decision:
    """Raise the epoch of this master, if it is still master under that epoch, and alive. The SyncStateSet and the eligible
    stay.

    A Java slave on a wrong link gives it up only for a change of role, under an epoch above its own: its cure takes two epochs,
    the first of which names another master. A master that denies its role was told an epoch that no controller committed: the
    record goes on as far above as one may jump (safety rule 3).
    """
    master = (request.broker_id, request.master_epoch)
    if record is None or (record.granted_master_id, record.master_epoch) != master:
        return _refused(record, f"{request.broker_id} is not master of epoch {request.master_epoch}")
    if request.broker_id not in live:
        return _refused(record, f"the master {request.broker_id} is not alive")
    if epoch_seen_above(record, live) is not None:
        return _refused(record, "rule 3: a replica reports a higher epoch than the record's")
    if max(record.master_epoch, record.sync_state_set_epoch) + request.epochs - 1 >= MAX_EPOCH:
        return _refused(record, "there is no epoch left")
    event = MasterRenewed(epochs=request.epochs, plan=request.plan)
    epoch = apply_event(record, event).master_epoch
    return decided(record, None, f"the master {request.broker_id} goes on under epoch {epoch}", event)
