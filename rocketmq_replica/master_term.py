"""A replica's term as master: what it may store, and when it may acknowledge. Pure.

Sends, acknowledgements and the time go in, released waiters and proposals come out. A term may span several epochs. When it ends
(``end``), waiting sends get an unknown outcome, never success.

*Trust.* If the gap between two looks at the clock exceeds half the heartbeat timeout, this process was paused and the controller
may have elected another master. Nothing is acknowledged until a controller confirms the epoch (docs/concepts/architecture.md,
rule 7).

*Acknowledgement.* As in a Java broker (5.5.0), but stricter where that loses acknowledged messages: only members of the
SyncStateSet count, each once; ``minInSyncReplicas`` is checked when a message is stored *and* when it is acknowledged.
"""

from __future__ import annotations

import enum
import heapq
import itertools
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rocketmq_replica.log.message_store import MessageStore, NewMessage, Stored
    from rocketmq_replica.sync_state import Proposal, SlaveProgress, SyncState


Waiter = TypeVar("Waiter")


class Outcome(enum.Enum):
    """The outcome of a send."""

    STORED = enum.auto()
    FLUSH_DISK_TIMEOUT = enum.auto()
    FLUSH_SLAVE_TIMEOUT = enum.auto()
    MASTER_NO_MORE = enum.auto()


class NotEnoughReplicasError(Exception):
    """The SyncStateSet is smaller than minInSyncReplicas: nothing was stored."""


