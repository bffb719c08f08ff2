"""Backup: the store of a slave in sync is copied to a claim, or to VolumeSnapshots, while the slave is stopped.

The reconcile plane stops the member and keeps it stopped (`decide/backup_hold.py`). Here its copying pod is made, the pod's end is
read, and the pod is deleted; or its snapshots are taken (`snapshots.py`). The status says which member it is before it is stopped,
and that the copy is whole, or given up, before it starts again: an operator that takes over goes on from there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from brokergroup_operator.api import names
from brokergroup_operator.api.backup_fields import BackupResult, Manifest
from brokergroup_operator.api.durability import acknowledgement_rule, voting_replicas
from brokergroup_operator.api.times import rfc3339
from brokergroup_operator.kube.pods import node_of
from brokergroup_operator.reconcile import identity
from brokergroup_operator.reconcile.decide.backup_hold import is_fresh, others_away
from brokergroup_operator.reconcile.decide.failover_safe import on_draining_node
from brokergroup_operator.reconcile.operations import plan as plans
from brokergroup_operator.reconcile.operations.procedures.premises import CHANGE_POLL_SECONDS, SETTLE_SECONDS, asked
from brokergroup_operator.reconcile.operations.procedures.snapshots import (
    cutting,
    first_made,
    given_up,
    names_of,
    uploading,
    why_no_snapshots,
    why_unread,
)
from brokergroup_operator.reconcile.see import copies, observed
from brokergroup_operator.reconcile.see.members import never_masters, standings

if TYPE_CHECKING:
    from brokergroup_operator.api.backup_fields import BackupRequest
    from brokergroup_operator.api.bounds import JsonObject
    from brokergroup_operator.reconcile.operations.procedures.premises import Case
    from brokergroup_operator.reconcile.see.members import Standing

# After the copy is whole: the member only has to catch up with what it missed.
BACK_IN_SYNC_SECONDS = 3600.0


def begin_backup(case: Case) -> plans.Beginning:
    request, master = asked(case.spec.backup), case.seen.master
    alone = _is_alone(case)
    broker_id = master if alone else _slave(case, request)
    named = request.broker_id or broker_id
    not_now = None if alone else case.unsafe((named,) if named is not None else (master or 0,))
    pod = case.pod(broker_id) if broker_id is not None else None
    is_there = pod is not None and not observed.being_deleted(pod)
    beginning = case.begun(
        case.group_is_not_there(),
        case.paused(),
        _no_claims(case),
        "" if request.broker_id is None else case.not_a_member(request.broker_id),
        case.no_master(),
        _why_not_alone(request) if alone else _why_not_named(case, request, is_safe=not_now is None),
        "" if alone else _too_few_stay(case),
        _no_target(case, request) if request.snapshot is None else why_no_snapshots(case),
        "" if request.snapshot is not None else copies.why_name_taken(case.seen, names.backup_pod_name(case.group)),
        case.claim_goes([broker_id] if broker_id is not None else []),
        not_now=_unread(case)
        or not_now
        or (None if alone else _last_slave(case, broker_id))
        or (None if is_there else _nothing_in_sync(case)),
        message=f"copies the store of broker {broker_id} to {_whereto(case, request)}",
        steps=(
            f"delete pod {case.pod_name(broker_id or 0)} (broker {broker_id}), and keep it stopped",
            f"copy its claims to {_whereto(case, request)}{'' if request.snapshot else ', and check the copy'}",
            f"start broker {broker_id} again{' once they are cut' if request.snapshot else ''}, and wait until it is in sync",
        ),
    )
    if not isinstance(beginning, plans.Start) or broker_id is None or pod is None:
        return beginning
    held = BackupResult(
        broker_id=broker_id,
        pod=case.pod_name(broker_id),
        pod_uid=observed.uid(pod),
        claim=request.claim.name if request.claim is not None else "",
        folder=_name(case),
        snapshots=[] if request.snapshot is None else names_of(case),
    )
    return replace(beginning, figures=replace(beginning.figures, backup=held))


def _name(case: Case) -> str:
    return f"{case.group}/{case.operation.name}"


def _whereto(case: Case, request: BackupRequest) -> str:
    if request.claim is None:
        return f"VolumeSnapshot {', '.join(names_of(case))}"
    return f"{_name(case)} on claim {request.claim.name}"


def _is_alone(case: Case) -> bool:
    return voting_replicas(case.seen.group.spec) == 1


def _why_not_alone(request: BackupRequest) -> str:
    lone = "the group has no slave that votes: with backup.stopMaster its master is stopped, and takes no message meanwhile"
    return "" if request.stop_master else lone


def _too_few_stay(case: Case) -> str:
    """Of a Strict group of two: it would take no message for as long as the copy takes."""
    spec = case.seen.group.spec
    stay, needed = voting_replicas(spec) - 1, acknowledgement_rule(spec).minimum_in_sync
    if stay >= needed:
        return ""
    return f"with one member stopped {stay} is left, and a message needs {needed}: raise spec.replicas by one for the backup"


def _slave(case: Case, request: BackupRequest) -> int | None:
    able = [broker_id for broker_id, one in standings(case.seen).items() if _may_be_stopped(case, one)]
    if request.broker_id is not None:
        return request.broker_id if request.broker_id in able else None
    return max(able, default=None)


def _may_be_stopped(case: Case, standing: Standing) -> bool:
    learns = standing.member.broker_id in never_masters(case.seen)
    return standing.in_sync and standing.in_set and not standing.is_master and not learns and not standing.claim_goes


def _why_not_named(case: Case, request: BackupRequest, *, is_safe: bool) -> str:
    named = request.broker_id
    if named is None:
        return ""
    if named == case.seen.master:
        return f"broker {named} is master: name a slave, or none"
    return case.only_learns(named) or (case.not_in_sync(named) if is_safe else "")


def _last_slave(case: Case, broker_id: int | None) -> plans.Wait | plans.Reject | None:
    """Another voter is away: with this one stopped too, one more loss ends the service. Its repair may be the next operation."""
    away = others_away(standings(case.seen), broker_id) if broker_id is not None else ""
    if not away:
        return None
    told = f"broker {broker_id} is not stopped while another is away: {away}"
    if case.now_seconds - observed.created_seconds(case.operation.raw) < SETTLE_SECONDS:
        return plans.Wait(message=f"waits: {told}", look_again_seconds=CHANGE_POLL_SECONDS)
    return plans.Reject(message=told)


def _unread(case: Case) -> plans.Wait | plans.Reject | None:
    """Nothing begins while they can't be read: most often that is for a moment only, and other operations wait for this one."""
    if not (why := why_unread(case)):
        return None
    if case.now_seconds - observed.created_seconds(case.operation.raw) < SETTLE_SECONDS:
        return plans.Wait(message=why, look_again_seconds=CHANGE_POLL_SECONDS)
    return plans.Reject(message=case.seen.snapshots_unread)


