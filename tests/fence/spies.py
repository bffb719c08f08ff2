"""Producers that never stop sending: one follows the record, and one for each broker always sends to that broker.

So they catch a stale master that still acknowledges, regardless of the record. They send without waiting for the
previous answer: a frozen broker finds a backlog in its sockets when it wakes.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from brokergroup_operator.demo.client import numbered_message
from rocketmq_remoting.client import RemotingClient
from rocketmq_remoting.codes import ResponseCode
from rocketmq_remoting.errors import RemotingError

if TYPE_CHECKING:
    from collections.abc import Callable

    from brokergroup_operator.demo.client import Ledger

    Route = Callable[[], str | None]

TOPIC = "numbered"
QUEUES = 4
ANSWER_SECONDS = 20.0
MOST_OUTSTANDING = 400


@dataclass
class Spy:
    """Sends one message every ``pause_seconds``, each with its own key; the ledger has the acknowledged ones."""

    route: Route
    broker_name: str
    ledger: Ledger
    keys: itertools.count[int]
    pause_seconds: float
    _outstanding: set[asyncio.Task[None]] = field(default_factory=set)

    async def run(self) -> None:
        """Send until cancelled."""
        client = RemotingClient(connect_timeout_seconds=0.5)
        try:
            for number in itertools.count():
                address = self.route()
                if address is not None and len(self._outstanding) < MOST_OUTSTANDING:
                    task = asyncio.create_task(self._send(client, address, number % QUEUES))
                    self._outstanding.add(task)
                    task.add_done_callback(self._outstanding.discard)
                await asyncio.sleep(self.pause_seconds)
        finally:
            for task in list(self._outstanding):
                task.cancel()
            await asyncio.gather(*self._outstanding, return_exceptions=True)
            await client.close()

    async def _send(self, client: RemotingClient, address: str, queue: int) -> None:
        key = f"m{next(self.keys):08d}"
        try:
            message = numbered_message(key, broker_name=self.broker_name, topic=TOPIC, queue_id=queue)
            answer = await client.invoke(address, message, timeout_seconds=ANSWER_SECONDS)
        except RemotingError:
            self.ledger.fail()
            return
        if answer.code == ResponseCode.SUCCESS:
            self.ledger.acknowledge(key, time.time())
        else:
            self.ledger.fail()
