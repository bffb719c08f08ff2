"""The controller planes of this installation: which acts first, which one hears a broker, whether one still listens.

Every plane hears every broker, so silence at one of several says little. Before a master that is not known to be dead is fenced,
the other planes are asked what they see (1006, `alive`), at once and with one short deadline.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from rocketmq_remoting.address import EXPECTED, heard_address
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
    """Which of the other planes hear a broker, and how many planes there are, this one included."""

    hearing: tuple[str, ...] = ()
    planes: int = 1

    def protects(self, silent_for_seconds: float, patience_seconds: float) -> bool:
        """Whether a broker that has been silent here for so long is left alone on their word.

        A majority always protects it. A minority does for `patience_seconds`: one plane with a stuck view must not keep a dead
        master in office (`tests/controller/test_corroboration.py`).
        """
        if 2 * len(self.hearing) > self.planes:
            return True
        return bool(self.hearing) and silent_for_seconds < patience_seconds


class Planes:
    """This plane among the others. `own_address` is known when the plane listens."""

    def __init__(self, client: RemotingClient, settings: PlaneSettings) -> None:
        self._client = client
        self._settings = settings
        self.own_address = settings.advertise_address

    def rank(self, key: GroupKey) -> int:
        """Return this plane's place for one group, 0 for the first. Safety does not rest on it: the compare-and-set decides.

        By rendezvous hashing, so that every plane is first for its share of the groups.
        """
        return rank_of(self.own_address, self._settings.peer_addresses, str(key))

    @property
    def others(self) -> list[str]:
        """The addresses of the other planes."""
        return [address for address in self._settings.peer_addresses if address != self.own_address]

    async def who_hears(self, key: GroupKey, broker_name: str, broker_id: int) -> HeardElsewhere:
        """Ask all others at once. A plane that has not answered by the deadline counts as not hearing the broker."""
        others = self.others
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
        members = (*seen.in_sync_replicas, *seen.not_in_sync_replicas) if seen is not None else ()
        return any(member.broker_id == broker_id and member.alive for member in members)


def rank_of(own_address: str, addresses: tuple[str, ...], group: str) -> int:
    """Return the place of this address among all for one group."""

    def weight(address: str) -> bytes:
        return hashlib.blake2b(f"{address}|{group}".encode(), digest_size=8).digest()

    return sorted(addresses, key=weight).index(own_address) if own_address in addresses else 0


async def dial(address: str, *, deadline_seconds: float) -> None:
    """Connect to `host:port`, and close the connection. Raise `ConnectionRefusedError` if nothing listens there, `TimeoutError`
    after the deadline, another `OSError` if there is no way to the host, `ValueError` for an address that is none.
    """
    found = heard_address(address)
    if found is None:
        raise ValueError(f"address {address!r}, expected {EXPECTED}")
    async with asyncio.timeout(deadline_seconds):
        _, writer = await asyncio.open_connection(found.host, found.port)
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
