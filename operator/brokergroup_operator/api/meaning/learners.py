"""Which members of a group are async learners by its spec: those with the highest broker ids, beyond the ones that vote.

A learner copies the log and is never in the SyncStateSet, so nothing acknowledged waits for it and it is never master. Counted
are the voters, from below: while a member is missing, the group has a learner too few and not a voter too few.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from brokergroup_operator.api import names

if TYPE_CHECKING:
    from collections.abc import Iterable

    from brokergroup_operator.api.bounds import JsonObject
    from brokergroup_operator.api.brokergroup import BrokerGroupSpec

# The value of ANNOTATION_LEARNER; a voter's pod does not have it.
LEARNER: Final = "true"


def voting_replicas(spec: BrokerGroupSpec) -> int:
    """How many members vote: who may be in the SyncStateSet, and master."""
    return max(1, spec.replicas - spec.replication.learners)


def beyond_voters(broker_ids: Iterable[int], *, replicas: int, learners: int) -> frozenset[int]:
    """Who of these members is to be a learner."""
    return frozenset(sorted(broker_ids)[max(1, replicas - learners) :]) if learners else frozenset()


def runs_as_learner(pod: JsonObject | None) -> bool:
    """What its process was started as: that counts until another is, whatever the spec says meanwhile."""
    annotations = ((pod or {}).get("metadata") or {}).get("annotations") or {}
    return bool(annotations.get(names.ANNOTATION_LEARNER) == LEARNER)
