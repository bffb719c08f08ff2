"""RPO exposure: how long acknowledged messages stood on fewer disks than promised, and what was lost in the end.

    below promise = time in which the SyncStateSet had fewer members than promised
    one copy      = time in which it had one: the loss of that disk then loses what was acknowledged
    unclean       = masters elected from outside the seats (counter and log; the greater one)
    behind        = the most bytes that the nearest slave lacked at a scrape: at risk while the master lives (gauge of the lag)
    truncated     = bytes cut off at the fork when an old master came back (log)

Exposure is not loss: nothing is lost while the one copy lives. Time in which nobody saw the size is told as unknown.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from metric_names import SYNC_STATE_SET_SIZE, UNCLEAN_ELECTIONS_TOTAL
from sla_reports.outages.incidents import Incident
from sla_reports.states.counters import Increase
from sla_reports.states.entities import Fleet, GroupKey
from sla_reports.states.spans import State, Window, at_least, total_ms, without


@dataclass(frozen=True, slots=True)
class Exposure:
    """Of one group in one window; `error_ms` is one scrape interval at each edge of each exposed time."""

    below_promise_ms: int
    one_copy_ms: int
    unknown_ms: int
    error_ms: int
    unclean_elections: int
    truncated_bytes: int
    unfenced: int
    most_behind_bytes: int | None = None


def exposure(
    fleet: Fleet, group: GroupKey, window: Window, incidents: Sequence[Incident], *, promised: int,
    most_behind_bytes: int | None = None, absent: Sequence[tuple[int, int]] = (),
) -> Exposure:  # fmt: skip
    """From the gauge of the set's size, the operator's counter, and the log's words."""
    below, alone = (
        without(fleet.spans(SYNC_STATE_SET_SIZE, group, window, at_least(copies)), absent) for copies in (promised, 2)
    )
    interval = fleet.interval(SYNC_STATE_SET_SIZE, group)
    rises = fleet.increase(UNCLEAN_ELECTIONS_TOTAL, group, window).values()
    logged = [one.logged for one in incidents if one.logged is not None]
    return Exposure(
        below_promise_ms=total_ms(below, State.DOWN),
        one_copy_ms=total_ms(alone, State.DOWN),
        unknown_ms=total_ms(below, State.UNKNOWN),
        error_ms=sum(2 * interval.at(span.start_ms) for span in below if span.state is State.DOWN),
        unclean_elections=max(round(sum(rises, Increase(0.0, 0)).rise), sum(one.unclean for one in logged)),
        truncated_bytes=sum(one.truncated_bytes for one in logged),
        unfenced=sum(one.unfenced for one in logged),
        most_behind_bytes=most_behind_bytes,
    )
