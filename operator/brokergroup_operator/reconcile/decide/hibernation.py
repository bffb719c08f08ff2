"""Stopping a group in good order, so that it wakes quickly and as it was. Pure.

A group that is deleted becomes quiet as well, and all its pods are stopped at once then (`deletion.py`).

1. The master stops acknowledging (`minInSyncReplicas=99` by request 25, as a switchover does): what is in flight is still
   replicated, and no Java master answers SEND_OK for it when its links break (hole A).
2. The master's pod is stopped, *before* the slaves: no master is left to shrink the SyncStateSet, so every member keeps its
   seat and any volume may be lost meanwhile. No replica is elected either: the controller plane knows that the group is
   going to sleep.
3. The slaves' pods are stopped, all at once.

Waking is nothing special: the pods are missing and are made, the master's first. A live member of the set becomes master.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from brokergroup_operator.api.broker_keys import MINIMUM, QUIET_MINIMUM
from brokergroup_operator.api.brokergroup_status import Reason
from brokergroup_operator.reconcile.render import hot_config
from brokergroup_operator.reconcile.see import observed
from brokergroup_operator.reconcile.see.going_claims import pods_on_going_claims
from brokergroup_operator.reconcile.steps import Step, Verb

if TYPE_CHECKING:
    from collections.abc import Mapping

    from brokergroup_operator.reconcile.see.observed import Observed
    from brokergroup_operator.reconcile.see.standing import Standing

# More than any group has, so that nothing is acknowledged: the same value as a switchover uses.
QUIET: Final = {MINIMUM: QUIET_MINIMUM}


def must_be_quiet(seen: Observed, standings: Mapping[int, Standing]) -> Standing | None:
    """The master that must stop acknowledging before its pod is stopped: the whole group is hibernated or deleted."""
    master = next((standing for standing in standings.values() if standing.is_master), None)
    if master is None or not master.is_live or not master.is_ready or not stops(seen):
        return None
    if pods_on_going_claims(seen) and not observed.being_deleted(seen.group_object):
        return None
    pod = seen.pods[master.member.pod]
    return master if hot_config.changes(pod, QUIET) else None


def stops(seen: Observed) -> bool:
    """Whether the whole group is to stop."""
    return seen.group.spec.maintenance.hibernated or observed.being_deleted(seen.group_object)


def hibernation_steps(seen: Observed, standings: Mapping[int, Standing]) -> list[Step]:
    """Return the pods to stop now; none while the master's pod is still stopping, or while it still acknowledges."""
    if pods_on_going_claims(seen):
        return []  # to sleep would be to lose those disks
    there = [standing for standing in standings.values() if standing.has_pod]
    masters = [standing for standing in there if standing.is_master]
    if must_be_quiet(seen, standings) is not None:
        return []
    return [
        Step(verb=Verb.STOP, reason=Reason.HIBERNATING, why="the group is hibernated", member=standing.member)
        for standing in masters or there
        if not standing.is_going
    ]
