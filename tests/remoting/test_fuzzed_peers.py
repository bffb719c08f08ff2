"""A hundred thousand hostile inputs, plain and inside TLS: none reaches the event loop, harms another peer, or stays in memory.

`make test` sends a fifth of them.
"""

from __future__ import annotations

import asyncio
import os
import random
import resource
import ssl
import struct
from typing import TYPE_CHECKING

import pytest
import uvloop

from rocketmq_remoting.client import RemotingClient
from rocketmq_remoting.codec import FrameLimits, encode
from rocketmq_remoting.command import RemotingCommand, SerializeType, request
from rocketmq_remoting.tls import ClientTls, TlsFiles, TlsMode, TlsServerSettings, client_context
from tests.security.certificates import make_authority
from tests.support.draws import WHOLE
from tests.support.quiet_handler import QuietHandler
from tests.support.remoting_rig import HOST, serving

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from rocketmq_remoting.connection import RemotingConnection

FRAMES = int(os.environ.get("BROKERGROUP_FUZZED_FRAMES", "100000" if WHOLE else "20000"))
BROKEN_HANDSHAKES = 400 if WHOLE else 100
ROUNDS = 10
GROWTH_BYTES = 24 * 1024 * 1024


class Echo(QuietHandler):
    """Remembers nothing: what stays in memory is counted."""

    def handle(self, command: RemotingCommand, connection: RemotingConnection) -> RemotingCommand:
        return command.answer(0, remark=command.remark, ext_fields=command.ext_fields, body=command.body)


def fuzzed(dice: random.Random) -> bytes:
    """Mostly frames with something wrong; sometimes a right one, sometimes noise, sometimes the start of a handshake."""
    kind = dice.randrange(10)
    if kind == 0:
        return dice.randbytes(dice.randrange(1, 200))
    if kind == 1:
        return b"\x16\x03\x01" + dice.randbytes(dice.randrange(200))
    if kind == 2:
        return struct.pack(">iI", dice.randrange(-(2**31), 2**31), dice.randrange(2**32))
    fields = {dice.choice(["brokerName", "brokerId", "AccessKey", "Signature", "\udcff", ""]): "x" * dice.randrange(40)}
    fields = {name: value for name, value in fields.items() if name.isascii()}
    command = request(
        dice.randrange(0, 2001),
        ext_fields=fields,
        body=dice.randbytes(dice.randrange(64)),
        oneway=dice.random() < 0.2,
        serialize_type=SerializeType(dice.randrange(2)),
    )
    frame = bytearray(encode(command))
    if kind < 8:
        for _ in range(dice.randrange(1, 6)):
            frame[dice.randrange(len(frame))] = dice.randrange(256)
    return bytes(frame[: dice.randrange(len(frame))] if kind == 8 else frame)


def rss_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:  # noqa: PTH123 - not a file
        return int(file.read().split()[1]) * resource.getpagesize()


async def torment(port: int, dice: random.Random, frames: int, files: TlsFiles | None) -> int:
    """Send until closed, connect again, go on; returns the number of connections it took."""
    connections = 0
    sent = 0
    context = client_context(files) if files is not None else None
    while sent < frames:
        connections += 1
        reader, writer = await asyncio.open_connection(HOST, port, ssl=context)
        drain = asyncio.create_task(swallow(reader))
        while sent < frames and not drain.done():
            for _ in range(dice.randrange(1, 12)):
                sent += 1
                if not writer.transport.is_closing():
                    writer.write(fuzzed(dice))
            await asyncio.sleep(0)
        writer.transport.abort()
        await drain
    return connections


async def swallow(reader: asyncio.StreamReader) -> None:
    try:
        while await reader.read(65536):
            pass
    except OSError:  # ssl.SSLError and ConnectionError are among them
        return


@pytest.mark.sampled
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("loop_factory", "frames"),
    [(uvloop.new_event_loop, FRAMES), (asyncio.new_event_loop, FRAMES // 5)],
    ids=["uvloop", "asyncio"],
)
@pytest.mark.parametrize("secured", [False, True], ids=["plain", "tls"])
def test_fuzzed_frames_harm_no_other_peer(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    loop_factory: Callable[[], asyncio.AbstractEventLoop],
    *,
    frames: int,
    secured: bool,
) -> None:
    """All of them under uvloop, which the operator runs on; fewer under plain asyncio."""
    caplog.set_level("CRITICAL", logger="rocketmq_remoting")
    files = make_authority(tmp_path).issue("server")
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        assert runner.run(fuzz(files, frames, secured=secured)) < GROWTH_BYTES


async def fuzz(files: TlsFiles, frames: int, *, secured: bool) -> int:
    """By how many bytes the process grew after its first thousands of connections."""
    shown = TlsFiles(ca=files.ca) if secured else None
    limits = FrameLimits(max_frame_bytes=1024 * 1024, max_frame_bytes_until_known=64 * 1024)
    served = TlsServerSettings(mode=TlsMode.PERMISSIVE, files=files)
    witness = RemotingClient(tls=ClientTls(shown) if shown is not None else None)
    dice = random.Random(20_26_11)
    before_bytes = 0
    async with serving(Echo(), limits=limits, tls=served) as (server, _):
        for number in range(ROUNDS):
            await torment(server.port, dice, frames // ROUNDS, shown)
            answer = await witness.invoke(server.address, request(1, body=b"still here"), timeout_seconds=10)
            assert answer.body == b"still here"
            if number == 1:
                before_bytes = rss_bytes()
        await witness.close()
    return rss_bytes() - before_bytes


async def half_way(port: int, dice: random.Random, files: TlsFiles) -> None:
    """A handshake and some frames, in which at some point a byte is wrong, missing, or the end comes."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    talker = client_context(files).wrap_bio(incoming, outgoing)
    reader, writer = await asyncio.open_connection(HOST, port)
    wrong_at = dice.randrange(1, 12)
    try:
        for step in range(1, 14):
            try:
                if step < 4:
                    talker.do_handshake()
                talker.write(encode(request(1, body=dice.randbytes(20))))
            except ssl.SSLWantReadError:
                pass
            data = bytearray(outgoing.read())
            if step == wrong_at and data:
                kind = dice.randrange(3)
                if kind == 0:
                    data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)
                elif kind == 1:
                    del data[dice.randrange(len(data)) :]
                else:
                    break
            writer.write(data)
            async with asyncio.timeout(0.05):
                incoming.write(await reader.read(65536))
    except (OSError, TimeoutError):  # the server has closed, or waits for what was cut off
        pass
    finally:
        writer.transport.abort()


@pytest.mark.sampled
async def test_broken_tls_records_harm_no_other_peer(tmp_path: Path) -> None:
    files = make_authority(tmp_path).issue("server")
    dice = random.Random(4)
    async with serving(Echo(), tls=TlsServerSettings(mode=TlsMode.ENFORCING, files=files)) as (server, _):
        for _ in range(BROKEN_HANDSHAKES // 10):
            await asyncio.gather(*(half_way(server.port, dice, TlsFiles(ca=files.ca)) for _ in range(10)))
        client = RemotingClient(tls=ClientTls(TlsFiles(ca=files.ca)))
        answer = await client.invoke(server.address, request(1, body=b"still here"), timeout_seconds=10)
        assert answer.body == b"still here"
        await client.close()
    assert server._tls is not None
    assert server._tls.handshakes == 0
