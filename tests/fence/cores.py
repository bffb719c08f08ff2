"""A fence's core with time as a plain number: what it hears, and when it kills first."""

from __future__ import annotations

from brokergroup_operator.fence.decide import FenceCore, Member, Told
from brokergroup_operator.fence.rules import FenceRules

RULES = FenceRules(
    isolation_seconds=2.5, fence_timeout_seconds=2.0, heartbeat_timeout_seconds=3.0, heartbeat_interval_seconds=0.5
)
TICK = 0.05
# As the time since which a peer hears no controller: it hears one.
HEARS = float("inf")


def told(
    master: int = 1, *, own: int | None = 1, epoch: int = 5, in_sync: tuple[int, ...] = (1, 2, 3),
    alive: tuple[int, ...] | None = None,
) -> Told:  # fmt: skip
    """Return an answer about three replicas; alive are those in sync unless said otherwise."""
    living = in_sync if alive is None else alive
    members = tuple(
        Member(broker_id, f"10.0.0.{broker_id}:10911", in_sync=broker_id in in_sync, alive=broker_id in living)
        for broker_id in (1, 2, 3)
    )
    return Told(own_id=own, master_id=master, master_epoch=epoch, members=members)


def master_heard_at(now: float, *, in_sync: tuple[int, ...] = (1, 2, 3)) -> FenceCore:
    core = FenceCore(RULES, started_at=now - 100)
    core.controller_answered(now, told(in_sync=in_sync), asked_at=now)
    return core


def first_kill(core: FenceCore, begin: float, end: float, *, peers: dict[int, float] | None = None) -> float | None:
    """Return the first kill over a span of ticks; ``peers`` answer each tick with the time since which they hear no controller."""
    now = begin
    while now < end:
        for member in core.asks_others(now):
            if peers is not None and member.broker_id in peers:
                core.peer_answered(now, member.broker_id, max(0.0, now - peers[member.broker_id]))
        if core.look(now) is not None:
            return now
        now += TICK
    return None


def earliest_election_seconds(rules: FenceRules) -> float:
    """Return the earliest election after the cut: the last heartbeat left one interval before the cut."""
    return rules.heartbeat_timeout_seconds + rules.fence_timeout_seconds - rules.heartbeat_interval_seconds
