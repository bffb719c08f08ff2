"""Between the wire and the core: a request as a value that the core decides, a decision as the answer Java would give.

Only shape is translated here. The core decides what a missing field means; `rocketmq_remoting` knows how fields and bodies are
written (docs/reference/controller.md).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from controller_core.decision import (
    AlterSyncStateSetAnswer,
    ApplyBrokerIdAnswer,
    ControllerCode,
    ElectMasterAnswer,
    GetNextBrokerIdAnswer,
    GetReplicaInfoAnswer,
    GetSyncStateDataAnswer,
    RegisterBrokerAnswer,
    ReplicaStanding,
)
from controller_core.requests import (
    AlterSyncStateSet,
    ApplyBrokerId,
    CleanBrokerData,
    ElectMaster,
    GetNextBrokerId,
    GetReplicaInfo,
    RegisterBroker,
)
from rocketmq_remoting import controller_protocol as protocol
from rocketmq_remoting.address import one_spelling
from rocketmq_remoting.codes import RequestCode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    import msgspec

    from controller_core.decision import Answer, Decision
    from controller_core.requests import Request
    from rocketmq_remoting.command import RemotingCommand
    from rocketmq_remoting.serialization import ExtFieldsHeader

Part = TypeVar("Part", bound="msgspec.Struct")


def decode_alter_sync_state_set(command: RemotingCommand) -> AlterSyncStateSet:
    """1001."""
    header = protocol.AlterSyncStateSetRequestHeader.decode(command.ext_fields)
    body = protocol.SyncStateSetBody.decode(command.body)
    return AlterSyncStateSet(
        master_broker_id=header.master_broker_id,
        master_epoch=header.master_epoch,
        sync_state_set=body.sync_state_set,
        sync_state_set_epoch=body.sync_state_set_epoch,
    )


def decode_elect_master(command: RemotingCommand) -> ElectMaster:
    """1002."""
    header = protocol.ElectMasterRequestHeader.decode(command.ext_fields)
    return ElectMaster(broker_id=header.broker_id, designate_elect=header.designate_elect)


def decode_register_broker(command: RemotingCommand) -> RegisterBroker:
    """1003."""
    header = protocol.RegisterBrokerToControllerRequestHeader.decode(command.ext_fields)
    return RegisterBroker(
        cluster_name=header.cluster_name or "",
        broker_name=header.broker_name or "",
        broker_id=header.broker_id,
        broker_address=header.broker_address and one_spelling(header.broker_address),
    )


def decode_get_replica_info(command: RemotingCommand) -> GetReplicaInfo:
    """1004."""
    return GetReplicaInfo(broker_name=protocol.GetReplicaInfoRequestHeader.decode(command.ext_fields).broker_name)


def decode_clean_broker_data(command: RemotingCommand) -> CleanBrokerData:
    """1011."""
    header = protocol.CleanBrokerDataRequestHeader.decode(command.ext_fields)
    return CleanBrokerData(
        broker_name=header.broker_name or "",
        broker_controller_ids_to_clean=header.broker_controller_ids_to_clean,
        is_clean_living_broker=header.is_clean_living_broker,
    )


def decode_get_next_broker_id(command: RemotingCommand, requester: str | None) -> GetNextBrokerId:
    """1012. `requester`: the pod that asks, if known."""
    header = protocol.GetNextBrokerIdRequestHeader.decode(command.ext_fields)
    return GetNextBrokerId(cluster_name=header.cluster_name or "", broker_name=header.broker_name, requester=requester)


def decode_apply_broker_id(command: RemotingCommand, requester: str | None) -> ApplyBrokerId:
    """1013."""
    header = protocol.ApplyBrokerIdRequestHeader.decode(command.ext_fields)
    return ApplyBrokerId(
        cluster_name=header.cluster_name or "",
        broker_name=header.broker_name or "",
        applied_broker_id=header.applied_broker_id,
        register_check_code=header.register_check_code,
        requester=requester,
        address=one_spelling((header.register_check_code or "").partition(";")[0]),
    )


def named_group(command: RemotingCommand) -> tuple[str, str]:
    """Return the clusterName and brokerName of a request; empty if it has none."""
    ext_fields = command.ext_fields or {}
    return ext_fields.get("clusterName", ""), ext_fields.get("brokerName", "")


DECODERS: Mapping[int, Callable[[RemotingCommand], Request]] = {
    RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET: decode_alter_sync_state_set,
    RequestCode.CONTROLLER_ELECT_MASTER: decode_elect_master,
    RequestCode.CONTROLLER_REGISTER_BROKER: decode_register_broker,
    RequestCode.CONTROLLER_GET_REPLICA_INFO: decode_get_replica_info,
    RequestCode.CLEAN_BROKER_DATA: decode_clean_broker_data,
}
"""The requests about one group whose answer does not depend on the caller."""


def encode_decision(command: RemotingCommand, decision: Decision) -> RemotingCommand:
    """Return the answer to this request.

    A failure (code 1) has only a remark; names are repeated only if the request had them.
    """
    if decision.code == ControllerCode.SYSTEM_ERROR:
        return command.answer(int(decision.code), remark=decision.remark)
    ext_fields, body = _payload(decision.answer)
    if ext_fields is not None:
        asked = command.ext_fields or {}
        ext_fields = {name: value for name, value in ext_fields.items() if name in asked or name not in _REPEATED}
    return command.answer(int(decision.code), remark=decision.remark, ext_fields=ext_fields, body=body)


_HEADERS: Mapping[type[Answer], type[ExtFieldsHeader]] = {
    AlterSyncStateSetAnswer: protocol.AlterSyncStateSetResponseHeader,
    ElectMasterAnswer: protocol.ElectMasterResponseHeader,
    RegisterBrokerAnswer: protocol.RegisterBrokerToControllerResponseHeader,
    GetReplicaInfoAnswer: protocol.GetReplicaInfoResponseHeader,
    GetNextBrokerIdAnswer: protocol.GetNextBrokerIdResponseHeader,
    ApplyBrokerIdAnswer: protocol.ApplyBrokerIdResponseHeader,
}
"""1011 has no header; 1006 is written for many groups at once; what the controller asks itself never travels."""


def _payload(answer: Answer | None) -> tuple[dict[str, str] | None, bytes | None]:
    """Return header and body. An answer has its header's fields by their names."""
    kind = _HEADERS.get(type(answer)) if answer is not None else None
    if answer is None or kind is None:
        return None, None
    return _filled(kind, answer).encode(), _body(answer)


