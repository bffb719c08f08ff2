"""A replica and its controllers: every way through a start (issue 30, a), the search for the leader, heartbeats."""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING, Any, cast

import pytest

from rocketmq_remoting.codes import RequestCode, ResponseCode
from rocketmq_remoting.controller_protocol import (
    GetMetaDataResponseHeader,
    GetReplicaInfoResponseHeader,
    SyncStateSetBody,
)
from rocketmq_remoting.errors import RemotingTimeoutError
from rocketmq_replica.broker import LiveSettings
from rocketmq_replica.configuration import parse_configuration
from rocketmq_replica.controller.client import (
    ControllerClient,
    ControllerOutcomeUnknownError,
    ControllerUnreachableError,
)
from rocketmq_replica.controller.heartbeats import HeartbeatHealth
from rocketmq_replica.controller.start_up import Question, StartUp, Verdict, judge_poll
from rocketmq_replica.ha.links import DIVERGED_PAUSE_SECONDS, FIRST_PAUSE_SECONDS, LAST_PAUSE_SECONDS, ReconnectBackoff
from rocketmq_replica.process import PartEndedError
from rocketmq_replica.role_change import BrokerIdentity, GroupInfo, MasterSeen
from tests.replica.start_world import Disk, Event, Fault, Leads, Moment, Planes, Walk, play
from tests.replica.support import Client, Lab, RunningReplica, configuration_text, fresh_address, start_replica
from tests.support.draws import sample
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from rocketmq_remoting.client import RemotingClient
    from rocketmq_remoting.command import RemotingCommand


CONFIRMED = BrokerIdentity("C", "B", 3)
APPLIED = BrokerIdentity("C", "B", 3, "127.0.0.1:1;5")


def start(confirmed: BrokerIdentity | None = None, applied: BrokerIdentity | None = None) -> StartUp:
    return StartUp(
        cluster_name="C", broker_name="B", broker_address="127.0.0.1:1", confirmed=confirmed, applied=applied
    )


def info(epoch: int = 1, master: int | None = 3) -> GroupInfo:
    return GroupInfo(epoch, master, "" if master is None else "127.0.0.1:1", frozenset({3}), 1)


def question_of(each: StartUp) -> Question:
    """A call of its own: mypy takes an attribute that one assertion compared for unchanged until the next."""
    return each.question


def test_a_new_replica_asks_everything_once() -> None:
    each = start()
    assert question_of(each) is Question.NEXT_BROKER_ID
    assert each.offered(3, now_ms=5) == APPLIED
    assert question_of(each) is Question.APPLY_BROKER_ID
    assert each.accepted() == APPLIED
    assert question_of(each) is Question.REGISTER
    each.registered(info(master=None))
    assert (each.question, each.info) == (Question.ELECT, None)
    each.elected(info())
    assert each.info == info()


def test_an_application_is_repeated_until_its_outcome_is_known() -> None:
    each = start(applied=APPLIED)
    for _ in range(3):
        assert (each.question, each.application) == (Question.APPLY_BROKER_ID, APPLIED)
        each.failed()
        assert not each.refused(ResponseCode.SYSTEM_ERROR)
    assert each.refused(ResponseCode.CONTROLLER_BROKER_ID_INVALID)
    assert question_of(each) is Question.NEXT_BROKER_ID


def test_a_known_replica_registers_and_leaves_an_old_application_alone() -> None:
    each = start(CONFIRMED, APPLIED)
    assert (each.question, each.application) == (Question.REGISTER, None)
    each.registered(info())
    assert each.info == info()


def test_a_failed_election_begins_with_the_registration_again() -> None:
    each = start(CONFIRMED)
    each.registered(info(master=None))
    each.failed(ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED)
    assert (each.question, each.info) == (Question.REGISTER, None)


