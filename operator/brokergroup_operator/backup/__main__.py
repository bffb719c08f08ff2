"""``python -m brokergroup_operator.backup take|restore``: what the pod of a Backup, or of a group that begins with one, runs.

The end is told as a container's termination message: the manifest, or the fault in a sentence.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import msgspec

from brokergroup_operator.api.backup_fields import Manifest
from brokergroup_operator.backup.copies import BackupError, Store, restore, take

# Kubernetes keeps so many bytes of a termination message.
MESSAGE_BYTES = 4096


def main(arguments: list[str]) -> int:
    """Copy, write the termination message, and return 0; 1 where there is no whole copy."""
    environment = os.environ
    store = Store.at(Path(environment["STORE_DIR"]), environment.get("COMMIT_LOG_DIR"))
    folder = Path(environment["BACKUP_DIR"], environment["BACKUP_NAME"])
    try:
        if arguments == ["take"]:
            known = msgspec.json.decode(environment["BACKUP_MANIFEST"], type=Manifest)
            manifest = take(store, folder, known)
        elif arguments == ["restore"]:
            manifest = restore(folder, store, name=environment["BACKUP_NAME"], implementation=environment["IMPLEMENTATION"])
        else:
            raise BackupError(f"the command is {' '.join(arguments)!r}, expected take or restore")
    except (BackupError, OSError) as error:
        _say(f"{error}".encode(), environment)
        sys.stderr.write(f"backup: {error}\n")
        return 1
    _say(msgspec.json.encode(manifest), environment)
    return 0


def _say(text: bytes, environment: os._Environ[str]) -> None:
    Path(environment["TERMINATION_LOG"]).write_bytes(text[:MESSAGE_BYTES])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
