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
    BROKERS_STOPPED = "BrokersStopped"
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
    TLS_CHANGING = "TlsChanging"
    CLIENT_CERTIFICATE_ENDING = "ClientCertificateEnding"


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


def _listed(*, standing: bool) -> str:
    return ", ".join(one for one in ConditionType if (one in STANDING_CONDITIONS) is standing)


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
    MEMBERS_STOPPED = "MembersStopped"  # by spec.maintenance.stoppedBrokers; every other one is in sync
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
    BACKING_UP = "BackingUp"
    RESTORING = "Restoring"
    MOVING_MASTER = "MovingMaster"
    HIBERNATING = "Hibernating"
    STOPPING_BROKER = "StoppingBroker"
    RETIRING = "Retiring"
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
    OUTSIDE_WINDOW = "OutsideWindow"  # of spec.updateStrategy.windows; also Reconciling
    # Stalled
    NOTHING_STALLED = "NothingStalled"
    ROLLOUT_STUCK = "RolloutStuck"
    NAME_TAKEN = "NameTaken"  # an object with a name that the group needs has another owner
    BROKER_NAME_TAKEN = "BrokerNameTaken"  # another group has the broker name, where both would be taken for one broker
    NODE_PORT_TAKEN = "NodePortTaken"  # another Service has one of the numbers from spec.network.firstNodePort on
    IMAGE_UNAVAILABLE = "ImageUnavailable"
    VERSION_REFUSED = "VersionRefused"  # the step to the version of the spec is refused; also UpToDate
    REFERENCE_MISSING = "ReferenceMissing"  # a Secret or ConfigMap that the pod names, or a key in it
    CONTAINER_NOT_CREATED = "ContainerNotCreated"
    MEMBER_CRASHES = "MemberCrashes"
    MEMBER_NOT_SCHEDULED = "MemberNotScheduled"
    POD_STUCK_TERMINATING = "PodStuckTerminating"
    SCALE_IN_REFUSED = "ScaleInRefused"
    STOP_REFUSED = "StopRefused"  # a broker of spec.maintenance.stoppedBrokers can't be stopped now
    NO_ELIGIBLE_REPLICA = "NoEligibleReplica"
    # Paused, Hibernated, BrokersStopped
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
    # TlsChanging
    STEP_BY_STEP = "StepByStep"
    AUTHORITIES_HELD = "AuthoritiesHeld"
    # ClientCertificateEnding
    CERTIFICATE_NOT_SEEN = "CertificateNotSeen"
    CERTIFICATE_NOT_RENEWED = "CertificateNotRenewed"
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
    STOPPED = (
        "Stopped"  # no pod, because the group is hibernated; or its broker is held stopped (maintenance.stoppedBrokers)
    )


class MemberSeat(StrEnum):
    """Whether an election may choose a member as one that has every acknowledged message.

    docs/concepts/architecture.md, rules 1 and 2.
    """

    IN_SYNC_STATE_SET = "InSyncStateSet"
    ELIGIBLE = "Eligible"  # left the set while nothing could be acknowledged without it
    LOST = "Lost"  # the last ones to hold a seat, and their disks have less than they had held
    NONE = "None"


class Endpoints(Struct, frozen=True, rename="camel", kw_only=True):
    """Addresses of the group inside the Kubernetes cluster, as host:port."""

    master: Annotated[bounds.AddressText, Meta(description="The Service whose endpoint is the master.")]
    slaves: Annotated[
        bounds.AddressText | None,
        Meta(description="The Service whose endpoints are the slaves that are ready, for reads; no learner is one."),
    ] = None
    members: Annotated[
        list[bounds.AddressText],
        Meta(
            max_length=bounds.MAX_KNOWN_REPLICAS,
            description="The DNS name of each member, in the order of broker ids.",
            extra_json_schema=bounds.ATOMIC_LIST,
        ),
    ] = []


