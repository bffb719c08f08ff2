"""The controller plane as the rest of the operator sees it: what a broker group is like now, and the few things to ask of it.

The reconcile plane runs in the same process but may not import the controller (they are siblings, and may be two processes one
day); it is handed something that keeps this Protocol. A snapshot is a picture for status, metrics and decisions about
voluntary work. It may be old by a moment, so nothing that grants a role is decided on it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from brokergroup_operator.observe.timeline import FailoverTimeline
    from brokergroup_operator.records.store import GroupKey
    from controller_core.model import BrokerGroupRecord, LiveReplica


class GroupViewError(Exception):
    """Something asked of the controller plane could not be done; the message says why, the type whether to ask again."""


class GroupUnknownError(GroupViewError):
    """The controller plane knows no such group (yet)."""


class SwitchoverRefusedError(GroupViewError):
    """No switchover is possible now (no other member is in sync and alive, or another change is under way)."""


class SwitchoverFailedError(GroupViewError):
    """The switchover was begun and given up; the old master is master still. Ask again later."""


@dataclass(frozen=True, slots=True)
class GroupSnapshot:
    """What the controller plane knows of one group, at one moment."""

    key: GroupKey
    record: BrokerGroupRecord | None
    live: Mapping[int, LiveReplica]
    # The master was told of its role at this epoch, said so, and is alive: writes are served.
    writable: bool
    in_progress: FailoverTimeline | None = None
    last_failover: FailoverTimeline | None = None
    last_switchover: FailoverTimeline | None = None
    # The last master lost was silent and its death could not be confirmed: what it acknowledged since may be lost.
    unfenced: bool = False
    # How often a master that was silent here was left alone because other controller planes heard it.
    spared_on_testimony: int = 0
    # An epoch that brokers report and that is too far above the record to be believed: elections stop until a human accepts it.
    epoch_jump: int | None = None
    heartbeat_age_seconds: Mapping[int, float] = field(default_factory=dict)


class GroupView(Protocol):
    """What the controller plane offers inside the process."""

    def keys(self) -> list[GroupKey]:
        """Every group the plane has met."""
        ...

    def snapshot(self, key: GroupKey) -> GroupSnapshot | None:
        """How the group is now; None for a group the plane has not met."""
        ...

    def subscribe(self, callback: Callable[[GroupKey], None]) -> Callable[[], None]:
        """Be told of every change of a group's snapshot; the call returned ends it. The callback must return at once."""
        ...

    async def reserve_broker_id(self, key: GroupKey, pod_name: str, *, broker_id: int | None = None) -> int:
        """Return the broker id kept for this pod name, reserving the next one durably where it has none.

        A pod carries its id in its name, so the id is known before it is reserved: with `broker_id` this raises
        ``GroupViewError`` unless the id is, or can be, that one.
        """
        ...

    async def switch_master_away(self, key: GroupKey, broker_id: int) -> int | None:
        """Make another member master if this one is; returns the master afterwards. See ``GroupViewError``."""
        ...
