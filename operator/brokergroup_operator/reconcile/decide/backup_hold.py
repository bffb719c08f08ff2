"""The member that a running Backup stops, and keeps stopped until its store is copied. Pure.

It is stopped as in a rolling update: while the group is FailoverSafe and nothing else is under way. Its pod is made again when the
operation says that the copy is whole, or given up, and the copying pod is gone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from brokergroup_operator.api.brokergroup_status import Reason
from brokergroup_operator.reconcile.plan import Step, Verb
from brokergroup_operator.reconcile.see.copies import held_for_backup

if TYPE_CHECKING:
    from collections.abc import Mapping

    from brokergroup_operator.reconcile.plan import Verdict
    from brokergroup_operator.reconcile.see.members import Standing
    from brokergroup_operator.reconcile.see.observed import Observed


def backup_step(seen: Observed, known: Mapping[int, Standing], safe: Verdict) -> Step | None:
    """Return what is done with the member of a running Backup: it is stopped, kept stopped, or not stopped now."""
    held = held_for_backup(seen)
    standing = known.get(held.broker_id) if held is not None else None
    if standing is None:
        return None
    member = standing.member
    if not standing.has_pod or standing.is_going:
        why = f"Pod {member.pod} is stopped until its store is copied"
        return Step(verb=Verb.WAIT, reason=Reason.BACKING_UP, why=why, member=member)
    if safe.holds or _may_stop_master(seen, standing):
        return Step(verb=Verb.STOP, reason=Reason.BACKING_UP, why="its store is copied to a backup", member=member)
    why = f"{member.pod} is not stopped for a backup. Not FailoverSafe: {safe.message}"
    return Step(verb=Verb.REFUSE, reason=safe.reason, why=why, member=member)


def _may_stop_master(seen: Observed, standing: Standing) -> bool:
    """Whether the operation says that the only voting member may be stopped; its begin has checked that there is no other."""
    request = seen.operation.spec.backup if seen.operation is not None else None
    return request is not None and request.stop_master and standing.is_master
