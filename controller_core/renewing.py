"""RenewMaster: the same master under the next epoch, without an election. Ours, for one purpose.

A Java slave that hangs on a wrong link gives it up only for a change of role, and takes a role only under an epoch above its
own. So epochs must be made for it, and the whole group must
go on above them. The master stays, it lives and knows what it acknowledged; so the SyncStateSet and the eligible stay as they
are: nothing that any of them holds is in doubt. Both epochs rise, so that what the master asked before is fenced. The cure of
a slave takes two epochs at once: it is told of another master under the first, and of the real one under the second.

A master that denies its role was told another one under an epoch that no controller committed, and is deaf to every epoch
below. For it the record goes on as far above its own epoch as one may jump (safety rule 3).
"""

from collections.abc import Mapping
from dataclasses import replace

from controller_core.codes import ControllerCode
from controller_core.decision import Decision, RenewMasterAnswer
from controller_core.events import MasterRenewed, apply_event
from controller_core.model import MAX_EPOCH, BrokerGroupRecord, LiveReplica
from controller_core.recovery import epoch_seen_above
from controller_core.requests import RenewMaster


def renew_master(record: BrokerGroupRecord | None, request: RenewMaster, live: Mapping[int, LiveReplica]) -> Decision:
    """Raise the epoch of the master that is meant, if it is still that one, under that epoch, and alive."""
    refusal = _refusal(record, request, live)
    if record is None or refusal is not None:
        return Decision(
            code=ControllerCode.CONTROLLER_INVALID_MASTER,
            answer=RenewMasterAnswer(),
            record=record,
            why=refusal or "there is no record",
        )
    plan = replace(request.plan, before=record.as_before) if request.plan is not None else None
    event = MasterRenewed(epochs=request.epochs, plan=plan, slave=request.slave)
    after = apply_event(record, event)
    return Decision(
        code=ControllerCode.SUCCESS,
        answer=RenewMasterAnswer(master_epoch=after.master_epoch),
        events=(event,),
        record=after,
        why=f"the master {request.broker_id} goes on under epoch {after.master_epoch}",
    )


def _refusal(record: BrokerGroupRecord | None, request: RenewMaster, live: Mapping[int, LiveReplica]) -> str | None:
    if record is None:
        return "there is no record"
    if (record.granted_master_id, record.master_epoch) != (request.broker_id, request.master_epoch):
        return f"{request.broker_id} is not master of epoch {request.master_epoch}"
    if request.broker_id not in live:
        return f"the master {request.broker_id} is not alive"
    if epoch_seen_above(record, live) is not None:
        return "rule 3: a replica reports a higher epoch than the record's"
    if max(record.master_epoch, record.sync_state_set_epoch) + request.epochs - 1 >= MAX_EPOCH:
        return "there is no epoch left"
    return None
