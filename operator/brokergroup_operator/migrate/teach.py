"""Brings a Java controller into the state of a record, by its own requests: it has no import (docs/reference/controller.md).

``prepare`` may run before or while brokers list the controller: afterwards the group has every id, no master, and an epoch one
below the brokers'. ``finish`` needs the master's heartbeats at the controller: it elects the present master into exactly its
present epoch, and raises the SyncStateSet's. Meanwhile role notifications (1008) are off; unclean election is on for the master's
election only, which is designated, so no other broker can win it. ``Lesson`` holds what is to be brought about, and Java's rules
that decide the order:

* ``nextAssignBrokerId`` counts applications, so every id below the next one is applied for, in order; unused ones are cleaned at
  the end;
* only the first election needs no live winner, and an election without one raises the master epoch by one: so a *stand-in*
  without heartbeats is elected first, and loses as often as needed. It is an id without a broker: a hole, or else the next id,
  which it uses up. ``finish`` sends heartbeats in its name and lets it enter and leave the SyncStateSet: each change raises the
  set's epoch by one;
* a broker ignores an epoch below its own, so everything before the master's election may happen while brokers are connected.

Nothing here may send a heartbeat in a broker's name: Java binds a broker to the first connection that it hears it on, for ever
(issue 11045), and would take the end of our connection for the broker's death.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

from brokergroup_operator.migrate.java import JavaCalls, MigrationCallError
from rocketmq_remoting.client import RemotingClient
from rocketmq_remoting.codes import RequestCode, ResponseCode
from rocketmq_remoting.command import request
from rocketmq_remoting.controller_protocol import (
    AlterSyncStateSetRequestHeader,
    ApplyBrokerIdRequestHeader,
    BrokerHeartbeatRequestHeader,
    CleanBrokerDataRequestHeader,
    ElectMasterRequestHeader,
    GetReplicaInfoRequestHeader,
    RegisterBrokerToControllerRequestHeader,
    SyncStateSetBody,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    from controller_core.model import BrokerGroupRecord
    from rocketmq_remoting.command import RemotingCommand
    from rocketmq_remoting.controller_protocol import ReplicasInfo


NOTIFY = "notifyBrokerRoleChanged"
UNCLEAN = "enableElectUncleanMaster"
STAND_IN_HEARTBEAT_TIMEOUT_MS = 60_000
CLEAN_DEADLINE_SECONDS = 20.0
log = structlog.get_logger(__name__)
# A Java controller reports itself leader once it has the votes, but answers 2007 until its log has an entry of the new term.
LEADS_DEADLINE_SECONDS = 10.0
POLL_SECONDS = 0.1


class TeachError(Exception):
    """The controller did not reach the intended state; the message has its state."""


class Teacher:
    """One Java controller group: its members and its leader."""

    def __init__(self, calls: JavaCalls, *, leader: str, peers: tuple[str, ...]) -> None:
        self._calls = calls
        self._leader = leader
        # jRaft names its Raft addresses, which accept no such requests; the leader is the one that elects.
        self._peers = peers if leader in peers else (leader,)

    # ---- the two halves

    async def prepare(self, lesson: Lesson) -> None:
        """Assign every id, and raise the epoch to one below the brokers'."""
        await self.require_unknown(lesson.broker_name)
        for seat in lesson.seats:
            await self._apply(lesson, seat)
        for seat in lesson.seats:
            if seat.held:
                await self._register(lesson, seat)
        if not lesson.waits_without_election:
            await self._elect(lesson, lesson.stand_in, ResponseCode.SUCCESS)
            for _ in range(lesson.lost_elections):
                await self._elect(lesson, -1, ResponseCode.CONTROLLER_MASTER_NOT_AVAILABLE)
        now = await self.state(lesson.broker_name)
        if now.master_broker_id is not None or now.master_epoch != lesson.epoch_while_waiting:
            raise TeachError(
                f"{self._leader}: {lesson.broker_name} has master {now.master_broker_id} in epoch {now.master_epoch}, "
                f"expected none in {lesson.epoch_while_waiting}"
            )

    async def finish(self, lesson: Lesson) -> ReplicasInfo:
        """Elect the present master and raise the SyncStateSet's epoch; return the final state."""
        async with self._stand_in_alive(lesson):
            if not lesson.elects_stand_in:
                await self._elect(lesson, lesson.master, ResponseCode.SUCCESS)
            else:
                if lesson.waits_without_election:
                    await self._elect(lesson, lesson.stand_in, ResponseCode.SUCCESS)
                async with self._set(UNCLEAN, "true", by_default="false"):
                    await self._elect(lesson, lesson.master, ResponseCode.SUCCESS, designate=True)
            await self._raise_set_epoch(lesson)
        await self._clean(lesson)
        return await self.state(lesson.broker_name)

    @contextlib.asynccontextmanager
    async def silent(self) -> AsyncIterator[None]:
        """Switch off the controller's role notifications meanwhile."""
        async with self._set(NOTIFY, "false", by_default="true"):
            yield

    async def forget(self, lesson: Lesson) -> None:
        """Undo ``prepare``: remove the group, also if brokers send heartbeats."""
        await self._calls.ask(self._leader, self._clean_request(lesson, ids=None, living=True))

    async def state(self, broker_name: str) -> ReplicasInfo:
        """Return the group's present state (1006)."""
        found = (await self._calls.sync_state_data(self._leader, [broker_name])).get(broker_name)
        if found is None:
            raise TeachError(f"{self._leader} does not know {broker_name}")
        return found

    async def require_unknown(self, broker_name: str) -> None:
        """Raise TeachError if the controller knows the group already. Waits for a leader that was only just elected."""
        header = GetReplicaInfoRequestHeader(broker_name=broker_name)
        asked = request(RequestCode.CONTROLLER_GET_REPLICA_INFO, ext_fields=header.encode())
        deadline = asyncio.get_running_loop().time() + LEADS_DEADLINE_SECONDS
        answer = await self._calls.ask(self._leader, asked)
        while answer.code == ResponseCode.CONTROLLER_NOT_LEADER:
            if asyncio.get_running_loop().time() > deadline:
                raise TeachError(
                    f"{self._leader} answers 2007 (not the leader) for {LEADS_DEADLINE_SECONDS:g} s, expected the leader"
                )
            await asyncio.sleep(POLL_SECONDS)
            answer = await self._calls.ask(self._leader, asked)
        if answer.code != ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST:
            raise TeachError(
                f"{self._leader} answers code {answer.code} for {broker_name}, expected 2008 (unknown): "
                "start it on an empty controllerStorePath, or clean the group there first (mqadmin cleanBrokerMetadata -l)"
            )

    # ---- single requests

    async def _apply(self, lesson: Lesson, seat: Seat) -> None:
        header = ApplyBrokerIdRequestHeader(
            cluster_name=lesson.cluster_name,
            broker_name=lesson.broker_name,
            applied_broker_id=seat.broker_id,
            register_check_code=seat.register_check_code,
        )
        await self._calls.must(
            self._leader, request(RequestCode.CONTROLLER_APPLY_BROKER_ID, ext_fields=header.encode())
        )

    async def _register(self, lesson: Lesson, seat: Seat) -> None:
        header = RegisterBrokerToControllerRequestHeader(
            cluster_name=lesson.cluster_name,
            broker_name=lesson.broker_name,
            broker_id=seat.broker_id,
            broker_address=seat.address,
        )
        await self._calls.must(
            self._leader, request(RequestCode.CONTROLLER_REGISTER_BROKER, ext_fields=header.encode())
        )

    async def _elect(self, lesson: Lesson, broker_id: int, expected: ResponseCode, *, designate: bool = False) -> None:
        header = ElectMasterRequestHeader(
            cluster_name=lesson.cluster_name,
            broker_name=lesson.broker_name,
            broker_id=broker_id,
            designate_elect=designate,
        )
        answer = await self._calls.ask(
            self._leader, request(RequestCode.CONTROLLER_ELECT_MASTER, ext_fields=header.encode())
        )
        if answer.code != expected:
            raise TeachError(
                f"{self._leader}: electing {broker_id} in {lesson.broker_name} answered {answer.code} ({answer.remark}), "
                f"expected {int(expected)}"
            )

    async def _raise_set_epoch(self, lesson: Lesson) -> None:
        """Propose sets in the master's name; start again from the present set if the master itself was faster."""
        for _ in range(3):
            now = await self.state(lesson.broker_name)
            if now.master_broker_id != lesson.master or now.master_epoch != lesson.master_epoch:
                raise TeachError(
                    f"{self._leader}: {lesson.broker_name} has master {now.master_broker_id} in epoch {now.master_epoch}, "
                    f"expected {lesson.master} in {lesson.master_epoch}"
                )
            alive = {one.broker_id for one in (*now.in_sync_replicas, *now.not_in_sync_replicas) if one.alive}
            proposals = lesson.alterations(
                [one.broker_id for one in now.in_sync_replicas],
                now.sync_state_set_epoch,
                lesson.sync_state_set & alive | {lesson.master},
            )
            if await self._propose(lesson, proposals, now.sync_state_set_epoch):
                return
        raise TeachError(f"{self._leader}: the SyncStateSet of {lesson.broker_name} does not stand still")

    async def _propose(self, lesson: Lesson, proposals: tuple[frozenset[int], ...], epoch: int) -> bool:
        for number, proposal in enumerate(proposals):
            header = AlterSyncStateSetRequestHeader(
                broker_name=lesson.broker_name, master_broker_id=lesson.master, master_epoch=lesson.master_epoch
            )
            command = request(
                RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET,
                ext_fields=header.encode(),
                body=SyncStateSetBody(proposal, epoch + number).encode(),
            )
            if (await self._calls.ask(self._leader, command)).code != ResponseCode.SUCCESS:
                return False
        return True

    @contextlib.asynccontextmanager
    async def _stand_in_alive(self, lesson: Lesson) -> AsyncIterator[None]:
        """Send heartbeats for the stand-in, on a connection of its own: when that closes, Java drops it at once."""
        client = RemotingClient()
        header = BrokerHeartbeatRequestHeader(
            cluster_name=lesson.cluster_name,
            broker_name=lesson.broker_name,
            broker_addr=NOWHERE,
            broker_id=lesson.stand_in,
            heartbeat_timeout_ms=STAND_IN_HEARTBEAT_TIMEOUT_MS,
        )
        try:
            calls = JavaCalls(client)
            for peer in self._peers:
                await calls.must(peer, request(RequestCode.BROKER_HEARTBEAT, ext_fields=header.encode()))
            yield
        finally:
            await client.close()

    async def _clean(self, lesson: Lesson) -> None:
        """Clean the ids without a broker, as soon as Java has noticed that the stand-in is gone."""
        if not lesson.ids_to_clean:
            return
        ids = ";".join(str(broker_id) for broker_id in lesson.ids_to_clean)
        deadline = asyncio.get_running_loop().time() + CLEAN_DEADLINE_SECONDS
        while True:
            answer = await self._calls.ask(self._leader, self._clean_request(lesson, ids=ids, living=False))
            if answer.code == ResponseCode.SUCCESS:
                return
            if asyncio.get_running_loop().time() > deadline:
                raise TeachError(f"{self._leader}: cleaning {ids} answered {answer.code}: {answer.remark}")
            await asyncio.sleep(POLL_SECONDS)

    @staticmethod
    def _clean_request(lesson: Lesson, *, ids: str | None, living: bool) -> RemotingCommand:
        header = CleanBrokerDataRequestHeader(
            cluster_name=lesson.cluster_name,
            broker_name=lesson.broker_name,
            broker_controller_ids_to_clean=ids,
            is_clean_living_broker=living,
        )
        return request(RequestCode.CLEAN_BROKER_DATA, ext_fields=header.encode())

    @contextlib.asynccontextmanager
    async def _set(self, key: str, value: str, *, by_default: str) -> AsyncIterator[None]:
        """Set an option at every member of the controller group meanwhile; afterwards each member has its own value again.

        Members do not share their configuration. `by_default`: Java's value where the configuration does not show the option.
        """
        before = {peer: (await self._calls.controller_configuration(peer)).get(key, by_default) for peer in self._peers}
        try:
            for peer in before:
                await self._calls.configure_controller(peer, {key: value})
            yield
        finally:
            for peer, own in before.items():
                try:
                    await self._calls.configure_controller(peer, {key: own})
                except MigrationCallError as error:
                    log.warning("give this option back by hand", peer=peer, option=key, value=own, error=str(error))


