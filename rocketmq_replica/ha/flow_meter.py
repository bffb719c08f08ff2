"""How many log bytes a link carried in the last whole second: `transferredByteInSecond` of 907, as Java's FlowMonitor counts it."""

from __future__ import annotations

WINDOW_SECONDS = 1.0


class FlowMeter:
    """Counts bytes in windows of one second; the answer is the last window that has ended."""

    def __init__(self, now_seconds: float) -> None:
        """Begin the first window now."""
        self._began_seconds = now_seconds
        self._bytes = 0
        self._last_bytes = 0

    def add(self, count_bytes: int, now_seconds: float) -> None:
        """Count bytes that were carried at this moment."""
        self._turn(now_seconds)
        self._bytes += count_bytes

    def bytes_in_last_second(self, now_seconds: float) -> int:
        """Return the bytes of the last whole window; 0 if the link has been idle since."""
        self._turn(now_seconds)
        return self._last_bytes

    def _turn(self, now_seconds: float) -> None:
        windows = int((now_seconds - self._began_seconds) / WINDOW_SECONDS)
        if windows <= 0:
            return
        # Two or more windows have ended: the last of them was empty.
        self._last_bytes = self._bytes if windows == 1 else 0
        self._bytes = 0
        self._began_seconds += windows * WINDOW_SECONDS
