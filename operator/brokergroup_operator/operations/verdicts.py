"""What the evaluation may say of one operation, and what is to be done outside for it: values."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from brokergroup_operator.observe.timeline import FailoverTimeline


@dataclass(frozen=True, kw_only=True)
class Figures:
    """The measured result: ``OperationResult`` without its message."""

    from_broker_id: int | None = None
    to_broker_id: int | None = None
    epoch: int | None = None
    milliseconds: int | None = None
    phases: Mapping[str, int] = field(default_factory=dict)


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
    """Ask the controller plane for a switchover."""

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
class Wait:
    """The operation stays Pending; `look_again_seconds` when there is a time to wait for."""

    message: str
    look_again_seconds: float | None = None


@dataclass(frozen=True, kw_only=True)
class Reject:
    """The operation is not begun, or the controller plane refused to begin it: nothing was done."""

    message: str


@dataclass(frozen=True, kw_only=True)
class Start:
    """The operation becomes Running, which is written before anything is done. `steps` is what will be done, for a dry run."""

    message: str
    steps: tuple[str, ...]
    figures: Figures = NO_FIGURES


@dataclass(frozen=True, kw_only=True)
class GoOn:
    """The operation runs on. An effect is done after the status was written."""

    message: str
    effect: Effect | None = None
    # None: what the status holds is kept.
    figures: Figures | None = None


@dataclass(frozen=True, kw_only=True)
class Done:
    """The operation succeeded. `plan` is of a dry run."""

    message: str
    figures: Figures = NO_FIGURES
    plan: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Fail:
    """The operation was begun and failed."""

    message: str
    figures: Figures = NO_FIGURES


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
