"""Whether the controllers that answer could elect: when one that had reached the Kubernetes API was last heard (ADR 8).

A controller that is cut off from the API answers from its copy of the record, and can elect no master. Another one, on the other
side of the cut, can: the broker must die before that, unless no replica that could be elected hears that other one either.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from brokergroup_operator.fence.excuse import Excuse

if TYPE_CHECKING:
    from brokergroup_operator.fence.decide import Member
    from brokergroup_operator.fence.rules import FenceRules

# For so long after its last answer a fence counts as one that answers, and in today's form as one that knows it: an answer in the
# earlier form alone shows nothing then, since the other datagram was lost. A pod whose image was edited back to an earlier release
# is not understood for this long.
MET_SECONDS: Final = 60.0


class _Word(NamedTuple):
    """Another fence's answer to the question of this time. None: its release does not know the number."""

    at: float
    no_contact_for_seconds: float | None


@dataclass(slots=True)
class ContactClock:
    """The time without a controller that reached the Kubernetes API, and what the other fences report of theirs."""

    rules: FenceRules
    started_at: float
    # Contact of a later time arms the clock: a broker's process that began at this time had no role before.
    counts_from: float
    # The newest contact of any controller. None before the first answer.
    at: float | None = None
    # The other members of the SyncStateSet, by the answer about the group that had the newest contact. None before any.
    in_sync: tuple[Member, ...] | None = None
    _told_at: float = float("-inf")
    _doubted_since: float | None = None
    _words: dict[int, _Word] = field(default_factory=dict)
    # When a fence last answered in today's form.
    _knew_the_form_at: dict[int, float] = field(default_factory=dict)
    _excuse: Excuse = field(init=False)

    def __post_init__(self) -> None:
        self._excuse = Excuse(self.rules)

    def heard(self, contact_at: float) -> None:
        """Record that a controller answered which had reached the Kubernetes API at this time."""
        self.at = contact_at if self.at is None else max(self.at, contact_at)

    def told(self, contact_at: float, in_sync: tuple[Member, ...]) -> None:
        """Record a controller's SyncStateSet. One that lost the API before another may not know which member has joined since."""
        # Two answers after the same contact may differ by the time that they were under way.
        if contact_at >= self._told_at - self.rules.question_period_seconds:
            self._told_at, self.in_sync = max(self._told_at, contact_at), in_sync

    def peer_answered(self, asked_at: float, broker_id: int, no_contact_for_seconds: float | None) -> None:
        """Record another fence's answer; None: in the form of an earlier release."""
        if no_contact_for_seconds is not None:
            self._knew_the_form_at[broker_id] = asked_at
        elif asked_at - self._knew_the_form_at.get(broker_id, float("-inf")) < MET_SECONDS:
            return
        self._words[broker_id] = _Word(asked_at, no_contact_for_seconds)

    def killed(self, now: float) -> None:
        """Record the broker's death. A controller grants the next process a role only while it reaches the API."""
        self.counts_from = now

    def is_overdue(self, now: float) -> bool:
        """Whether the controllers that answer may know less than the record has."""
        return self.at is None or now - self.at >= self.rules.asking_others_after_seconds

    def is_silent_long(self, now: float) -> bool:
        """Whether this is an outage of the API that goes on: after a cut the broker would be dead, and once the
        excuse has ended another fence may have heard of the outage's end.
        """
        if self.at is None or now - self.at < self.rules.outage_seconds:
            return False
        return self._excuse.was_known_within(self.rules.question_period_seconds, now)

    def is_in_doubt(self, now: float) -> bool:
        """Whether to ask the other fences and the broker."""
        return self.at is not None and self.at > self.counts_from and self.is_overdue(now)

    def look(self, now: float) -> str | None:
        """Return why the broker must die if it may be master, or None."""
        if self.at is None or not self.is_in_doubt(now):
            self._doubted_since = None
            self._excuse.end()
            return None
        if self._doubted_since is None:
            self._doubted_since = now
        self._excuse.renew(self._none_could_be_elected_at(now, self.at))
        silence = now - self.at
        # A fence that was starved past the bound asked no other fence in that time.
        if silence < self.rules.bound_seconds or now - self._doubted_since < self.rules.answering_seconds:
            return None
        return self._excuse.why_to_die(now, f"no controller that reached the Kubernetes API for {silence:.1f} s")

    def _none_could_be_elected_at(self, now: float, contact_at: float) -> float | None:
        """Return when no replica could last be elected, by the others' answers (read late: in the past). None: one may be.

        A member that is alive and not in sync joins the set only through a controller that the master reaches. Before any answer
        about the group no other fence is known that could be asked.
        """
        excused_at = now
        for member in self.in_sync or ():
            word = self._words.get(member.broker_id)
            if word is None or contact_at - word.at > MET_SECONDS:
                # It never answered, or not any more while all was well: it has no fence, or no datagrams pass. Its silence shows
                # no cut.
                continue
            # What controllers told before its start this fence may not know: those that reached the API last have perhaps ended.
            silence_seconds = word.at - max(contact_at, self.started_at)
            blind_seconds = self.rules.out_of_contact_seconds(silence_seconds)
            if word.no_contact_for_seconds is not None and word.no_contact_for_seconds < blind_seconds:
                return None
            if now - word.at > self.rules.question_period_seconds:
                excused_at = min(excused_at, word.at)
        return excused_at