class MasterStatus(Struct, frozen=True, rename="camel", kw_only=True):
    """The master. Absent: there is none."""

    broker_id: Annotated[bounds.BrokerId, Meta(description="The master's broker id (the NameServer shows it as 0).")]
    pod: Annotated[
        bounds.NameText, Meta(description="The master's pod. Empty: the broker does not run in a pod of the group.")
    ]
    address: Annotated[
        bounds.AddressText, Meta(description="The address under which the master last registered, as host:port.")
    ]
    epoch: Annotated[bounds.Epoch, Meta(description="Number of this mastership; each election raises it.")]
    since: Annotated[
        bounds.TimeText | None, Meta(description="When it became master in this epoch, as the operator first saw it.")
    ] = None


class SyncStateSetStatus(Struct, frozen=True, rename="camel", kw_only=True):
    """The members whose acknowledgement a write needs, and which have every acknowledged message (RocketMQ's
    SyncStateSet).
    """

    broker_ids: Annotated[
        list[bounds.BrokerId],
        Meta(
            max_length=bounds.MAX_KNOWN_REPLICAS,
            description="Broker ids of the master and of the slaves in sync with it.",
            extra_json_schema=bounds.ATOMIC_LIST,
        ),
    ]
    epoch: Annotated[bounds.Epoch, Meta(description="Number of this set; each change of it raises the number.")]


class MemberStatus(Struct, frozen=True, rename="camel", kw_only=True):
    """One broker of the group."""

    broker_id: Annotated[
        bounds.BrokerId,
        Meta(description="The broker id. It stays with the member's claim, and no later member gets it."),
    ]
    pod: Annotated[bounds.NameText, Meta(description="The pod for which the id is reserved.")]
    pod_uid: Annotated[
        Annotated[str, Meta(max_length=64)] | None,
        Meta(description="metadata.uid of the current pod; a new pod has another one."),
    ] = field(default=None, name="podUID")
    node: Annotated[bounds.NameText | None, Meta(description="The node that the pod runs on.")] = None
    zone: Annotated[
        Annotated[str, Meta(max_length=63)] | None,
        Meta(
            description="The node's zone (label topology.kubernetes.io/zone). Absent: it has none, or the operator may not"
            " read nodes."
        ),
    ] = None
    pod_ip: Annotated[str, Meta(max_length=45, description="The current IP of the pod.")] = field(
        default="", name="podIP"
    )
    address: Annotated[
        bounds.AddressText, Meta(description="The address under which the broker registered, as host:port.")
    ] = ""
    lag_bytes: Annotated[
        Annotated[int, Meta(ge=0, le=bounds.JAVA_LONG_EXACT_MAX)] | None,
        Meta(description="Bytes of the master's log that it has not copied yet, approximately, by its last report."),
    ] = None
    claim: Annotated[
        bounds.NameText | None,
        Meta(description="The PersistentVolumeClaim with its data. It stays with the broker id."),
    ] = None
    revision: Annotated[
        bounds.WordText | None,
        Meta(
            description="The revision of the spec that the pod runs; equal to status.updateRevision once it is up to date."
        ),
    ] = None
    role: Annotated[
        MemberRole,
        Meta(
            description="master or slave, by the controller's record (BrokerGroupState), which a broker may not have learned"
            " yet."
        ),
    ]
    state: Annotated[
        MemberState,
        Meta(
            description="The state of the member. Pending: no running pod yet. Registering: the pod runs, no heartbeat yet."
            " CatchingUp: it copies the log. InSync: in the SyncStateSet and alive. Learning: a learner, alive and"
            " linked. OutOfSync: in the SyncStateSet, with no sign of life. Unheard: it runs, but no heartbeat"
            " arrives. Unlinked: alive, without a connection to the master. NotReady: in sync, its pod is not"
            " ready. Lost: no running pod and no heartbeat. Fenced: its pod is being killed before another master"
            " is elected. Stopped: the group is hibernated, or stoppedBrokers names the member."
        ),
    ]
    message: Annotated[
        Annotated[str, Meta(max_length=1024)] | None,
        Meta(description="What is wrong with the member, in the words of the conditions. Absent: nothing."),
    ] = None
    replacements: Annotated[
        Annotated[int, Meta(ge=0, le=bounds.JAVA_INT_MAX)] | None,
        Meta(
            description="How often the operator has replaced the member's pod, on the same claim, because no operator pod"
            " received its heartbeats or because it did not stay linked to the master. Each replacement doubles the"
            " pause before the next, up to an hour. Absent: none, or the member is in sync and the last replacement"
            " was over an hour ago."
        ),
    ] = None
    replaced_at: Annotated[bounds.TimeText | None, Meta(description="When the last of these replacements was.")] = None
    seat: Annotated[
        MemberSeat | None,
        Meta(
            description="Whether it may become master without loss of messages. InSyncStateSet: yes, it is in the"
            " SyncStateSet. Eligible: yes, it left the set while nothing was acknowledged without it. Lost: its"
            " disk came back with less than it had acknowledged. None: no, it must catch up first."
        ),
    ] = None


