"""Whether a request that changes this replica's role or settings, or takes messages away, is signed with our key.

That is 1008 above all, which makes masters, and 215: nothing brings a deleted topic back. Not what only reads (907, 1007, 26, 28):
a controller that holds a wrong key, because somebody changed the Secret, must still be able to see which unheard broker acts as
master, or the mistake would cost a failover.
Not what slaves ask a master (906 without an address, 21, 43, 45, 201): one that was not yet restarted with the key must find its
master, or a rolling restart would wait for it for ever. Nor what producers and consumers ask; for them there is a NetworkPolicy,
or TLS with client certificates.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from rocketmq_remoting.broker_protocol import ExchangeHAInfoRequestHeader
from rocketmq_remoting.codes import RequestCode, ResponseCode
from rocketmq_remoting.limits import PeerLog
from rocketmq_remoting.signature import SignatureState, verify

if TYPE_CHECKING:
    from rocketmq_remoting.command import RemotingCommand
    from rocketmq_remoting.connection import RemotingConnection
    from rocketmq_replica.term.broker import Broker

peer_log = PeerLog(logging.getLogger(__name__))

OPERATORS_ONLY: Final = frozenset(
    {
        RequestCode.NOTIFY_BROKER_ROLE_CHANGED,
        RequestCode.EXCHANGE_BROKER_HA_INFO,
        RequestCode.UPDATE_BROKER_CONFIG,
        RequestCode.DELETE_TOPIC_IN_BROKER,
    }
)


class SignatureCheck:
    """Without credentials everybody is an operator, as on a Java broker's port without ACL."""

    def __init__(self, broker: Broker) -> None:
        """``authenticationEnabled`` is read at every request: it is turned off while the key is changed."""
        self._broker = broker

    def refusal(self, request: RemotingCommand, connection: RemotingConnection) -> RemotingCommand | None:
        """The answer to somebody who may not ask this; None: go on."""
        if request.code not in OPERATORS_ONLY or not self._broker.live.operators_sign or _is_slaves_question(request):
            return None
        credentials = self._broker.configuration.credentials
        assert credentials is not None, "nobody can be asked to sign with a key that there is not"
        state = verify(request.ext_fields, request.body, credentials)
        if state is SignatureState.VALID:
            return None
        peer_log.warning("%s: code %d refused: %s", connection.peer_host, request.code, state.value)
        remark = f"{state.value}: expected a signature with this broker's innerClientAuthenticationCredentials"
        return request.answer(ResponseCode.NO_PERMISSION, remark=remark)


def _is_slaves_question(request: RemotingCommand) -> bool:
    """906 as a slave asks it: where is your HA listener?"""
    if request.code != RequestCode.EXCHANGE_BROKER_HA_INFO:
        return False
    return not ExchangeHAInfoRequestHeader.decode(request.ext_fields).master_ha_address
