"""BrokerGroupOperation: a one-time operation on a group.

An object, not an annotation: it has a status, a history and access rights of its own, and `kubectl wait --for=condition=Complete`
waits for it. The request is immutable; another request is another object.
"""

from enum import StrEnum
from typing import Annotated, ClassVar

from msgspec import Meta, Struct, field

from brokergroup_operator.api import bounds
from brokergroup_operator.api.backup_fields import BackupRequest, BackupResult
from brokergroup_operator.api.brokergroup_status import Condition
from brokergroup_operator.api.names import API_VERSION, BROKER_GROUP_OPERATION_KIND
from brokergroup_operator.api.rules import (
    Rule,
    immutable,
    validations,
)

MAX_UNREAD_TOPICS = 32
MAX_UNREAD_GROUPS = 8
MAX_KNOWN_READERS = 256
MAX_TOPIC_NAME = 512
MAX_GROUP_NAME = 255
MAX_READER_CHARACTERS = MAX_TOPIC_NAME + MAX_GROUP_NAME + 1
MAX_MESSAGE_CHARACTERS = 4096
MAX_PLAN_STEPS = 64
MAX_PLAN_STEP_CHARACTERS = 512

Messages = Annotated[int, Meta(ge=0, le=bounds.JAVA_LONG_EXACT_MAX)]
# A retry topic of popped messages has a consumer group's name and a topic's, with a + between them.
TopicText = Annotated[
    str, Meta(min_length=1, max_length=MAX_TOPIC_NAME, pattern=f"^[%|+a-zA-Z0-9_-]{{1,{MAX_TOPIC_NAME}}}$")
]
ConsumerGroupText = Annotated[
    str, Meta(min_length=1, max_length=MAX_GROUP_NAME, pattern=f"^[%|a-zA-Z0-9_-]{{1,{MAX_GROUP_NAME}}}$")
]


class OperationType(StrEnum):
    """What is done."""

    SWITCHOVER = "Switchover"
    RESTART = "Restart"
    REBUILD = "Rebuild"
    ELECT = "Elect"
    DECOMMISSION = "Decommission"
    DRILL = "Drill"
    BACKUP = "Backup"
    RETIRE = "Retire"


class DrillKind(StrEnum):
    """Which loss is rehearsed."""

    SWITCHOVER = "Switchover"
    KILL_MASTER = "KillMaster"


class DryRun(StrEnum):
    """Whether anything is done at all."""

    NONE = "None"
    ALL = "All"


class OperationPhase(StrEnum):
    """How far an operation is. The last three are for good."""

    PENDING = "Pending"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    REJECTED = "Rejected"


class OperationConditionType(StrEnum):
    """As with Jobs: at most one of Complete and Failed is True, and then the operation is over. Drained is of a Retire."""

    COMPLETE = "Complete"
    FAILED = "Failed"
    DRAINED = "Drained"


class BrokerGroupReference(Struct, frozen=True, rename="camel", kw_only=True):
    """The BrokerGroup, in the same namespace."""

    name: Annotated[bounds.GroupNameText, Meta(description="metadata.name of the BrokerGroup.")]


class SwitchoverRequest(Struct, frozen=True, rename="camel", kw_only=True):
    """A planned change of master without loss of messages: another member becomes master once it has caught up."""

    to_broker_id: Annotated[
        bounds.BrokerId | None,
        Meta(description="Broker id of the next master, as in status.members. Absent: the best candidate."),
    ] = None
    deadline_seconds: Annotated[
        int,
        Meta(
            ge=1,
            le=3600,
            description="Seconds from its start within which it must end. After that it fails, and the old master stays.",
        ),
    ] = 60
    not_before: Annotated[
        bounds.MomentText | None,
        Meta(description="Earliest start (RFC 3339 with an offset, such as 2030-01-02T03:04:05Z). Absent: at once."),
    ] = None
    not_after: Annotated[
        bounds.MomentText | None,
        Meta(
            description="Latest start. If it could not start by then, because no operator ran or the group was not"
            " FailoverSafe, it is Rejected. Absent: deadlineSeconds after notBefore; without notBefore there is no"
            " latest start."
        ),
    ] = None


