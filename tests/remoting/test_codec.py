"""Frames in both header forms: round trips, the live example, and everything that is not a frame."""

from __future__ import annotations

import json
import struct
import sys

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rocketmq_remoting.codec import FrameDecoder, FrameLimits, decode_frame, encode
from rocketmq_remoting.command import LanguageCode, RemotingCommand, SerializeType, request
from rocketmq_remoting.errors import CommandEncodeError, FrameError

INT32 = st.integers(-(2**31), 2**31 - 1)
INT16 = st.integers(-(2**15), 2**15 - 1)
TEXT = st.text(st.characters(codec="utf-8"), max_size=40)
BODIES = st.none() | st.binary(min_size=1, max_size=200)


def framed(header: bytes, *, serialize_type: int = 0, body: bytes = b"") -> bytes:
    word = serialize_type << 24 | len(header)
    return struct.pack(">iI", 4 + len(header) + len(body), word) + header + body


json_commands = st.builds(
    RemotingCommand,
    code=INT32,
    opaque=INT32,
    flag=INT32,
    language=st.none() | st.sampled_from(LanguageCode),
    version=INT32,
    remark=st.none() | TEXT,
    ext_fields=st.none() | st.dictionaries(TEXT, TEXT),
    body=BODIES,
)
# The binary form has no empty strings, no empty ext fields and no absent language: they read as null, null, OTHER.
binary_commands = st.builds(
    RemotingCommand,
    code=INT16,
    opaque=INT32,
    flag=INT32,
    language=st.sampled_from(LanguageCode),
    version=INT16,
    remark=st.none() | TEXT.filter(bool),
    ext_fields=st.none() | st.dictionaries(TEXT.filter(bool), TEXT.filter(bool), min_size=1),
    body=BODIES,
    serialize_type=st.just(SerializeType.ROCKETMQ),
)


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
        code=1003,
        opaque=5,
        language=LanguageCode.JAVA,
        ext_fields={
            "brokerId": "1",
            "clusterName": "cl",
            "brokerName": "bn",
            "brokerAddress": "1.1.1.9:1",
            "invokeTime": "12345",
        },
        serialize_type=SerializeType.ROCKETMQ,
    )
    assert encode(command) == shown + rest


def test_a_java_request_is_reproduced() -> None:
    """A live sample of Java 5.5.0."""
    header = (
        b'{"code":1002,"extFields":{"brokerId":"2","invokeTime":"1795210522768","clusterName":"cl","designateElect":"false",'
        b'"brokerName":"bn"},"flag":0,"language":"JAVA","opaque":0,"serializeTypeCurrentRPC":"JSON","version":0}'
    )
    assert encode(decode_frame(framed(header)[4:])) == framed(header)


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        (b'{"code":1}', {"code": 1, "language": None}),
        (b'{"opaque":7,"code":1,"nobody":{"knows":[1,2]}}', {"code": 1, "opaque": 7}),
        (
            b'{"code":1,"remark":null,"extFields":null,"language":null,"version":null}',
            {"remark": None, "ext_fields": None},
        ),
        (b'{"code":1,"language":"COBOL"}', {"language": None}),
        (b'{"code":1,"language":9}', {"language": LanguageCode.GO}),
        (b'{"code":1,"language":99}', {"language": None}),
        (b'{"code":"1005","opaque":"3"}', {"code": 1005, "opaque": 3}),
        (
            b'{"code":1,"extFields":{"i":12,"d":1.50,"b":true,"s":"x\\n","n":null,"o":{"a":1}}}',
            {"ext_fields": {"i": "12", "d": "1.50", "b": "true", "s": "x\n", "o": '{"a":1}'}},
        ),
        (b'{"code":1,"extFields":{}}', {"ext_fields": {}}),
    ],
)
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
    "negative length": struct.pack(">i", -1),
    "most negative length": struct.pack(">i", -(2**31)),
    "zero length": struct.pack(">ii", 0, 0),
    "length below the second word": struct.pack(">i", 3),
    "one byte above 16 MiB": struct.pack(">i", 16 * 1024 * 1024 + 1),
    "a TLS hello": bytes.fromhex("160301020001"),
    "an HTTP request": b"GET / HTTP/1.1\r\n\r\n",
    "header longer than the frame": struct.pack(">iI", 8, 5) + b"{}  ",
    "unknown serialize type": framed(b'{"code":1}', serialize_type=2),
    "serialize type 255": framed(b'{"code":1}', serialize_type=255),
    "no header": framed(b""),
    "header is no JSON": framed(b"code=1"),
    "header is cut JSON": framed(b'{"code":1'),
    "header is an array": framed(b"[1]"),
    "header is a number": framed(b"1"),
    "header is null": framed(b"null"),
    "two headers": framed(b'{"code":1}{"code":1}'),
    "code is text": framed(b'{"code":"abc"}'),
    "code is an object": framed(b'{"code":{}}'),
    "code beyond int32": framed(b'{"code":2147483648}'),
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
}


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
        RemotingCommand(2**31),
        RemotingCommand(1, opaque=-(2**31) - 1),
        RemotingCommand(1, version=2**31),
        RemotingCommand(1, remark="\ud800"),
        RemotingCommand(1, body=bytes(16 * 1024 * 1024)),
        RemotingCommand(200_050, serialize_type=SerializeType.ROCKETMQ),
        RemotingCommand(1, version=40_000, serialize_type=SerializeType.ROCKETMQ),
        RemotingCommand(1, ext_fields={"k" * 40_000: "v"}, serialize_type=SerializeType.ROCKETMQ),
        RemotingCommand(1, remark="\ud800", serialize_type=SerializeType.ROCKETMQ),
    ],
    ids=lambda command: str(command)[:40],
)
def test_a_command_that_does_not_fit_the_wire_is_refused_before_it_is_sent(command: RemotingCommand) -> None:
    with pytest.raises(CommandEncodeError):
        encode(command)


def test_absent_and_empty_ext_fields_differ_as_in_java() -> None:
    assert "extFields" not in json.loads(encode(RemotingCommand(1))[8:])
    assert json.loads(encode(RemotingCommand(1, ext_fields={}))[8:])["extFields"] == {}
