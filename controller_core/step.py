"""The one entry point: a record, a request and the living replicas go in, a decision comes out.

The caller commits `decision.record` by compare-and-set if `decision.changed`, and only then sends `decision.answer`; if the
compare fails, it takes the step again on the new record. So any number of planes may decide for one group at the same time.
"""

from dataclasses import replace
from typing import assert_never

from controller_core import change, decision, election, holdings, membership, requests, sync_state
from controller_core.decision import ControllerCode, Decision, decided, refused
from controller_core.model import BrokerGroupRecord, Live
from controller_core.settings import ControllerSettings


def step(
    record: BrokerGroupRecord | None, request: requests.Request, live: Live, settings: ControllerSettings
) -> Decision:
    """Decide a request. `live` holds the replicas of this group whose heartbeats are fresh, by broker id.

    A group without a record is decided as one with an empty record; it gets one by the first event.
    """
    found = _decide(record or _empty_record(request), request, live, settings)
    if not found.changed:
        return found if record is not None else replace(found, record=None)
    after = found.record
    if after is not None and after.eligible and not holdings.usable_eligible(after, settings):
        forgotten = decision.EligibleForgotten()
        return replace(found, events=(*found.events, forgotten), record=decision.apply_events(after, [forgotten]))
    return found


def _empty_record(request: requests.Request) -> BrokerGroupRecord:
    # A request that does not name its group begins none.
    if isinstance(request, requests.OfNamedGroup):
        return BrokerGroupRecord(request.cluster_name, request.broker_name or "")
    return BrokerGroupRecord("", "")


def _decide(  # noqa: PLR0911, PLR0912, C901 - one return per kind of request is the plainest table there is
    record: BrokerGroupRecord, request: requests.Request, live: Live, settings: ControllerSettings
) -> Decision:
    match request:
        case requests.GetNextBrokerId():
            return membership.get_next_broker_id(record, request)
        case requests.ApplyBrokerId():
            return membership.apply_broker_id(record, request)
        case requests.ReserveBrokerId():
            return membership.reserve_broker_id(record, request)
        case requests.RestoreGroup():
            return membership.restore_group(record, request)
        case requests.RegisterBroker():
            return membership.register_broker(record, request, live, settings)
        case requests.ElectMaster():
            return election.elect_master(record, request, live, settings)
        case requests.AlterSyncStateSet():
            return sync_state.alter_sync_state_set(record, request, live, settings)
        case requests.GetReplicaInfo():
            return get_replica_info(record, request)
        case requests.GetSyncStateData():
            return get_sync_state_data(record, request, live)
        case requests.CleanBrokerData():
            return membership.clean_broker_data(record, request, live)
        case requests.RemoveMember():
            return membership.remove_member(record, request, live, settings)
        case requests.RenewMaster():
            return change.renew_master(record, request, live, settings)
        case requests.ReportHoldings():
            return holdings.report_holdings(record, request, settings)
        case requests.ReportAhead():
            return holdings.report_ahead(record, request, settings)
        case requests.BeginChange():
            return change.begin_change(record, request)
        case requests.TakeOverChange():
            return change.take_over_change(record, request)
        case requests.EndChange():
            return change.end_change(record, request)
    assert_never(request)


def get_replica_info(record: BrokerGroupRecord, request: requests.GetReplicaInfo) -> Decision:
    """1004: return the master and the SyncStateSet as recorded, whether or not the master lives, as in Java."""
    if not request.broker_name:
        return decision.without_a_name(record, decision.GetReplicaInfoAnswer())
    if not record.is_known:
        code = ControllerCode.CONTROLLER_BROKER_METADATA_NOT_EXIST
        why = f"no broker of {request.broker_name} holds an id"
        return refused(record, code, decision.GetReplicaInfoAnswer(), why, "Broker metadata is not existed")
    master, address = _named_master(record)
    body = decision.SyncStateSetBody.of(record)
    answer = decision.GetReplicaInfoAnswer(
        master_broker_id=master, master_address=address, master_epoch=record.master_epoch, body=body
    )
    return decided(record, answer, "as recorded")


def get_sync_state_data(record: BrokerGroupRecord, request: requests.GetSyncStateData, live: Live) -> Decision:
    """1006: return which replicas are in sync and alive. An unknown group is left out of the table, without an error."""
    if not record.is_known:
        return decided(record, None, f"no broker of {request.broker_name} holds an id")
    master, address = _named_master(record)
    standings = [
        decision.ReplicaStanding(broker_id=one, broker_address=replica.address, alive=one in live)
        for one, replica in record.replicas.items()
        if replica.claimed
    ]
    answer = decision.GetSyncStateDataAnswer(
        master_broker_id=master,
        master_address=address,
        master_epoch=record.master_epoch,
        sync_state_set_epoch=record.sync_state_set_epoch,
        in_sync_replicas=tuple(one for one in standings if one.broker_id in record.sync_state_set),
        not_in_sync_replicas=tuple(one for one in standings if one.broker_id not in record.sync_state_set),
    )
    return decided(record, answer, "as recorded")


def _named_master(record: BrokerGroupRecord) -> tuple[int | None, str | None]:
    # A new process of a lost master would take the old epoch (rule 6). A broker that reads an id without an address fails (rule 8).
    address = record.address_of(record.granted_master_id)
    return (record.granted_master_id, address) if address is not None else (None, None)
