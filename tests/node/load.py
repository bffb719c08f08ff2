"""Sends numbered messages from outside the cluster, as a client does: the NameServer has the master's address.

    python -m tests.node.load NAME_SERVER BROKER_NAME TOPIC [tls]

A separate program, so that no other task delays it. Prints `ready` after the first acknowledgement; on SIGTERM it
stops, reads the last master's log and prints one line of JSON: acknowledged messages, gaps, lost messages. With `tls` it connects
over TLS, and accepts any certificate, as Java's client does by default.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import signal
import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from brokergroup_operator.demo.client import DemoProducer, ReadbackError, read_keys
from rocketmq_remoting.client import RemotingClient
from rocketmq_remoting.codes import RequestCode, ResponseCode
from rocketmq_remoting.command import request
from rocketmq_remoting.errors import RemotingError
from rocketmq_remoting.tls import ClientTls, TlsFiles

if TYPE_CHECKING:
    from rocketmq_remoting.command import RemotingCommand

QUEUES = 4
ROUTE_POLL_SECONDS = 0.1
READ_BACK_SECONDS = 30.0
# Shorter pauses are no gaps.
GAP_SECONDS = 0.05


@dataclass
class Route:
    """The master's address from the NameServer, polled."""

    name_server: str
    broker_name: str
    tls: ClientTls | None = None
    master: str | None = None
    changes: list[tuple[float, str]] = field(default_factory=list)

    async def follow(self, stop: asyncio.Event) -> None:
        client = RemotingClient(connect_timeout_seconds=1, tls=self.tls)
        try:
            while not stop.is_set():
                try:
                    self.take(await client.invoke(self.name_server, cluster_request(), timeout_seconds=1))
                except RemotingError as error:
                    print(f"route: {error!r}", file=sys.stderr)
                await asyncio.sleep(ROUTE_POLL_SECONDS)
        finally:
            await client.close()

    def take(self, answer: Any) -> None:
        address = addresses_of(answer.body).get(self.broker_name, {}).get("0")
        if address and address != self.master:
            self.master = address
            self.changes.append((time.time(), address))


def any_certificate() -> ClientTls:
    """TLS without verification."""
    return ClientTls(TlsFiles())


def cluster_request() -> RemotingCommand:
    return request(RequestCode.GET_BROKER_CLUSTER_INFO)


def addresses_of(body: bytes | None) -> dict[str, dict[str, str]]:
    """Return a NameServer's addresses by broker name and id. Java writes numbers as keys without quotes; 0 is the master."""
    told = json.loads(re.sub(rb"([{,])(\d+):", rb'\1"\2":', body or b"{}"))
    return {name: one["brokerAddrs"] for name, one in told.get("brokerAddrTable", {}).items()}


async def create_topic(address: str, topic: str, *, tls: ClientTls | None = None) -> None:
    """At the master; slaves take it over from it."""
    fields = {
        "topic": topic,
        "defaultTopic": "TBW102",
        "readQueueNums": str(QUEUES),
        "writeQueueNums": str(QUEUES),
        "perm": "6",
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": "0",
        "order": "false",
    }
    client = RemotingClient(connect_timeout_seconds=2, tls=tls)
    try:
        answer = await client.invoke(
            address, request(RequestCode.UPDATE_AND_CREATE_TOPIC, ext_fields=fields), timeout_seconds=5
        )
    finally:
        await client.close()
    if answer.code != ResponseCode.SUCCESS:
        raise RuntimeError(f"{address}: topic {topic} was not created: code {answer.code} ({answer.remark})")


async def lost_messages(producer: DemoProducer, route: Route) -> list[str]:
    """Return acknowledged messages that the last master's log lacks; retries while the log is not readable yet."""
    deadline = time.monotonic() + READ_BACK_SECONDS
    while True:
        try:
            assert route.master is not None
            return producer.ledger.missing_from(await read_keys(route.master, producer.topic, QUEUES, tls=route.tls))
        except (ReadbackError, RemotingError):
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.5)


async def main(name_server: str, broker_name: str, topic: str, *, tls: ClientTls | None) -> None:
    stop_sending, stop_following = asyncio.Event(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop_sending.set)
    route = Route(name_server, broker_name, tls)
    producer = DemoProducer(lambda: route.master, broker_name, topic, tls=tls)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(route.follow(stop_following))
        sending = tasks.create_task(producer.run(stop_sending))
        tasks.create_task(tell_when_ready(producer, stop_sending))
        await sending
        lost = await lost_messages(producer, route)
        stop_following.set()
    times = [one.at_seconds for one in producer.ledger.acknowledgements]
    gaps = [(begin, round(end - begin, 3)) for begin, end in itertools.pairwise(times)]
    told = {
        "acknowledged": len(times),
        "failures": producer.ledger.failures,
        "gaps": [gap for gap in gaps if gap[1] > GAP_SECONDS],
        "longest_gap_s": max((length for _, length in gaps), default=0.0),
        "last_acknowledged": times[-1] if times else 0.0,
        "masters": route.changes,
        "lost": lost,
        # When each lost message was acknowledged.
        "lost_at": [one.at_seconds for one in producer.ledger.acknowledgements if one.key in set(lost)],
    }
    print(json.dumps(told), flush=True)


async def tell_when_ready(producer: DemoProducer, stop: asyncio.Event) -> None:
    while not producer.ledger.acknowledgements and not stop.is_set():  # noqa: ASYNC110 (the ledger wakes nobody)
        await asyncio.sleep(0.05)
    print("ready", flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:4], tls=any_certificate() if sys.argv[4:] == ["tls"] else None))
