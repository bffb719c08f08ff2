"""What the producer was promised, and whether the final master kept it.

A message counts as acknowledged only when its send was answered SUCCESS. Every attempt has a key of its own, so a send whose
outcome is unknown (a timeout, a closed connection) may be in the log or not, and neither is an error. An acknowledged key that
the final master's log does not hold is a lost message, whatever the reason.
"""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Acknowledgement:
    """One send answered SUCCESS; `at_seconds` is wall-clock time at the producer."""

    key: str
    at_seconds: float


@dataclass
class Ledger:
    """Every acknowledgement, in the order in which it arrived."""

    acknowledgements: list[Acknowledgement] = field(default_factory=list)
    failures: int = 0

    def acknowledge(self, key: str, at_seconds: float) -> None:
        self.acknowledgements.append(Acknowledgement(key, at_seconds))

    def fail(self) -> None:
        self.failures += 1

    def first_after(self, at_seconds: float) -> Acknowledgement | None:
        """The first acknowledgement at or after a point in time.

        Searched from the end, where the answer nearly always is.
        """
        found = None
        for acknowledgement in reversed(self.acknowledgements):
            if acknowledgement.at_seconds < at_seconds:
                break
            found = acknowledgement
        return found

    def rate_per_second(self, now_seconds: float, window_seconds: float = 2.0) -> float:
        """Acknowledgements per second over the last window."""
        count = 0
        for acknowledgement in reversed(self.acknowledgements):
            if acknowledgement.at_seconds < now_seconds - window_seconds:
                break
            count += 1
        return count / window_seconds

    def missing_from(self, keys_in_log: set[str]) -> list[str]:
        """The acknowledged keys that the log does not hold, sorted."""
        return sorted({entry.key for entry in self.acknowledgements} - keys_in_log)
