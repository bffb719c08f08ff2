"""A record store that lives as long as its process: for tests, and for trying the controller out without a disk.

It keeps the contract of ``store.py`` to the letter (versions, uids, conflicts), so that what is proven over it holds over the
others; several controller planes may share one.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from brokergroup_operator.records.store import (
    DEFAULT_DEADLINE_SECONDS,
    GroupKey,
    RecordConflictError,
    StoredRecord,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from brokergroup_operator.records.store import RecordMoved
    from controller_core.model import BrokerGroupRecord


class MemoryRecordStore:
    """Records in a dict, each write with a version of its own."""

    def __init__(self) -> None:
        self._records: dict[GroupKey, StoredRecord] = {}
        self._versions = itertools.count(1)
        self._uids = itertools.count(1)
        self._callbacks: list[RecordMoved] = []

    async def read(
        self,
        key: GroupKey,
        *,
        deadline_seconds: float = DEFAULT_DEADLINE_SECONDS,  # noqa: ARG002 - memory answers at once
    ) -> StoredRecord | None:
        """Return the record of this group."""
        return self._records.get(key)

    async def commit(
        self,
        key: GroupKey,
        record: BrokerGroupRecord | None,
        expected: StoredRecord | None,
        deadline_seconds: float = DEFAULT_DEADLINE_SECONDS,  # noqa: ARG002 - memory answers at once
    ) -> StoredRecord | None:
        """Replace exactly what was read, else refuse."""
        current = self._records.get(key)
        if (current is None) != (expected is None) or (
            current is not None
            and expected is not None
            and (current.version, current.uid) != (expected.version, expected.uid)
        ):
            raise RecordConflictError(
                f"record of {key}: expected version {expected.version if expected else 'none'}, "
                f"found {current.version if current else 'none'}"
            )
        if record is None:
            self._records.pop(key, None)
            self._tell(key, None)
            return None
        uid = current.uid if current is not None else f"memory-{next(self._uids)}"
        version = str(next(self._versions))
        stored = StoredRecord(record=record, version=version, uid=uid, write_id=f"write-{version}")
        self._records[key] = stored
        self._tell(key, stored.version)
        return stored

    def subscribe(self, callback: RecordMoved) -> Callable[[], None]:
        """Call ``callback`` for every commit."""
        self._callbacks.append(callback)
        return lambda: self._callbacks.remove(callback)

    def watched(self, key: GroupKey) -> StoredRecord | None:
        """Return the record of this group."""
        return self._records.get(key)

    def _tell(self, key: GroupKey, version: str | None) -> None:
        for callback in list(self._callbacks):
            callback(key, version)

    async def close(self) -> None:
        """Keep everything: several planes may share this store."""
