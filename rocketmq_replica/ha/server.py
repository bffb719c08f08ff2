"""The HA listener: each connection of a slave is a ``MasterLink`` on a socket.

A replica that is not master closes such connections. A Java slave accepts them, so another slave can stay chained behind it,
outside the SyncStateSet (measured).

A handshake only contains a broker id, so any peer could claim a member's id, be sent every message, and have its acknowledgements
counted (upstream #1893, #3015). Therefore a link counts only after a controller has said that this broker id is at the peer's host.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, cast

from rocketmq_remoting.address import host_of, join_address, plain_host
from rocketmq_remoting.server import Listener
from rocketmq_replica.broker import Broker, monotonic_seconds
from rocketmq_replica.ha.frames import HaFrameError
from rocketmq_replica.ha.links import MasterLink, SlaveIntroduced
from rocketmq_replica.log.disk import StoreFileError

if TYPE_CHECKING:
    from rocketmq_replica.broker import PendingSend
    from rocketmq_replica.master_term import MasterTerm
    from rocketmq_replica.sync_state import SlaveProgress

logger = logging.getLogger(__name__)

_IN_FLIGHT_BYTES = 1 << 20
_SHORTEST_KEEPALIVE_SECONDS = 0.1


class SlaveConnection(asyncio.Protocol):
    """One connection of a slave."""

    def __init__(self, server: HaServer) -> None:
        self._server = server
        self._broker = server.broker
        self._term: MasterTerm[PendingSend] | None = None
        self._transport: asyncio.Transport | None = None
        self._writable = True
        self.peer = ""
        self._host = ""
        self._unproven: SlaveProgress | None = None
        self.link = MasterLink(
            server.broker.store, now_seconds=monotonic_seconds(), keepalive_seconds=server.keepalive_seconds
        )

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by asyncio: refuse the connection unless this replica is master."""
        self._transport = cast("asyncio.Transport", transport)
        host, port = transport.get_extra_info("peername")[:2]
        self._host = plain_host(host)
        self.peer = join_address(self._host, port)
        self._term = self._broker.term
        if self._term is None:
            logger.info("slave %s refused: this replica is no master", self.peer)
            self._transport.abort()
            return
        self._transport.set_write_buffer_limits(high=_IN_FLIGHT_BYTES)
        self._server.connections.add(self)

    def data_received(self, data: bytes) -> None:
        """Called by asyncio: process the slave's frames."""
        term = self._term
        if term is None or term is not self._broker.term:
            self.close()
            return
        now = monotonic_seconds()
        try:
            events = self.link.receive(data, now_seconds=now)
        except HaFrameError as error:
            logger.warning("link of slave %s closed: %s", self.peer, error)
            self.close()
            return
        for event in events:
            if isinstance(event, SlaveIntroduced):
                self._introduced(event.progress)
            elif self._unproven is None:
                term.acknowledged(event.progress, event.offset, now_seconds=now)
            else:
                logger.warning("link of slave %s closed: it acknowledges before it was answered", self.peer)
                self.close()
                return
        self.pump()
        self._broker.settle()

    def _introduced(self, progress: SlaveProgress) -> None:
        self._unproven = progress
        self.prove()
        if self._unproven is not None:
            self._broker.on_unproven_slave()

    def prove(self, *, members_are_new: bool = False) -> None:
        """Accept the slave if its host is the known host of its broker id; close the link if the known host is another.

        With translated addresses (Services) the peer's host identifies no broker, so a known id is enough.
        """
        term, progress = self._term, self._unproven
        if term is None or progress is None:
            return
        known_host = host_of(self._broker.member_addresses.get(progress.broker_id, ""))
        if known_host and (known_host == self._host or self._broker.configuration.addresses_are_translated):
            self._unproven = None
            logger.info("slave %s is broker %d", self.peer, progress.broker_id)
            term.sync_state.link_opened(progress)
            self.pump()
        elif members_are_new:
            known = self._broker.member_addresses.get(progress.broker_id)
            logger.warning(
                "link of slave %s closed: it says it is broker %d, known at %s", self.peer, progress.broker_id, known
            )
            self.close()

    def pump(self) -> None:
        """Send the slave more of the log, as far as the socket takes it."""
        if self._transport is None or not self._writable or self._transport.is_closing() or self._unproven is not None:
            return
        try:
            frames = self.link.frames(
                confirm_offset=self._broker.store.confirm_offset,
                now_seconds=monotonic_seconds(),
                limit_bytes=_IN_FLIGHT_BYTES,
            )
        except HaFrameError as error:
            logger.warning("link of slave %s closed: %s", self.peer, error)
            self.close()
            return
        if frames:
            self._write(b"".join(frames))
        if self.link.has_more and self._writable:
            self._server.wake()

    def tick(self) -> None:
        """Send a keepalive if it is due; close the link of a silent slave."""
        now = monotonic_seconds()
        if now - self.link.last_read_seconds > self._server.housekeeping_seconds:
            logger.warning("link of slave %s closed: silent for %.0f s", self.peer, self._server.housekeeping_seconds)
            self.close()
            return
        if self._unproven is not None:
            self._broker.on_unproven_slave()  # ask the controller again until it answers
        elif self._writable:
            frame = self.link.keepalive(confirm_offset=self._broker.store.confirm_offset, now_seconds=now)
            if frame is not None:
                self._write(frame)

    def pause_writing(self) -> None:
        """Called by asyncio: the slave reads too slowly."""
        self._writable = False

    def resume_writing(self) -> None:
        """Called by asyncio: the socket takes more."""
        self._writable = True
        self._server.wake()

    def close(self) -> None:
        """Close the link."""
        if self._transport is not None:
            self._transport.abort()
        self._gone()

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by asyncio: the connection is lost."""
        if self in self._server.connections:
            logger.info("link of slave %s lost: %s", self.peer, exc or "closed")
        self._gone()

    def _gone(self) -> None:
        if self not in self._server.connections:
            return
        self._server.connections.discard(self)
        if self._term is not None and self.link.progress is not None:
            self._term.sync_state.link_closed(self.link.progress)
            self._broker.settle()

    def _write(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():  # uvloop raises on a closed one
            self._transport.write(data)


class HaServer:
    """The listener and all links to slaves."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.connections: set[SlaveConnection] = set()
        configuration = broker.configuration
        self.keepalive_seconds = max(configuration.ha_send_heartbeat_interval_seconds, _SHORTEST_KEEPALIVE_SECONDS)
        self.housekeeping_seconds = configuration.ha_housekeeping_interval_seconds
        self._listener: Listener | None = None
        self._pump_scheduled = False

    async def start(self, host: str, port: int) -> None:
        """Listen, whatever the role."""
        self._listener = await Listener.open(lambda: SlaveConnection(self), host, port)

    def wake(self) -> None:
        """Send new log bytes in the next turn of the event loop, so that many messages share a frame."""
        if not self._pump_scheduled:
            self._pump_scheduled = True
            asyncio.get_running_loop().call_soon(self._pump_all)

    def tick(self) -> None:
        """Let time pass: keepalives and timeouts of the links."""
        for connection in list(self.connections):
            connection.tick()

    def members_known(self, addresses: dict[int, str], *, asked_seconds: float) -> None:
        """Take the members' addresses from a controller, and check waiting slaves that connected before the question."""
        self.broker.member_addresses = addresses
        for connection in list(self.connections):
            connection.prove(members_are_new=connection.link.last_read_seconds <= asked_seconds)

    def close_links(self) -> None:
        """Close every link: this replica stops or changes its role."""
        for connection in list(self.connections):
            connection.close()

    async def stop(self) -> None:
        """Stop listening and close every link."""
        if self._listener is not None:
            await self._listener.close()
        self.close_links()

    def _pump_all(self) -> None:
        self._pump_scheduled = False
        for connection in list(self.connections):
            try:
                connection.pump()
            except (StoreFileError, OSError):
                logger.exception("link of slave %s closed: cannot read the log", connection.peer)
                connection.close()