class RestartRequest(Struct, frozen=True, rename="camel", kw_only=True):
    """A restart of pods one by one, slaves first, the master after a switchover, as in a rolling update."""

    broker_ids: Annotated[
        list[bounds.BrokerId],
        Meta(
            max_length=bounds.MAX_KNOWN_REPLICAS,
            description="Broker ids of the members to restart. Empty: all.",
            extra_json_schema=bounds.SET_LIST,
        ),
    ] = []


class RebuildRequest(Struct, frozen=True, rename="camel", kw_only=True):
    """A replacement of a member: its claim is deleted WITH ITS DATA, and a new member with a new broker id copies the log
    from the master.
    """

    broker_id: Annotated[bounds.BrokerId, Meta(description="Broker id of the member whose claim is deleted.")]


class ElectRequest(Struct, frozen=True, rename="camel", kw_only=True):
    """An unclean election: a replica becomes master although it may lack acknowledged messages. For the case that no
    member of the SyncStateSet comes back.
    """

    to_broker_id: Annotated[bounds.BrokerId, Meta(description="Broker id of the next master.")]
    acknowledge_data_loss: Annotated[
        str,
        Meta(
            max_length=bounds.LONGEST_GROUP_NAME,
            description="The name of the group, as confirmation that acknowledged messages may be lost.",
        ),
    ]


class DecommissionRequest(Struct, frozen=True, rename="camel", kw_only=True):
    """A removal of one member, as when scaling in. If spec.replicas still wants as many members, a new one replaces it."""

    broker_id: Annotated[bounds.BrokerId, Meta(description="Broker id of the member to remove.")]


class DrillRequest(Struct, frozen=True, rename="camel", kw_only=True):
    """A rehearsal of a change of master; status.result has how long it took."""

    kind: Annotated[
        DrillKind,
        Meta(
            description="Switchover: the master moves to another member and back, planned. KillMaster: the master's pod is"
            " deleted without a grace period, like a crash, and another member is elected."
        ),
    ]


class RetireRequest(Struct, frozen=True, rename="camel", kw_only=True):
    """A removal of the whole group without loss of messages: its brokers take no more sends, its consumers read what is there,
    and then the BrokerGroup is deleted. A message that no consumer group has read keeps the group.
    """

    abandon_topics: Annotated[
        list[TopicText],
        Meta(
            max_length=256,
            description="Topics whose unread messages are given up with the group. Exact names; nothing else is given up.",
            extra_json_schema=bounds.SET_LIST,
        ),
    ] = []
    abandon_consumer_groups: Annotated[
        list[ConsumerGroupText],
        Meta(
            max_length=256,
            description="Consumer groups that are not waited for, such as those whose consumers are gone for good. A topic"
            " without another reader is unread then.",
            extra_json_schema=bounds.SET_LIST,
        ),
    ] = []


def _only_the_section_of(kind: OperationType) -> Rule:
    """A section says how its type of operation is done. With another type it would be ignored, and without it guessed."""
    section = kind.value.lower()
    return Rule(
        f"(self.type == '{kind.value}') == has(self.{section})",
        f"{section} is for type {kind.value}: exactly the section of spec.type must be given",
        field_path=f".{section}",
    )


class OperationSpec(Struct, frozen=True, rename="camel", kw_only=True):
    """The requested operation. Immutable. Exactly one section is given: the one named as `type`."""

    broker_group_ref: Annotated[BrokerGroupReference, Meta(description="The BrokerGroup, in the same namespace.")]
    type: Annotated[OperationType, Meta(description="What is done; the section of the same name has its options.")]
    switchover: Annotated[
        SwitchoverRequest | None,
        Meta(description="For type Switchover: another member becomes master, planned and without loss of messages."),
    ] = None
    restart: Annotated[RestartRequest | None, Meta(description="For type Restart: the pods restart one by one.")] = None
    rebuild: Annotated[
        RebuildRequest | None,
        Meta(description="For type Rebuild: a member is replaced, its claim deleted WITH ITS DATA."),
    ] = None
    elect: Annotated[
        ElectRequest | None,
        Meta(description="For type Elect: a replica becomes master although it may lack acknowledged messages."),
    ] = None
    decommission: Annotated[
        DecommissionRequest | None, Meta(description="For type Decommission: a member is removed.")
    ] = None
    drill: Annotated[
        DrillRequest | None, Meta(description="For type Drill: a change of master is rehearsed and measured.")
    ] = None
    backup: Annotated[
        BackupRequest | None,
        Meta(description="For type Backup: the store of a slave in sync is copied while the slave is stopped."),
    ] = None
    retire: Annotated[
        RetireRequest | None,
        Meta(description="For type Retire: the group is deleted once its consumers have read everything."),
    ] = None
    dry_run: Annotated[
        DryRun,
        Meta(
            description="All: nothing is done, and status.result says which steps would be, or why it would be rejected."
            " None: it is done."
        ),
    ] = DryRun.NONE
    ttl_seconds_after_finished: Annotated[
        Annotated[int, Meta(ge=0, le=31_536_000)] | None,
        Meta(
            description="Seconds after its end when the operator deletes this object, as in a Job. Absent: it is kept."
        ),
    ] = None

    RULES: ClassVar[tuple[Rule, ...]] = (
        *(_only_the_section_of(kind) for kind in OperationType),
        Rule(
            "!has(self.elect) || self.elect.acknowledgeDataLoss == self.brokerGroupRef.name",
            "elect.acknowledgeDataLoss must be the name of the group: it confirms that acknowledged messages may be lost",
            field_path=".elect.acknowledgeDataLoss",
        ),
    )


