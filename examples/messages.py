"""A message to whoever is master, and all of a topic read back: a client for a machine that has no RocketMQ distribution.

.venv/bin/python examples/messages.py send NAMESERVER TOPIC TEXT     prints the broker that acknowledged it
.venv/bin/python examples/messages.py read NAMESERVER TOPIC          prints one text a line

NAMESERVER is host:port. TEXT has no dot and at most 200 characters; for anything else there are RocketMQ's own clients.
"""

from __future__ import annotations

import asyncio
import sys

from brokergroup_operator.demo.client import numbered_message, read_keys
from rocketmq_remoting.broker_protocol import GetRouteInfoRequestHeader, TopicRouteBody
from rocketmq_remoting.client import RemotingClient
from rocketmq_remoting.codes import RequestCode, ResponseCode
from rocketmq_remoting.command import request

QUEUES = 4
TIMEOUT_SECONDS = 5.0
# The topic by whose route a new topic is made.
TEMPLATE = "TBW102"


async def master_of(client: RemotingClient, name_server: str, topic: str) -> tuple[str, str]:
    """Name and address of a broker that has the topic, or would make it. SystemExit if the NameServer knows none."""
    for name in (topic, TEMPLATE):
        header = GetRouteInfoRequestHeader(topic=name)
        asked = request(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext_fields=header.encode())
        answer = await client.invoke(name_server, asked, timeout_seconds=TIMEOUT_SECONDS)
        if answer.code == ResponseCode.SUCCESS and answer.body:
            for broker in TopicRouteBody.decode(answer.body).broker_datas:
                if 0 in broker.broker_addrs:  # a master is 0 in every route
                    return broker.broker_name, broker.broker_addrs[0]
    raise SystemExit(f"{name_server}: no master for topic {topic!r} ({answer.code}: {answer.remark})")


async def send(client: RemotingClient, name_server: str, topic: str, text: str) -> None:
    name, address = await master_of(client, name_server, topic)
    message = numbered_message(text, broker_name=name, topic=topic, queue_id=0, queues=QUEUES)
    answer = await client.invoke(address, message, timeout_seconds=TIMEOUT_SECONDS)
    if answer.code != ResponseCode.SUCCESS:
        raise SystemExit(f"{name} at {address}: not acknowledged: code {answer.code} ({answer.remark})")
    print(f"acknowledged by {name} at {address}")


async def read(client: RemotingClient, name_server: str, topic: str) -> None:
    _, address = await master_of(client, name_server, topic)
    print("\n".join(sorted(await read_keys(address, topic, QUEUES))))


async def main(arguments: list[str]) -> None:
    client = RemotingClient()
    try:
        match arguments:
            case ["send", name_server, topic, text] if "." not in text and 0 < len(text) <= 200:
                await send(client, name_server, topic, text)
            case ["read", name_server, topic]:
                await read(client, name_server, topic)
            case _:
                raise SystemExit(__doc__)
    finally:
        await client.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
