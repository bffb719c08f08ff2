"""When to dial the master again, and at which address: the one that was pushed, or the one the master itself tells. Pure.

Both in turn while there is no link, because either may be stale: a pushed one from before a restart, the master's own while it
starts. Pauses double from 20 ms to half a second; a master whose log cannot be followed is tried every two seconds.
"""

from __future__ import annotations

FIRST_PAUSE_SECONDS = 0.02
LAST_PAUSE_SECONDS = 0.5
DIVERGED_PAUSE_SECONDS = 2.0


class ReconnectBackoff:
    """One search for one master."""

    def __init__(self) -> None:
        """The first look is at what was pushed."""
        self._pause_seconds = FIRST_PAUSE_SECONDS
        self._ask_next = False

    def address(self, pushed: str) -> str:
        """Where to dial; empty: ask the master."""
        address = "" if self._ask_next else pushed
        self._ask_next = not self._ask_next
        return address

    def transferred(self) -> None:
        """There was a link, and bytes came: begin anew, quickly."""
        self._pause_seconds = FIRST_PAUSE_SECONDS
        self._ask_next = False

    def diverged(self) -> None:
        """This master cannot be followed; somebody has to do something."""
        self._pause_seconds = DIVERGED_PAUSE_SECONDS

    @property
    def in_vain(self) -> bool:
        """It has been tried for so long that the master may be another one by now."""
        return self._pause_seconds >= LAST_PAUSE_SECONDS

    def pause_seconds(self) -> float:
        """How long to wait before the next attempt; the one after it waits longer."""
        pause = self._pause_seconds
        self._pause_seconds = min(pause * 2, LAST_PAUSE_SECONDS)
        return pause
