"""Replication and acknowledgements of a scripted broker: the rules of Java's AutoSwitchHA 5.5.0 with its quirks.

Serving (every role serves each connection; only a master counts members):
* a send is refused while fewer than `minInSyncReplicas` are in the set, and acknowledged when all in the set have it;
* a slave whose link ends leaves the set here at once, and 1001 to the controller follows; with no slave left in the set,
  waiting messages are acknowledged although only one disk has them;
* while 1001 proposes a larger set, its new members count too.

Following: dial the HA address, truncate the log to the common point, copy. After any failure a slave sleeps 5 s, unless its
address or role changes. A role change with a live link takes 5 s, or 1 s if the old master is stopped.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from typing import TYPE_CHECKING, Any

from tests.simulate.lines import LineConnection

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.simulate.broker import Broker

SLEEP_SECONDS = 5.0
STALL_SECONDS = 5.0
STOPPED_MASTER_SECONDS = 1.0
# A send that waits longer for copies is answered as a failure.
SLAVE_TIMEOUT_SECONDS = 3.0
NOT_CAUGHT_UP_SECONDS = 3.0
CHECK_SECONDS = 1.0
CHUNK = 50


class ServedLink:
    """The link of one slave that copies from this broker."""

    def __init__(self, connection: LineConnection, broker_id: int) -> None:
        self.connection = connection
        self.broker_id = broker_id
        self.ack = -1
        self.sent = 0
        self.caught_up_seconds = asyncio.get_running_loop().time()


class Server:
    """The master's half."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._disk = broker.disk
        self.links: dict[int, ServedLink] = {}
        self._of: dict[LineConnection, ServedLink] = {}
        self.in_sync: set[int] = set()
        self.applied: set[int] = set()
        self.set_epoch = 0
        self._wanted: set[int] | None = None
        self._reporting = False
        self._confirm = 0
        self._waiting: deque[tuple[int, int, float, Callable[[int], None]]] = deque()

    async def listen(self, host: str, port: int) -> None:
        loop = asyncio.get_running_loop()
        await loop.create_server(lambda: LineConnection(self._heard, self._ended), host, port)
        asyncio.create_task(self._check_for_ever())  # noqa: RUF006 - as long as the process

    def begin(self, members: set[int], set_epoch: int) -> None:
        """Become master."""
        self.close_links()
        self.in_sync, self.applied, self.set_epoch = set(members), set(members), set_epoch
        self._wanted = None
        self._confirm = self._disk.end if len(members) <= 1 else self._confirm

    def apply(self, members: set[int], set_epoch: int) -> None:
        """Apply the controller's set."""
        if set_epoch > self.set_epoch:
            self.in_sync, self.applied, self.set_epoch = set(members), set(members), set_epoch
            self._wanted = None
            self._release()

    def close_links(self) -> None:
        """Close all links for a role change, without a change of the set. Waiting sends are never answered."""
        links, self.links, self._of = list(self.links.values()), {}, {}
        self._waiting.clear()
        for link in links:
            link.connection.close()

    def append(self, message: int, reply: Callable[[int], None]) -> None:
        """Append a client's message. `reply` gets the number of disks that have it; 0: refused."""
        counted = max(len(self.in_sync), len(self._wanted or ()))
        if counted < self._disk.minimum:
            reply(0)
            return
        self._disk.messages.append(message)
        self._waiting.append((self._disk.end, message, asyncio.get_running_loop().time(), reply))
        for link in self.links.values():
            self._push(link)
        self._release()

    def tell_epoch(self) -> None:
        """Send slaves a new epoch without messages."""
        for link in self.links.values():
            if link.ack >= 0:
                epoch, start, _ = self._disk.epoch_at(self._disk.end)
                link.connection.send(data=[], at=link.sent, epoch=epoch, start=start)

    def has_everything(self, broker_id: int) -> bool:
        link = self.links.get(broker_id)
        return link is not None and link.ack == self._disk.end

    # ---- links

    def _heard(self, connection: LineConnection, line: dict[str, Any]) -> None:
        if "hello" in line:
            link = ServedLink(connection, line["hello"])
            former = self.links.pop(link.broker_id, None)
            if former is not None:
                self._of.pop(former.connection, None)
                former.connection.close()
            self.links[link.broker_id] = self._of[connection] = link
            connection.send(epochs=self._disk.epochs, end=self._disk.end)
            return
        found = self._of.get(connection)
        if found is None:
            return
        first = found.ack < 0
        found.ack = line["ack"]
        if first:
            found.sent = found.ack
            self._push(found)
        if found.ack == self._disk.end:
            found.caught_up_seconds = asyncio.get_running_loop().time()
        if self._broker.is_master:
            self._update_confirm()
            self._expand(found)
            self._release()

    def _push(self, link: ServedLink) -> None:
        while link.ack >= 0 and link.sent < self._disk.end:
            epoch, start, end = self._disk.epoch_at(link.sent)
            upper = min(end, link.sent + CHUNK)
            link.connection.send(data=self._disk.messages[link.sent : upper], at=link.sent, epoch=epoch, start=start)
            link.sent = upper

    def _ended(self, connection: LineConnection) -> None:
        link = self._of.pop(connection, None)
        if link is None:
            return
        self.links.pop(link.broker_id, None)
        if self._broker.is_master and link.broker_id in self.in_sync:
            # Java 5.5.0: the broker's own set changes first, 1001 follows.
            self.in_sync.discard(link.broker_id)
            if self._wanted is not None:
                self._wanted.discard(link.broker_id)
            self._release()
            self._report(set(self.in_sync))

    # ---- the set

    def _expand(self, link: ServedLink) -> None:
        self._update_confirm()  # the end of the log if no slave is in the set
        epoch_start = self._disk.epochs[-1][1] if self._disk.epochs else 0
        if link.broker_id not in self.in_sync and link.ack >= max(self._confirm, epoch_start):
            self._wanted = self.in_sync | {link.broker_id}
            self._report(self._wanted)

    def _update_confirm(self) -> None:
        others = (self.in_sync | (self._wanted or set())) - {self._broker.broker_id}
        if not others:
            self._confirm = self._disk.end
        elif all(one in self.links for one in others):
            self._confirm = max(self._confirm, min(self.links[one].ack for one in others))

    def _report(self, members: set[int]) -> None:
        if not self._reporting:
            self._reporting = True
            asyncio.create_task(self._ask(members))  # noqa: RUF006

    async def _ask(self, members: set[int]) -> None:
        epoch = self._broker.epoch
        try:
            answer = await self._broker.alter_set(members, self.set_epoch)
        finally:
            self._reporting = False
        if self._broker.epoch != epoch or not self._broker.is_master:
            return
        if answer is None:
            self._wanted = None  # the next ack, or the next check, sends it again
            return
        self.apply(*answer)
        for link in list(self.links.values()):
            if link.ack >= 0:
                self._expand(link)

    async def _check_for_ever(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            now_seconds = loop.time()
            while self._waiting and self._waiting[0][2] < now_seconds - SLAVE_TIMEOUT_SECONDS:
                self._waiting.popleft()[3](0)
            if not self._broker.is_master:
                continue
            lagging = {
                link.broker_id
                for link in self.links.values()
                if link.ack < self._disk.end and now_seconds - link.caught_up_seconds > NOT_CAUGHT_UP_SECONDS
            }
            wanted = {one for one in self.in_sync if one in self.links and one not in lagging} | {
                self._broker.broker_id
            }
            if wanted != self.applied:
                self._report(wanted)
            for link in list(self.links.values()):  # a slave acknowledges all the time (haSendHeartbeatInterval=1)
                if link.ack >= 0:
                    self._expand(link)

    def _release(self) -> None:
        """Answer sends that all members of the set have; without a slave in the set, all."""
        others = (self.in_sync | (self._wanted or set())) - {self._broker.broker_id}
        point = min((self.links[one].ack if one in self.links else -1 for one in others), default=self._disk.end)
        while self._waiting and self._waiting[0][0] <= point:
            end, _, _, reply = self._waiting.popleft()
            reply(1 + sum(link.ack >= end for link in self.links.values()))


class Follower:
    """The slave's half."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._disk = broker.disk
        self.address = ""
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._link: LineConnection | None = None
        self._closing = False

    @property
    def runs(self) -> bool:
        return self._task is not None

    def start(self) -> None:
        self.address = ""
        self._closing = False
        self._wake.clear()
        self._task = asyncio.create_task(self._run())

    def point_at(self, address: str) -> None:
        """Set the HA address. Only a changed address wakes a sleeping slave, and none ends a live link."""
        if address != self.address:
            self.address = address
            self._wake.set()

    async def shut(self) -> None:
        """Stop as Java joins its thread: 5 s if frames of a living master may still come."""
        if self._task is None:
            return
        self._closing = True
        link = self._link
        if link is not None and link.is_open:
            stopped = not self._broker.world.is_reachable(self._broker.node, link.peer_process)
            await asyncio.sleep(STOPPED_MASTER_SECONDS if stopped else STALL_SECONDS)
        self._task.cancel()
        self._task = None
        if self._link is not None:
            self._link.close()
        self._link = None
        self.address = ""

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            host, _, port = self.address.rpartition(":")
            if host:
                with contextlib.suppress(OSError):
                    _, link = await loop.create_connection(
                        lambda: LineConnection(self._heard, lambda _: None),
                        host,
                        int(port),
                        local_addr=(self._broker.host, 0),
                    )
                    self._link = link
                    link.send(hello=self._broker.broker_id)
                    await link.ended.wait()
                    self._link = None
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(SLEEP_SECONDS):
                    await self._wake.wait()
            self._wake.clear()

    def _heard(self, link: LineConnection, line: dict[str, Any]) -> None:
        if self._closing or link is not self._link:
            return
        if "epochs" in line:
            point = self._disk.consistent_point([tuple(one) for one in line["epochs"]], line["end"])
            if point is None:
                link.close()
                return
            if point < self._disk.end:
                self._broker.note(f"cuts its log from {self._disk.end} to {point}")
            self._disk.truncate(point)
        elif line["at"] != self._disk.end:
            link.close()
            return
        else:
            self._disk.begin_epoch(line["epoch"], line["start"])
            self._disk.messages += line["data"]
        link.send(ack=self._disk.end)
