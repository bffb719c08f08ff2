"""What the owner of a group wants of the controller: the policy's knobs, passed in with every step."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

MOST_DATA = "most-data"
PREFERRED_ZONE = "preferred-zone"
ELECTION_POLICIES = (MOST_DATA, PREFERRED_ZONE)
"""What `election_policy` may be; `policies.py` says what each does."""

NEVER_ELECT_PRIORITY = 0
"""In `election_priorities`: this replica never becomes master. (On the wire 0 is an ordinary, and the best, priority.)"""


class UnknownPolicyError(ValueError):
    """There is no election policy of that name: the message lists those there are."""


class Adoption(Enum):
    """Which callers may bring a broker id that the record does not know."""

    NEVER = "Never"
    KNOWN_REQUESTERS = "KnownRequesters"
    ANYBODY = "Anybody"


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerSettings:
    """The defaults are the Java controller's behaviour.

    `shrink_floor`, `masters_shrink_first`, `min_in_sync_replicas`: safety rule 1 (`sync_state.py`). `floor_kept`: the brokers
    are known to keep that minimum; until then no replica becomes eligible. `never_elect` are the learners (issue 10013).
    `election_priorities` overrides the heartbeats' priorities among replicas with equal data; lower wins, 0: never. `zones`,
    `preferred_zones` and `zone_lag_bytes` are for the policy `preferred-zone` (`policies.py`). `expected_replicas` must have
    been heard before a first election on data. An epoch more than `max_epoch_jump` above the record's is followed only up to
    `accepted_epoch`, which a person sets (rule 3). Marks rise in steps of `held_bucket_bytes` (rule 2).
    """

    unclean_election_allowed: bool = False
    shrink_floor: bool = False
    masters_shrink_first: bool = False
    min_in_sync_replicas: int = 1
    floor_kept: bool = True
    never_elect: frozenset[int] = frozenset()
    election_priorities: Mapping[int, int] = field(default_factory=dict)
    election_policy: str = MOST_DATA
    zones: Mapping[int, str] = field(default_factory=dict)
    preferred_zones: tuple[str, ...] = ()
    zone_lag_bytes: int = 16 * 1024 * 1024
    expected_replicas: int = 0
    accepted_epoch: int = 0
    max_epoch_jump: int = 10_000
    adoption: Adoption = Adoption.KNOWN_REQUESTERS
    held_bucket_bytes: int = 64 * 1024 * 1024

    def __post_init__(self) -> None:
        """Raise `UnknownPolicyError` for an unknown policy here, not in the middle of a failover."""
        if self.election_policy not in ELECTION_POLICIES:
            expected = ", ".join(ELECTION_POLICIES)
            raise UnknownPolicyError(f"election policy is {self.election_policy!r}, expected one of {expected}")

    def may_be_master(self, broker_id: int) -> bool:
        """Whether this replica may be elected at all: not a learner, and not at priority 0."""
        return broker_id not in self.never_elect and self.election_priorities.get(broker_id) != NEVER_ELECT_PRIORITY