NOWHERE = "127.0.0.1:1"
"""The address of ids without a broker: nothing listens there, so a stray notification has no effect."""


class LessonError(Exception):
    """The record cannot be moved to a Java controller; the message names the missing condition."""


@dataclass(frozen=True, slots=True)
class Seat:
    """One id to apply for. ``held`` is False for the stand-in and for unused ids."""

    broker_id: int
    address: str
    register_check_code: str
    held: bool


@dataclass(frozen=True, slots=True)
class Lesson:
    """What the Java controller must know about one group, and how to get it there."""

    cluster_name: str
    broker_name: str
    seats: tuple[Seat, ...]
    stand_in: int
    master: int
    master_epoch: int
    sync_state_set: frozenset[int]
    sync_state_set_epoch: int

    @property
    def elects_stand_in(self) -> bool:
        """Whether the stand-in is elected first: not if the brokers are in their first epoch."""
        return self.master_epoch > 1

    @property
    def lost_elections(self) -> int:
        """Return how many elections the stand-in loses: its own election and the last one raise the epoch too."""
        return max(self.master_epoch - 2, 0)

    @property
    def waits_without_election(self) -> bool:
        """Whether no election may happen before the brokers arrive, because the stand-in could not lose its mastership again.

        As soon as any broker sends heartbeats, Java's own scan replaces a silent master by three lost elections (seen with a real
        5.5.0). So the controller waits without a master, or before its first one.
        """
        return self.lost_elections == 0

    @property
    def epoch_while_waiting(self) -> int:
        """Return the master epoch at which the controller waits for the brokers: below theirs."""
        return 0 if self.waits_without_election else self.master_epoch - 1

    @property
    def ids_to_clean(self) -> tuple[int, ...]:
        """Return the ids without a broker, to be cleaned at the end."""
        return tuple(seat.broker_id for seat in self.seats if not seat.held)

    def alterations(
        self, now: Iterable[int], now_epoch: int, final: frozenset[int] | None = None
    ) -> tuple[frozenset[int], ...]:
        """Return the SyncStateSets to propose in order, from the present one to the final one at a sufficient epoch.

        ``final`` is the part of the record's set that can be proposed: a member without heartbeats is refused (2006).
        """
        final = self.sync_state_set if final is None else final
        alone = frozenset({self.master})
        with_stand_in = alone | {self.stand_in}
        current = frozenset(now)
        proposals: list[frozenset[int]] = []
        while current != final or now_epoch + len(proposals) < self.sync_state_set_epoch:
            missing = self.sync_state_set_epoch - now_epoch - len(proposals)
            now_the_final_one = missing <= 1 and current != final
            proposals.append(final if now_the_final_one else alone if current == with_stand_in else with_stand_in)
            current = proposals[-1]
        return tuple(proposals)


