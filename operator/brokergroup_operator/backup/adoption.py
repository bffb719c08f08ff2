"""Makes the store on volumes that were cut from a stopped broker's the first disk of a new group: checked, then without identity.

No broker starts on it until that is done, as on a store that a backup is copied to (`copies.py`): the marks are the same.
"""

from __future__ import annotations

from typing import Final

import msgspec

from brokergroup_operator.api.backup_fields import Manifest
from brokergroup_operator.backup import files
from brokergroup_operator.backup.copies import check_log, end_restore, last_epoch_of, log_end_of, mark_unfinished
from brokergroup_operator.backup.files import LOCK, RESTORED, BackupError, Store

# By which a broker knows that the disk is its own.
IDENTITY: Final = ("brokerIdentity", "brokerIdentity-temp")


def adopt(store: Store, known: Manifest) -> Manifest:
    """Check the store against what its Backup knew, take its identity away, and return the manifest with the log's end.

    The log must have no hole, and reach `known.confirm_offset`. Where that is done already, only return the manifest.
    """
    done = _adopted_as(store)
    if done is not None and done.operation == known.operation and not store.is_unfinished:
        if any((store.root / name).exists() for name in (LOCK, *IDENTITY)):
            raise BackupError("a broker has run on the claim since: delete the claim, or use another group name")
        return done
    mark_unfinished(store, known.name)
    found = list(store.files())
    if not found:
        raise BackupError("the claim is empty: it was made without its dataSource, the VolumeSnapshot")
    manifest = msgspec.structs.replace(
        known,
        offset=log_end_of(store),
        store_epoch=last_epoch_of(store),
        bytes=sum(path.lstat().st_size for _, path in found),
    )
    check_log(manifest)
    for name in IDENTITY:
        (store.root / name).unlink(missing_ok=True)
    files.sync_folders(*store.volumes)
    files.write(store.root / RESTORED, msgspec.json.encode(manifest))
    end_restore(store)
    return manifest


def _adopted_as(store: Store) -> Manifest | None:
    """What was restored to it last: also that of a restore before the snapshot, whose group was backed up again."""
    try:
        return msgspec.json.decode((store.root / RESTORED).read_bytes(), type=Manifest)
    except (FileNotFoundError, msgspec.MsgspecError):
        return None