def _nothing_in_sync(case: Case) -> plans.Wait:
    """The group is FailoverSafe, so a slave is in sync: its pod is as good as ready."""
    return plans.Wait(
        message=f"waits until a slave of {case.group} is in sync and its pod ready", look_again_seconds=1.0
    )


def _no_claims(case: Case) -> str:
    ephemeral = case.seen.group.spec.storage.ephemeral is not None
    return "spec.storage.ephemeral: a stopped member has no disk that could be copied" if ephemeral else ""


def _no_target(case: Case, request: BackupRequest) -> str:
    if request.claim is None:
        return "spec.backup: expected claim or snapshot"
    name = request.claim.name
    if any(name in identity.claim_names(case.seen.group, case.pod_name(broker_id)) for broker_id in case.members):
        return f"claim {name} is a member's own"
    claim = copies.claim_aside(case.seen, name)
    if claim is None:
        return f"there is no claim {name} in namespace {case.seen.key.namespace}"
    if pod := copies.member_of_claim(claim):
        return f"claim {name} is that of pod {pod}, and goes with its data: name a claim of your own"
    return f"claim {name} is being deleted" if observed.being_deleted(claim) else ""


def judge_backup(case: Case) -> plans.Judgement:  # noqa: PLR0911 (one return per stage)
    held, pod = case.before.backup, copies.backup_pod(case.seen)
    if held is None:
        return plans.Fail(message="its status does not say which member is stopped: it was changed by another client")
    if gone := case.group_is_not_there():
        return plans.GoOn(message=gone, effect=_deletion(pod)) if pod is not None else plans.Fail(message=gone)
    if not copies.is_over(held):
        return _copying(case, held, pod) if held.cut_at is None else _uploading(case, held)
    if pod is not None and not copies.has_gone(case.seen, pod):
        return plans.GoOn(message=f"deletes pod {_pod_name(pod)}", effect=_deletion(pod))
    if held.failed:
        return plans.Fail(message=held.failed, figures=case.before)
    is_back = case.is_back(held.broker_id) and observed.pod_is_ready(case.pod(held.broker_id))
    if is_back or case.not_a_member(held.broker_id):  # it may have left since it was cut
        done = replace(case.before, milliseconds=round(case.running_seconds * 1000))
        return plans.Done(message=_told(held), figures=done)
    if paused := case.paused():
        return plans.GoOn(message=f"the copy is whole; broker {held.broker_id} stays as it is: {paused}")
    if case.running_seconds > asked(case.spec.backup).deadline_seconds + BACK_IN_SYNC_SECONDS:
        told = f"the copy is whole, but broker {held.broker_id} did not get in sync within {BACK_IN_SYNC_SECONDS:.0f} s"
        return plans.Fail(message=told, figures=case.before)
    return plans.GoOn(message=f"the copy is whole; waits until broker {held.broker_id} is in sync")


