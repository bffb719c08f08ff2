"""BrokerGroupOperation: a one-time operation on a group.

An object, not an annotation: it has a status, a history and access rights of its own, and `kubectl wait --for=condition=Complete`
waits for it. The request is immutable; another request is another object.
"""

from enum import StrEnum
from typing import Annotated, ClassVar

from msgspec import Meta, Struct, field

from brokergroup_operator.api import bounds
from brokergroup_operator.api.brokergroup_status import Condition
from brokergroup_operator.api.names import API_VERSION, BROKER_GROUP_OPERATION_KIND
from brokergroup_operator.api.rules import (
    Rule,
    immutable,
    validations,
)


class OperationType(StrEnum):
    """What is done."""

    SWITCHOVER = "Switchover"
    RESTART = "Restart"
    REBUILD = "Rebuild"
    ELECT = "Elect"
    DECOMMISSION = "Decommission"
    DRILL = "Drill"


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
    """As with Jobs: at most one of the two is True, and then the operation is over."""

    COMPLETE = "Complete"
    FAILED = "Failed"


class BrokerGroupReference(Struct, frozen=True, rename="camel", kw_only=True):
    """The group, in the same namespace."""

    name: Annotated[bounds.GroupNameText, Meta(description="metadata.name of the BrokerGroup.")]


class SwitchoverRequest(Struct, frozen=True, rename="camel", kw_only=True):
    """A planned change of the master, without loss."""

    to_broker_id: Annotated[bounds.BrokerId | None, Meta(description="The new master. Absent: the best candidate.")] = (
        None
    )
    deadline_seconds: Annotated[
        int,
        Meta(
            ge=1,
            le=3600,
            description="How long it may take to be safe and done, from its start. After that it fails, and the old master stays.",
        ),
    ] = 60
    not_before: Annotated[
        bounds.MomentText | None,
        Meta(description="It is not begun before this time (RFC 3339 with an offset). Absent: at once."),
    ] = None
    not_after: Annotated[
        bounds.MomentText | None,
        Meta(
            description="It is not begun after this time, and Rejected: the operator was away, or the group was not FailoverSafe"
            " until then. Absent: deadlineSeconds after notBefore; without notBefore there is no such end."
        ),
    ] = None


class RestartRequest(Struct, frozen=True, rename="camel", kw_only=True):
    """Pods are restarted one by one, the master after a switchover, as in a rolling update."""

    broker_ids: Annotated[
        list[bounds.BrokerId],
        Meta(
            max_length=bounds.MAX_KNOWN_REPLICAS,
            description="The members whose pods are restarted. Empty: all.",
            extra_json_schema=bounds.SET_LIST,
        ),
    ] = []


class RebuildRequest(Struct, frozen=True, rename="camel", kw_only=True):
    """A member is made anew: its claim is deleted WITH ITS DATA, and a new broker id on a new volume copies the master."""

    broker_id: Annotated[bounds.BrokerId, Meta(description="The member whose volume is given up.")]


class ElectRequest(Struct, frozen=True, rename="camel", kw_only=True):
    """A replica is made master although it may lack acknowledged messages, for when no other one will come back."""

    to_broker_id: Annotated[bounds.BrokerId, Meta(description="The new master.")]
    acknowledge_data_loss: Annotated[
        str,
        Meta(
            max_length=bounds.LONGEST_GROUP_NAME,
            description="The name of the group, typed by a person who accepts that acknowledged messages may be lost.",
        ),
    ]


class DecommissionRequest(Struct, frozen=True, rename="camel", kw_only=True):
    """A member leaves for good, as in a scale in; where spec.replicas still wants it, a new one takes its place."""

    broker_id: Annotated[bounds.BrokerId, Meta(description="The member that leaves.")]


class DrillRequest(Struct, frozen=True, rename="camel", kw_only=True):
    """A rehearsal, measured: the result says how long each change of master took."""

    kind: Annotated[
        DrillKind,
        Meta(
            description="Switchover: a planned one, and back. KillMaster: the master's pod is deleted without grace,"
            " as if its process had died."
        ),
    ]


