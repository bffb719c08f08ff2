"""Around a commit of a record: a write without an answer, and a decision that is retried until it is known."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

from brokergroup_operator.kube.errors import Backoff
from brokergroup_operator.records.store import RecordUnavailableError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from brokergroup_operator.records.store import GroupKey, StoredRecord
    from controller_core.decision import Decision
    from controller_core.model import BrokerGroupRecord
    from controller_core.requests import Request

RETRY_SECONDS = 0.05
# The longest pause of a group without a master, whatever Retry-After the server sends.
LONGEST_RETRY_AFTER_SECONDS = 5.0

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class UnansweredWrite:
    """A write that the store did not answer: the request, the record it was decided on, the decision, the id of the write."""

    request: Request
    before: BrokerGroupRecord | None
    decision: Decision
    write_id: str


class UnansweredWrites:
    """The last unanswered write of one group: unknown until the next read shows whether it has arrived.

    Its caller was answered with an error and asks again: a failover must not count as cancelled by another plane if its master was
    elected. The id of the write shows whose it is; its content does not, because planes that see one death decide alike.
    """

    def __init__(self) -> None:
        self._unknown: UnansweredWrite | None = None
        self._arrived: UnansweredWrite | None = None

    def note(self, write: UnansweredWrite) -> None:
        self._unknown, self._arrived = write, None

    def find(self, stored: StoredRecord | None) -> UnansweredWrite | None:
        """Return the write if this read of the store is the first to show that it has arrived."""
        unknown, self._unknown = self._unknown, None
        if unknown is None or stored is None:
            return None
        if (unknown.write_id, unknown.decision.record) != (stored.write_id, stored.record):
            return None
        self._arrived = unknown
        return unknown

    def take(self, request: Request, record: BrokerGroupRecord | None) -> Decision | None:
        """Return the decision for this very request, once, if its write arrived and the record has not moved since."""
        arrived = self._arrived
        if arrived is None or arrived.request != request or arrived.decision.record != record:
            return None
        self._arrived = None
        return arrived.decision


async def decided_at_last(
    decide: Callable[[], Awaitable[Decision]], *, key: GroupKey, waits: str, longest_pause_seconds: float = 0.5
) -> Decision:
    """Return the decision, retried with backoff while the store is away, or others were faster until the deadline.

    `waits` names it in the log. A refused or corrupt record and a premise that is gone are raised: no later attempt mends them.
    """
    backoff = Backoff(RETRY_SECONDS, longest_pause_seconds)
    while True:
        try:
            return await decide()
        except RecordUnavailableError as error:
            log.warning(f"{waits} waits for the record store", group=str(key), error=str(error))
            retry_after_seconds = min(error.retry_after_seconds, LONGEST_RETRY_AFTER_SECONDS)
        await asyncio.sleep(backoff.next_seconds(retry_after_seconds))
