"""``python -m brokergroup_operator.backup take|restore|adopt``: what the pod of a Backup, or of a group that begins with one, runs.

The end is told as a container's termination message: the manifest, or the fault in a sentence.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from brokergroup_operator.api.backup_fields import Manifest
from brokergroup_operator.backup.adoption import adopt
from brokergroup_operator.backup.copies import restore, take
from brokergroup_operator.backup.files import BackupError, Store

if TYPE_CHECKING:
    from collections.abc import Mapping

# Kubernetes keeps so many bytes of a termination message.
MESSAGE_BYTES = 4096


def main(arguments: list[str]) -> int:
    """Copy, write the termination message, and return 0; 1 where there is no whole copy."""
    environment = os.environ
    try:
        manifest = _copy(arguments, environment)
    except (BackupError, OSError) as error:
        _say(f"{error}".encode(), environment)
        sys.stderr.write(f"backup: {error}\n")
        return 1
    _say(msgspec.json.encode(manifest), environment)
    return 0


def _copy(arguments: list[str], environment: Mapping[str, str]) -> Manifest:
    store = Store.at(Path(environment["STORE_DIR"]), environment.get("COMMIT_LOG_DIR"))
    if arguments == ["adopt"]:
        return adopt(store, msgspec.json.decode(environment["BACKUP_MANIFEST"], type=Manifest))
    name = environment["BACKUP_NAME"]
    folder = Path(environment["BACKUP_DIR"], name)
    if arguments == ["take"]:
        return take(store, folder, msgspec.json.decode(environment["BACKUP_MANIFEST"], type=Manifest))
    if arguments == ["restore"]:
        return restore(folder, store, name=name, implementation=environment["IMPLEMENTATION"])
    raise BackupError(f"the command is {' '.join(arguments)!r}, expected take, restore or adopt")


def _say(text: bytes, environment: Mapping[str, str]) -> None:
    Path(environment["TERMINATION_LOG"]).write_bytes(text[:MESSAGE_BYTES])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