class MasterTerm(Generic[Waiter]):
    """Stores messages and decides their acknowledgement while this replica is master."""

    def __init__(
        self,
        store: MessageStore,
        policy: AcknowledgementPolicy,
        *,
        sync_state: SyncState,
        master_epoch: int,
        sync_flush: bool,
        max_pause_seconds: float,
        now_seconds: float,
    ) -> None:
        """Begin the term. Its epoch is in the store's history already."""
        self._store = store
        self._policy = policy
        self._sync_flush = sync_flush
        self._max_pause_seconds = max_pause_seconds
        self._last_look_seconds = now_seconds
        self._waiting: PendingAcks[Waiter] = PendingAcks()
        self.sync_state = sync_state
        self.master_epoch = master_epoch
        self.trusted = True
        self._distrusted_since_seconds = now_seconds

    @property
    def waiting_count(self) -> int:
        """The number of stored sends without an answer."""
        return len(self._waiting)

    @property
    def settles_alone(self) -> bool:
        """Whether a message can be acknowledged as soon as it is stored, without waiting for slaves."""
        return self.sync_state.alone or not self._policy.all_ack_in_sync_state_set

    def put_all(self, messages: Sequence[NewMessage], *, store_timestamp_ms: int) -> list[Stored]:
        """Store messages of one queue. Raise NotEnoughReplicasError before anything is written."""
        if not self._policy.accepts(self.sync_state):
            raise NotEnoughReplicasError(
                f"{len(self.sync_state.members)} in sync, minInSyncReplicas is {self._policy.min_in_sync_replicas}"
            )
        if len(messages) == 1:
            return [self._store.put(messages[0], store_timestamp_ms=store_timestamp_ms)]
        return self._store.put_all(messages, store_timestamp_ms=store_timestamp_ms)

    def wait(
        self, waiter: Waiter, *, end_offset: int, deadline_seconds: float, flush_deadline_seconds: float = 0.0
    ) -> None:
        """Add a waiter for the acknowledgement up to ``end_offset``; call ``settle`` afterwards.

        ``deadline_seconds`` applies to the replicas. The disk may take until ``flush_deadline_seconds``, if that is later.
        """
        self._waiting.wait(
            waiter,
            end_offset=end_offset,
            deadline_seconds=deadline_seconds,
            flush_deadline_seconds=flush_deadline_seconds,
        )

    def acknowledged(self, progress: SlaveProgress, offset: int, *, now_seconds: float) -> None:
        """Record a slave's acknowledgement; call ``settle`` afterwards."""
        self.sync_state.acknowledged(progress, offset, max_offset=self._store.max_offset, now_seconds=now_seconds)

    def look_at_clock(self, now_seconds: float) -> bool:
        """Note the time. Return False if this process was paused and its epoch not confirmed since."""
        if now_seconds - self._last_look_seconds > self._max_pause_seconds:
            self.trusted = False
            self._distrusted_since_seconds = now_seconds
        self._last_look_seconds = now_seconds
        return self.trusted

    def confirmed(self, *, asked_seconds: float, now_seconds: float) -> bool:
        """Take a controller's confirmation of this epoch. Return False if it was asked before the pause: then its answer may have
        waited in a buffer for as long as the pause.
        """
        if not self.look_at_clock(now_seconds) and asked_seconds >= self._distrusted_since_seconds:
            self.trusted = True
        return self.trusted

    def acknowledges_at_once(self, end_offset: int, *, now_seconds: float) -> bool:
        """Whether the last message needs no other replica: the result of ``wait`` and ``settle``, at lower cost."""
        state = self.sync_state
        if self._sync_flush or len(self._waiting) or not state.alone or state.links:
            return False
        policy = self._policy
        needed = 1 if policy.all_ack_in_sync_state_set else policy.needed(len(state.members))
        if needed > 1 or len(state.members) < policy.min_in_sync_replicas or not self.look_at_clock(now_seconds):
            return False
        state.replicated_offset = max(state.replicated_offset, end_offset)
        self._store.confirm_offset = end_offset
        return True

    def settle(self, *, now_seconds: float) -> list[Waiter]:
        """Move the confirm offset. Return the waiters whose messages are acknowledged."""
        trusted = self.look_at_clock(now_seconds)
        max_offset = self._store.max_offset
        replicated = self.sync_state.advance(max_offset=max_offset, now_seconds=now_seconds)
        if not trusted:
            return []
        self._store.confirm_offset = replicated if self._policy.all_ack_in_sync_state_set else max_offset
        replicated_to = acknowledged_offset(self._policy, self.sync_state, max_offset=max_offset)
        own = self._store.log.flushed_offset if self._sync_flush else max_offset
        return self._waiting.release(min(replicated_to, own))

    def expire(self, now_seconds: float) -> list[tuple[Waiter, Outcome]]:
        """Return the waiters past their deadline with their outcome; a timeout of the replicas takes precedence (B.3)."""
        due = self._waiting.due(now_seconds)
        if not due:
            return []
        replicated_to = acknowledged_offset(self._policy, self.sync_state, max_offset=self._store.max_offset)
        expired = []
        for waiting in due:
            only_the_disk = self._sync_flush and replicated_to >= waiting.end_offset
            if only_the_disk and waiting.flush_deadline_seconds > now_seconds:
                self._waiting.wait_until(waiting, waiting.flush_deadline_seconds)
                continue
            self._waiting.leave(waiting)
            outcome = Outcome.FLUSH_DISK_TIMEOUT if only_the_disk else Outcome.FLUSH_SLAVE_TIMEOUT
            expired.append((waiting.waiter, outcome))
        return expired

    def tick(self, *, now_seconds: float) -> None:
        """Let time pass without messages."""
        self.sync_state.tick(max_offset=self._store.max_offset, now_seconds=now_seconds)

    def propose(self, *, now_seconds: float, allowed_lag_seconds: float) -> Proposal | None:
        """Return the proposal for the controller; None if there is none."""
        return self.sync_state.propose(now_seconds=now_seconds, allowed_lag_seconds=allowed_lag_seconds)

    def next_deadline_seconds(self) -> float | None:
        """Return the next deadline; None if nothing waits."""
        return self._waiting.next_deadline_seconds()

    def end(self) -> list[Waiter]:
        """End the term. Return all waiters."""
        return self._waiting.clear()


NOTHING = -1


