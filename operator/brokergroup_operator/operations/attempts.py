"""Requests of this process to the controller plane that are under way. A switchover takes longer than a pass may.

Nothing rests on it: after a restart the record shows what came of a request, and a request that left no trace is made again.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

from brokergroup_operator.kube.errors import ApiError
from brokergroup_operator.observe.group_view import ElectionRefusedError, GroupViewError, SwitchoverRefusedError
from brokergroup_operator.operations.verdicts import Figures, Outcome
from brokergroup_operator.records.store import RecordStoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable

    from brokergroup_operator.observe.group_view import ElectionResult, SwitchoverResult
    from brokergroup_operator.records.store import GroupKey

log = structlog.get_logger(__name__)
# Between two requests of one operation, so that a refused one is not repeated in a tight loop.
ASK_AGAIN_SECONDS = 0.5


def figures_of_switchover(change: SwitchoverResult) -> Figures:
    return Figures(
        from_broker_id=change.from_broker_id,
        to_broker_id=change.to_broker_id,
        epoch=change.epoch,
        milliseconds=round(change.milliseconds),
        phases={name: round(value) for name, value in change.phases.items()},
    )


def figures_of_election(change: ElectionResult) -> Figures:
    return Figures(to_broker_id=change.to_broker_id, epoch=change.epoch, milliseconds=round(change.milliseconds))


@dataclass(frozen=True)
class _Attempt:
    key: GroupKey
    task: asyncio.Task[Figures]


class Attempts:
    """The requests under way, at most one for each operation, by its uid."""

    def __init__(self, wake: Callable[[GroupKey], None]) -> None:
        self._wake = wake
        self._attempts: dict[str, _Attempt] = {}

    def begin(self, key: GroupKey, uid: str, request: Coroutine[None, None, Figures]) -> None:
        """Start it beside the passes; its end wakes the group. What was asked before, and has ended, is asked less eagerly."""
        pause_seconds = ASK_AGAIN_SECONDS if uid in self._attempts else 0.0
        task = asyncio.create_task(_after(pause_seconds, request), name=f"operation {key} {uid}")
        task.add_done_callback(lambda _: self._wake(key))
        self._attempts[uid] = _Attempt(key, task)

    def outcomes(self, key: GroupKey) -> dict[str, Outcome]:
        """Return the outcomes so far of the requests for this group."""
        return {uid: _outcome(item.task) for uid, item in self._attempts.items() if item.key == key}

    def has_any(self, key: GroupKey) -> bool:
        """Whether a request for this group was made and is not forgotten."""
        return any(item.key == key for item in self._attempts.values())

    def forget_all_but(self, key: GroupKey, uids: Iterable[str]) -> None:
        """Drop the requests of operations that are over or gone."""
        kept = set(uids)
        for uid in [uid for uid, item in self._attempts.items() if item.key == key and uid not in kept]:
            self._attempts.pop(uid).task.cancel()

    async def stop(self) -> None:
        """Cancel the waiting; the controller plane finishes by itself what it has begun."""
        tasks = [item.task for item in self._attempts.values()]
        self._attempts.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _after(pause_seconds: float, request: Coroutine[None, None, Figures]) -> Figures:
    try:
        await asyncio.sleep(pause_seconds)
        return await request
    finally:
        request.close()  # where it was never begun: cancelled before its turn


def _outcome(task: asyncio.Task[Figures]) -> Outcome:
    if not task.done():
        return Outcome(running=True)
    if task.cancelled():
        return Outcome(failed="the request was cancelled")
    error = task.exception()
    if error is None:
        return Outcome(figures=task.result())
    if isinstance(error, SwitchoverRefusedError | ElectionRefusedError):
        return Outcome(refused=str(error))
    if not isinstance(error, GroupViewError | RecordStoreError | ApiError | TimeoutError):
        # A mistake in the program: it is logged with its traceback, and the operation fails at its deadline.
        log.error("operation.request_failed", exc_info=error)
    return Outcome(failed=f"{type(error).__name__}: {error}")
