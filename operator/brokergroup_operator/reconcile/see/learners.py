"""Which members are learners, of what a pass saw: by the spec, by what runs, and by the record. Pure.

A member becomes a learner by being started as one; its master then drops it from the SyncStateSet, because a learner is never
reported as caught up. Until that is done it counts as a member of the set, and an update may not pass over it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from brokergroup_operator.api.durability import beyond_voters, runs_as_learner
from brokergroup_operator.reconcile.see.members import membership

if TYPE_CHECKING:
    from brokergroup_operator.reconcile.identity import Member
    from brokergroup_operator.reconcile.see.observed import Observed


def wanted_learners(seen: Observed) -> frozenset[int]:
    """Return the ids of the members that the spec makes learners."""
    spec = seen.group.spec
    if not spec.replication.learners:
        return frozenset()
    ids = (member.broker_id for member in membership(seen).members)
    return beyond_voters(ids, replicas=spec.replicas, learners=spec.replication.learners)


def is_learner(seen: Observed, member: Member, wanted: frozenset[int]) -> bool:
    """What its pod was started as, or will be if it has none."""
    pod = seen.pods.get(member.pod)
    return runs_as_learner(pod) if pod is not None else member.broker_id in wanted


def never_masters(seen: Observed) -> frozenset[int]:
    """Return the ids that can't take over: learners, and members that are to become one or to stop being one."""
    running = {one.broker_id for one in membership(seen).members if runs_as_learner(seen.pods.get(one.pod))}
    return wanted_learners(seen) | running


def learning(seen: Observed) -> frozenset[int]:
    """Return the learners that have left the SyncStateSet: nothing rests on these."""
    in_set = seen.record.sync_state_set if seen.record else frozenset[int]()
    wanted = wanted_learners(seen)
    learners = {one.broker_id for one in membership(seen).members if is_learner(seen, one, wanted)}
    return frozenset(learners - in_set)
