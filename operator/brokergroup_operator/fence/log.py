"""The fence's log lines."""

from __future__ import annotations

import json
import sys
import time


def tell(event: str, **facts: object) -> None:
    """Write one line of JSON to standard output, as all our processes log; `facts` must be JSON values."""
    line = {"event": event, "timestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), **facts}
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()
