"""What one pass does about operations: a list of values, in order. `apply.py` carries them out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from brokergroup_operator.api.brokergroup_operation import OperationPhase

if TYPE_CHECKING:
    from brokergroup_operator.api.brokergroup_operation import OperationStatus
    from brokergroup_operator.operations.scene import Operation
    from brokergroup_operator.operations.verdicts import Effect


@dataclass(frozen=True, kw_only=True)
class Note:
    """A Kubernetes Event about the group, once the step before it is durable."""

    reason: str
    message: str
    warning: bool = False


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
    """Delete the finished operation of this uid."""

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
