"""Do the other controller planes hear it? A master that is silent here may only be cut off from us.

Every plane hears every broker, so silence at one of several says little. Before a master that
is not known to be dead is fenced, the other planes are asked what they see (1006, ``alive``), side by side and with one short
deadline. A plane that is down or cut off from us says nothing and costs at most that deadline.

How long their word counts: while more than half of all planes hear the master, it is not ours to judge. Fewer are believed
for ``other_planes_patience_seconds`` of one silence: a plane with a stuck view cannot keep a dead master in office for ever.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from rocketmq_remoting.codes import RequestCode, ResponseCode
from rocketmq_remoting.command import request
from rocketmq_remoting.controller_protocol import BrokerReplicasInfoBody, encode_broker_names
from rocketmq_remoting.errors import BodyError, RemotingError

if TYPE_CHECKING:
    from brokergroup_operator.controller.settings import PlaneSettings
    from brokergroup_operator.records.store import GroupKey
    from rocketmq_remoting.client import RemotingClient

# Beside the broker name in a plane's question: two groups of two namespaces may have one name, each at NameServers of its own.
ASKED_NAMESPACE: Final = "brokergroupNamespace"
ASKED_NAME: Final = "brokergroupName"


@dataclass(frozen=True, slots=True)
class HeardElsewhere:
    """Which of the other planes hear a broker, and how many planes there are, ourselves included."""

    hearing: tuple[str, ...] = ()
    planes: int = 1

    def protects(self, silent_for_seconds: float, patience_seconds: float) -> bool:
        """Whether a broker that has been silent here for so long is left alone on their word."""
        if 2 * len(self.hearing) > self.planes:
            return True
        return bool(self.hearing) and silent_for_seconds < patience_seconds


class Corroboration:
    """Asks the other planes of this installation."""

    def __init__(self, client: RemotingClient, settings: PlaneSettings) -> None:
        self._client = client
        self._settings = settings
        # Which of the plane addresses is this one; known when it listens.
        self.own_address = settings.advertise_address

    async def who_hears(self, key: GroupKey, broker_name: str, broker_id: int) -> HeardElsewhere:
        """Ask all others at once; whoever has not answered by the deadline has not heard it."""
        others = [address for address in self._settings.peer_addresses if address != self.own_address]
        answers = await asyncio.gather(*(self._hears(address, key, broker_name, broker_id) for address in others))
        hearing = tuple(address for address, hears in zip(others, answers, strict=True) if hears)
        return HeardElsewhere(hearing=hearing, planes=len(others) + 1)

    async def _hears(self, address: str, key: GroupKey, broker_name: str, broker_id: int) -> bool:
        question = request(
            RequestCode.CONTROLLER_GET_SYNC_STATE_DATA,
            ext_fields={ASKED_NAMESPACE: key.namespace, ASKED_NAME: key.name},
            body=encode_broker_names([broker_name]),
        )
        try:
            answer = await self._client.invoke(
                address, question, timeout_seconds=self._settings.other_planes_deadline_seconds
            )
            if answer.code != ResponseCode.SUCCESS:
                return False
            seen = BrokerReplicasInfoBody.decode(answer.body).replicas_info_table.get(broker_name)
        except (RemotingError, BodyError, ValueError):
            return False
        if seen is None:
            return False
        members = (*seen.in_sync_replicas, *seen.not_in_sync_replicas)
        return any(member.broker_id == broker_id and member.alive for member in members)
