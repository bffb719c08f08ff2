"""The master's view of its slaves: progress, SyncStateSet, and proposals to the controller. Pure.

Acknowledgements, broken links and the time go in, proposals come out. Stricter than Java:

* Only the controller's answer changes the set. Java 5.5.0 shrinks it when links break, and then acknowledges waiting messages
  (measured; docs/concepts/architecture.md, "What stays open").
* A proposal with an unknown outcome may have been granted: its members are waited for until a newer set epoch is seen
  (upstream #5663). Only one proposal is under way, so two slaves that leave together cannot race (#9897).
* The replicated offset does not move while a member has no link (#6662), and never moves backwards.
* A member that links as a learner is about to stop: its removal is proposed at once, and it counts until it is removed.
* A slave that has nearly caught up is waited for *before* it is proposed, so it joins under any load. In Java it needs a moment in
  which it has the very last byte.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

NEVER = -1e9
JOINING_FRESHNESS_SECONDS = 1.0
REFUSED_AGAIN_SECONDS = 0.5
LATE_GRANT_SECONDS = 10.0
"""After this time an unanswered proposal counts as not granted: twice a Java controller's wait for its quorum.

A frozen controller may still execute it later, so ``propose`` also asks for the doubted set again. If that is granted, the set
epoch is newer and the old request compares against an older one; if it is refused, the old request would be refused as well.
"""
_MARK_EVERY_SECONDS = 0.05
_NOBODY: frozenset[int] = frozenset()


@dataclass
class SlaveProgress:
    """The progress of one linked slave."""

    broker_id: int
    async_learner: bool = False
    ack_offset: int = -1
    linked_at_seconds: float = NEVER
    marks: deque[tuple[int, float]] = field(default_factory=deque)  # (end of the log, time), oldest first

    def sent(self, max_offset: int, now_seconds: float) -> None:
        """Mark the end of the log at the time of a transfer: a slave that acknowledges it had caught up at this time."""
        if not self.marks or now_seconds - self.marks[-1][1] >= _MARK_EVERY_SECONDS:
            self.marks.append((max_offset, now_seconds))


@dataclass(frozen=True)
class Proposal:
    """A new SyncStateSet for the controller, a compare-and-set on the set epoch."""

    sync_state_set: frozenset[int]
    sync_state_set_epoch: int


class SyncState:
    """The master's slaves and SyncStateSet during one term."""

    def __init__(
        self, *, own_id: int, members: frozenset[int], set_epoch: int, epoch_start_offset: int, replicated_offset: int
    ) -> None:
        """``members`` and ``set_epoch`` come from the controller; ``replicated_offset`` is the confirm offset so far."""
        self.own_id = own_id
        self.members = members
        self.set_epoch = set_epoch
        self.epoch_start_offset = epoch_start_offset
        self.replicated_offset = replicated_offset
        self.links: dict[int, SlaveProgress] = {}
        self._caught_up: dict[int, float] = {}
        self._joining: frozenset[int] = frozenset()
        self._asked: frozenset[int] | None = None
        self._outcome_unknown: frozenset[int] = frozenset()
        self._unknown_since_seconds = NEVER
        self._refused: dict[frozenset[int], float] = {}
        self._waited_for_of: tuple[frozenset[int], ...] = ()
        self._waited_for: frozenset[int] = frozenset()

    @property
    def waited_for(self) -> frozenset[int]:
        """Replicas whose acknowledgement a message needs: members, possible members, and those about to be proposed."""
        parts = (self.members, self._outcome_unknown, self._joining, self._asked or _NOBODY)
        if parts != self._waited_for_of:  # cached: read for every message, and rarely changed
            self._waited_for_of, self._waited_for = parts, frozenset().union(*parts)
        return self._waited_for

    @property
    def in_doubt(self) -> bool:
        """Whether an unanswered proposal may have been granted; then the controller has to be polled."""
        return bool(self._outcome_unknown)

    @property
    def alone(self) -> bool:
        """Whether no other replica's acknowledgement is needed."""
        waited_for = self.waited_for
        return not waited_for or (len(waited_for) == 1 and self.own_id in waited_for)

    @property
    def complete(self) -> bool:
        """Whether exactly the members are linked: then an acknowledgement needs no new proposal."""
        return len(self.links) + 1 == len(self.members) and self.links.keys() <= self.members

    @property
    def proposal_under_way(self) -> bool:
        """Whether the controller has not answered the proposal yet."""
        return self._asked is not None

    def link_opened(self, progress: SlaveProgress) -> None:
        """Add a slave's link; it replaces an older link of that slave."""
        self.links[progress.broker_id] = progress

    def link_closed(self, progress: SlaveProgress) -> None:
        """Remove a link, if it is the slave's newest."""
        if self.links.get(progress.broker_id) is progress:
            del self.links[progress.broker_id]
            self._joining -= {progress.broker_id}

    def acknowledged(self, progress: SlaveProgress, offset: int, *, max_offset: int, now_seconds: float) -> None:
        """Record that a slave has the log up to ``offset``."""
        progress.ack_offset = offset
        caught_up_at = NEVER
        while progress.marks and offset >= progress.marks[0][0]:
            caught_up_at = progress.marks.popleft()[1]
        self._note_caught_up(progress, now_seconds if offset >= max_offset else caught_up_at)

    def tick(self, *, max_offset: int, now_seconds: float) -> None:
        """Keep slaves with the whole log caught up as time passes."""
        for progress in self.links.values():
            if progress.ack_offset >= max_offset:
                self._note_caught_up(progress, now_seconds)

    def advance(self, *, max_offset: int, now_seconds: float) -> int:
        """Choose the replicas to wait for. Return the offset up to which all of them have the log (A.8, ``compute``)."""
        if self._joining or not self.links.keys() <= self.members:
            self._joining = frozenset(
                slave.broker_id
                for slave in self.links.values()
                if slave.broker_id not in self.members and self._is_fresh(slave, now_seconds)
            )
        others = self.waited_for - {self.own_id}
        acknowledged = [self.links[member].ack_offset for member in others if member in self.links]
        if len(acknowledged) == len(others):
            self.replicated_offset = max(self.replicated_offset, min([max_offset, *acknowledged]))
        return self.replicated_offset

    def propose(self, *, now_seconds: float, allowed_lag_seconds: float) -> Proposal | None:
        """Return the proposal to send now; None if no change is needed or one is under way."""
        if self.proposal_under_way:
            return None
        kept = frozenset(member for member in self.members if self._keeps(member, now_seconds, allowed_lag_seconds))
        barrier = max(self.replicated_offset, self.epoch_start_offset, 0)
        joining = frozenset(member for member in self._joining if self.links[member].ack_offset >= barrier)
        # Never add and remove at once: the controller would take that for a proposal from an older set. Add first, because a
        # smaller set may be refused for its size; a refused addition does not block the removals.
        for wanted in (
            self.members | joining,
            kept | joining & self.members | {self.own_id},
            self.members | self._outcome_unknown,
        ):
            if wanted != self.members and now_seconds - self._refused.get(wanted, NEVER) >= REFUSED_AGAIN_SECONDS:
                self._asked = wanted
                return Proposal(wanted, self.set_epoch)
        return None

    def granted(self, members: frozenset[int], set_epoch: int) -> bool:
        """Take the controller's grant of the proposal under way."""
        self._asked = None
        return self.apply(members, set_epoch)

    def refused(self, *, now_seconds: float) -> None:
        """Record that the controller refused the proposal under way."""
        if self._asked is not None:
            self._refused[self._asked] = now_seconds
        self._asked = None

    def outcome_unknown(self, *, now_seconds: float) -> None:
        """Record a proposal without an answer: it counts as granted until a newer set epoch is seen."""
        self._outcome_unknown |= self._asked or frozenset()
        self._unknown_since_seconds = now_seconds
        self.refused(now_seconds=now_seconds)

    def seen_unchanged(self, *, asked_seconds: float) -> None:
        """Record that the controller still had the known set when it was asked: a proposal left unanswered long before was not
        granted. The time of the question counts, because the answer may have waited in a buffer while this process was paused.
        """
        if asked_seconds - self._unknown_since_seconds > LATE_GRANT_SECONDS:
            self._outcome_unknown = frozenset()

    def apply(self, members: frozenset[int], set_epoch: int) -> bool:
        """Take the controller's set. Return False if its epoch is not newer."""
        if set_epoch <= self.set_epoch:
            return False
        self.members = members
        self.set_epoch = set_epoch
        self._outcome_unknown = frozenset()  # they compare against an older epoch and can no longer be granted
        self._refused = {}
        return True

    def _note_caught_up(self, progress: SlaveProgress, at_seconds: float) -> None:
        if not progress.async_learner:
            self._caught_up[progress.broker_id] = max(self._caught_up.get(progress.broker_id, NEVER), at_seconds)

    def _is_fresh(self, slave: SlaveProgress, now_seconds: float) -> bool:
        caught_up = self._caught_up.get(slave.broker_id, NEVER)
        return (
            not slave.async_learner
            and slave.ack_offset >= 0
            and slave.broker_id != self.own_id
            and now_seconds - caught_up <= JOINING_FRESHNESS_SECONDS
        )

    def _keeps(self, member: int, now_seconds: float, allowed_lag_seconds: float) -> bool:
        if member == self.own_id:
            return True
        link = self.links.get(member)
        if link is None or link.async_learner:
            return False
        since = max(link.linked_at_seconds, self._caught_up.get(member, NEVER))
        return now_seconds - since <= allowed_lag_seconds
