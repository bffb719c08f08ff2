"""What peers do wrong, told in the log as warnings, never more than some lines a minute: a hostile one fills no log.

Names and errors in them are the peer's words: what is not printable is escaped, so that none of them begins a line of its own.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import logging

WINDOW_SECONDS: Final = 60.0
LINES_PER_WINDOW: Final = 30
MAX_CHARACTERS: Final = 2000


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
            self._logger.warning("%s", one_line(message % arguments))
        else:
            self._left_out += 1


def one_line(text: str) -> str:
    """The text as one line of a log: unprintable characters escaped, at most ``MAX_CHARACTERS``."""
    text = text[:MAX_CHARACTERS]
    return text if text.isprintable() else "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)
