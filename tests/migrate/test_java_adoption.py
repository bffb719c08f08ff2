"""Java brokers 5.5.0 with static roles go on with their stores in controller mode, under ours, in place.

Messages, topics and a consumer's offset stay; so they do where the beginning of the log is gone, as in any store older than its
retention: there a slave without data never joins unless `adopt prepare` has written the first epoch.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import re
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from brokergroup_operator.controller.directory.group_directory import FixedDirectory
from brokergroup_operator.controller.plane import ControllerPlane
from brokergroup_operator.controller.settings import PlaneSettings
from brokergroup_operator.demo.client import DemoProducer, numbered_message, read_keys
from brokergroup_operator.migrate.java import JavaCalls
from brokergroup_operator.migrate.stores import Place, inspect
from brokergroup_operator.records.file import FileRecordStore
from controller_core.settings import ControllerSettings
from rocketmq_remoting.client import RemotingClient
from rocketmq_remoting.codes import RequestCode, ResponseCode
from rocketmq_remoting.command import request
from tests.real.parts import java
from tests.support.java_rig import JavaRig, eventually, in_sync, record_of
from tests.support.our_program import output_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from brokergroup_operator.demo.client import Ledger
    from rocketmq_remoting.command import RemotingCommand

pytestmark = [pytest.mark.real("java", "rocketmq"), pytest.mark.timeout(400)]

NAME, CLUSTER, TOPIC, QUEUES = "broker-a", "DefaultCluster", "numbered", 4
GROUP_OF_CONSUMERS = "readers"
FILE_BYTES = 65536
STATIC: dict[str, Any] = {
    "totalReplicas": 2,
    "inSyncReplicas": 2,
    "mappedFileSizeCommitLog": FILE_BYTES,
    "waitTimeMillsInSendQueue": 20000,
}
CONTROLLED: dict[str, Any] = {
    # A Java slave asks for offsets when their version has changed: by default with each 500th commit.
    "consumerOffsetUpdateVersionStep": 1,
    "allAckInSyncStateSet": "true",
    "inSyncReplicas": 2,
    "minInSyncReplicas": 2,
    "mappedFileSizeCommitLog": FILE_BYTES,
    "waitTimeMillsInSendQueue": 20000,
}


@dataclass
class Lab(JavaRig):
    """Static roles first, then the same folders in controller mode."""

    client: RemotingClient = field(kw_only=True)

    async def offset_of_consumers(self, name: str) -> int | None:
        fields = {"consumerGroup": GROUP_OF_CONSUMERS, "topic": TOPIC, "queueId": "1"}
        answer = await self.client.invoke(
            self.programs[name].address,
            request(RequestCode.QUERY_CONSUMER_OFFSET, ext_fields=fields),
            timeout_seconds=5.0,
        )
        return int((answer.ext_fields or {})["offset"]) if answer.code == ResponseCode.SUCCESS else None

    async def must(self, address: str, command: RemotingCommand) -> RemotingCommand:
        answer = await self.client.invoke(address, command, timeout_seconds=5.0)
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        return answer

    async def commit_offset(self, address: str, offset: int) -> None:
        fields = {"consumerGroup": GROUP_OF_CONSUMERS, "topic": TOPIC, "queueId": "1", "commitOffset": str(offset)}
        await self.must(address, request(RequestCode.UPDATE_CONSUMER_OFFSET, ext_fields=fields))

    async def offsets(self, name: str) -> str:
        """Return the whole table of offsets as a slave copies it."""
        answer = await self.must(self.programs[name].address, request(RequestCode.GET_ALL_CONSUMER_OFFSET))
        return (answer.body or b"").decode()

    async def brokergroup(self, *arguments: str) -> str:
        """Run `brokergroup adopt`; return its output."""
        return await output_of("adopt", *arguments)

    async def end_of(self, name: str) -> int:
        """Return where a running broker's log ends."""
        answer = await self.must(self.programs[name].address, request(RequestCode.GET_BROKER_RUNTIME_INFO))
        return int(json.loads(answer.body or b"{}")["table"]["commitLogMaxOffset"])

    def calls(self) -> JavaCalls:
        return JavaCalls(self.client)

    def store(self, name: str) -> Path:
        return self.folder / name / "store"


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncIterator[Lab]:
    client = RemotingClient()
    built = Lab(tmp_path, client=client)
    await asyncio.to_thread(built.start_name_server)
    yield built
    built.stop()
    await client.close()


