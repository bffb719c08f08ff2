"""What a pass needs to see of VolumeSnapshots: those of a Backup, and those that a new group begins with. Pure.

They are read by name, only while one is asked for (`fetch.py`), and lie in `Observed.aside`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from brokergroup_operator.api import names
from brokergroup_operator.api.backup_fields import SnapshotManifest
from brokergroup_operator.api.brokergroup_operation import OperationType
from brokergroup_operator.kube.resources import VOLUME_SNAPSHOTS
from brokergroup_operator.reconcile.see import copies, observed

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from brokergroup_operator.api.bounds import JsonObject
    from brokergroup_operator.api.brokergroup import BrokerGroup
    from brokergroup_operator.reconcile.see.observed import Observed

MANIFEST: Final = names.ANNOTATION_MANIFEST
ERROR_CHARACTERS: Final = 1024
NOT_INSTALLED: Final = f"VolumeSnapshots ({VOLUME_SNAPSHOTS.api_version}) are not installed in this cluster"


def wanted(seen: Observed) -> list[str]:
    """The names of the VolumeSnapshots that this pass must read."""
    return sorted({*_of_backups(seen), *_of_restore(seen)})


def are_taken(seen: Observed) -> bool:
    """Whether a Backup asks for them, so that the pass must know which volumes are attached."""
    return any(True for _ in _of_backups(seen))


def _of_backups(seen: Observed) -> Iterator[str]:
    for one in seen.operations:
        if one.asked.spec.type is OperationType.BACKUP and not one.finished and one.asked.spec.backup is not None:
            yield from names_of(seen.group, one.name) if one.asked.spec.backup.snapshot is not None else ()


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
    return (snapshot.get("status") or {}).get("readyToUse") is True


def error_of(snapshot: JsonObject) -> str:
    """What its driver last said of a try that failed, as far as a status has room for it; it tries again."""
    return str(((snapshot.get("status") or {}).get("error") or {}).get("message") or "")[:ERROR_CHARACTERS]


def failing_since_seconds(snapshot: JsonObject) -> float | None:
    """Since when it has got no further, by the clocks of API server and snapshot controller; None: it is ready, or in work.

    Before it is cut, that is since it was made: the text of an error may have the number of a request, and each a time of its own.
    """
    status = snapshot.get("status") or {}
    if is_ready(snapshot) or (status and not error_of(snapshot)):
        return None
    at = status["error"].get("time") if status.get("creationTime") else None
    return observed.seconds_of(str(at)) if at else observed.created_seconds(snapshot)


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
