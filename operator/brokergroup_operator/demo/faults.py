"""The faults of the demo, at the process itself: SIGKILL, SIGSTOP, SIGCONT.

A process is held by a pidfd from the moment it is chosen, so a signal sent later (the thaw) can only reach that very process and
never another one that got its number since.
"""

import contextlib
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class HeldProcess:
    """A process that can be signalled without naming it by number again."""

    pid: int
    descriptor: int

    def kill(self) -> None:
        signal.pidfd_send_signal(self.descriptor, signal.SIGKILL)

    def freeze(self) -> None:
        signal.pidfd_send_signal(self.descriptor, signal.SIGSTOP)

    def thaw(self) -> bool:
        """Let it run on; False when it is gone (fenced), which is the good case."""
        try:
            signal.pidfd_send_signal(self.descriptor, signal.SIGCONT)
        except ProcessLookupError:
            return False
        return True


@contextlib.contextmanager
def hold(pid: int) -> Iterator[HeldProcess]:
    """Hold a process by a pidfd for the length of a block. Raises ProcessLookupError when it is gone already."""
    descriptor = os.pidfd_open(pid)
    try:
        yield HeldProcess(pid, descriptor)
    finally:
        os.close(descriptor)
