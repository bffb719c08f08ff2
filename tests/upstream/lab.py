"""A scripted broker group over the wire, the same for a Java controller and for ours.

A broker here sends only the test's requests, on the connection that it names; those of `tests/support/fake_broker.py` act by
themselves, and would hide which request a Java controller answers differently. Tests read a controller's state by 1006, which both
answer from their present state (our 1004 may have the old one while roles change).
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from rocketmq_remoting.broker_protocol import HARuntimeInfoBody
from rocketmq_remoting.client import RemotingClient
from rocketmq_remoting.codes import RequestCode
from rocketmq_remoting.command import RemotingCommand, request
from rocketmq_remoting.controller_protocol import SyncStateSetBody
from rocketmq_remoting.errors import RemotingError
from rocketmq_remoting.handler import not_supported
from rocketmq_remoting.serialization import load_json
from rocketmq_remoting.server import RemotingServer
from tests.support.fake_broker import end_of_log
from tests.support.quiet_handler import QuietHandler
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from rocketmq_remoting.connection import RemotingConnection

CLUSTER = "cl"
WATCH_SECONDS = 1.5
ANSWER_SECONDS = 5.0
LONG_TIMEOUT_MS = 600_000
_names = itertools.count(1)


async def never_restarted() -> None:
    """Refuse a restart: most tests need none."""
    raise NotImplementedError("this controller is not to be restarted")


@dataclass(frozen=True)
class Controller:
    """A controller under test: Java's on DLedger ("java") or on jRaft ("jraft", "older_jraft"), or "ours"."""

    address: str
    kind: str
    restart: Callable[[], Awaitable[None]] = never_restarted

    @property
    def is_java(self) -> bool:
        return self.kind != "ours"


StartOurs = Callable[..., Awaitable[Controller]]
"""Starts our controller, as it stands alone."""


@dataclass(frozen=True)
class State:
    """One group's state in 1006; `UNKNOWN` for a group that it omits."""

    known: bool
    master: int | None = None
    master_address: str | None = None
    master_epoch: int = 0
    set_epoch: int = 0
    members: set[int] = field(default_factory=set)
    others: set[int] = field(default_factory=set)
    alive: set[int] = field(default_factory=set)


UNKNOWN = State(known=False)


@dataclass(frozen=True)
class Told:
    """A request that a broker got."""

    code: int
    oneway: bool
    fields: dict[str, str]
    body: bytes | None


async def ask(
    client: RemotingClient, address: str, code: int, body: object = None, **fields: object
) -> RemotingCommand:
    """Send one request with a body of bytes, or with a value as JSON."""
    encoded = body if isinstance(body, bytes) else None if body is None else json.dumps(body).encode()
    ext_fields = {name: str(value) for name, value in fields.items()} or None
    return await client.invoke(
        address, request(code, ext_fields=ext_fields, body=encoded), timeout_seconds=ANSWER_SECONDS
    )


class WireGroup:
    """A group of scripted brokers with its own name."""

    def __init__(self, controller: Controller, *, name: str | None = None, cluster: str = CLUSTER) -> None:
        self.controller = controller
        self.name = name or f"bn{next(_names)}"
        self.cluster = cluster
        self.brokers: dict[int, WireBroker] = {}
        self.started: list[WireBroker] = []
        self.client = RemotingClient()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        for broker in self.started:
            await broker.close()
        await self.client.close()

    async def ask(self, code: int, body: object = None, **fields: object) -> RemotingCommand:
        """Send a request as a client that is not a broker: an administrator, a stranger."""
        named = {"clusterName": self.cluster, "brokerName": self.name} | fields
        return await ask(self.client, self.controller.address, code, body, **named)

    async def starting_broker(self, *, port: int = 0, **settings: Any) -> WireBroker:
        """Start another broker, which listens and has sent no request yet."""
        broker = WireBroker(self, **settings)
        self.started.append(broker)
        await broker.listen(port)
        return broker

    async def unheard_broker(self, **settings: Any) -> WireBroker:
        """Start another broker, which requests an id, takes it and registers."""
        broker = await self.starting_broker(**settings)
        await broker.take_id()
        await broker.register()
        return broker

    async def broker(self, **settings: Any) -> WireBroker:
        """Start another broker as `unheard_broker`, with one heartbeat."""
        broker = await self.unheard_broker(**settings)
        await broker.heartbeat()
        return broker

    async def in_sync(self, count: int, *, share_with: WireBroker | None = None, **settings: Any) -> list[WireBroker]:
        """Start this many brokers, all in the SyncStateSet; the first is master of epoch 1, and may share a connection."""
        brokers = [await self.broker(share_with=share_with, **settings)]
        brokers += [await self.broker(**settings) for _ in range(count - 1)]
        assert (await brokers[0].elect()).code == 0
        for broker in brokers:
            broker.epoch = 1
            await broker.heartbeat()
        if count > 1:
            answer = await brokers[0].alter({broker.broker_id for broker in brokers})
            assert answer.code == 0, answer
        return brokers

    async def configure(self, name: str, value: str) -> RemotingCommand:
        """Send 1009, as mqadmin updateControllerConfig does."""
        return await self.ask(RequestCode.UPDATE_CONTROLLER_CONFIG, f"{name}={value}\n".encode())

    async def state(self) -> State:
        """Return the group's state at the controller (1006)."""
        answer = await ask(
            self.client, self.controller.address, RequestCode.CONTROLLER_GET_SYNC_STATE_DATA, [self.name]
        )
        assert answer.code == 0, answer
        info = load_json(answer.body or b"")["replicasInfoTable"].get(self.name)
        if info is None:
            return UNKNOWN
        everybody = [*info["inSyncReplicas"], *info["notInSyncReplicas"]]
        return State(
            known=True,
            master=info.get("masterBrokerId"),
            master_address=info.get("masterAddress"),
            master_epoch=info["masterEpoch"],
            set_epoch=info["syncStateSetEpoch"],
            members={replica["brokerId"] for replica in info["inSyncReplicas"]},
            others={replica["brokerId"] for replica in info["notInSyncReplicas"]},
            alive={replica["brokerId"] for replica in everybody if replica["alive"]},
        )

    async def until(self, holds: Callable[[State], bool], what: str) -> State:
        """Return the first state that fulfils the condition."""
        last = UNKNOWN

        async def look() -> bool:
            nonlocal last
            last = await self.state()
            return holds(last)

        try:
            await eventually(look, what, every_seconds=0.02)
        except AssertionError as error:
            raise AssertionError(f"{error}; last {last}") from None
        return last

    async def stays(self, holds: Callable[[State], bool], *, for_seconds: float = WATCH_SECONDS) -> State:
        """Check that the condition holds in every state for a while: absence of a reaction can only be watched for some time."""
        deadline = asyncio.get_running_loop().time() + for_seconds
        while True:
            state = await self.state()
            assert holds(state), state
            if asyncio.get_running_loop().time() > deadline:
                return state
            await asyncio.sleep(0.02)


