"""Requests to the controllers, and the search for their leader (docs/reference/controller.md).

Every address of ``controllerAddr`` gets heartbeats (``heartbeats.py``); requests go to the leader that 1005 names. If the leader
cannot be reached or no longer leads, the next address is asked. After any other refusal, and after a change of master, the next
request searches a leader again: a controller may have been cut off together with the old master. The error's type says what is
known: not executed (ControllerUnreachableError), refused (ControllerRefusedError), or unknown (ControllerOutcomeUnknownError).
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from rocketmq_remoting.codes import RequestCode, ResponseCode
from rocketmq_remoting.command import RemotingCommand, request
from rocketmq_remoting.controller_protocol import (
    AlterSyncStateSetRequestHeader,
    ApplyBrokerIdRequestHeader,
    BrokerHeartbeatRequestHeader,
    BrokerReplicasInfoBody,
    ElectMasterRequestHeader,
    ElectMasterResponseBody,
    ElectMasterResponseHeader,
    GetMetaDataResponseHeader,
    GetNextBrokerIdRequestHeader,
    GetNextBrokerIdResponseHeader,
    GetReplicaInfoRequestHeader,
    GetReplicaInfoResponseHeader,
    RegisterBrokerToControllerRequestHeader,
    RegisterBrokerToControllerResponseHeader,
    SyncStateSetBody,
    encode_broker_names,
)
from rocketmq_remoting.errors import (
    BodyError,
    RemotingConnectError,
    RemotingConnectionLostError,
    RemotingError,
    RemotingTimeoutError,
)
from rocketmq_replica.configuration import signed
from rocketmq_replica.controller.heartbeats import Heartbeats
from rocketmq_replica.role_change import GroupInfo

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from rocketmq_remoting.client import RemotingClient
    from rocketmq_replica.broker import LiveSettings
    from rocketmq_replica.configuration import ReplicaConfiguration
    from rocketmq_replica.role_change import BrokerIdentity, Heartbeat
    from rocketmq_replica.sync_state import Proposal

logger = logging.getLogger(__name__)

CALL_TIMEOUT_SECONDS = 2.0
# After this time without an answer about the leader, the next address is asked as well.
NEXT_ADDRESS_AFTER_SECONDS = 0.2
# With these codes a controller has certainly not executed the request. After any other code (1 above all: "not decided in time") it
# may have committed, or still commit.
_NOTHING_WAS_CHANGED = frozenset(
    {
        ResponseCode.CONTROLLER_FENCED_MASTER_EPOCH,
        ResponseCode.CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH,
        ResponseCode.CONTROLLER_INVALID_MASTER,
        ResponseCode.CONTROLLER_INVALID_REPLICAS,
        ResponseCode.CONTROLLER_BROKER_NOT_ALIVE,
        ResponseCode.CONTROLLER_NOT_LEADER,
        ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST,
        ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED,
        ResponseCode.NO_PERMISSION,
    }
)

# Requests with Java's invokeTime: they change the record, and no two of them have the same signature.
_TIMED = frozenset(
    {
        RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET,
        RequestCode.CONTROLLER_ELECT_MASTER,
        RequestCode.CONTROLLER_REGISTER_BROKER,
    }
)


class ControllerError(Exception):
    """A request to the controller did not succeed."""


class ControllerUnreachableError(ControllerError):
    """No controller took the request: it was not executed."""


class ControllerOutcomeUnknownError(ControllerError):
    """The request was sent and not answered: it may have been executed."""


class ControllerRefusedError(ControllerError):
    """The controller answered with another code than success."""

    def __init__(self, what: str, code: int, remark: str | None) -> None:
        """``code`` decides what the caller does next."""
        super().__init__(f"{what}: code {code}, {remark or 'no remark'}")
        self.code = code


def decode_sync_state_set(body: bytes | None, what: str) -> tuple[frozenset[int], int]:
    """Return the SyncStateSet and its epoch. Raise ControllerRefusedError if the body is malformed."""
    try:
        decoded = SyncStateSetBody.decode(body)
    except BodyError as error:
        raise ControllerRefusedError(what, ResponseCode.SUCCESS, str(error)) from error
    return decoded.sync_state_set, decoded.sync_state_set_epoch


class ControllerClient:
    """All requests of one replica to its controllers."""

    def __init__(
        self,
        client: RemotingClient,
        configuration: ReplicaConfiguration,
        live: LiveSettings,
        *,
        now_ms: Callable[[], int],
    ) -> None:
        """``client`` may be shared by several replicas; its creator closes it. ``live`` has the controllers' addresses."""
        self._live = live
        self._cluster_name = configuration.broker_cluster_name
        self._broker_name = configuration.broker_name
        self._broker_address = configuration.broker_address
        self._credentials = configuration.credentials
        self._client = client
        self._now_ms = now_ms
        self._leader = ""
        self._next_address = 0
        self._no_leader: dict[str, str] = {}
        # Not cancelled once a leader is found: their timeouts detect and close dead connections.
        self._asked: set[asyncio.Task[str]] = set()
        self.heartbeats = Heartbeats(client, configuration, live)

    async def refresh_leader(self) -> None:
        """Ask 1005 again. Without an answer the known leader stays."""
        leader = await self._find_leader()
        if leader:
            self._leader = leader

    def forget_leader(self) -> None:
        """Search the leader before the next request: the known one may be cut off."""
        self._leader = ""

    async def next_broker_id(self) -> int:
        """1012."""
        header = GetNextBrokerIdRequestHeader(cluster_name=self._cluster_name, broker_name=self._broker_name)
        answer = await self._ask(RequestCode.CONTROLLER_GET_NEXT_BROKER_ID, header.encode())
        broker_id = GetNextBrokerIdResponseHeader.decode(answer.ext_fields).next_broker_id
        if broker_id is None or broker_id < 1:
            raise ControllerRefusedError("next broker id", answer.code, f"nextBrokerId={broker_id}")
        return broker_id

    async def apply_broker_id(self, identity: BrokerIdentity) -> None:
        """1013."""
        header = ApplyBrokerIdRequestHeader(
            cluster_name=self._cluster_name,
            broker_name=self._broker_name,
            applied_broker_id=identity.broker_id,
            register_check_code=identity.register_check_code,
        )
        await self._ask(RequestCode.CONTROLLER_APPLY_BROKER_ID, header.encode())

    async def register(self, broker_id: int) -> GroupInfo:
        """1003."""
        header = RegisterBrokerToControllerRequestHeader(
            cluster_name=self._cluster_name,
            broker_name=self._broker_name,
            broker_id=broker_id,
            broker_address=self._broker_address,
        )
        answer = await self._ask(RequestCode.CONTROLLER_REGISTER_BROKER, header.encode())
        fields = RegisterBrokerToControllerResponseHeader.decode(answer.ext_fields)
        members, set_epoch = decode_sync_state_set(answer.body, "register")
        return GroupInfo(
            fields.master_epoch or 0, fields.master_broker_id, fields.master_address or "", members, set_epoch
        )

    async def elect(self, broker_id: int) -> GroupInfo:
        """1002 without a designated master: the controller chooses."""
        header = ElectMasterRequestHeader(
            cluster_name=self._cluster_name, broker_name=self._broker_name, broker_id=broker_id
        )
        accepted = (ResponseCode.SUCCESS, ResponseCode.CONTROLLER_MASTER_STILL_EXIST)
        answer = await self._ask(RequestCode.CONTROLLER_ELECT_MASTER, header.encode(), accepted=accepted)
        fields = ElectMasterResponseHeader.decode(answer.ext_fields)
        if fields.master_broker_id is None or not fields.master_address or fields.master_epoch is None:
            raise ControllerRefusedError("elect", answer.code, "the answer names no master")
        members, set_epoch = _elected_set(answer, fields)
        return GroupInfo(fields.master_epoch, fields.master_broker_id, fields.master_address, members, set_epoch)

    async def replica_info(self) -> GroupInfo:
        """1004."""
        header = GetReplicaInfoRequestHeader(broker_name=self._broker_name)
        answer = await self._ask(RequestCode.CONTROLLER_GET_REPLICA_INFO, header.encode())
        fields = GetReplicaInfoResponseHeader.decode(answer.ext_fields)
        if fields.master_epoch is None:
            raise ControllerRefusedError("replica info", answer.code, "the answer has no masterEpoch")
        members, set_epoch = decode_sync_state_set(answer.body, "replica info")
        return GroupInfo(fields.master_epoch, fields.master_broker_id, fields.master_address or "", members, set_epoch)

    async def member_addresses(self) -> dict[int, str]:
        """1006: the controller's address of every replica of this group."""
        answer = await self._ask(
            RequestCode.CONTROLLER_GET_SYNC_STATE_DATA, {}, body=encode_broker_names([self._broker_name])
        )
        try:
            group = BrokerReplicasInfoBody.decode(answer.body).replicas_info_table.get(self._broker_name)
        except BodyError as error:
            raise ControllerRefusedError("members", answer.code, str(error)) from error
        if group is None:
            raise ControllerRefusedError("members", answer.code, f"the answer lacks {self._broker_name}")
        replicas = (*group.in_sync_replicas, *group.not_in_sync_replicas)
        return {replica.broker_id: replica.broker_address or "" for replica in replicas}

    async def alter_sync_state_set(
        self, proposal: Proposal, *, master_id: int, master_epoch: int
    ) -> tuple[frozenset[int], int]:
        """1001: the granted set and its epoch."""
        header = AlterSyncStateSetRequestHeader(
            broker_name=self._broker_name, master_broker_id=master_id, master_epoch=master_epoch
        )
        body = SyncStateSetBody(
            sync_state_set=proposal.sync_state_set, sync_state_set_epoch=proposal.sync_state_set_epoch
        ).encode()
        try:
            answer = await self._ask(RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET, header.encode(), body=body)
            return decode_sync_state_set(answer.body, "alter SyncStateSet")
        except ControllerRefusedError as error:
            if error.code in _NOTHING_WAS_CHANGED:
                raise
            raise ControllerOutcomeUnknownError(str(error)) from error

    def heartbeat(self, broker_id: int, beat: Heartbeat) -> None:
        """904 to every controller, one-way, without waiting."""
        header = BrokerHeartbeatRequestHeader(
            cluster_name=self._cluster_name,
            broker_name=self._broker_name,
            broker_addr=self._broker_address,
            broker_id=broker_id,
            epoch=beat.epoch,
            max_offset=beat.max_offset,
            confirm_offset=beat.confirm_offset,
            heartbeat_timeout_ms=int(beat.timeout_seconds * 1000),
            election_priority=beat.election_priority,
        )
        command = request(RequestCode.BROKER_HEARTBEAT, ext_fields=header.encode(), oneway=True)
        self.heartbeats.send(signed(command, self._credentials), leader=self._leader)

    async def _ask(
        self,
        code: RequestCode,
        ext_fields: Mapping[str, str],
        *,
        body: bytes | None = None,
        accepted: tuple[int, ...] = (ResponseCode.SUCCESS,),
    ) -> RemotingCommand:
        self._no_leader.clear()
        for _ in range(len(self._live.controller_addresses) + 1):
            if not self._leader:
                self._leader = await self._find_leader()
            if not self._leader:
                break
            command = self._question(code, ext_fields, body)
            try:
                answer = await self._client.invoke(self._leader, command, timeout_seconds=CALL_TIMEOUT_SECONDS)
            except RemotingConnectError as error:
                self._no_leader[self._leader] = str(error)
                self._leader = ""
                continue
            except (RemotingTimeoutError, RemotingConnectionLostError) as error:
                leader, self._leader = self._leader, ""
                raise ControllerOutcomeUnknownError(f"{code.name} to {leader}: {error}") from error
            if answer.code == ResponseCode.CONTROLLER_NOT_LEADER:
                self._no_leader[self._leader] = f"code {answer.code}, {answer.remark or 'it does not lead'}"
                self._leader = ""
                continue
            if answer.code not in accepted:
                self._leader = ""  # another controller may accept it
                raise ControllerRefusedError(code.name, answer.code, answer.remark)
            return answer
        why = "; ".join(f"{address}: {why}" for address, why in self._no_leader.items())
        raise ControllerUnreachableError(f"{code.name}: no controller leads: {why}")

    def _question(self, code: RequestCode, ext_fields: Mapping[str, str], body: bytes | None) -> RemotingCommand:
        """Return the signed request, new for every attempt: a controller refuses a repeated signature."""
        timed = {"invokeTime": str(self._now_ms())} if code in _TIMED else {}
        return signed(request(code, ext_fields={**ext_fields, **timed}, body=body), self._credentials)

    async def _find_leader(self) -> str:
        """Ask the addresses in turn, starting at another one each time, until one names a leader."""
        running: set[asyncio.Task[str]] = set()
        addresses = self._live.controller_addresses
        for number in range(len(addresses)):
            address = addresses[(self._next_address + number) % len(addresses)]
            running.add(self._begin_to_ask(address))
            if leader := await _first_named(running, NEXT_ADDRESS_AFTER_SECONDS):
                self._next_address += number + 1
                return leader
        while running:
            if leader := await _first_named(running, None):
                return leader
        return ""

    def _begin_to_ask(self, address: str) -> asyncio.Task[str]:
        task = asyncio.create_task(self._leader_by(address), name=f"find the leader by {address}")
        self._asked.add(task)
        task.add_done_callback(self._asked.discard)
        return task

    async def _leader_by(self, address: str) -> str:
        """Return the leader that the controller at this address names; empty, with the reason in ``_no_leader``, if none."""
        try:
            question = self._question(RequestCode.CONTROLLER_GET_METADATA_INFO, {}, None)
            answer = await self._client.invoke(address, question, timeout_seconds=1.0)
        except RemotingError as error:
            self._no_leader[address] = str(error)
            return ""
        leader = GetMetaDataResponseHeader.decode(answer.ext_fields).controller_leader_address
        if answer.code == ResponseCode.SUCCESS and leader:
            return leader
        self._no_leader[address] = f"code {answer.code}, {answer.remark or 'it names no leader'}"
        return ""


async def _first_named(running: set[asyncio.Task[str]], timeout_seconds: float | None) -> str:
    """Return the first leader that one of these requests finds in time. Finished requests are removed from ``running``."""
    done, _ = await asyncio.wait(running, timeout=timeout_seconds, return_when=asyncio.FIRST_COMPLETED)
    running -= done
    return next((leader for task in done if (leader := task.result())), "")


def _elected_set(answer: RemotingCommand, fields: ElectMasterResponseHeader) -> tuple[frozenset[int], int]:
    """Return the SyncStateSet of 1002's body and its epoch, which is in the header."""
    try:
        body = ElectMasterResponseBody.decode(answer.body)
    except BodyError as error:
        raise ControllerRefusedError("elect", answer.code, str(error)) from error
    return body.sync_state_set, fields.sync_state_set_epoch or 0
