"""Everything the page shows of one opened group. Pure; times are Unix milliseconds, so that the browser can tell their age."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from brokergroup_operator.api.durability import effective_durability
from brokergroup_operator.observe.member_view import member_view
from brokergroup_operator.page.incidents import incident_document, medians
from brokergroup_operator.page.rows import lag_of, nodes_of, row_of
from brokergroup_operator.page.what_if import fact_of, may_lose_its_master, without_members

if TYPE_CHECKING:
    from collections.abc import Sequence

    from brokergroup_operator.api.bounds import JsonObject
    from brokergroup_operator.observe.group_view import GroupSnapshot
    from brokergroup_operator.page.sighting import SetChange, Sighting
    from brokergroup_operator.page.what_if import Wishes
    from brokergroup_operator.records.store import GroupKey


def group_document(
    key: GroupKey,
    sighting: Sighting | None,
    group_object: JsonObject | None,
    wishes: Wishes | None,
    *,
    set_history: Sequence[SetChange],
    incidents: Sequence[JsonObject],
) -> JsonObject:
    """``incidents`` are those that are over, the latest first; ``set_history`` the SyncStateSets, the latest first."""
    snapshot = sighting.snapshot if sighting is not None else None
    record = snapshot.record if snapshot is not None else None
    row = row_of(snapshot, group_object, wishes)
    running = snapshot.in_progress if snapshot is not None else None
    document: JsonObject = {
        "key": str(key),
        "seenAt": _milliseconds(sighting.seen_at_unix_seconds) if sighting is not None else None,
        "severity": int(row.severity),
        "text": row.text,
        "brokerName": record.broker_name if record is not None else key.name,
        "cluster": record.cluster_name if record is not None else "",
        "master": row.master or None,
        "epoch": row.epoch,
        "writable": snapshot.takes_writes if snapshot is not None else False,
        "syncStateSet": sorted(record.sync_state_set) if record is not None else [],
        "syncStateSetEpoch": record.sync_state_set_epoch if record is not None else 0,
        "wanted": row.wanted,
        "minimumInSync": wishes.minimum_in_sync if wishes is not None else None,
        "durability": effective_durability(wishes.group.spec).value if wishes is not None else None,
        "safe": _safe(snapshot, wishes),
        "members": _members(sighting, group_object, wishes),
        "history": [_set_change(change) for change in set_history],
        "running": incident_document(running) if running is not None else None,
        "incidents": list(incidents),
        "medians": {kind: medians(incidents, kind) for kind in ("failover", "switchover")},
        "conditions": ((group_object or {}).get("status") or {}).get("conditions") or [],
    }
    return document


def _set_change(change: SetChange) -> JsonObject:
    return {
        "at": _milliseconds(change.at_unix_seconds),
        "syncStateSet": list(change.sync_state_set),
        "syncStateSetEpoch": change.sync_state_set_epoch,
        "master": change.master,
        "epoch": change.epoch,
        "why": change.why,
    }


def _safe(snapshot: GroupSnapshot | None, wishes: Wishes | None) -> JsonObject | None:
    if snapshot is None or wishes is None:
        return None
    answer, reason = may_lose_its_master(wishes, snapshot)
    return {"holds": answer.holds, "text": answer.text, "reason": reason}


def _members(sighting: Sighting | None, group_object: JsonObject | None, wishes: Wishes | None) -> list[JsonObject]:
    snapshot = sighting.snapshot if sighting is not None else None
    if sighting is None or snapshot is None or snapshot.record is None:
        return []
    told = {
        int(member["brokerId"]): member
        for member in ((group_object or {}).get("status") or {}).get("members") or []
        if "brokerId" in member
    }
    nodes = nodes_of(snapshot, group_object)
    return [
        _member(sighting, broker_id, told.get(broker_id, {}), nodes.get(broker_id, ""), wishes)
        for broker_id in snapshot.record.replicas
    ]


def _member(sighting: Sighting, broker_id: int, told: JsonObject, node: str, wishes: Wishes | None) -> dict[str, Any]:
    snapshot, record = sighting.snapshot, sighting.snapshot.record
    assert record is not None
    live, kept = snapshot.live.get(broker_id), record.replicas[broker_id]
    age_seconds = snapshot.heartbeat_age_seconds.get(broker_id)
    heard_at = None if age_seconds is None else _milliseconds(sighting.seen_at_unix_seconds - age_seconds)
    view = member_view(record, snapshot, broker_id)
    lost = without_members(wishes, snapshot, {broker_id}) if wishes is not None else None
    return {
        "id": broker_id,
        "pod": told.get("pod") or kept.reserved_for,
        "node": node,
        "zone": snapshot.member_facts.get(broker_id, {}).get("zone", ""),
        "address": kept.address,
        "role": "master" if broker_id == record.granted_master_id else "slave",
        "state": told.get("state", ""),
        "alive": live is not None,
        "inSync": broker_id in record.sync_state_set,
        "linked": view.linked,
        "fact": fact_of(wishes, snapshot, broker_id),
        "lacks": sum(1 for difference in snapshot.metadata_diverged if difference.broker_id == broker_id),
        "epoch": live.epoch if live is not None else kept.held_epoch,
        "logEnd": live.max_offset if live is not None else kept.held_offset,
        "confirmOffset": live.confirm_offset if live is not None else None,
        "lag": lag_of(snapshot, broker_id),
        "heardAt": heard_at,
        "ifLost": {"holds": lost.holds, "text": lost.text} if lost is not None else None,
    }


def _milliseconds(unix_seconds: float) -> int:
    return round(unix_seconds * 1000)
