"""Who may speak for a member that belongs to a pod: that pod, and nobody else."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from brokergroup_operator.controller.directory.group_directory import Peer
from controller_core.settings import ControllerSettings
from rocketmq_remoting.client import RemotingClient
from rocketmq_remoting.codes import RequestCode, ResponseCode
from rocketmq_remoting.command import request
from rocketmq_remoting.controller_protocol import SyncStateSetBody
from tests.controller.conftest import KEY, StartPlane, record_of, snapshot_of
from tests.support.fake_broker import CLUSTER, NAME, FakeBroker, FakeGroup, eventually
from tests.support.pods_directory import PodsDirectory

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from brokergroup_operator.controller.plane import ControllerPlane

STRANGER = "127.64.8.9"


class PodGroup:
    """Three brokers, each in a pod of its own, and a peer that is none of them."""

    def __init__(self, plane: ControllerPlane, directory: PodsDirectory) -> None:
        self.plane = plane
        self.directory = directory
        self.brokers: list[FakeBroker] = []
        self.impostor = RemotingClient(local_host=STRANGER)

    async def ask(self, code: int, body: bytes | None = None, /, **fields: object) -> int:
        ext_fields = {"clusterName": CLUSTER, "brokerName": NAME} | {name: str(value) for name, value in fields.items()}
        answer = await self.impostor.invoke(
            self.plane.address, request(code, ext_fields=ext_fields, body=body), timeout_seconds=5.0
        )
        return answer.code


@pytest.fixture(params=["stranger", "neighbour"])
async def pods(request: pytest.FixtureRequest, start_plane: StartPlane) -> AsyncIterator[PodGroup]:
    directory = PodsDirectory(settings=ControllerSettings(shrink_floor=True, min_in_sync_replicas=2))
    plane = await start_plane(directory=directory)
    fakes = FakeGroup(plane.address)
    group = PodGroup(plane, directory)
    directory.find(NAME, cluster_name=CLUSTER)
    for number in range(1, 4):
        pod = f"{NAME}-{number}"
        host = f"127.64.8.{number}"
        directory.introduce(host, Peer(namespace="standalone", pod_name=pod, group=KEY))
        group.brokers.append(await fakes.broker(host=host))
    if request.param == "neighbour":  # a pod that carries the group's label and is none of its members
        directory.introduce(STRANGER, Peer(namespace="standalone", pod_name=f"{NAME}-9", group=KEY))
    await eventually(lambda: group.brokers[0].sync_state_set == {1, 2, 3}, what="three members in sync")
    yield group
    await group.impostor.close()
    await fakes.stop()


async def test_nobody_else_registers_a_members_process(pods: PodGroup) -> None:
    """A forged 1003 would say that the master's process is gone, and take its place in the record."""
    code = await pods.ask(RequestCode.CONTROLLER_REGISTER_BROKER, brokerId=1, brokerAddress=f"{STRANGER}:10911")
    assert code == ResponseCode.NO_PERMISSION
    record = record_of(pods.plane)
    assert record.granted_master_id == 1
    assert record.address_of(1) == pods.brokers[0].address


async def test_nobody_else_alters_the_sync_state_set(pods: PodGroup) -> None:
    record = record_of(pods.plane)
    body = SyncStateSetBody(frozenset({1, 2}), record.sync_state_set_epoch).encode()
    code = await pods.ask(
        RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET,
        body,
        masterBrokerId=1,
        masterEpoch=record.master_epoch,
    )
    assert code == ResponseCode.NO_PERMISSION
    assert record_of(pods.plane).sync_state_set == {1, 2, 3}


async def test_nobody_else_asks_for_an_election_in_a_members_name(pods: PodGroup) -> None:
    code = await pods.ask(RequestCode.CONTROLLER_ELECT_MASTER, brokerId=2, designateElect="false")
    assert code == ResponseCode.NO_PERMISSION


async def test_nobody_else_keeps_a_dead_member_alive(pods: PodGroup) -> None:
    await pods.brokers[2].kill()
    beat = {"brokerId": 3, "brokerAddr": pods.brokers[2].address, "epoch": 1, "maxOffset": 99, "confirmOffset": 99}

    async def forged_and_gone() -> bool:
        refused = await pods.ask(RequestCode.BROKER_HEARTBEAT, **beat, heartbeatTimeoutMills=60_000)
        assert refused == ResponseCode.NO_PERMISSION
        return 3 not in snapshot_of(pods.plane).live

    await eventually(forged_and_gone, what="broker 3 counts as dead")


async def test_a_pod_registers_its_own_address_only(pods: PodGroup) -> None:
    answer = await pods.brokers[1].ask(
        RequestCode.CONTROLLER_REGISTER_BROKER, brokerId=2, brokerAddress=pods.brokers[0].address
    )
    assert answer.code == ResponseCode.NO_PERMISSION


async def test_nobody_makes_the_controller_forget_living_pods(pods: PodGroup) -> None:
    """1011 with isCleanLivingBroker forgets a whole group, whoever sends it."""
    code = await pods.ask(RequestCode.CLEAN_BROKER_DATA, isCleanLivingBroker="true")
    assert code == ResponseCode.NO_PERMISSION
    record = record_of(pods.plane)
    assert [one for one in record.replicas if record.claimed_replica(one)] == [1, 2, 3]


async def test_nobody_makes_the_controller_forget_the_dead_pods_that_have_the_data(pods: PodGroup) -> None:
    for broker in pods.brokers:
        await broker.kill()

    def nobody_leads() -> bool:
        seen = snapshot_of(pods.plane)
        return not seen.live and record_of(pods.plane).granted_master_id is None and not seen.in_progress

    await eventually(nobody_leads, what="all are dead, and known to be")
    record = record_of(pods.plane)
    assert record.sync_state_set
    for broker_id in record.sync_state_set:
        code = await pods.ask(RequestCode.CLEAN_BROKER_DATA, brokerControllerIdsToClean=str(broker_id))
        assert code == ResponseCode.NO_PERMISSION
