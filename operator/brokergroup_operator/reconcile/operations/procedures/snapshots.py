"""Backup by VolumeSnapshots: one of each claim of the stopped member, waited for, then marked as a whole set.

Each pass looks at what is there and does the next thing, so an operator that takes over goes on from there: the volumes are off
their node; the snapshots are made; they are cut; the status says so, and the member starts; they are ready, with some drivers an
hour later; the manifest is on each of them, on the store's last; the status says whole.
The operator deletes none: those of a Backup that failed lack the manifest, and no group begins with them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from brokergroup_operator.api.backup_fields import ClaimSnapshot, SnapshotManifest
from brokergroup_operator.api.bounds import LONGEST_OBJECT_NAME
from brokergroup_operator.api.times import rfc3339
from brokergroup_operator.reconcile import identity
from brokergroup_operator.reconcile.operations import plan as plans
from brokergroup_operator.reconcile.see import observed, snapshots
from brokergroup_operator.reconcile.see.snapshots import DamagedManifestError

if TYPE_CHECKING:
    from brokergroup_operator.api.backup_fields import BackupResult, Manifest, SnapshotRequest
    from brokergroup_operator.api.bounds import JsonObject
    from brokergroup_operator.reconcile.operations.procedures.premises import Case

FAULT_CHARACTERS: Final = 1024
# A driver tries again, and some errors pass. It is not waited for longer where there is one, or no answer at all.
ERROR_SECONDS: Final = 60.0


def names_of(case: Case) -> list[str]:
    """Of this operation's snapshots, the store's first."""
    return snapshots.names_of(case.seen.group, case.operation.name)


def why_no_snapshots(case: Case) -> str:
    """Why none can be taken, which is known before a member is stopped."""
    wanted = names_of(case)
    if case.seen.snapshots_problem:
        return f"spec.backup.snapshot: {case.seen.snapshots_problem}"
    if len(longest := max(wanted, key=len)) > LONGEST_OBJECT_NAME:
        told = f"VolumeSnapshot {longest[:20]}… would be named after it, with {len(longest)} characters"
        return f"metadata.name of the operation is too long: {told}, expected at most {LONGEST_OBJECT_NAME}"
    there = next((name for name in wanted if snapshots.snapshot_named(case.seen, name) is not None), None)
    return f"VolumeSnapshot {there} is there already: take a backup of another name" if there is not None else ""


def why_unread(case: Case) -> str:
    """Why nothing is known of the snapshots in this pass, so that nothing is decided about them."""
    return f"waits: {case.seen.snapshots_unread[:FAULT_CHARACTERS]}" if case.seen.snapshots_unread else ""


def given_up(case: Case, held: BackupResult, why: str) -> plans.GoOn:
    """Write to the status why the backup failed: the member starts again, then the operation ends as Failed."""
    failed = replace(held, failed=why[:FAULT_CHARACTERS])
    return plans.GoOn(message=why, figures=replace(case.before, backup=failed))


def first_made(case: Case) -> str:
    """A snapshot that this operation has made; empty: none yet."""
    made = (name for name in names_of(case) if snapshots.snapshot_named(case.seen, name) is not None)
    return next(made, "")


def cutting(case: Case, held: BackupResult, request: SnapshotRequest) -> plans.GoOn:
    """Of a stopped member: the next thing until all its snapshots are cut. Then it may start, which the status says first."""
    there = _found(case, held)
    claims = identity.claim_names(case.seen.group, held.pod)
    if why := _why_no_set(case, held, there) or (_mounted_since(case, claims) if there else ""):
        return given_up(case, held, why)
    if len(there) < len(held.snapshots):
        return _making(case, held, request, dict(zip(held.snapshots, claims, strict=True)))
    if why := _failing_for_long(case, held, there):
        return given_up(case, held, why)
    if waits := [name for name, one in there.items() if not snapshots.is_cut(one, held.early_errors)]:
        early = _early_errors(held, there)
        noted = replace(case.before, backup=replace(held, early_errors=early)) if early != held.early_errors else None
        return plans.GoOn(message=_waiting(held, there, waits, "is cut"), figures=noted)
    cut = replace(held, cut_at=rfc3339(case.now_seconds))
    told = f"VolumeSnapshot {', '.join(there)} is cut: broker {held.broker_id} may start"
    return plans.GoOn(message=told, figures=replace(case.before, backup=cut))


def uploading(case: Case, held: BackupResult, known: Manifest) -> plans.GoOn:
    """Of a member that may run again: the next thing until its snapshots are whole. `known`: the manifest without their own facts.

    One that is lost is not made anew: it would be of now.
    """
    there = _found(case, held)
    gone = [name for name in held.snapshots if name not in there]
    lost = f"VolumeSnapshot {', '.join(gone)} was deleted before all were ready" if gone else ""
    if why := _why_no_set(case, held, there) or lost or _failing_since(held, there):
        return given_up(case, held, why)
    if waits := [name for name, one in there.items() if not snapshots.is_ready(one)]:
        return plans.GoOn(message=_waiting(held, there, waits, "is ready to use"))
    return _sealing(case, held, known, there)


def _found(case: Case, held: BackupResult) -> dict[str, JsonObject]:
    found = {name: snapshots.snapshot_named(case.seen, name) for name in held.snapshots}
    return {name: one for name, one in found.items() if one is not None}


def _why_no_set(case: Case, held: BackupResult, there: dict[str, JsonObject]) -> str:
    mark = snapshots.mark(case.operation.uid, held.pod_uid)
    return case.seen.snapshots_problem or _why_status_is_not_ours(case, held) or _why_not_ours(there, mark)


def _early_errors(held: BackupResult, there: dict[str, JsonObject]) -> list[str]:
    """The last one of each snapshot, which the status keeps: what stands there once it is cut may be of before, or of since."""
    known = {one.partition(" ")[0]: one for one in held.early_errors}
    seen = {name: error for name, one in there.items() if (error := snapshots.early_error(one))}
    return sorted((known | seen).values())


def _waiting(held: BackupResult, there: dict[str, JsonObject], waits: list[str], until: str) -> str:
    errors = "; ".join(filter(None, (snapshots.error_of(there[name], held.early_errors) for name in waits)))
    told = f"waits until VolumeSnapshot {', '.join(waits)} {until}"
    return f"{told}: {errors}" if errors else told


def _why_status_is_not_ours(case: Case, held: BackupResult) -> str:
    expected = names_of(case)
    if held.snapshots == expected:
        return ""
    told = f"its status names VolumeSnapshot {', '.join(held.snapshots)}, expected {', '.join(expected)}"
    return f"{told}: it was changed by another client"


def _why_not_ours(there: dict[str, JsonObject], mark: str) -> str:
    for name, one in there.items():
        if snapshots.mark_of(one) != mark:
            return f"VolumeSnapshot {name} is there, and this Backup has not made it since the member was stopped"
        if observed.being_deleted(one):
            return f"VolumeSnapshot {name} is being deleted"
    return ""


def _failing_for_long(case: Case, held: BackupResult, there: dict[str, JsonObject]) -> str:
    for name, one in there.items():
        since_seconds = snapshots.failing_since_seconds(one, held.early_errors, case.now_seconds)
        if since_seconds is not None and case.now_seconds - since_seconds >= ERROR_SECONDS:
            error = snapshots.error_of(one, held.early_errors)
            told = f": {error}" if error else " has no status: no snapshot controller answers"
            return f"VolumeSnapshot {name}{told}"
    return ""


def _failing_since(held: BackupResult, there: dict[str, JsonObject]) -> str:
    """After an error the driver tries again, and may cut the volume of the member that runs; its `creationTime` stays."""
    for name, one in there.items():
        error = "" if snapshots.is_ready(one) else snapshots.error_of(one, held.early_errors)
        if error:
            return f"VolumeSnapshot {name} failed after it was cut, and may be cut anew: {error}"
    return ""


def _mounted_since(case: Case, claims: tuple[str, ...]) -> str:
    """Nothing was attached when they were made: a pod that came since may have written between two of them, or meanwhile."""
    attached = snapshots.attached_of(map(case.seen.claims.get, claims), case.seen.attached_volumes)
    if attached is None:
        return ""
    volume, node = attached
    return (
        f"volume {volume} was attached to node {node} before all VolumeSnapshots were cut: another pod has mounted it"
    )


def _making(case: Case, held: BackupResult, request: SnapshotRequest, claims: dict[str, str]) -> plans.GoOn:
    attached = snapshots.attached_of(map(case.seen.claims.get, claims.values()), case.seen.attached_volumes)
    if attached is not None:
        volume, node = attached
        told = f"waits until volume {volume} is off node {node}: what was written last may not be on it before"
        return plans.GoOn(message=told)
    if case.outcome.running:
        return plans.GoOn(message=case.before.message)
    wanted = ", ".join(held.snapshots)
    told = f"VolumeSnapshot {wanted} is not made: {case.outcome.failed}" if case.outcome.failed else f"makes {wanted}"
    mark = snapshots.mark(case.operation.uid, held.pod_uid)
    effect = plans.TakeSnapshots(claims=claims, class_name=request.class_name, mark=mark)
    return plans.GoOn(message=told, effect=effect)


def _sealing(case: Case, held: BackupResult, known: Manifest, there: dict[str, JsonObject]) -> plans.GoOn:
    """The manifest comes on a set of which all are ready, and the status after it: so a set without it is torn."""
    found = [_manifest(one) for one in there.values()]
    first = found[0]
    if first is not None and _is_of(first, held, known) and all(one == first for one in found):
        whole = replace(held, taken_at=first.backup.taken_at)
        return plans.GoOn(message="the snapshots are whole", figures=replace(case.before, backup=whole))
    if case.outcome.running:
        return plans.GoOn(message=case.before.message)
    taken_at = snapshots.taken_at(there.values()) or held.cut_at or ""
    claims = identity.claim_names(case.seen.group, held.pod)
    listed = [
        ClaimSnapshot(claim=claim, snapshot=name, size=_size(case, claim, there[name]))
        for name, claim in zip(there, claims, strict=True)
    ]
    manifest = SnapshotManifest(backup=replace(known, taken_at=taken_at), snapshots=listed)
    told = f"VolumeSnapshot {', '.join(there)} is not marked as whole: {case.outcome.failed}"
    return plans.GoOn(
        message=told if case.outcome.failed else "marks the snapshots as whole",
        effect=plans.SealSnapshots(manifest=manifest, uids={name: observed.uid(one) for name, one in there.items()}),
    )


def _size(case: Case, claim: str, snapshot: JsonObject) -> str:
    """What the claim asks for; the least that is made from the snapshot, where its member has left since it was cut."""
    found = case.seen.claims.get(claim)
    return snapshots.restore_size(snapshot) if found is None else observed.claim_size(found)


def _is_of(manifest: SnapshotManifest, held: BackupResult, known: Manifest) -> bool:
    """Whether this Backup has written it, of the record as it is now; `known` has neither version nor time."""
    listed = [one.snapshot for one in manifest.snapshots]
    return listed == held.snapshots and replace(manifest.backup, version="", taken_at="") == known


def _manifest(snapshot: JsonObject) -> SnapshotManifest | None:
    try:
        return snapshots.manifest_of(snapshot)
    except DamagedManifestError:
        return None  # another client has changed it: it is written again
