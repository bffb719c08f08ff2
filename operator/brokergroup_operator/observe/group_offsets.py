"""How far a group's topics reach at its master, and how far consumer groups have read them: facts, as brokers say them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rocketmq_remoting.broker_protocol import QueueOffsets


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicOffsets:
    """The queues of a topic that ever had a message, and the consumer groups that read it: by subscription, or by an offset."""

    queues: Mapping[int, QueueOffsets]
    readers: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOffsets:
    """Read at the master, which was master in this epoch before and after.

    Consumers' offsets are read before the ends of queues, so a lag may be shown too large and never too small.
    """

    master_id: int
    epoch: int
    cluster_name: str
    read_at_unix_seconds: float
    # Whether brokerPermission lets clients send.
    takes_sends: bool
    # Whether minInSyncReplicas lets the broker acknowledge anything.
    acknowledges: bool
    # The end of the log; `steady`: it was the same before and after, all of it is in the queues, and every link has all of it.
    log_end: int
    steady: bool
    topics: Mapping[str, TopicOffsets] = field(default_factory=dict)
    # By `topic@group`, then by queue: the offset that is read next.
    consumed: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    # By delay level: the offset that is delivered next.
    delayed: Mapping[int, int] = field(default_factory=dict)
    # Messages that the timer wheel has yet to deliver; None: the broker does not say.
    timers: int | None = None
    # Settings under which the broker keeps messages that no request counts.
    uncounted: tuple[str, ...] = ()
