"""Frames in both header forms: round trips, the live example, what is not a frame, and a hundred thousand hostile inputs."""

from __future__ import annotations

import asyncio
import json
import os
import random
import resource
import ssl
import struct
import sys
from typing import TYPE_CHECKING

import pytest
import uvloop
from hypothesis import example, given
from hypothesis import strategies as st

from rocketmq_remoting.client import RemotingClient
from rocketmq_remoting.codec import FrameDecoder, FrameLimits, decode_frame, encode
from rocketmq_remoting.command import LanguageCode, RemotingCommand, SerializeType, request
from rocketmq_remoting.errors import CommandEncodeError, FrameError
from rocketmq_remoting.tls import ClientTls, TlsFiles, TlsMode, TlsServerSettings, client_context
from tests.security.certificates import make_authority
from tests.support.draws import WHOLE
from tests.support.quiet_handler import QuietHandler
from tests.support.remoting_rig import HOST, serving

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from rocketmq_remoting.connection import RemotingConnection

INT32 = st.integers(-(2**31), 2**31 - 1)
INT16 = st.integers(-(2**15), 2**15 - 1)
TEXT = st.text(st.characters(codec="utf-8"), max_size=40)
BODIES = st.none() | st.binary(min_size=1, max_size=200)


def framed(header: bytes, *, serialize_type: int = 0, body: bytes = b"") -> bytes:
    word = serialize_type << 24 | len(header)
    return struct.pack(">iI", 4 + len(header) + len(body), word) + header + body


json_commands = st.builds(
    RemotingCommand, code=INT32, opaque=INT32, flag=INT32, language=st.none() | st.sampled_from(LanguageCode),
    version=INT32, remark=st.none() | TEXT, ext_fields=st.none() | st.dictionaries(TEXT, TEXT), body=BODIES,
)  # fmt: skip
# The binary form has no empty strings, no empty ext fields and no absent language: they read as null, null, OTHER.
binary_commands = st.builds(
    RemotingCommand, code=INT16, opaque=INT32, flag=INT32, language=st.sampled_from(LanguageCode), version=INT16,
    remark=st.none() | TEXT.filter(bool),
    ext_fields=st.none() | st.dictionaries(TEXT.filter(bool), TEXT.filter(bool), min_size=1),
    body=BODIES, serialize_type=st.just(SerializeType.ROCKETMQ),
)  # fmt: skip


@given(json_commands | binary_commands)
def test_what_is_written_is_read(command: RemotingCommand) -> None:
    assert FrameDecoder().feed(encode(command)) == [command]


@given(st.lists(json_commands | binary_commands, max_size=5), st.data())
def test_reads_may_split_and_merge_frames(commands: list[RemotingCommand], data: st.DataObject) -> None:
    stream = b"".join(map(encode, commands))
    decoder = FrameDecoder()
    read = []
    while stream:
        size = data.draw(st.integers(1, len(stream)))
        at_most = data.draw(st.none() | st.integers(1, 3))
        read += decoder.feed(stream[:size], at_most=at_most)
        stream = stream[size:]
    read += decoder.feed(b"")
    assert read == commands
    assert decoder.buffered_bytes == 0


def test_the_live_example_of_the_binary_header() -> None:
    """The sample shows the frame up to its first ext field; the lengths it announces are filled up here."""
    shown = bytes.fromhex(
        "0000007e 0100007a 03eb 00 0000 00000005 00000000 00000000 00000065 0008 62726f6b65724964 00000001 31"
    )
    rest = b""
    for key, value in (
        ("clusterName", "cl"),
        ("brokerName", "bn"),
        ("brokerAddress", "1.1.1.9:1"),
        ("invokeTime", "12345"),
    ):
        rest += struct.pack(">h", len(key)) + key.encode() + struct.pack(">i", len(value)) + value.encode()
    [command] = FrameDecoder().feed(shown + rest)
    assert command == RemotingCommand(
        code=1003, opaque=5, language=LanguageCode.JAVA,
        ext_fields={
            "brokerId": "1", "clusterName": "cl", "brokerName": "bn", "brokerAddress": "1.1.1.9:1",
            "invokeTime": "12345",
        },
        serialize_type=SerializeType.ROCKETMQ,
    )  # fmt: skip
    assert encode(command) == shown + rest


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        (b'{"code":1}', {"code": 1, "language": None}),
        (b'{"opaque":7,"code":1,"nobody":{"knows":[1,2]}}', {"code": 1, "opaque": 7}),
        (b'{"code":1,"remark":null,"extFields":null,"language":null,"version":null}',
         {"remark": None, "ext_fields": None}),
        (b'{"code":1,"language":"COBOL"}', {"language": None}),
        (b'{"code":1,"language":9}', {"language": LanguageCode.GO}),
        (b'{"code":1,"language":99}', {"language": None}),
        (b'{"code":"1005","opaque":"3"}', {"code": 1005, "opaque": 3}),
        (b'{"code":1,"extFields":{"i":12,"d":1.50,"b":true,"s":"x\\n","n":null,"o":{"a":1}}}',
         {"ext_fields": {"i": "12", "d": "1.50", "b": "true", "s": "x\n", "o": '{"a":1}'}}),
        (b'{"code":1,"extFields":{}}', {"ext_fields": {}}),
    ],
)  # fmt: skip
def test_json_headers_are_read_as_tolerantly_as_java_reads_them(header: bytes, expected: dict[str, object]) -> None:
    command = decode_frame(framed(header)[4:])
    for name, value in expected.items():
        assert getattr(command, name) == value


