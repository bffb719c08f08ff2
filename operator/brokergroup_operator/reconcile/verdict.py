"""A condition without its times: status, reason, message. What the functions that judge a group return."""

from __future__ import annotations

from dataclasses import dataclass

from brokergroup_operator.api.brokergroup_status import ConditionStatus, Reason


@dataclass(frozen=True)
class Verdict:
    """A condition without its times."""

    status: ConditionStatus
    reason: Reason
    message: str


def yes(reason: Reason, message: str) -> Verdict:
    """A condition that is True."""
    return Verdict(ConditionStatus.TRUE, reason, message)


def no(reason: Reason, message: str) -> Verdict:
    """A condition that is False."""
    return Verdict(ConditionStatus.FALSE, reason, message)
