"""BrokerGroupState: the controller's durable record of one group. Users read it, only the controller writes it.

Its own object, not a part of BrokerGroup.status: status is shared by writers and dropped by backup tools, and losing
broker ids or epochs is losing data (docs/concepts/architecture.md). `record_rules.py` holds the transition rules by which the API
server itself refuses a record that goes back in time.
"""

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from brokergroup_operator.api import bounds
from brokergroup_operator.api.names import API_VERSION, BROKER_GROUP_STATE_KIND


class ReplicaRecord(Struct, frozen=True, rename="camel", kw_only=True):
    """One broker id of the group."""

    broker_id: Annotated[bounds.BrokerId, Meta(description="The id; never reused.")]
    register_check_code: Annotated[
        str, Meta(max_length=256, description="Who claimed this id; empty while it is only reserved. Set once.")
    ] = ""
    address: Annotated[
        str, Meta(max_length=259, description="Last known address; a fact with an age, not identity.")
    ] = ""
    reserved_for: Annotated[str, Meta(max_length=253, description="Pod for which the id was reserved.")] = ""
    registered: Annotated[bool, Meta(description="Whether the broker has ever registered (1003) under this id.")] = (
        False
    )
    held_epoch: Annotated[
        int,
        Meta(
            ge=-1, le=bounds.JAVA_INT_MAX, description="What this replica must at least report to keep its seat: epoch."
        ),
    ] = -1
    held_offset: Annotated[
        int,
        Meta(ge=-1, description="What this replica must at least report to keep its seat: offset in its commit log."),
    ] = -1


class BeforeChange(Struct, frozen=True, rename="camel", kw_only=True):
    """What brokers that ask are told of the group until the change has been told in order."""

    master_broker_id: Annotated[
        bounds.BrokerId | None, Meta(description="The master before the change; absent where the group had none.")
    ] = None
    master_epoch: Annotated[bounds.Epoch, Meta(description="The master epoch of before.")]
    sync_state_set: Annotated[
        list[bounds.BrokerId],
        Meta(
            max_length=bounds.MAX_KNOWN_REPLICAS,
            description="The SyncStateSet of before.",
            extra_json_schema=bounds.SET_LIST,
        ),
    ] = []
    sync_state_set_epoch: Annotated[bounds.Epoch, Meta(description="The SyncStateSet epoch of before.")]


class RestoreAfterChange(Struct, frozen=True, rename="camel", kw_only=True):
    """What a broker was told for the change only, and must be told back."""

    broker_id: Annotated[bounds.BrokerId, Meta(description="The broker.")]
    min_in_sync_replicas: Annotated[
        int, Meta(ge=0, le=bounds.JAVA_INT_MAX, description="The minInSyncReplicas it had before.")
    ]


class ChangeRecord(Struct, frozen=True, rename="camel", kw_only=True):
    """A change of master under way. Any controller plane that finds it can go on with it."""

    id: Annotated[int, Meta(ge=1, description="Counts up with every change.")]
    kind: Annotated[
        Literal["Failover", "Switchover", "Drain", "Elect", "Cure", "Recovery"],
        Meta(description="Why the master changes."),
    ]
    phase: Annotated[
        Literal["Fencing", "Quieting", "Telling", "Restoring"], Meta(description="How far the change has come.")
    ]
    carried_out_by: Annotated[
        str,
        Meta(max_length=259, description="The controller plane that carries it out; the others tell brokers nothing."),
    ] = ""
    from_: Annotated[bounds.BrokerId | None, Meta(description="The master that is left; absent: there was none.")] = (
        field(default=None, name="from")
    )
    to: Annotated[bounds.BrokerId | None, Meta(description="The master that is made; absent until it is decided.")] = (
        None
    )
    epoch: Annotated[bounds.Epoch, Meta(description="The master epoch that is told; 0 until it is decided.")] = 0
    slave: Annotated[bounds.BrokerId | None, Meta(description="The slave that a cure is for.")] = None
    before: Annotated[
        BeforeChange | None, Meta(description="What brokers that ask are told until the change has been told in order.")
    ] = None
    restore: Annotated[
        RestoreAfterChange | None,
        Meta(description="What a broker was told for the change only, and must be told back."),
    ] = None
    cause: Annotated[str, Meta(max_length=256, description="Why, for people.")] = ""
    unfenced: Annotated[bool, Meta(description="Nothing confirmed the old master's death; for people.")] = False
    started_at: Annotated[str, Meta(max_length=64, description="When it began, in UTC; for people.")] = ""


