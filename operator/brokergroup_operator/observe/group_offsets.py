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
    # Queues with a consumer's offset that the broker does not list: the topic had more queues once, and they may hold messages.
    unlisted: tuple[int, ...] = ()


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
    # Whether the broker may acknowledge a send: minInSyncReplicas allows it, or a Java broker does not refuse all sends.
    acknowledges: bool
    # The end of the log; `steady`: it was the same before and after, all of it is confirmed and in the queues, and every member of
    # the SyncStateSet is linked and has all of it.
    log_end: int
    steady: bool
    # When the master's process started, in seconds since 1970; None: the broker does not say.
    booted_at_unix_seconds: float | None = None
    topics: Mapping[str, TopicOffsets] = field(default_factory=dict)
    # Topics that another member of the SyncStateSet has and the master lacks.
    missing_topics: frozenset[str] = frozenset()
    # By `topic@group`, then by queue: the offset that is read next.
    consumed: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    # By delay level: the offset that is delivered next.
    delayed: Mapping[int, int] = field(default_factory=dict)
    # Messages that the timer wheel has yet to deliver; None: the broker does not say, or its timer wheel is off.
    timers: int | None = None
    # Settings under which the broker keeps messages that no request counts.
    uncounted: tuple[str, ...] = ()
