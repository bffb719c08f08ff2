"""BrokerGroupState: the controller's durable record of one group. Users read it, only the controller writes it.

It is an object of its own because a status has several writers and backup tools drop it, and losing broker ids or epochs is
losing data (docs/concepts/architecture.md). By its transition rules the API server itself refuses a record that goes back in
time.
"""

from typing import Annotated, ClassVar, Literal

from msgspec import Meta, Struct, field

from brokergroup_operator.api import bounds
from brokergroup_operator.api.names import API_VERSION, BROKER_GROUP_STATE_KIND
from brokergroup_operator.api.rules import (
    Rule,
    immutable,
    validations,
)


class ReplicaRecord(Struct, frozen=True, rename="camel", kw_only=True):
    """One broker id of the group."""

    broker_id: Annotated[bounds.BrokerId, Meta(description="The id; never reused.")]
    register_check_code: Annotated[
        str,
        Meta(
            max_length=256,
            description="The check code of the broker that claimed this id; empty while it is only reserved. Set once.",
            extra_json_schema=validations(
                Rule(
                    "oldSelf == '' || self == oldSelf",
                    "registerCheckCode never changes once set: it identifies the broker that owns the id",
                )
            ),
        ),
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
    """What the controller answers to brokers until the change has been announced to them in order."""

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
    """What was set on a broker for the change only, and must be restored."""

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
        Meta(
            max_length=259,
            description="The controller plane that carries it out; the others send brokers nothing of it.",
        ),
    ] = ""
    from_: Annotated[bounds.BrokerId | None, Meta(description="The master that is left; absent: there was none.")] = (
        field(default=None, name="from")
    )
    to: Annotated[bounds.BrokerId | None, Meta(description="The master that is made; absent until it is decided.")] = (
        None
    )
    epoch: Annotated[bounds.Epoch, Meta(description="The master epoch that is announced; 0 until it is decided.")] = 0
    slave: Annotated[bounds.BrokerId | None, Meta(description="The slave that a cure is for.")] = None
    before: Annotated[
        BeforeChange | None,
        Meta(
            description="What the controller answers to brokers until the change has been announced to them in order."
        ),
    ] = None
    restore: Annotated[
        RestoreAfterChange | None,
        Meta(description="What was set on a broker for the change only, and must be restored."),
    ] = None
    cause: Annotated[str, Meta(max_length=256, description="Why, for people.")] = ""
    unfenced: Annotated[bool, Meta(description="Nothing confirmed the old master's death; for people.")] = False
    started_at: Annotated[str, Meta(max_length=64, description="When it began, in UTC; for people.")] = ""


def _never_falls(name: str, why: str) -> Rule:
    return Rule(f"self.{name} >= oldSelf.{name}", f"{name} never falls: {why}", field_path=f".{name}")


def _claimed(name: str) -> Rule:
    """Every id in this list belongs to a broker."""
    return Rule(
        f"self.{name}.all(id, self.replicas.exists(replica, replica.brokerId == id && replica.registerCheckCode != ''))",
        f"{name} may name only broker ids that a broker holds",
        field_path=f".{name}",
    )


class GroupRecord(Struct, frozen=True, rename="camel", kw_only=True):
    """The controller's record."""

    schema_version: Annotated[
        int, Meta(ge=1, le=1000, description="Which operators understand the record. Never falls.")
    ] = 1
    cluster_name: Annotated[
        bounds.BrokerNameText,
        Meta(
            description="RocketMQ's brokerClusterName.",
            extra_json_schema=validations(immutable("clusterName is immutable")),
        ),
    ]
    broker_name: Annotated[
        bounds.BrokerNameText,
        Meta(description="RocketMQ's brokerName.", extra_json_schema=validations(immutable("brokerName is immutable"))),
    ]
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
    master_broker_id: Annotated[
        bounds.BrokerId | None, Meta(description="The master's broker id; absent while there is no master.")
    ] = None
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
            description="Replaced masters whose death was not confirmed, until they are in sync again or no members any more.",
            extra_json_schema=bounds.SET_LIST,
        ),
    ] = []
    change_id: Annotated[
        int, Meta(ge=0, description="The id of the last change of master that began. Never falls.")
    ] = 0
    change: Annotated[ChangeRecord | None, Meta(description="The change of master under way; absent: none.")] = None

    RULES: ClassVar[tuple[Rule, ...]] = (
        _never_falls("schemaVersion", "an older operator would drop what it does not know"),
        _never_falls("nextBrokerId", "broker ids are never reused"),
        _never_falls("masterEpoch", "brokers ignore epochs that are not above their own"),
        _never_falls("syncStateSetEpoch", "brokers ignore epochs that are not above their own"),
        _never_falls("uncleanElections", "each of them may have lost acknowledged messages"),
        _never_falls("changeId", "it names one change of master in the record, in Events and in the incident log"),
        Rule(
            "!has(self.change) || self.change.id == self.changeId",
            "change must be the last change that began: its id is changeId",
            field_path=".change",
        ),
        Rule(
            "!has(self.change) || !has(oldSelf.change) || self.change.id != oldSelf.change.id ||"
            " (self.change.kind == oldSelf.change.kind && (!(oldSelf.change.phase in ['Telling', 'Restoring']) ||"
            " self.change.phase in ['Telling', 'Restoring']))",
            "a change under way keeps its kind, and once it has its election it does not wait for one again",
            field_path=".change",
        ),
        Rule(
            "!has(self.change) || self.change.phase != 'Telling' ||"
            " (has(oldSelf.change) && self.change.id == oldSelf.change.id && oldSelf.change.phase == 'Telling') ||"
            " (has(self.masterBrokerId) && has(self.change.to) && self.change.to == self.masterBrokerId &&"
            " self.change.epoch == self.masterEpoch && self.masterEpoch > oldSelf.masterEpoch)",
            "a change that begins to be announced names the record's master under a new masterEpoch",
            field_path=".change",
        ),
        _claimed("eligible"),
        _claimed("lostSeats"),
        Rule(
            "!has(self.masterBrokerId) || self.masterBrokerId in self.syncStateSet",
            "the master must be in syncStateSet",
            field_path=".masterBrokerId",
        ),
        Rule(
            "!has(self.masterBrokerId) || !has(oldSelf.masterBrokerId) ||"
            " self.masterBrokerId == oldSelf.masterBrokerId || self.masterEpoch > oldSelf.masterEpoch",
            "another master needs a higher masterEpoch",
            field_path=".masterBrokerId",
        ),
        Rule(
            "self.replicas.all(replica, replica.brokerId < self.nextBrokerId)",
            "every brokerId must be below nextBrokerId",
            field_path=".replicas",
        ),
    )


class BrokerGroupState(Struct, frozen=True, rename="camel", kw_only=True):
    """The durable record of a broker group's controller. Written by compare-and-set only; do not edit."""

    api_version: str = API_VERSION
    kind: str = BROKER_GROUP_STATE_KIND
    metadata: bounds.JsonObject = field(default_factory=dict)
    record: GroupRecord
