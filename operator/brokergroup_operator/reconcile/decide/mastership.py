"""Whether mastership should move although nothing is broken: off a node that is being drained, away from a member barred from
it, or to the preferred master. Pure.

A disruption budget keeps a master from being evicted (`disruption.py`); so when its node is cordoned, or marked by an
autoscaler, mastership moves to a member on another node first, and the pod, a slave now, may then be evicted. A plain
SIGTERM of a Java master would leave the group without a master for about 9 s.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from brokergroup_operator.api.brokergroup_status import ConditionStatus, Reason
from brokergroup_operator.observe.timeline import Cause
from brokergroup_operator.reconcile.decide.failover_safe import candidates, is_barred
from brokergroup_operator.reconcile.see import observed
from brokergroup_operator.reconcile.see.learners import never_masters
from brokergroup_operator.reconcile.steps import Step, Verb

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from brokergroup_operator.reconcile.see.observed import Observed
    from brokergroup_operator.reconcile.see.standing import Standing
    from brokergroup_operator.reconcile.verdict import Verdict


# Why a group is not FailoverSafe although its master serves, and a member that has caught up with it may take over.
SHORT_OF_CANDIDATES: Final = frozenset(
    {Reason.NOT_ENOUGH_CANDIDATES, Reason.METADATA_DIVERGED, Reason.MEMBERS_NOT_LINKED}
)


def mastership_step(
    seen: Observed, standings: Mapping[int, Standing], *, at_rest: Verdict, updating: Collection[int] = ()
) -> Step | None:
    """Return the step that moves mastership, or that refuses with the reason; None where the right member is master.

    The preferred member gets it only after its own update: else update and preference would move it to and fro without end.
    `at_rest`: FailoverSafe, while no change of master is under way. `updating`: the ids whose pods are still to be replaced.
    """
    safe = at_rest.status is ConditionStatus.TRUE
    master = next((standing for standing in standings.values() if standing.is_master), None)
    if master is None or seen.record is None or seen.snapshot is None:
        return None
    learners = never_masters(seen)
    able = [
        broker_id
        for broker_id in candidates(seen.group.spec, seen.record, seen.snapshot, away=learners)
        if broker_id in standings and standings[broker_id].in_sync and not _on_draining_node(seen, standings[broker_id])
    ]
    if _on_draining_node(seen, master):
        why = f"the node of master {master.member.pod} is being drained"
        if not able or not (safe or _may_leave_unsafe(seen, at_rest)):
            return Step(
                verb=Verb.REFUSE,
                reason=Reason.NOT_ENOUGH_CANDIDATES,
                why=f"{why}, and no member elsewhere can take over",
            )
        return replace(_move(master, able[0], why), cause=Cause.DRAIN)
    updated = [broker_id for broker_id in able if broker_id not in updating]
    if safe and updated and is_barred(seen.group.spec, seen.snapshot, master.member.broker_id):
        return _move(master, updated[0], f"{master.member.pod} has priority 0, which bars it from mastership")
    preferred = seen.group.spec.failover.preferred_master
    if safe and preferred in updated:
        return _move(master, preferred, f"broker {preferred} is preferred")
    return _refused(preferred) if preferred is not None and preferred in learners else None


def _may_leave_unsafe(seen: Observed, at_rest: Verdict) -> bool:
    """Whether the group may lose its spare, but not its master: then one member elsewhere is enough to leave a drained node for.

    kubectl drain evicts a slave of the same node in the moment it cordons. A slave that may come back to that node only would
    otherwise keep the master there, with too few candidates, until the node is switched off.
    """
    running = seen.snapshot is not None and seen.snapshot.in_progress is not None
    return not running and at_rest.reason in SHORT_OF_CANDIDATES


def _refused(preferred: int) -> Step:
    why = (
        f"spec.failover.preferredMaster is broker {preferred}, an async learner (spec.replication.learners: those with the highest"
        " ids), which is never master: name another one"
    )
    return Step(verb=Verb.REFUSE, reason=Reason.INVALID_SPEC, why=why)


def _move(master: Standing, to_broker_id: int | None, why: str) -> Step:
    return Step(verb=Verb.SWITCH, reason=Reason.MOVING_MASTER, why=why, member=master.member, to_broker_id=to_broker_id)


def _on_draining_node(seen: Observed, standing: Standing) -> bool:
    """False for all where nodes can't be read: then only the pod's preStop hook hands the role over."""
    name = observed.node_of(seen.pods.get(standing.member.pod))
    return name in seen.nodes and observed.is_draining(seen.nodes[name])
