"""BrokerGroup.status: the observed state, written only on change and never read back for a decision.

Reasons of conditions are API; the enums below list each with its meaning.
"""

from enum import StrEnum
from typing import Annotated

from msgspec import Meta, Struct, field

from brokergroup_operator.api import bounds


class Durability(StrEnum):
    """What SEND_OK promises across a failover (README.md, "What it promises")."""

    STRICT = "Strict"
    AVAILABLE = "Available"
    FAST = "Fast"


class ConditionType(StrEnum):
    """The first seven are always there; the others only while they are true, for each of them wants a look."""

    READY = "Ready"
    AVAILABLE = "Available"
    FAILOVER_SAFE = "FailoverSafe"
    REPLICATION_HEALTHY = "ReplicationHealthy"
    UP_TO_DATE = "UpToDate"
    RECONCILING = "Reconciling"
    STALLED = "Stalled"
    PAUSED = "Paused"
    HIBERNATED = "Hibernated"
    FENCED = "Fenced"
    METADATA_DIVERGED = "MetadataDiverged"
    DEGRADED_DURABILITY = "DegradedDurability"
    CONFIGURATION_DRIFTED = "ConfigurationDrifted"
    VOLUME_RESIZING = "VolumeResizing"
    CLAIM_TERMINATING = "ClaimTerminating"
    UNFENCED = "Unfenced"
    EPOCH_JUMP = "EpochJump"
    RECOVERING = "Recovering"
    SEAT_LOST = "SeatLost"
    CREDENTIALS_MISSING = "CredentialsMissing"
    OBJECTIVE_INVALID = "ObjectiveInvalid"


# Always there; Reconciling and Stalled are abnormal while True (kstatus), so False is the good word.
STANDING_CONDITIONS = (
    ConditionType.READY,
    ConditionType.AVAILABLE,
    ConditionType.FAILOVER_SAFE,
    ConditionType.REPLICATION_HEALTHY,
    ConditionType.UP_TO_DATE,
    ConditionType.RECONCILING,
    ConditionType.STALLED,
)


class ConditionStatus(StrEnum):
    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


