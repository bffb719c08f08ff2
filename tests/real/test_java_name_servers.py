"""A running Java broker takes another list of NameServers, and registers with the new ones without a restart."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import pytest
from msgspec import convert

from brokergroup_operator.api.brokergroup import BrokerGroupSpec
from brokergroup_operator.migrate.java import JavaCalls
from brokergroup_operator.reconcile.render.broker_config import broker_properties
from brokergroup_operator.reconcile.settings import ReconcileSettings
from rocketmq_remoting.client import RemotingClient
from rocketmq_remoting.codes import RequestCode
from rocketmq_remoting.command import request
from rocketmq_remoting.errors import RemotingError
from rocketmq_remoting.serialization import encode_properties
from tests.real.parts import java

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.real("java", "rocketmq"), pytest.mark.timeout(300)]
DEADLINE_SECONDS = 120.0


async def registered(client: RemotingClient, name_server: str, broker: str) -> None:
    """Wait until the NameServer names the broker."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while True:
        shown = (await JavaCalls(client).clusters(name_server)).broker_addr_table or {}
        if broker in str(shown):
            return
        assert time.monotonic() < deadline, f"{name_server} does not know {broker}: {shown}"
        await asyncio.sleep(0.3)


async def test_issue_52_a_java_broker_follows_a_new_list_of_name_servers(
    tmp_path: Path, java_name_server: java.JavaProgram
) -> None:
    """apache/rocketmq-operator #52, apache/rocketmq #2310: the broker registers with a new NameServer without a restart."""
    spec = convert({"implementation": "Java", "nameServers": [java_name_server.address]}, BrokerGroupSpec)
    rendered = broker_properties("orders", spec, ReconcileSettings(controller_addresses=("127.0.0.1:1",)))
    second = java.start_name_server(tmp_path / "second")
    broker = java.start_broker(
        tmp_path / "broker",
        controller_address="127.0.0.1:1",
        name_server_address=java_name_server.address,
        updateNameServerAddrPeriod=rendered["updateNameServerAddrPeriod"],
        # Alone, so that it serves without a controller.
        enableControllerMode="false",
        brokerId="0",
        brokerRole="ASYNC_MASTER",
    )
    client = RemotingClient()
    try:
        await asyncio.to_thread(second.wait_until_listening)
        await asyncio.to_thread(broker.wait_until_listening)
        await registered(client, java_name_server.address, broker.address)
        pid = broker.process.pid
        body = encode_properties({"namesrvAddr": f"{java_name_server.address};{second.address}"})
        answer = await client.invoke(
            broker.address, request(RequestCode.UPDATE_BROKER_CONFIG, body=body), timeout_seconds=10
        )
        assert answer.code == 0, answer.remark
        await registered(client, second.address, broker.address)
        assert broker.process.pid == pid
        assert broker.process.process.poll() is None
    except RemotingError as error:
        pytest.fail(f"{error}\n{broker.process.tail()}")
    finally:
        await client.close()
        broker.process.kill()
        second.process.kill()
