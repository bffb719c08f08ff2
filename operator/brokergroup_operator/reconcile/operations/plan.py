"""What the evaluation says of one operation, and what a pass does about all of them: values, which `runner.py` carries out."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from msgspec import Struct

from brokergroup_operator.api.brokergroup_operation import OperationPhase, OperationResult

if TYPE_CHECKING:
    from brokergroup_operator.api.backup_fields import Manifest, SnapshotManifest
    from brokergroup_operator.api.brokergroup_operation import OperationStatus, Retirement
    from brokergroup_operator.observe.timeline import FailoverTimeline
    from brokergroup_operator.reconcile.decide.unread import Look
    from brokergroup_operator.reconcile.plan import Note
    from brokergroup_operator.reconcile.see.observed import Operation


class Figures(OperationResult, frozen=True, kw_only=True):
    """The measured result. Its message is the verdict's."""

    message: str = ""


NO_FIGURES = Figures()


def figures_of(timeline: FailoverTimeline) -> Figures:
    """The figures of a finished change of master."""
    duration = timeline.duration_seconds
    return Figures(
        from_broker_id=timeline.from_broker_id,
        to_broker_id=timeline.to_broker_id,
        epoch=timeline.epoch_after,
        milliseconds=None if duration is None else round(duration * 1000),
        phases={name: round(value) for name, value in timeline.milliseconds().items()},
    )


class SwitchMaster(Struct, frozen=True, kw_only=True):
    from_broker_id: int
    to_broker_id: int | None
    deadline_seconds: float


class ElectUnclean(Struct, frozen=True, kw_only=True):
    """Ask the controller plane to elect this broker, whatever it lacks."""

    to_broker_id: int


class KillPod(Struct, frozen=True, kw_only=True):
    """Delete this very pod without grace: its process dies as in a crash."""

    name: str
    uid: str


class TakeBackup(Struct, frozen=True, kw_only=True):
    """Make the pod that copies the store of the stopped pod `pod` to this claim."""

    pod: str
    claim: str
    manifest: Manifest


class HoldPod(Struct, frozen=True, kw_only=True):
    """Put the Backup's finalizer on this very version of a pod, whose finalizers so far are these."""

    name: str
    resource_version: str
    finalizers: list[str]


class TakeSnapshots(Struct, frozen=True, kw_only=True):
    """Make the VolumeSnapshots that are missing: each name with its claim."""

    claims: dict[str, str]
    class_name: str | None
    mark: str


class SealSnapshots(Struct, frozen=True, kw_only=True):
    """Write the manifest on these very VolumeSnapshots, on the first one of it last."""

    manifest: SnapshotManifest
    uids: dict[str, str]


class Compared(Struct, frozen=True, kw_only=True):
    """It had them at this time, in seconds since 1970."""

    at_seconds: float


class DeletePod(Struct, frozen=True, kw_only=True):
    """Delete this very pod."""

    name: str
    uid: str


class CompareMetadata(Struct, frozen=True, kw_only=True):
    """Ask the controller plane whether this member has the master's topics, groups and offsets."""

    broker_id: int


class ReadOffsets(Struct, frozen=True, kw_only=True):
    """Ask how far the group's topics reach and are read, after this pause."""

    pause_seconds: float


class DeleteDrained(Struct, frozen=True, kw_only=True):
    """Ask the same once more, and delete the group with this uid at once if nothing stands against it."""

    group_uid: str


Effect = (
    SwitchMaster
    | ElectUnclean
    | KillPod
    | TakeBackup
    | HoldPod
    | TakeSnapshots
    | SealSnapshots
    | DeletePod
    | CompareMetadata
    | ReadOffsets
    | DeleteDrained
)


class _Said(Struct, frozen=True, kw_only=True):
    message: str
    figures: OperationResult = NO_FIGURES


class Wait(_Said, frozen=True, kw_only=True):
    """The operation stays Pending; `look_again_seconds` when there is a time to wait for."""

    phase: ClassVar = OperationPhase.PENDING
    look_again_seconds: float | None = None


class Reject(_Said, frozen=True, kw_only=True):
    """The operation is not begun, or the controller plane refused to begin it: nothing was done."""

    phase: ClassVar = OperationPhase.REJECTED


class Start(_Said, frozen=True, kw_only=True):
    """The operation becomes Running, which is written before anything is done. `steps` is what will be done, for a dry run."""

    phase: ClassVar = OperationPhase.RUNNING
    steps: tuple[str, ...]
    retirement: Retirement | None = None


class GoOn(Struct, frozen=True, kw_only=True):
    """The operation runs on. An effect is done after the status was written. Without figures, those of the status are kept."""

    phase: ClassVar = OperationPhase.RUNNING
    message: str
    effect: Effect | None = None
    figures: OperationResult | None = None
    # Of a Retire; None: as in the status.
    retirement: Retirement | None = None


class Done(_Said, frozen=True, kw_only=True):
    """The operation succeeded. `plan` is of a dry run."""

    phase: ClassVar = OperationPhase.SUCCEEDED
    plan: tuple[str, ...] = ()


class Fail(_Said, frozen=True, kw_only=True):
    phase: ClassVar = OperationPhase.FAILED


Beginning = Wait | Reject | Start | Done
Judgement = GoOn | Reject | Done | Fail
Verdict = Wait | Reject | Start | GoOn | Done | Fail


class Outcome(Struct, frozen=True, kw_only=True):
    """The outcome so far of a request of this process to the controller plane. Lost with the process, and then not needed."""

    running: bool = False
    figures: OperationResult | None = None
    look: Look | None = None
    compared: Compared | None = None
    refused: str = ""
    failed: str = ""
    # Since when this process has asked for this operation, by its own clock; 0: for as long as it matters.
    asks_since_unix_seconds: float = 0.0


NOTHING_ASKED = Outcome()


class Adopt(Struct, frozen=True, kw_only=True):
    """Make the group the owner of the operation, so that both are collected together, and label it with the group."""

    operation: Operation
    group_uid: str


class WriteStatus(Struct, frozen=True, kw_only=True):
    """Compare-and-set of the status: of two operators that decide at once, one gets a conflict."""

    operation: Operation
    status: OperationStatus
    note: Note | None = None


class DoEffect(Struct, frozen=True, kw_only=True):
    """The operation's effect; always after its status says that it runs."""

    operation: Operation
    effect: Effect


class Remove(Struct, frozen=True, kw_only=True):
    operation: Operation
    reason: str


Step = Adopt | WriteStatus | DoEffect | Remove


class PassPlan(Struct, frozen=True, kw_only=True):
    """The steps, and when to look again (None: when something happens)."""

    steps: tuple[Step, ...] = ()
    look_again_seconds: float | None = None

    @property
    def ends_badly(self) -> bool:
        """Whether an operation is given up or refused for good in this pass."""
        bad = (OperationPhase.FAILED, OperationPhase.REJECTED)
        return any(isinstance(step, WriteStatus) and step.status.phase in bad for step in self.steps)
