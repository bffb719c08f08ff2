"""GetReplicaInfo (1004) and GetSyncStateData (1006): what is recorded, told as it is (docs/reference/controller.md).

Neither asks whether the master is alive: a dead master is reported until an election replaces it, as in Java. But a
master whose process was lost is no master (safety rule 6: its new process would take the old epoch from this very
answer), and a master whose address is unknown is not named at all (safety rule 8): a broker that reads an id without
an address fails.
"""

from collections.abc import Mapping

from controller_core.codes import ControllerCode
from controller_core.decision import (
    Decision,
    GetReplicaInfoAnswer,
    GetSyncStateDataAnswer,
    ReplicaStanding,
    SyncStateSetBody,
)
from controller_core.model import BrokerGroupRecord, LiveReplica
from controller_core.requests import GetReplicaInfo, GetSyncStateData


def get_replica_info(record: BrokerGroupRecord | None, request: GetReplicaInfo) -> Decision:
    """Tell who is master and what the SyncStateSet is."""
    if not request.broker_name:
        return Decision(
            code=ControllerCode.SYSTEM_ERROR,
            remark="brokerName is missing, expected the name of a broker group",
            answer=GetReplicaInfoAnswer(),
            record=record,
            why="nobody can be named without a broker name",
        )
    if record is None or not record.is_known:
        return Decision(
            code=ControllerCode.CONTROLLER_BROKER_METADATA_NOT_EXIST,
            remark="Broker metadata is not existed",
            answer=GetReplicaInfoAnswer(),
            record=record,
            why=f"no broker of {request.broker_name} holds an id",
        )
    master, address = _named_master(record)
    body = SyncStateSetBody(sync_state_set=record.sync_state_set, sync_state_set_epoch=record.sync_state_set_epoch)
    return Decision(
        code=ControllerCode.SUCCESS,
        answer=GetReplicaInfoAnswer(
            master_broker_id=master, master_address=address, master_epoch=record.master_epoch, body=body
        ),
        record=record,
        why="as recorded",
    )


def get_sync_state_data(
    record: BrokerGroupRecord | None, request: GetSyncStateData, live: Mapping[int, LiveReplica]
) -> Decision:
    """Tell who is in sync and who is alive. An unknown group is left out of the table, without an error."""
    if record is None or not record.is_known:
        return Decision(
            code=ControllerCode.SUCCESS,
            answer=GetSyncStateDataAnswer(known=False),
            record=record,
            why=f"no broker of {request.broker_name} holds an id",
        )
    master, address = _named_master(record)
    standings = [
        ReplicaStanding(broker_id=replica.broker_id, broker_address=replica.address, alive=replica.broker_id in live)
        for replica in record.replicas.values()
        if replica.claimed
    ]
    return Decision(
        code=ControllerCode.SUCCESS,
        answer=GetSyncStateDataAnswer(
            known=True,
            master_broker_id=master,
            master_address=address,
            master_epoch=record.master_epoch,
            sync_state_set_epoch=record.sync_state_set_epoch,
            in_sync_replicas=tuple(one for one in standings if one.broker_id in record.sync_state_set),
            not_in_sync_replicas=tuple(one for one in standings if one.broker_id not in record.sync_state_set),
        ),
        record=record,
        why="as recorded",
    )


def _named_master(record: BrokerGroupRecord) -> tuple[int | None, str | None]:
    """Return the master's id and address, or neither."""
    address = record.address_of(record.granted_master_id)
    return (record.granted_master_id, address) if address is not None else (None, None)
