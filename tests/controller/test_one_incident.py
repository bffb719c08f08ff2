"""One change of master is one incident, whichever plane carried it out: the others saw the loss too, and say nothing of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from brokergroup_operator.controller.directory import FixedDirectory, GroupBinding
from brokergroup_operator.controller.fencing import FenceOutcome
from brokergroup_operator.observe.events import EventObserver, GroupEvent
from brokergroup_operator.observe.observer import Observer, ObserverGroup
from brokergroup_operator.observe.timeline import Outcome
from brokergroup_operator.records.memory import MemoryRecordStore
from brokergroup_operator.records.store import GroupKey
from controller_core.settings import ControllerSettings
from tests.controller.fake_broker import NAME, FakeGroup, eventually
from tests.support.places import free_port

if TYPE_CHECKING:
    from brokergroup_operator.controller.plane import ControllerPlane
    from brokergroup_operator.observe.timeline import FailoverTimeline
    from tests.controller.conftest import StartPlane

KEY = GroupKey("standalone", NAME)
STRICT = ControllerSettings(shrink_floor=True, min_in_sync_replicas=2)
FAILOVER_REASONS = ("MasterLost", "FailoverStarted", "FailoverCompleted", "FailoverCancelled")


class Told(Observer):
    """Everything that one plane tells: incidents and Events."""

    def __init__(self) -> None:
        self.closed: list[FailoverTimeline] = []
        self.events: list[GroupEvent] = []
        self.withdrawn = 0

    def incident_closed(self, timeline: FailoverTimeline) -> None:
        self.closed.append(timeline)

    def failover_withdrawn(self, timeline: FailoverTimeline) -> None:
        self.withdrawn += 1

    def post(self, event: GroupEvent) -> None:
        self.events.append(event)


class SlowFencer:
    """Kills the fake broker, after all planes have begun; a second kill of it is confirmed as well."""

    def __init__(self, group: FakeGroup, *, planes: int) -> None:
        self._group = group
        self._planes = planes
        self.begun = 0

    async def fence(
        self, binding: GroupBinding, broker_id: int, address: str, *, deadline_seconds: float
    ) -> FenceOutcome:
        self.begun += 1
        await eventually(lambda: self.begun >= self._planes, what="all planes to fence")
        await self._group.brokers[broker_id].kill()
        return FenceOutcome(confirmed=True, how="killed")


async def _three_planes(
    start_plane: StartPlane, group: FakeGroup, fencer: SlowFencer
) -> tuple[list[ControllerPlane], list[Told]]:
    store, told, ports = MemoryRecordStore(), [Told() for _ in range(3)], [free_port() for _ in range(3)]
    peers = tuple(f"127.0.0.1:{port}" for port in ports)
    planes = [
        await start_plane(
            store,
            directory=FixedDirectory(settings=STRICT),
            fencer=fencer,
            observer=ObserverGroup([observer, EventObserver(observer)]),
            listen_port=port,
            peer_addresses=peers,
        )
        for port, observer in zip(ports, told, strict=True)
    ]
    group.planes = list(peers)
    await group.three()
    for plane in planes:
        await eventually(lambda plane=plane: plane.snapshot(KEY) and plane.snapshot(KEY).writable, what="all know it")
    return planes, told


@pytest.mark.parametrize("how", ["frozen", "killed"])
async def test_three_planes_see_one_loss_and_one_tells_it(start_plane: StartPlane, group: FakeGroup, how: str) -> None:
    fencer = SlowFencer(group, planes=3)
    planes, told = await _three_planes(start_plane, group, fencer)
    for one in told:
        one.events.clear()
    master = group.master()
    if how == "frozen":
        master.freeze()
    else:
        await master.kill()
    await eventually(lambda: any(one.closed for one in told), what="the incident to be closed")
    for plane in planes:
        await eventually(
            lambda plane=plane: plane.snapshot(KEY).writable and plane.snapshot(KEY).in_progress is None,
            what="every plane to be done with it",
        )
    incidents = [timeline for one in told for timeline in one.closed]
    assert [(one.outcome, one.from_broker_id, one.epoch_after) for one in incidents] == [(Outcome.COMPLETED, 1, 2)]
    reasons = [event.reason for one in told for event in one.events if event.reason in FAILOVER_REASONS]
    assert reasons == ["MasterLost", "FailoverStarted", "FailoverCompleted"]
    shown = [plane.snapshot(KEY).last_failover for plane in planes]
    assert [one for one in shown if one is not None] == incidents
    if how == "frozen":
        assert sum(one.withdrawn for one in told) == 2
