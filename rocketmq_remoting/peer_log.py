"""What peers do wrong, told in the log as warnings, never more than some lines a minute: a hostile one fills no log."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import logging

WINDOW_SECONDS: Final = 60.0
LINES_PER_WINDOW: Final = 30


class PeerLog:
    """A budget of lines for one logger."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._window_ends_seconds = 0.0
        self._told = 0
        self._left_out = 0

    def warning(self, message: str, *arguments: object) -> None:
        """Tell it while the budget lasts; what was left out is counted, and said when the next window begins."""
        now_seconds = time.monotonic()
        if now_seconds >= self._window_ends_seconds:
            if self._left_out:
                self._logger.warning("%d more warnings about peers were left out", self._left_out)
            self._window_ends_seconds = now_seconds + WINDOW_SECONDS
            self._told = self._left_out = 0
        if self._told < LINES_PER_WINDOW:
            self._told += 1
            self._logger.warning(message, *arguments)
        else:
            self._left_out += 1
