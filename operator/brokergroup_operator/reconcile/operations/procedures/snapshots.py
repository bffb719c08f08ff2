"""Backup by VolumeSnapshots: one of each claim of the stopped member, waited for, then marked as a whole set.

Each pass looks at what is there and does the next thing, so an operator that takes over goes on from there: the volumes are off
their node; the snapshots are made; they are ready; the manifest is on each of them, on the store's last; the status says whole.
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
# A driver tries again, and some errors pass. The member is not kept stopped for longer where there is one, or no answer at all.
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


def given_up(case: Case, held: BackupResult, why: str) -> plans.GoOn:
    """Note in the status that there is no backup: the member starts again, then the operation fails."""
    failed = replace(held, failed=why[:FAULT_CHARACTERS])
    return plans.GoOn(message=why, figures=replace(case.before, backup=failed))


def first_made(case: Case) -> str:
    """A snapshot that this operation has made; empty: none yet."""
    made = (name for name in names_of(case) if snapshots.snapshot_named(case.seen, name) is not None)
    return next(made, "")


def with_snapshots(case: Case, held: BackupResult, request: SnapshotRequest, known: Manifest) -> plans.GoOn:
    """Of a stopped member: the next thing that its snapshots need. `known`: the manifest without the snapshots' own facts."""
    if why := case.seen.snapshots_problem or _why_status_is_not_ours(case, held):
        return given_up(case, held, why)
    claims = identity.claim_names(case.seen.group, held.pod)
    found = {name: snapshots.snapshot_named(case.seen, name) for name in held.snapshots}
    mark = snapshots.mark(case.operation.uid, held.pod_uid)
    there = {name: one for name, one in found.items() if one is not None}
    if why := _why_not_ours(there, mark) or (_mounted_since(case, claims) if there else ""):
        return given_up(case, held, why)
    if len(there) < len(found):
        return _making(case, held, request, dict(zip(found, claims, strict=True)), mark)
    if why := _failing_for_long(case, there):
        return given_up(case, held, why)
    if waits := [name for name, one in there.items() if not snapshots.is_ready(one)]:
        errors = "; ".join(filter(None, (snapshots.error_of(there[name]) for name in waits)))
        told = f"waits until VolumeSnapshot {', '.join(waits)} is ready to use"
        return plans.GoOn(message=f"{told}: {errors}" if errors else told)
    return _sealing(case, held, known, [*there.values()], claims)


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


def _failing_for_long(case: Case, there: dict[str, JsonObject]) -> str:
    for name, one in there.items():
        since_seconds = snapshots.failing_since_seconds(one)
        if since_seconds is not None and case.now_seconds - since_seconds >= ERROR_SECONDS:
            error = snapshots.error_of(one)
            told = f": {error}" if error else " has no status: no snapshot controller answers"
            return f"VolumeSnapshot {name}{told}"
    return ""


def _mounted_since(case: Case, claims: tuple[str, ...]) -> str:
    """Nothing was attached when they were made: a pod that came since may have written between two of them, or meanwhile."""
    attached = snapshots.attached_of(map(case.seen.claims.get, claims), case.seen.attached_volumes)
    if attached is None:
        return ""
    volume, node = attached
    return (
        f"volume {volume} was attached to node {node} before all VolumeSnapshots were ready: another pod has mounted it"
    )


def _making(case: Case, held: BackupResult, request: SnapshotRequest, claims: dict[str, str], mark: str) -> plans.GoOn:
    attached = snapshots.attached_of(map(case.seen.claims.get, claims.values()), case.seen.attached_volumes)
    if attached is not None:
        volume, node = attached
        told = f"waits until volume {volume} is off node {node}: what was written last may not be on it before"
        return plans.GoOn(message=told)
    if case.outcome.running:
        return plans.GoOn(message=case.before.message)
    wanted = ", ".join(held.snapshots)
    told = f"VolumeSnapshot {wanted} is not made: {case.outcome.failed}" if case.outcome.failed else f"makes {wanted}"
    effect = plans.TakeSnapshots(claims=claims, class_name=request.class_name, mark=mark)
    return plans.GoOn(message=told, effect=effect)


def _sealing(
    case: Case, held: BackupResult, known: Manifest, there: list[JsonObject], claims: tuple[str, ...]
) -> plans.GoOn:
    """The manifest comes on a set of which all are ready, and the status after it: so a set without it is torn."""
    found = [_manifest(one) for one in there]
    first = found[0]
    if first is not None and _is_of(first, held, known) and all(one == first for one in found):
        whole = replace(held, taken_at=first.backup.taken_at)
        return plans.GoOn(message="the snapshots are whole", figures=replace(case.before, backup=whole))
    taken_at = snapshots.taken_at(there) or rfc3339(case.now_seconds)
    listed = [
        ClaimSnapshot(claim=claim, snapshot=name, size=observed.claim_size(case.seen.claims[claim]))
        for name, claim in zip(held.snapshots, claims, strict=True)
        if claim in case.seen.claims
    ]
    if len(listed) < len(there):
        return given_up(case, held, f"a claim of pod {held.pod} is gone, expected {', '.join(claims)}")
    manifest = SnapshotManifest(backup=replace(known, taken_at=taken_at), snapshots=listed)
    uids = {name: observed.uid(one) for name, one in zip(held.snapshots, there, strict=True)}
    return plans.GoOn(message="marks the snapshots as whole", effect=plans.SealSnapshots(manifest=manifest, uids=uids))


def _is_of(manifest: SnapshotManifest, held: BackupResult, known: Manifest) -> bool:
    """Whether this Backup has written it, of the record as it is now; `known` has neither version nor time."""
    listed = [one.snapshot for one in manifest.snapshots]
    return listed == held.snapshots and replace(manifest.backup, version="", taken_at="") == known


def _manifest(snapshot: JsonObject) -> SnapshotManifest | None:
    try:
        return snapshots.manifest_of(snapshot)
    except DamagedManifestError:
        return None  # another client has changed it: it is written again