def _told(held: BackupResult) -> str:
    if held.snapshots:
        return f"VolumeSnapshot {', '.join(held.snapshots)} has the log up to {held.confirm_offset} at least"
    return (
        f"{held.folder} on claim {held.claim} has the log up to {held.offset}, epoch {held.epoch}, {held.bytes} bytes"
    )


def _copying(  # noqa: PLR0911 (one return per stage)
    case: Case, held: BackupResult, pod: JsonObject | None
) -> plans.Judgement:
    """Before the copy is whole: what stands against it, then the member, then its copying pod."""
    member = case.seen.pods.get(held.pod)
    if why := _why_not_further(case, held, member):
        return given_up(case, held, why)
    if held.snapshots and (unread := why_unread(case)):
        return plans.GoOn(message=unread)
    if pod is not None and not copies.is_of(pod, case.operation.uid):
        return plans.GoOn(message=f"deletes pod {_pod_name(pod)} of another operation", effect=_deletion(pod))
    if member is not None and observed.uid(member) != held.pod_uid:
        return _started_again(case, held, member, pod)
    if held.compared_at is None:
        return _comparing(case, held, member)
    if member is None:
        snapshot = asked(case.spec.backup).snapshot
        return _with_pod(case, held, pod) if snapshot is None else cutting(case, held, snapshot)
    if not observed.being_deleted(member) and not is_fresh(held, case.now_seconds):
        anew = replace(case.before, backup=replace(held, compared_at=None))
        return plans.GoOn(message=f"pod {held.pod} could not be stopped in time: compares it anew", figures=anew)
    return plans.GoOn(message=f"waits until pod {held.pod} is stopped")


def _uploading(case: Case, held: BackupResult) -> plans.GoOn:
    """The snapshots are cut, and the member runs: neither a failover nor a drain changes what they have."""
    if why := _too_late(case):
        return given_up(case, held, why)
    unread = why_unread(case)
    return plans.GoOn(message=unread) if unread else uploading(case, held, _manifest(case, held))


def _too_late(case: Case) -> str:
    limit_seconds = asked(case.spec.backup).deadline_seconds
    return f"not within {limit_seconds} s: {case.before.message}" if case.running_seconds > limit_seconds else ""


