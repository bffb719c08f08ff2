"""Record stores by name, also in Kubernetes for brokers that are not pods."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from brokergroup_operator.controller.settings import PlaneSettings
from brokergroup_operator.controller.standalone import StandaloneSettings, run_standalone
from brokergroup_operator.migrate.java import JavaCalls, MigrationCallError, read_state, record_of
from brokergroup_operator.migrate.plan import Standing, write_record
from brokergroup_operator.records.file import FileRecordStore
from brokergroup_operator.records.memory import MemoryRecordStore
from brokergroup_operator.records.store import GroupKey
from brokergroup_operator.records.stores import OwnKubernetesRecordStore, namespace_of, open_record_store
from rocketmq_remoting.client import RemotingClient
from rocketmq_remoting.codes import RequestCode
from rocketmq_remoting.command import request
from rocketmq_remoting.controller_protocol import ApplyBrokerIdRequestHeader
from tests.migrate.test_plan import STATE
from tests.our_kinds import server_with_our_kinds
from tests.support.fake_broker import eventually
from tests.support.places import free_port

if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.real_time
RECORD = record_of(STATE, cluster_name="cl", next_broker_id=4)


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
