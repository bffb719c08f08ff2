"""A broker group's record as JSON and back: the ``.record`` of a BrokerGroupState, and the content of a record file.

Reading is strict: a lost broker id would be assigned twice, and a lost epoch would let a stale master acknowledge. A member that
is absent or of the wrong type, or a newer schema version, raises ``RecordCorruptError`` with its name. Unknown members are
ignored, and the Kubernetes store writes them back unchanged.

Schema version 2 added the replicas' marks, eligible and lost seats, and the count of unclean elections (safety rules 1 and 2). A
record of version 1 is read as one without them, and written as 2: an older operator would drop them, so it must refuse.
``unfenced``, ``change`` (ADR 14) and ``restoredFrom`` (ADR 23) came later under the same version: in Kubernetes an older operator
writes them back unchanged, and a newer one sees by the epochs in a change that it is void. A file store of an older operator
drops them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from brokergroup_operator.records.store import RecordCorruptError
from controller_core.model import Before, BrokerGroupRecord, Change, ChangeKind, Phase, Replica, Restore

if TYPE_CHECKING:
    from collections.abc import Mapping
    from enum import StrEnum

    from brokergroup_operator.api.bounds import JsonObject

SCHEMA_VERSION = 2
READABLE_VERSIONS = (1, 2)

KNOWN_MEMBERS = frozenset(
    {
        "schemaVersion",
        "clusterName",
        "brokerName",
        "nextBrokerId",
        "replicas",
        "masterBrokerId",
        "masterEpoch",
        "syncStateSet",
        "syncStateSetEpoch",
        "masterProcessLost",
        "eligible",
        "lostSeats",
        "uncleanElections",
        "unfenced",
        "changeId",
        "change",
        "restoredFrom",
    }
)

_T = TypeVar("_T", int, str, bool, list[Any])
_Word = TypeVar("_Word", bound="StrEnum")


def has_registered(document: Mapping[str, Any]) -> bool:
    """Whether a broker of this record has registered. The record need not be readable otherwise."""
    replicas = document.get("replicas") or ()
    return "masterBrokerId" in document or any(isinstance(one, dict) and one.get("registered") for one in replicas)


def record_to_json(record: BrokerGroupRecord) -> dict[str, Any]:
    """Return the record as plain JSON values, replicas and set in ascending order of broker id."""
    document: dict[str, Any] = {
        "schemaVersion": SCHEMA_VERSION,
        "clusterName": record.cluster_name,
        "brokerName": record.broker_name,
        "nextBrokerId": record.next_broker_id,
        "replicas": [_replica_to_json(record.replicas[broker_id]) for broker_id in sorted(record.replicas)],
        "masterEpoch": record.master_epoch,
        "syncStateSet": sorted(record.sync_state_set),
        "syncStateSetEpoch": record.sync_state_set_epoch,
        "masterProcessLost": record.master_process_lost,
        "eligible": sorted(record.eligible),
        "lostSeats": sorted(record.lost_seats),
        "uncleanElections": record.unclean_elections,
        "unfenced": sorted(record.unfenced),
        "changeId": record.change_id,
    }
    if record.master_broker_id is not None:
        document["masterBrokerId"] = record.master_broker_id
    if record.change is not None:
        document["change"] = _change_to_json(record.change)
    if record.restored_from:
        document["restoredFrom"] = record.restored_from
    return document


def record_of_state(state: JsonObject | None) -> BrokerGroupRecord | None:
    """Return the record of a BrokerGroupState as it was read; None where there is none. Raises RecordCorruptError."""
    if state is None:
        return None
    metadata = state["metadata"]
    return record_from_json(
        state["record"], source=f"BrokerGroupState {metadata.get('namespace')}/{metadata.get('name')}"
    )


def record_from_json(document: object, *, source: str) -> BrokerGroupRecord:
    """Return the record this JSON stands for; ``source`` names it in errors (a path, or namespace/name)."""
    if not isinstance(document, dict):
        raise RecordCorruptError(f"{source}: expected a JSON object, found {type(document).__name__}")
    schema_version = _member(document, "schemaVersion", int, source)
    if schema_version not in READABLE_VERSIONS:
        raise RecordCorruptError(
            f"{source}: schemaVersion is {schema_version}, this operator reads {' and '.join(map(str, READABLE_VERSIONS))} only: "
            "use the operator version that wrote it, or a newer one"
        )
    master = document.get("masterBrokerId")
    if master is not None:
        master = _member(document, "masterBrokerId", int, source)
    replicas = [_replica_from_json(item, source=source) for item in _member(document, "replicas", list, source)]
    if len({replica.broker_id for replica in replicas}) != len(replicas):
        raise RecordCorruptError(f"{source}: replicas names a brokerId twice")
    return BrokerGroupRecord(
        cluster_name=_member(document, "clusterName", str, source),
        broker_name=_member(document, "brokerName", str, source),
        next_broker_id=_member(document, "nextBrokerId", int, source),
        replicas={replica.broker_id: replica for replica in replicas},
        master_broker_id=master,
        master_epoch=_member(document, "masterEpoch", int, source),
        sync_state_set=_ids(_member(document, "syncStateSet", list, source), "syncStateSet", source),
        sync_state_set_epoch=_member(document, "syncStateSetEpoch", int, source),
        master_process_lost=_member(document, "masterProcessLost", bool, source, default=False),
        eligible=_ids(_member(document, "eligible", list, source, default=[]), "eligible", source),
        lost_seats=_ids(_member(document, "lostSeats", list, source, default=[]), "lostSeats", source),
        unclean_elections=_member(document, "uncleanElections", int, source, default=0),
        unfenced=_ids(_member(document, "unfenced", list, source, default=[]), "unfenced", source),
        change_id=_member(document, "changeId", int, source, default=0),
        change=_change_from_json(document.get("change"), source=f"{source}: change"),
        restored_from=_member(document, "restoredFrom", str, source, default=""),
    )


def _change_to_json(change: Change) -> dict[str, Any]:
    """What is not known is left out."""
    document: dict[str, Any] = {
        "id": change.id,
        "kind": change.kind.value,
        "phase": change.phase.value,
        "carriedOutBy": change.carried_out_by,
        "from": change.from_broker_id,
        "to": change.to_broker_id,
        "epoch": change.epoch or None,
        "slave": change.slave,
        "cause": change.cause or None,
        "unfenced": change.unfenced or None,
        "startedAt": change.started_at or None,
    }
    if change.before is not None:
        document["before"] = {
            "masterBrokerId": change.before.master_broker_id,
            "masterEpoch": change.before.master_epoch,
            "syncStateSet": sorted(change.before.sync_state_set),
            "syncStateSetEpoch": change.before.sync_state_set_epoch,
        }
        document["before"] = {name: value for name, value in document["before"].items() if value is not None}
    if change.restore is not None:
        document["restore"] = {
            "brokerId": change.restore.broker_id,
            "minInSyncReplicas": change.restore.min_in_sync_replicas,
        }
    return {name: value for name, value in document.items() if value is not None}


def _change_from_json(document: object, *, source: str) -> Change | None:
    if document is None:
        return None
    if not isinstance(document, dict):
        raise RecordCorruptError(f"{source} is {document!r}, expected an object")
    return Change(
        id=_member(document, "id", int, source),
        kind=_one_of(ChangeKind, document, "kind", source),
        phase=_one_of(Phase, document, "phase", source),
        carried_out_by=_member(document, "carriedOutBy", str, source, default=""),
        from_broker_id=_optional_id(document, "from", source),
        to_broker_id=_optional_id(document, "to", source),
        epoch=_member(document, "epoch", int, source, default=0),
        slave=_optional_id(document, "slave", source),
        before=_before_from_json(document.get("before"), source=f"{source}.before"),
        restore=_restore_from_json(document.get("restore"), source=f"{source}.restore"),
        cause=_member(document, "cause", str, source, default=""),
        unfenced=_member(document, "unfenced", bool, source, default=False),
        started_at=_member(document, "startedAt", str, source, default=""),
    )


def _before_from_json(document: object, *, source: str) -> Before | None:
    if document is None:
        return None
    if not isinstance(document, dict):
        raise RecordCorruptError(f"{source} is {document!r}, expected an object")
    return Before(
        master_broker_id=_optional_id(document, "masterBrokerId", source),
        master_epoch=_member(document, "masterEpoch", int, source),
        sync_state_set=_ids(_member(document, "syncStateSet", list, source, default=[]), "syncStateSet", source),
        sync_state_set_epoch=_member(document, "syncStateSetEpoch", int, source),
    )


def _restore_from_json(document: object, *, source: str) -> Restore | None:
    if document is None:
        return None
    if not isinstance(document, dict):
        raise RecordCorruptError(f"{source} is {document!r}, expected an object")
    return Restore(
        broker_id=_member(document, "brokerId", int, source),
        min_in_sync_replicas=_member(document, "minInSyncReplicas", int, source),
    )


def _optional_id(document: Mapping[str, Any], name: str, source: str) -> int | None:
    return None if document.get(name) is None else _member(document, name, int, source)


def _one_of(kind: type[_Word], document: Mapping[str, Any], name: str, source: str) -> _Word:
    text = _member(document, name, str, source)
    if text not in set(kind):
        raise RecordCorruptError(f"{source}.{name} is {text!r}, expected one of {', '.join(kind)}")
    return kind(text)


def _replica_to_json(replica: Replica) -> dict[str, Any]:
    return {
        "brokerId": replica.broker_id,
        "registerCheckCode": replica.register_check_code,
        "address": replica.address,
        "reservedFor": replica.reserved_for,
        "registered": replica.registered,
        "heldEpoch": replica.held_epoch,
        "heldOffset": replica.held_offset,
    }


def _replica_from_json(document: object, *, source: str) -> Replica:
    if not isinstance(document, dict):
        raise RecordCorruptError(f"{source}: replicas holds {document!r}, expected objects")
    return Replica(
        broker_id=_member(document, "brokerId", int, source),
        register_check_code=_member(document, "registerCheckCode", str, source, default=""),
        address=_member(document, "address", str, source, default=""),
        reserved_for=_member(document, "reservedFor", str, source, default=""),
        registered=_member(document, "registered", bool, source, default=False),
        held_epoch=_member(document, "heldEpoch", int, source, default=-1),
        held_offset=_member(document, "heldOffset", int, source, default=-1),
    )


def _ids(items: list[Any], name: str, source: str) -> frozenset[int]:
    if not all(isinstance(item, int) and not isinstance(item, bool) for item in items):
        raise RecordCorruptError(f"{source}: {name} is {items!r}, expected a list of integers")
    return frozenset(items)


def _member(document: Mapping[str, Any], name: str, kind: type[_T], source: str, *, default: _T | None = None) -> _T:
    value = document.get(name)
    if value is None and default is not None:
        return default
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise RecordCorruptError(f"{source}: {name} is {value!r}, expected {kind.__name__}")
    return value