def test_an_election_without_a_candidate_is_asked_for_again_without_a_registration() -> None:
    """As Java's broker does: each registration would make the reports of the other replicas too old for an election."""
    each = start(CONFIRMED)
    each.registered(info(master=None))
    each.failed(ResponseCode.CONTROLLER_ELECT_MASTER_FAILED)
    assert (each.question, each.info) == (Question.ELECT, None)
    each.failed()
    assert question_of(each) is Question.REGISTER


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (info(5, None), Verdict.MASTERSHIP_TAKEN),
        (info(4, None), Verdict.OTHERWISE),
        (info(4, 3), Verdict.CONFIRMED),
        (info(5, 3), Verdict.OTHERWISE),
        (info(3, 3), Verdict.OTHERWISE),
        (info(5, 2), Verdict.OTHERWISE),
        (info(4, 2), Verdict.OTHERWISE),
    ],
)
def test_what_a_poll_says(answer: GroupInfo, expected: Verdict) -> None:
    assert judge_poll(answer, known=MasterSeen(4, 3, "127.0.0.1:1"), own_id=3) is expected


def test_pushed_and_asked_addresses_are_tried_in_turn() -> None:
    each = ReconnectBackoff()
    assert [each.address("pushed") for _ in range(4)] == ["pushed", "", "pushed", ""]
    assert each.address("pushed") == "pushed"
    each.transferred()
    assert each.address("pushed") == "pushed", "the one that worked first"


def test_pauses_double_and_end_when_it_works() -> None:
    each = ReconnectBackoff()
    pauses = [each.pause_seconds() for _ in range(8)]
    assert pauses[:3] == [FIRST_PAUSE_SECONDS, 2 * FIRST_PAUSE_SECONDS, 4 * FIRST_PAUSE_SECONDS]
    assert pauses[-1] == LAST_PAUSE_SECONDS
    assert each.in_vain
    each.transferred()
    assert not each.in_vain
    assert each.pause_seconds() == FIRST_PAUSE_SECONDS
    each.diverged()
    assert each.in_vain
    assert [each.pause_seconds(), each.pause_seconds()] == [DIVERGED_PAUSE_SECONDS, LAST_PAUSE_SECONDS]


A, B, C = "127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"


class Controllers:
    """Three controllers. Those in ``cut_off`` answer nothing, and time out when the test says so."""

    def __init__(self) -> None:
        self.cut_off: set[str] = set()
        self.time_is_over = asyncio.Event()
        self.asked: list[tuple[str, int]] = []

    async def invoke(self, address: str, command: RemotingCommand, *, timeout_seconds: float) -> RemotingCommand:
        self.asked.append((address, command.code))
        if address in self.cut_off:
            await self.time_is_over.wait()
            raise RemotingTimeoutError(f"{address}: no answer within {timeout_seconds} s")
        if command.code == RequestCode.CONTROLLER_GET_METADATA_INFO:
            fields = GetMetaDataResponseHeader(controller_leader_address=address, is_leader=True)
            return command.answer(0, ext_fields=fields.encode())
        info = GetReplicaInfoResponseHeader(master_broker_id=1, master_address="127.0.0.1:9", master_epoch=4)
        body = SyncStateSetBody(sync_state_set=frozenset({1}), sync_state_set_epoch=7)
        return command.answer(0, ext_fields=info.encode(), body=body.encode())

    def client(self, folder: Path) -> ControllerClient:
        configuration = parse_configuration(configuration_text(folder, ";".join((A, B, C)), fresh_address()), {})
        self.live = LiveSettings(
            slave_timeout_seconds=3.0, ha_max_time_slave_not_catchup_seconds=15.0, broker_election_priority=1,
            operators_sign=False, name_server_addresses=(), controller_addresses=configuration.controller_addresses,
            broker_permission=configuration.broker_permission,
        )  # fmt: skip
        return ControllerClient(cast("RemotingClient", self), configuration, self.live, now_ms=lambda: 0)


@pytest.mark.parametrize("cut_off", [{A}, {A, B}, {B, C}, {A, C}])
async def test_those_that_are_cut_off_are_not_waited_for(cut_off: set[str], tmp_path: Path) -> None:
    controllers = Controllers()
    controllers.cut_off = cut_off
    client = controllers.client(tmp_path)
    async with asyncio.timeout(15):
        assert (await client.replica_info()).master_epoch == 4
    assert controllers.asked[-1] == (min({A, B, C} - cut_off), RequestCode.CONTROLLER_GET_REPLICA_INFO)
    controllers.time_is_over.set()
    await eventually(lambda: not client._asked)