class OperationResult(Struct, frozen=True, rename="camel", kw_only=True):
    """The outcome."""

    message: Annotated[str, Meta(max_length=MAX_MESSAGE_CHARACTERS, description="The outcome in a sentence.")]
    from_broker_id: Annotated[bounds.BrokerId | None, Meta(description="Broker id of the master before it.")] = None
    to_broker_id: Annotated[
        bounds.BrokerId | None, Meta(description="Broker id of the master after it; of a Rebuild, of the new member.")
    ] = None
    epoch: Annotated[bounds.Epoch | None, Meta(description="The master epoch after it.")] = None
    milliseconds: Annotated[
        bounds.Milliseconds | None,
        Meta(
            description="How long it took, in milliseconds. Of a change of master: from its start until the new master"
            " confirmed its role (of a drill, the longer of the two changes); clients with an old route notice it"
            " later. Of another operation: from its start to its end."
        ),
    ] = None
    phases: Annotated[
        dict[str, bounds.Milliseconds],
        Meta(max_length=32, description="Milliseconds from the start to the end of each phase."),
    ] = {}
    backup: Annotated[BackupResult | None, Meta(description="Of a Backup: the copy, and how far its log goes.")] = None
    plan: Annotated[
        list[Annotated[str, Meta(max_length=MAX_PLAN_STEP_CHARACTERS)]],
        Meta(
            max_length=MAX_PLAN_STEPS,
            description="With dryRun All: the steps that would be done, in order.",
            extra_json_schema=bounds.ATOMIC_LIST,
        ),
    ] = []


class RetirementStep(StrEnum):
    """How far a Retire is."""

    READ_ONLY = "ReadOnly"
    DRAINING = "Draining"
    CLOSING = "Closing"
    DELETING = "Deleting"


class ConsumerLag(Struct, frozen=True, rename="camel", kw_only=True):
    """A consumer group that has not read everything of a topic."""

    name: Annotated[str, Meta(max_length=MAX_GROUP_NAME, description="Name of the consumer group.")]
    messages: Annotated[Messages, Meta(description="How many messages it has not read.")]
    beyond_end: Annotated[
        bool,
        Meta(
            description="Its offset is beyond the end of a queue, as after an unclean election: nothing of this queue counts as"
            " read until the consumer group commits another offset."
        ),
    ] = False


class UnreadTopic(Struct, frozen=True, rename="camel", kw_only=True):
    """A topic with messages that keep the group."""

    topic: Annotated[str, Meta(max_length=MAX_TOPIC_NAME, description="Name of the topic.")]
    queues: Annotated[int, Meta(ge=0, description="In how many of its queues they are.")]
    messages: Annotated[
        Messages,
        Meta(description="How many there are; of several consumer groups, those that the last one has to read."),
    ]
    consumer_groups: Annotated[
        list[ConsumerLag],
        Meta(
            max_length=MAX_UNREAD_GROUPS,
            description="The consumer groups that are behind, the last first. Empty: no consumer group reads the topic, or"
            " the broker itself has to deliver the messages later.",
            extra_json_schema=bounds.ATOMIC_LIST,
        ),
    ] = []


