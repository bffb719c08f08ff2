"""What is watched of a recovery besides the SyncStateSet: the new master's consume queues (28), the NameServers' routes (901)."""

import asyncio

from brokergroup_operator.controller.directory.group_directory import FixedDirectory
from brokergroup_operator.controller.plane import ControllerPlane
from brokergroup_operator.observe.timeline import FailoverTimeline, Outcome, Step
from tests.controller.conftest import StartPlane
from tests.controller.test_failover import STRICT, Notes
from tests.support.fake_broker import FakeBroker, FakeGroup, eventually
from tests.support.fake_name_server import FakeNameServer

LAST = [Step.INDEX_CAUGHT_UP, Step.ROUTE_VISIBLE, Step.IN_SYNC]


async def watched(
    start_plane: StartPlane, group: FakeGroup, *servers: FakeNameServer, notes: Notes, seconds: float = 30.0
) -> tuple[ControllerPlane, list[FakeBroker]]:
    """Three brokers under a plane; each says that its queues hold all, and each NameServer routes to the first."""
    addresses = [await server.start() for server in servers]
    directory = FixedDirectory(settings=STRICT, name_servers=tuple(addresses))
    plane = await start_plane(
        directory=directory, observer=notes, recovery_watch_seconds=seconds, incident_deadline_seconds=60.0
    )
    group.planes = [plane.address]
    brokers = await group.three()
    for broker in brokers:
        broker.behind_dispatch = 0
    for server in servers:
        server.routed = brokers[0].address
    return plane, brokers


async def closed(notes: Notes) -> FailoverTimeline:
    await eventually(lambda: notes.closed, what="the incident to be closed")
    [incident] = notes.closed
    return incident


async def test_a_route_is_stamped_when_every_name_server_names_the_new_master(
    start_plane: StartPlane, group: FakeGroup
) -> None:
    notes, one, other = Notes(), FakeNameServer(group), FakeNameServer(group)
    _, [first, second, _] = await watched(start_plane, group, one, other, notes=notes)
    await first.kill()
    await eventually(lambda: notes.changed, what="the new master")
    one.routed = second.address
    asked = group.journal.count("901")
    await eventually(lambda: group.journal.count("901") > asked + 4, what="both asked again")
    incident = notes.changed[0]
    assert Step.ROUTE_VISIBLE not in incident.steps, "the other one still names the old master"
    assert not notes.closed
    other.routed = second.address
    assert await closed(notes) is incident
    assert incident.outcome is Outcome.COMPLETED
    assert set(LAST) <= incident.steps.keys()
    assert incident.reached()[-1] is Step.ROUTE_VISIBLE
    assert list(incident.milliseconds().values()) == sorted(incident.milliseconds().values())
    await one.stop()
    await other.stop()


async def test_the_index_is_stamped_when_the_new_master_says_that_nothing_is_behind(
    start_plane: StartPlane, group: FakeGroup
) -> None:
    notes = Notes()
    _, [first, second, _] = await watched(start_plane, group, notes=notes)
    second.behind_dispatch = 4096
    await first.kill()
    await eventually(lambda: group.journal.count("28 to 2") > 2, what="it to be asked again")
    assert Step.INDEX_CAUGHT_UP not in notes.changed[0].steps
    assert not notes.closed
    second.behind_dispatch = 0
    incident = await closed(notes)
    assert incident.reached()[-1] is Step.INDEX_CAUGHT_UP
    assert Step.ROUTE_VISIBLE not in incident.steps, "the group has no NameServer"


async def test_what_nobody_tells_is_not_stamped_and_keeps_no_incident_open(
    start_plane: StartPlane, group: FakeGroup
) -> None:
    """A NameServer that is down is not waited for; one that never names the new master is given up after a time."""
    notes, down, stuck = Notes(), FakeNameServer(group), FakeNameServer(group)
    _, [first, second, _] = await watched(start_plane, group, down, stuck, notes=notes, seconds=0.3)
    second.behind_dispatch = None
    await down.stop()
    await first.kill()
    incident = await closed(notes)
    assert incident.outcome is Outcome.COMPLETED
    assert Step.IN_SYNC in incident.steps
    assert not {Step.INDEX_CAUGHT_UP, Step.ROUTE_VISIBLE} & incident.steps.keys()
    await stuck.stop()


async def test_a_plane_that_ends_leaves_no_incident_open_for_what_it_only_watched(
    start_plane: StartPlane, group: FakeGroup
) -> None:
    notes, server = Notes(), FakeNameServer(group)
    plane, [first, _, _] = await watched(start_plane, group, server, notes=notes)
    await first.kill()
    await eventually(lambda: notes.changed and Step.IN_SYNC in notes.changed[0].steps, what="two in sync")
    assert not notes.closed
    async with asyncio.timeout(20.0):
        await plane.stop()
    incident = await closed(notes)
    assert incident.outcome is Outcome.COMPLETED
    assert Step.ROUTE_VISIBLE not in incident.steps
    await server.stop()