def _why_not_further(case: Case, held: BackupResult, member: JsonObject | None) -> str:
    """Why the backup is given up, so that the member starts again; empty if it goes on."""
    before, seen = case.before, case.seen
    # The loss of the only voting member, which is stopped, raises its record's epoch; no other can be elected.
    alone = held.broker_id == before.from_broker_id
    if why := _too_late(case):
        return why
    if seen.master is None and not alone:
        return f"{case.group} lost its master meanwhile, and may need broker {held.broker_id}"
    is_stopped = member is None or observed.being_deleted(member)
    is_same = seen.master == before.from_broker_id and seen.epoch == before.epoch
    if not is_same and not (alone and is_stopped and seen.master in {None, before.from_broker_id}):
        told = f"the master of {case.group} changed meanwhile, from epoch {before.epoch} to {seen.epoch}"
        return f"{told}: the log of broker {held.broker_id} may have what was not acknowledged"
    if not alone and member is None and case.takes_no_messages():
        return f"{case.group} takes no messages without broker {held.broker_id}"
    if member is not None and (paused := case.paused()):
        return paused
    return _drained(case, held) or _why_no_pod(case, held) or _never_ends(case, held, member)


def _drained(case: Case, held: BackupResult) -> str:
    """Which other member's node is being drained: with one member stopped no eviction is let through, and no master moves.

    A node that was only cordoned when the operation began stays out: it may be so for days, and nothing is evicted from it.
    """
    for broker_id, one in standings(case.seen).items():
        node, pod = node_of(case.seen.pods.get(one.member.pod)), one.member.pod
        if broker_id == held.broker_id or not on_draining_node(case.seen, one):
            continue
        if observed.drains_since(case.seen.nodes[node], case.operation.started_seconds):
            return f"{node} is being drained, and pod {pod} on it waits for the backup's end"
    return ""


def _never_ends(case: Case, held: BackupResult, member: JsonObject | None) -> str:
    """Why the end of a held pod is not waited for: its kubelet is silent, so its container may run, and write."""
    if not held.snapshots or member is None or not observed.being_deleted(member):
        return ""
    late_seconds = case.now_seconds - observed.seconds_of(str(observed.metadata(member)["deletionTimestamp"]))
    node = case.seen.nodes.get(node_of(member))
    if late_seconds < observed.STUCK_TERMINATING_SECONDS or observed.kubelet_says_ended(member, node):
        return ""
    told = f"pod {held.pod} was to be stopped {late_seconds:.0f} s ago, and the kubelet of node {node_of(member)} does not say so"
    return f"{told}: its broker may run on, and no VolumeSnapshot is cut of a store that is written to"


def _why_no_pod(case: Case, held: BackupResult) -> str:
    """Snapshots need no copying pod."""
    return "" if held.snapshots else copies.why_name_taken(case.seen, names.backup_pod_name(case.group))


def _started_again(case: Case, held: BackupResult, member: JsonObject, pod: JsonObject | None) -> plans.GoOn:
    """Another writer has made the member's pod anew: what was copied meanwhile counts for nothing, and all begins again.

    Snapshots that are made already stay, and have their names: then there is no second try.
    """
    if pod is not None:
        return plans.GoOn(
            message=f"pod {held.pod} was started beside pod {_pod_name(pod)}: deletes that", effect=_deletion(pod)
        )
    if held.snapshots and (made := first_made(case)):
        told = f"pod {held.pod} was started again before VolumeSnapshot {made} was cut"
        return given_up(case, held, f"{told}: it may have a part of what was written since")
    anew = replace(case.before, backup=replace(held, pod_uid=observed.uid(member), compared_at=None))
    return plans.GoOn(message=f"pod {held.pod} was started again: compares it anew", figures=anew)


def _comparing(  # noqa: PLR0911 (one return per stage)
    case: Case, held: BackupResult, member: JsonObject | None
) -> plans.GoOn:
    """A slave copies topics and groups beside the log, later: a message whose topic the copy lacks would be read by none.

    It is only stopped within seconds of a comparison: what the master gets later may be missing in the copy.
    """
    outcome, effect = case.outcome, plans.CompareMetadata(broker_id=held.broker_id)
    if member is None:
        return plans.GoOn(message=f"waits until pod {held.pod} is back: it is not stopped by this operation")
    if held.snapshots and names.FINALIZER_BACKUP not in observed.finalizers_of(member):
        return _holding(case, held, member)
    alone = held.broker_id == case.before.from_broker_id
    away = others_away(standings(case.seen), held.broker_id)
    if not alone and (unsafe := case.not_failover_safe() or away):
        return plans.GoOn(message=f"waits: {unsafe}")
    heard = case.seen.snapshot.live.get(held.broker_id) if case.seen.snapshot is not None else None
    confirmed = max(held.confirm_offset, heard.confirm_offset if heard is not None else -1)
    if confirmed < 0:
        return plans.GoOn(message=f"waits until broker {held.broker_id} says how far its log is confirmed")
    at_seconds = outcome.compared.at_seconds if outcome.compared is not None else 0.0
    if alone:
        at_seconds = case.now_seconds  # what the master has is what there is
    found = replace(held, compared_at=rfc3339(at_seconds), confirm_offset=confirmed)
    if is_fresh(found, case.now_seconds):
        return plans.GoOn(message="it has all topics", figures=replace(case.before, backup=found))
    told = f"compares topics, groups and offsets of broker {held.broker_id} with the master's"
    if outcome.running:
        return plans.GoOn(message=told)
    return plans.GoOn(message=f"waits: {outcome.failed}" if outcome.failed else told, effect=effect)


