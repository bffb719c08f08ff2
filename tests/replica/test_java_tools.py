"""Java's own mqadmin and producer against a container of Python replicas, with no other JVM: routes come from the sandbox."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import pytest

from brokergroup_operator.demo.routes import RouteServer
from rocketmq_remoting.signature import Credentials
from rocketmq_replica.broker_container import BrokerContainer, run_container
from rocketmq_replica.configuration import ContainerConfiguration, parse_configuration
from tests.real.parts import install, java
from tests.real.parts.process import RealProcessError
from tests.replica.support import Client, configuration_text, fresh_address
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.controller.conftest import StartPlane

pytestmark = [pytest.mark.real("java", "rocketmq"), pytest.mark.timeout(300)]

KEY = Credentials(access_key="admin", secret_key="secret-of-the-container")
MESSAGES = 200


@pytest.fixture
async def routes() -> AsyncIterator[RouteServer]:
    server = RouteServer()
    await server.start("127.0.0.1", 0)
    yield server
    await server.stop()


async def test_mqadmin_adds_and_removes_brokers_and_a_java_producer_finds_them(
    start_plane: StartPlane, routes: RouteServer, tmp_path: Path
) -> None:
    plane = await start_plane(heartbeat_timeout_seconds=5.0)
    address = fresh_address()

    def text(name: str, port: int) -> str:
        keys = {"brokerName": name, "listenPort": port, "namesrvAddr": routes.address}
        return configuration_text(tmp_path / name, plane.address, address, **keys)

    container = BrokerContainer([parse_configuration(text("broker-a", 10911), {})])
    stop = asyncio.Event()
    configuration = ContainerConfiguration(bind_address=address, credentials=KEY)
    running = asyncio.create_task(run_container(container, configuration, stop=stop))
    admin = tmp_path / "mqadmin"
    (admin / "conf").mkdir(parents=True)
    (admin / "conf" / "tools.yml").write_text(f"accessKey: {KEY.access_key}\nsecretKey: {KEY.secret_key}\n")
    (tmp_path / "b.conf").write_text(text("broker-b", 10921))

    async def mqadmin(*arguments: str, folder: Path = admin) -> str:
        return await asyncio.to_thread(java.mqadmin, folder, *arguments, name_server_address=routes.address)

    async def change(*arguments: str, said: str, done_before: str) -> None:
        """Asked again when the answer came too late for mqadmin, what was done then is refused."""
        try:
            assert said in await mqadmin(*arguments)
        except RealProcessError as error:
            assert done_before in str(error), error  # noqa: PT017 - either is right

    try:
        port = f"{address}:10811"
        with pytest.raises(RealProcessError, match="CODE: 16"):
            await mqadmin("addBroker", "-c", port, "-b", str(tmp_path / "b.conf"), folder=tmp_path / "without-a-key")
        await change(
            *("addBroker", "-c", port, "-b", str(tmp_path / "b.conf")),
            said=f"add broker to {port} success",
            done_before="broker-b of this container has it already",
        )
        await eventually(lambda: routes.table.members(("DefaultCluster", "broker-b")).keys() == {0})
        await eventually(lambda: routes.table.members(("DefaultCluster", "broker-a")).keys() == {0})
        listed = await mqadmin("clusterList")
        for name, broker_port in (("broker-a", 10911), ("broker-b", 10921)):
            assert [name, "0", f"{address}:{broker_port}"] in [line.split()[1:4] for line in listed.splitlines()]
        # Made by the first send, the topic would be at one broker only, and a producer that asks for the route then stays there.
        made = await mqadmin("updateTopic", "-c", "DefaultCluster", "-t", "Demo", "-r", "4", "-w", "4")
        for broker_port in (10911, 10921):
            assert f"create topic to {address}:{broker_port} success" in made
        await eventually(lambda: writable_queues(routes) == {"broker-a": 4, "broker-b": 4})
        acknowledged = await produced(routes.address)
        assert {each["broker"] for each in acknowledged} == {"broker-a", "broker-b"}
        await check_all_are_there(acknowledged, address)
        await change(
            *("removeBroker", "-c", port, "-b", "DefaultCluster:broker-b:1"),
            said=f"remove broker from {port} success",
            done_before="DefaultCluster#broker-b#1: 0 brokers of this container",
        )
        await eventually(lambda: not routes.table.members(("DefaultCluster", "broker-b")))
    finally:
        stop.set()
        await running


def writable_queues(routes: RouteServer) -> dict[str, int]:
    """By the name of the broker, as a producer's next question about the topic is answered."""
    route = routes.table.route("Demo")
    return {} if route is None else {each.broker_name: each.write_queue_nums for each in route.queue_datas}


async def produced(name_server: str) -> list[dict[str, object]]:
    """What Java's producer says was acknowledged."""
    command = [
        *("java", "-Xms128m", "-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", java.QUIET),
        *("-cp", str(install.rocketmq_home() / "lib" / "*"), str(java.DEMO_JAVA / "NumberedProducer.java")),
        *("--name-server", name_server, "--topic", "Demo", "--messages", str(MESSAGES), "--send-timeout-ms", "10000"),
    ]
    process = await asyncio.create_subprocess_exec(
        *command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        output, errors = await asyncio.wait_for(process.communicate(), 120)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    events = [json.loads(line) for line in output.decode().splitlines()]
    acknowledged = [event for event in events if event["event"] == "ack"]
    assert len(acknowledged) == MESSAGES, errors.decode()
    return acknowledged


async def check_all_are_there(acknowledged: list[dict[str, object]], address: str) -> None:
    client = Client()
    ports = {"broker-a": 10911, "broker-b": 10921}
    try:
        for name, port in ports.items():
            for queue_id in range(4):
                expected = sorted(
                    int(str(each["offset"]))
                    for each in acknowledged
                    if (each["broker"], each["queue"]) == (name, queue_id)
                )
                if expected:
                    found = await client.pull_all(f"{address}:{port}", topic="Demo", queue_id=queue_id)
                    assert [message.queue_offset for message in found] == expected
    finally:
        await client.remoting.close()