class Reason(StrEnum):
    """Every reason a condition of a BrokerGroup can carry."""

    # Ready
    ALL_MEMBERS_IN_SYNC = "AllMembersInSync"
    MEMBERS_PENDING = "MembersPending"
    MEMBERS_OUT_OF_SYNC = "MembersOutOfSync"
    MEMBERS_NOT_HEARD = "MembersNotHeard"  # members run, and no controller receives their heartbeats
    NO_MASTER = "NoMaster"
    FAILING_OVER = "FailingOver"
    INVALID_SPEC = "InvalidSpec"
    DELETING = "Deleting"
    # Available
    MASTER_SERVES_WRITES = "MasterServesWrites"
    MASTER_NOT_READY = "MasterNotReady"
    NOT_ENOUGH_IN_SYNC_REPLICAS = "NotEnoughInSyncReplicas"
    # Reconciling
    STABLE = "Stable"
    CREATING_MEMBERS = "CreatingMembers"
    WAITING_FOR_ADDRESS = "WaitingForAddress"  # a member's Service has none yet, and its broker can't start without
    REPAIRING_MEMBERS = "RepairingMembers"
    # Reconciling
    SCALING_IN = "ScalingIn"
    REBUILDING_MEMBER = "RebuildingMember"
    MOVING_MASTER = "MovingMaster"
    HIBERNATING = "Hibernating"
    # FailoverSafe
    ENOUGH_CANDIDATES = "EnoughCandidates"
    NOT_ENOUGH_CANDIDATES = "NotEnoughCandidates"
    NOBODY_MAY_FOLLOW = "NobodyMayFollow"  # every member but the master has election priority 0
    METADATA_DIVERGED = "MetadataDiverged"
    CONFIGURATION_DRIFTED = "ConfigurationDrifted"  # a broker runs with other values than it was given; also UpToDate
    # ReplicationHealthy
    ALL_LINKED = "AllLinked"
    MEMBERS_NOT_LINKED = "MembersNotLinked"
    # UpToDate
    ALL_UP_TO_DATE = "AllUpToDate"
    ROLLING_UPDATE = "RollingUpdate"
    WAITING_FOR_MEMBERS = "WaitingForMembers"
    WAITING_FOR_OTHER_GROUPS = "WaitingForOtherGroups"
    WAITING_FOR_PERSON = "WaitingForPerson"
    # Stalled
    NOTHING_STALLED = "NothingStalled"
    ROLLOUT_STUCK = "RolloutStuck"
    NAME_TAKEN = "NameTaken"  # an object with a name that the group needs has another owner
    BROKER_NAME_TAKEN = "BrokerNameTaken"  # another group has the broker name, where both would be taken for one broker
    NODE_PORT_TAKEN = "NodePortTaken"  # another Service has one of the numbers from spec.network.firstNodePort on
    IMAGE_UNAVAILABLE = "ImageUnavailable"
    REFERENCE_MISSING = "ReferenceMissing"  # a Secret or ConfigMap that the pod names, or a key in it
    CONTAINER_NOT_CREATED = "ContainerNotCreated"
    MEMBER_CRASHES = "MemberCrashes"
    MEMBER_NOT_SCHEDULED = "MemberNotScheduled"
    POD_STUCK_TERMINATING = "PodStuckTerminating"
    SCALE_IN_REFUSED = "ScaleInRefused"
    NO_ELIGIBLE_REPLICA = "NoEligibleReplica"
    # Paused, Hibernated
    BY_SPEC = "BySpec"
    NOTHING_RUNS = "NothingRuns"
    # DegradedDurability
    BELOW_DURABILITY = "BelowDurability"
    # Fenced
    MASTER_STOPPED = "MasterStopped"
    # VolumeResizing
    RESIZE_PENDING = "ResizePending"
    # ClaimTerminating, UpToDate, Stalled
    CLAIM_BEING_DELETED = "ClaimBeingDeleted"  # a claim under a running pod: the pod's next stop takes the data along
    # Unfenced
    FENCE_NOT_CONFIRMED = "FenceNotConfirmed"
    # EpochJump
    EPOCH_FAR_ABOVE_RECORD = "EpochFarAboveRecord"
    # Recovering
    RECORD_BEHIND_BROKERS = "RecordBehindBrokers"
    RECORD_REBUILT_FROM_BROKERS = "RecordRebuiltFromBrokers"
    # SeatLost
    EVERY_SEAT_LOST = "EverySeatLost"
    # ObjectiveInvalid
    TIME_ZONE_UNKNOWN = "TimeZoneUnknown"
    # CredentialsMissing
    SECRET_NOT_FOUND = "SecretNotFound"  # noqa: S105 (a reason)
    SECRET_NOT_READABLE = "SecretNotReadable"  # noqa: S105 (a reason)
    SECRET_INCOMPLETE = "SecretIncomplete"  # noqa: S105 (a reason)
    SECRET_INVALID = "SecretInvalid"  # noqa: S105 (a reason)


class MemberRole(StrEnum):
    MASTER = "master"
    SLAVE = "slave"


class MemberState(StrEnum):
    """Where a member is on its way into the SyncStateSet."""

    PENDING = "Pending"  # no running pod yet
    REGISTERING = "Registering"  # the pod runs, its broker has not been heard yet
    CATCHING_UP = "CatchingUp"  # registered and alive, not in the SyncStateSet
    IN_SYNC = "InSync"  # in the SyncStateSet and alive
    LEARNING = "Learning"  # an async learner: alive and linked to the master, outside the SyncStateSet as it should be
    OUT_OF_SYNC = "OutOfSync"  # in the SyncStateSet by the record; neither a heartbeat nor a link shows that it runs
    UNHEARD = "Unheard"  # its process runs, linked to the master or answering, and no heartbeat of it arrives
    UNLINKED = "Unlinked"  # alive, and the master has no link to it
    NOT_READY = "NotReady"  # alive and in sync, or learning, but its pod is not ready
    LOST = "Lost"  # registered, but neither a running pod nor a heartbeat
    FENCED = "Fenced"  # its pod is being killed, so that another may be master
    STOPPED = "Stopped"  # no pod, because the group is hibernated


