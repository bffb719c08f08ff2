"""Recovery beyond the SyncStateSet: the plane watches consume queues (28), routes (901) and the canary's messages (310)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from structlog.testing import capture_logs

from brokergroup_operator.controller.directory.group_directory import GroupBinding
from brokergroup_operator.controller.group.group import Group
from brokergroup_operator.controller.peers.broker_calls import BrokerCalls
from brokergroup_operator.controller.peers.services import Planes, Services
from brokergroup_operator.controller.settings import PlaneSettings
from brokergroup_operator.controller.upkeep.recovery_watch import TOPIC, Canary, RecoveryWatch
from brokergroup_operator.observe.events import EventObserver
from brokergroup_operator.observe.observer import Observer, ObserverGroup
from brokergroup_operator.observe.timeline import FailoverTimeline, Kind, Outcome, Step, Trigger
from brokergroup_operator.records.memory import MemoryRecordStore
from controller_core.model import BrokerGroupRecord, Replica
from rocketmq_remoting.client import RemotingClient
from rocketmq_remoting.codes import RequestCode
from rocketmq_remoting.server import RemotingServer
from rocketmq_remoting.signature import Credentials, SignatureState, verify
from tests.controller.conftest import snapshot_of
from tests.controller.world import KEY, Notes, World
from tests.observe.test_events import Sink
from tests.support.fake_broker import FakeBroker, eventually
from tests.support.fake_name_server import FakeNameServer
from tests.support.quiet_handler import QuietHandler

if TYPE_CHECKING:
    from collections.abc import Iterable

    from brokergroup_operator.controller.plane import ControllerPlane
    from brokergroup_operator.records.store import GroupKey
    from rocketmq_remoting.command import RemotingCommand
    from rocketmq_remoting.connection import RemotingConnection

LAST = [Step.INDEX_CAUGHT_UP, Step.ROUTE_VISIBLE, Step.IN_SYNC]


async def watched(
    group: World, *servers: FakeNameServer, seconds: float = 30.0
) -> tuple[ControllerPlane, list[FakeBroker]]:
    """Three brokers under a plane; each reports complete queues, and each NameServer routes to the first."""
    addresses = [await server.start() for server in servers]
    plane, brokers = await group.three_under(
        wishes={"name_servers": tuple(addresses)}, recovery_watch_seconds=seconds, incident_deadline_seconds=60.0
    )
    for broker in brokers:
        broker.behind_dispatch = 0
    for server in servers:
        server.routed = brokers[0].address
    return plane, brokers


async def test_a_route_is_stamped_when_every_name_server_names_the_new_master(
    group: World, name_server: FakeNameServer
) -> None:
    one, other = name_server, FakeNameServer(group)
    _, [first, second, _] = await watched(group, one, other)
    await first.kill()
    await eventually(lambda: group.notes.changed, what="the new master")
    one.routed = second.address
    asked = group.journal.count("901")
    await eventually(lambda: group.journal.count("901") > asked + 4, what="both asked again")
    incident = group.notes.changed[0]
    assert Step.ROUTE_VISIBLE not in incident.steps, "the other one still names the old master"
    assert not group.notes.closed
    other.routed = second.address
    assert await group.incident() is incident
    assert incident.outcome is Outcome.COMPLETED
    assert set(LAST) <= incident.steps.keys()
    assert incident.reached()[-1] is Step.ROUTE_VISIBLE
    assert list(incident.milliseconds().values()) == sorted(incident.milliseconds().values())
    await other.stop()


async def test_the_index_is_stamped_when_the_new_master_says_that_nothing_is_behind(group: World) -> None:
    _, [first, second, _] = await watched(group)
    second.behind_dispatch = 4096
    await first.kill()
    await eventually(lambda: group.journal.count("28 to 2") > 2, what="it to be asked again")
    assert Step.INDEX_CAUGHT_UP not in group.notes.changed[0].steps
    assert not group.notes.closed
    second.behind_dispatch = 0
    incident = await group.incident()
    assert incident.reached()[-1] is Step.INDEX_CAUGHT_UP
    assert Step.ROUTE_VISIBLE not in incident.steps, "the group has no NameServer"


async def test_what_nobody_tells_is_not_stamped_and_keeps_no_incident_open(
    group: World, name_server: FakeNameServer
) -> None:
    """The plane does not wait for a NameServer that is down, and stops waiting for one that never routes to the new master."""
    down = FakeNameServer(group)
    _, [first, second, _] = await watched(group, down, name_server, seconds=0.3)
    second.behind_dispatch = None
    await down.stop()
    await first.kill()
    incident = await group.incident()
    assert incident.outcome is Outcome.COMPLETED
    assert Step.IN_SYNC in incident.steps
    assert not {Step.INDEX_CAUGHT_UP, Step.ROUTE_VISIBLE} & incident.steps.keys()


async def test_a_plane_that_ends_leaves_no_incident_open_for_what_it_only_watched(
    group: World, name_server: FakeNameServer
) -> None:
    plane, [first, _, _] = await watched(group, name_server)
    await first.kill()
    await eventually(lambda: group.notes.changed and Step.IN_SYNC in group.notes.changed[0].steps, what="two in sync")
    assert not group.notes.closed
    async with asyncio.timeout(20.0):
        await plane.stop()
    incident = await group.incident()
    assert incident.outcome is Outcome.COMPLETED
    assert Step.ROUTE_VISIBLE not in incident.steps


# ---- The canary sends where the NameServers route, creates its topic, and stamps the first message that a new master acknowledges.

ORDERS = Credentials(access_key="orders", secret_key="orders-secret")
SEND, MAKE = RequestCode.SEND_MESSAGE_V2, RequestCode.UPDATE_AND_CREATE_TOPIC


AWAY = tuple(f"127.64.9.9:{port}" for port in range(40000, 40064))
# Another of these 64 planes has rank 0 for this group.
NOT_FIRST: dict[str, Any] = {"peer_addresses": AWAY, "advertise_address": AWAY[0], "rank_delay_seconds": 0.0}


class Acl:
    """As a Java broker's ACL: any user but ``orders`` is unknown; ``orders`` may do some things, or nothing."""

    def __init__(self, *allowed: int) -> None:
        self.allowed = set(allowed)
        self.asked = 0

    def __call__(self, command: RemotingCommand) -> str:
        if command.code not in (SEND, MAKE):
            return ""
        self.asked += 1
        if verify(command.ext_fields, command.body, ORDERS) is not SignatureState.VALID:
            user = (command.ext_fields or {}).get("AccessKey")
            return f"User:{user} is not found." if user else "username cannot be null."
        return "" if command.code in self.allowed else f"User:orders has no permission to access Topic:{TOPIC}"


