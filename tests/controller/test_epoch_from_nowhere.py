"""A stranger's 1008 with an epoch far above the record's makes a broker deaf to us: nobody says Available, and it is repaired."""

from brokergroup_operator.controller.directory.group_directory import FixedDirectory
from controller_core.settings import ControllerSettings
from rocketmq_remoting.bodies import SyncStateSetBody
from rocketmq_remoting.client import RemotingClient
from rocketmq_remoting.codes import RequestCode
from rocketmq_remoting.command import request
from rocketmq_remoting.headers import NotifyBrokerRoleChangedRequestHeader
from tests.controller.conftest import StartPlane, record_of, snapshot_of
from tests.support.fake_broker import FakeBroker, FakeGroup, eventually

STRICT = ControllerSettings(shrink_floor=True, min_in_sync_replicas=2)
FROM_NOWHERE = 9000


async def be_told_by_a_stranger(broker: FakeBroker, *, master: int, address: str) -> None:
    """1008 that no controller has committed. A slave's epoch file keeps what its data was written under, as in Java."""
    file_before = broker.epoch_file
    header = NotifyBrokerRoleChangedRequestHeader(
        master_address=address,
        master_broker_id=master,
        master_epoch=broker.epoch + FROM_NOWHERE,
        sync_state_set_epoch=FROM_NOWHERE,
    )
    body = SyncStateSetBody(frozenset({master}), FROM_NOWHERE).encode()
    client = RemotingClient()
    told = request(RequestCode.NOTIFY_BROKER_ROLE_CHANGED, ext_fields=header.encode(), body=body)
    await client.invoke(broker.address, told, timeout_seconds=3.0)
    broker.epoch_file = file_before
    await client.close()


async def test_a_master_that_a_stranger_deposed_is_not_said_to_be_writable_and_is_master_again(
    start_plane: StartPlane, group: FakeGroup
) -> None:
    plane = await start_plane(directory=FixedDirectory(settings=STRICT), link_check_seconds=0.05)
    group.planes = [plane.address]
    first, second, _ = await group.three()
    await eventually(lambda: second.asked, what="the first look")
    await eventually(lambda: snapshot_of(plane).writable, what="a group that serves")
    await be_told_by_a_stranger(first, master=2, address=second.address)
    assert not first.is_master
    await eventually(lambda: not snapshot_of(plane).writable, what="the plane to believe the master's own word")
    await eventually(lambda: first.is_master, what="the master to be master again")
    record = record_of(plane)
    assert record.master_broker_id == 1
    assert record.master_epoch > FROM_NOWHERE
    await eventually(lambda: snapshot_of(plane).writable, what="Available again")
    await eventually(lambda: first.sync_state_set == {1, 2, 3}, what="all in sync again")


async def test_one_word_of_denial_in_a_change_of_roles_raises_nothing(
    start_plane: StartPlane, group: FakeGroup
) -> None:
    """A failover asks the new master as soon as it is told: the usual case spends one epoch."""
    plane = await start_plane(directory=FixedDirectory(settings=STRICT), link_check_seconds=0.05)
    group.planes = [plane.address]
    first, *_ = await group.three()
    await first.kill()
    await eventually(lambda: snapshot_of(plane).writable and record_of(plane).master_epoch == 2)
    await eventually(lambda: snapshot_of(plane).unlinked == frozenset(), what="the slave to be linked")
    assert record_of(plane).master_epoch == 2
