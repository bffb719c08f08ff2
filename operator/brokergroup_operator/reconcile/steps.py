"""One voluntary step: what is done next to a group that works. At most one is taken in a pass, and none while another is under way.

Repairs (a missing pod, a drifted Service) are not steps: they stop no member.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from brokergroup_operator.observe.timeline import Cause

if TYPE_CHECKING:
    from brokergroup_operator.api.brokergroup_status import Reason
    from brokergroup_operator.reconcile.identity import Member


class Verb(StrEnum):
    """What a step does."""

    SWITCH = "switch"  # mastership goes from `member` to another
    REPLACE = "replace"  # the pod of `member` is deleted; the next pass makes it anew on the same claim
    REHEARSE = "rehearse"  # the API is asked once more for the next pod of `member`, and nothing is stopped for it
    MARK = "mark"  # the claim of `member` says from now on that its member leaves
    STOP = "stop"  # the pod of `member` is deleted and does not come back
    DROP_VOLUME = "drop volume"  # the claim of `member` is deleted, with its data
    FORGET = "forget"  # the id of `member` is cleaned from the record
    WAIT = "wait"  # something begun is not over yet, or it is a person's turn
    REFUSE = "refuse"  # wanted by the spec, and not possible now


ACTING = frozenset({Verb.SWITCH, Verb.REPLACE, Verb.REHEARSE, Verb.MARK, Verb.STOP, Verb.DROP_VOLUME, Verb.FORGET})


@dataclass(frozen=True, kw_only=True)
class Step:
    """A verb, its member, and why. `reason` is what the conditions show; `to_broker_id` None lets the controller choose."""

    verb: Verb
    reason: Reason
    why: str
    member: Member | None = None
    to_broker_id: int | None = None
    # Of a switchover: its cause in the incident log.
    cause: Cause = Cause.PLANNED_SWITCHOVER
    # What is wrong with a member whose process is replaced for it: its Event is a warning of its own.
    amiss: Reason | None = None

    @property
    def acts(self) -> bool:
        """Whether anything is done."""
        return self.verb in ACTING