async def with_canary(
    group: World, name_server: FakeNameServer, *, credentials: Credentials | None = None, **settings: Any
) -> tuple[ControllerPlane, list[FakeBroker]]:
    wishes = {"name_servers": (await name_server.start(),), "canary": True, "credentials": credentials}
    plane, brokers = await group.three_under(
        wishes=wishes,
        **{"canary_period_seconds": 0.05, "canary_retry_seconds": 0.01, "incident_deadline_seconds": 60.0, **settings},
    )
    for broker in brokers:
        broker.takes_messages = broker.takes_new_names = True
        broker.topics[TOPIC] = 1
    name_server.routed = brokers[0].address
    return plane, brokers


async def test_it_sends_to_whom_the_name_server_names_and_makes_its_topic_there(
    group: World, name_server: FakeNameServer
) -> None:
    _, [first, second, _] = await with_canary(group, name_server)
    await eventually(lambda: group.notes.sent[-2:] == [True, True], what="acknowledged messages")
    assert f"310 {TOPIC} to 1" in group.journal
    del first.topics[TOPIC]
    await eventually(lambda: first.topics.get(TOPIC) == 1, what="the topic to be made")
    name_server.routed = second.address
    await eventually(lambda: f"310 {TOPIC} to 2" in group.journal, what="a message where clients go now")
    name_server.routed = ""
    await eventually(lambda: group.notes.sent[-2:] == [False, False], what="no route")


