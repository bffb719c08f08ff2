"""A running master that polls while its group is unknown keeps its mastership when the group is made anew (issue 30, 4)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from brokergroup_operator.controller.wire.heartbeats import UnknownPolls
from brokergroup_operator.records.memory import MemoryRecordStore
from brokergroup_operator.records.store import GroupKey
from controller_core.model import BrokerGroupRecord, Replica
from rocketmq_remoting.client import RemotingClient
from rocketmq_remoting.codes import RequestCode, ResponseCode
from rocketmq_remoting.command import RemotingCommand, request
from tests.controller.test_kubernetes_parts import api, create_pod, directory  # noqa: F401 (fixtures)
from tests.controller.test_twin_names import create, met
from tests.support.fake_broker import eventually

if TYPE_CHECKING:
    from brokergroup_operator.controller.directory.kubernetes_directory import KubernetesDirectory
    from brokergroup_operator.kube.client import KubernetesApi
    from tests.controller.conftest import StartPlane

KEY = GroupKey("default", "first")
NAMED = {"clusterName": "DefaultCluster", "brokerName": "first"}
REPLICAS = {
    one: Replica(broker_id=one, register_check_code=f"code-{one}", address=f"127.64.2.{one}:10911", registered=True)
    for one in (1, 2)
}
RECORD = BrokerGroupRecord(
    cluster_name="DefaultCluster",
    broker_name="first",
    next_broker_id=3,
    replicas=REPLICAS,
    master_broker_id=1,
    master_epoch=4,
    sync_state_set=frozenset({1, 2}),
    sync_state_set_epoch=5,
)


async def poll(client: RemotingClient, plane: str) -> RemotingCommand:
    return await client.invoke(
        plane, request(RequestCode.CONTROLLER_GET_REPLICA_INFO, ext_fields=NAMED), timeout_seconds=5
    )


async def register(client: RemotingClient, plane: str, broker_id: int) -> RemotingCommand:
    fields = NAMED | {"brokerId": str(broker_id), "brokerAddress": f"127.64.2.{broker_id}:10911"}
    return await client.invoke(
        plane, request(RequestCode.CONTROLLER_REGISTER_BROKER, ext_fields=fields), timeout_seconds=5
    )


@pytest.mark.parametrize("runs", [True, False], ids=["running", "started"])
async def test_the_registration_after_a_poll_is_of_the_process_that_runs(
    api: KubernetesApi,  # noqa: F811
    directory: KubernetesDirectory,  # noqa: F811
    start_plane: StartPlane,
    runs: bool,
) -> None:
    store = MemoryRecordStore()
    await store.commit(KEY, RECORD, None)
    await create_pod(api, "first-1", address="127.0.0.1", group="first")
    await eventually(lambda: directory.known_peer("127.0.0.1"))
    plane = await start_plane(store, directory=directory, tick_seconds=3600.0)
    client = RemotingClient()
    try:
        if runs:
            assert (await poll(client, plane.address)).code == ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST
        await create(api, KEY)
        await met(directory, KEY)
        answer = await register(client, plane.address, 1)
        stored = await store.read(KEY)
        assert stored is not None
        if not runs:
            assert (answer.code, stored.record.granted_master_id) == (ResponseCode.SUCCESS, None)
            return
        assert answer.code != ResponseCode.SUCCESS
        assert stored.record == RECORD
        polled = await poll(client, plane.address)
        assert (polled.code, (polled.ext_fields or {}).get("masterBrokerId")) == (ResponseCode.SUCCESS, "1")
        # One poll stands for one registration: the next one on this connection is of a new process.
        assert (await register(client, plane.address, 1)).code == ResponseCode.SUCCESS
        stored = await store.read(KEY)
        assert stored is not None
        assert stored.record.granted_master_id is None
    finally:
        await client.close()


async def test_a_slave_that_was_told_unknown_registers_as_ever(
    api: KubernetesApi,  # noqa: F811
    directory: KubernetesDirectory,  # noqa: F811
    start_plane: StartPlane,
) -> None:
    store = MemoryRecordStore()
    await store.commit(KEY, RECORD, None)
    await create_pod(api, "first-2", address="127.0.0.1", group="first")
    await eventually(lambda: directory.known_peer("127.0.0.1"))
    plane = await start_plane(store, directory=directory, tick_seconds=3600.0)
    client = RemotingClient()
    try:
        await poll(client, plane.address)
        await create(api, KEY)
        await met(directory, KEY)
        assert (await register(client, plane.address, 2)).code == ResponseCode.SUCCESS
    finally:
        await client.close()


def test_what_is_kept_of_a_connection_is_bounded_and_ends_with_it() -> None:
    polls = UnknownPolls()
    for number in range(10_000):
        polls.told_unknown(1, f"made-up-{number}")
    assert sum(polls.registers_because_of_one(1, f"made-up-{number}") for number in range(10_000)) == 100
    polls.told_unknown(1, "first")
    polls.connection_closed(1)
    assert not polls.registers_because_of_one(1, "first")
