"""The times of one fence, and what follows from them (ADR 8)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

# Share of fenceTimeout that passes after an excuse has ended; the rest is for evaluating, asking and killing.
_SHARE_OF_FENCE_TIMEOUT: Final = 2 / 3
# Share of the isolation timeout after which the other fences are asked, and for which they must have heard no controller.
_SHARE_BEFORE_ASKING: Final = 0.5
_QUESTIONS_IN_ISOLATION: Final = 5
# Share of fenceTimeout in which the other fences, once asked, have answered. With the two thirds it ends before an election.
_SHARE_FOR_ANSWERS: Final = 1 / 6
# A period between two questions, and half of one for the controller's answer and the other fence's.
_PERIODS_TO_LEARN: Final = 1.5
_LEAST_OUTAGE_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True)
class FenceRules:
    """Times of one fence, all in seconds."""

    isolation_seconds: float
    fence_timeout_seconds: float
    # A controller elects another master after this silence plus ``fence_timeout_seconds`` at the earliest.
    heartbeat_timeout_seconds: float
    # The silence may have begun this long before the cut, if the next heartbeat was due at that moment.
    heartbeat_interval_seconds: float
    # A broker that a controller calls deposed, and that does not answer for this long, is frozen ...
    deposed_silent_seconds: float = 1.0
    # ... but not if it is so young that it is only starting.
    starting_seconds: float = 30.0
    # A master without another live replica for this long has no successor. Longer than a controller that has just started needs to
    # hear the others' heartbeats.
    alone_seconds: float = 4.0
    # A deposed broker that reports itself master for this long has missed its role change (worst case measured: 5 s).
    deposed_master_seconds: float = 8.0
    # The SIGTERM of a broker that has stepped down waits this long at most for its link to the new master.
    rejoining_seconds: float = 3.0
    # Answers of a lower epoch are believed once only such ones have come for this long: the record was restored. Longer than a
    # deposed broker lives, whatever a controller whose copy is old says of it.
    old_word_seconds: float = 30.0

    @property
    def bound_seconds(self) -> float:
        """Return the longest life of a master that hears no controller and has no excuse, however starved its fence is."""
        silent_seconds = self.heartbeat_timeout_seconds - self.heartbeat_interval_seconds
        return max(self.isolation_seconds, silent_seconds + self.fence_timeout_seconds * _SHARE_OF_FENCE_TIMEOUT)

    @property
    def answering_seconds(self) -> float:
        """Return how long the other fences have for their first answer, also where this one could not ask before the bound."""
        return self.fence_timeout_seconds * _SHARE_FOR_ANSWERS

    @property
    def outage_seconds(self) -> float:
        """Return the silence, of controllers or of the Kubernetes API, that a master outlives in an outage, not after a cut."""
        return max(_LEAST_OUTAGE_SECONDS, 2 * self.bound_seconds)

    @property
    def question_period_seconds(self) -> float:
        """Return the time between two questions to a controller."""
        return self.isolation_seconds / _QUESTIONS_IN_ISOLATION

    @property
    def asking_others_after_seconds(self) -> float:
        """Return the silence of all controllers after which the fence asks the other fences and its broker."""
        return self.isolation_seconds * _SHARE_BEFORE_ASKING

    @property
    def left_after_excuse_seconds(self) -> float:
        """Return how long an excuse lasts: a replica that hears a controller again is elected after ``fenceTimeout`` or later."""
        return min(self.isolation_seconds, self.fence_timeout_seconds * _SHARE_OF_FENCE_TIMEOUT)

    def blind_seconds(self, silence_seconds: float) -> float:
        """Return how long another replica must have heard no controller to count as cut off together with us.

        A replica that was cut off later than we, by more than ``fenceTimeout`` less our missing heartbeat, would still count as
        alive when we count as fenced. A late evaluation does not reduce that difference.
        """
        later_seconds = min(
            self.left_after_excuse_seconds, self.fence_timeout_seconds - self.heartbeat_interval_seconds
        )
        # Nodes' clocks run apart by seconds in an outage of hours. A controller heard within it would have ended the excuse then.
        counted_seconds = min(max(self.isolation_seconds, silence_seconds), self.outage_seconds)
        return max(self.asking_others_after_seconds, counted_seconds - later_seconds)

    def out_of_contact_seconds(self, silence_seconds: float) -> float:
        """Return the same for controllers that reached the Kubernetes API.

        A fence that hears one of those may know of an old contact only: it goes on asking a controller whose contact is up to
        ``asking_others_after_seconds`` old, and learned of it a period ago. Its word must not excuse until after an election.
        """
        learned_seconds = self.asking_others_after_seconds + _PERIODS_TO_LEARN * self.question_period_seconds
        return max(learned_seconds, self.blind_seconds(silence_seconds))
