"""When a message may be acknowledged: how far the log is replicated, and who waits for which offset.

Pure: the time is passed in, answers come out. The rules are those of ``ha-and-deployment.md`` B.2 and B.3, made stricter where a
Java broker loses acknowledged messages: only members of the SyncStateSet count, each once, never learners or strangers; and
``minInSyncReplicas`` is checked when the message is stored *and* again when it is acknowledged.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from rocketmq_replica.sync_state import SyncState

NOTHING = -1
Waiter = TypeVar("Waiter")


@dataclass
class AcknowledgementPolicy:
    """The three keys of ``broker.conf``; changed live by UPDATE_BROKER_CONFIG."""

    all_ack_in_sync_state_set: bool = False
    in_sync_replicas: int = 1
    min_in_sync_replicas: int = 1

    def accepts(self, sync_state: SyncState) -> bool:
        """False: refuse the message before it is stored, the set is too small."""
        return len(sync_state.members) >= self.min_in_sync_replicas


def acknowledged_offset(policy: AcknowledgementPolicy, sync_state: SyncState, *, max_offset: int) -> int:
    """Messages that end at or below this offset may be acknowledged; -1 for none."""
    if len(sync_state.members) < policy.min_in_sync_replicas:
        return NOTHING
    if policy.all_ack_in_sync_state_set:
        others = sync_state.waited_for - {sync_state.own_id}
        return min([max_offset, *(_ack_of(sync_state, member) for member in others)])
    held = [max_offset, *(_ack_of(sync_state, member) for member in sync_state.members - {sync_state.own_id})]
    held.sort(reverse=True)
    needed = max(policy.in_sync_replicas, 1)
    return held[needed - 1] if needed <= len(held) else NOTHING


def _ack_of(sync_state: SyncState, member: int) -> int:
    link = sync_state.links.get(member)
    return NOTHING if link is None else link.ack_offset


@dataclass(frozen=True)
class _Waiting(Generic[Waiter]):
    end_offset: int
    deadline_seconds: float
    waiter: Waiter


class WaitingRoom(Generic[Waiter]):
    """Messages stored and not answered yet, in the order of the log.

    Offsets and deadlines both grow, so both ends of the answer are found at the front: nobody queues behind another's wait.
    """

    def __init__(self) -> None:
        """Nobody waits."""
        self._queue: deque[_Waiting[Waiter]] = deque()

    def __len__(self) -> int:
        """How many wait."""
        return len(self._queue)

    def wait(self, waiter: Waiter, *, end_offset: int, deadline_seconds: float) -> None:
        """Wait until the log is acknowledged up to ``end_offset``, at most until the deadline."""
        if self._queue:  # a live change of slaveTimeout must not put an earlier deadline behind a later one
            deadline_seconds = max(deadline_seconds, self._queue[-1].deadline_seconds)
        self._queue.append(_Waiting(end_offset, deadline_seconds, waiter))

    def release(self, offset: int) -> list[Waiter]:
        """Take out everyone whose message is acknowledged."""
        released = []
        while self._queue and self._queue[0].end_offset <= offset:
            released.append(self._queue.popleft().waiter)
        return released

    def expire(self, now_seconds: float) -> list[Waiter]:
        """Take out everyone whose deadline has passed."""
        expired = []
        while self._queue and self._queue[0].deadline_seconds <= now_seconds:
            expired.append(self._queue.popleft().waiter)
        return expired

    def clear(self) -> list[Waiter]:
        """Take out everyone: this replica is no master any more."""
        waiters = [waiting.waiter for waiting in self._queue]
        self._queue.clear()
        return waiters

    def next_deadline_seconds(self) -> float | None:
        """When ``expire`` has something to do next."""
        return self._queue[0].deadline_seconds if self._queue else None