class GroupRecord(Struct, frozen=True, rename="camel", kw_only=True):
    """The controller's record."""

    schema_version: Annotated[
        int, Meta(ge=1, le=1000, description="Which operators understand the record. Never falls.")
    ] = 1
    cluster_name: Annotated[bounds.BrokerNameText, Meta(description="RocketMQ's brokerClusterName.")]
    broker_name: Annotated[bounds.BrokerNameText, Meta(description="RocketMQ's brokerName.")]
    next_broker_id: Annotated[
        bounds.BrokerId, Meta(description="The next id to hand out. Never falls: ids are never reused.")
    ] = 1
    replicas: Annotated[
        list[ReplicaRecord],
        Meta(
            max_length=bounds.MAX_KNOWN_REPLICAS,
            description="Every broker id that was handed out and not cleaned since.",
            extra_json_schema=bounds.map_list("brokerId"),
        ),
    ] = []
    master_broker_id: Annotated[bounds.BrokerId | None, Meta(description="Who is master; absent while nobody is.")] = (
        None
    )
    master_epoch: Annotated[bounds.Epoch, Meta(description="Raised by every election. Never falls.")] = 0
    sync_state_set: Annotated[
        list[bounds.BrokerId],
        Meta(
            max_length=bounds.MAX_KNOWN_REPLICAS,
            description="The replicas that have every acknowledged message, the master among them.",
            extra_json_schema=bounds.SET_LIST,
        ),
    ] = []
    sync_state_set_epoch: Annotated[
        bounds.Epoch, Meta(description="Raised by every change of the SyncStateSet. Never falls.")
    ] = 0
    master_process_lost: Annotated[
        bool, Meta(description="The master's process is gone; its next process needs a new epoch.")
    ] = False
    eligible: Annotated[
        list[bounds.BrokerId],
        Meta(
            max_length=bounds.MAX_KNOWN_REPLICAS,
            description="Replicas outside syncStateSet that hold every acknowledged message, while the set is below its floor.",
            extra_json_schema=bounds.SET_LIST,
        ),
    ] = []
    lost_seats: Annotated[
        list[bounds.BrokerId],
        Meta(
            max_length=bounds.MAX_KNOWN_REPLICAS,
            description="The last replicas that held every acknowledged message and came back with less, where none is left.",
            extra_json_schema=bounds.SET_LIST,
        ),
    ] = []
    unclean_elections: Annotated[
        int,
        Meta(
            ge=0,
            le=bounds.JAVA_INT_MAX,
            description="How often a replica was elected that may lack acknowledged messages. Never falls.",
        ),
    ] = 0
    unfenced: Annotated[
        list[bounds.BrokerId],
        Meta(
            max_length=bounds.MAX_KNOWN_REPLICAS,
            description="Replaced masters whose death nobody confirmed, until they are in sync again or no members any more.",
            extra_json_schema=bounds.SET_LIST,
        ),
    ] = []
    change_id: Annotated[
        int, Meta(ge=0, description="The id of the last change of master that began. Never falls.")
    ] = 0
    change: Annotated[ChangeRecord | None, Meta(description="The change of master under way; absent: none.")] = None


class BrokerGroupState(Struct, frozen=True, rename="camel", kw_only=True):
    """The durable record of a broker group's controller. Written by compare-and-set only; do not edit."""

    api_version: str = API_VERSION
    kind: str = BROKER_GROUP_STATE_KIND
    metadata: bounds.JsonObject = field(default_factory=dict)
    record: GroupRecord