def _holding(case: Case, held: BackupResult, member: JsonObject) -> plans.GoOn:
    """A pod's object may be gone while its container runs on, by a forced deletion, and not each driver attaches a volume.

    So the object is held until its kubelet says that the container has ended (`copies.may_let_go`): no snapshot is cut before.
    """
    if observed.being_deleted(member):
        return plans.GoOn(message=f"waits until pod {held.pod} is back: it is not stopped by this operation")
    if case.outcome.running:
        return plans.GoOn(message=case.before.message)
    effect = plans.HoldPod(
        name=held.pod,
        resource_version=str(observed.metadata(member).get("resourceVersion", "")),
        finalizers=observed.finalizers_of(member),
    )
    refused = f"pod {held.pod} can't be held: {case.outcome.failed}"
    told = f"makes sure that the end of pod {held.pod} is seen"
    return plans.GoOn(message=refused if case.outcome.failed else told, effect=effect)


def _with_pod(case: Case, held: BackupResult, pod: JsonObject | None) -> plans.GoOn:
    """Of a stopped member: its copying pod is made, waited for, and its end is written down."""
    told = f"copies the store of broker {held.broker_id}"
    if pod is None:
        if case.outcome.running:
            return plans.GoOn(message=case.before.message)
        effect = plans.TakeBackup(pod=held.pod, claim=held.claim, manifest=_manifest(case, held))
        refused = f"pod {names.backup_pod_name(case.group)} is not made: {case.outcome.failed}"
        return plans.GoOn(message=refused if case.outcome.failed else told, effect=effect)
    ended = copies.end_of(pod)
    if ended is None:
        # It waits, and the member with it: for an image, or for a node that has both claims.
        trouble = copies.trouble_of(pod, now=case.seen.now)
        return plans.GoOn(message=f"{told}: {trouble.message}" if trouble is not None else told)
    if ended.manifest is None:
        return given_up(case, held, ended.fault)
    if ended.manifest.operation != case.operation.uid:
        return given_up(case, held, f"pod {_pod_name(pod)} says the manifest of another operation")
    whole = replace(
        held,
        offset=ended.manifest.offset,
        epoch=ended.manifest.store_epoch,
        bytes=ended.manifest.bytes,
        taken_at=ended.manifest.taken_at,
    )
    return plans.GoOn(message="the copy is whole", figures=replace(case.before, backup=whole))


def _manifest(case: Case, held: BackupResult) -> Manifest:
    """What the operator knows of the copy before it is made."""
    record, spec = case.seen.record, case.seen.group.spec
    assert record is not None, "group_is_not_there has looked"
    return Manifest(
        name=held.folder,
        operation=case.operation.uid,
        group=case.group,
        namespace=case.seen.key.namespace,
        cluster_name=record.cluster_name,
        broker_name=record.broker_name,
        broker_id=held.broker_id,
        next_broker_id=record.next_broker_id,
        master_epoch=record.master_epoch,
        implementation=spec.implementation.value,
        confirm_offset=held.confirm_offset,
    )


def _deletion(pod: JsonObject) -> plans.DeletePod:
    return plans.DeletePod(name=_pod_name(pod), uid=observed.uid(pod))


def _pod_name(pod: JsonObject) -> str:
    return str(observed.metadata(pod)["name"])
