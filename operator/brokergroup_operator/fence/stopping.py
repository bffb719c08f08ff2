"""Stops the broker while the operator's order stands (`spec.maintenance.stoppedBrokers`), and leaves its container alone.

The order is a file that is not empty. The broker gets SIGTERM, and SIGKILL if it does not end in time; then its container waits
before the next start (`reconcile/render/stop_gate.py`). So only a broker that runs as the order comes, or that has just passed the
gate, is stopped here. A pod's deletion needs nothing of this.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

from brokergroup_operator.fence.log import tell
from brokergroup_operator.fence.processes import BrokerProcesses

if TYPE_CHECKING:
    from pathlib import Path

LOOK_SECONDS: Final = 1.0
# From one SIGKILL that did not end it to the next.
AGAIN_SECONDS: Final = 60.0


class StopOrder:
    """The order of one pod. Call ``look`` often; it reads the file once a second."""

    def __init__(self, file: Path | None, pod_uid: str, stop_seconds: float) -> None:
        """`stop_seconds`: from SIGTERM to SIGKILL. A broker that is stopped flushes its log and its tables."""
        self._file, self._stop_seconds = file, stop_seconds
        self._broker = BrokerProcesses(pod_uid, started_only=True)
        self._next_look = 0.0
        self._asked: int | None = None
        self._kill_at = 0.0

    def look(self, now: float, *, may_stop: bool = True) -> bool:
        """Whether the broker was killed now. With `may_stop` False SIGTERM waits: the operator moves a master's role first."""
        if self._file is None or now < self._next_look:
            return False
        self._next_look = now + LOOK_SECONDS
        if not self._stands():
            self._asked = None
            return False
        self._broker.search(now)
        if not self._broker.pids:
            return False
        if self._asked not in self._broker.pids:
            if may_stop:
                self._terminate(now)
            return False
        if now < self._kill_at:
            return False
        self._kill_at = now + AGAIN_SECONDS  # a hung disk may keep it: each attempt holds up the fence
        tell("killed", why="the broker is to be stopped, and did not end", pids=self._broker.kill(now))
        return True

    def _stands(self) -> bool:
        with suppress(OSError):
            return self._file is not None and self._file.stat().st_size > 0
        return False

    def _terminate(self, now: float) -> None:
        self._asked, self._kill_at = self._broker.terminate(), now + self._stop_seconds
        tell("stopping the broker by the operator's order", pid=self._asked)
