"""A record that went back in time, and how the group goes on (safety rule 3).

Every epoch a broker reports was committed before it was granted. So a report above the record's epoch proves that the
record is older than the disks: etcd was restored, the object was re-created, or a backup tool wrote it. Its
SyncStateSet is then a rumour, and electing from it loses acknowledged messages; brokers would not follow anyway,
since they ignore every epoch not above their own.

The record continues *above* what was seen: nobody is master, no seat is left, and the epoch is the highest seen + 1, as
after any lost master. (The very epoch that was seen would be worse: a Java master polls 1004, finds its own epoch, and
takes the empty set from it.) The SyncStateSet epoch rises by as much as an epoch may jump: a Java broker takes a set,
also with a mastership, only under a higher set epoch than its own (`ReplicasManager.changeSyncStateSet`), which only
its own 1001 tells. Then it is a first election on disks with data.
"""

from collections.abc import Mapping

from controller_core.codes import ControllerCode
from controller_core.decision import Decision, ReportHoldingsAnswer
from controller_core.events import EpochFloorRaised, apply_events
from controller_core.holdings import is_jump
from controller_core.model import MAX_EPOCH, BrokerGroupRecord, LiveReplica
from controller_core.requests import ReportAhead
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
    """Return an epoch that waits for a human (`settings.accepted_epoch`), if one is reported."""
    highest = epoch_seen_above(record, live)
    return highest if highest is not None and is_jump(record, highest, settings) else None


def is_ahead(record: BrokerGroupRecord, report: ReportAhead, settings: ControllerSettings) -> bool:
    """Whether a replica of the group knows of a commit that the record does not, by no more than may be followed."""
    if record.claimed_replica(report.broker_id) is None or is_jump(record, report.master_epoch, settings):
        return False
    if report.master_epoch != record.master_epoch:
        return report.master_epoch > record.master_epoch
    ahead = report.sync_state_set_epoch - record.sync_state_set_epoch
    return report.broker_id == record.granted_master_id and 0 < ahead <= settings.max_epoch_jump


def report_ahead(record: BrokerGroupRecord | None, request: ReportAhead, settings: ControllerSettings) -> Decision:
    """Raise the floor above what a replica of the group was told by a commit that the record has forgotten."""
    if record is None or not is_ahead(record, request, settings):
        why = f"{request.broker_id} knows no more than the record"
        return Decision(code=ControllerCode.SUCCESS, answer=ReportHoldingsAnswer(), record=record, why=why)
    near = request.sync_state_set_epoch <= record.sync_state_set_epoch + settings.max_epoch_jump
    floor = epoch_floor(
        record,
        settings,
        seen_epoch=request.master_epoch,
        seen_set_epoch=request.sync_state_set_epoch if near else 0,
    )
    return Decision(
        code=ControllerCode.SUCCESS,
        answer=ReportHoldingsAnswer(epoch_floor=floor.epoch),
        events=(floor,),
        record=apply_events(record, (floor,)),
        why=f"rule 3: {request.broker_id} was told epoch {request.master_epoch}, set epoch {request.sync_state_set_epoch}; "
        f"the record has {record.master_epoch} and {record.sync_state_set_epoch}: it went back in time",
    )