@dataclass
class AcknowledgementPolicy:
    """Keys of ``broker.conf`` that UPDATE_BROKER_CONFIG changes at run time."""

    all_ack_in_sync_state_set: bool = False
    in_sync_replicas: int = 1
    min_in_sync_replicas: int = 1
    auto_in_sync_replicas: bool = False

    def needed(self, members: int) -> int:
        """Return how many members of the set, including the master, must have a message.

        With ``enableAutoInSyncReplicas`` at most the number of members; Java uses that key only without a controller (B.2).
        """
        if self.auto_in_sync_replicas:
            return max(min(self.in_sync_replicas, members), self.min_in_sync_replicas, 1)
        return max(self.in_sync_replicas, 1)

    def accepts(self, sync_state: SyncState) -> bool:
        """Whether the set is large enough to store messages."""
        return len(sync_state.members) >= self.min_in_sync_replicas


def acknowledged_offset(policy: AcknowledgementPolicy, sync_state: SyncState, *, max_offset: int) -> int:
    """Return the offset up to which messages may be acknowledged; -1 for none."""
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
    """One stored message without an answer."""

    __slots__ = ("answered", "end_offset", "flush_deadline_seconds", "waiter")

    def __init__(self, waiter: Waiter, end_offset: int, flush_deadline_seconds: float) -> None:
        self.waiter = waiter
        self.end_offset = end_offset
        self.flush_deadline_seconds = flush_deadline_seconds
        self.answered = False


class PendingAcks(Generic[Waiter]):
    """Stored messages without an answer, in the order of the log for their release and by deadline for their timeout.

    Each has its own deadline; Java serves them one after the other (B.3). Later messages nearly always have later deadlines: those
    are in a queue, and only the others (after a shorter timeout, or with a longer deadline for the disk) in a heap.
    """

    def __init__(self) -> None:
        self._queue: deque[PendingAck[Waiter]] = deque()
        self._in_turn: deque[tuple[float, PendingAck[Waiter]]] = deque()
        self._out_of_turn: list[tuple[float, int, PendingAck[Waiter]]] = []
        self._arrivals = itertools.count()
        self._count = 0

    def __len__(self) -> int:
        """Return the number of waiting messages."""
        return self._count

    def wait(
        self, waiter: Waiter, *, end_offset: int, deadline_seconds: float, flush_deadline_seconds: float = 0.0
    ) -> None:
        """Add a waiter for the acknowledgement up to ``end_offset``, at most until the deadline."""
        waiting = PendingAck(waiter, end_offset, flush_deadline_seconds)
        self._queue.append(waiting)
        self._count += 1
        self.wait_until(waiting, deadline_seconds)

    def release(self, offset: int) -> list[Waiter]:
        """Remove and return the waiters whose messages are acknowledged."""
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
        """Return those past their deadline. The caller must call ``leave`` or ``wait_until`` for each."""
        due = []
        self._forget_answered()
        while self._in_turn and self._in_turn[0][0] <= now_seconds:
            due.append(self._in_turn.popleft()[1])
        while self._out_of_turn and self._out_of_turn[0][0] <= now_seconds:
            due.append(heapq.heappop(self._out_of_turn)[2])
        return [waiting for waiting in due if not waiting.answered]

    def leave(self, waiting: PendingAck[Waiter]) -> None:
        """Mark it as answered."""
        waiting.answered = True
        self._count -= 1

    def wait_until(self, waiting: PendingAck[Waiter], deadline_seconds: float) -> None:
        """Set its deadline."""
        if not self._in_turn or self._in_turn[-1][0] <= deadline_seconds:
            self._in_turn.append((deadline_seconds, waiting))
        else:
            heapq.heappush(self._out_of_turn, (deadline_seconds, next(self._arrivals), waiting))

    def clear(self) -> list[Waiter]:
        """Remove and return all waiters."""
        waiters = [waiting.waiter for waiting in self._queue if not waiting.answered]
        self._queue.clear()
        self._in_turn.clear()
        self._out_of_turn.clear()
        self._count = 0
        return waiters

    def next_deadline_seconds(self) -> float | None:
        """Return the earliest deadline; None if nothing waits."""
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