def make_lesson(record: BrokerGroupRecord) -> Lesson:
    """Return the lesson for a record. Raises ``LessonError`` for a group without a master, or with a member without an address."""
    master = record.granted_master_id
    if master is None:
        raise LessonError(
            f"{record.broker_name} has no master with a live process: wait until one is elected, then go back"
        )
    lost = sorted(
        broker_id for broker_id, replica in record.replicas.items() if replica.claimed and not replica.address
    )
    if lost:
        raise LessonError(
            f"{record.broker_name}: the address of {lost} is unknown: let these brokers register, or clean them (1011)"
        )
    held = {broker_id: replica for broker_id, replica in record.replicas.items() if replica.claimed}
    holes = [broker_id for broker_id in range(1, record.next_broker_id) if broker_id not in held]
    stand_in = holes[0] if holes else record.next_broker_id
    seats = tuple(
        Seat(broker_id, held[broker_id].address, held[broker_id].register_check_code, held=True)
        if broker_id in held
        else Seat(broker_id, NOWHERE, f"{NOWHERE};nobody-{broker_id}", held=False)
        for broker_id in range(1, max(record.next_broker_id, stand_in + 1))
    )
    return Lesson(
        cluster_name=record.cluster_name,
        broker_name=record.broker_name,
        seats=seats,
        stand_in=stand_in,
        master=master,
        master_epoch=record.master_epoch,
        sync_state_set=record.sync_state_set,
        sync_state_set_epoch=record.sync_state_set_epoch,
    )
