"""When a change of master is tried again whose record the store refused, or cannot be read: less and less often.

Neither mends itself by asking again: a refused record is a mistake of ours, a corrupt one is for a person. Something else may
mend it, another plane or the next report of a member, so the group is not given up either.
"""

from __future__ import annotations

FIRST_PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 30.0


class Refusals:
    """Of one group."""

    def __init__(self) -> None:
        self._not_before_seconds = 0.0
        self._pause_seconds = FIRST_PAUSE_SECONDS

    def forbids(self, now_seconds: float) -> bool:
        """Whether it is too early to try again."""
        return now_seconds < self._not_before_seconds

    def note(self, now_seconds: float) -> float:
        """The store refused a change; returns how long none is begun."""
        pause_seconds = self._pause_seconds
        self._not_before_seconds = now_seconds + pause_seconds
        self._pause_seconds = min(2 * pause_seconds, LONGEST_PAUSE_SECONDS)
        return pause_seconds

    def over(self) -> None:
        """One was taken."""
        self._pause_seconds = FIRST_PAUSE_SECONDS
