"""What a BrokerGroup says about acknowledgements beside its durability; what both mean together is in `durability.py`."""

from typing import Annotated

from msgspec import Meta, Struct

from brokergroup_operator.api import bounds


class ReplicationSpec(Struct, frozen=True, rename="camel", kw_only=True):
    """What spec.durability leaves open. All of it but `learners` reaches running brokers without a restart."""

    learners: Annotated[
        int,
        Meta(
            ge=0,
            le=bounds.MAX_REPLICAS - 1,
            description="How many of the replicas are async learners (asyncLearner): they copy the log, are never waited for, never"
            " in the SyncStateSet and never master. Those with the highest broker ids are. The others vote. A change is made by a"
            " rolling update of the members that it concerns.",
        ),
    ] = 0
    min_in_sync_replicas: Annotated[
        Annotated[int, Meta(ge=1, le=bounds.MAX_REPLICAS)] | None,
        Meta(
            description="A write is refused while fewer replicas than that are in sync (minInSyncReplicas). Absent: 2 with"
            " durability Strict, else 1. Never below 2 with Strict."
        ),
    ] = None
    in_sync_replicas: Annotated[
        Annotated[int, Meta(ge=1, le=bounds.MAX_REPLICAS)] | None,
        Meta(
            description="With durability Fast: how many replicas have a message before it is acknowledged (inSyncReplicas)."
            " Absent: as many as minInSyncReplicas. Strict and Available always wait for every replica that is in sync."
        ),
    ] = None
    all_ack_in_sync_state_set: Annotated[
        bool | None,
        Meta(
            description="True: a message is acknowledged once every replica that is in sync has it (allAckInSyncStateSet)."
            " False: once inSyncReplicas of them have it; durability Fast alone allows that. Absent: false with Fast, else true."
            " Fast with true waits as Available does, and promises as little across a failover as Fast."
        ),
    ] = None
    slave_not_catch_up_seconds: Annotated[
        Annotated[int, Meta(ge=1, le=300)] | None,
        Meta(
            description="A slave that is behind for this long leaves the SyncStateSet (haMaxTimeSlaveNotCatchup). Until then,"
            " writes that wait for it stand still. Absent: 3 with Strict and Available, 15 with Fast."
        ),
    ] = None
