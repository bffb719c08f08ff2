"""`brokergroup fence`: the second container of a broker's pod. Becomes the small process, and leaves the command line behind."""

import os
import sys


def fence() -> None:
    """Kill the broker of this pod when it may no longer be master; everything it needs is in its environment."""
    # Not an import: what the command line has loaded by now is more than a fence may take.
    os.execv(sys.executable, [sys.executable, "-m", "brokergroup_operator.fence"])  # noqa: S606 (no shell is wanted)
