"""BrokerGroup.status from what was observed; written only when it differs from what is there.

Ages stand as points in time, and a point in time is kept while what it dates is the same: else every pass would write the status.
"""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING

import msgspec

from brokergroup_operator.api import brokergroup_status as api
from brokergroup_operator.api import names
from brokergroup_operator.api.definitions.schema import without_nulls
from brokergroup_operator.api.durability import effective_durability
from brokergroup_operator.kube.pods import node_of
from brokergroup_operator.reconcile import identity
from brokergroup_operator.reconcile.decide.rollout import outdated_members
from brokergroup_operator.reconcile.decide.silent_members import replacements_after
from brokergroup_operator.reconcile.other_groups import Turn
from brokergroup_operator.reconcile.plan import Action, WriteStatus, no, yes
from brokergroup_operator.reconcile.render import broker_config
from brokergroup_operator.reconcile.render.addressing import Place, place_of
from brokergroup_operator.reconcile.render.pods import build_pod
from brokergroup_operator.reconcile.see import observed
from brokergroup_operator.reconcile.see.foreign import content_hash
from brokergroup_operator.reconcile.see.members import membership
from brokergroup_operator.reconcile.tell.conditions import all_conditions, conditions_of
from brokergroup_operator.reconcile.tell.events import transition_notes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from brokergroup_operator.api.bounds import JsonObject
    from brokergroup_operator.reconcile.decide.course import Course
    from brokergroup_operator.reconcile.plan import Verdict
    from brokergroup_operator.reconcile.see.observed import Observed
    from brokergroup_operator.reconcile.settings import ReconcileSettings
    from controller_core.model import BrokerGroupRecord


# Lags alone are worth one write of the status in so long.
LAGS_APART_SECONDS = 10.0


def status_action(
    seen: Observed, course: Course, settings: ReconcileSettings, *, invalid: Verdict | None = None
) -> Iterator[Action]:
    status = build_status(seen, course, settings, invalid=invalid)
    wanted: JsonObject = without_nulls(msgspec.to_builtins(status))
    before = _ours(seen.group_object)
    if _in_order(wanted) != _in_order(before) and not _only_lags(seen, wanted, before):
        notes = transition_notes(before.get("conditions") or [], wanted.get("conditions") or [])
        yield WriteStatus(reason="the status changed", status=wanted, notes=tuple(notes))


def unreadable_status(group_object: JsonObject, complaint: str, *, now: str) -> JsonObject | None:
    """Return the stored status with conditions that say why nothing is done for the group; None if it says so already."""
    before = _ours(group_object)
    not_done = (api.ConditionType.READY, api.ConditionType.RECONCILING)
    wrong = {kind: no(api.Reason.INVALID_SPEC, complaint) for kind in not_done}
    wrong[api.ConditionType.STALLED] = yes(api.Reason.INVALID_SPEC, complaint)
    told: list[JsonObject] = without_nulls(msgspec.to_builtins(conditions_of(group_object, wrong.items(), now=now)))
    conditions = {one["type"]: one for one in (*(before.get("conditions") or []), *told)}
    status = before | {"observedGeneration": observed.generation(group_object), "conditions": list(conditions.values())}
    return None if _in_order(status) == _in_order(before) else status


def _ours(group_object: JsonObject) -> JsonObject:
    """The status that is there, without what the operator pod that carried a failover out writes (observe/failover_history.py)."""
    return {field: value for field, value in (group_object.get("status") or {}).items() if field != "failovers"}


def _only_lags(seen: Observed, wanted: JsonObject, before: JsonObject) -> bool:
    """Whether only lags changed since the last write, a moment ago by the API server's time: a group catches up all the time."""
    written = observed.last_written(seen.group_object, names.FIELD_MANAGER_STATUS)
    if not written or _in_order(_without_lags(wanted)) != _in_order(_without_lags(before)):
        return False
    # A clock of the API server that is ahead of ours delays no write.
    return 0 <= (observed.moment(seen.now) - observed.moment(written)).total_seconds() < LAGS_APART_SECONDS


def _without_lags(status: JsonObject) -> JsonObject:
    return status | {"members": [one | {"lagBytes": None} for one in status.get("members") or []]}


def _in_order(status: JsonObject) -> JsonObject:
    """Server-side apply leaves the items of keyed lists where they were, so their order says nothing."""
    keys = {"members": "brokerId", "conditions": "type"}
    return status | {
        field: sorted(status[field], key=itemgetter(key)) for field, key in keys.items() if field in status
    }


def build_status(
    seen: Observed, course: Course, settings: ReconcileSettings, *, invalid: Verdict | None = None
) -> api.BrokerGroupStatus:
    record, members = seen.record, membership(seen).members
    conditions = all_conditions(seen, course, invalid=invalid)
    going = outdated_members(seen, members, settings, going=True)
    outdated = {item.member.pod for item in (*course.outdated, *going)}
    revision, before = update_revision(seen, settings), seen.group_object.get("status") or {}
    sync_state_set = None
    if record is not None:
        ids, epoch = sorted(record.sync_state_set), record.sync_state_set_epoch
        sync_state_set = api.SyncStateSetStatus(broker_ids=ids, epoch=epoch)
    return api.BrokerGroupStatus(
        phase=_phase(seen, {one.type: one.reason for one in conditions if one.status is api.ConditionStatus.TRUE}),
        observed_generation=observed.generation(seen.group_object),
        replicas=len(seen.pods),
        ready_replicas=sum(1 for pod in seen.pods.values() if observed.pod_is_ready(pod)),
        updated_replicas=sum(1 for name in seen.pods if name not in outdated),
        in_sync_replicas=len(record.sync_state_set) if record else 0,
        selector=identity.selector_text(identity.selector_labels(seen.group)),
        master=_master(seen),
        sync_state_set=sync_state_set,
        members=[member_status(seen, course, one, revision="" if one.pod in outdated else revision) for one in members],
        # While it holds its turn the update is not complete, though no old pod is left: the last new one has yet to come.
        current_revision=before.get("currentRevision") if outdated or course.turn is Turn.HOLDS else revision,
        update_revision=revision,
        endpoints=_endpoints(seen),
        unclean_elections=record.unclean_elections if record else 0,
        controller=_controller(seen, settings),
        durability=effective_durability(seen.group.spec),
        unfenced=bool(record and record.unfenced),
        conditions=conditions,
    )


