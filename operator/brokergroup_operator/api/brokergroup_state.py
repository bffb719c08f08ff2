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
    immutable_optional,
    validations,
)


class ReplicaRecord(Struct, frozen=True, rename="camel", kw_only=True):
    """One broker id of the group."""

    broker_id: Annotated[bounds.BrokerId, Meta(description="The broker id; no later broker gets it.")]
    register_check_code: Annotated[
        str,
        Meta(
            max_length=256,
            description="The code by which the broker that owns this id identifies itself. Empty: the id is reserved, and no"
            " broker has claimed it yet. It cannot be changed once the broker has registered.",
        ),
    ] = ""
    address: Annotated[
        str,
        Meta(
            max_length=259,
            description="The address under which the broker last registered; it does not identify the broker.",
        ),
    ] = ""
    reserved_for: Annotated[str, Meta(max_length=253, description="Name of the pod for which the id was reserved.")] = (
        ""
    )
    registered: Annotated[bool, Meta(description="Whether a broker has registered under this id (request 1003).")] = (
        False
    )
    held_epoch: Annotated[
        int,
        Meta(
            ge=-1,
            le=bounds.JAVA_INT_MAX,
            description="The epoch of the log that the replica has reported. If it later reports less, its disk has lost"
            " data, and it loses its seat. -1: none yet.",
        ),
    ] = -1
    held_offset: Annotated[
        int,
        Meta(
            ge=-1,
            description="The offset in the commit log, in bytes, that the replica has reported, in steps. If it later reports"
            " less, its disk has lost data, and it loses its seat. -1: none yet.",
        ),
    ] = -1

    RULES: ClassVar[tuple[Rule, ...]] = (
        # A broker that got no answer to its claim (1002) claims the id again with a new code.
        Rule(
            "!oldSelf.registered || self.registerCheckCode == oldSelf.registerCheckCode",
            "registerCheckCode never changes once the broker has registered: it identifies the broker that owns the id",
            field_path=".registerCheckCode",
        ),
    )


class BeforeChange(Struct, frozen=True, rename="camel", kw_only=True):
    """The roles before the change. The controller answers brokers with them until it has notified them of the change in
    order.
    """

    master_broker_id: Annotated[
        bounds.BrokerId | None,
        Meta(description="Broker id of the master before the change. Absent: the group had none."),
    ] = None
    master_epoch: Annotated[bounds.Epoch, Meta(description="The master epoch before the change.")]
    sync_state_set: Annotated[
        list[bounds.BrokerId],
        Meta(
            max_length=bounds.MAX_KNOWN_REPLICAS,
            description="The SyncStateSet before the change.",
            extra_json_schema=bounds.SET_LIST,
        ),
    ] = []
    sync_state_set_epoch: Annotated[bounds.Epoch, Meta(description="The SyncStateSet epoch before the change.")]


class RestoreAfterChange(Struct, frozen=True, rename="camel", kw_only=True):
    """A setting of a broker that was changed for the change of master, and is set back after it."""

    broker_id: Annotated[bounds.BrokerId, Meta(description="Broker id of that broker.")]
    min_in_sync_replicas: Annotated[
        int, Meta(ge=0, le=bounds.JAVA_INT_MAX, description="The broker's minInSyncReplicas before the change.")
    ]