class ControllerStatus(Struct, frozen=True, rename="camel", kw_only=True):
    """The settings that the group's controller uses."""

    addresses: Annotated[
        list[bounds.AddressText],
        Meta(
            max_length=16,
            description="Addresses of the controller for brokers and mqadmin (RocketMQ's controllerAddr), as host:port.",
            extra_json_schema=bounds.ATOMIC_LIST,
        ),
    ] = []
    election_policy: Annotated[bounds.WordText | None, Meta(description="The failover.electionPolicy in use.")] = None
    signature: Annotated[bounds.WordText | None, Meta(description="The security.signature in use.")] = None
    epoch_jump: Annotated[
        bounds.Epoch | None,
        Meta(
            description="A master epoch reported by a broker that is too far above the record's: no master is elected until a"
            " user accepts it with the annotation brokergroup.dev/accept-epoch. Absent: none."
        ),
    ] = None
    accepted_epoch: Annotated[
        bounds.Epoch | None,
        Meta(description="The epoch up to which a user has accepted a jump (annotation brokergroup.dev/accept-epoch)."),
    ] = None


class FailoverStatus(Struct, frozen=True, rename="camel", kw_only=True):
    """One change of master after a loss. `from` and `to` are broker ids; 0 for none."""

    id: Annotated[
        Annotated[str, Meta(max_length=400)] | None,
        Meta(
            description="Id of this change of master, NAMESPACE/GROUP/EPOCH, as in the incident log, Events, metrics, live"
            " page and reports. Absent in old entries."
        ),
    ] = None
    cause: Annotated[
        bounds.WordText | None,
        Meta(
            description="Why the master was lost, such as oom or drain, as far as the operator can prove it; else unknown."
        ),
    ] = None
    trigger: Annotated[
        bounds.WordText,
        Meta(description="What showed the loss, such as silence, connectionRefused or containerTerminated."),
    ]
    from_broker_id: Annotated[
        int, Meta(ge=0, le=bounds.JAVA_LONG_EXACT_MAX, description="Broker id of the lost master; 0: there was none.")
    ] = field(name="from")
    to_broker_id: Annotated[
        int,
        Meta(
            ge=0,
            le=bounds.JAVA_LONG_EXACT_MAX,
            description="Broker id of the new master; 0: no replica could be elected.",
        ),
    ] = field(name="to")
    epoch: Annotated[bounds.Epoch, Meta(description="The master epoch after the failover.")]
    started_at: Annotated[bounds.TimeText, Meta(description="When the loss was detected.")]
    duration_milliseconds: Annotated[
        bounds.Milliseconds,
        Meta(description="Milliseconds from the detection of the loss until the new master confirmed its role."),
    ]
    phases: Annotated[
        dict[str, bounds.Milliseconds],
        Meta(max_length=32, description="Milliseconds from the detection of the loss to the end of each phase."),
    ] = {}


# What the API server takes as a condition's message; longer ones are cut (`reconcile/tell/conditions.py`).
MAX_CONDITION_MESSAGE = 32768


