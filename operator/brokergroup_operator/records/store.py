"""Where a broker group's durable record lives, seen from the controller: read, and compare-and-set.

The controller plane grants nothing (no mastership, no broker id, no place in the SyncStateSet) that is not in the record
first, and it never overwrites a record it has not read. So the
store has two verbs only:

``read``
    linearizable: what it returns was the newest record at some moment between the call and the answer. Never a cache.
``commit``
    replaces exactly the record that was read (``expected``), or creates one where none was (``expected=None``). When it
    returns, the record is durable. A write whose outcome is unknown is looked up again until it is known.

What can go wrong has three types, and the type is the caller's policy: after a conflict read again and recompute; when the
store is unavailable grant nothing and answer an error; a corrupt record is for a human, and is never taken for "new".
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol

from rocketmq_remoting.limits import one_line

if TYPE_CHECKING:
    from collections.abc import Callable

    from controller_core.model import BrokerGroupRecord

DEFAULT_DEADLINE_SECONDS = 2.0


class RecordStoreError(Exception):
    """Anything that keeps a record from being read or written."""

    # How long the store asks not to be called.
    retry_after_seconds: float = 0.0


class RecordConflictError(RecordStoreError):
    """Another writer was first, or overwrote our write before we saw it: read again, recompute."""


class RecordUnavailableError(RecordStoreError):
    """The store did not answer within the deadline: nothing is granted, the caller may ask again.

    `write_id` is that of the write whose outcome is unknown (`StoredRecord.write_id`); empty where nothing was to be written, or
    where the store has one writer only.
    """

    def __init__(self, message: str, *, write_id: str = "", retry_after_seconds: float = 0.0) -> None:
        super().__init__(message)
        self.write_id = write_id
        self.retry_after_seconds = retry_after_seconds


class RecordRefusedError(RecordStoreError):
    """The store's own rules refuse this record (for example a falling epoch): our mistake, a retry does not help."""


class RecordCorruptError(RecordStoreError):
    """A record exists and is unreadable. It never counts as absent: that would lose broker ids."""


class GroupKey(NamedTuple):
    """Names a BrokerGroup: its namespace and name, not its brokerName. A named tuple: each heartbeat compares and hashes some."""

    namespace: str
    name: str

    def __str__(self) -> str:
        """Return one printable line, since a peer may have chosen the name; different names stay different."""
        return one_line(f"{self.namespace}/{self.name}".replace("\\", "\\\\"))


@dataclass(frozen=True, slots=True)
class StoredRecord:
    """A record as it was read or written, with the version that a commit must name to replace it."""

    record: BrokerGroupRecord
    version: str
    uid: str
    # Id of the write: several planes may write the same content. Empty in a store with one writer.
    write_id: str = field(default="", compare=False)
    # For the store's next commit alone (for example the whole Kubernetes object).
    backing: object = field(default=None, compare=False, repr=False)


class RecordMoved(Protocol):
    """Called with the new version of a group's record; None if it was deleted."""

    def __call__(self, key: GroupKey, version: str | None) -> None:
        """Must return at once."""
        ...


class RecordStore(Protocol):
    """The controller plane's only durable memory."""

    async def read(self, key: GroupKey, *, deadline_seconds: float = DEFAULT_DEADLINE_SECONDS) -> StoredRecord | None:
        """Return the newest record, or None where the group never had one."""
        ...

    async def commit(
        self,
        key: GroupKey,
        record: BrokerGroupRecord | None,
        expected: StoredRecord | None,
        deadline_seconds: float = DEFAULT_DEADLINE_SECONDS,
    ) -> StoredRecord | None:
        """Make ``record`` durable in place of ``expected``; ``record=None`` deletes it. Returns what is stored now."""
        ...

    def subscribe(self, callback: RecordMoved) -> Callable[[], None]:
        """Call ``callback`` for each written record, by any writer; return how to unsubscribe. Calls may be late or missing."""
        ...

    def watched(self, key: GroupKey) -> StoredRecord | None:
        """Return the record that the subscription last saw, without a request: not for decisions. Raises ``RecordCorruptError``."""
        ...

    async def close(self) -> None:
        """Release files, locks and connections."""
        ...
