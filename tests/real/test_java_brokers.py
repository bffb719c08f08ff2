"""Unmodified Java brokers 5.5.0, a NameServer and mqadmin at our controller plane, without Kubernetes.

The brokers' only setting is the controller's address. They register, get ids, elect, replicate, take roles; a Java
producer sends all the time; the master dies by SIGKILL; mqadmin prints the record's state; no acknowledged message is
missing in the last master's log; the dead broker returns under its own id.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from brokergroup_operator.demo.client import read_keys
from controller_core.settings import ControllerSettings
from tests.real.parts import java, mqadmin_output
from tests.real.parts.java_producer import start_producer
from tests.support.java_rig import KEY, JavaRig, eventually, in_sync, plane_beside, record_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from brokergroup_operator.controller.plane import ControllerPlane
    from controller_core.model import BrokerGroupRecord
    from tests.real.parts.java import JavaProgram

# By day: Java masters are fenced and failed over by the lanes "nodes", "fence" and "switchover"; mqadmin: test_mqadmin.py.
pytestmark = [pytest.mark.nightly, pytest.mark.real("java", "rocketmq"), pytest.mark.timeout(300)]

TOPIC = "numbered"
QUEUES = 4
BROKERS = {"allAckInSyncStateSet": "true", "inSyncReplicas": 2, "minInSyncReplicas": 2}


@dataclass
class Lab(JavaRig):
    """Three Java brokers under our plane."""

    plane: ControllerPlane = field(kw_only=True)

    def start_member(self, name: str) -> None:
        self.start_broker(name, controllers=self.plane.address, **BROKERS)

    async def ask(self, *arguments: str) -> str:
        return await asyncio.to_thread(
            java.mqadmin, self.folder / "mqadmin", *arguments, name_server_address=self.name_server_address
        )

    @property
    def record(self) -> BrokerGroupRecord:
        return record_of(self.plane)

    def leads(self, broker_id: int) -> bool:
        snapshot = self.plane.snapshot(KEY)
        return snapshot is not None and snapshot.record is not None and snapshot.record.master_broker_id == broker_id


@pytest.fixture
async def lab(tmp_path: Path, java_name_server: JavaProgram) -> AsyncIterator[Lab]:
    rules = ControllerSettings(shrink_floor=True, masters_shrink_first=True, min_in_sync_replicas=2)
    async with plane_beside(java_name_server.address, rules) as plane:
        lab = Lab(tmp_path, name_server=java_name_server, plane=plane)
        yield lab
        lab.stop()


async def check_mqadmin(lab: Lab) -> None:
    """getControllerMetaData, getSyncStateSet and getBrokerEpoch print what the record says."""
    metadata = mqadmin_output.controller_metadata(await lab.ask("getControllerMetaData", "-a", lab.plane.address))
    assert metadata["ControllerLeaderAddress"] == lab.plane.address
    printed = await lab.ask("getSyncStateSet", "-a", lab.plane.address, "-b", KEY.name)
    record = lab.record
    assert record.master_broker_id is not None
    [shown] = mqadmin_output.sync_state_sets(printed)
    assert (shown.broker_name, shown.master_broker_id) == (KEY.name, record.master_broker_id)
    assert shown.master_address == record.replicas[record.master_broker_id].address
    assert (shown.master_epoch, shown.sync_state_set_epoch) == (record.master_epoch, record.sync_state_set_epoch)
    assert {replica.broker_id for replica in shown.in_sync} == record.sync_state_set
    assert {replica.broker_id for replica in shown.not_in_sync} == set(record.replicas) - record.sync_state_set
    everyone = (*shown.in_sync, *shown.not_in_sync)
    assert {replica.broker_id: replica.address for replica in everyone} == {
        broker_id: replica.address for broker_id, replica in record.replicas.items()
    }


async def check_broker_epochs(lab: Lab, *, written: bool) -> None:
    """Every broker's own epoch file ends with the record's master epoch, where messages were written in it.

    A Java broker does not note an epoch that begins where the last one began.
    """
    epochs = mqadmin_output.broker_epochs(
        await lab.ask("getBrokerEpoch", "-b", KEY.name, "-n", lab.name_server_address)
    )
    record = lab.record
    assert {shown.address for shown in epochs} == {
        record.replicas[broker_id].address for broker_id in record.sync_state_set
    }
    for shown in epochs:
        is_master = shown.address == record.replicas[record.master_broker_id or 0].address
        assert (shown.broker_id == 0) == is_master
        last = shown.entries[-1].epoch
        assert last == record.master_epoch if written else last <= record.master_epoch


async def test_java_brokers_fail_over_under_our_controller(lab: Lab, tmp_path: Path) -> None:
    for name in ("first", "second", "third"):
        lab.start_member(name)
    await eventually(lambda: in_sync(lab.plane, 3), f"three Java brokers in sync\n{lab.logs()}")
    assert set(lab.record.replicas) == {1, 2, 3}
    await check_mqadmin(lab)
    await check_broker_epochs(lab, written=False)

    producer = start_producer(tmp_path / "producer", name_server_address=lab.name_server_address, topic=TOPIC)
    try:
        await eventually(lambda: len(producer.acknowledged()) >= 200, "200 acknowledgements")
        before = lab.record
        assert before.master_broker_id is not None
        victim = lab.kill_at(before.replicas[before.master_broker_id].address)
        await eventually(
            lambda: in_sync(lab.plane, 2) and lab.record.master_epoch > before.master_epoch, "another master"
        )
        acknowledged = len(producer.acknowledged())
        await eventually(lambda: len(producer.acknowledged()) >= acknowledged + 200, "200 more acknowledgements")
    finally:
        await asyncio.to_thread(producer.stop)

    after = lab.record
    assert after.master_broker_id in before.sync_state_set - {before.master_broker_id}
    assert after.master_epoch == before.master_epoch + 1
    assert before.master_broker_id not in after.sync_state_set
    keys = await read_keys(after.replicas[after.master_broker_id or 0].address, TOPIC, QUEUES)
    lost = {outcome["key"] for outcome in producer.acknowledged()} - keys
    assert lost == set()

    lab.start_member(victim)
    await eventually(lambda: in_sync(lab.plane, 3), f"the dead broker back in sync\n{lab.logs()}")
    assert set(lab.record.replicas) == {1, 2, 3}
    assert lab.record.master_epoch == after.master_epoch
    assert lab.record.replicas[before.master_broker_id].address == lab.programs[victim].address
    await check_mqadmin(lab)
    await check_broker_epochs(lab, written=True)


async def test_a_broker_of_an_empty_log_that_never_gets_beyond_its_handshake_is_given_up(lab: Lab) -> None:
    """The new master has no epoch of the old one, which dials it for ever: "Failed to find a consistent point".

    A Java slave notes its master's epoch with the first frame, also an empty one, which here the first master does not send. The
    operator's brokers send one each millisecond.
    """
    for name, heartbeat in (("first", 3_600_000), ("second", 1000), ("third", 1000)):
        lab.start_broker(name, controllers=lab.plane.address, **BROKERS, haSendHeartbeatInterval=heartbeat)
        await eventually(lambda: lab.leads(1), f"{name} knows the master\n{lab.logs()}")
    await eventually(lambda: in_sync(lab.plane, 3), f"three Java brokers in sync\n{lab.logs()}")
    lab.kill_at(lab.record.replicas[1].address)
    await eventually(lambda: in_sync(lab.plane, 2) and not lab.leads(1), "another master")
    lab.start_broker("first", controllers=lab.plane.address, **BROKERS, haSendHeartbeatInterval=1000)

    def is_given_up() -> bool:
        snapshot = lab.plane.snapshot(KEY)
        return snapshot is not None and 1 in snapshot.lost_links

    await eventually(is_given_up, f"the broker that dials for ever to be given up\n{lab.logs()}")
