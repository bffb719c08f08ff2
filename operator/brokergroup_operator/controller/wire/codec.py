"""Between the wire and the core: a request as a value that the core decides, a decision as the answer Java would give.

Only shape is translated here. The core decides what a missing field means; `rocketmq_remoting` knows how fields and bodies are
written (docs/reference/controller.md).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from controller_core import decision as answers
from controller_core import requests
from rocketmq_remoting import controller_protocol as protocol
from rocketmq_remoting.address import one_spelling

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import msgspec

    from rocketmq_remoting.command import RemotingCommand
    from rocketmq_remoting.serialization import ExtFieldsHeader

Asked = TypeVar("Asked", bound=requests.Request)
Part = TypeVar("Part", bound="msgspec.Struct")

_REPEATED = frozenset({"clusterName", "brokerName"})
_REQUEST_HEADERS: Mapping[type[object], type[ExtFieldsHeader]] = {
    requests.AlterSyncStateSet: protocol.AlterSyncStateSetRequestHeader,
    requests.ElectMaster: protocol.ElectMasterRequestHeader,
    requests.RegisterBroker: protocol.RegisterBrokerToControllerRequestHeader,
    requests.GetReplicaInfo: protocol.GetReplicaInfoRequestHeader,
    requests.CleanBrokerData: protocol.CleanBrokerDataRequestHeader,
    requests.GetNextBrokerId: protocol.GetNextBrokerIdRequestHeader,
    requests.ApplyBrokerId: protocol.ApplyBrokerIdRequestHeader,
}


def decode(kind: type[Asked], command: RemotingCommand, **more: Any) -> Asked:
    """Return a request with its header's fields, by their names, and `more`. A name that Java leaves null is empty text."""
    header = _REQUEST_HEADERS[kind].decode(command.ext_fields)
    fields = {name: getattr(header, name) for name in header.__struct_fields__ if name in kind.__dataclass_fields__}
    fields |= {name: fields[name] or "" for name in fields if name in {"cluster_name", "broker_name"}}
    return kind(**fields, **more)


def decode_alter_sync_state_set(command: RemotingCommand) -> requests.AlterSyncStateSet:
    """1001: the set is in the body."""
    body = protocol.SyncStateSetBody.decode(command.body)
    return decode(requests.AlterSyncStateSet, command, **{name: getattr(body, name) for name in body.__struct_fields__})


def decode_register_broker(command: RemotingCommand) -> requests.RegisterBroker:
    """1003, with the address in its one spelling."""
    wanted = decode(requests.RegisterBroker, command)
    return replace(wanted, broker_address=wanted.broker_address and one_spelling(wanted.broker_address))


def decode_apply_broker_id(command: RemotingCommand, requester: str | None) -> requests.ApplyBrokerId:
    """1013, with its check code's address in the one spelling."""
    wanted = decode(requests.ApplyBrokerId, command, requester=requester)
    return replace(wanted, address=one_spelling((wanted.register_check_code or "").partition(";")[0]))


def named_group(command: RemotingCommand) -> tuple[str, str]:
    """Return the clusterName and brokerName of a request; empty if it has none."""
    ext_fields = command.ext_fields or {}
    return ext_fields.get("clusterName", ""), ext_fields.get("brokerName", "")


def encode_decision(command: RemotingCommand, decision: answers.Decision) -> RemotingCommand:
    """Return the answer: a failure (code 1) has only a remark; names are repeated only if the request had them."""
    kind = _HEADERS.get(type(decision.answer))
    if kind is None or decision.code == answers.ControllerCode.SYSTEM_ERROR:
        return command.answer(int(decision.code), remark=decision.remark)
    asked = command.ext_fields or {}
    given = _filled(kind, decision.answer).encode()
    ext_fields = {name: value for name, value in given.items() if name in asked or name not in _REPEATED}
    body = _body(decision.answer)
    return command.answer(int(decision.code), remark=decision.remark, ext_fields=ext_fields, body=body)


# 1011 has no header; 1006 is written for many groups at once; the operator's own requests do not come over the wire.
_HEADERS: Mapping[type[object], type[ExtFieldsHeader]] = {
    answers.AlterSyncStateSetAnswer: protocol.AlterSyncStateSetResponseHeader,
    answers.ElectMasterAnswer: protocol.ElectMasterResponseHeader,
    answers.RegisterBrokerAnswer: protocol.RegisterBrokerToControllerResponseHeader,
    answers.GetReplicaInfoAnswer: protocol.GetReplicaInfoResponseHeader,
    answers.GetNextBrokerIdAnswer: protocol.GetNextBrokerIdResponseHeader,
    answers.ApplyBrokerIdAnswer: protocol.ApplyBrokerIdResponseHeader,
}


def _filled(kind: type[Part], answer: object, **more: object) -> Part:
    return kind(**{name: getattr(answer, name) for name in kind.__struct_fields__ if name not in more}, **more)


def _body(answer: object) -> bytes | None:
    match answer:
        case answers.ElectMasterAnswer(sync_state_set=frozenset() as sync_state_set):
            members = None
            if answer.broker_addresses is not None:
                members = protocol.BrokerMemberGroup(
                    cluster=answer.cluster_name or "",
                    broker_name=answer.broker_name or "",
                    broker_addrs=dict(answer.broker_addresses),
                )
            return protocol.ElectMasterResponseBody(members, sync_state_set).encode()
        case answers.AlterSyncStateSetAnswer() | answers.RegisterBrokerAnswer() | answers.GetReplicaInfoAnswer():
            return _filled(protocol.SyncStateSetBody, answer.body).encode() if answer.body is not None else None
    return None


def encode_sync_state_data(groups: Mapping[str, answers.GetSyncStateDataAnswer]) -> bytes:
    """Return the body of 1006: every known group by its name."""
    table = {
        broker_name: _filled(
            protocol.ReplicasInfo,
            answer,
            in_sync_replicas=_standings(broker_name, answer.in_sync_replicas),
            not_in_sync_replicas=_standings(broker_name, answer.not_in_sync_replicas),
        )
        for broker_name, answer in groups.items()
    }
    return protocol.BrokerReplicasInfoBody(table).encode()


def _standings(broker_name: str, standings: Iterable[answers.ReplicaStanding]) -> tuple[protocol.ReplicaIdentity, ...]:
    return tuple(_filled(protocol.ReplicaIdentity, one, broker_name=broker_name) for one in standings)