@asynccontextmanager
async def our_controller(lab: Lab) -> AsyncIterator[ControllerPlane]:
    """Serve the records that `adopt begin` wrote."""
    rules = ControllerSettings(shrink_floor=True, masters_shrink_first=True, min_in_sync_replicas=2)
    store = FileRecordStore(lab.folder / "records")
    plane = ControllerPlane(
        store=store,
        directory=FixedDirectory(settings=rules, name_servers=(lab.name_server_address,)),
        settings=PlaneSettings(listen_host="127.0.0.1", listen_port=0),
    )
    await plane.start()
    try:
        yield plane
    finally:
        await plane.stop()
        await store.close()


async def send(lab: Lab, address: str, *, count: int, first: int = 1) -> Ledger:
    producer = DemoProducer(
        route=lambda: address, broker_name=NAME, topic=TOPIC, send_timeout_seconds=20.0, _keys=itertools.count(first)
    )
    stop = asyncio.Event()
    sending = asyncio.create_task(producer.run(stop))
    await eventually(lambda: len(producer.ledger.acknowledgements) >= count, f"{count} messages\n{lab.logs()}")
    stop.set()
    await sending
    return producer.ledger


async def static_roles(lab: Lab) -> Ledger:
    """Run master and slave, send messages, commit a consumer's offset, and stop both when they hold the same."""
    await lab.start_static_roles("one", "two", **STATIC)
    master = lab.programs["one"].address
    ledger = await send(lab, master, count=900)
    group = json.dumps({"groupName": GROUP_OF_CONSUMERS}).encode()
    await lab.must(master, request(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=group))
    await lab.commit_offset(master, 7)

    shown = await lab.brokergroup("quiet", "--name-server", lab.name_server_address, "--broker-name", NAME, "--yes")
    assert '"step": "alike"' in shown
    refused = await lab.client.invoke(
        master,
        numbered_message("m99999999", broker_name=NAME, topic=TOPIC, queue_id=0),
        timeout_seconds=5.0,
    )
    assert refused.code == ResponseCode.SYSTEM_ERROR
    assert "unable to service" in (refused.remark or "")
    for name in ("one", "two"):
        await asyncio.to_thread(lab.programs[name].process.stop, 40.0)
    return ledger


def lose_the_first_file(lab: Lab) -> set[str]:
    """Delete the oldest file of both logs, as their retention does; return the keys of its messages."""
    gone: set[str] = set()
    for name in ("one", "two"):
        oldest = min((lab.store(name) / "commitlog").iterdir())
        gone |= {key.decode() for key in re.findall(rb"m\d{8}", oldest.read_bytes())}
        oldest.unlink()
    return gone


async def take_over(lab: Lab) -> None:
    """The three commands of docs/tasks/adopt.md."""
    whose = ("--cluster", CLUSTER, "--broker-name", NAME)
    reports = []
    for name in ("one", "two"):
        reports.append(lab.folder / f"{name}.json")
        reports[-1].write_text(await lab.brokergroup("check", str(lab.store(name))), encoding="utf-8")
    records = f"file:{lab.folder / 'records'}"
    begin = ("begin", *map(str, reports), *whose, "--store", records)
    assert "nothing was done" in await lab.brokergroup(*begin)
    assert not (lab.folder / "records").exists()
    await lab.brokergroup(*begin, "--yes")
    for broker_id, name in enumerate(("one", "two"), start=1):
        await lab.brokergroup("prepare", str(lab.store(name)), *whose, "--broker-id", str(broker_id), "--yes")


