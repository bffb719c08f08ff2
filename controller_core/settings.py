"""What the owner of a group wants of the controller: the policy's knobs, passed in with every step."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerSettings:
    """The defaults are the Java controller's behaviour.

    `shrink_floor` is safety rule 1, on under `Strict`: an AlterSyncStateSet that drops members and leaves fewer than
    `min_in_sync_replicas` is refused, because a Java master acknowledges what waits with the copies that are left.
    `never_elect` are the async learners, which the wire does not tell apart (issue 10013). `election_priorities` overrides what
    the heartbeats say; lower wins, and only among replicas with equal data.
    """

    unclean_election_allowed: bool = False
    shrink_floor: bool = False
    min_in_sync_replicas: int = 1
    never_elect: frozenset[int] = frozenset()
    election_priorities: Mapping[int, int] = field(default_factory=dict)