async def test_the_first_message_that_a_new_master_acknowledges_is_a_step_of_the_incident(
    group: World, name_server: FakeNameServer
) -> None:
    _, [first, second, _] = await with_canary(group, name_server)
    second.takes_messages = False
    await first.kill()
    name_server.routed = second.address
    await eventually(
        lambda: group.notes.changed and Step.ROUTE_VISIBLE in group.notes.changed[0].steps, what="the route"
    )
    await eventually(lambda: group.notes.sent[-3:] == [False] * 3, what="refused messages")
    assert Step.FIRST_ACK not in group.notes.changed[0].steps
    assert not group.notes.closed, "the incident waits for the first write"
    second.takes_messages = True
    await eventually(lambda: group.notes.closed, what="the incident to be closed")
    [incident] = group.notes.closed
    assert incident.reached()[-1] is Step.FIRST_ACK
    assert list(incident.milliseconds())[-1] == "firstAck"


async def replaced(group: World, name_server: FakeNameServer, master: FakeBroker, successor: FakeBroker) -> None:
    """Kill the master, and show the route to its successor; return when its incident is closed."""
    await master.kill()
    name_server.routed = successor.address
    await eventually(lambda: group.notes.closed, what="the incident to be closed")


async def test_a_change_of_master_ends_the_pause_between_two_messages(
    group: World, name_server: FakeNameServer
) -> None:
    """Otherwise the plane would see the first write up to a second later than a client does."""
    _, [first, second, _] = await with_canary(group, name_server, canary_period_seconds=30.0, canary_retry_seconds=0.01)
    await eventually(lambda: group.notes.sent[-1:] == [True], what="the last message of these 30 s")
    await replaced(group, name_server, first, second)
    steps = group.notes.closed[0].steps
    assert steps[Step.FIRST_ACK] - steps[Step.ROLE_CHANGED] < 1.0


async def test_of_several_planes_one_sends(group: World, name_server: FakeNameServer) -> None:
    """The plane of rank 0 sends; another plane only while it changes the master itself."""
    plane, [first, second, _] = await with_canary(group, name_server, **NOT_FIRST)
    assert plane.snapshot(KEY) is not None
    assert not group.notes.sent, "of 64 planes another one is the first for this group"
    await replaced(group, name_server, first, second)
    assert Step.FIRST_ACK in group.notes.closed[0].steps
    told = len(group.notes.sent)
    await eventually(lambda: len(group.journal) and not snapshot_of(plane).in_progress, what="peace")
    assert len(group.notes.sent) - told <= 1


class AcknowledgedCanary(Canary):
    """Its first message is already acknowledged. Records each query's broker and start time."""

    def __init__(self, services: Services) -> None:
        super().__init__(services)
        self.asked: list[tuple[str, float]] = []

    def first_acknowledged_seconds(self, key: GroupKey, by: str, *, since_seconds: float) -> float | None:
        self.asked.append((by, since_seconds))
        return 2.5


