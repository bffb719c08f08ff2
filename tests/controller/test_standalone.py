"""The standalone controller: what it is told to use, and that it serves and remembers."""

import asyncio
from functools import partial
from pathlib import Path

import pytest

from brokergroup_operator.controller.settings import PlaneSettings
from brokergroup_operator.controller.standalone import StandaloneSettings, open_store, run_standalone
from brokergroup_operator.records.file import FileRecordStore
from brokergroup_operator.records.memory import MemoryRecordStore
from rocketmq_remoting.client import RemotingClient
from rocketmq_remoting.command import RemotingCommand, request
from rocketmq_remoting.errors import RemotingError
from tests.controller.conftest import StartPlane, record_of
from tests.support.fake_broker import FakeGroup, eventually

BOTH = {"clusterName": "c", "brokerName": "bn"}


async def test_a_store_is_named_in_words(tmp_path: Path) -> None:
    assert isinstance(open_store("memory"), MemoryRecordStore)
    store = open_store(f"file:{tmp_path / 'records'}")
    assert isinstance(store, FileRecordStore)
    await store.close()
    for text in ("", "file:", "memory:x", "etcd:http://x"):
        with pytest.raises(ValueError, match="expected memory or file"):
            open_store(text)


@pytest.mark.real_time
async def test_ids_outlive_the_standalone_controller(tmp_path: Path, unused_tcp_port: int) -> None:
    plane = PlaneSettings(listen_host="127.0.0.1", listen_port=unused_tcp_port)
    settings = StandaloneSettings(plane=plane, store=f"file:{tmp_path / 'records'}")
    address = f"127.0.0.1:{unused_tcp_port}"

    async def ask(client: RemotingClient, code: int, **fields: str) -> RemotingCommand | None:
        try:
            return await client.invoke(address, request(code, ext_fields=BOTH | fields), timeout_seconds=2.0)
        except RemotingError:
            return None

    for expected in ("1", "2"):
        stop, client = asyncio.Event(), RemotingClient()
        running = asyncio.create_task(run_standalone(settings, stop))
        answer = await eventually(partial(ask, client, 1012), what="the controller to answer")
        assert answer.ext_fields["nextBrokerId"] == expected
        await ask(client, 1013, appliedBrokerId=expected, registerCheckCode=f"127.0.0.1:{expected};1")
        await client.close()
        stop.set()
        await running


async def test_a_wildcard_is_no_address_to_tell_brokers(start_plane: StartPlane) -> None:
    """1005 would answer 0.0.0.0, and brokers would ask themselves (issue 9082 is the same mistake with 127.0.0.1)."""
    with pytest.raises(ValueError, match="advertise_address"):
        await start_plane(listen_host="0.0.0.0")


async def test_without_a_fence_a_frozen_master_is_replaced_and_the_promise_withdrawn(start_plane: StartPlane) -> None:
    plane = await start_plane()
    group = FakeGroup(plane.address)
    first, _, _ = await group.three()
    first.freeze()
    (key,) = plane.keys()
    await eventually(lambda: record_of(plane, key).unfenced, what="the failover to be told as unfenced")
    await eventually(lambda: record_of(plane, key).master_epoch == 2)
    await group.stop()
