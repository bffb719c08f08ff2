"""A broker's own rhythm shortens how long its silence is life, within the bounds that the group's owner gave."""

from dataclasses import replace

from brokergroup_operator.controller.directory.group_directory import FixedDirectory, GroupBinding, Peer
from brokergroup_operator.controller.plane import ControllerPlane
from brokergroup_operator.records.store import GroupKey
from controller_core.settings import ControllerSettings
from tests.controller.conftest import StartPlane, group_of
from tests.support.fake_broker import FakeGroup, eventually

STRICT = ControllerSettings(shrink_floor=True, min_in_sync_replicas=2)
LONGEST = 30.0


class BoundedDirectory(FixedDirectory):
    """Its groups have a lower bound, or none."""

    def __init__(self, minimum_seconds: float | None) -> None:
        super().__init__(settings=STRICT, heartbeat_timeout_seconds=LONGEST)
        self._minimum_seconds = minimum_seconds

    def binding(self, key: GroupKey) -> GroupBinding | None:
        binding = super().binding(key)
        return self._bounded(binding) if binding is not None else None

    def bindings(self) -> list[GroupBinding]:
        return [self._bounded(binding) for binding in super().bindings()]

    def find(self, broker_name: str, *, cluster_name: str = "", peer: Peer | None = None) -> GroupBinding | None:
        binding = super().find(broker_name, cluster_name=cluster_name, peer=peer)
        return self._bounded(binding) if binding is not None else None

    def _bounded(self, binding: GroupBinding) -> GroupBinding:
        return replace(binding, minimum_heartbeat_timeout_seconds=self._minimum_seconds)


def _timeout_seconds(plane: ControllerPlane, broker_id: int) -> float:
    known = group_of(plane)
    entry = known.table.entry(broker_id)
    return entry.timeout_seconds if entry is not None else LONGEST


async def test_a_regular_broker_is_missed_sooner_than_the_longest_timeout(
    start_plane: StartPlane, group: FakeGroup
) -> None:
    plane = await start_plane(directory=BoundedDirectory(1.0))
    group.planes = [plane.address]
    await group.three()
    seen = []

    def learnt() -> bool:
        seen.append(_timeout_seconds(plane, 1))
        return seen[-1] < LONGEST / 2

    await eventually(learnt, what="the rhythm to be learnt")
    assert seen[0] == LONGEST, "not before a rhythm is known"
    assert min(seen) >= 2.5


async def test_without_a_lower_bound_it_is_the_group_s_timeout(start_plane: StartPlane, group: FakeGroup) -> None:
    plane = await start_plane(directory=BoundedDirectory(None))
    group.planes = [plane.address]
    first, _, _ = await group.three()
    before = first.beats
    await eventually(lambda: first.beats > before + 60, what="enough heartbeats for a rhythm")
    assert _timeout_seconds(plane, 1) == LONGEST