class Retirement(Struct, frozen=True, rename="camel", kw_only=True):
    """How far a Retire is, and what keeps the group."""

    step: Annotated[
        RetirementStep,
        Meta(
            description="ReadOnly: the brokers are configured to take no sends. Draining: consumers read what is there. Closing:"
            " everything is read, and the brokers acknowledge nothing any more while the master is asked again. Deleting:"
            " a last look; if it finds the same, the BrokerGroup is deleted (deleteSent)."
        ),
    ]
    group_uid: Annotated[str, Meta(max_length=64, description="metadata.uid of the BrokerGroup that is retired.")]
    epoch: Annotated[bounds.Epoch | None, Meta(description="The master epoch in which everything was read.")] = None
    position: Annotated[
        Messages | None,
        Meta(
            description="Draining: the sum of all queues' ends. Closing, Deleting: the end of the master's log, in bytes."
        ),
    ] = None
    since: Annotated[
        bounds.TimeText | None,
        Meta(
            description="Since when everything is read and `position` has not changed; absent while something is unread."
            " Closing without a position: since when."
        ),
    ] = None
    unread_topics: Annotated[int, Meta(ge=0, description="How many topics keep the group.")] = 0
    unread: Annotated[
        list[UnreadTopic],
        Meta(
            max_length=MAX_UNREAD_TOPICS,
            description="The topics that keep the group, those with the most messages first.",
            extra_json_schema=bounds.ATOMIC_LIST,
        ),
    ] = []
    watched_epoch: Annotated[
        bounds.Epoch | None, Meta(description="The master epoch of the last look that waited for consumers to appear.")
    ] = None
    watched_since: Annotated[
        bounds.TimeText | None, Meta(description="The first look in `watchedEpoch`: nothing counts as read for 120 s.")
    ] = None
    readers: Annotated[
        list[Annotated[str, Meta(max_length=MAX_READER_CHARACTERS)]],
        Meta(
            max_length=MAX_KNOWN_READERS,
            description="Consumer groups, each as topic@group, that subscribed to a topic during the operation and have no"
            " offset of it: they are waited for also when the broker no longer hears them.",
            extra_json_schema=bounds.ATOMIC_LIST,
        ),
    ] = []
    delete_sent: Annotated[
        bool, Meta(description="Written right before the deletion of the BrokerGroup is sent by this operation.")
    ] = False


class OperationStatus(Struct, frozen=True, rename="camel", kw_only=True):
    """The progress of the operation, written by the operator."""

    phase: Annotated[
        OperationPhase | None,
        Meta(
            description="Pending: it waits for an earlier operation of the group, or for notBefore. Running: it has started."
            " Succeeded, Failed: it has ended. Rejected: it ended without having started. The last three are"
            " final."
        ),
    ] = None
    observed_generation: Annotated[
        Annotated[int, Meta(ge=0)] | None, Meta(description="The generation of the spec that this status is about.")
    ] = None
    group_uid: Annotated[
        Annotated[str, Meta(max_length=64)] | None,
        Meta(
            description="Of a Retire: metadata.uid of the BrokerGroup when the operation was first seen. A later group of the same"
            " name is not retired."
        ),
    ] = None
    started_at: Annotated[bounds.TimeText | None, Meta(description="When it became Running.")] = None
    completed_at: Annotated[bounds.TimeText | None, Meta(description="When it ended.")] = None
    result: OperationResult | None = None
    retirement: Annotated[
        Retirement | None, Meta(description="Of a Retire: how far it is, and what keeps the group.")
    ] = None
    conditions: (
        Annotated[
            list[Condition],
            Meta(
                max_length=4,
                description="Complete or Failed once it has ended, for kubectl wait --for=condition=Complete; of a Retire, also"
                " Drained: False with what is unread, True once everything is read.",
                extra_json_schema=bounds.map_list("type"),
            ),
        ]
        | None
    ) = None


class BrokerGroupOperation(Struct, frozen=True, rename="camel", kw_only=True):
    """A request for one operation on a broker group. One runs per group at a time, the oldest first."""

    api_version: str = API_VERSION
    kind: str = BROKER_GROUP_OPERATION_KIND
    metadata: bounds.JsonObject = field(default_factory=dict)
    spec: Annotated[
        OperationSpec,
        Meta(
            extra_json_schema=validations(
                immutable("an operation is immutable: what else is wanted is another BrokerGroupOperation")
            )
        ),
    ]
    status: OperationStatus | None = None