class ChangeRecord(Struct, frozen=True, rename="camel", kw_only=True):
    """A change of master in progress. If the operator pod that carries it out dies, another one continues it."""

    id: Annotated[int, Meta(ge=1, description="Number of this change; each new change has a higher one.")]
    kind: Annotated[
        Literal["Failover", "Switchover", "Drain", "Elect", "Cure", "Recovery"],
        Meta(
            description="Why the master changes. Failover: it was lost. Switchover: a user or the operator moves it. Drain:"
            " its pod stops. Elect: a user named the next master of a group that had none. Cure: new epochs link a"
            " slave to the master again. Recovery: the record was restored or lost."
        ),
    ]
    phase: Annotated[
        Literal["Fencing", "Quieting", "Telling", "Restoring"],
        Meta(
            description="The step. Fencing: the old master's death is awaited. Quieting: the old master acknowledges nothing"
            " more, the next one catches up. Telling: the new master is elected, brokers are being notified."
            " Restoring: settings are set back."
        ),
    ]
    carried_out_by: Annotated[
        str,
        Meta(
            max_length=259,
            description="The operator pod that carries out the change; the others do not notify brokers of it.",
        ),
    ] = ""
    from_: Annotated[
        bounds.BrokerId | None, Meta(description="Broker id of the old master. Absent: there was none.")
    ] = field(default=None, name="from")
    to: Annotated[bounds.BrokerId | None, Meta(description="Broker id of the new master. Absent: not elected yet.")] = (
        None
    )
    epoch: Annotated[bounds.Epoch, Meta(description="The new master epoch; 0: not elected yet.")] = 0
    slave: Annotated[
        bounds.BrokerId | None,
        Meta(description="Of a Cure: broker id of the slave that has no connection to the master."),
    ] = None
    before: Annotated[
        BeforeChange | None,
        Meta(
            description="The roles before the change. The controller answers brokers with them until it has notified them of"
            " the change in order."
        ),
    ] = None
    restore: Annotated[
        RestoreAfterChange | None,
        Meta(description="A setting of a broker that was changed for the change of master, and is set back after it."),
    ] = None
    cause: Annotated[str, Meta(max_length=256, description="Why the change began, as a sentence for a reader.")] = ""
    unfenced: Annotated[
        bool, Meta(description="Whether the old master's death was not confirmed before the election.")
    ] = False
    started_at: Annotated[str, Meta(max_length=64, description="When the change began, in UTC.")] = ""


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
    """What the controller has decided about the group."""

    schema_version: Annotated[
        int,
        Meta(
            ge=1,
            le=1000,
            description="Version of this schema; an operator that does not know it leaves the record alone. It cannot be"
            " lowered.",
        ),
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
        bounds.BrokerId,
        Meta(description="The broker id that the next new broker gets. It cannot be lowered, so no id is used twice."),
    ] = 1
    replicas: Annotated[
        list[ReplicaRecord],
        Meta(
            max_length=bounds.MAX_KNOWN_REPLICAS,
            description="All broker ids that were assigned and not removed since.",
            extra_json_schema=bounds.map_list("brokerId"),
        ),
    ] = []
    master_broker_id: Annotated[
        bounds.BrokerId | None, Meta(description="The master's broker id. Absent: there is no master.")
    ] = None
    master_epoch: Annotated[
        bounds.Epoch, Meta(description="Number of the mastership; each election raises it, and it cannot be lowered.")
    ] = 0
    sync_state_set: Annotated[
        list[bounds.BrokerId],
        Meta(
            max_length=bounds.MAX_KNOWN_REPLICAS,
            description="Broker ids of the replicas that have every acknowledged message, the master among them.",
            extra_json_schema=bounds.SET_LIST,
        ),
    ] = []
    sync_state_set_epoch: Annotated[
        bounds.Epoch,
        Meta(description="Number of the SyncStateSet; each change of the set raises it, and it cannot be lowered."),
    ] = 0
    master_process_lost: Annotated[
        bool, Meta(description="Whether the master's process has ended; a new process of it gets a new epoch.")
    ] = False
    eligible: Annotated[
        list[bounds.BrokerId],
        Meta(
            max_length=bounds.MAX_KNOWN_REPLICAS,
            description="Broker ids of replicas outside syncStateSet that have every acknowledged message: they left it while"
            " it was smaller than minInSyncReplicas, so nothing was acknowledged.",
            extra_json_schema=bounds.SET_LIST,
        ),
    ] = []
    lost_seats: Annotated[
        list[bounds.BrokerId],
        Meta(
            max_length=bounds.MAX_KNOWN_REPLICAS,
            description="Broker ids of the last replicas that had every acknowledged message and came back with less. Empty"
            " as long as another one has them all.",
            extra_json_schema=bounds.SET_LIST,
        ),
    ] = []
    unclean_elections: Annotated[
        int,
        Meta(
            ge=0,
            le=bounds.JAVA_INT_MAX,
            description="How often a replica was elected that may lack acknowledged messages. It cannot be lowered.",
        ),
    ] = 0
    unfenced: Annotated[
        list[bounds.BrokerId],
        Meta(
            max_length=bounds.MAX_KNOWN_REPLICAS,
            description="Broker ids of replaced masters whose death was not confirmed, until they are in sync again or are"
            " removed.",
            extra_json_schema=bounds.SET_LIST,
        ),
    ] = []
    change_id: Annotated[
        int, Meta(ge=0, description="`change.id` of the last change of master. It cannot be lowered.")
    ] = 0
    change: Annotated[ChangeRecord | None, Meta(description="The change of master in progress. Absent: none.")] = None
    restored_from: Annotated[
        Annotated[str, Meta(max_length=bounds.LONGEST_BACKUP_NAME)] | None,
        Meta(
            description="Name of the backup with which the record began (spec.bootstrap). Absent: it began with empty disks."
        ),
    ] = None

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
        immutable_optional("restoredFrom", "restoredFrom never changes: a record begins once"),
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
    """The durable record of a broker group's controller. The operator writes it by compare-and-set; do not edit it."""

    api_version: str = API_VERSION
    kind: str = BROKER_GROUP_STATE_KIND
    metadata: bounds.JsonObject = field(default_factory=dict)
    record: GroupRecord