async def test_a_change_that_another_plane_committed_has_its_first_message_too() -> None:
    """A plane that takes over knows when the change began, but not when it was committed."""
    timeline = FailoverTimeline(
        group=KEY, cluster_name="c", broker_name="orders", kind=Kind.FAILOVER, trigger=Trigger.MASTERLESS,
        from_broker_id=1, to_broker_id=2, epoch_before=1, started_at_unix_seconds=0.0,
    )  # fmt: skip
    timeline.reach(Step.DETECTED, 1.0)
    timeline.reach(Step.ROLE_CHANGED, 2.0)
    store, settings = MemoryRecordStore(), PlaneSettings()
    second = Replica(2, register_check_code="a:2;1", address="10.0.0.2:10911", registered=True)
    await store.commit(KEY, BrokerGroupRecord("c", "orders", 3, {2: second}, 2, 2, frozenset({2}), 2), None)
    binding = GroupBinding(key=KEY, cluster_name="c", broker_name="orders")
    group = Group(
        binding, store=store, settings=settings, observer=Notes(), on_change=lambda _: None, on_wake=lambda _: None
    )
    await group.load()
    group.incidents.open(timeline, awaited=frozenset({Step.FIRST_ACK}))
    client = RemotingClient()
    services = Services(
        settings=settings, observer=Observer(), calls=BrokerCalls(client, settings), planes=Planes(client, settings)
    )
    canary = AcknowledgedCanary(services)
    watch = RecoveryWatch(services, canary)
    watch.look_at(group)
    await eventually(lambda: group.incidents.recovering is None, what="the watch to end")
    assert canary.asked == [("10.0.0.2:10911", 1.0)]
    assert timeline.steps[Step.FIRST_ACK] == 2.5
    await services.tasks.stop()


async def test_it_signs_as_the_group_also_where_it_makes_its_topic(group: World, name_server: FakeNameServer) -> None:
    acl = Acl(SEND, MAKE)
    _, brokers = await with_canary(group, name_server, credentials=ORDERS)
    refuse_by(acl, brokers)
    del brokers[0].topics[TOPIC]
    await eventually(lambda: brokers[0].topics.get(TOPIC) == 1, what="the topic to be made")
    await eventually(lambda: group.notes.sent[-2:] == [True, True], what="acknowledged messages")


class Newcomer(QuietHandler):
    """A broker that the NameServers know before the record does; it records whether each message was signed."""

    def __init__(self) -> None:
        self.server = RemotingServer(self)
        self.senders: list[SignatureState] = []

    async def handle(self, command: RemotingCommand, connection: RemotingConnection) -> RemotingCommand:
        self.senders.append(verify(command.ext_fields, command.body, ORDERS))
        return command.answer(0)


async def test_it_signs_as_the_group_at_an_address_that_the_record_does_not_have_yet(
    group: World, name_server: FakeNameServer
) -> None:
    newcomer = Newcomer()
    await with_canary(group, name_server, credentials=ORDERS)
    await newcomer.server.start("127.0.0.1", 0)
    name_server.routed = f"127.0.0.1:{newcomer.server.port}"
    await eventually(lambda: newcomer.senders, what="a message to it")
    assert newcomer.senders[0] is SignatureState.VALID
    await newcomer.server.stop(grace_seconds=0.0)


async def test_a_refusal_by_the_acl_is_told_once_and_its_end_too(group: World, name_server: FakeNameServer) -> None:
    sink, acl = Sink(), Acl()
    both = ObserverGroup([group.notes, EventObserver(sink)])
    _, brokers = await with_canary(group, name_server, observer=both, credentials=ORDERS)
    address = brokers[0].address
    await eventually(lambda: group.notes.sent[-1:] == [True], what="an acknowledged message")
    with capture_logs() as lines:
        refuse_by(acl, brokers)
        await eventually(lambda: acl.asked >= 4, what="refused messages")
        brokers[0].takes_messages = False  # another failure says nothing about the ACL
        acl.allowed = {SEND}
        sent = len(group.notes.sent)
        await eventually(lambda: len(group.notes.sent) >= sent + 3, what="failed messages")
        acl.allowed = set()
        brokers[0].takes_messages = True
        asked = acl.asked
        await eventually(lambda: acl.asked >= asked + 3, what="refused messages again")
        acl.allowed = {SEND}
        await eventually(lambda: group.notes.sent[-3:] == [True] * 3, what="acknowledged messages")
    told = [event for event in sink.events if event.reason.startswith("Canary")]
    assert [(event.reason, event.warning) for event in told] == [("CanaryRefused", True), ("CanaryAcknowledged", False)]
    says = f"User:orders has no permission to access Topic:{TOPIC}"
    for part in (address, "user 'orders'", f"Pub on Topic:{TOPIC}", says):
        assert part in told[0].message
    assert ORDERS.secret_key not in f"{lines}{told}"
    logged = [line for line in lines if line["event"].startswith("canary")]
    assert [(line["event"], line["log_level"]) for line in logged] == [
        ("canary refused", "warning"),
        ("canary acknowledged again", "info"),
    ]
    assert (logged[0]["group"], logged[0]["broker"], logged[0]["user"]) == (str(KEY), address, "orders")
    assert f"Pub on Topic:{TOPIC}" in logged[0]["needs"]