class WireBroker(QuietHandler):
    """One broker process: a port for the controller's requests, and named connections to the controller."""

    def __init__(
        self,
        group: WireGroup,
        *,
        timeout_ms: int = LONG_TIMEOUT_MS,
        epoch: int = 0,
        max_offset: int = 0,
        priority: int | None = None,
        share_with: WireBroker | None = None,
        host: str = "127.0.0.1",
    ) -> None:
        self.group, self.host = group, host
        self.broker_id = 0
        self.timeout_ms = timeout_ms
        self.epoch = epoch
        self.max_offset = max_offset
        self.priority = priority
        self.is_master = False
        self.told: list[Told] = []
        self.on_told: Callable[[Told], None] = lambda told: None
        self.answers = True
        self.beats_at: tuple[str, ...] = (group.controller.address,)
        self._server = RemotingServer(self)
        self._port = 0
        # The brokers of a container share one connection.
        self._clients: dict[str, RemotingClient] = {} if share_with is None else {"main": share_with.client("main")}
        self._beating: asyncio.Task[None] | None = None

    @property
    def address(self) -> str:
        return f"{self.host}:{self._port}"

    def client(self, via: str) -> RemotingClient:
        """Return the connection to the controller with this name."""
        return self._clients.setdefault(via, RemotingClient(local_host=self.host))

    # ---- requests to the controller

    async def ask(self, code: int, body: object = None, *, via: str = "main", **fields: object) -> RemotingCommand:
        named = {"clusterName": self.group.cluster, "brokerName": self.group.name} | fields
        return await ask(self.client(via), self.group.controller.address, code, body, **named)

    async def take_id(self) -> None:
        """Send 1012, then 1013."""
        answer = await self.ask(RequestCode.CONTROLLER_GET_NEXT_BROKER_ID)
        assert answer.code == 0, answer
        self.broker_id = int((answer.ext_fields or {})["nextBrokerId"])
        answer = await self.apply(self.broker_id)
        assert answer.code == 0, answer
        self.group.brokers[self.broker_id] = self

    async def apply(self, broker_id: int) -> RemotingCommand:
        """Send 1013 for this id."""
        return await self.ask(
            RequestCode.CONTROLLER_APPLY_BROKER_ID, appliedBrokerId=broker_id, registerCheckCode=f"{self.address};1"
        )

    async def register(self) -> RemotingCommand:
        """Send 1003."""
        return await self.ask(
            RequestCode.CONTROLLER_REGISTER_BROKER, brokerId=self.broker_id, brokerAddress=self.address
        )

    async def heartbeat(self, *, via: str = "main", at: tuple[str, ...] = ()) -> None:
        """Send 904 as a request, so that it has arrived on return."""
        fields: dict[str, object] = {
            "clusterName": self.group.cluster,
            "brokerName": self.group.name,
            "brokerId": self.broker_id,
            "brokerAddr": self.address,
            "epoch": self.epoch,
            "maxOffset": self.max_offset,
            "confirmOffset": self.max_offset,
            "heartbeatTimeoutMills": self.timeout_ms,
        }
        if self.priority is not None:
            fields["electionPriority"] = self.priority
        for controller in at or self.beats_at:
            answer = await ask(self.client(via), controller, RequestCode.BROKER_HEARTBEAT, **fields)
            assert answer.code == 0, answer

    async def elect(self, *, designate: bool = False) -> RemotingCommand:
        """Send 1002."""
        answer = await self.ask(
            RequestCode.CONTROLLER_ELECT_MASTER, brokerId=self.broker_id, designateElect=str(designate).lower()
        )
        master = (answer.ext_fields or {}).get("masterBrokerId")
        self.is_master = answer.code in (0, 2011) and master == str(self.broker_id)
        return answer

    async def alter(self, members: set[int], *, body: object = None) -> RemotingCommand:
        """Send 1001 as the master, under the present epochs."""
        state = await self.group.state()
        wanted = {"syncStateSet": sorted(members), "syncStateSetEpoch": state.set_epoch} if body is None else body
        return await self.ask(
            RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET,
            wanted,
            masterBrokerId=self.broker_id,
            masterEpoch=state.master_epoch,
        )

    def keep_beating(self, *, via: str = "main") -> None:
        """Send heartbeats all the time from now on."""
        self.stop_beating()
        self._beating = asyncio.create_task(self._beat(via))

    def stop_beating(self) -> None:
        """Stop heartbeats; the connections stay open."""
        if self._beating is not None:
            self._beating.cancel()
            self._beating = None

    async def _beat(self, via: str) -> None:
        while True:
            with contextlib.suppress(RemotingError):
                await self.heartbeat(via=via)
            await asyncio.sleep(0.05)

    # ---- faults

    async def disconnect(self, via: str = "main") -> None:
        """Close one connection to the controller; the process continues."""
        client = self._clients.pop(via, None)
        if client is not None:
            await client.close()

    async def die(self) -> None:
        """End as by SIGKILL: the listener closes, then every connection."""
        self.stop_beating()
        await self.stop_listening()
        for via in list(self._clients):
            await self.disconnect(via)

    async def come_back(self, *, elsewhere: bool = False) -> None:
        """Start the next process on the same disk: it listens, possibly at another address, and has sent no request yet."""
        await self.die()
        self.is_master = False
        if elsewhere:
            self._port = 0
        await self.listen_again()

    async def close(self) -> None:
        await self.die()

    # ---- requests from the controller

    async def listen(self, port: int = 0) -> None:
        await self._server.start(self.host, port)
        self._port = self._server.port

    async def stop_listening(self) -> None:
        """Close the port; outgoing connections stay open."""
        await self._server.stop(grace_seconds=0.0)

    async def listen_again(self) -> None:
        """Open the same port again."""
        self._server = RemotingServer(self)
        await self.listen(self._port)

    async def move(self) -> None:
        """Listen at another address from now on; outgoing connections stay open."""
        await self.stop_listening()
        self._port = 0
        await self.listen_again()

    def notifications(self, epoch: int) -> list[Told]:
        """Return the received 1008 of this master epoch."""
        changes = [told for told in self.told if told.code == RequestCode.NOTIFY_BROKER_ROLE_CHANGED]
        return [told for told in changes if told.fields["masterEpoch"] == str(epoch)]

    def handle(  # noqa: PLR0911 - one return per request is the plainest table there is
        self, command: RemotingCommand, connection: RemotingConnection
    ) -> RemotingCommand | None:
        self.told.append(Told(command.code, command.is_oneway, dict(command.ext_fields or {}), command.body))
        self.on_told(self.told[-1])
        if not self.answers:
            return None
        match command.code:
            case RequestCode.NOTIFY_BROKER_ROLE_CHANGED:
                fields = command.ext_fields or {}
                self.is_master = fields.get("masterBrokerId") == str(self.broker_id)
                self.epoch = max(self.epoch, int(fields["masterEpoch"]))
                SyncStateSetBody.decode(command.body)
                return command.answer(0)
            case RequestCode.GET_BROKER_HA_STATUS:
                return command.answer(0, body=self._ha_status().encode())
            case RequestCode.GET_BROKER_EPOCH_CACHE:
                shown_id = 0 if self.is_master else self.broker_id
                log = end_of_log(self.group.cluster, self.group.name, shown_id, self.epoch, self.max_offset)
                return command.answer(0, body=log.encode())
            case RequestCode.EXCHANGE_BROKER_HA_INFO | RequestCode.UPDATE_BROKER_CONFIG:
                return command.answer(0)
            case RequestCode.GET_BROKER_CONFIG:
                return command.answer(0, body=b"minInSyncReplicas=1\n")
        return not_supported(command)

    def _ha_status(self) -> HARuntimeInfoBody:
        return HARuntimeInfoBody(master=self.is_master, master_commit_log_max_offset=self.max_offset)
