"""Backup: the store of a slave in sync is copied to a claim while the slave is stopped.

The reconcile plane stops the member and keeps it stopped (`decide/backup_hold.py`). Here its copying pod is made, the pod's end is
read, and the pod is deleted. The status says which member it is before it is stopped, and that the copy is whole, or given up,
before it starts again: an operator that takes over goes on from there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from brokergroup_operator.api.backup_fields import BackupResult, Manifest
from brokergroup_operator.api.durability import voting_replicas
from brokergroup_operator.reconcile import identity
from brokergroup_operator.reconcile.operations import plan as plans
from brokergroup_operator.reconcile.operations.procedures.premises import asked
from brokergroup_operator.reconcile.see import copies, observed
from brokergroup_operator.reconcile.see.members import never_masters, standings

if TYPE_CHECKING:
    from brokergroup_operator.api.backup_fields import BackupRequest
    from brokergroup_operator.api.bounds import JsonObject
    from brokergroup_operator.reconcile.operations.procedures.premises import Case
    from brokergroup_operator.reconcile.see.members import Standing

# After the copy is whole: the member only has to catch up with what it missed.
BACK_IN_SYNC_SECONDS = 3600.0
FAULT_CHARACTERS = 1024


def begin_backup(case: Case) -> plans.Beginning:
    request, master = asked(case.spec.backup), case.seen.master
    alone = _is_alone(case)
    broker_id = master if alone else _slave(case, request)
    named = request.broker_id or broker_id
    not_now = None if alone else case.unsafe((named,) if named is not None else (master or 0,))
    beginning = case.begun(
        case.group_is_not_there(),
        case.paused(),
        _no_claims(case),
        "" if request.broker_id is None else case.not_a_member(request.broker_id),
        case.no_master(),
        _why_not_alone(request) if alone else _why_not_named(case, request, is_safe=not_now is None),
        _no_target(case, request),
        case.claim_goes([broker_id] if broker_id is not None else []),
        not_now=not_now or (_nothing_in_sync(case) if broker_id is None else None),
        message=f"copies the store of broker {broker_id} to {_name(case)} on claim {request.claim.name}",
        steps=(
            f"delete pod {case.pod_name(broker_id or 0)} (broker {broker_id}), and keep it stopped",
            f"copy its claims to folder {_name(case)} of claim {request.claim.name}, and check the copy",
            f"start broker {broker_id} again, and wait until it is in sync",
        ),
    )
    if not isinstance(beginning, plans.Start) or broker_id is None:
        return beginning
    heard = case.seen.snapshot.live.get(broker_id) if case.seen.snapshot is not None else None
    held = BackupResult(
        broker_id=broker_id,
        pod=case.pod_name(broker_id),
        claim=request.claim.name,
        folder=_name(case),
        confirm_offset=max(-1, heard.confirm_offset) if heard is not None else -1,
        compared=alone,
    )
    return replace(beginning, figures=replace(beginning.figures, backup=held))


def _name(case: Case) -> str:
    return f"{case.group}/{case.operation.name}"


def _is_alone(case: Case) -> bool:
    return voting_replicas(case.seen.group.spec) == 1


def _why_not_alone(request: BackupRequest) -> str:
    lone = "the group has no slave that votes: with backup.stopMaster its master is stopped, and takes no message meanwhile"
    return "" if request.stop_master else lone


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


def _nothing_in_sync(case: Case) -> plans.Wait:
    """The group is FailoverSafe, so a slave is in sync: its pod is as good as ready."""
    return plans.Wait(
        message=f"waits until a slave of {case.group} is in sync and its pod ready", look_again_seconds=1.0
    )


def _no_claims(case: Case) -> str:
    ephemeral = case.seen.group.spec.storage.ephemeral is not None
    return "spec.storage.ephemeral: a stopped member has no disk that could be copied" if ephemeral else ""


def _no_target(case: Case, request: BackupRequest) -> str:
    name = request.claim.name
    if any(name in identity.claim_names(case.seen.group, case.pod_name(broker_id)) for broker_id in case.members):
        return f"claim {name} is a member's own"
    claim = copies.claim_aside(case.seen, name)
    if claim is None:
        return f"there is no claim {name} in namespace {case.seen.key.namespace}"
    return f"claim {name} is being deleted" if observed.being_deleted(claim) else ""


def judge_backup(case: Case) -> plans.Judgement:  # noqa: PLR0911 (one return per stage)
    held, pod = case.before.backup, copies.backup_pod(case.seen)
    if held is None:
        return plans.Fail(message="its status does not say which member is stopped: it was changed by another client")
    if gone := case.group_is_not_there():
        return plans.GoOn(message=gone, effect=_deletion(pod)) if pod is not None else plans.Fail(message=gone)
    if held.taken_at is None and not held.failed:
        return _copying(case, held, pod)
    if pod is not None:
        return plans.GoOn(message=f"deletes pod {_pod_name(pod)}", effect=_deletion(pod))
    if held.failed:
        return plans.Fail(message=held.failed, figures=case.before)
    if case.is_back(held.broker_id) and observed.pod_is_ready(case.pod(held.broker_id)):
        done = replace(case.before, milliseconds=round(case.running_seconds * 1000))
        told = f"{held.folder} on claim {held.claim} has the log up to {held.offset}, epoch {held.epoch}, {held.bytes} bytes"
        return plans.Done(message=told, figures=done)
    if case.running_seconds > asked(case.spec.backup).deadline_seconds + BACK_IN_SYNC_SECONDS:
        told = f"the copy is whole, but broker {held.broker_id} did not get in sync within {BACK_IN_SYNC_SECONDS:.0f} s"
        return plans.Fail(message=told, figures=case.before)
    return plans.GoOn(message=f"the copy is whole; waits until broker {held.broker_id} is in sync")


def _copying(  # noqa: PLR0911 (one return per stage)
    case: Case, held: BackupResult, pod: JsonObject | None
) -> plans.Judgement:
    request = asked(case.spec.backup)
    if case.running_seconds > request.deadline_seconds:
        return _given_up(case, held, f"not within {request.deadline_seconds} s: {case.before.message}")
    if case.seen.master is None and not request.stop_master:
        return _given_up(case, held, f"{case.group} lost its master meanwhile, and may need broker {held.broker_id}")
    if pod is not None and not _is_of(case, pod):
        return plans.GoOn(message=f"deletes pod {_pod_name(pod)} of another operation", effect=_deletion(pod))
    if not held.compared:
        return _comparing(case, held)
    if case.pod(held.broker_id) is not None:
        return plans.GoOn(message=f"waits until pod {held.pod} is stopped")
    if pod is None:
        known = _manifest(case, held)
        effect = plans.TakeBackup(pod=held.pod, claim=held.claim, manifest=known)
        return plans.GoOn(message=f"copies the store of broker {held.broker_id}", effect=effect)
    ended = copies.end_of(pod)
    if ended is None:
        return plans.GoOn(message=f"copies the store of broker {held.broker_id}")
    if ended.manifest is None:
        return _given_up(case, held, ended.fault)
    whole = replace(
        held,
        offset=ended.manifest.offset,
        epoch=ended.manifest.store_epoch,
        bytes=ended.manifest.bytes,
        taken_at=ended.manifest.taken_at,
    )
    return plans.GoOn(message="the copy is whole", figures=replace(case.before, backup=whole))


def _comparing(case: Case, held: BackupResult) -> plans.GoOn:
    """A slave copies topics and groups beside the log, later: a message whose topic the copy lacks would be read by none."""
    outcome, effect = case.outcome, plans.CompareMetadata(broker_id=held.broker_id)
    if outcome.figures is not None:
        return plans.GoOn(
            message="it has all topics", figures=replace(case.before, backup=replace(held, compared=True))
        )
    if outcome.running:
        return plans.GoOn(message=f"compares topics and groups of broker {held.broker_id} with the master's")
    if outcome.failed:
        return plans.GoOn(message=f"waits: {outcome.failed}", effect=effect)
    return plans.GoOn(message=f"compares topics and groups of broker {held.broker_id} with the master's", effect=effect)


def _given_up(case: Case, held: BackupResult, why: str) -> plans.GoOn:
    given_up = replace(held, failed=why[:FAULT_CHARACTERS])
    return plans.GoOn(message=why, figures=replace(case.before, backup=given_up))


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


def _is_of(case: Case, pod: JsonObject) -> bool:
    return any(owner.get("uid") == case.operation.uid for owner in observed.owners_of(pod))


def _deletion(pod: JsonObject) -> plans.DeletePod:
    return plans.DeletePod(name=_pod_name(pod), uid=observed.uid(pod))


def _pod_name(pod: JsonObject) -> str:
    return str(observed.metadata(pod)["name"])
