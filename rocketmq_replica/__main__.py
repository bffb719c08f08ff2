"""``python -m rocketmq_replica --config FILE``."""

from __future__ import annotations

import sys

from rocketmq_replica.process import entry_point

sys.exit(entry_point())