def test_an_empty_value_of_a_binary_header_is_absent() -> None:
    command = RemotingCommand(1, ext_fields={"a": "", "b": "x"}, remark="", serialize_type=SerializeType.ROCKETMQ)
    [read] = FrameDecoder().feed(encode(command))
    assert read.ext_fields == {"b": "x"}
    assert read.remark is None


BINARY = encode(RemotingCommand(1003, ext_fields={"brokerId": "1"}, remark="r", serialize_type=SerializeType.ROCKETMQ))
NOT_FRAMES = {
    "negative length": struct.pack(">i", -1), "most negative length": struct.pack(">i", -(2**31)),
    "zero length": struct.pack(">ii", 0, 0), "length below the second word": struct.pack(">i", 3),
    "one byte above 16 MiB": struct.pack(">i", 16 * 1024 * 1024 + 1),
    "a TLS hello": bytes.fromhex("160301020001"), "an HTTP request": b"GET / HTTP/1.1\r\n\r\n",
    "header longer than the frame": struct.pack(">iI", 8, 5) + b"{}  ",
    "unknown serialize type": framed(b'{"code":1}', serialize_type=2),
    "serialize type 255": framed(b'{"code":1}', serialize_type=255),
    "no header": framed(b""), "header is no JSON": framed(b"code=1"), "header is cut JSON": framed(b'{"code":1'),
    "header is an array": framed(b"[1]"), "header is a number": framed(b"1"), "header is null": framed(b"null"),
    "two headers": framed(b'{"code":1}{"code":1}'), "code is text": framed(b'{"code":"abc"}'),
    "code is an object": framed(b'{"code":{}}'), "code beyond int32": framed(b'{"code":2147483648}'),
    "opaque of a million digits": framed(b'{"code":1,"opaque":' + b"9" * 1_000_000 + b"}"),
    "extFields is text": framed(b'{"code":1,"extFields":"x"}'),
    "not UTF-8": framed(b'{"code":1,"remark":"\xff"}'),
    "lone surrogate": framed(b'{"code":1,"remark":"\\ud800"}'),
    "deep nesting in an unknown member": framed(b'{"code":1,"x":' + b"[" * 1_000_000),
    "deep nesting in an ext field": framed(b'{"code":1,"extFields":{"x":' + b'{"x":' * 200_000),
    "empty binary header": framed(b"", serialize_type=1),
    "binary header cut in its fixed part": framed(BINARY[8:20], serialize_type=1),
    "binary header cut in the remark": framed(BINARY[8:26], serialize_type=1),
    "binary header cut in the ext fields": framed(BINARY[8:-1], serialize_type=1),
    "binary header with a byte too many": framed(BINARY[8:] + b"\0", serialize_type=1),
    "binary remark of negative length": framed(BINARY[8:21] + struct.pack(">ii", -1, 0), serialize_type=1),
    "binary key of negative length": framed(BINARY[8:21] + struct.pack(">iihi", 0, 6, -1, 0), serialize_type=1),
    "binary value of 2 GiB": framed(BINARY[8:21] + struct.pack(">iihci", 0, 7, 1, b"k", 2**31 - 1), serialize_type=1),
    "binary remark not UTF-8": framed(BINARY[8:21] + struct.pack(">ici", 1, b"\xff", 0), serialize_type=1),
}  # fmt: skip


def is_refused(decoder: FrameDecoder, data: bytes) -> bool:
    try:
        decoder.feed(data)
    except FrameError:
        return True
    return False


def test_what_is_no_frame_is_a_frame_error() -> None:
    for name, data in NOT_FRAMES.items():
        decoder = FrameDecoder()
        assert is_refused(decoder, data), name
        assert is_refused(decoder, encode(request(1))), f"{name}: the decoder goes on after it"
        assert decoder.buffered_bytes == 0, name


