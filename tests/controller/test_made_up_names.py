"""The controller alone takes any brokerName: names that no broker registers under fill no table, no disk and no log (issue 20)."""

from __future__ import annotations

import asyncio
import gc
from typing import TYPE_CHECKING

import pytest

from brokergroup_operator.controller.directory import group_directory
from brokergroup_operator.controller.directory.group_directory import FixedDirectory
from brokergroup_operator.controller.group.group import Group
from brokergroup_operator.controller.settings import SecuritySettings
from brokergroup_operator.records.file import FileRecordStore
from brokergroup_operator.records.memory import MemoryRecordStore
from brokergroup_operator.records.store import GroupKey
from rocketmq_remoting.client import RemotingClient
from rocketmq_remoting.command import request
from rocketmq_remoting.controller_protocol import encode_broker_names
from tests.controller.conftest import StartPlane, snapshot_of
from tests.support.fake_broker import FakeGroup, eventually

if TYPE_CHECKING:
    from pathlib import Path

    from brokergroup_operator.controller.plane import ControllerPlane
    from rocketmq_remoting.command import RemotingCommand

FEW = 20


async def ask(client: RemotingClient, plane: ControllerPlane, code: int, name: str, **fields: str) -> RemotingCommand:
    named = {"clusterName": "cl", "brokerName": name, **fields}
    return await client.invoke(plane.address, request(code, ext_fields=named), timeout_seconds=5)


async def apply(client: RemotingClient, plane: ControllerPlane, name: str, broker_id: int = 1) -> int:
    fields = {"appliedBrokerId": str(broker_id), "registerCheckCode": f"127.0.0.1:{broker_id};1"}
    return (await ask(client, plane, 1013, name, **fields)).code


async def next_id(client: RemotingClient, plane: ControllerPlane, name: str) -> str:
    return ((await ask(client, plane, 1012, name)).ext_fields or {})["nextBrokerId"]


async def register(client: RemotingClient, plane: ControllerPlane, name: str, broker_id: int = 1) -> int:
    fields = {"brokerId": str(broker_id), "brokerAddress": f"127.0.0.1:{broker_id}"}
    return (await ask(client, plane, 1003, name, **fields)).code


def test_thirty_thousand_made_up_names_take_no_real_groups_place() -> None:
    directory = FixedDirectory()
    for number in range(30_000):
        directory.find(f"made-up-{number}")
    assert directory.find("orders") is not None
    assert len(directory.bindings()) <= group_directory.MOST_UNREGISTERED


async def test_what_is_kept_of_made_up_names_has_a_bound(
    start_plane: StartPlane, group: FakeGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asked for in every way, and beaten for over one connection; the real group and its master stay."""
    monkeypatch.setattr(group_directory, "MOST_UNREGISTERED", FEW)
    store = MemoryRecordStore()
    plane = await start_plane(store)
    group.planes = [plane.address]
    await group.three()
    client = RemotingClient()
    names = [f"made-up-{number}" for number in range(20 * FEW)]
    await client.invoke(plane.address, request(1006, body=encode_broker_names(names)), timeout_seconds=5)
    for name in names:
        await ask(client, plane, 1012, name)
        await ask(client, plane, 1004, name, brokerAddress="127.0.0.1:1")
        beat = {"brokerAddr": "127.0.0.1:1", "brokerId": "1", "heartbeatTimeoutMills": "5000", "epoch": "1"}
        await ask(client, plane, 904, name, **beat)
    real = GroupKey("standalone", group.name)
    assert len(names_of(plane)) <= FEW + 1
    assert set(store._records) == {real}
    assert snapshot_of(plane, real).writable
    await eventually(lambda: kept_groups() <= FEW + 1, what="the groups that gave way to be let go")
    await client.close()


def names_of(plane: ControllerPlane) -> set[str]:
    return {key.name for key in plane.keys()}  # noqa: SIM118 - a GroupView is no mapping


def kept_groups() -> int:
    gc.collect()
    return sum(isinstance(one, Group) for one in gc.get_objects())


async def test_an_address_begins_so_many_names_until_brokers_register(start_plane: StartPlane) -> None:
    store = MemoryRecordStore()
    plane = await start_plane(store, security=SecuritySettings(max_new_names_per_host=3))
    client, neighbour = RemotingClient(local_host="127.64.16.1"), RemotingClient(local_host="127.64.16.2")
    assert [await apply(client, plane, f"a-{number}") for number in range(5)] == [0, 0, 0, 16, 16]
    assert len(store._records) == 3
    assert await apply(client, plane, "a-0", 2) == 0  # a name that has begun may go on
    assert await apply(client, plane, "a-5", 7) == 16  # and what nothing comes of takes no place either
    assert await apply(neighbour, plane, "a-3") == 0
    assert await register(client, plane, "a-0") == 0
    assert [await apply(client, plane, "a-4"), await apply(client, plane, "a-5")] == [0, 16]
    await client.close()
    await neighbour.close()


@pytest.mark.real_time
async def test_the_ids_of_a_name_that_gave_way_are_not_given_again(
    start_plane: StartPlane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its broker wrote the id to its disk when 1013 was answered, and may register with it days later."""
    monkeypatch.setattr(group_directory, "MOST_UNREGISTERED", FEW)
    store = FileRecordStore(tmp_path)
    plane = await start_plane(store)
    client = RemotingClient()
    assert await apply(client, plane, "late") == 0
    for number in range(2 * FEW):
        await ask(client, plane, 1012, f"made-up-{number}")
    assert "late" not in names_of(plane)
    assert len(store._turns) <= FEW + 1
    assert await next_id(client, plane, "late") == "2"
    assert await register(client, plane, "late") == 0
    for number in range(2 * FEW):
        await ask(client, plane, 1012, f"made-up-{number}")
    assert "late" in names_of(plane)
    await client.close()


async def test_a_group_whose_record_is_read_late_is_a_group_all_the_same(
    start_plane: StartPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A controller that began anew knows a group by its record, also where the name gave way while that was read."""
    monkeypatch.setattr(group_directory, "MOST_UNREGISTERED", FEW)
    store, client = MemoryRecordStore(), RemotingClient()
    before = await start_plane(store)
    await apply(client, before, "orders")
    await register(client, before, "orders")
    plane = await start_plane(store)
    await asyncio.gather(ask(client, plane, 1004, "orders"), *(ask(client, plane, 1004, f"x-{n}") for n in range(60)))
    await eventually(lambda: "orders" in names_of(plane), what="the group to be met")
    for number in range(2 * FEW):
        await ask(client, plane, 1012, f"made-up-{number}")
    assert "orders" in names_of(plane)
    await client.close()


def test_a_name_is_escaped_where_it_is_told() -> None:
    assert str(GroupKey("ns", "orders-é")) == "ns/orders-é"
    assert str(GroupKey("ns", "a\x1b[31mb\nlevel=error\u202e")) == r"ns/a\x1b[31mb\nlevel=error\u202e"
    assert str(GroupKey("ns", "a\\x1b")) != str(GroupKey("ns", "a\x1b"))