class Condition(Struct, frozen=True, rename="camel", kw_only=True):
    """A condition, as Kubernetes' own kinds have them (metav1.Condition)."""

    type: Annotated[str, Meta(max_length=316, description="What the condition is about, such as Ready.")]
    status: Annotated[ConditionStatus, Meta(description="Whether it holds: True, False or Unknown.")]
    reason: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=1024,
            pattern="^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$",
            description="Why, as one CamelCase word for programs (docs/tasks/condition-reasons.md).",
        ),
    ]
    message: Annotated[str, Meta(max_length=MAX_CONDITION_MESSAGE, description="Why, as a sentence for a reader.")]
    last_transition_time: Annotated[bounds.TimeText, Meta(description="When `status` last changed.")]
    # Not 0 by default: kubectl wait takes a condition of an older generation for not yet met.
    observed_generation: Annotated[
        Annotated[int, Meta(ge=0)] | None, Meta(description="metadata.generation for which it was determined.")
    ] = None


class BrokerGroupStatus(Struct, frozen=True, rename="camel", kw_only=True):
    """The observed state of the group, written by the operator."""

    phase: Annotated[
        bounds.WordText | None,
        Meta(description="The state in one word, for a reader; programs use the conditions."),
    ] = None
    observed_generation: Annotated[
        Annotated[int, Meta(ge=0)] | None,
        Meta(
            description="metadata.generation of the spec that this status is about; below metadata.generation, the operator"
            " has not seen the last change."
        ),
    ] = None
    replicas: Annotated[bounds.Count | None, Meta(description="Number of the group's pods.")] = None
    ready_replicas: Annotated[bounds.Count | None, Meta(description="Number of the group's pods that are ready.")] = (
        None
    )
    updated_replicas: Annotated[
        bounds.Count | None, Meta(description="Number of the group's pods that run the current spec (updateRevision).")
    ] = None
    in_sync_replicas: Annotated[
        bounds.Count | None, Meta(description="Number of members of the SyncStateSet, the master included.")
    ] = None
    selector: Annotated[
        Annotated[str, Meta(max_length=512)] | None,
        Meta(description="Label selector of the group's pods, for the scale subresource."),
    ] = None
    master: MasterStatus | None = None
    sync_state_set: SyncStateSetStatus | None = None
    members: (
        Annotated[
            list[MemberStatus],
            Meta(
                max_length=bounds.MAX_KNOWN_REPLICAS,
                description="The brokers of the group, one entry per broker id with a pod.",
                extra_json_schema=bounds.map_list("brokerId"),
            ),
        ]
        | None
    ) = None
    current_revision: Annotated[
        bounds.WordText | None,
        Meta(description="The revision of the spec that all pods ran when the last rolling update was complete."),
    ] = None
    update_revision: Annotated[
        bounds.WordText | None, Meta(description="The revision of the current spec, which all pods should run.")
    ] = None
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
            description="How often a master was elected that may lack acknowledged messages, since the group was created."
        ),
    ] = None
    controller: Annotated[
        ControllerStatus | None, Meta(description="The settings that the group's controller uses.")
    ] = None
    durability: Annotated[
        Durability | None, Meta(description="The durability in effect, also where the spec does not say it yet.")
    ] = None
    version: Annotated[
        bounds.VersionText | None,
        Meta(
            description="The newest RocketMQ version of which a pod of the group has started; an older one once every member has"
            " started with that. Absent: none has started, or one runs whose version is not known (spec.image, the Python replica)."
        ),
    ] = None
    unfenced: Annotated[
        bool | None,
        Meta(
            description="True: a silent master was replaced, and nothing has confirmed that its process is dead: messages"
            " that it has acknowledged since may be lost. True until that broker is in sync again, or no longer a"
            " member; the condition Unfenced names it."
        ),
    ] = None
    conditions: (
        Annotated[
            list[Condition],
            Meta(
                max_length=32,
                description=f"Present at all times: {_listed(standing=True)}. Of these, Reconciling and Stalled are bad when True."
                f" Present while True, and worth a look: {_listed(standing=False)}."
                " What each means, and what to do: docs/reference/brokergroup.md.",
                extra_json_schema=bounds.map_list("type"),
            ),
        ]
        | None
    ) = None
