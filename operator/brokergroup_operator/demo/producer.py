"""Sends numbered messages to whoever is master, without ever stopping to ask why it failed.

A few workers each keep one send outstanding. They find the master through a route (for the quick start: the watched record; real
clients: the NameServer), and on any failure look again. Nothing is retried under the same key: see `ledger.py` for why.
"""

import asyncio
import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from brokergroup_operator.demo.ledger import Ledger
from rocketmq_remoting.client import RemotingClient
from rocketmq_remoting.codes import RequestCode, ResponseCode
from rocketmq_remoting.command import RemotingCommand, request
from rocketmq_remoting.errors import RemotingError

# The address `host:port` of the group's master as far as the route knows, or None.
Route = Callable[[], str | None]

_QUEUES = 4
_PAYLOAD_BYTES = 200


@dataclass
class DemoProducer:
    """Keeps `workers` sends outstanding, each paced by `pause_seconds`; what was acknowledged is in `ledger`."""

    route: Route
    broker_name: str
    topic: str
    workers: int = 4
    pause_seconds: float = 0.01
    send_timeout_seconds: float = 1.0
    ledger: Ledger = field(default_factory=Ledger)
    _keys: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1))

    async def run(self, stop: asyncio.Event) -> None:
        """Send until told to stop; the sends outstanding then are still waited for."""
        async with asyncio.TaskGroup() as group:
            for queue_id in range(self.workers):
                group.create_task(self._work(queue_id % _QUEUES, stop))

    async def _work(self, queue_id: int, stop: asyncio.Event) -> None:
        # A client per worker: one connection each, so a worker stuck on a silent master delays nobody else.
        client = RemotingClient(connect_timeout_seconds=0.3)
        try:
            while not stop.is_set():
                address = self.route()
                if address is not None:
                    await self._send_one(client, address, queue_id)
                await asyncio.sleep(self.pause_seconds)
        finally:
            await client.close()

    async def _send_one(self, client: RemotingClient, address: str, queue_id: int) -> None:
        key = f"m{next(self._keys):08d}"
        try:
            message = numbered_message(key, broker_name=self.broker_name, topic=self.topic, queue_id=queue_id)
            answer = await client.invoke(address, message, timeout_seconds=self.send_timeout_seconds)
        except RemotingError:
            self.ledger.fail()
            return
        if answer.code == ResponseCode.SUCCESS:
            self.ledger.acknowledge(key, time.time())
        else:
            self.ledger.fail()


def numbered_message(
    key: str, *, broker_name: str, topic: str, queue_id: int, queues: int = _QUEUES
) -> RemotingCommand:
    """SEND_MESSAGE_V2: the one-letter names are the wire's."""
    fields = {
        "a": "demo-producer",
        "b": topic,
        "c": "TBW102",
        "d": str(queues),
        "e": str(queue_id),
        "f": "0",
        "g": str(time.time_ns() // 1_000_000),
        "h": "0",
        "i": f"KEYS\x01{key}\x02",
        "j": "0",
        "k": "false",
        "m": "false",
        "n": broker_name,
    }
    body = key.encode().ljust(_PAYLOAD_BYTES, b".")
    return request(RequestCode.SEND_MESSAGE_V2, ext_fields=fields, body=body)