def _only_the_section_of(kind: OperationType) -> Rule:
    """A section says how its type of operation is done. With another type it would be ignored, and without it guessed."""
    section = kind.value.lower()
    return Rule(
        f"(self.type == '{kind.value}') == has(self.{section})",
        f"{section} is for type {kind.value}: exactly the section of spec.type must be given",
        field_path=f".{section}",
    )


class OperationSpec(Struct, frozen=True, rename="camel", kw_only=True):
    """What is asked for. Immutable. Exactly the section of its type is given."""

    broker_group_ref: Annotated[BrokerGroupReference, Meta(description="The group, in the same namespace.")]
    type: Annotated[OperationType, Meta(description="What is done; the section of the same name says how.")]
    switchover: Annotated[SwitchoverRequest | None, Meta(description="For type Switchover.")] = None
    restart: Annotated[RestartRequest | None, Meta(description="For type Restart.")] = None
    rebuild: Annotated[RebuildRequest | None, Meta(description="For type Rebuild.")] = None
    elect: Annotated[ElectRequest | None, Meta(description="For type Elect.")] = None
    decommission: Annotated[DecommissionRequest | None, Meta(description="For type Decommission.")] = None
    drill: Annotated[DrillRequest | None, Meta(description="For type Drill.")] = None
    dry_run: Annotated[
        DryRun, Meta(description="All: nothing is done; status.result says what would be, or why it would be refused.")
    ] = DryRun.NONE
    ttl_seconds_after_finished: Annotated[
        Annotated[int, Meta(ge=0, le=31_536_000)] | None,
        Meta(description="The object is deleted this long after it is over. Absent: it is kept."),
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
    """What came of it."""

    message: Annotated[str, Meta(max_length=4096, description="The outcome in a sentence.")]
    from_broker_id: Annotated[bounds.BrokerId | None, Meta(description="The master before it.")] = None
    to_broker_id: Annotated[
        bounds.BrokerId | None, Meta(description="The master after it; for a rebuild the new member.")
    ] = None
    epoch: Annotated[bounds.Epoch | None, Meta(description="The master epoch after it.")] = None
    milliseconds: Annotated[
        bounds.Milliseconds | None,
        Meta(
            description="How long it took. A change of master: from its start until the new master confirmed its role, in a"
            " drill the longer of both ways; clients with an old route wait longer. Anything else: from its start to its end."
        ),
    ] = None
    phases: Annotated[
        dict[str, bounds.Milliseconds],
        Meta(max_length=32, description="Milliseconds from the start to the end of each phase."),
    ] = {}
    plan: Annotated[
        list[Annotated[str, Meta(max_length=512)]],
        Meta(max_length=64, description="With dryRun All: the steps.", extra_json_schema=bounds.ATOMIC_LIST),
    ] = []


class OperationStatus(Struct, frozen=True, rename="camel", kw_only=True):
    """How far it is. Written by the operator."""

    phase: Annotated[
        OperationPhase | None,
        Meta(
            description="Pending: others of the group come first, or it is not time yet. Running. Succeeded, Failed and Rejected"
            " are for good; Rejected: it was never begun."
        ),
    ] = None
    observed_generation: Annotated[
        Annotated[int, Meta(ge=0)] | None, Meta(description="The generation of the spec that this status is about.")
    ] = None
    started_at: Annotated[bounds.TimeText | None, Meta(description="When it became Running.")] = None
    completed_at: Annotated[bounds.TimeText | None, Meta(description="When it was over.")] = None
    result: OperationResult | None = None
    conditions: (
        Annotated[
            list[Condition],
            Meta(
                max_length=4,
                description="Complete or Failed, once it is over (kubectl wait --for=condition=Complete).",
                extra_json_schema=bounds.map_list("type"),
            ),
        ]
        | None
    ) = None


class BrokerGroupOperation(Struct, frozen=True, rename="camel", kw_only=True):
    """One thing that is done once to a broker group. One runs at a time per group, the oldest first."""

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
