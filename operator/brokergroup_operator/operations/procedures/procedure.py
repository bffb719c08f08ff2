"""What a type of operation is: how it begins, and how its progress is judged. Both pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from brokergroup_operator.operations.verdicts import Figures

if TYPE_CHECKING:
    from collections.abc import Callable

    from brokergroup_operator.operations.scene import Operation, Scene
    from brokergroup_operator.operations.verdicts import Beginning, Judgement, Outcome


@dataclass(frozen=True, kw_only=True)
class Procedure:
    """`begin` is called when its turn has come (and for a dry run at once); `judge` in every pass while it runs."""

    begin: Callable[[Scene, Operation], Beginning]
    judge: Callable[[Scene, Operation, Outcome], Judgement]


def at_start(scene: Scene) -> Figures:
    """The state at the start, as kept in the status: from it a later process judges whether the effect has come."""
    return Figures(from_broker_id=scene.master, epoch=scene.epoch)


def first(*objections: str) -> str:
    """Return the first objection, or the empty text."""
    return next((text for text in objections if text), "")


def seconds_running(scene: Scene, operation: Operation) -> float:
    started = operation.started_seconds
    return 0.0 if started is None else max(0.0, scene.now_seconds - started)
