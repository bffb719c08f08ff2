"""AlterSyncStateSet (1001): the master moves members in and out. docs/reference/controller.md has the checks beside Java's.

The shrink floor (safety rule 1) is checked last, so that Java's refusals keep their codes. Not where `masters_shrink_first`: a
Java 5.5.0 master drops a slave from its own set when their link breaks, and asks afterwards (apache/rocketmq #9897). The record
follows, and the dropped slave can be elected only after it has caught up (`traces/shrink_floor.txt`).

`said_again` (set by the plane, not on the wire): the master repeats a refused proposal, so it was not queued, and the master goes
on from a set of its own. It is answered the record's set under the next set epoch, because Java takes a set from nothing else.
If only dead members of the set keep others out of a larger one, they stay in it.
"""

from controller_core import decision
from controller_core.decision import ControllerCode, Decision, SyncStateSetAltered, apply_events, decided, refused
from controller_core.holdings import is_ahead, joining_mark
from controller_core.model import MAX_EPOCH, BrokerGroupRecord, Live, draw_id, draw_ids
from controller_core.requests import AlterSyncStateSet, ReportAhead
from controller_core.settings import ControllerSettings

_Refusal = tuple[ControllerCode, str]


def alter_sync_state_set(
    record: BrokerGroupRecord, request: AlterSyncStateSet, live: Live, settings: ControllerSettings
) -> Decision:
    is_apart = record.is_known and request.said_again and counts_on_another_set(record, request)
    if is_apart and _check_epoch_is_left(record) is None:
        return _told_again(record, request, settings)
    refusal = (
        _check_sender(record, request)
        or _check_members(record, request, live, kept=_kept_though_dead(record, request, settings))
        or _check_size(record, request, settings)
        or _check_epoch_is_left(record)
    )
    if refusal is not None:
        code, remark = refusal
        return refused(record, code, decision.AlterSyncStateSetAnswer(), why=remark, remark=remark)
    before, members = record.sync_state_set, request.sync_state_set
    # What a master that shrinks first answered when it dropped a member, replicas outside its set may lack.
    answered = settings.masters_shrink_first and bool(before - members)
    event = SyncStateSetAltered(
        sync_state_set=members,
        eligible=record.eligible - members if len(members) < settings.floor and not answered else frozenset(),
        marks=tuple(joining_mark(record, live[one]) for one in sorted(members - before)),
    )
    why = f"the master {record.master_broker_id} moved the set from {draw_ids(before)} to {draw_ids(members)}"
    return _accept(record, event, why)


def _told_again(record: BrokerGroupRecord, request: AlterSyncStateSet, settings: ControllerSettings) -> Decision:
    before = record.sync_state_set
    # A master that shrinks first has acknowledged without the members that it left out.
    both = before & (request.sync_state_set | {record.master_broker_id}) if settings.masters_shrink_first else before
    event = SyncStateSetAltered(sync_state_set=both, eligible=record.eligible if both == before else frozenset())
    why = f"the master {record.master_broker_id} counts on another set than {draw_ids(before)}"
    return _accept(record, event, f"{why}: told {'it again' if both == before else draw_ids(both)}")


def _accept(record: BrokerGroupRecord, event: SyncStateSetAltered, why: str) -> Decision:
    body = decision.SyncStateSetBody.of(apply_events(record, [event]))
    answer = decision.AlterSyncStateSetAnswer(new_sync_state_set_epoch=body.sync_state_set_epoch, body=body)
    return decided(record, answer, why, event)


def believes_in_more(
    record: BrokerGroupRecord | None, request: AlterSyncStateSet, settings: ControllerSettings
) -> ReportAhead | None:
    """Return what a 1001 shows that the record has forgotten (safety rule 3), to be reported once the master repeats it."""
    sender, epoch, set_epoch = request.master_broker_id, request.master_epoch, request.sync_state_set_epoch
    if record is None or sender is None or epoch is None:
        return None
    found = ReportAhead(broker_id=sender, master_epoch=epoch, sync_state_set_epoch=set_epoch)
    return found if is_ahead(record, found, settings) else None


def counts_on_another_set(record: BrokerGroupRecord, request: AlterSyncStateSet) -> bool:
    """Whether this 1001 is the rightful master's, under the present epochs, and does not start from the record's set."""
    sent = request.master_broker_id, request.master_epoch, request.sync_state_set_epoch
    if sent != (record.granted_master_id, record.master_epoch, record.sync_state_set_epoch):
        return False
    # It grows and shrinks the set, or does neither.
    return (request.sync_state_set <= record.sync_state_set) == (request.sync_state_set >= record.sync_state_set)


