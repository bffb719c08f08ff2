"""The metrics a report reads. Their values change seldom, so their runs are few; a value that moves at every scrape makes none."""

from controller_core.metric_names import (
    FAILOVER_PHASE_SECONDS,
    FAILOVERS_TOTAL,
    GROUP_WRITABLE,
    SYNC_STATE_SET_SIZE,
    UNAVAILABLE_SECONDS_TOTAL,
    UNCLEAN_ELECTIONS_TOTAL,
)

REPORT_METRICS = (
    GROUP_WRITABLE,
    SYNC_STATE_SET_SIZE,
    UNAVAILABLE_SECONDS_TOTAL,
    FAILOVERS_TOTAL,
    UNCLEAN_ELECTIONS_TOTAL,
    f"{FAILOVER_PHASE_SECONDS}_bucket",
)
