"""AlterSyncStateSet (1001): the master moves members in and out. Java's checks in Java's order.

The order is that of `controller-protocol.md` §5.1. Two checks are ours. A master whose process was lost may not alter
anything until it is granted a new epoch (safety rule 6): what arrives under its id is either the dead process's last
word or the new process's first before it has a mandate. It is refused as 2002, "not the master", because that is the
truth of that moment. And under the shrink floor a proposal that drops members below `min_in_sync_replicas` is refused
(safety rule 1), last, so that every answer a Java controller would refuse keeps Java's code.
"""

from collections.abc import Mapping

from controller_core.codes import ControllerCode
from controller_core.decision import AlterSyncStateSetAnswer, Decision, SyncStateSetBody
from controller_core.election import draw_ids
from controller_core.events import SyncStateSetAltered, apply_event
from controller_core.model import BrokerGroupRecord, LiveReplica
from controller_core.requests import AlterSyncStateSet
from controller_core.settings import ControllerSettings

_Refusal = tuple[ControllerCode, str]


def alter_sync_state_set(
    record: BrokerGroupRecord | None,
    request: AlterSyncStateSet,
    live: Mapping[int, LiveReplica],
    settings: ControllerSettings,
) -> Decision:
    """Accept the master's proposal, or say which of its beliefs is wrong."""
    if record is None or not record.is_known:
        return _refuse(
            record, (ControllerCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED, "Broker metadata is not existed")
        )
    refusal = (
        _check_sender(record, request)
        or _check_members(record, request, live)
        or _check_shrink_floor(record, request, settings)
    )
    if refusal is not None:
        return _refuse(record, refusal)
    event = SyncStateSetAltered(sync_state_set=frozenset(request.sync_state_set))
    after = apply_event(record, event)
    return Decision(
        code=ControllerCode.SUCCESS,
        answer=AlterSyncStateSetAnswer(
            new_sync_state_set_epoch=after.sync_state_set_epoch,
            body=SyncStateSetBody(sync_state_set=after.sync_state_set, sync_state_set_epoch=after.sync_state_set_epoch),
        ),
        events=(event,),
        record=after,
        why=f"the master {record.master_broker_id} moved the set from {draw_ids(record.sync_state_set)} to "
        f"{draw_ids(after.sync_state_set)}",
    )


def _check_sender(record: BrokerGroupRecord, request: AlterSyncStateSet) -> _Refusal | None:
    if request.sync_state_set == record.sync_state_set:
        return (
            ControllerCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED,
            "The newSyncStateSet is equal with oldSyncStateSet, no needed to update syncStateSet",
        )
    if record.master_broker_id is None or request.master_broker_id != record.master_broker_id:
        return _reject(
            ControllerCode.CONTROLLER_INVALID_MASTER,
            f"the current leader is:{{{_java(record.master_broker_id)}}}, not {{{_java(request.master_broker_id)}}}",
        )
    if record.master_process_lost:
        return _reject(
            ControllerCode.CONTROLLER_INVALID_MASTER,
            f"the process of leader {{{record.master_broker_id}}} was lost and no new epoch is granted yet",
        )
    if request.master_epoch != record.master_epoch:
        return _reject(
            ControllerCode.CONTROLLER_FENCED_MASTER_EPOCH,
            f"the current master epoch is:{{{record.master_epoch}}}, not {{{_java(request.master_epoch)}}}",
        )
    if request.sync_state_set_epoch != record.sync_state_set_epoch:
        return _reject(
            ControllerCode.CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH,
            f"the current syncStateSet epoch is:{{{record.sync_state_set_epoch}}}, not {{{request.sync_state_set_epoch}}}",
        )
    return None


def _check_members(
    record: BrokerGroupRecord, request: AlterSyncStateSet, live: Mapping[int, LiveReplica]
) -> _Refusal | None:
    for broker_id in sorted(request.sync_state_set):
        if record.claimed_replica(broker_id) is None:
            return _reject(ControllerCode.CONTROLLER_INVALID_REPLICAS, f"the replicas {{{broker_id}}} don't exist")
        if broker_id not in live:
            return _reject(ControllerCode.CONTROLLER_BROKER_NOT_ALIVE, f"the replicas {{{broker_id}}} don't alive")
    if record.master_broker_id not in request.sync_state_set:
        return _reject(
            ControllerCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED,
            f"the newSyncStateSet don't contains origin leader {{{record.master_broker_id}}}",
        )
    return None


def _check_shrink_floor(
    record: BrokerGroupRecord, request: AlterSyncStateSet, settings: ControllerSettings
) -> _Refusal | None:
    """Refuse to drop anybody while fewer than the minimum would be left. Growing towards the minimum is always welcome."""
    dropped = record.sync_state_set - request.sync_state_set
    if not settings.shrink_floor or not dropped or len(request.sync_state_set) >= settings.min_in_sync_replicas:
        return None
    return _reject(
        ControllerCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED,
        f"the newSyncStateSet {draw_ids(request.sync_state_set)} drops {draw_ids(dropped)} and would be smaller than "
        f"minInSyncReplicas {{{settings.min_in_sync_replicas}}}",
    )


def _reject(code: ControllerCode, because: str) -> _Refusal:
    return code, f"Rejecting alter syncStateSet request because {because}"


def _refuse(record: BrokerGroupRecord | None, refusal: _Refusal) -> Decision:
    code, remark = refusal
    return Decision(code=code, remark=remark, answer=AlterSyncStateSetAnswer(), record=record, why=remark)


def _java(value: int | None) -> str:
    return "null" if value is None else str(value)
