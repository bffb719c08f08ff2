"""The basis of a migration: calls of Java programs, a controller that grants nothing, and record stores by name."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from brokergroup_operator.controller.settings import PlaneSettings
from brokergroup_operator.controller.standalone import StandaloneSettings, run_standalone
from brokergroup_operator.migrate.java import (
    JavaCalls,
    MigrationCallError,
    PortClosedError,
    StartingError,
    read_state,
    record_of,
)
from brokergroup_operator.migrate.plan import Standing, write_record
from brokergroup_operator.migrate.quiet_controller import QuietController
from brokergroup_operator.records.file import FileRecordStore
from brokergroup_operator.records.memory import MemoryRecordStore
from brokergroup_operator.records.store import GroupKey
from brokergroup_operator.records.stores import OwnKubernetesRecordStore, namespace_of, open_record_store
from rocketmq_remoting.client import RemotingClient
from rocketmq_remoting.codes import RequestCode, ResponseCode
from rocketmq_remoting.command import RemotingCommand, request
from rocketmq_remoting.controller_protocol import (
    ApplyBrokerIdRequestHeader,
    BrokerHeartbeatRequestHeader,
    GetMetaDataResponseHeader,
)
from rocketmq_remoting.server import RemotingServer
from rocketmq_remoting.signature import Credentials, SignatureState, verify
from tests.migrate.test_plan import STATE
from tests.our_kinds import server_with_our_kinds
from tests.support.fake_broker import eventually
from tests.support.places import free_port
from tests.support.quiet_handler import QuietHandler

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from rocketmq_remoting.connection import RemotingConnection

ADMINISTRATOR = Credentials(access_key="admin", secret_key="secret")


class GuardedBroker(QuietHandler):
    """Answers only signed 26 and 25, as a broker with authenticationEnabled does."""

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


class StartingBroker(QuietHandler):
    """Answers as a broker of 5.0.0 did for 0.9 s after it had registered with its NameServer."""

    def handle(self, asked: RemotingCommand, connection: RemotingConnection) -> RemotingCommand:
        return asked.answer(
            ResponseCode.SYSTEM_ERROR, remark="java.util.NoSuchElementException, java.base/java.util.LinkedList.getLast"
        )


async def test_an_exception_in_place_of_the_brokers_state_says_that_it_may_be_starting(client: RemotingClient) -> None:
    server = RemotingServer(StartingBroker())
    await server.start("127.0.0.1", 0)
    calls, address = JavaCalls(client), f"{server.host}:{server.port}"
    try:
        with pytest.raises(StartingError) as told:
            await calls.runtime(address)
        said = f"{address}: request 28 answered 1: java.util.NoSuchElementException, java.base/java.util.LinkedList.getLast"
        assert str(told.value).startswith(said)
        assert "try again in some seconds" in str(told.value)
        with pytest.raises(MigrationCallError) as another:
            await calls.broker_configuration(address)
        assert not isinstance(another.value, StartingError)
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


# ---- The answers of a controller that grants nothing.

GRANTS = [1001, 1002, 1003, 1004, 1006, 1011, 1012, 1013]


@pytest.fixture
async def quiet() -> AsyncIterator[QuietController]:
    controller = QuietController(leader="java:9878")
    await controller.start("127.0.0.1", 0)
    yield controller
    await controller.stop()


def heartbeat(broker_id: int | None = 1) -> RemotingCommand:
    header = BrokerHeartbeatRequestHeader(
        cluster_name="cl", broker_name="bn", broker_addr="h:1", broker_id=broker_id, epoch=4, max_offset=77
    )
    return request(RequestCode.BROKER_HEARTBEAT, ext_fields=header.encode())


@pytest.mark.parametrize("code", GRANTS)
async def test_whatever_grants_is_for_the_leader(quiet: QuietController, client: RemotingClient, code: int) -> None:
    fields = {"clusterName": "cl", "brokerName": "bn", "brokerId": "1"}
    answer = await client.invoke(quiet.address, request(code, ext_fields=fields), timeout_seconds=3.0)
    assert answer.code == ResponseCode.CONTROLLER_NOT_LEADER


@pytest.mark.parametrize("code", [1009, 1010])
async def test_nobody_configures_it(quiet: QuietController, client: RemotingClient, code: int) -> None:
    answer = await client.invoke(quiet.address, request(code), timeout_seconds=3.0)
    assert answer.code == ResponseCode.NO_PERMISSION


async def test_it_names_the_leader_it_was_told_of_or_nobody(quiet: QuietController, client: RemotingClient) -> None:
    asked = request(RequestCode.CONTROLLER_GET_METADATA_INFO)
    answer = await client.invoke(quiet.address, asked, timeout_seconds=3.0)
    assert GetMetaDataResponseHeader.decode(answer.ext_fields).controller_leader_address == "java:9878"
    quiet.leader = None
    answer = await client.invoke(quiet.address, asked, timeout_seconds=3.0)
    assert "controllerLeaderAddress" not in (answer.ext_fields or {}), "a broker would take an empty one for an answer"


async def test_a_broker_is_heard_while_its_connection_stands(quiet: QuietController, client: RemotingClient) -> None:
    assert (await client.invoke(quiet.address, heartbeat(), timeout_seconds=3.0)).code == 0
    assert (await client.invoke(quiet.address, heartbeat(), timeout_seconds=3.0)).code == 0
    assert quiet.heard("bn")[1].address == "h:1"
    assert quiet.live("bn")[1].max_offset == 77
    assert quiet.heartbeats("bn") == 2
    client.disconnect(quiet.address)
    await eventually(lambda: not quiet.heard("bn"), what="the end of the connection noticed")
    assert quiet.heartbeats("bn") == 2


async def test_a_heartbeat_without_an_id_is_refused(quiet: QuietController, client: RemotingClient) -> None:
    answer = await client.invoke(quiet.address, heartbeat(None), timeout_seconds=3.0)
    assert answer.code == ResponseCode.CONTROLLER_INVALID_REQUEST


# ---- Record stores by name, also in Kubernetes for brokers that are not pods.

RECORD = record_of(STATE, cluster_name="cl", next_broker_id=4)


@pytest.mark.real_time
async def test_the_record_of_brokers_that_are_not_pods_is_a_broker_group_state(tmp_path: Path) -> None:
    async with server_with_our_kinds() as server:
        kubeconfig = tmp_path / "kubeconfig"
        server.write_kubeconfig(kubeconfig)
        store = open_record_store("kubernetes:default", kubeconfig=kubeconfig)
        assert isinstance(store, OwnKubernetesRecordStore)
        try:
            key = GroupKey(namespace_of("kubernetes:default"), "bn")
            assert await write_record(store, key, RECORD, replace_older=False) is Standing.ABSENT
            later = replace(RECORD, sync_state_set_epoch=RECORD.sync_state_set_epoch + 1)
            assert await write_record(store, key, later, replace_older=True) is Standing.BEHIND
            found = await store.read(key)
            assert found is not None
            assert found.record == later
        finally:
            await store.close()


@pytest.mark.real_time
async def test_stores_by_name(tmp_path: Path) -> None:
    assert isinstance(open_record_store("memory"), MemoryRecordStore)
    file = open_record_store(f"file:{tmp_path / 'records'}")
    assert isinstance(file, FileRecordStore)
    await file.close()
    assert namespace_of("memory") == namespace_of("file:x") == "standalone"
    assert namespace_of("kubernetes:brokers") == "brokers"


@pytest.mark.parametrize("text", ["", "file:", "memory:x", "kubernetes:", "etcd:http://x"])
def test_another_store_is_refused_by_name(text: str) -> None:
    with pytest.raises(ValueError, match="kubernetes:<namespace>"):
        open_record_store(text)


@pytest.mark.real_time
async def test_a_standalone_controller_serves_a_record_in_kubernetes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Brokers that are not pods: the controller plane alone, and the record where the operator would keep it."""
    async with server_with_our_kinds() as server:
        kubeconfig = tmp_path / "kubeconfig"
        server.write_kubeconfig(kubeconfig)
        monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
        store = open_record_store("kubernetes:default")
        await write_record(store, GroupKey("default", "bn"), RECORD, replace_older=False)
        port, stop, client = free_port("127.0.0.1"), asyncio.Event(), RemotingClient()
        settings = StandaloneSettings(
            plane=PlaneSettings(listen_host="127.0.0.1", listen_port=port), store="kubernetes:default"
        )
        running = asyncio.create_task(run_standalone(settings, stop))
        calls, address = JavaCalls(client), f"127.0.0.1:{port}"

        async def served() -> bool:
            with contextlib.suppress(MigrationCallError):
                state = await read_state(calls, address, "bn")
                return state is not None and (state.master_broker_id, state.master_epoch) == (1, RECORD.master_epoch)
            return False

        try:
            await eventually(served, what="the record served")
            header = ApplyBrokerIdRequestHeader(
                cluster_name="cl", broker_name="bn", applied_broker_id=4, register_check_code="127.0.0.1:4;1"
            )
            command = request(RequestCode.CONTROLLER_APPLY_BROKER_ID, ext_fields=header.encode())
            await calls.must(address, command)
            found = await store.read(GroupKey("default", "bn"))
            assert found is not None
            assert found.record.next_broker_id == 5
        finally:
            stop.set()
            await running
            await client.close()
            await store.close()
