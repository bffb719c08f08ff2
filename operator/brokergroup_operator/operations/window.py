"""When an operation may be begun: not before a time, and not after another. Pure.

Without an end an operation would begin whenever the operator is back, at noon instead of at night. So a window ends deadlineSeconds
after notBefore where no notAfter is given, and what was not begun in it never is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from brokergroup_operator.api.brokergroup_operation import DryRun
from brokergroup_operator.api.times import MomentError, moment
from brokergroup_operator.operations.scene import rfc3339

if TYPE_CHECKING:
    from brokergroup_operator.api.brokergroup_operation import SwitchoverRequest
    from brokergroup_operator.operations.scene import Operation


@dataclass(frozen=True, kw_only=True)
class Window:
    """In seconds since 1970; None: no such end. `wrong` says why it is no window."""

    begins_seconds: float | None = None
    ends_seconds: float | None = None
    wrong: str = ""

    def early_seconds(self, now_seconds: float) -> float:
        """How long until it begins; 0 or less if it has."""
        return 0.0 if self.begins_seconds is None else self.begins_seconds - now_seconds

    def left_seconds(self, now_seconds: float) -> float | None:
        """How long it lasts; None where it has no end."""
        return None if self.ends_seconds is None else self.ends_seconds - now_seconds

    def why_never(self, now_seconds: float, *, waited_for: str = "") -> str:
        """Why the operation can't begin any more; empty while it may. `waited_for`: what its status said last."""
        if self.wrong or self.ends_seconds is None or now_seconds <= self.ends_seconds:
            return self.wrong
        until = rfc3339(self.ends_seconds)
        window = f"until {until}" if self.begins_seconds is None else f"{rfc3339(self.begins_seconds)} to {until}"
        why = f"not begun in its window, {window}: it is {rfc3339(now_seconds)}"
        return f"{why}; last: {waited_for}" if waited_for else why


def window_of(operation: Operation) -> Window:
    """The window that the spec states."""
    request = operation.asked.spec.switchover
    return Window() if request is None else _window(request)


def too_early_seconds(operation: Operation, now_seconds: float) -> float:
    """How long until the operation may begin; a dry run begins at once."""
    if operation.asked.spec.dry_run is DryRun.ALL:
        return 0.0
    return window_of(operation).early_seconds(now_seconds)


def _window(request: SwitchoverRequest) -> Window:
    try:
        begins = _seconds("notBefore", request.not_before)
        ends = _seconds("notAfter", request.not_after)
    except MomentError as error:
        return Window(wrong=str(error))
    if begins is not None and ends is not None and ends <= begins:
        wrong = f"spec.switchover.notAfter {rfc3339(ends)}: expected a time after notBefore {rfc3339(begins)}"
        return Window(wrong=wrong)
    if begins is not None and ends is None:
        ends = begins + request.deadline_seconds
    return Window(begins_seconds=begins, ends_seconds=ends)


def _seconds(field: str, text: str | None) -> float | None:
    try:
        return None if text is None else moment(text).timestamp()
    except MomentError as error:
        raise MomentError(f"spec.switchover.{field} {error}") from error
