"""What `spec.durability` and `spec.replication` mean: how many replicas a write needs, and which members are async learners.

| durability | broker settings                              | promise                                                     |
|------------|----------------------------------------------|-------------------------------------------------------------|
| Strict     | all-ack in the SyncStateSet, at least 2 in it | every SEND_OK is in every later master's log, also after    |
|            |                                              | losing any one disk                                         |
| Available  | all-ack in the SyncStateSet, at least 1 in it | the same, except for the loss of the only in-sync disk      |
| Fast       | acknowledged by the master alone             | none across a failover                                      |

A learner copies the log and is never in the SyncStateSet, so no write waits for it and it is never master. The members with the
lowest broker ids vote: while a member is missing, the group lacks a learner, not a voter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec

from brokergroup_operator.api import names, versions
from brokergroup_operator.api.brokergroup import Implementation
from brokergroup_operator.api.brokergroup_status import Durability
from brokergroup_operator.api.failover_fields import UncleanElection

if TYPE_CHECKING:
    from collections.abc import Iterable

    from brokergroup_operator.api.bounds import JsonObject
    from brokergroup_operator.api.brokergroup import BrokerGroup, BrokerGroupSpec


REPLICAS_FOR_STRICT_BY_DEFAULT: Final = 3
# What one replica acknowledged is only in the longest log.
NOT_WITH_FAST: Final = "preferred-zone"


@dataclass(frozen=True, kw_only=True)
class AcknowledgementRule:
    """When a broker answers SEND_OK."""

    all_acknowledge: bool
    # A write is refused while the SyncStateSet is smaller. Without all_acknowledge this many disks hold a message before SEND_OK.
    minimum_in_sync: int
    # How long a slave may lag before the master drops it from the set; while it lags, all-ack writes wait for it.
    slave_not_caught_up_milliseconds: int

    @property
    def shrink_floor(self) -> bool:
        """Whether the SyncStateSet may not shrink below the minimum: each acknowledged message is on that many disks (rule 1)."""
        return self.all_acknowledge and self.minimum_in_sync > 1


RULES: Final = {
    Durability.STRICT: AcknowledgementRule(
        all_acknowledge=True, minimum_in_sync=2, slave_not_caught_up_milliseconds=3000
    ),
    Durability.AVAILABLE: AcknowledgementRule(
        all_acknowledge=True, minimum_in_sync=1, slave_not_caught_up_milliseconds=3000
    ),
    Durability.FAST: AcknowledgementRule(
        all_acknowledge=False, minimum_in_sync=1, slave_not_caught_up_milliseconds=15_000
    ),
}


def effective_durability(spec: BrokerGroupSpec) -> Durability:
    """Return the spec's durability; of a group whose spec has none yet, the one for its number of voting replicas."""
    if spec.durability is not None:
        return spec.durability
    return Durability.STRICT if voting_replicas(spec) >= REPLICAS_FOR_STRICT_BY_DEFAULT else Durability.AVAILABLE


def with_durability(group: BrokerGroup) -> BrokerGroup:
    """Return the group with the durability in force in its spec, which a later change of replicas leaves as it is (ADR 17).

    Until the operator has written it there, the status says what the group has promised so far; a new group has no status.
    """
    spec = group.spec
    promised = group.status.durability if group.status is not None else None
    if spec.durability is not None:
        return group
    durability = promised if promised is not None and _allows(spec, promised) else effective_durability(spec)
    return msgspec.structs.replace(group, spec=msgspec.structs.replace(spec, durability=durability))


def _allows(spec: BrokerGroupSpec, durability: Durability) -> bool:
    """Whether the API server takes this durability beside the other fields (the rules of `BrokerGroupSpec`)."""
    minimum = spec.replication.min_in_sync_replicas
    match durability:
        case Durability.STRICT:
            is_unclean = spec.failover.unclean_election is UncleanElection.ALLOWED
            return voting_replicas(spec) > 1 and not is_unclean and (minimum is None or minimum > 1)
        case Durability.FAST:
            return spec.failover.election_policy != NOT_WITH_FAST
        case _:
            return True


def acknowledgement_rule(spec: BrokerGroupSpec) -> AcknowledgementRule:
    """Return the durability's rule, overridden by spec.replication."""
    rule, wish = RULES[effective_durability(spec)], spec.replication
    lag_seconds = wish.slave_not_catch_up_seconds
    return AcknowledgementRule(
        all_acknowledge=rule.all_acknowledge,
        minimum_in_sync=wish.min_in_sync_replicas or rule.minimum_in_sync,
        slave_not_caught_up_milliseconds=rule.slave_not_caught_up_milliseconds
        if lag_seconds is None
        else lag_seconds * 1000,
    )


def masters_shrink_first(spec: BrokerGroupSpec, *, running: str | None) -> bool:
    """Whether a master of this group may have applied a smaller SyncStateSet before it asks for it (apache/rocketmq #9897).

    Where the version is not known, because an image or the operator's own version runs, it may. `running` is `status.version`, None
    where the status is lost too: on the way back to an older version the pods of the newer one still shrink first.
    """
    if spec.implementation is Implementation.PYTHON:
        return False
    if spec.version is None or running is None:
        return True
    newest = max(versions.numbers(spec.version), versions.numbers(running))
    return newest > versions.LAST_TO_ASK_FIRST


# The value of ANNOTATION_LEARNER; a voter's pod does not have it.
LEARNER: Final = "true"


def voting_replicas(spec: BrokerGroupSpec) -> int:
    """Return how many members vote, that is, may be in the SyncStateSet and master."""
    return max(1, spec.replicas - spec.replication.learners)


def beyond_voters(broker_ids: Iterable[int], *, replicas: int, learners: int) -> frozenset[int]:
    """Return which of these members are to be learners."""
    return frozenset(sorted(broker_ids)[max(1, replicas - learners) :]) if learners else frozenset()


def runs_as_learner(pod: JsonObject | None) -> bool:
    """Whether the pod's process was started as a learner. That holds until the next process, whatever the spec says."""
    annotations = ((pod or {}).get("metadata") or {}).get("annotations") or {}
    return bool(annotations.get(names.ANNOTATION_LEARNER) == LEARNER)
