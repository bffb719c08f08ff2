"""What a fence says: one line of JSON for each event, as all processes of ours log."""

from __future__ import annotations

import json
import sys
import time


def tell(event: str, **facts: object) -> None:
    """Write a line to standard output; `facts` must be values of JSON."""
    line = {"event": event, "timestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), **facts}
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()
