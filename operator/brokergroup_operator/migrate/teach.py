"""Drives a Java controller into the state of a record, by its own requests; the lesson itself is ``lesson.py``.

Two halves. ``prepare`` may run before any broker lists the controller, or while they listen: it ends with a group that has every
id, no master, and an epoch one below the brokers'. ``finish`` wants the master's own heartbeats at the controller: it elects the
present master into exactly its present epoch and raises the SyncStateSet's. Role notifications (1008) are off meanwhile, and
unclean election is on for the one election of the master only, which is designated, so nobody else can win it.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from brokergroup_operator.migrate.java_calls import JavaCalls, MigrationCallError
from brokergroup_operator.migrate.lesson import NOWHERE
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
    from collections.abc import AsyncIterator

    from brokergroup_operator.migrate.lesson import Lesson, Seat
    from rocketmq_remoting.command import RemotingCommand
    from rocketmq_remoting.controller_protocol import ReplicasInfo

NOTIFY = "notifyBrokerRoleChanged"
UNCLEAN = "enableElectUncleanMaster"
STAND_IN_HEARTBEAT_TIMEOUT_MS = 60_000
CLEAN_DEADLINE_SECONDS = 20.0
# A Java controller names itself leader as soon as it has the votes, and answers 2007 until its log has an entry of the new term.
LEADS_DEADLINE_SECONDS = 10.0
POLL_SECONDS = 0.1


class TeachError(Exception):
    """The controller did not come to the state that was wanted; the message says what it says instead."""


class Teacher:
    """One Java controller group: its members, and who leads."""

    def __init__(self, calls: JavaCalls, *, leader: str, peers: tuple[str, ...]) -> None:
        self._calls = calls
        self._leader = leader
        # jRaft names its Raft addresses, which take no such requests; the leader is the one that elects.
        self._peers = peers if leader in peers else (leader,)

    # ---- the two halves

    async def prepare(self, lesson: Lesson) -> None:
        """Give every id, and raise the epoch to one below the brokers'."""
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
        """Elect the present master and raise the SyncStateSet's epoch; returns the state it ends in."""
        async with self._stand_in_alive(lesson):
            if not lesson.elects_stand_in:
                await self._elect(lesson, lesson.master, ResponseCode.SUCCESS)
            else:
                if lesson.waits_without_election:
                    await self._elect(lesson, lesson.stand_in, ResponseCode.SUCCESS)
                async with self._set(UNCLEAN, "true", afterwards="false"):
                    await self._elect(lesson, lesson.master, ResponseCode.SUCCESS, designate=True)
            await self._raise_set_epoch(lesson)
        await self._clean(lesson)
        return await self.state(lesson.broker_name)

    @contextlib.asynccontextmanager
    async def silent(self) -> AsyncIterator[None]:
        """Keep the controller from telling brokers of what it elects; as it was before, afterwards."""
        before = (await self._calls.controller_configuration(self._leader)).get(NOTIFY, "true")
        async with self._set(NOTIFY, "false", afterwards=before):
            yield

    async def forget(self, lesson: Lesson) -> None:
        """Undo ``prepare``: the group is unknown again, whoever heartbeats."""
        await self._calls.ask(self._leader, self._clean_request(lesson, ids=None, living=True))

    async def state(self, broker_name: str) -> ReplicasInfo:
        """What it says of the group now (1006)."""
        found = (await self._calls.sync_state_data(self._leader, [broker_name])).get(broker_name)
        if found is None:
            raise TeachError(f"{self._leader} does not know {broker_name}")
        return found

    async def require_unknown(self, broker_name: str) -> None:
        """A controller that has the group already is not taught over it; one that was elected just now is waited for."""
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
        """Propose sets as the master would; begin again from what is there when the master itself was faster."""
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
        """Heartbeats for the stand-in, on a connection of its own: when that closes, Java forgets it at once."""
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
        """Forget the ids that nobody holds, as soon as Java has noticed that the stand-in is gone."""
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
    async def _set(self, key: str, value: str, *, afterwards: str) -> AsyncIterator[None]:
        """An option of every member of the controller group, which share nothing of their configuration."""
        try:
            for peer in self._peers:
                await self._calls.configure_controller(peer, {key: value})
            yield
        finally:
            for peer in self._peers:
                with contextlib.suppress(MigrationCallError):
                    await self._calls.configure_controller(peer, {key: afterwards})
