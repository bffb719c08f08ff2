"""Asking for a decision again until the record store says what became of it: a change of master has no other way to go on.

Only what a later attempt can mend is asked for again. A refused or corrupt record, and a premise that is gone, are raised.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog

from brokergroup_operator.kube.backoff import Backoff
from brokergroup_operator.records.store import RecordConflictError, RecordStoreError, RecordUnavailableError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from brokergroup_operator.controller.group.group import Group
    from controller_core.decision import Decision

RETRY_SECONDS = 0.05
# A group without a master does not wait longer than this, whatever the server asks for.
LONGEST_RETRY_AFTER_SECONDS = 5.0
AWAY_OR_OVERTAKEN: tuple[type[RecordStoreError], ...] = (RecordUnavailableError, RecordConflictError)

log = structlog.get_logger(__name__)


async def decided_at_last(
    decide: Callable[[], Awaitable[Decision]],
    *,
    group: Group,
    waits: str,
    longest_pause_seconds: float = 0.5,
    retried: tuple[type[RecordStoreError], ...] = AWAY_OR_OVERTAKEN,
) -> Decision:
    """The decision, with pauses that double between the attempts. `waits` says in the log what the store keeps waiting."""
    backoff = Backoff(RETRY_SECONDS, longest_pause_seconds)
    while True:
        try:
            return await decide()
        except retried as error:
            log.warning(f"{waits} waits for the record store", group=str(group.key), error=str(error))
            retry_after_seconds = error.retry_after_seconds if isinstance(error, RecordUnavailableError) else 0.0
        await asyncio.sleep(backoff.next_seconds(min(retry_after_seconds, LONGEST_RETRY_AFTER_SECONDS)))
