"""``config/queueOffsets.json``: the number each queue's next message gets, for queues whose messages are all deleted.

Our own file: Java has it in its consume queue files. Written before files of the log are deleted; without it a queue would count
from 0 again after the next start, below what its consumers have committed.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from rocketmq_replica.log.durable_files import StoreFileError, replace_file, sync_names

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


def save_queue_offsets(path: Path, offsets: Mapping[tuple[str, int], int]) -> None:
    """Make them durable."""
    rows = [[topic, queue_id, offset] for (topic, queue_id), offset in sorted(offsets.items())]
    replace_file(path, json.dumps({"nextOffsets": rows}, separators=(",", ":")).encode())


def load_queue_offsets(path: Path) -> dict[tuple[str, int], int]:
    """As they were saved; none if nothing was ever deleted."""
    sync_names(path.parent)
    if not path.exists():
        return {}
    try:
        rows = json.loads(path.read_bytes())["nextOffsets"]
        return {(str(topic), int(queue_id)): int(offset) for topic, queue_id, offset in rows}
    except (ValueError, OverflowError, RecursionError, KeyError, TypeError) as error:
        raise StoreFileError(f"{path}: is no table of queue offsets: {error!r}") from error