def test_good_frames_before_a_bad_one_are_not_lost() -> None:
    good = request(904, ext_fields={"brokerId": "1"})
    with pytest.raises(FrameError) as raised:
        FrameDecoder().feed(encode(good) + encode(good) + framed(b"bad"))
    assert raised.value.decoded_before == (good, good)


@given(st.binary(max_size=200))
@example(b"\0\0\0\x04\0\0\0\0")
def test_any_bytes_give_commands_or_a_frame_error(data: bytes) -> None:
    decoder = FrameDecoder(FrameLimits(max_frame_bytes=1000))
    try:
        decoder.feed(data)
    except FrameError:
        return
    assert decoder.buffered_bytes <= len(data)


@given(json_commands | binary_commands, st.data())
def test_any_damage_to_a_frame_gives_commands_or_a_frame_error(command: RemotingCommand, data: st.DataObject) -> None:
    frame = bytearray(encode(command))
    for _ in range(data.draw(st.integers(1, 4))):
        frame[data.draw(st.integers(4, len(frame) - 1))] = data.draw(st.integers(0, 255))
    try:
        commands = FrameDecoder().feed(bytes(frame))
    except FrameError:
        return
    assert len(commands) == 1


def test_a_huge_frame_is_refused_on_its_length_word() -> None:
    decoder = FrameDecoder(FrameLimits(max_frame_bytes=1024))
    with pytest.raises(FrameError, match=r"frame length is 1025, expected 4\.\.1024"):
        decoder.feed(struct.pack(">i", 1025))
    assert decoder.buffered_bytes == 0


def test_a_frame_as_long_as_allowed_passes() -> None:
    frame = encode(request(1, body=b"x"))
    assert FrameDecoder(FrameLimits(max_frame_bytes=len(frame) - 4)).feed(frame)


def test_the_smaller_limit_holds_until_the_peer_is_known() -> None:
    limits = FrameLimits(max_frame_bytes=100_000, max_frame_bytes_until_known=1000)
    long = request(1, body=bytes(5000))
    with pytest.raises(FrameError):
        FrameDecoder(limits).feed(encode(long))
    decoder = FrameDecoder(limits)
    decoder.peer_is_known()
    assert decoder.feed(encode(long)) == [long]


def test_a_decoder_keeps_no_more_than_the_frame_it_waits_for() -> None:
    limits = FrameLimits(max_frame_bytes=64 * 1024)
    decoder = FrameDecoder(limits)
    stream = encode(request(1, body=bytes(60 * 1024))) * 20
    for start in range(0, len(stream), 1000):
        decoder.feed(stream[start : start + 1000])
        assert sys.getsizeof(decoder._buffer) <= 1.2 * limits.max_frame_bytes


@pytest.mark.parametrize(
    "command",
    [
        RemotingCommand(2**31), RemotingCommand(1, opaque=-(2**31) - 1), RemotingCommand(1, version=2**31),
        RemotingCommand(1, remark="\ud800"), RemotingCommand(1, body=bytes(16 * 1024 * 1024)),
        RemotingCommand(200_050, serialize_type=SerializeType.ROCKETMQ),
        RemotingCommand(1, version=40_000, serialize_type=SerializeType.ROCKETMQ),
        RemotingCommand(1, ext_fields={"k" * 40_000: "v"}, serialize_type=SerializeType.ROCKETMQ),
        RemotingCommand(1, remark="\ud800", serialize_type=SerializeType.ROCKETMQ),
    ],
    ids=lambda command: str(command)[:40],
)  # fmt: skip
def test_a_command_that_does_not_fit_the_wire_is_refused_before_it_is_sent(command: RemotingCommand) -> None:
    with pytest.raises(CommandEncodeError):
        encode(command)


def test_absent_and_empty_ext_fields_differ_as_in_java() -> None:
    assert "extFields" not in json.loads(encode(RemotingCommand(1))[8:])
    assert json.loads(encode(RemotingCommand(1, ext_fields={}))[8:])["extFields"] == {}


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
        dice.randrange(0, 2001), ext_fields=fields, body=dice.randbytes(dice.randrange(64)), oneway=dice.random() < 0.2,
        serialize_type=SerializeType(dice.randrange(2)),
    )  # fmt: skip
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
    tmp_path: Path, caplog: pytest.LogCaptureFixture, loop_factory: Callable[[], asyncio.AbstractEventLoop], *,
    frames: int, secured: bool,
) -> None:  # fmt: skip
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