class MemberSeat(StrEnum):
    """Whether an election may choose a member as one that has every acknowledged message.

    docs/concepts/architecture.md, rules 1 and 2.
    """

    IN_SYNC_STATE_SET = "InSyncStateSet"
    ELIGIBLE = "Eligible"  # left the set while nothing could be acknowledged without it
    LOST = "Lost"  # the last ones to hold a seat, and their disks have less than they had held
    NONE = "None"


class Endpoints(Struct, frozen=True, rename="camel", kw_only=True):
    """Where the group is reached inside the cluster."""

    master: Annotated[bounds.AddressText, Meta(description="The Service that follows the master.")]
    members: Annotated[
        list[bounds.AddressText],
        Meta(
            max_length=bounds.MAX_KNOWN_REPLICAS,
            description="The stable name of each member, in the order of broker ids.",
            extra_json_schema=bounds.ATOMIC_LIST,
        ),
    ] = []


class MasterStatus(Struct, frozen=True, rename="camel", kw_only=True):
    """The master; absent while there is none."""

    broker_id: Annotated[bounds.BrokerId, Meta(description="The master's broker id (the NameServer shows it as 0).")]
    pod: Annotated[bounds.NameText, Meta(description="Its pod; empty for a broker from elsewhere.")]
    address: Annotated[bounds.AddressText, Meta(description="Where it was last known.")]
    epoch: Annotated[bounds.Epoch, Meta(description="The epoch in which it is master. Raised by every election.")]
    since: Annotated[
        bounds.TimeText | None, Meta(description="When the operator first saw it master in this epoch.")
    ] = None


class SyncStateSetStatus(Struct, frozen=True, rename="camel", kw_only=True):
    """The members that have every acknowledged message, by the controller's record."""

    broker_ids: Annotated[
        list[bounds.BrokerId],
        Meta(
            max_length=bounds.MAX_KNOWN_REPLICAS,
            description="The master and the slaves that are in sync with it.",
            extra_json_schema=bounds.ATOMIC_LIST,
        ),
    ]
    epoch: Annotated[bounds.Epoch, Meta(description="Raised by every change of the set.")]


