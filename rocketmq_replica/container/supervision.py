"""When a replica of a container is started again after it failed. Pure.

As kubelet does with a container of a pod: after a second at first, then twice as long each time up to a minute, and anew from the
beginning once it has run for ten minutes.
"""

from __future__ import annotations

FIRST_PAUSE_SECONDS = 1.0
LAST_PAUSE_SECONDS = 60.0
FORGIVEN_AFTER_SECONDS = 600.0


class Supervision:
    """The failures of one replica."""

    def __init__(self) -> None:
        """None so far."""
        self._pause_seconds = FIRST_PAUSE_SECONDS
        self._started_seconds = 0.0
        self.failures = 0

    def started(self, *, now_seconds: float) -> None:
        """An attempt begins."""
        self._started_seconds = now_seconds

    def failed(self, *, now_seconds: float) -> float:
        """It ended in a failure; how long to wait before the next."""
        self.failures += 1
        if now_seconds - self._started_seconds >= FORGIVEN_AFTER_SECONDS:
            self._pause_seconds = FIRST_PAUSE_SECONDS
        pause, self._pause_seconds = self._pause_seconds, min(self._pause_seconds * 2, LAST_PAUSE_SECONDS)
        return pause
