"""The excuse of a master that hears no controller: no other replica could be elected, so it need not die (ADR 8)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from brokergroup_operator.fence.rules import FenceRules


@dataclass(slots=True)
class Excuse:
    """When it was last known that no replica could be elected, and how long a master may outlive that. Times as in FenceCore."""

    rules: FenceRules
    # None: not known since the last contact.
    known_at: float | None = None

    def renew(self, known_at: float | None) -> None:
        """Record that no replica could be elected at this time; None: that is not known now, and the excuse runs out."""
        if known_at is not None:
            self.known_at = known_at if self.known_at is None else max(self.known_at, known_at)

    def end(self) -> None:
        """Record a contact: the next silence needs an excuse of its own."""
        self.known_at = None

    def was_known_within(self, seconds: float, now: float) -> bool:
        """Whether it was known so recently."""
        return self.known_at is not None and now - self.known_at < seconds

    def why_to_die(self, now: float, silence: str) -> str | None:
        """Return the reason for the broker's death after this silence, or None while the excuse lasts."""
        if self.known_at is None:
            return silence
        if self.was_known_within(self.rules.left_after_excuse_seconds, now):
            return None
        return f"{silence}, and for {now - self.known_at:.1f} s another replica may hear one"
