"""Self-distrust: noticing that it was us who stood still.

After a SIGSTOP, a paused virtual machine or a starved event loop, every broker looks silent at once although nobody missed a
heartbeat but us. The tick looks here first: when more time than expected lies between two ticks, all silences begin anew, and a
closed connection alone proves nothing for a while, since brokers close connections that do not answer.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class PauseGuard:
    """Remembers the last tick. All times are monotonic seconds."""

    threshold_seconds: float
    distrust_seconds: float
    _last_tick_seconds: float | None = None
    _distrust_until_seconds: float = 0.0

    def tick(self, now_seconds: float) -> bool:
        """Take a tick; return whether we were paused before it."""
        paused = self._note(now_seconds)
        self._last_tick_seconds = now_seconds
        return paused

    def distrusts(self, now_seconds: float) -> bool:
        """Whether our own view is not to be believed now. Safe to ask between ticks, also as the first thing after a pause."""
        self._note(now_seconds)
        return now_seconds < self._distrust_until_seconds

    def _note(self, now_seconds: float) -> bool:
        last = self._last_tick_seconds
        if last is None or now_seconds - last <= self.threshold_seconds:
            return False
        self._distrust_until_seconds = now_seconds + self.distrust_seconds
        return True