def only_the_dead_stop_it(record: BrokerGroupRecord, request: AlterSyncStateSet, live: Live) -> bool:
    """Whether this refused 1001 would be accepted if all members of the present set were alive."""
    if not request.sync_state_set > record.sync_state_set or record.sync_state_set <= live.keys():
        return False
    return (_check_sender(record, request) or _check_members(record, request, live, kept=record.sync_state_set)) is None


def _check_sender(record: BrokerGroupRecord, request: AlterSyncStateSet) -> _Refusal | None:
    master, set_epoch = record.master_broker_id, record.sync_state_set_epoch
    if not record.is_known or request.sync_state_set == record.sync_state_set:
        is_equal = "The newSyncStateSet is equal with oldSyncStateSet, no needed to update syncStateSet"
        remark = is_equal if record.is_known else "Broker metadata is not existed"
        return ControllerCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED, remark
    if master is None or request.master_broker_id != master:
        because = f"the current leader is:{{{draw_id(master)}}}, not {{{draw_id(request.master_broker_id)}}}"
        return _reject(ControllerCode.CONTROLLER_INVALID_MASTER, because)
    if record.master_process_lost:
        because = f"the process of leader {{{master}}} was lost and no new epoch is granted yet"
        return _reject(ControllerCode.CONTROLLER_INVALID_MASTER, because)
    if request.master_epoch != record.master_epoch:
        because = f"the current master epoch is:{{{record.master_epoch}}}, not {{{draw_id(request.master_epoch)}}}"
        return _reject(ControllerCode.CONTROLLER_FENCED_MASTER_EPOCH, because)
    if request.sync_state_set_epoch != set_epoch:
        because = f"the current syncStateSet epoch is:{{{set_epoch}}}, not {{{request.sync_state_set_epoch}}}"
        return _reject(ControllerCode.CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH, because)
    return None


def _kept_though_dead(
    record: BrokerGroupRecord, request: AlterSyncStateSet, settings: ControllerSettings
) -> frozenset[int]:
    """Return the members that may stay though dead, which Java refuses: where the refusal would keep the wrong set."""
    before, proposed = record.sync_state_set, request.sync_state_set
    is_asked_for = (request.said_again and proposed > before) or (settings.masters_shrink_first and proposed < before)
    return before if is_asked_for else frozenset()


def _check_members(
    record: BrokerGroupRecord, request: AlterSyncStateSet, live: Live, *, kept: frozenset[int]
) -> _Refusal | None:
    for broker_id in sorted(request.sync_state_set):
        if record.claimed_replica(broker_id) is None:
            return _reject(ControllerCode.CONTROLLER_INVALID_REPLICAS, f"the replicas {{{broker_id}}} don't exist")
        if broker_id not in live and broker_id not in kept:
            return _reject(ControllerCode.CONTROLLER_BROKER_NOT_ALIVE, f"the replicas {{{broker_id}}} don't alive")
    if record.master_broker_id not in request.sync_state_set:
        because = f"the newSyncStateSet don't contains origin leader {{{record.master_broker_id}}}"
        return _reject(ControllerCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED, because)
    return None


def _check_epoch_is_left(record: BrokerGroupRecord) -> _Refusal | None:
    if record.sync_state_set_epoch < MAX_EPOCH:
        return None
    because = f"the syncStateSet epoch {{{record.sync_state_set_epoch}}} is the last there is"
    return _reject(ControllerCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED, because)


def _check_size(record: BrokerGroupRecord, request: AlterSyncStateSet, settings: ControllerSettings) -> _Refusal | None:
    """Refuse a proposal that adds and drops, or drops members below the floor; a set of any size may grow."""
    proposed = draw_ids(request.sync_state_set)
    joining = request.sync_state_set - record.sync_state_set
    dropped = record.sync_state_set - request.sync_state_set
    # Computed from an older set: Java sends what it has queued under the set epoch of the moment, and the member that joins had
    # caught up with that older set only. The master proposes again at the slave's next acknowledgement.
    if joining and dropped:
        because = f"the newSyncStateSet {proposed} adds {draw_ids(joining)} and drops {draw_ids(dropped)}: "
        because += f"it was not computed from the current syncStateSet {draw_ids(record.sync_state_set)}"
        return _reject(ControllerCode.CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH, because)
    if dropped and len(request.sync_state_set) < settings.floor and not settings.masters_shrink_first:
        because = f"the newSyncStateSet {proposed} drops {draw_ids(dropped)} and would be smaller than "
        because += f"minInSyncReplicas {{{settings.min_in_sync_replicas}}}"
        return _reject(ControllerCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED, because)
    return None


def _reject(code: ControllerCode, because: str) -> _Refusal:
    return code, f"Rejecting alter syncStateSet request because {because}"
