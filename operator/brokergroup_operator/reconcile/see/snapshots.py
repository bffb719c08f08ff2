"""What a pass needs to see of VolumeSnapshots: those of a Backup, and those that a new group begins with. Pure.

They are read by name, only while one is asked for (`fetch.py`), and lie in `Observed.aside`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from brokergroup_operator.api import names
from brokergroup_operator.api.backup_fields import SnapshotManifest
from brokergroup_operator.api.brokergroup_operation import OperationPhase, OperationType
from brokergroup_operator.kube.resources import VOLUME_SNAPSHOTS
from brokergroup_operator.reconcile.see import copies, observed

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from brokergroup_operator.api.bounds import JsonObject
    from brokergroup_operator.api.brokergroup import BrokerGroup
    from brokergroup_operator.reconcile.see.observed import Observed, Operation

MANIFEST: Final = names.ANNOTATION_MANIFEST
ERROR_CHARACTERS: Final = 1024
NOT_INSTALLED: Final = f"VolumeSnapshots ({VOLUME_SNAPSHOTS.api_version}) are not installed in this cluster"


def wanted(seen: Observed) -> list[str]:
    """The names of the VolumeSnapshots that this pass must read."""
    return sorted({*_of_backups(seen), *_of_restore(seen)})


def are_taken(seen: Observed) -> bool:
    """Whether a Backup asks for them."""
    return bool(_backups(seen))


def needs_attached(seen: Observed) -> bool:
    """Whether a step of this pass depends on which volumes are attached, in the whole cluster.

    A Backup begins only if that can be read. Then it is needed from the member's end on until all snapshots are cut.
    """
    return any(_begins(seen, one) or _is_cutting(seen, one) for one in _backups(seen))


def _begins(seen: Observed, one: Operation) -> bool:
    return one.phase is OperationPhase.PENDING and (
        one.is_dry or not any(other.is_running for other in seen.operations)
    )


def _is_cutting(seen: Observed, one: Operation) -> bool:
    held = one.result.backup
    if held is None or not one.is_running or held.compared_at is None or copies.may_start(held):
        return False
    return held.pod not in seen.pods


def _of_backups(seen: Observed) -> Iterator[str]:
    for one in _backups(seen):
        yield from names_of(seen.group, one.name)


def _backups(seen: Observed) -> list[Operation]:
    asked = (one for one in seen.operations if one.asked.spec.type is OperationType.BACKUP and not one.finished)
    return [one for one in asked if one.asked.spec.backup is not None and one.asked.spec.backup.snapshot is not None]


def _of_restore(seen: Observed) -> Iterator[str]:
    source = copies.source_of(seen) if seen.group_object and not seen.unreadable else None
    if source is not None and source.snapshot is not None and copies.awaits_restore(seen):
        yield source.snapshot.name
        yield names.commit_log_claim_name(source.snapshot.name)


def names_of(group: BrokerGroup, operation: str) -> list[str]:
    """The snapshots of a Backup: one for each claim of a member, in the order of its claims."""
    return [operation, *([names.commit_log_claim_name(operation)] if group.spec.storage.commit_log is not None else [])]


def snapshot_named(seen: Observed, name: str) -> JsonObject | None:
    return seen.aside.get((VOLUME_SNAPSHOTS.kind, name))


def mark(operation_uid: str, pod_uid: str) -> str:
    """Whose snapshot it is, and since when its claim was at rest: one of an earlier stop may lack what was written since."""
    return f"{operation_uid}/{pod_uid}"


def mark_of(snapshot: JsonObject) -> str:
    return observed.annotations_of(snapshot).get(names.ANNOTATION_SNAPSHOT_OF, "")


def is_ready(snapshot: JsonObject) -> bool:
    """Whether a volume can be made from it: with some drivers only once it is uploaded."""
    return (snapshot.get("status") or {}).get("readyToUse") is True


def is_cut(snapshot: JsonObject, early: Collection[str]) -> bool:
    """Whether it is of one moment that has passed, so that what the volume gets now is not in it.

    By `creationTime`, which a driver may give late: then by its readiness. With an error, another try may cut it anew.
    """
    return is_ready(snapshot) or (_has_cut_time(snapshot) and not error_of(snapshot, early))


def _has_cut_time(snapshot: JsonObject) -> bool:
    return bool((snapshot.get("status") or {}).get("creationTime"))


def error_of(snapshot: JsonObject, early: Collection[str] = ()) -> str:
    """What its driver last said of a try that failed, as far as a status has room for it; it tries again.

    Not one that was seen before it was cut (`early`, of `early_error`): the snapshotter leaves that in the status until the
    snapshot is ready. Its time is no help, since `creationTime` is of another clock, the storage's.
    """
    if _has_cut_time(snapshot) and _mark_of_error(snapshot) in early:
        return ""
    return str(_error(snapshot).get("message") or "")[:ERROR_CHARACTERS]


def early_error(snapshot: JsonObject) -> str:
    """By what an error of a snapshot that is not cut yet is known again; empty: there is none, or it has no time."""
    return "" if is_ready(snapshot) or _has_cut_time(snapshot) else _mark_of_error(snapshot)


def _mark_of_error(snapshot: JsonObject) -> str:
    at = _error(snapshot).get("time")
    return f"{observed.metadata(snapshot)['name']} {at}" if at else ""


def _error(snapshot: JsonObject) -> JsonObject:
    found: JsonObject = (snapshot.get("status") or {}).get("error") or {}
    return found


def failing_since_seconds(snapshot: JsonObject, early: Collection[str], now_seconds: float) -> float | None:
    """Since when it has got no further; None: it is ready, or in work.

    Before it is cut, since it was made: the text of an error may have the number of a request, and each a time of its own. Then
    since its error, by the snapshotter's clock; a time to come does not count.
    """
    status = snapshot.get("status") or {}
    if is_ready(snapshot) or (status and not error_of(snapshot, early)):
        return None
    at = observed.seconds_of(_error(snapshot).get("time")) if _has_cut_time(snapshot) else 0.0
    return at if 0.0 < at <= now_seconds else observed.created_seconds(snapshot)


def restore_size(snapshot: JsonObject) -> str:
    """How large a claim from it must be at least; empty where its driver says none."""
    return str((snapshot.get("status") or {}).get("restoreSize") or "")


def taken_at(snapshots: Iterable[JsonObject]) -> str:
    """When the last of them was cut, as its driver says; empty if none says it."""
    return max(str((one.get("status") or {}).get("creationTime") or "") for one in snapshots)


class DamagedManifestError(Exception):
    """The annotation is not what a Backup writes; the message says where."""


def manifest_of(snapshot: JsonObject) -> SnapshotManifest | None:
    """What a Backup wrote on it when all of its snapshots were ready; None: nothing, so it is torn."""
    text = observed.annotations_of(snapshot).get(names.ANNOTATION_MANIFEST)
    if text is None:
        return None
    try:
        return msgspec.json.decode(text, type=SnapshotManifest)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise DamagedManifestError(str(error)) from error


def attached_of(claims: Iterable[JsonObject | None], attached: Mapping[str, str]) -> tuple[str, str] | None:
    """The first volume of these claims that is attached, and its node; None: none is."""
    for claim in claims:
        volume = str(claim["spec"].get("volumeName") or "") if claim is not None else ""
        if volume and volume in attached:  # one that is inline in a pod is attached without a name
            return volume, attached[volume]
    return None
