"""The link to the master: find its HA address, dial, follow, reconnect.

The controller only names the master's broker address. The HA address is pushed by an operator (906), or in the NameServer's answer
to a registration, or the master is asked for it (906 with an empty header), after it has proved its identity (1007: addresses are
reused). A pushed address that differs from the one in use replaces the live link; a Java broker keeps the wrong link.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, cast

from rocketmq_remoting.address import EXPECTED, heard_address, local_address
from rocketmq_remoting.broker_protocol import EpochCacheBody, ExchangeHAInfoResponseHeader
from rocketmq_remoting.codes import RequestCode, ResponseCode
from rocketmq_remoting.command import request
from rocketmq_remoting.errors import BodyError, RemotingError
from rocketmq_replica.broker import Broker, monotonic_seconds, wall_clock_ms
from rocketmq_replica.configuration import signed
from rocketmq_replica.ha.frames import HaFrameError, Handshake
from rocketmq_replica.ha.links import ReconnectBackoff, SlaveLink
from rocketmq_replica.log.disk import StoreFileError
from rocketmq_replica.log.epochs import DivergedLogError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from rocketmq_remoting.client import RemotingClient
    from rocketmq_remoting.command import RemotingCommand
    from rocketmq_replica.role_change import MasterSeen

logger = logging.getLogger(__name__)

_ASK_TIMEOUT_SECONDS = 1.0
_DIAL_TIMEOUT_SECONDS = 1.0
_SHORTEST_KEEPALIVE_SECONDS = 0.1


class MasterConnection(asyncio.Protocol):
    """One connection to the master."""

    def __init__(self, broker: Broker, on_data_applied: Callable[[], None], *, async_learner: bool) -> None:
        self._broker = broker
        self._on_data_applied = on_data_applied
        self._transport: asyncio.Transport | None = None
        self._closing = False
        self.diverged = False
        self.lost = asyncio.Event()
        self.received_bytes = 0
        # Taken once: two answers about one read must be equal, and a clock that is set must not look like a read.
        self._unix_ms_ahead = wall_clock_ms() - int(monotonic_seconds() * 1000)
        configuration = broker.configuration
        self.link = SlaveLink(
            broker.store,
            handshake=Handshake(
                broker.broker_id,
                sync_from_last_file=configuration.sync_from_last_file,
                async_learner=async_learner,
            ),
            now_seconds=monotonic_seconds(),
            sync_flush=configuration.sync_flush,
        )

    @property
    def last_read_ms(self) -> int:
        """Return when this link was last read from, in Unix milliseconds by the clock of its beginning."""
        return self._unix_ms_ahead + int(self.link.last_read_seconds * 1000)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by asyncio: send the handshake."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.write(self.link.introduction())

    def data_received(self, data: bytes) -> None:
        """Called by asyncio: apply the master's frames, unless this link is closing."""
        if self._closing or self._transport is None:
            return
        self.received_bytes += len(data)
        try:
            answer = self.link.receive(data, now_seconds=monotonic_seconds())
        except DivergedLogError as error:
            logger.error("cannot follow this master: %s; rebuild this replica or repair it by hand", error)  # noqa: TRY400
            self.diverged = True
            self.close()
            return
        except (HaFrameError, StoreFileError, ValueError, OSError) as error:
            logger.warning("link to the master closed: %s", error)
            self.close()
            return
        if self.link.truncated_from is not None:
            logger.warning("cut the log from %d to %d", self.link.truncated_from, self._broker.store.max_offset)
            self.link.truncated_from = None
        self._write(answer)
        self._on_data_applied()
        if self._broker.configuration.sync_flush:
            self._broker.on_flush_wanted()

    def flushed(self) -> None:
        """Acknowledge after a flush of the log."""
        if self._transport is not None and not self._closing:
            self._write(self.link.flushed(now_seconds=monotonic_seconds()))

    def tick(self, keepalive_seconds: float, housekeeping_seconds: float) -> None:
        """Send a keepalive if it is due; close the link to a silent master."""
        if self._transport is None or self._closing:
            return
        now = monotonic_seconds()
        if now - self.link.last_read_seconds > housekeeping_seconds:
            logger.warning("link to the master closed: silent for %.0f s", housekeeping_seconds)
            self.close()
            return
        self._write(self.link.keepalive(now_seconds=now, interval_seconds=keepalive_seconds))

    def close(self) -> None:
        """Close the link. No byte is applied after this."""
        self._closing = True
        if self._transport is not None:
            self._transport.abort()
        self.lost.set()

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by asyncio: the connection is lost."""
        if not self._closing:
            logger.info("link to the master lost: %s", exc or "closed")
        self._closing = True
        self.lost.set()

    def _write(self, data: bytes) -> None:
        """Write unless the transport is closing, on which uvloop raises."""
        if data and self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)


async def _nothing() -> None: ...


class HaClient:
    """Keeps one link to the current master while this replica is a slave."""

    def __init__(self, broker: Broker, client: RemotingClient, *, on_data_applied: Callable[[], None]) -> None:
        """``client`` outlives this object. ``on_master_lost`` is called while the master cannot be found, ``before_first_link``
        before an empty log is filled.
        """
        self._broker = broker
        self.on_master_lost: Callable[[], None] = lambda: None
        self.before_first_link: Callable[[], Awaitable[None]] = _nothing
        self._on_data_applied = on_data_applied
        configuration = broker.configuration
        self._client = client
        self._keepalive_seconds = max(configuration.ha_send_heartbeat_interval_seconds, _SHORTEST_KEEPALIVE_SECONDS)
        self._master: MasterSeen | None = None
        self._pushed_address = ""
        self._woken = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._async_learner = configuration.async_learner
        self._retired = False
        self.connection: MasterConnection | None = None
        self.connected_address = ""

    @property
    def linked(self) -> bool:
        """Whether a connection to a master is open."""
        return self.connection is not None and not self.connection.lost.is_set()

    def follow(self, master: MasterSeen) -> None:
        """Follow this master instead of the previous one."""
        self.leave()
        if self._retired:
            return
        self._master = master
        self._task = asyncio.create_task(self._keep_linked(master), name=f"follow {master.address}")

    def leave(self) -> None:
        """Stop following. When this returns, nothing more is applied to the log."""
        self._master = None
        self._pushed_address = ""
        if self._task is not None:
            self._task.cancel()
            self._task = None
        if self.connection is not None:
            self.connection.close()
            self.connection = None
        self.connected_address = ""

    def step_back(self) -> None:
        """Reconnect as a learner, so that the master removes this replica from the SyncStateSet; it acknowledges until then."""
        self._async_learner = True
        self.push_address(self.connected_address)
        if self.connection is not None:
            self.connection.close()

    def retire(self) -> None:
        """Stop following for good, before this process ends: a linked copy counts and may be elected."""
        self._retired = True
        self.leave()

    def push_address(self, ha_address: str) -> None:
        """Take the master's HA address from an operator or a NameServer."""
        if self._master is None or not ha_address:
            return
        self._pushed_address = ha_address
        if self.connection is not None and self.connected_address not in ("", ha_address):
            logger.info("HA address %s replaces %s", ha_address, self.connected_address)
            self.connection.close()
        self._woken.set()

    def flushed(self) -> None:
        """Acknowledge after a flush of the log."""
        if self.connection is not None:
            self.connection.flushed()

    def tick(self) -> None:
        """Let time pass: keepalive and timeout of the link."""
        if self.connection is not None:
            housekeeping = self._broker.configuration.ha_housekeeping_interval_seconds
            self.connection.tick(self._keepalive_seconds, housekeeping)

    async def stop(self) -> None:
        """Stop following. Return when the task has ended."""
        task = self._task
        self.leave()
        if task is not None:
            await asyncio.gather(task, return_exceptions=True)

    async def _keep_linked(self, master: MasterSeen) -> None:
        backoff = ReconnectBackoff()
        while True:
            self._woken.clear()
            if self._broker.store.max_offset == self._broker.store.log.min_offset:
                await self.before_first_link()
            address = backoff.address(self._pushed_address) or await self._ask_ha_address(master)
            if address and await self._follow_once(address):
                backoff.transferred()
            elif self.connection is not None and self.connection.diverged:
                backoff.diverged()
            self.connection, self.connected_address = None, ""
            if backoff.in_vain:
                self.on_master_lost()
            await self._pause(backoff.pause_seconds())

    async def _pause(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._woken.wait()
        except TimeoutError:
            return

    async def _follow_once(self, address: str) -> bool:
        """Dial, and stay linked until the link ends. Return whether it transferred bytes."""
        found = heard_address(address)
        if found is None:
            logger.info("HA address %r: expected %s", address, EXPECTED)
            return False
        connection = MasterConnection(self._broker, self._on_data_applied, async_learner=self._async_learner)
        own = local_address(self._broker.configuration.own_ip, is_v6=":" in found.host)
        try:
            async with asyncio.timeout(_DIAL_TIMEOUT_SECONDS):
                await asyncio.get_running_loop().create_connection(
                    lambda: connection, found.host, found.port, local_addr=own
                )
        except (OSError, ValueError, TimeoutError) as error:  # ValueError: an invalid host name
            logger.info("HA address %s: %s", address, error or "no connection in time")
            return False
        self.connection, self.connected_address = connection, address
        logger.info("linked to the master's HA address %s", address)
        await connection.lost.wait()
        return not connection.diverged and connection.received_bytes > 0

    async def _ask_ha_address(self, master: MasterSeen) -> str:
        """Ask the master for its HA address, after checking its identity. Return it, or an empty text."""
        try:
            if not await self._is_master(master):
                return ""
            answer = await self._ask(master, RequestCode.EXCHANGE_BROKER_HA_INFO)
        except RemotingError as error:
            logger.debug("asking %s for its HA address: %s", master.address, error)
            return ""
        if answer.code != ResponseCode.SUCCESS:
            return ""
        return ExchangeHAInfoResponseHeader.decode(answer.ext_fields).master_ha_address or ""

    async def _is_master(self, master: MasterSeen) -> bool:
        answer = await self._ask(master, RequestCode.GET_BROKER_EPOCH_CACHE)
        configuration = self._broker.configuration
        try:
            body = EpochCacheBody.decode(answer.body)
        except BodyError:
            return False
        name = (body.cluster_name, body.broker_name)
        if name != (configuration.broker_cluster_name, configuration.broker_name):
            logger.warning("%s is %s, not the master of this group", master.address, name)
            return False
        return True

    async def _ask(self, master: MasterSeen, code: RequestCode) -> RemotingCommand:
        question = signed(request(code), self._broker.configuration.credentials)
        return await self._client.invoke(master.address, question, timeout_seconds=_ASK_TIMEOUT_SECONDS)
