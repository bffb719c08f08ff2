"""Brokers of a controller of 5.0.0 and 5.1.0, which gave no persistent ids, go on as 5.5.0 under ours, with `brokergroup adopt`.

Before, they fail over at their own controller: the former master is not the first one, and the other store once had an end that no
one else had.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from brokergroup_operator.controller.directory.group_directory import FixedDirectory
from brokergroup_operator.controller.plane import ControllerPlane
from brokergroup_operator.controller.settings import PlaneSettings
from brokergroup_operator.migrate.stores import Place, inspect
from brokergroup_operator.records.file import FileRecordStore
from controller_core.settings import ControllerSettings
from rocketmq_remoting.client import RemotingClient
from rocketmq_remoting.codes import RequestCode, ResponseCode
from rocketmq_remoting.command import request
from tests.real.test_java_versions import OF_JAVA_8, TOPIC, Cell, controller_of_5_0, master, until_led_by_another
from tests.support.java_rig import KEY, eventually, in_sync, record_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

PARTS = ("java", "rocketmq", "older-rocketmq", "table-rocketmq")
pytestmark = [pytest.mark.real(*PARTS), pytest.mark.timeout(600)]

READERS = "readers"
WHOSE = ("--cluster", "DefaultCluster", "--broker-name", KEY.name)
# The old brokers wait for both, so a message that was acknowledged is on both disks.
OLD: dict[str, Any] = {"inSyncReplicas": 2, "minInSyncReplicas": 1, "mappedFileSizeCommitLog": 1048576}
NEW: dict[str, Any] = {"minInSyncReplicas": 1, "mappedFileSizeCommitLog": 1048576, "consumerOffsetUpdateVersionStep": 1}


@pytest.fixture
async def cell(tmp_path: Path) -> AsyncIterator[Cell]:
    made = Cell(tmp_path, flags=OF_JAVA_8, client=RemotingClient())
    yield made
    made.stop()
    await made.client.close()


async def brokergroup(*arguments: object) -> str:
    """Run `brokergroup adopt`; return its output."""
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "brokergroup_operator.cli.main", "adopt", *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def store(cell: Cell, name: str) -> Path:
    return cell.folder / name / "store"


async def must(cell: Cell, address: str, code: RequestCode, **given: Any) -> dict[str, str]:
    answer = await cell.client.invoke(address, request(code, **given), timeout_seconds=5.0)
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return dict(answer.ext_fields or {})


async def commit_offset(cell: Cell, address: str, offset: int) -> None:
    fields = {"consumerGroup": READERS, "topic": TOPIC, "queueId": "1", "commitOffset": str(offset)}
    await must(cell, address, RequestCode.UPDATE_CONSUMER_OFFSET, ext_fields=fields)


async def offset_of(cell: Cell, address: str) -> int:
    fields = {"consumerGroup": READERS, "topic": TOPIC, "queueId": "1"}
    return int((await must(cell, address, RequestCode.QUERY_CONSUMER_OFFSET, ext_fields=fields))["offset"])


async def are_listed(cell: Cell) -> bool:
    return len(await cell.listed()) == 2 and 0 in await cell.listed()


async def failed_over_once(cell: Cell, version: str) -> str:
    """Run two brokers with a controller of this version, freeze the master, bring it back as a slave; return the master."""
    await cell.name_server_of(version)
    controller = await asyncio.to_thread(controller_of_5_0, cell, version)
    for name in ("one", "two"):
        cell.broker_of(version, name, controller.address, **OLD)
    await eventually(lambda: are_listed(cell), f"both brokers\n{cell.logs()}")
    first = (await cell.listed())[0]
    group = json.dumps({"groupName": READERS}).encode()
    await must(cell, first, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=group)
    await cell.send(first, "first")
    frozen = cell.name_at(first)
    cell.programs[frozen].process.process.send_signal(signal.SIGSTOP)

    async def is_replaced() -> bool:
        return (await cell.listed()).get(0) not in (None, first)

    await eventually(is_replaced, f"another master\n{cell.logs()}")
    second = (await cell.listed())[0]
    await must(cell, second, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=group)
    await cell.send(second, "second")
    cell.programs[frozen].process.kill()
    cell.broker_of(version, frozen, controller.address, **OLD)
    await eventually(lambda: are_listed(cell), f"both brokers again\n{cell.logs()}")
    await cell.send(second, "third")
    await commit_offset(cell, second, 7)
    return cell.name_at(second)


async def upgraded(cell: Cell, former_master: str, slave: str) -> None:
    """The commands of docs/tasks/adopt.md, from running brokers to a record."""
    asked = ("quiet", "--name-server", cell.name_server_address, "--broker-name", KEY.name)
    shown = await brokergroup(*asked)
    assert "note   NoPersistentIds" in shown
    assert "nothing was done" in shown
    assert '"step": "alike"' in (shown := await brokergroup(*asked, "--yes"))
    assert "stop them now: every controller of theirs first, then the slaves, then the master" in shown
    for name in ("controller", slave, former_master):
        await asyncio.to_thread(cell.programs[name].process.stop, 40.0)
    reports = []
    for name in (former_master, slave):
        reports.append(cell.folder / f"{name}.json")
        reports[-1].write_text(await brokergroup("check", store(cell, name)), encoding="utf-8")
    begin = ("begin", *reports, *WHOSE, "--store", f"file:{cell.folder / 'records'}")
    last = inspect(Place(store(cell, former_master))).last_epoch
    assert last > 1
    assert f"--renew-epoch {last + 1}" in await brokergroup(*begin)
    assert not (cell.folder / "records").exists()
    await brokergroup(*begin, "--yes")
    for broker_id, name in enumerate((former_master, slave), start=1):
        words = (store(cell, name), *WHOSE, "--broker-id", broker_id, "--renew-epoch", last + 1)
        await brokergroup("prepare", *words, "--yes")


@asynccontextmanager
async def our_controller(cell: Cell) -> AsyncIterator[ControllerPlane]:
    """Serve the records that `adopt begin` wrote."""
    records = FileRecordStore(cell.folder / "records")
    rules = ControllerSettings(shrink_floor=True, masters_shrink_first=True, min_in_sync_replicas=1)
    plane = ControllerPlane(
        store=records,
        directory=FixedDirectory(settings=rules, name_servers=(cell.name_server_address,)),
        settings=PlaneSettings(listen_host="127.0.0.1", listen_port=0),
    )
    await plane.start()
    try:
        yield plane
    finally:
        await plane.stop()
        await records.close()


@pytest.mark.parametrize("version", ["5.0.0", "5.1.0"])
async def test_brokers_without_persistent_ids_go_on_with_ids_and_every_message(cell: Cell, version: str) -> None:
    former_master = await failed_over_once(cell, version)
    slave = next(name for name in ("one", "two") if name != former_master)
    await upgraded(cell, former_master, slave)
    before = inspect(Place(store(cell, former_master)))
    async with our_controller(cell) as plane:
        # The former master starts last: neither the other store nor an empty one is elected before it.
        for name in ("three", slave, former_master):
            cell.broker_of("5.5.0", name, plane.address, **NEW)
            await asyncio.to_thread(cell.programs[name].wait_until_listening)
        await eventually(lambda: in_sync(plane, 3), f"three in sync\n{cell.logs()}")
        record = record_of(plane)
        assert (record.master_broker_id, record.master_epoch) == (1, before.last_epoch + 1)
        assert cell.name_at(master(plane)) == former_master
        assert set(record.replicas) == {1, 2, 3}
        assert await offset_of(cell, master(plane)) == 7
        await commit_offset(cell, master(plane), 9)
        await cell.send(master(plane), "fourth")
        await cell.check_nothing_is_lost(master(plane))
        await until_led_by_another(cell, plane)
        await cell.send(master(plane), "fifth")
        await cell.check_nothing_is_lost(master(plane))
