"""When a message may be acknowledged: how far the log is replicated, and who waits for which offset.

Pure: the time is passed in, answers come out. The rules are those of a Java broker (5.5.0), made stricter where a
Java broker loses acknowledged messages: only members of the SyncStateSet count, each once, never learners or strangers; and
``minInSyncReplicas`` is checked when the message is stored *and* again when it is acknowledged.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from rocketmq_replica.term.sync_state import SyncState

NOTHING = -1
Waiter = TypeVar("Waiter")


@dataclass
class AcknowledgementPolicy:
    """The keys of ``broker.conf``; changed live by UPDATE_BROKER_CONFIG."""

    all_ack_in_sync_state_set: bool = False
    in_sync_replicas: int = 1
    min_in_sync_replicas: int = 1
    auto_in_sync_replicas: bool = False

    def needed(self, members: int) -> int:
        """How many members of the set, the master included, must hold a message.

        With ``enableAutoInSyncReplicas`` no more than there are; Java heeds that key only without a controller (B.2).
        """
        if self.auto_in_sync_replicas:
            return max(min(self.in_sync_replicas, members), self.min_in_sync_replicas, 1)
        return max(self.in_sync_replicas, 1)

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
    needed = policy.needed(len(sync_state.members))
    return held[needed - 1] if needed <= len(held) else NOTHING


def _ack_of(sync_state: SyncState, member: int) -> int:
    link = sync_state.links.get(member)
    return NOTHING if link is None else link.ack_offset


class PendingAck(Generic[Waiter]):
    """One message stored and not answered yet."""

    __slots__ = ("answered", "end_offset", "flush_deadline_seconds", "waiter")

    def __init__(self, waiter: Waiter, end_offset: int, flush_deadline_seconds: float) -> None:
        self.waiter = waiter
        self.end_offset = end_offset
        self.flush_deadline_seconds = flush_deadline_seconds
        self.answered = False


class PendingAcks(Generic[Waiter]):
    """Messages stored and not answered yet: in the order of the log to be released, by deadline to be given up.

    Each has its own deadline, so nobody queues behind another's wait; Java serves them one after the other (B.3). Who comes later
    has nearly always the later deadline: those stand in a row, and only the others (the timeout was shortened meanwhile, or the
    disk has longer than the replicas) in a heap.
    """

    def __init__(self) -> None:
        """Nobody waits."""
        self._queue: deque[PendingAck[Waiter]] = deque()
        self._in_turn: deque[tuple[float, PendingAck[Waiter]]] = deque()
        self._out_of_turn: list[tuple[float, int, PendingAck[Waiter]]] = []
        self._arrivals = itertools.count()
        self._count = 0

    def __len__(self) -> int:
        """How many wait."""
        return self._count

    def wait(
        self, waiter: Waiter, *, end_offset: int, deadline_seconds: float, flush_deadline_seconds: float = 0.0
    ) -> None:
        """Wait until the log is acknowledged up to ``end_offset``, at most until the deadline."""
        waiting = PendingAck(waiter, end_offset, flush_deadline_seconds)
        self._queue.append(waiting)
        self._count += 1
        self.wait_until(waiting, deadline_seconds)

    def release(self, offset: int) -> list[Waiter]:
        """Take out everyone whose message is acknowledged."""
        released = []
        queue = self._queue
        while queue and (queue[0].answered or queue[0].end_offset <= offset):
            waiting = queue.popleft()
            if not waiting.answered:
                self.leave(waiting)
                released.append(waiting.waiter)
        self._forget_answered()
        return released

    def due(self, now_seconds: float) -> list[PendingAck[Waiter]]:
        """Everyone whose deadline has passed: each has to ``leave`` now, or to ``wait_until`` another one."""
        due = []
        self._forget_answered()
        while self._in_turn and self._in_turn[0][0] <= now_seconds:
            due.append(self._in_turn.popleft()[1])
        while self._out_of_turn and self._out_of_turn[0][0] <= now_seconds:
            due.append(heapq.heappop(self._out_of_turn)[2])
        return [waiting for waiting in due if not waiting.answered]

    def leave(self, waiting: PendingAck[Waiter]) -> None:
        """It is answered."""
        waiting.answered = True
        self._count -= 1

    def wait_until(self, waiting: PendingAck[Waiter], deadline_seconds: float) -> None:
        """Give it up at this time."""
        if not self._in_turn or self._in_turn[-1][0] <= deadline_seconds:
            self._in_turn.append((deadline_seconds, waiting))
        else:
            heapq.heappush(self._out_of_turn, (deadline_seconds, next(self._arrivals), waiting))

    def clear(self) -> list[Waiter]:
        """Take out everyone: this replica is no master any more."""
        waiters = [waiting.waiter for waiting in self._queue if not waiting.answered]
        self._queue.clear()
        self._in_turn.clear()
        self._out_of_turn.clear()
        self._count = 0
        return waiters

    def next_deadline_seconds(self) -> float | None:
        """When ``due`` has something to tell next."""
        self._forget_answered()
        firsts = [self._in_turn[0][0]] if self._in_turn else []
        if self._out_of_turn:
            firsts.append(self._out_of_turn[0][0])
        return min(firsts, default=None)

    def _forget_answered(self) -> None:
        while self._in_turn and self._in_turn[0][1].answered:
            self._in_turn.popleft()
        while self._out_of_turn and self._out_of_turn[0][2].answered:
            heapq.heappop(self._out_of_turn)
