"""``python -m brokergroup_operator.fence.deletion``: the fence of a Python broker, which waits until its pod is deleted.

Silence is no reason to kill a Python master: one that was frozen asks the controller anew before it acknowledges. But a
stopped process ends by no SIGTERM. Its kubelet would wait out the grace, 2 s at least, and until then the operator has no
proof that it is dead and elects nobody. So this process sleeps until the kubelet's own SIGTERM, and then kills a broker that
is stopped.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Final

from brokergroup_operator.fence.log import tell
from brokergroup_operator.fence.processes import BrokerProcesses
from brokergroup_operator.fence.settings import FenceSettingsError, pod_uid

LOOK_SECONDS: Final = 0.05
WHY: Final = "the pod is being deleted, and its broker is stopped"
_LEAVE: Final = (signal.SIGTERM, signal.SIGINT)


def main() -> int:
    """Wait for the pod's deletion, then until its broker has ended."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _LEAVE)
    try:
        processes = BrokerProcesses(pod_uid(os.environ))
    except FenceSettingsError as error:
        sys.stderr.write(f"fence: {error}\n")
        return 2
    tell("watching for the pod's deletion")
    signal.sigwait(_LEAVE)
    while processes.any_left(now := time.monotonic()):
        if processes.broker_is_stopped():
            tell("killed", why=WHY, pids=processes.kill(now))
        time.sleep(LOOK_SECONDS)
    return 0


if __name__ == "__main__":
    sys.exit(main())
