"""What the evaluation says of one operation, and what a pass does about all of them: values, which `runner.py` carries out."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, ClassVar, Self

from brokergroup_operator.api.brokergroup_operation import OperationPhase

if TYPE_CHECKING:
    from collections.abc import Mapping

    from brokergroup_operator.api.brokergroup_operation import OperationResult, OperationStatus
    from brokergroup_operator.observe.timeline import FailoverTimeline
    from brokergroup_operator.reconcile.plan import Note
    from brokergroup_operator.reconcile.see.observed import Operation


@dataclass(frozen=True, kw_only=True)
class Figures:
    """The measured result: ``OperationResult`` without its message."""

    from_broker_id: int | None = None
    to_broker_id: int | None = None
    epoch: int | None = None
    milliseconds: int | None = None
    phases: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def so_far(cls, result: OperationResult) -> Self:
        """As an earlier pass wrote them down."""
        return cls(**{one.name: getattr(result, one.name) for one in fields(cls)})


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


@dataclass(frozen=True, kw_only=True)
class SwitchMaster:
    from_broker_id: int
    to_broker_id: int | None
    deadline_seconds: float


@dataclass(frozen=True, kw_only=True)
class ElectUnclean:
    """Ask the controller plane to elect this broker, whatever it lacks."""

    to_broker_id: int


@dataclass(frozen=True, kw_only=True)
class KillPod:
    """Delete this very pod without grace: its process dies as in a crash."""

    name: str
    uid: str


Effect = SwitchMaster | ElectUnclean | KillPod


@dataclass(frozen=True, kw_only=True)
class _Said:
    message: str
    figures: Figures = NO_FIGURES


@dataclass(frozen=True, kw_only=True)
class Wait(_Said):
    """The operation stays Pending; `look_again_seconds` when there is a time to wait for."""

    phase: ClassVar = OperationPhase.PENDING
    look_again_seconds: float | None = None


@dataclass(frozen=True, kw_only=True)
class Reject(_Said):
    """The operation is not begun, or the controller plane refused to begin it: nothing was done."""

    phase: ClassVar = OperationPhase.REJECTED


@dataclass(frozen=True, kw_only=True)
class Start(_Said):
    """The operation becomes Running, which is written before anything is done. `steps` is what will be done, for a dry run."""

    phase: ClassVar = OperationPhase.RUNNING
    steps: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class GoOn:
    """The operation runs on. An effect is done after the status was written. Without figures, those of the status are kept."""

    phase: ClassVar = OperationPhase.RUNNING
    message: str
    effect: Effect | None = None
    figures: Figures | None = None


@dataclass(frozen=True, kw_only=True)
class Done(_Said):
    """The operation succeeded. `plan` is of a dry run."""

    phase: ClassVar = OperationPhase.SUCCEEDED
    plan: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Fail(_Said):
    phase: ClassVar = OperationPhase.FAILED


Beginning = Wait | Reject | Start | Done
Judgement = GoOn | Reject | Done | Fail
Verdict = Wait | Reject | Start | GoOn | Done | Fail


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The outcome so far of a request of this process to the controller plane. Lost with the process, and then not needed."""

    running: bool = False
    figures: Figures | None = None
    refused: str = ""
    failed: str = ""


NOTHING_ASKED = Outcome()


@dataclass(frozen=True, kw_only=True)
class Adopt:
    """Make the group the owner of the operation, so that both are collected together, and label it with the group."""

    operation: Operation
    group_uid: str


@dataclass(frozen=True, kw_only=True)
class WriteStatus:
    """Compare-and-set of the status: of two operators that decide at once, one gets a conflict."""

    operation: Operation
    status: OperationStatus
    note: Note | None = None


@dataclass(frozen=True, kw_only=True)
class DoEffect:
    """The operation's effect; always after its status says that it runs."""

    operation: Operation
    effect: Effect


@dataclass(frozen=True, kw_only=True)
class Remove:
    operation: Operation
    reason: str


Step = Adopt | WriteStatus | DoEffect | Remove


@dataclass(frozen=True, kw_only=True)
class PassPlan:
    """The steps, and when to look again (None: when something happens)."""

    steps: tuple[Step, ...] = ()
    look_again_seconds: float | None = None

    @property
    def ends_badly(self) -> bool:
        """Whether an operation is given up or refused for good in this pass."""
        bad = (OperationPhase.FAILED, OperationPhase.REJECTED)
        return any(isinstance(step, WriteStatus) and step.status.phase in bad for step in self.steps)


@dataclass(frozen=True, kw_only=True)
class OperationSettings:
    api_timeout_seconds: float = 10.0
    # Which operator this is: it carries out what is asked of the groups that it reconciles, and of no others (ADR 10).
    operator: str | None = None
    # Finished operations that are kept per group; a TTL of their own may end them sooner.
    history_limit: int = 20
    # While one runs, its end is looked for this often, even without an event.
    running_poll_seconds: float = 1.0
