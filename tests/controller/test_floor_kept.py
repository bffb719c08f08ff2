"""Who is eligible depends on what the brokers do, not on what the spec wishes (safety rule 1): they read it when they start."""

import pytest

from brokergroup_operator.controller.directory.group_directory import FixedDirectory
from controller_core.settings import ControllerSettings
from tests.controller.conftest import StartPlane, group_of, record_of
from tests.support.fake_broker import FakeGroup, eventually

STRICT = ControllerSettings(shrink_floor=True, min_in_sync_replicas=2)


@pytest.mark.parametrize(("minimum", "eligible"), [(2, {1}), (1, set())])
async def test_brokers_that_acknowledge_alone_leave_nobody_eligible(
    start_plane: StartPlane, group: FakeGroup, minimum: int, eligible: set[int]
) -> None:
    """A group that was scaled from 2 to 3 is Strict from that moment; its running brokers still acknowledge alone."""
    plane = await start_plane(directory=FixedDirectory(settings=STRICT))
    group.planes = [plane.address]
    brokers = [await group.broker(minimum=minimum) for _ in range(2)]
    await eventually(lambda: record_of(plane).sync_state_set == {1, 2}, what="both in sync")
    known = group_of(plane)
    await eventually(lambda: known.configuration.minimums == {1: minimum, 2: minimum}, what="both to be asked")
    await brokers[0].kill()
    await eventually(lambda: record_of(plane).master_broker_id == 2, what="the other one to be master")
    assert record_of(plane).eligible == eligible
