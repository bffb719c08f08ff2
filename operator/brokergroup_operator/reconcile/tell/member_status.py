"""What BrokerGroup.status says of each member. Pure.

Ages stand as points in time, and a point in time is kept while what it dates is the same: else every pass would write the status.
"""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

from brokergroup_operator.api import names
from brokergroup_operator.api.brokergroup_status import (
    AddressSource,
    MemberAddress,
    MemberRole,
    MemberSeat,
    MemberState,
    MemberStatus,
)
from brokergroup_operator.observe.group_view import AddressSource as Source
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
_SOURCES = {
    Source.POD: AddressSource.POD_WATCH,
    Source.REGISTRATION: AddressSource.REGISTRATION,
    Source.HEARTBEAT: AddressSource.HEARTBEAT,
}


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
        addresses=_addresses(seen, member) or None,
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


def _addresses(seen: Observed, member: Member) -> list[MemberAddress]:
    """The addresses, in the order of their sources. Those of the pod's own status and of the record are always shown."""
    facts = seen.snapshot.member_addresses.get(member.broker_id, ()) if seen.snapshot else ()
    ages = {_SOURCES[fact.source]: (fact.address, fact.age_seconds) for fact in reversed(facts)}
    if (ip := observed.pod_ip(seen.pods.get(member.pod))) and AddressSource.POD_WATCH not in ages:
        ages[AddressSource.POD_WATCH] = (ip, 0.0)
    registered = seen.record.address_of(member.broker_id) if seen.record else None
    if registered and AddressSource.REGISTRATION not in ages:
        ages[AddressSource.REGISTRATION] = (registered, 0.0)
    shown = _shown_before(seen, member)
    return [
        MemberAddress(source=source, address=address, since=shown.get((source.value, address)) or _ago(seen.now, age))
        for source in AddressSource
        if source in ages
        for address, age in [ages[source]]
    ]


def _shown_before(seen: Observed, member: Member) -> dict[tuple[str, str], str]:
    status: dict[str, Any] = seen.group_object.get("status") or {}
    mine: dict[str, Any] = next(
        (one for one in status.get("members") or [] if one.get("brokerId") == member.broker_id), {}
    )
    return {(one["source"], one["address"]): one["since"] for one in mine.get("addresses") or []}


def _ago(now: str, age_seconds: float) -> str:
    moment = dt.datetime.fromisoformat(now) - dt.timedelta(seconds=age_seconds)
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


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
