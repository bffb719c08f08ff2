"""The metrics a report reads. Values of most change seldom, so their runs are few; one that moves at every scrape makes none."""

from metric_names import (
    CREATED_TIMESTAMP_SECONDS,
    FAILOVER_PHASE_SECONDS,
    FAILOVERS_TOTAL,
    GROUP_WRITABLE,
    MEMBER_PLACE,
    REPLICA_LAG_BYTES,
    SYNC_STATE_SET_SIZE,
    UNAVAILABLE_SECONDS_TOTAL,
    UNCLEAN_ELECTIONS_TOTAL,
)

REPORT_METRICS = (
    GROUP_WRITABLE,
    CREATED_TIMESTAMP_SECONDS,
    MEMBER_PLACE,
    SYNC_STATE_SET_SIZE,
    UNAVAILABLE_SECONDS_TOTAL,
    FAILOVERS_TOTAL,
    UNCLEAN_ELECTIONS_TOTAL,
    f"{FAILOVER_PHASE_SECONDS}_bucket",
)
# What is asked of a server, and stands in an export: also the gauge that is not made into runs (`reduction/lag.py`).
READ_METRICS = (*REPORT_METRICS, REPLICA_LAG_BYTES)
