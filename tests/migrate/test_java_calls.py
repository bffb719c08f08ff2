"""What is asked of Java programs: signed where it must be, and a failure that says whether anybody was there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from brokergroup_operator.migrate.java import JavaCalls, MigrationCallError, PortClosedError
from rocketmq_remoting.client import RemotingClient
from rocketmq_remoting.codes import RequestCode, ResponseCode
from rocketmq_remoting.server import RemotingServer
from rocketmq_remoting.signature import Credentials, SignatureState, verify
from tests.support.places import free_port
from tests.support.quiet_handler import QuietHandler

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from rocketmq_remoting.command import RemotingCommand
    from rocketmq_remoting.connection import RemotingConnection

ADMINISTRATOR = Credentials(access_key="admin", secret_key="secret")


class GuardedBroker(QuietHandler):
    """Answers 26 and 25 to those who sign, as a broker with authenticationEnabled does."""

    def __init__(self) -> None:
        self.taken = b""

    def handle(self, asked: RemotingCommand, connection: RemotingConnection) -> RemotingCommand:
        if verify(asked.ext_fields, asked.body, ADMINISTRATOR) is not SignatureState.VALID:
            return asked.answer(ResponseCode.NO_PERMISSION, remark="no signature")
        if asked.code == RequestCode.UPDATE_BROKER_CONFIG:
            self.taken = asked.body or b""
            return asked.answer(0)
        return asked.answer(0, body=b"brokerName=bn\n")


@pytest.fixture
async def client() -> AsyncIterator[RemotingClient]:
    made = RemotingClient()
    yield made
    await made.close()


async def test_every_request_is_signed_where_credentials_are_given(client: RemotingClient) -> None:
    broker = GuardedBroker()
    server = RemotingServer(broker)
    await server.start("127.0.0.1", 0)
    address = f"{server.host}:{server.port}"
    try:
        with pytest.raises(MigrationCallError, match="answered 16: no signature"):
            await JavaCalls(client).broker_configuration(address)
        calls = JavaCalls(client, credentials=ADMINISTRATOR)
        assert await calls.broker_configuration(address) == {"brokerName": "bn"}
        await calls.list_controllers(address, "a:1;b:2")
        assert broker.taken == b"controllerAddr=a:1;b:2\n"
    finally:
        await server.stop()


@pytest.mark.real_time
async def test_a_refused_connection_is_told_from_everything_else(client: RemotingClient) -> None:
    calls = JavaCalls(client, deadline_seconds=1.0)
    with pytest.raises(PortClosedError):
        await calls.metadata(f"127.0.0.1:{free_port('127.0.0.1')}")
    with pytest.raises(MigrationCallError) as told:
        await calls.metadata("no-such-host.invalid:9878")
    assert not isinstance(told.value, PortClosedError), "a name that does not resolve proves nothing"
