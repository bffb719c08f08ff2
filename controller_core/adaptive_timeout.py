"""How long a broker's silence is still life, learnt from its own heartbeats.

A fixed timeout is either too long for the broker that beats like a clock, or too short for the one on a busy node. So the
intervals between one broker's heartbeats are remembered as a running mean and variance, and the timeout is the silence
that this broker would keep by chance with probability 10^-9.7 (the phi accrual detector: at 0.5 s intervals, 1,000 groups
then see less than one false suspicion a month), but at least 1.5 s, and with one second on top, because the pauses of a
JVM are not normally distributed. Always within the bounds the group's owner gave. It learns slowly (the last hundred
intervals or so count), so that one long pause widens the timeout for a while and one quiet minute does not narrow it much.
"""

from math import sqrt
from statistics import NormalDist
from typing import NamedTuple

PHI = 9.7
LEAST_SILENCE_SECONDS = 1.5
PAUSE_ALLOWANCE_SECONDS = 1.0
LEARNING_INTERVALS = 20
"""Before so many intervals a broker has no rhythm, and the longest timeout applies."""
MEMORY_INTERVALS = 100

_DEVIATIONS = -NormalDist().inv_cdf(10**-PHI)


class Rhythm(NamedTuple):
    """The running mean and variance of one broker's heartbeat intervals."""

    intervals: int = 0
    mean_seconds: float = 0.0
    variance: float = 0.0

    def after(self, interval_seconds: float) -> "Rhythm":
        """Return the rhythm after one more interval. Old intervals fade (West 1979, with a floor on the weight)."""
        if interval_seconds < 0:
            return self
        weight = 1 / min(self.intervals + 1, MEMORY_INTERVALS)
        difference = interval_seconds - self.mean_seconds
        mean_seconds = self.mean_seconds + weight * difference
        variance = (1 - weight) * (self.variance + weight * difference * difference)
        return Rhythm(min(self.intervals + 1, MEMORY_INTERVALS), mean_seconds, variance)

    @property
    def silence_seconds(self) -> float:
        """The silence that is kept by chance with probability 10^-PHI."""
        return self.mean_seconds + _DEVIATIONS * sqrt(self.variance)


NO_RHYTHM = Rhythm()
"""Nothing was heard yet."""


def adaptive_timeout_seconds(rhythm: Rhythm, *, minimum_seconds: float, maximum_seconds: float) -> float:
    """Return the broker's timeout within the bounds; the maximum until it has a rhythm, and where the bounds leave no room."""
    if minimum_seconds >= maximum_seconds or rhythm.intervals < LEARNING_INTERVALS:
        return maximum_seconds
    wanted_seconds = max(LEAST_SILENCE_SECONDS, rhythm.silence_seconds) + PAUSE_ALLOWANCE_SECONDS
    return min(max(wanted_seconds, minimum_seconds), maximum_seconds)