class MemberStatus(Struct, frozen=True, rename="camel", kw_only=True):
    """One broker of the group."""

    broker_id: Annotated[bounds.BrokerId, Meta(description="Persistent; never reused.")]
    pod: Annotated[bounds.NameText, Meta(description="The pod that carries the id, by the record's reservation.")]
    pod_uid: Annotated[
        Annotated[str, Meta(max_length=64)] | None,
        Meta(description="The UID of the present pod; another one after every restart of it."),
    ] = field(default=None, name="podUID")
    node: Annotated[bounds.NameText | None, Meta(description="The node that the pod runs on.")] = None
    zone: Annotated[
        Annotated[str, Meta(max_length=63)] | None,
        Meta(description="The node's zone; absent where the operator may not read nodes."),
    ] = None
    pod_ip: Annotated[str, Meta(max_length=45, description="The pod's present address.")] = field(
        default="", name="podIP"
    )
    address: Annotated[
        bounds.AddressText, Meta(description="The address by which the controller knows the broker.")
    ] = ""
    lag_bytes: Annotated[
        Annotated[int, Meta(ge=0, le=bounds.JAVA_LONG_EXACT_MAX)] | None,
        Meta(description="How far it is behind the master's log, roughly; by what it last reported."),
    ] = None
    claim: Annotated[
        bounds.NameText | None, Meta(description="The claim that holds its data; it belongs to the id for ever.")
    ] = None
    revision: Annotated[
        bounds.WordText | None, Meta(description="What the pod runs; status.updateRevision once it is up to date.")
    ] = None
    role: Annotated[MemberRole, Meta(description="By the record, not by the broker's own answer.")]
    state: Annotated[MemberState, Meta(description="Where the member is on its way into the SyncStateSet.")]
    message: Annotated[
        Annotated[str, Meta(max_length=1024)] | None,
        Meta(description="What is amiss with it, in the words that the conditions use; absent while nothing is."),
    ] = None
    replacements: Annotated[
        Annotated[int, Meta(ge=0, le=bounds.JAVA_INT_MAX)] | None,
        Meta(
            description="How often its process was replaced because no controller heard it; forgotten after a good hour."
        ),
    ] = None
    replaced_at: Annotated[bounds.TimeText | None, Meta(description="When that was last done.")] = None
    seat: Annotated[
        MemberSeat | None,
        Meta(
            description="InSyncStateSet or Eligible: it has every acknowledged message and may be elected. Lost: it held a"
            " seat and came back with less than it had. None: it must catch up first."
        ),
    ] = None


class ControllerStatus(Struct, frozen=True, rename="camel", kw_only=True):
    """What the group's controller goes by."""

    addresses: Annotated[
        list[bounds.AddressText],
        Meta(
            max_length=16,
            description="Where brokers and mqadmin reach the controller (controllerAddr).",
            extra_json_schema=bounds.ATOMIC_LIST,
        ),
    ] = []
    election_policy: Annotated[bounds.WordText | None, Meta(description="The election policy in effect.")] = None
    signature: Annotated[bounds.WordText | None, Meta(description="What is demanded of requests in effect.")] = None
    epoch_jump: Annotated[
        bounds.Epoch | None,
        Meta(description="A master epoch that brokers report, too far above the record's: it waits for a human."),
    ] = None
    accepted_epoch: Annotated[
        bounds.Epoch | None,
        Meta(description="Up to this epoch a jump is accepted (annotation brokergroup.dev/accept-epoch)."),
    ] = None


class FailoverStatus(Struct, frozen=True, rename="camel", kw_only=True):
    """One failover. `from` and `to` are broker ids; 0 where there was none."""

    id: Annotated[
        Annotated[str, Meta(max_length=400)] | None,
        Meta(
            description="As in the incident log, the Events, the metrics, the page and the report; absent in old entries."
        ),
    ] = None
    cause: Annotated[
        bounds.WordText | None, Meta(description="Why the master was lost, as far as the operator knows.")
    ] = None
    trigger: Annotated[bounds.WordText, Meta(description="Why the controller considered the master lost.")]
    from_broker_id: Annotated[
        int, Meta(ge=0, le=bounds.JAVA_LONG_EXACT_MAX, description="The lost master; 0 where there was none.")
    ] = field(name="from")
    to_broker_id: Annotated[
        int,
        Meta(ge=0, le=bounds.JAVA_LONG_EXACT_MAX, description="The new master; 0 where no replica could be elected."),
    ] = field(name="to")
    epoch: Annotated[bounds.Epoch, Meta(description="The epoch after it.")]
    started_at: Annotated[bounds.TimeText, Meta(description="When the loss was detected.")]
    duration_milliseconds: Annotated[
        bounds.Milliseconds, Meta(description="From the detection until the new master said that it is one.")
    ]
    phases: Annotated[
        dict[str, bounds.Milliseconds],
        Meta(max_length=32, description="Milliseconds from detection to the end of each phase."),
    ] = {}