def update_revision(seen: Observed, settings: ReconcileSettings) -> str:
    """One word for what every pod should run, whichever member's it is."""
    any_member = identity.Member(broker_id=0, pod=identity.name_of(seen.group))
    pod = observed.annotations_of(build_pod(seen.group, any_member, settings))
    return content_hash(f"{pod[names.ANNOTATION_REVISION]} {broker_config.cold_hash(seen.group, settings)}")


def _phase(seen: Observed, true: dict[str, str]) -> str:
    """One word for people; the first that applies."""
    if observed.being_deleted(seen.group_object):
        return "Deleting"
    for condition in ("Hibernated", "Paused", "Stalled"):
        if condition in true:
            return condition
    if "Reconciling" in true:
        return true["Reconciling"]
    if "Ready" in true:
        return "Ready"
    return "Degraded" if "Available" in true else "Unavailable"


def _endpoints(seen: Observed) -> api.Endpoints:
    group, namespace = identity.name_of(seen.group), identity.namespace_of(seen.group)
    port, members = seen.group.spec.network.listen_port, []
    for member in membership(seen).members:
        place = place_of(seen.group, member, seen.services) or Place(port=port)
        by_name = f"{member.pod}.{names.members_service_name(group)}.{namespace}:{place.port}"
        members.append(place.text if place.host else by_name)
    return api.Endpoints(
        master=f"{names.master_service_name(group)}.{namespace}:{port}",
        slaves=f"{names.slaves_service_name(group)}.{namespace}:{port}",
        members=members,
    )


def _master(seen: Observed) -> api.MasterStatus | None:
    record = seen.record
    if record is None or (master := record.granted_master_id) is None:
        return None
    before = (seen.group_object.get("status") or {}).get("master") or {}
    same = (before.get("brokerId"), before.get("epoch")) == (master, record.master_epoch)
    return api.MasterStatus(
        broker_id=master,
        pod=membership(seen).pod_of(master),
        address=record.address_of(master) or "",
        epoch=record.master_epoch,
        since=before.get("since") if same and before.get("since") else seen.now,
    )


def _controller(seen: Observed, settings: ReconcileSettings) -> api.ControllerStatus:
    try:
        accepted = names.accepted_epoch(seen.group_object)
    except names.AnnotationError:
        accepted = None
    return api.ControllerStatus(
        addresses=list(settings.controller_addresses),
        election_policy=seen.group.spec.failover.election_policy,
        signature=seen.group.spec.security.signature.value,
        epoch_jump=seen.snapshot.epoch_jump if seen.snapshot else None,
        accepted_epoch=accepted,
    )


MEBIBYTE = 2**20


def member_status(seen: Observed, course: Course, member: identity.Member, *, revision: str) -> api.MemberStatus:
    """`revision`: what the pod runs, or the empty text for a pod that is outdated: its own mark then says what it runs."""
    record, how = seen.record, course.standings[member.broker_id]
    replaced = replacements_after(seen, course, member)
    master = record.granted_master_id if record else None
    pod = seen.pods.get(member.pod)
    node = node_of(pod)
    return api.MemberStatus(
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
        role=api.MemberRole.MASTER if member.broker_id == master else api.MemberRole.SLAVE,
        state=how.state,
        message=None if how.in_sync or how.state is api.MemberState.STOPPED else how.fact,
        replacements=replaced.count if replaced else None,
        replaced_at=replaced.at if replaced else None,
        seat=member_seat(record, member.broker_id),
    )


def _lag_bytes(seen: Observed, member: identity.Member) -> int | None:
    """Behind the master, rounded down to a power of two, so that a busy group seldom writes its status. Below a mebibyte: 0."""
    record, live = seen.record, seen.snapshot.live if seen.snapshot else {}
    master = live.get(record.granted_master_id or 0) if record else None
    mine = live.get(member.broker_id)
    if master is None or mine is None or min(master.max_offset, mine.max_offset) < 0:
        return None
    behind = max(0, master.max_offset - mine.max_offset)
    return 0 if behind < MEBIBYTE else 1 << (behind.bit_length() - 1)


def member_seat(record: BrokerGroupRecord | None, broker_id: int) -> api.MemberSeat:
    """See the comments at MemberSeat."""
    if record is None:
        return api.MemberSeat.NONE
    if broker_id in record.sync_state_set:
        return api.MemberSeat.IN_SYNC_STATE_SET
    if broker_id in record.eligible:
        return api.MemberSeat.ELIGIBLE
    return api.MemberSeat.LOST if broker_id in record.lost_seats else api.MemberSeat.NONE
