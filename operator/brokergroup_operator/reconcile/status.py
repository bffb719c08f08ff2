"""BrokerGroup.status from what was observed; written only when it differs from what is there."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING

import msgspec

from brokergroup_operator.api import names
from brokergroup_operator.api.annotations import AnnotationError, accepted_epoch
from brokergroup_operator.api.brokergroup_status import (
    BrokerGroupStatus,
    ControllerStatus,
    FailoverStatus,
    MasterStatus,
    MemberRole,
    MemberSeat,
    MemberState,
    MemberStatus,
    SyncStateSetStatus,
)
from brokergroup_operator.api.schema import without_nulls
from brokergroup_operator.reconcile import identity, observed
from brokergroup_operator.reconcile.conditions import all_conditions
from brokergroup_operator.reconcile.durability import effective_durability
from brokergroup_operator.reconcile.plan import Action, WriteStatus
from brokergroup_operator.reconcile.pods import build_pod

if TYPE_CHECKING:
    from collections.abc import Iterator

    from brokergroup_operator.api.bounds import JsonObject
    from brokergroup_operator.observe.timeline import FailoverTimeline
    from brokergroup_operator.reconcile.identity import Member
    from brokergroup_operator.reconcile.members import Membership
    from brokergroup_operator.reconcile.observed import Observed
    from brokergroup_operator.reconcile.settings import ReconcileSettings
    from controller_core.model import BrokerGroupRecord


def status_action(
    seen: Observed, members: Membership, settings: ReconcileSettings, *, now: str, invalid: str = ""
) -> Iterator[Action]:
    """One write if the status would change, none otherwise."""
    status = build_status(seen, members, settings, now=now, invalid=invalid)
    wanted: JsonObject = without_nulls(msgspec.to_builtins(status))
    if _in_order(wanted) != _in_order(seen.group_object.get("status") or {}):
        yield WriteStatus(reason="the status changed", status=wanted)


def _in_order(status: JsonObject) -> JsonObject:
    """Server-side apply leaves the items of keyed lists where they were, so their order says nothing."""
    ordered = dict(status)
    for field, item_key in (("members", "brokerId"), ("conditions", "type")):
        if field in ordered:
            ordered[field] = sorted(ordered[field], key=lambda item, key=item_key: item[key])  # type: ignore[misc]
    return ordered


def build_status(
    seen: Observed, members: Membership, settings: ReconcileSettings, *, now: str, invalid: str = ""
) -> BrokerGroupStatus:
    record = seen.record
    statuses = [_member_status(seen, member) for member in members.members]
    outdated = _outdated_pods(seen, members, settings)
    return BrokerGroupStatus(
        observed_generation=int(observed.metadata(seen.group_object).get("generation", 0)),
        replicas=len(seen.pods),
        ready_replicas=sum(1 for pod in seen.pods.values() if observed.pod_is_ready(pod)),
        in_sync_replicas=len(record.sync_state_set) if record else 0,
        selector=identity.selector_text(identity.selector_labels(seen.group)),
        master=_master(seen, members),
        master_epoch=record.master_epoch if record else 0,
        sync_state_set=SyncStateSetStatus(broker_ids=sorted(record.sync_state_set), epoch=record.sync_state_set_epoch)
        if record
        else None,
        members=statuses,
        last_failover=_last_failover(seen),
        unclean_elections=record.unclean_elections if record else 0,
        controller=_controller(seen, settings),
        durability=effective_durability(seen.group.spec),
        unfenced=seen.snapshot.unfenced if seen.snapshot else False,
        conditions=all_conditions(seen, members, outdated_pods=outdated, invalid=invalid, now=now),
    )


def _outdated_pods(seen: Observed, members: Membership, settings: ReconcileSettings) -> list[str]:
    result = []
    for member in members.members:
        pod = seen.pods.get(member.pod)
        if pod is None or observed.being_deleted(pod):
            continue
        wanted = observed.annotations_of(build_pod(seen.group, member, settings))
        have = observed.annotations_of(pod)
        if any(have.get(name) != wanted[name] for name in (names.ANNOTATION_REVISION, names.ANNOTATION_CONFIG_HASH)):
            result.append(member.pod)
    return result


def _master(seen: Observed, members: Membership) -> MasterStatus | None:
    record = seen.record
    if record is None or (master := record.granted_master_id) is None:
        return None
    pod = next((item.pod for item in members.members if item.broker_id == master), "")
    return MasterStatus(broker_id=master, pod=pod, address=record.address_of(master) or "", epoch=record.master_epoch)


def _member_status(seen: Observed, member: Member) -> MemberStatus:
    record = seen.record
    master = record.granted_master_id if record else None
    return MemberStatus(
        broker_id=member.broker_id,
        pod=member.pod,
        pod_ip=observed.pod_ip(seen.pods.get(member.pod)),
        address=(record.address_of(member.broker_id) if record else None) or "",
        role=MemberRole.MASTER if member.broker_id == master else MemberRole.SLAVE,
        state=member_state(seen, member),
        seat=member_seat(record, member.broker_id),
    )


def member_seat(record: BrokerGroupRecord | None, broker_id: int) -> MemberSeat:
    """See the comments at MemberSeat."""
    if record is None:
        return MemberSeat.NONE
    if broker_id in record.sync_state_set:
        return MemberSeat.IN_SYNC_STATE_SET
    if broker_id in record.eligible:
        return MemberSeat.ELIGIBLE
    return MemberSeat.LOST if broker_id in record.lost_seats else MemberSeat.NONE


def _controller(seen: Observed, settings: ReconcileSettings) -> ControllerStatus:
    try:
        accepted = accepted_epoch(seen.group_object)
    except AnnotationError:
        accepted = None
    return ControllerStatus(
        addresses=list(settings.controller_addresses),
        election_policy=seen.group.spec.failover.election_policy,
        signature=seen.group.spec.security.signature.value,
        epoch_jump=seen.snapshot.epoch_jump if seen.snapshot else None,
        accepted_epoch=accepted,
    )


def member_state(seen: Observed, member: Member) -> MemberState:
    """See the comments at MemberState."""
    record, pod = seen.record, seen.pods.get(member.pod)
    replica = record.replicas.get(member.broker_id) if record else None
    claimed = replica is not None and replica.claimed
    alive = seen.snapshot is not None and member.broker_id in seen.snapshot.live
    if not alive and (pod is None or observed.being_deleted(pod) or observed.pod_phase(pod) != "Running"):
        return MemberState.LOST if claimed else MemberState.PENDING
    if not claimed:
        return MemberState.REGISTERING
    if record is not None and member.broker_id in record.sync_state_set:
        return MemberState.IN_SYNC if alive else MemberState.OUT_OF_SYNC
    return MemberState.CATCHING_UP


def _last_failover(seen: Observed) -> FailoverStatus | None:
    """The controller plane's last one; after a restart of the operator, what the status has said since."""
    timeline = seen.snapshot.last_failover if seen.snapshot else None
    if timeline is not None:
        return failover_status(timeline)
    shown = (seen.group_object.get("status") or {}).get("lastFailover")
    return msgspec.convert(shown, FailoverStatus) if shown else None


def failover_status(timeline: FailoverTimeline) -> FailoverStatus:
    phases = {name: round(value) for name, value in timeline.milliseconds().items()}
    duration = timeline.duration_seconds
    return FailoverStatus(
        trigger=timeline.trigger.value,
        from_broker_id=timeline.from_broker_id or 0,
        to_broker_id=timeline.to_broker_id or 0,
        epoch=timeline.epoch_after if timeline.epoch_after is not None else timeline.epoch_before,
        started_at=rfc3339(timeline.started_at_unix_seconds),
        duration_milliseconds=max(phases.values(), default=0) if duration is None else round(duration * 1000),
        phases=phases,
    )


def rfc3339(unix_seconds: float) -> str:
    """To the second, as metav1.Time."""
    moment = dt.datetime.fromtimestamp(unix_seconds, tz=dt.UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
