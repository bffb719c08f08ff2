"""A write that the store did not answer in time, and did all the same.

Whoever asked is told that nothing was granted, and asks again. Without this the second try would find a record that has moved on,
as if another controller plane had been faster: a failover would be written down as cancelled although its master was elected, and
what a commit brings with it (Events, what is remembered of a lost seat) would never happen.

Its content does not show whose write arrived: planes that see one death decide alike, and each of them would tell of the failover.
The id of the write does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from brokergroup_operator.records.store import StoredRecord
    from controller_core.decision import Decision
    from controller_core.model import BrokerGroupRecord
    from controller_core.requests import Request


@dataclass(frozen=True, slots=True)
class UnansweredWrite:
    """What was asked for, what it was decided on, what was to be written, and the id of the write."""

    request: Request
    before: BrokerGroupRecord | None
    decision: Decision
    write_id: str


class UnansweredWrites:
    """The last one of one group: first nobody knows whether it arrived, then the store is read and shows it, or does not."""

    def __init__(self) -> None:
        self._unknown: UnansweredWrite | None = None
        self._arrived: UnansweredWrite | None = None

    def note(self, write: UnansweredWrite) -> None:
        """The store did not answer this one."""
        self._unknown, self._arrived = write, None

    def find(self, stored: StoredRecord | None) -> UnansweredWrite | None:
        """The store was read: returns the write if this is the first that is known of its arrival."""
        unknown, self._unknown = self._unknown, None
        if unknown is None or stored is None:
            return None
        if (unknown.write_id, unknown.decision.record) != (stored.write_id, stored.record):
            return None
        self._arrived = unknown
        return unknown

    def take(self, request: Request, record: BrokerGroupRecord | None) -> Decision | None:
        """The decision for this very request, if its write arrived and nobody has moved the record since. It is told once."""
        arrived = self._arrived
        if arrived is None or arrived.request != request or arrived.decision.record != record:
            return None
        self._arrived = None
        return arrived.decision
