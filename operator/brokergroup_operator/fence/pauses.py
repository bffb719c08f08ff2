"""Noticing that we did not run, and why: the scheduler counts for how long we wanted to and were not let.

A starved process stands in the run queue (``/proc/self/schedstat``, second figure); a stopped one, or one of a paused
machine, does not. The clock is the boot clock: it goes on while the machine is suspended.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

# A loop that comes back later than this did not run.
NOTICED_SECONDS = 0.3


def boot_seconds() -> float:
    """Now, on the clock that never stands still."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def starved_seconds() -> float:
    """For how long of our life we stood in the run queue; 0 for ever where the kernel does not say."""
    try:
        with open("/proc/self/schedstat", encoding="ascii") as file:  # noqa: PTH123 (asked ten times a second)
            return int(file.read().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0


@dataclass(frozen=True, slots=True)
class Pause:
    """We did not run for ``seconds``, and for ``starved_seconds`` of it we wanted to."""

    seconds: float
    starved_seconds: float

    @property
    def was_starved(self) -> bool:
        """Mostly kept from running, not stopped: others ran meanwhile, so the broker may have run too."""
        return self.starved_seconds >= self.seconds / 2


class PauseWatch:
    """Ask it right after every wait."""

    def __init__(self, now: float, starved: float) -> None:
        self._now = now
        self._starved = starved

    def look(self, now: float, starved: float, *, waited_at_most_seconds: float) -> Pause | None:
        """The pause since the last look, beyond what we wanted to wait; None if there was none to speak of."""
        late = now - self._now - waited_at_most_seconds
        starved_since = starved - self._starved
        self._now, self._starved = now, starved
        return Pause(late, starved_since) if late > NOTICED_SECONDS else None