def _filled(kind: type[Part], answer: object, **more: object) -> Part:
    return kind(**{name: getattr(answer, name) for name in kind.__struct_fields__ if name not in more}, **more)


def _body(answer: Answer) -> bytes | None:
    match answer:
        case ElectMasterAnswer(sync_state_set=frozenset() as sync_state_set):
            members = None
            if answer.broker_addresses is not None:
                members = protocol.BrokerMemberGroup(
                    cluster=answer.cluster_name or "",
                    broker_name=answer.broker_name or "",
                    broker_addrs=dict(answer.broker_addresses),
                )
            return protocol.ElectMasterResponseBody(members, sync_state_set).encode()
        case AlterSyncStateSetAnswer(body=body) | RegisterBrokerAnswer(body=body) | GetReplicaInfoAnswer(body=body):
            return protocol.SyncStateSetBody(body.sync_state_set, body.sync_state_set_epoch).encode() if body else None
    return None


def encode_sync_state_data(answers: Mapping[str, GetSyncStateDataAnswer]) -> bytes:
    """Return the body of 1006: every known group by its name."""
    table = {
        broker_name: _filled(
            protocol.ReplicasInfo,
            answer,
            in_sync_replicas=_standings(broker_name, answer.in_sync_replicas),
            not_in_sync_replicas=_standings(broker_name, answer.not_in_sync_replicas),
        )
        for broker_name, answer in answers.items()
        if answer.known
    }
    return protocol.BrokerReplicasInfoBody(table).encode()


def _standings(broker_name: str, standings: Iterable[ReplicaStanding]) -> tuple[protocol.ReplicaIdentity, ...]:
    return tuple(_filled(protocol.ReplicaIdentity, one, broker_name=broker_name) for one in standings)


_REPEATED = frozenset({"clusterName", "brokerName"})

SUCCEEDED_ELECTIONS = frozenset({ControllerCode.SUCCESS, ControllerCode.CONTROLLER_MASTER_STILL_EXIST})
"""Codes of 1002 after which the group has a master."""