async def test_static_roles_go_on_in_controller_mode_with_everything_they_had(lab: Lab) -> None:
    ledger = await static_roles(lab)
    gone = lose_the_first_file(lab)
    assert gone
    await take_over(lab)
    async with our_controller(lab) as plane:
        # The empty broker starts first: it must not be elected, however late the others come.
        for name in ("three", "two", "one"):
            lab.start_broker(name, controllers=plane.address, **CONTROLLED)
            await asyncio.to_thread(lab.programs[name].wait_until_listening)
        await eventually(lambda: in_sync(plane, 3), f"three in sync\n{lab.logs()}")
        record = record_of(plane)
        assert (record.master_broker_id, record.master_epoch) == (1, 2)
        assert record.address_of(1) == lab.programs["one"].address
        assert await lab.offset_of_consumers("one") == 7
        later = await send(lab, lab.programs["one"].address, count=100, first=1_000_000)

        def missing(keys: set[str]) -> list[str]:
            return sorted({*ledger.missing_from(keys), *later.missing_from(keys)} - gone)

        # Not read before that: a pull leaves an entry at the master for which a 5.5.0 slave copies no offsets any more.
        await lab.commit_offset(lab.programs["one"].address, 9)
        await eventually(lambda: offsets_are_copied(lab), "the slaves have the consumers' offset")
        assert missing(await read_keys(lab.programs["one"].address, TOPIC, QUEUES)) == []
        lab.programs["one"].process.kill()
        await eventually(lambda: record_of(plane).master_epoch == 3 and in_sync(plane, 2), "another master")
        master = lab.name_at(record_of(plane).address_of(record_of(plane).master_broker_id) or "")
        assert missing(await read_keys(lab.programs[master].address, TOPIC, QUEUES)) == []
        assert await lab.offset_of_consumers(master) == 9


async def offsets_are_copied(lab: Lab) -> bool:
    """Whether both slaves have copied the offset from their master, as each does every 10 s."""
    shown = [await lab.offsets(name) for name in ("two", "three")]
    return all(f'"{TOPIC}@{GROUP_OF_CONSUMERS}":{{1:9}}' in one for one in shown)


async def test_brokers_of_a_java_controller_keep_ids_and_epochs(lab: Lab) -> None:
    """Both are stopped with the Java controller; the record begins at their last epoch, and the next one is above it."""
    controller = java.start_controller(lab.folder / "controller")
    await asyncio.to_thread(controller.wait_until_listening)
    for name in ("one", "two"):
        lab.start_broker(name, controllers=controller.address, **CONTROLLED)
        await asyncio.to_thread(lab.programs[name].wait_until_listening)
    lab.programs["controller"] = controller
    ledger = await send(lab, lab.programs["one"].address, count=300)
    # The slave first: a master that loses its controller keeps its role, and takes nothing alone.
    for name in ("two", "one", "controller"):
        await asyncio.to_thread(lab.programs[name].process.stop, 40.0)
    before = {name: inspect(Place(lab.store(name))) for name in ("one", "two")}
    assert before["one"].last_epoch >= 1
    await take_over(lab)
    assert {name: inspect(Place(lab.store(name))) for name in ("one", "two")} == before
    async with our_controller(lab) as plane:
        for name in ("two", "one"):
            lab.start_broker(name, controllers=plane.address, **CONTROLLED)
        await eventually(lambda: in_sync(plane, 2), f"two in sync\n{lab.logs()}")
        record = record_of(plane)
        assert (record.master_broker_id, record.master_epoch) == (1, before["one"].last_epoch + 1)
        assert ledger.missing_from(await read_keys(record.address_of(1) or "", TOPIC, QUEUES)) == []
