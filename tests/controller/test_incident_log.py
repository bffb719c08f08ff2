"""The incident log hears of a change of master when it begins, when it is durable, and when it ends: failover and switchover."""

import json
from pathlib import Path

from brokergroup_operator.controller.directory.group_directory import FixedDirectory
from brokergroup_operator.observe.incidents import IncidentLog
from brokergroup_operator.observe.observer import Observer, ObserverGroup
from brokergroup_operator.observe.timeline import FailoverTimeline
from controller_core.settings import ControllerSettings
from tests.controller.conftest import KEY, StartPlane, record_of, snapshot_of
from tests.support.fake_broker import FakeGroup, eventually

STRICT = ControllerSettings(shrink_floor=True, min_in_sync_replicas=2)


class Order(Observer):
    """What was told of timelines, with the epoch that was known then."""

    def __init__(self) -> None:
        self.told: list[tuple[str, int | None]] = []

    def master_lost(self, timeline: FailoverTimeline) -> None:
        self.told.append(("lost", timeline.epoch_after))

    def master_committed(self, timeline: FailoverTimeline) -> None:
        self.told.append(("committed", timeline.epoch_after))

    def incident_closed(self, timeline: FailoverTimeline) -> None:
        self.told.append(("closed", timeline.epoch_after))


async def test_a_failover_and_a_switchover_are_noted_before_anybody_is_told(
    start_plane: StartPlane, group: FakeGroup, tmp_path: Path
) -> None:
    path = tmp_path / "incidents.jsonl"
    order, log = Order(), IncidentLog(path)
    log.start()
    plane = await start_plane(directory=FixedDirectory(settings=STRICT), observer=ObserverGroup([log, order]))
    group.planes = [plane.address]
    master, _, _ = await group.three()
    await eventually(lambda: snapshot_of(plane).writable)
    begun = len(order.told)
    await plane.switch_master(KEY, from_broker_id=1)
    await eventually(lambda: order.told[begun:] == [("lost", None), ("committed", 2), ("closed", 2)])
    await eventually(lambda: snapshot_of(plane).writable and len(record_of(plane).sync_state_set) == 3)
    begun = len(order.told)
    await group.master().kill()
    await eventually(lambda: order.told[begun:] == [("lost", None), ("committed", 3), ("closed", 3)])
    await log.stop()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(line["kind"], line["epoch"], line["outcome"]) for line in lines[-2:]] == [
        ("switchover", 2, "completed"),
        ("failover", 3, "completed"),
    ]
    assert not path.with_name("incidents.jsonl.open").exists()
    assert master.broker_id == 1