async def test_a_right_that_is_lacking_besides_is_told_too(group: World, name_server: FakeNameServer) -> None:
    """The user may send by now, but may not create the topic."""
    sink, acl = Sink(), Acl()
    _, brokers = await with_canary(group, name_server, observer=EventObserver(sink), credentials=ORDERS)
    refuse_by(acl, brokers)
    await eventually(lambda: "CanaryRefused" in sink.reasons, what="the refusal")
    del brokers[0].topics[TOPIC]
    acl.allowed = {SEND}
    await eventually(lambda: sink.reasons.count("CanaryRefused") == 2, what="the other refusal")
    assert f"Create on Topic:{TOPIC}" in sink.events[-1].message


@pytest.mark.parametrize(
    ("remark", "needs"),
    [
        ("username cannot be null.", "spec.security.credentialsSecretRef"),
        (f"the topic[{TOPIC}] sending message is forbidden", "perm"),
    ],
)
async def test_a_canary_that_signs_nothing_is_told_what_it_needs(
    group: World, name_server: FakeNameServer, remark: str, needs: str
) -> None:
    sink = Sink()
    _, brokers = await with_canary(group, name_server, observer=EventObserver(sink))
    for broker in brokers:
        broker.refuses = lambda command: remark if command.code == SEND else ""
    await eventually(lambda: "CanaryRefused" in sink.reasons, what="the refusal")
    message = sink.events[-1].message
    assert needs in message
    assert "unsigned" in message
    assert remark in message


async def test_no_incident_waits_for_the_first_write_where_the_new_master_refuses_it(
    group: World, name_server: FakeNameServer
) -> None:
    """An old master's refusal does not count for the new one."""
    acl = Acl()
    _, [first, second, third] = await with_canary(group, name_server, credentials=ORDERS)
    refuse_by(acl, [first])
    await eventually(lambda: acl.asked >= 2, what="refused messages in peace")
    await replaced(group, name_server, first, second)
    assert Step.FIRST_ACK in group.notes.closed[0].steps
    refuse_by(acl, [second, third])
    first = await first.restarted()
    await eventually(lambda: second.sync_state_set == {1, 2, 3}, what="three members in sync")
    await second.kill()
    master = await eventually(lambda: next((one for one in (first, third) if one.is_master), None), what="a master")
    refuse_by(acl, [master])
    name_server.routed = master.address
    await eventually(lambda: len(group.notes.closed) > 1, what="the incident to be closed")
    assert Step.IN_SYNC in group.notes.closed[1].steps
    assert Step.FIRST_ACK not in group.notes.closed[1].steps


async def test_of_several_planes_the_one_that_sends_all_the_time_tells_of_a_refusal(
    group: World, name_server: FakeNameServer
) -> None:
    sink, acl = Sink(), Acl()
    _, [first, second, third] = await with_canary(
        group, name_server, observer=ObserverGroup([group.notes, EventObserver(sink)]), credentials=ORDERS, **NOT_FIRST
    )
    refuse_by(acl, [second, third])
    await replaced(group, name_server, first, second)
    assert acl.asked > 0
    assert Step.FIRST_ACK not in group.notes.closed[0].steps
    assert "CanaryRefused" not in sink.reasons


def refuse_by(acl: Acl, brokers: Iterable[FakeBroker]) -> None:
    for broker in brokers:
        broker.refuses = acl
