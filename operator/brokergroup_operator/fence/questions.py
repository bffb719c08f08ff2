"""The two requests of the fence and what their answers mean.

1006 to a controller, 907 to the broker (docs/reference/controller.md).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from brokergroup_operator.fence.decide import LocalRole, Member, Told
from rocketmq_remoting.address import heard_address
from rocketmq_remoting.broker_protocol import HARuntimeInfoBody
from rocketmq_remoting.codes import RequestCode, ResponseCode
from rocketmq_remoting.command import request
from rocketmq_remoting.controller_protocol import BrokerReplicasInfoBody, encode_broker_names
from rocketmq_remoting.errors import BodyError

if TYPE_CHECKING:
    from rocketmq_remoting.address import Address
    from rocketmq_remoting.command import RemotingCommand
    from rocketmq_remoting.controller_protocol import ReplicasInfo

# In the answer to 1006, beside Java's body: of the groups asked for, those that their owner has deleted or hibernated.
STOPPING_GROUPS: Final = "brokergroupStopping"


def controller_question(broker_name: str) -> RemotingCommand:
    """Who is master and who is in sync: open to everybody, answered from memory."""
    return request(RequestCode.CONTROLLER_GET_SYNC_STATE_DATA, body=encode_broker_names([broker_name]))


def broker_question() -> RemotingCommand:
    """907 (GET_BROKER_HA_STATUS)."""
    return request(RequestCode.GET_BROKER_HA_STATUS)


def is_word_of_a_controller(answer: RemotingCommand | None) -> bool:
    """Whether a controller that can decide has answered; one that does not lead (2007, Java) cannot."""
    return answer is not None and answer.code == ResponseCode.SUCCESS


def told_by(answer: RemotingCommand, broker_name: str, own_address: Address) -> Told | None:
    """What a controller said of our group; None if it does not know it, or says nothing that can be read."""
    try:
        info = BrokerReplicasInfoBody.decode(answer.body).replicas_info_table.get(broker_name)
    except BodyError:
        return None
    if info is None:
        return None
    members = _members(info)
    own = [member.broker_id for member in members if heard_address(member.address) == own_address]
    return Told(
        own_id=own[0] if len(own) == 1 else None,
        master_id=info.master_broker_id,
        master_epoch=info.master_epoch,
        members=members,
        stops=broker_name in (answer.ext_fields or {}).get(STOPPING_GROUPS, "").split(";"),
    )


def _members(info: ReplicasInfo) -> tuple[Member, ...]:
    return tuple(
        Member(one.broker_id, one.broker_address or "", in_sync=in_sync, alive=one.alive)
        for in_sync, replicas in ((True, info.in_sync_replicas), (False, info.not_in_sync_replicas))
        for one in replicas
    )


def local_role(answer: RemotingCommand | None) -> LocalRole:
    """What the broker's answer to 907 means."""
    if answer is None:
        return LocalRole.SILENT
    if answer.code != ResponseCode.SUCCESS:
        return LocalRole.UNKNOWN
    try:
        return LocalRole.MASTER if HARuntimeInfoBody.decode(answer.body).master else LocalRole.SLAVE
    except BodyError:
        return LocalRole.UNKNOWN
