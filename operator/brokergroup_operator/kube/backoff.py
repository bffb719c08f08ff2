"""How long a call that failed waits before it is sent again: ever longer, with jitter, never sooner than the server asked for."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

# Operator pods that lost the API at one moment must not ask again at one moment.
LEAST_SHARE_OF_PAUSE = 0.5


def _jitter() -> float:
    return random.uniform(LEAST_SHARE_OF_PAUSE, 1.0)  # noqa: S311 (jitter, not a secret)


class Backoff:
    """The pauses of one caller. `reset` after a call that was answered."""

    def __init__(self, first_seconds: float, longest_seconds: float, *, jitter: Callable[[], float] = _jitter) -> None:
        self._first_seconds = first_seconds
        self._longest_seconds = longest_seconds
        self._jitter = jitter
        self._whole_seconds = first_seconds

    def next_seconds(self, retry_after_seconds: float = 0.0) -> float:
        """The next pause; the one after it is twice as long. `retry_after_seconds`: what the server asked for (429, 503)."""
        pause_seconds = self._whole_seconds * self._jitter()
        self._whole_seconds = min(2 * self._whole_seconds, self._longest_seconds)
        return max(pause_seconds, retry_after_seconds)

    def reset(self) -> None:
        """Begin with the first pause again."""
        self._whole_seconds = self._first_seconds
