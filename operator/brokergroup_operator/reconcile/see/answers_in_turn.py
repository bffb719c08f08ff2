"""Remembers of each address whether a bundle verified what it showed: servers of two authorities may answer behind one, in turn.

Each answer by itself would begin a change of authorities, or take it back, and brokers would be restarted for ever.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

# In so long an address that changes between two answers shows both: while a change is held it is asked every few seconds.
HELD_SECONDS: Final = 600.0
# What was not asked for so long is forgotten.
FORGOTTEN_SECONDS: Final = 3600.0
# A tenant writes the names, and others each second.
MOST_ADDRESSES: Final = 10_000


@dataclass(frozen=True)
class _Last:
    """The last answer, when it came, and until when the address counts as one that shows both."""

    verified: bool
    at: float
    both_until: float = 0.0


@dataclass
class AnswersInTurn:
    """By bundle and address. Of this process alone: another one learns it again by one answer of each kind."""

    # The oldest answer first.
    _last: dict[tuple[str, str], _Last] = field(default_factory=dict)

    def show_both(self, bundle: str, address: str, *, verified: bool, now_seconds: float) -> bool:
        """Note an answer. Whether, within ten minutes, a refused one has followed a verified one.

        A verified one that follows refused ones is a renewed certificate, and nothing is waited for.
        """
        self._forget(now_seconds)
        before = self._last.pop((bundle, address), _Last(verified=verified, at=now_seconds))
        until = before.both_until
        if not verified and (before.verified or until > now_seconds):
            until = now_seconds + HELD_SECONDS
        self._last[bundle, address] = _Last(verified, now_seconds, until)
        return until > now_seconds

    def _forget(self, now_seconds: float) -> None:
        """The old ones alone are looked at: the event loop is the controllers' too."""
        while self._last:
            oldest = next(iter(self._last))
            if len(self._last) < MOST_ADDRESSES and self._last[oldest].at >= now_seconds - FORGOTTEN_SECONDS:
                return
            del self._last[oldest]
