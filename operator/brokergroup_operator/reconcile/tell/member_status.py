"""What BrokerGroup.status says of each member. Pure.

Ages stand as points in time, and a point in time is kept while what it dates is the same: else every pass would write the status.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from brokergroup_operator.api import names
from brokergroup_operator.api.brokergroup_status import (
    MemberRole,
    MemberSeat,
    MemberState,
    MemberStatus,
)
from brokergroup_operator.reconcile.decide.silent_members import replacements_after
from brokergroup_operator.reconcile.see import observed
from brokergroup_operator.reconcile.see.learners import wanted_learners
from brokergroup_operator.reconcile.see.standing import standing

if TYPE_CHECKING:
    from brokergroup_operator.reconcile.decide.course import Course
    from brokergroup_operator.reconcile.identity import Member
    from brokergroup_operator.reconcile.see.observed import Observed
    from controller_core.model import BrokerGroupRecord

MEBIBYTE = 2**20


def member_status(seen: Observed, course: Course, member: Member, *, revision: str) -> MemberStatus:
    """`revision`: what the pod runs, or the empty text for a pod that is outdated: its own mark then says what it runs."""
    record, how = seen.record, course.standings[member.broker_id]
    replaced = replacements_after(seen, course, member)
    master = record.granted_master_id if record else None
    pod = seen.pods.get(member.pod)
    node = observed.node_of(pod)
    return MemberStatus(
        broker_id=member.broker_id,
        pod=member.pod,
        pod_uid=observed.uid(pod) if pod is not None else None,
        node=node or None,
        zone=observed.labels_of(seen.nodes.get(node) or {}).get(names.LABEL_ZONE),
        pod_ip=observed.pod_ip(pod),
        address=(record.address_of(member.broker_id) if record else None) or "",
        claim=member.pod if member.pod in seen.claims else None,
        revision=(revision or observed.annotations_of(pod).get(names.ANNOTATION_REVISION)) if pod else None,
        lag_bytes=_lag_bytes(seen, member),
        role=MemberRole.MASTER if member.broker_id == master else MemberRole.SLAVE,
        state=how.state,
        message=None if how.in_sync or how.state is MemberState.STOPPED else how.fact,
        replacements=replaced.count if replaced else None,
        replaced_at=replaced.at if replaced else None,
        seat=member_seat(record, member.broker_id),
    )


def _lag_bytes(seen: Observed, member: Member) -> int | None:
    """Behind the master, rounded down to a power of two so that a busy group does not write its status all the time.

    Below a mebibyte nothing is shown: heartbeats of different moments differ by that much.
    """
    record, live = seen.record, seen.snapshot.live if seen.snapshot else {}
    master = live.get(record.granted_master_id or 0) if record else None
    mine = live.get(member.broker_id)
    if master is None or mine is None or min(master.max_offset, mine.max_offset) < 0:
        return None
    behind = max(0, master.max_offset - mine.max_offset)
    return 0 if behind < MEBIBYTE else 1 << (behind.bit_length() - 1)


def member_seat(record: BrokerGroupRecord | None, broker_id: int) -> MemberSeat:
    """See the comments at MemberSeat."""
    if record is None:
        return MemberSeat.NONE
    if broker_id in record.sync_state_set:
        return MemberSeat.IN_SYNC_STATE_SET
    if broker_id in record.eligible:
        return MemberSeat.ELIGIBLE
    return MemberSeat.LOST if broker_id in record.lost_seats else MemberSeat.NONE


def member_state(seen: Observed, member: Member) -> MemberState:
    """See the comments at MemberState."""
    return standing(seen, member, wanted_learners(seen)).state
