"""The member that a running Backup stops, and keeps stopped until its store is copied, or its snapshots are cut. Pure.

It is stopped as in a rolling update: while the group is FailoverSafe, its other voters are back and nothing else is under way. Only
the pod that the operation names by its uid is stopped, and only within seconds of the comparison with its master. Its pod is made
again when the operation says that it may run (`may_start`), and the copying pod is gone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from brokergroup_operator.api.brokergroup_status import Reason
from brokergroup_operator.api.durability import voting_replicas
from brokergroup_operator.api.names import FINALIZER_BACKUP
from brokergroup_operator.reconcile.plan import Step, Verb
from brokergroup_operator.reconcile.see import observed
from brokergroup_operator.reconcile.see.copies import held_for_backup, may_start

if TYPE_CHECKING:
    from collections.abc import Mapping

    from brokergroup_operator.api.backup_fields import BackupResult
    from brokergroup_operator.reconcile.plan import Verdict
    from brokergroup_operator.reconcile.see.members import Standing
    from brokergroup_operator.reconcile.see.observed import Observed

# What the master gets later, such as a topic, may be missing in the copy.
COMPARED_FOR_SECONDS: Final = 10.0


def backup_step(  # noqa: PLR0911 (one return per reason)
    seen: Observed, known: Mapping[int, Standing], safe: Verdict
) -> Step | None:
    """Return what is done with the member of a running Backup: it is stopped, kept stopped, or not stopped now."""
    held = held_for_backup(seen)
    standing = known.get(held.broker_id) if held is not None else None
    if held is None or standing is None or standing.member.pod != held.pod:
        return None
    member, pod = standing.member, seen.pods.get(held.pod)
    if pod is None or (observed.uid(pod) == held.pod_uid and standing.is_going):
        why = f"Pod {member.pod} is stopped until its store is copied"
        return Step(verb=Verb.WAIT, reason=Reason.BACKING_UP, why=why, member=member)
    if observed.uid(pod) != held.pod_uid or may_start(held) or not is_fresh(held, observed.seconds_of(seen.now)):
        return None  # started again by another, or not to be stopped any more, or to be compared anew
    if held.snapshots and FINALIZER_BACKUP not in observed.finalizers_of(pod):
        return None  # by its absence nothing would be proved; the operation compares and holds it anew
    if standing.is_master and _is_only_voter(seen, standing, known):
        return Step(verb=Verb.STOP, reason=Reason.BACKING_UP, why="its store is copied to a backup", member=member)
    if standing.is_master or not standing.in_sync or not standing.in_set:
        return None  # the operation sees that too, and ends or waits
    if safe.holds and others_away(known, held.broker_id):
        return None  # as above
    if safe.holds:
        return Step(verb=Verb.STOP, reason=Reason.BACKING_UP, why="its store is copied to a backup", member=member)
    why = f"{member.pod} is not stopped for a backup. Not FailoverSafe: {safe.message}"
    return Step(verb=Verb.REFUSE, reason=safe.reason, why=why, member=member)


def others_away(known: Mapping[int, Standing], broker_id: int) -> str:
    """Which other voters are away; empty if none is. FailoverSafe may need one slave alone, and that would be the stopped one."""
    others = [
        one for one in known.values() if one.member.broker_id != broker_id and not (one.is_learner or one.will_learn)
    ]
    return "; ".join(one.told for one in others if not one.is_back)


def is_fresh(held: BackupResult, now_seconds: float) -> bool:
    """Whether the comparison with the master is young enough to stop the member by it: not one of a clock that was ahead."""
    if held.compared_at is None:
        return False
    return 0.0 <= now_seconds - observed.seconds_of(held.compared_at) <= COMPARED_FOR_SECONDS


def _is_only_voter(seen: Observed, master: Standing, known: Mapping[int, Standing]) -> bool:
    """Whether the operation lets the master be stopped, and no other member votes: by the spec, and by what runs."""
    request = seen.operation.spec.backup if seen.operation is not None else None
    if request is None or not request.stop_master or voting_replicas(seen.group.spec) != 1:
        return False
    return all(one is master or (one.is_learner and one.will_learn) for one in known.values())
