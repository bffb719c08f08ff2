"""One start of a replica in virtual time: the real process on a real disk, controllers in memory, a fault and an event at a moment.

The controllers share one record (`FakeController`), as planes over one record store do; or one of them leads and the others say
so, as Java's do. A heartbeat is noted at the controller that it reached.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from unittest import mock

from rocketmq_remoting.broker_protocol import ExchangeHAInfoRequestHeader
from rocketmq_remoting.codes import RequestCode, ResponseCode
from rocketmq_remoting.command import RemotingCommand, request
from rocketmq_remoting.controller_protocol import (
    BrokerHeartbeatRequestHeader,
    GetMetaDataResponseHeader,
    RegisterBrokerToControllerRequestHeader,
)
from rocketmq_remoting.errors import RemotingError
from rocketmq_remoting.server import RemotingServer
from rocketmq_replica.broker import Role
from rocketmq_replica.configuration import parse_configuration
from rocketmq_replica.process import ReplicaProcess
from tests.replica.stores import open_store, put
from tests.replica.support import BROKER_NAME, FakeController, configuration_text
from tests.support.memory_api import BEGINNING_UNIX_SECONDS
from tests.support.one_request import answer_to
from tests.support.quiet_handler import QuietHandler
from tests.support.virtual_loop import VirtualLoop

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from rocketmq_remoting.connection import RemotingConnection

OTHER_ID = 9
OTHER_ADDRESS, OTHER_ADDRESS_LATER = "10.9.9.9:10911", "10.9.9.10:10911"
LOG_FILE_BYTES = 65536
BEAT_SECONDS = 1.0
# A controller that died or was cut off comes back after this; a fault that lasts ends then.
TROUBLE_SECONDS = 15.0
# What a replica may take to be registered and heard everywhere, once nothing is in its way any more: two deadlines of a request to
# a controller that does not answer, and the search for another one.
SETTLES_WITHIN_SECONDS = 10.0
QUIET_SECONDS = 4.0
# Half a second between two tries, and each may ask every controller for the leader.
MOST_ASKED_A_SECOND = 12.0
MOST_TURNS = 200_000


class Disk(enum.Enum):
    """What the replica finds on its disk."""

    NEW = "new"
    APPLIED = "applied"
    KNOWN = "known"
    WAS_MASTER = "was master"


class Leads(enum.Enum):
    """What the record says about the master when the replica starts."""

    OTHER = "other"
    NONE = "no master"


class Fault(enum.Enum):
    """What becomes of a request."""

    NONE = "none"
    REQUEST_LOST = "request lost"
    ANSWER_LOST = "answer lost"
    LATE = "late"
    TOO_LATE = "too late"
    RESET = "reset"
    EMPTY = "empty"
    CODE_1 = 1
    CODE_2 = 2
    CODE_16 = 16
    NOT_LEADER = 2007
    GROUP_UNKNOWN = 2008
    NOT_REGISTERED = 2010
    NO_CANDIDATE = 2012
    ID_REFUSED = 2014


class Event(enum.Enum):
    """What happens at a moment of the start."""

    NONE = "none"
    NOTIFIED_OF_OTHER = "1008 names another"
    NOTIFIED_OF_SELF = "1008 names this one"
    POINTED = "906"
    MASTER_MOVED = "the master has another address"
    MASTER_LOST = "there is no master"
    FORGOTTEN = "the record is lost"
    RESTARTED = "a new process at another address"
    CONTROLLER_DIES = "the controller that was asked dies and returns"
    CONTROLLERS_DIE = "all controllers die and return"


class Planes(enum.Enum):
    """Which controllers there are, and which of them can be reached."""

    ONE = "one"
    THREE = "three, each leads"
    ONE_OF_JAVA_LEADS = "three, the last leads"
    TWO_REFUSE = "three, two refuse connections"
    TWO_ARE_SILENT = "three, nothing answers for two"
    TWO_ARE_FROZEN = "three, two accept and answer nothing"
    ONE_IS_SICK = "three, one answers everything with code 1"


@dataclass(frozen=True)
class Moment:
    """Before a request is handled, or after it was handled and before its answer; None: before the first request."""

    code: RequestCode | None = None
    done: bool = False


@dataclass(frozen=True)
class Walk:
    """One way through the start."""

    disk: Disk = Disk.KNOWN
    leads: Leads = Leads.OTHER
    planes: Planes = Planes.ONE
    question: RequestCode = RequestCode.CONTROLLER_REGISTER_BROKER
    fault: Fault = Fault.NONE
    lasts: bool = False
    event: Event = Event.NONE
    moment: Moment = Moment()

    def __str__(self) -> str:
        fault = f"{self.question.name} {self.fault.name}{' for long' if self.lasts else ''}"
        code = "start" if self.moment.code is None else self.moment.code.name
        at = f"{'done' if self.moment.done else 'at'} {code}"
        return f"{self.disk.name}, {self.leads.name} leads, {self.planes.name}, {fault}, {self.event.name} {at}"


class Plane(QuietHandler):
    """One controller: the shared record behind an address of its own."""

    def __init__(self, world: StartWorld, number: int) -> None:
        self._world = world
        self.number = number
        self.host = f"10.1.0.{number + 1}"
        self.address = f"{self.host}:9878"
        self.beats: list[tuple[float, int, str]] = []
        self._lives = itertools.count(1)
        self.process = ""

    def start(self) -> None:
        self.process = f"plane-{self.number}/{next(self._lives)}"
        self._server = RemotingServer(self)
        self._world.loop.spawn(self.process, self._server.start(self.host, 9878))

    async def die_and_return(self) -> None:
        self._world.loop.kill(self.process)
        await asyncio.sleep(TROUBLE_SECONDS)
        self.start()

    async def handle(self, command: RemotingCommand, connection: RemotingConnection) -> RemotingCommand | None:
        world = self._world
        if command.code == RequestCode.BROKER_HEARTBEAT:
            beat = BrokerHeartbeatRequestHeader.decode(command.ext_fields)
            self.beats.append((world.loop.time(), beat.broker_id or 0, beat.broker_addr or ""))
            return None
        world.asked += 1
        await world.reached(Moment(RequestCode(command.code)), self)
        fault = world.fault_of(command, self)
        if fault is Fault.REQUEST_LOST:
            return None
        if isinstance(fault.value, int):
            return command.answer(fault.value, remark="the walk says so")
        answer = world.answer(command, self)
        await world.reached(Moment(RequestCode(command.code), done=True), self)
        match fault:
            case Fault.ANSWER_LOST:
                return None
            case Fault.LATE:
                await asyncio.sleep(1.5)
            case Fault.TOO_LATE:
                await asyncio.sleep(4.0)
            case Fault.RESET:
                connection.abort()
            case Fault.EMPTY:
                return command.answer(0)
            case _:
                pass
        return answer


@dataclass
class Registration:
    """A 1003 that a controller has taken."""

    broker_id: int
    address: str


class InlineLoop(VirtualLoop):
    """A thread would take real time, in which the virtual clock runs away: what is for a thread is done at once."""

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:  # type: ignore[override]
        done = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as error:  # noqa: BLE001 - as an executor hands it over
            done.set_exception(error)
        return done


@dataclass
class StartWorld:
    """`run` plays one walk; `complaints` then says what is wrong at its end."""

    walk: Walk
    folder: Path
    loop: InlineLoop = field(default_factory=lambda: InlineLoop(most_turns=MOST_TURNS))

    def __post_init__(self) -> None:
        self.record = FakeController()
        self.planes = [Plane(self, number) for number in range(1 if self.walk.planes is Planes.ONE else 3)]
        self.registrations: list[Registration] = []
        self.answered: list[RemotingCommand | RemotingError] = []
        self.happened = False
        self.fault_hits = 0
        self.asked = 0
        self.complaints: list[str] = []
        self._faulty_requests = 3 if self.walk.fault in (Fault.CODE_1, Fault.NOT_LEADER) else 1
        lasting = self.walk.lasts and self.walk.fault is not Fault.NONE
        self._trouble_ends_seconds = TROUBLE_SECONDS if lasting else 0.0
        self._hosts = (f"10.3.0.{number}" for number in itertools.count(1))
        self._lives = itertools.count(1)
        self._reached_start = False

    # ---- the controllers

    def answer(self, command: RemotingCommand, plane: Plane) -> RemotingCommand | None:
        leader = self.planes[-1] if self.walk.planes is Planes.ONE_OF_JAVA_LEADS else plane
        if command.code == RequestCode.CONTROLLER_GET_METADATA_INFO:
            fields = GetMetaDataResponseHeader(controller_leader_address=leader.address, is_leader=leader is plane)
            return command.answer(0, ext_fields=fields.encode())
        if leader is not plane:
            return command.answer(ResponseCode.CONTROLLER_NOT_LEADER)
        answer = self.record._answer(command)
        if command.code == RequestCode.CONTROLLER_REGISTER_BROKER and answer is not None and answer.code == 0:
            header = RegisterBrokerToControllerRequestHeader.decode(command.ext_fields)
            self.registrations.append(Registration(header.broker_id or 0, header.broker_address or ""))
        return answer

    def fault_of(self, command: RemotingCommand, plane: Plane) -> Fault:
        if self.walk.planes is Planes.ONE_IS_SICK and plane.number == 0:
            is_search = command.code == RequestCode.CONTROLLER_GET_METADATA_INFO
            return Fault.NONE if is_search else Fault.CODE_1
        if command.code != self.walk.question or self.walk.fault is Fault.NONE:
            return Fault.NONE
        if self.walk.lasts:
            if self.loop.time() > TROUBLE_SECONDS:
                return Fault.NONE
        elif self.fault_hits >= self._faulty_requests:
            return Fault.NONE
        self.fault_hits += 1
        self._trouble_lasts(0.0)
        return self.walk.fault

    # ---- what happens

    async def reached(self, moment: Moment, plane: Plane) -> None:
        if self.happened or moment != self.walk.moment or self.walk.event is Event.NONE:
            return
        self.happened = True
        self._trouble_lasts(0.0)
        await self._happen(plane)
        await asyncio.sleep(0.05)  # it arrives before the answer does

    async def _happen(self, plane: Plane) -> None:  # noqa: C901 - one case for each event
        match self.walk.event:
            case Event.NOTIFIED_OF_OTHER:
                self._let_lead(OTHER_ID)
                self._spawn(self._notify())
            case Event.NOTIFIED_OF_SELF:
                self._let_lead(self.own_id)
                self._spawn(self._notify())
            case Event.POINTED:
                self._spawn(self._send_ha_address())
            case Event.MASTER_MOVED:
                self.record.addresses[OTHER_ID] = OTHER_ADDRESS_LATER
            case Event.MASTER_LOST:
                self.record.lose_master()
            case Event.FORGOTTEN:
                self.record.forgotten = True
            case Event.RESTARTED:
                self.loop.kill(self.process_name)
                self.start_replica()
            case Event.CONTROLLER_DIES:
                self._trouble_lasts(TROUBLE_SECONDS)
                self._spawn(plane.die_and_return())
            case Event.CONTROLLERS_DIE:
                self._trouble_lasts(TROUBLE_SECONDS)
                for each in self.planes:
                    self._spawn(each.die_and_return())
            case Event.NONE:
                pass

    def _trouble_lasts(self, seconds: float) -> None:
        self._trouble_ends_seconds = max(self._trouble_ends_seconds, self.loop.time() + seconds)

    def _spawn(self, coro: Any) -> None:
        self.loop.spawn("test", coro)

    @property
    def own_id(self) -> int:
        return next((broker_id for broker_id in self.record.check_codes if broker_id != OTHER_ID), 1)

    def _let_lead(self, broker_id: int) -> None:
        self.record.addresses.setdefault(broker_id, self.address)
        self.record.decide(broker_id)
        self.record.members |= {self.own_id}

    async def _notify(self) -> None:
        await self._call(self.record.notification())

    async def _send_ha_address(self) -> None:
        header = ExchangeHAInfoRequestHeader(master_ha_address=OTHER_ADDRESS)
        await self._call(request(RequestCode.EXCHANGE_BROKER_HA_INFO, ext_fields=header.encode()))

    async def _call(self, command: RemotingCommand) -> None:
        try:
            self.answered.append(await answer_to(self.address, command, timeout_seconds=3.0))
        except RemotingError as error:
            self.answered.append(error)

    # ---- the replica

    def start_replica(self) -> None:
        self.address = f"{next(self._hosts)}:10911"
        host = self.address.partition(":")[0]
        keys = {
            "brokerHeartbeatInterval": int(BEAT_SECONDS * 1000),
            "syncBrokerMetadataPeriod": 5000,
            "mappedFileSizeCommitLog": LOG_FILE_BYTES,
        }
        text = configuration_text(self.folder, ";".join(each.address for each in self.planes), host, **keys)
        self.process_name = f"replica/{next(self._lives)}"
        self.replica = ReplicaProcess(parse_configuration(text, {}))
        self._stop = asyncio.Event()
        self.registrations.clear()
        self._replica_task = self.loop.spawn(self.process_name, self.replica.run(self._stop))

    def _prepare(self) -> None:
        record, disk = self.record, self.walk.disk
        record.addresses[OTHER_ID], record.check_codes[OTHER_ID] = OTHER_ADDRESS, "other;1"
        record.master_epoch, record.set_epoch, record.members = 3, 5, frozenset({OTHER_ID})
        if self.walk.leads is Leads.OTHER:
            record.master_id = OTHER_ID
        else:
            record.members = frozenset()
        self.folder.mkdir(parents=True, exist_ok=True)
        identity = f"DefaultCluster#{BROKER_NAME}#1"
        if disk is Disk.APPLIED:
            (self.folder / "brokerIdentity-temp").write_text(f"{identity}#10.3.0.1:10911;5")
        elif disk is not Disk.NEW:
            (self.folder / "brokerIdentity").write_text(identity)
            record.check_codes[1], record.next_id = "10.3.0.1:10911;5", 2
            record.addresses[1] = "10.3.0.77:10911"
        if disk is Disk.WAS_MASTER:
            _leave_a_term(self.folder, epoch=record.master_epoch)
            if self.walk.leads is Leads.NONE:  # its earlier process, as far as the record knows
                record.master_id, record.members = 1, frozenset({1})

    async def run(self) -> None:
        self._prepare()
        for plane in self.planes:
            plane.start()
        await asyncio.sleep(0.01)
        self._obstruct()
        self.start_replica()
        if self.walk.moment == Moment():
            await self.replica.listening.wait()
            await self.reached(Moment(), self.planes[-1])
        await self._until_settled()
        if not self.complaints:
            await asyncio.sleep(QUIET_SECONDS)
            if problem := self.unsettled(beats=3):
                self.complaints.append(f"not any more at {self.loop.time():.1f} s: {problem}")
        if self.asked > MOST_ASKED_A_SECOND * self.loop.time():
            self.complaints.append(f"it asks without a pause: {self.asked} requests in {self.loop.time():.1f} s")

    def _obstruct(self) -> None:
        for plane in self.planes[:2]:
            match self.walk.planes:
                case Planes.TWO_REFUSE:
                    self.loop.kill(plane.process)
                case Planes.TWO_ARE_SILENT:
                    self.loop.silent_hosts.add(plane.host)
                case Planes.TWO_ARE_FROZEN:
                    self.loop.freeze(plane.process)
                case _:
                    pass

    @property
    def reachable(self) -> list[Plane]:
        cut_off = self.walk.planes in (Planes.TWO_REFUSE, Planes.TWO_ARE_SILENT, Planes.TWO_ARE_FROZEN)
        return self.planes[2:] if cut_off else self.planes

    async def _until_settled(self) -> None:
        """Within the bound after the last trouble, which may come while this waits."""
        while problem := self.unsettled(beats=1):
            late_seconds = self.loop.time() - self._trouble_ends_seconds
            if self.replica.broker.role is Role.MASTER and not self.registrations:
                problem = "master by a word that was for an earlier process: this one has not registered"
            elif self._replica_task.done():
                problem = f"the process has ended: {self._replica_task.exception()!r}"
            elif late_seconds <= SETTLES_WITHIN_SECONDS:
                await asyncio.sleep(0.1)
                continue
            self.complaints.append(f"{late_seconds:.1f} s after the last trouble: {problem}")
            return
        self.settled_after_seconds = self.loop.time() - self._trouble_ends_seconds

    def unsettled(self, *, beats: int) -> str:
        """What is missing: a registration of this process at this address, or heartbeats at a controller that can be reached."""
        broker = self.replica.broker
        if Registration(broker.broker_id, self.address) not in self.registrations:
            return f"broker {broker.broker_id}, {broker.role.value}, has not registered {self.address}"
        for plane in self.reachable:
            since_seconds = self.loop.time() - (beats + 0.5) * BEAT_SECONDS
            heard = [beat for at, *beat in plane.beats if at >= since_seconds]
            if heard.count([broker.broker_id, self.address]) < beats:
                return f"{plane.address} hears no broker {broker.broker_id} at {self.address}, {broker.role.value}"
        if self.loop.time() < self._trouble_ends_seconds:
            return "the trouble is not over"
        if self.record.master_id is not None and broker.master.broker_id != self.record.master_id:
            return (
                f"broker {broker.broker_id} is {broker.role.value} of {broker.master}, not of {self.record.master_id}"
            )
        return ""


def _leave_a_term(folder: Path, *, epoch: int) -> None:
    """What a process that was master in this epoch leaves on the disk."""
    store = open_store(folder, LOG_FILE_BYTES)
    store.begin_epoch(epoch)
    put(store, b"of its term")
    store.close()


def play(walk: Walk, folder: Path) -> StartWorld:
    """One walk from the start of the process to its end; ``complaints`` of the world say what is wrong then."""
    world = StartWorld(walk, folder)
    with virtual_clocks(world.loop):
        try:
            world.loop.run_until_complete(world.loop.create_task(world.run()))
        finally:
            world.loop.finish()
    return world


@contextlib.contextmanager
def virtual_clocks(loop: VirtualLoop) -> Iterator[None]:
    """Both clocks of the replica are the loop's."""

    def unix_nanoseconds() -> int:
        return int((BEGINNING_UNIX_SECONDS + loop.time()) * 1_000_000_000)

    with mock.patch("time.monotonic", new=loop.time), mock.patch("time.time_ns", new=unix_nanoseconds):
        yield
