"""What a peer must not be able to do: stop the loop, fill memory or log, hold connections, also of a server that stops."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import struct
from typing import TYPE_CHECKING, Any

import pytest
import uvloop

from rocketmq_remoting.client import RemotingClient
from rocketmq_remoting.codec import FrameDecoder, FrameLimits, encode
from rocketmq_remoting.command import RemotingCommand, request
from rocketmq_remoting.errors import RemotingTimeoutError
from rocketmq_remoting.limits import LINES_PER_WINDOW, WINDOW_SECONDS, ByteBudget, PeerLog
from rocketmq_remoting.server import RemotingServer
from tests.remoting.test_codec import NOT_FRAMES
from tests.support.remoting_rig import ECHO, HOST, LATER, Handler, connected, serving
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable


TURN = 64
STRICT: dict[str, Any] = {
    "limits": FrameLimits(max_frame_bytes=100_000, max_frame_bytes_until_known=1000),
    "frame_timeout_seconds": 0.2,
    "max_connections": 4,
    "max_connections_per_host": 2,
}


@pytest.fixture
async def handler() -> AsyncIterator[Handler]:
    """An exception that asyncio would only log fails the test."""
    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    yield Handler()
    assert reported == []


@pytest.fixture
async def server(handler: Handler) -> AsyncIterator[RemotingServer]:
    async with serving(handler) as (server, _):
        yield server


@pytest.fixture
async def strict_server(handler: Handler) -> AsyncIterator[RemotingServer]:
    async with serving(handler, **STRICT) as (server, _):
        yield server


async def read_to_end(reader: asyncio.StreamReader) -> bytes:
    """What the server wrote before it closed; a reset is an end as well: it closed with our bytes unread."""
    try:
        async with asyncio.timeout(10):
            return await reader.read()
    except ConnectionResetError:
        return b""


async def close(*writers: asyncio.StreamWriter) -> None:
    for writer in writers:
        writer.transport.abort()
    await asyncio.sleep(0)


async def test_what_is_no_frame_closes_that_connection_and_no_other(server: RemotingServer, handler: Handler) -> None:
    client = RemotingClient()
    await client.invoke(server.address, request(ECHO), timeout_seconds=5)
    for name, data in NOT_FRAMES.items():
        reader, writer = await asyncio.open_connection(server.host, server.port)
        writer.write(data)
        assert await read_to_end(reader) == b"", name
        assert (await client.invoke(server.address, request(ECHO, body=b"x"), timeout_seconds=5)).body == b"x", name
        await close(writer)
    assert len(handler.opened) == 1 + len(NOT_FRAMES), "the client has kept its connection"
    await client.close()


async def test_good_requests_before_a_bad_frame_are_answered(server: RemotingServer) -> None:
    reader, writer = await asyncio.open_connection(server.host, server.port)
    writer.write(encode(request(ECHO, body=b"a")) + struct.pack(">i", -1))
    [answer] = FrameDecoder().feed(await read_to_end(reader))
    assert answer.body == b"a"
    await close(writer)


async def test_a_frame_that_trickles_is_cut_off(strict_server: RemotingServer) -> None:
    """Bytes go on coming all the time, so it is not idle; but it does not become a frame."""
    reader, writer = await asyncio.open_connection(strict_server.host, strict_server.port)
    ended = asyncio.create_task(read_to_end(reader))
    writer.write(struct.pack(">i", 900))
    while not ended.done():
        if not writer.is_closing():
            writer.write(b"\0")
        await asyncio.wait([ended], timeout=0.02)
    assert ended.result() == b""
    await close(writer)


async def test_a_busy_connection_whose_reads_never_end_with_a_frame_is_kept(strict_server: RemotingServer) -> None:
    """Each read ends inside a frame, for longer than a single frame may take."""
    reader, writer = await asyncio.open_connection(strict_server.host, strict_server.port)
    frame = encode(request(ECHO, body=b"x" * 100))
    writer.write(frame[:10])
    deadline = asyncio.get_running_loop().time() + 0.6
    rounds = 0
    while asyncio.get_running_loop().time() < deadline:
        writer.write(frame[10:] + frame[:10])
        rounds += 1
        await asyncio.sleep(0.01)
    writer.write(frame[10:])
    answers: list[RemotingCommand] = []
    decoder = FrameDecoder()
    async with asyncio.timeout(10):
        while len(answers) < rounds + 1:
            data = await reader.read(65536)
            assert data, f"closed after {len(answers)} answers of {rounds + 1}"
            answers += decoder.feed(data)
    await close(writer)


async def test_an_idle_connection_is_closed(handler: Handler) -> None:
    async with serving(handler, idle_timeout_seconds=0.1) as (server, _):
        reader, writer = await asyncio.open_connection(server.host, server.port)
        assert await read_to_end(reader) == b""
        await close(writer)


async def test_a_known_peer_may_send_more(strict_server: RemotingServer, handler: Handler) -> None:
    _, writer = await asyncio.open_connection(strict_server.host, strict_server.port)
    await eventually(lambda: handler.open_count == 1)
    handler.opened[0].peer_is_known()
    writer.write(encode(request(ECHO, body=bytes(50_000))))
    await eventually(lambda: len(handler.seen) == 1)
    await close(writer)


async def test_one_host_cannot_take_all_connections(strict_server: RemotingServer, handler: Handler) -> None:
    taken = [await asyncio.open_connection(strict_server.host, strict_server.port) for _ in range(2)]
    await eventually(lambda: handler.open_count == 2)
    reader, writer = await asyncio.open_connection(strict_server.host, strict_server.port)
    assert await read_to_end(reader) == b""
    elsewhere = RemotingClient(local_host="127.0.0.2")
    address = strict_server.address
    assert (await elsewhere.invoke(address, request(ECHO), timeout_seconds=5)).code == 0
    await close(taken[0][1])
    await eventually(lambda: handler.open_count == 2)
    again, again_writer = await asyncio.open_connection(strict_server.host, strict_server.port)
    again_writer.write(encode(request(ECHO)))
    assert await again.read(1)
    await elsewhere.close()
    await close(writer, taken[1][1], again_writer)


async def test_all_hosts_together_cannot_take_more_than_the_server_keeps(
    strict_server: RemotingServer, handler: Handler
) -> None:
    clients = [RemotingClient(local_host=f"127.0.0.{2 + number}") for number in range(4)]
    address = strict_server.address
    for client in clients:
        await client.invoke(address, request(ECHO), timeout_seconds=5)
    reader, writer = await asyncio.open_connection(strict_server.host, strict_server.port)
    assert await read_to_end(reader) == b""
    for client in clients:
        await client.close()
    await close(writer)


async def test_ten_thousand_requests_of_one_opaque_get_ten_thousand_answers(server: RemotingServer) -> None:
    reader, writer = await asyncio.open_connection(server.host, server.port)
    frame = encode(request(ECHO).with_opaque(7))
    writer.write(frame * 10_000)
    decoder, answers = FrameDecoder(), 0
    async with asyncio.timeout(30):
        while answers < 10_000:
            commands = decoder.feed(await reader.read(65536))
            assert all(command.opaque == 7 for command in commands)
            answers += len(commands)
    await close(writer)


@pytest.mark.usefixtures("handler")
async def test_answers_without_a_request_are_dropped() -> None:
    """A server that answers opaques it was not asked for, then the right one, then the same one again."""

    async def answer_wildly(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        length = await reader.readexactly(4)
        [asked] = FrameDecoder().feed(length + await reader.readexactly(int.from_bytes(length, "big")))
        wild = [asked.answer(0).with_opaque(opaque) for opaque in (-1, asked.opaque + 1, 2**31 - 1)]
        for answer in [*wild, asked.answer(0, body=b"right"), asked.answer(0, body=b"again")]:
            writer.write(encode(answer))
        await reader.read()
        writer.close()

    listener = await asyncio.start_server(answer_wildly, HOST, 0)
    client = RemotingClient()
    address = f"{HOST}:{listener.sockets[0].getsockname()[1]}"
    answer = await client.invoke(address, request(ECHO), timeout_seconds=5)
    assert answer.body == b"right"
    with pytest.raises(RemotingTimeoutError):
        await client.invoke(address, request(ECHO), timeout_seconds=0.05)
    await client.close()
    listener.close()
    await listener.wait_closed()


async def test_tiny_frames_are_taken_a_turn_at_a_time(handler: Handler) -> None:
    connection, transport = connected(handler)
    connection.data_received(encode(request(ECHO)) * 200)
    for handled in (TURN, 2 * TURN, 3 * TURN):
        assert len(handler.seen) == handled
        assert not transport.reading
        await asyncio.sleep(0)
    assert len(handler.seen) == 200
    assert transport.reading
    assert len(transport.answers()) == 200
    connection.connection_lost(None)


async def test_requests_beyond_the_allowed_wait_unread(handler: Handler) -> None:
    connection, transport = connected(handler, max_in_flight=2)
    connection.data_received(b"".join(encode(request(LATER).with_opaque(n)) for n in range(10)))
    await asyncio.sleep(0)
    assert len(handler.seen) == 2
    assert not transport.reading
    handler.gates[b""].set()
    await eventually(lambda: len(handler.seen) == 10)
    await connection.wait_answered()
    await eventually(lambda: transport.reading)
    assert sorted(opaque for opaque, _ in transport.answers()) == list(range(10))
    connection.connection_lost(None)


async def test_a_peer_that_does_not_read_is_not_read(handler: Handler) -> None:
    connection, transport = connected(handler)
    connection.pause_writing()
    assert not transport.reading
    connection.data_received(encode(request(ECHO)) * 1000)
    await asyncio.sleep(0)
    assert handler.seen == []
    connection.resume_writing()
    await eventually(lambda: len(handler.seen) == 1000)
    assert transport.reading
    connection.connection_lost(None)


async def test_a_peer_that_does_not_read_cannot_make_answers_pile_up(handler: Handler) -> None:
    """The transport says stop as soon as the first 64 KiB of answers are written; the rest of the turn is not handled."""
    connection, transport = connected(handler)
    write = transport.write

    def write_and_stop(data: bytes | bytearray | memoryview[Any]) -> None:
        write(data)
        connection.pause_writing()

    transport.write = write_and_stop  # type: ignore[method-assign]
    connection.data_received(encode(request(ECHO, body=bytes(10_000))) * 200)
    assert len(handler.seen) == 7
    connection.connection_lost(None)


async def test_requests_go_no_further_when_the_peer_is_gone(handler: Handler) -> None:
    connection, transport = connected(handler)
    connection.data_received(encode(request(ECHO)) * 1000)
    transport.close()
    connection.connection_lost(None)
    await asyncio.sleep(0)
    assert len(handler.seen) == TURN


async def test_a_request_that_cannot_be_written_ends_at_its_deadline(handler: Handler) -> None:
    connection, _ = connected(handler)
    connection.pause_writing()
    with pytest.raises(RemotingTimeoutError):
        await connection.send_oneway(request(ECHO, oneway=True), timeout_seconds=0.01)
    connection.connection_lost(None)


HALF = 64 * 1024
PER_HOST = 10 * HALF


async def half_frame(port: int, host: str) -> asyncio.StreamWriter:
    _, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(host, 0))
    writer.write((2 * HALF).to_bytes(4, "big") + bytes(HALF - 4))
    with contextlib.suppress(ConnectionError):
        await writer.drain()
    return writer


@pytest.mark.parametrize(
    ("hosts", "frames_of_each", "most_bytes"),
    [(["127.0.0.2"], 30, PER_HOST), ([f"127.0.0.{number}" for number in range(2, 8)], 8, 2 * PER_HOST)],
    ids=["one host", "many hosts"],
)
async def test_half_frames_stay_within_the_share_of_a_host_and_within_the_whole(
    hosts: list[str], frames_of_each: int, most_bytes: int
) -> None:
    async with serving(max_unfinished_bytes=2 * PER_HOST, max_unfinished_bytes_per_host=PER_HOST) as (server, _):
        budget = server._settings.budget
        assert budget is not None
        peers = [await half_frame(server.port, host) for host in hosts for _ in range(frames_of_each)]
        await eventually(lambda: 0 < len(server.connections) <= most_bytes / HALF)
        assert 0 < budget.held_bytes <= most_bytes
        if len(hosts) == 1:
            client = RemotingClient()
            answer = await client.invoke(server.address, request(999), timeout_seconds=5.0)  # from another host
            assert answer.code == 3
            await client.close()
        for peer in peers:
            peer.close()
        await eventually(lambda: budget.held_bytes == 0)


def test_what_is_given_back_can_be_held_again() -> None:
    budget = ByteBudget(max_bytes=10, max_bytes_per_host=6)
    assert budget.change("a", 6) is None
    assert budget.change("a", 1) == "7 bytes of unfinished frames of one host, expected at most 6"
    assert budget.change("a", -1) is None
    assert budget.change("b", 5) == "11 bytes of unfinished frames of all hosts, expected at most 10"
    budget.change("b", -5)
    budget.change("a", -6)
    assert budget.change("b", 6) is None


def test_a_window_has_its_lines_and_the_next_one_says_how_many_were_left_out(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_seconds = 1000.0
    monkeypatch.setattr("rocketmq_remoting.limits.time.monotonic", lambda: now_seconds)
    log = PeerLog(logging.getLogger("tests.peer_log"))
    for number in range(LINES_PER_WINDOW + 7):
        log.warning("peer %d", number)
    assert len(caplog.records) == LINES_PER_WINDOW
    now_seconds += WINDOW_SECONDS
    log.warning("peer again")
    told = [record.getMessage() for record in caplog.records[LINES_PER_WINDOW:]]
    assert told == ["7 more warnings about peers were left out", "peer again"]


def test_a_peers_words_begin_no_line_of_their_own(caplog: pytest.LogCaptureFixture) -> None:
    log = PeerLog(logging.getLogger("tests.peer_log"))
    log.warning("%s: %r said %s", "peer", b"x", "name\n2026-11-23 ERROR made up\x1b[31m Ünï\u202e")
    (record,) = caplog.records
    assert record.getMessage() == "peer: b'x' said name\\n2026-11-23 ERROR made up\\x1b[31m Ünï\\u202e"


LOOPS = pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])


@pytest.mark.filterwarnings("error::ResourceWarning")
@pytest.mark.parametrize("turns", range(6))
@LOOPS
def test_a_connection_of_the_very_last_turn_is_closed(
    new_loop: Callable[[], asyncio.AbstractEventLoop], turns: int
) -> None:
    handler = Handler()

    async def accept_and_stop() -> socket.socket:
        server = RemotingServer(handler)
        await server.start("127.0.0.1", 0)
        peer = socket.create_connection(("127.0.0.1", server.port), timeout=5)  # the kernel accepts it without the loop
        for _ in range(turns):
            await asyncio.sleep(0)
        await server.stop(grace_seconds=1)
        return peer

    with asyncio.Runner(loop_factory=new_loop) as runner:
        peer = runner.run(accept_and_stop())
    with peer:
        peer.settimeout(1)
        with contextlib.suppress(ConnectionResetError):  # as good an end as the other
            assert peer.recv(1) == b""
    assert handler.open_count == 0
