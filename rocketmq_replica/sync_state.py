"""Who is in sync: the master's view of its slaves, its SyncStateSet, and what it asks the controller to change.

Pure: acknowledgements, broken links and the time come in, proposals for the controller go out.
Where it is stricter than Java:

* The set changes only by the controller's answer. Java 5.5.0 shrinks it at once when links break and then acknowledges what
  was waiting (measured; docs/concepts/architecture.md, "What stays open").
* A proposal whose outcome is unknown counts as possibly granted until a newer set epoch is seen: such members are waited for
  like members (upstream #5663). One proposal is under way at a time, so two slaves that leave together cannot race (#9897).
* The replicated offset never moves while a member has no link (#6662), and never backwards.
* A member that links as a learner is about to end: it is proposed away at once, and its acknowledgements count until it is out.
* A slave that has nearly caught up is waited for *before* it is proposed. So it gets in under any load: Java needs a moment
  in which it holds the very last byte.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

NEVER = -1e9
JOINING_FRESHNESS_SECONDS = 1.0
REFUSED_AGAIN_SECONDS = 0.5
LATE_GRANT_SECONDS = 10.0
"""A request the controller has not carried out after so long it never will: twice what a Java controller waits for its quorum.

Not quite: a controller that was frozen carries out what waited in its socket, however late. So the doubt is not only waited out:
the doubted set is asked for again (``propose``). Granted, the set epoch is newer, and what still waits compares against an older
one; refused, because the doubted member is not alive, what still waits would be refused for the same reason.
"""
_MARK_EVERY_SECONDS = 0.05
_NOBODY: frozenset[int] = frozenset()


@dataclass
class SlaveProgress:
    """What one linked slave has told us."""

    broker_id: int
    async_learner: bool = False
    ack_offset: int = -1
    linked_at_seconds: float = NEVER
    marks: deque[tuple[int, float]] = field(default_factory=deque)  # (end of the log, when), oldest first

    def sent(self, max_offset: int, now_seconds: float) -> None:
        """Something was sent while the log ended at ``max_offset``: who acknowledges that was caught up at this time."""
        if not self.marks or now_seconds - self.marks[-1][1] >= _MARK_EVERY_SECONDS:
            self.marks.append((max_offset, now_seconds))


@dataclass(frozen=True)
class Proposal:
    """A new SyncStateSet for the controller, to be compared and set against the epoch."""

    sync_state_set: frozenset[int]
    sync_state_set_epoch: int


class SyncState:
    """The master's book-keeping for one term; a new term begins a new one."""

    def __init__(
        self, *, own_id: int, members: frozenset[int], set_epoch: int, epoch_start_offset: int, replicated_offset: int
    ) -> None:
        """``members`` and ``set_epoch`` are the controller's; ``replicated_offset`` is the confirm offset so far."""
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
        """Members, all that may be members already, and all about to be proposed: whose acknowledgement a message needs."""
        parts = (self.members, self._outcome_unknown, self._joining, self._asked or _NOBODY)
        if parts != self._waited_for_of:  # asked for every message, and seldom another set than before
            self._waited_for_of, self._waited_for = parts, frozenset().union(*parts)
        return self._waited_for

    @property
    def in_doubt(self) -> bool:
        """A proposal was not answered and may have been granted: ask the controller."""
        return bool(self._outcome_unknown)

    @property
    def alone(self) -> bool:
        """Nobody else's acknowledgement is needed."""
        waited_for = self.waited_for
        return not waited_for or (len(waited_for) == 1 and self.own_id in waited_for)

    @property
    def complete(self) -> bool:
        """Exactly the members are linked: no reason to look for a change at every acknowledgement."""
        return len(self.links) + 1 == len(self.members) and self.links.keys() <= self.members

    @property
    def proposal_under_way(self) -> bool:
        """True while the controller has not answered."""
        return self._asked is not None

    def link_opened(self, progress: SlaveProgress) -> None:
        """A slave introduced itself; a newer link of the same slave replaces the older one."""
        self.links[progress.broker_id] = progress

    def link_closed(self, progress: SlaveProgress) -> None:
        """A link ended; it counts only if it was the slave's newest."""
        if self.links.get(progress.broker_id) is progress:
            del self.links[progress.broker_id]
            self._joining -= {progress.broker_id}

    def acknowledged(self, progress: SlaveProgress, offset: int, *, max_offset: int, now_seconds: float) -> None:
        """A slave holds everything below ``offset``."""
        progress.ack_offset = offset
        caught_up_at = NEVER
        while progress.marks and offset >= progress.marks[0][0]:
            caught_up_at = progress.marks.popleft()[1]
        self._note_caught_up(progress, now_seconds if offset >= max_offset else caught_up_at)

    def tick(self, *, max_offset: int, now_seconds: float) -> None:
        """Time passes: a slave that holds everything there is stays caught up without saying so again."""
        for progress in self.links.values():
            if progress.ack_offset >= max_offset:
                self._note_caught_up(progress, now_seconds)

    def advance(self, *, max_offset: int, now_seconds: float) -> int:
        """Choose whom to wait for, then compute what all of them hold (A.8, ``compute``)."""
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
        """What to ask the controller for now, if anything and if nothing is under way."""
        if self.proposal_under_way:
            return None
        kept = frozenset(member for member in self.members if self._keeps(member, now_seconds, allowed_lag_seconds))
        barrier = max(self.replicated_offset, self.epoch_start_offset, 0)
        joining = frozenset(member for member in self._joining if self.links[member].ack_offset >= barrier)
        # Never both at once: the controller takes a set that adds and drops for one that was computed from an older set. Growing
        # first, because a shrinking set may be refused for its size; whoever may not join keeps nobody in.
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
        """The controller granted the proposal under way."""
        self._asked = None
        return self.apply(members, set_epoch)

    def refused(self, *, now_seconds: float) -> None:
        """The controller answered that it did not do it."""
        if self._asked is not None:
            self._refused[self._asked] = now_seconds
        self._asked = None

    def outcome_unknown(self, *, now_seconds: float) -> None:
        """No answer: it may have been granted, and counts as such until a newer set epoch is seen."""
        self._outcome_unknown |= self._asked or frozenset()
        self._unknown_since_seconds = now_seconds
        self.refused(now_seconds=now_seconds)

    def seen_unchanged(self, *, asked_seconds: float) -> None:
        """The controller still had the set we know when, or after, it was asked: what had not been answered long before was
        never carried out. When its answer came says nothing: that may have waited in a buffer for as long as we were paused.
        """
        if asked_seconds - self._unknown_since_seconds > LATE_GRANT_SECONDS:
            self._outcome_unknown = frozenset()

    def apply(self, members: frozenset[int], set_epoch: int) -> bool:
        """Take the controller's set; False if it is not newer than ours."""
        if set_epoch <= self.set_epoch:
            return False
        self.members = members
        self.set_epoch = set_epoch
        self._outcome_unknown = frozenset()  # they compared against an older epoch: too late to be granted
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
