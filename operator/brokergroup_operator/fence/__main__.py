"""``python -m brokergroup_operator.fence``: what the second container of a broker's pod runs. Small: no typer, no asyncio, no
Kubernetes."""

from __future__ import annotations

import os
import signal
import sys

from brokergroup_operator.fence.settings import FenceSettings, FenceSettingsError
from brokergroup_operator.fence.watchman import Watchman


def main() -> int:
    """Watch until the pod leaves and its broker has ended."""
    try:
        watchman = Watchman(FenceSettings.from_environment(os.environ))
    except (FenceSettingsError, OSError) as error:
        sys.stderr.write(f"fence: {error}\n")
        return 2
    # On the pod's deletion the kubelet stops fence and broker together; the broker may remain master for a while.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: watchman.leave())
    watchman.run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