class Condition(Struct, frozen=True, rename="camel", kw_only=True):
    """As metav1.Condition."""

    type: Annotated[str, Meta(max_length=316, description="What is judged.")]
    status: Annotated[ConditionStatus, Meta(description="Whether it holds.")]
    reason: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=1024,
            pattern="^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$",
            description="Why, as one word that tools may rely on.",
        ),
    ]
    message: Annotated[str, Meta(max_length=32768, description="Why, for people.")]
    last_transition_time: Annotated[bounds.TimeText, Meta(description="When status last changed.")]
    # Not 0 by default: kubectl wait takes a condition of an older generation for not yet met.
    observed_generation: Annotated[
        Annotated[int, Meta(ge=0)] | None, Meta(description="The generation of the spec that was judged.")
    ] = None


class BrokerGroupStatus(Struct, frozen=True, rename="camel", kw_only=True):
    """What is."""

    phase: Annotated[
        bounds.WordText | None,
        Meta(description="The state in one word, for people; tools read the conditions."),
    ] = None
    observed_generation: Annotated[
        Annotated[int, Meta(ge=0)] | None, Meta(description="The generation of the spec that this status is about.")
    ] = None
    replicas: Annotated[bounds.Count | None, Meta(description="Pods of the group.")] = None
    ready_replicas: Annotated[bounds.Count | None, Meta(description="Pods that are ready.")] = None
    updated_replicas: Annotated[
        bounds.Count | None, Meta(description="Pods that run what the spec says (updateRevision).")
    ] = None
    in_sync_replicas: Annotated[bounds.Count | None, Meta(description="Members of the SyncStateSet.")] = None
    selector: Annotated[
        Annotated[str, Meta(max_length=512)] | None,
        Meta(description="Selects the group's pods; for the scale subresource."),
    ] = None
    master: MasterStatus | None = None
    sync_state_set: SyncStateSetStatus | None = None
    members: (
        Annotated[
            list[MemberStatus],
            Meta(
                max_length=bounds.MAX_KNOWN_REPLICAS,
                description="The brokers that the group's pods carry.",
                extra_json_schema=bounds.map_list("brokerId"),
            ),
        ]
        | None
    ) = None
    current_revision: Annotated[
        bounds.WordText | None, Meta(description="What every pod ran when the last update was complete.")
    ] = None
    update_revision: Annotated[bounds.WordText | None, Meta(description="What every pod should run.")] = None
    endpoints: Endpoints | None = None
    failovers: (
        Annotated[
            list[FailoverStatus],
            Meta(
                max_length=10,
                description="The last ten failovers, the latest first.",
                extra_json_schema=bounds.ATOMIC_LIST,
            ),
        ]
        | None
    ) = None
    unclean_elections: Annotated[
        Annotated[int, Meta(ge=0, le=bounds.JAVA_INT_MAX)] | None,
        Meta(
            description="Masters elected from outside the SyncStateSet since the group began: each may have lost messages."
        ),
    ] = None
    controller: Annotated[ControllerStatus | None, Meta(description="What the group's controller goes by.")] = None
    durability: Annotated[
        Durability | None, Meta(description="The durability in effect, also where the spec does not say it yet.")
    ] = None
    unfenced: Annotated[
        bool | None,
        Meta(
            description="True while the promise is withdrawn: a failover could not confirm that the old master is dead."
        ),
    ] = None
    conditions: (
        Annotated[
            list[Condition],
            Meta(
                max_length=32,
                description="Always there: Ready, Available, FailoverSafe, ReplicationHealthy, UpToDate, and"
                " the abnormal ones Reconciling and Stalled. Only while true: Paused, Hibernated, Fenced, Unfenced,"
                " MetadataDiverged, DegradedDurability, VolumeResizing, ClaimTerminating, EpochJump, Recovering, SeatLost,"
                " CredentialsMissing, ObjectiveInvalid. What each means, and what to do then: docs/reference/brokergroup.md.",
                extra_json_schema=bounds.map_list("type"),
            ),
        ]
        | None
    ) = None