async def test_where_all_are_cut_off_the_error_says_what_each_of_them_did(tmp_path: Path) -> None:
    controllers = Controllers()
    controllers.cut_off = {A, B, C}
    asking = asyncio.create_task(controllers.client(tmp_path).replica_info())
    await eventually(lambda: len(controllers.asked) == 3)
    controllers.time_is_over.set()
    with pytest.raises(ControllerUnreachableError, match=f"{A}: no answer.*{B}: no answer.*{C}: no answer"):
        await asking


async def test_after_a_change_of_master_the_leader_is_looked_for_anew(tmp_path: Path) -> None:
    """A node was cut off: the old master, and the controller that our requests went to."""
    controllers = Controllers()
    client = controllers.client(tmp_path)
    await client.replica_info()
    [leader] = {address for address, code in controllers.asked if code == RequestCode.CONTROLLER_GET_REPLICA_INFO}
    controllers.cut_off = {leader}
    client.forget_leader()
    async with asyncio.timeout(15):
        assert (await client.replica_info()).master_epoch == 4


async def test_what_was_asked_of_a_leader_that_is_cut_off_has_an_unknown_outcome(tmp_path: Path) -> None:
    controllers = Controllers()
    client = controllers.client(tmp_path)
    await client.replica_info()
    controllers.cut_off = {A, B, C}
    controllers.time_is_over.set()
    with pytest.raises(ControllerOutcomeUnknownError):
        await client.replica_info()


