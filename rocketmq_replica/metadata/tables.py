"""The tables that a slave copies beside the log: consumers' offsets, consumer groups, delivery of delayed messages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rocketmq_replica.metadata.consumer_groups import ConsumerOffsets
    from rocketmq_replica.metadata.delay_offsets import DelayOffsets
    from rocketmq_replica.metadata.subscription_groups import SubscriptionGroups


@dataclass(frozen=True)
class Metadata:
    """All of them but the topics, which the broker has."""

    offsets: ConsumerOffsets
    groups: SubscriptionGroups
    delay_offsets: DelayOffsets