async def test_1008_has_the_leader_looked_for_anew(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    one = await lab.master()
    forgotten: list[bool] = []
    monkeypatch.setattr(one.process.controller, "forget_leader", lambda: forgotten.append(True))
    await lab.controller.elect(1, 1)
    assert forgotten


DEAD = "127.0.0.1:1"


async def table(client: Client, replica: RunningReplica) -> dict[str, Any]:
    shown: dict[str, Any] = (await client.table(replica, RequestCode.GET_BROKER_RUNTIME_INFO))["table"]
    return shown


async def until_shown(
    client: Client, replica: RunningReplica, holds: Callable[[dict[str, Any]], bool]
) -> dict[str, Any]:
    await replica.process.listening.wait()

    async def look() -> dict[str, Any]:
        shown = await table(client, replica)
        return shown if holds(shown) else {}

    found: dict[str, Any] = await eventually(look, every_seconds=0.05)
    return found


def test_each_controller_has_its_own_fact() -> None:
    health = HeartbeatHealth(("a:1", "b:1"), now_seconds=10.0)
    health.sent("a:1", now_seconds=11.0)
    health.failed("b:1", "refused")
    one, two = health.facts(now_seconds=12.5)
    assert (one.seconds, one.ever_sent, one.problem) == (1.5, True, "")
    assert str(two) == "no heartbeat to controller b:1 for 2.5 s, none was ever sent: refused"
    health.due(("b:1", "c:1"), now_seconds=13.0)
    health.sent("a:1", now_seconds=13.0)
    assert [fact.address for fact in health.facts(now_seconds=13.0)] == ["b:1", "c:1"], "a:1 is no controller any more"


async def test_one_that_cannot_be_reached_is_named_and_delays_nothing(lab: Lab, tmp_path: Path) -> None:
    replica = await start_replica(tmp_path / "r1", f"{DEAD};{lab.controller.address}")
    await eventually(lambda: 1 in lab.controller.heartbeats)
    shown = await until_shown(lab.client, replica, lambda each: each["controllersWithoutHeartbeat"] == DEAD)
    assert shown["controllerRegistered"] == "true"
    assert f"no heartbeat to controller {DEAD} for" in shown[f"controllerHeartbeatProblem.{DEAD}"]
    assert "none was ever sent" in shown[f"controllerHeartbeatProblem.{DEAD}"]
    assert f"controllerHeartbeatProblem.{lab.controller.address}" not in shown
    await lab.controller.asked_again(RequestCode.BROKER_HEARTBEAT, 3)
    await replica.stop()


async def test_a_replica_that_is_not_registered_says_why_none_is_sent(lab: Lab) -> None:
    lab.controller.refused[RequestCode.CONTROLLER_REGISTER_BROKER] = ResponseCode.SYSTEM_ERROR
    replica = await lab.start("r1")
    key = f"controllerHeartbeatProblem.{lab.controller.address}"
    shown = await until_shown(lab.client, replica, lambda each: key in each)
    assert "not registered: CONTROLLER_REGISTER_BROKER: code 1, the test says so" in shown[key]
    assert (shown["controllerRegistered"], lab.controller.heartbeats) == ("false", {})
    lab.controller.refused.clear()
    await eventually(lambda: 1 in lab.controller.heartbeats)
    assert (await table(lab.client, replica))["controllerRegistered"] == "true"


async def test_a_mastership_from_before_the_registration_is_refused(lab: Lab) -> None:
    """Rule 6: it was granted to an earlier process, and what that one reported may not be on this disk."""
    lab.controller.refused[RequestCode.CONTROLLER_REGISTER_BROKER] = ResponseCode.SYSTEM_ERROR
    replica = await lab.start("r1")
    await eventually(lambda: RequestCode.CONTROLLER_REGISTER_BROKER in lab.controller.requests)
    lab.controller.addresses[1] = replica.address
    answer = await lab.controller.elect(1, 1)
    assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert "masterEpoch=1: expected one granted to this process" in (answer.remark or "")
    assert replica.role == "FENCED"
    lab.controller.refused.clear()
    await eventually(lambda: replica.role == "MASTER")
    assert (replica.process.broker.master.master_epoch, 1 in lab.controller.heartbeats) == (2, True)


@pytest.mark.parametrize("how", ["cancelled", "raised"])
async def test_a_heartbeat_task_that_dies_ends_the_process(
    lab: Lab, how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replica = await start_replica(tmp_path / "r1", lab.controller.address)
    await eventually(lambda: 1 in lab.controller.heartbeats)

    def die(*_args: object, **_kwargs: object) -> RemotingCommand:
        if how == "raised":
            raise ZeroDivisionError
        raise asyncio.CancelledError

    monkeypatch.setattr(replica.process.controller, "heartbeat", die)
    with pytest.raises(ExceptionGroup) as caught:
        await replica.task
    assert caught.group_contains(ZeroDivisionError if how == "raised" else PartEndedError)


FIND = RequestCode.CONTROLLER_GET_METADATA_INFO
NEXT_ID = RequestCode.CONTROLLER_GET_NEXT_BROKER_ID
APPLY = RequestCode.CONTROLLER_APPLY_BROKER_ID
REGISTER = RequestCode.CONTROLLER_REGISTER_BROKER
ELECT = RequestCode.CONTROLLER_ELECT_MASTER
POLL = RequestCode.CONTROLLER_GET_REPLICA_INFO
OF_THE_DISK = {
    Disk.NEW: (FIND, NEXT_ID, APPLY, REGISTER),
    Disk.APPLIED: (FIND, APPLY, REGISTER),
    Disk.KNOWN: (FIND, REGISTER),
    Disk.WAS_MASTER: (FIND, REGISTER),
}
FAULTS_OF_ONE = {NEXT_ID: (), APPLY: (Fault.ID_REFUSED,), ELECT: (Fault.NO_CANDIDATE, Fault.NOT_REGISTERED)}
FAULTS = [fault for fault in Fault if fault not in (Fault.NONE, Fault.ID_REFUSED, Fault.NO_CANDIDATE)]


def questions(disk: Disk, leads: Leads) -> tuple[RequestCode, ...]:
    """What this start asks, in order."""
    return (*OF_THE_DISK[disk], *([ELECT] if leads is Leads.NONE else []), POLL)


def starts() -> Iterator[tuple[Disk, Leads]]:
    return itertools.product(Disk, Leads)


def faulty_answers() -> Iterator[Walk]:
    """Each answer lost, late, refused or unknown, while one thing happens."""
    for (disk, leads), lasts, event in itertools.product(starts(), (False, True), Event):
        for question in questions(disk, leads):
            for fault in (*FAULTS, *FAULTS_OF_ONE.get(question, ())):
                yield Walk(disk, leads, Planes.ONE, question, fault, lasts, event, Moment(question))


def moments() -> Iterator[Walk]:
    """One thing at each moment, while the registration is answered, not answered, or refused."""
    for (disk, leads), event, planes in itertools.product(starts(), Event, (Planes.ONE, Planes.THREE)):
        asked = questions(disk, leads)
        for moment in (Moment(), *(Moment(code, done=done) for code in asked for done in (False, True))):
            for fault in (Fault.NONE, Fault.ANSWER_LOST, Fault.CODE_1):
                yield Walk(disk, leads, planes, REGISTER, fault, event=event, moment=moment)


def unreachable() -> Iterator[Walk]:
    """Several controllers, of which some cannot be reached, answer nothing, or refuse everything."""
    for (disk, leads), planes, event in itertools.product(starts(), Planes, Event):
        for question, fault in itertools.product(questions(disk, leads), (Fault.NONE, Fault.ANSWER_LOST, Fault.RESET)):
            yield Walk(disk, leads, planes, question, fault, event=event, moment=Moment(REGISTER))


WALKS = list(dict.fromkeys((*faulty_answers(), *moments(), *unreachable())))


@pytest.mark.sampled
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("disk", "leads"), [(disk.name, leads.name) for disk, leads in starts()])
def test_each_ends_registered_and_heard_by_every_controller(disk: str, leads: str, tmp_path: Path) -> None:
    of_this_start = [walk for walk in WALKS if (walk.disk.name, walk.leads.name) == (disk, leads)]
    wrong = {}
    for number, walk in enumerate(sample(of_this_start, 15)):
        complaints = play(walk, tmp_path / str(number)).complaints
        if complaints:
            wrong[str(walk)] = complaints
    assert not wrong


# The fault that two real clusters met, and its siblings; each was red before the two facts were separated.
NAMED = {
    "a 1008 while 1003 is not answered": Walk(
        fault=Fault.ANSWER_LOST, event=Event.NOTIFIED_OF_OTHER, moment=Moment(REGISTER)
    ),
    "a 1008 while 1003 is lost": Walk(fault=Fault.REQUEST_LOST, event=Event.NOTIFIED_OF_OTHER, moment=Moment(REGISTER)),
    "a 1008 before 1003 is refused": Walk(
        fault=Fault.CODE_1, event=Event.NOTIFIED_OF_OTHER, moment=Moment(FIND, done=True)
    ),
    "a 1008 before anything, 1003 too late": Walk(fault=Fault.TOO_LATE, event=Event.NOTIFIED_OF_OTHER),
    "the first master by a 1008": Walk(
        Disk.NEW, Leads.NONE, fault=Fault.ANSWER_LOST, event=Event.NOTIFIED_OF_SELF, moment=Moment(REGISTER)
    ),
    "the grant of an earlier process": Walk(
        Disk.WAS_MASTER, Leads.NONE, fault=Fault.REQUEST_LOST, event=Event.NOTIFIED_OF_SELF, moment=Moment(REGISTER)
    ),
    "1003 is refused as unknown for long": Walk(
        fault=Fault.NOT_REGISTERED, lasts=True, event=Event.NOTIFIED_OF_OTHER, moment=Moment(REGISTER)
    ),
    "the controller that was asked dies": Walk(
        planes=Planes.THREE, fault=Fault.ANSWER_LOST, event=Event.CONTROLLER_DIES, moment=Moment(REGISTER)
    ),
    "one plane refuses everything": Walk(Disk.NEW, planes=Planes.ONE_IS_SICK),
    "two are frozen": Walk(
        planes=Planes.TWO_ARE_FROZEN, fault=Fault.RESET, event=Event.NOTIFIED_OF_OTHER, moment=Moment(REGISTER)
    ),
}


@pytest.mark.parametrize("name", NAMED)
def test_the_one_that_was_seen_and_its_siblings(name: str, tmp_path: Path) -> None:
    assert play(NAMED[name], tmp_path / "store").complaints == []


def test_a_walk_meets_what_it_names(tmp_path: Path) -> None:
    """Else the walks above could pass because nothing ever happens in them."""
    met = [play(walk, tmp_path / str(number)) for number, walk in enumerate(sample(WALKS, 40))]
    assert sum(world.happened for world in met) > 20
    assert sum(bool(world.fault_hits) for world in met) > 15


def test_an_application_whose_answer_is_lost_burns_no_id(tmp_path: Path) -> None:
    walk = Walk(
        Disk.NEW, question=APPLY, fault=Fault.ANSWER_LOST, event=Event.CONTROLLERS_DIE, moment=Moment(APPLY, done=True)
    )
    world = play(walk, tmp_path / "store")
    assert (world.complaints, world.record.next_id) == ([], 2)
