"""What a peer must not be able to do: stop the loop, fill the memory, hold connections (-F34)."""

from __future__ import annotations

import asyncio
import struct
from typing import TYPE_CHECKING, Any

import pytest

from rocketmq_remoting.client import RemotingClient
from rocketmq_remoting.codec import FrameDecoder, FrameLimits, encode
from rocketmq_remoting.command import RemotingCommand, request
from rocketmq_remoting.connection import RemotingConnection
from rocketmq_remoting.errors import RemotingTimeoutError
from rocketmq_remoting.limits import ConnectionSettings
from rocketmq_remoting.server import RemotingServer
from tests.remoting.test_codec import NOT_FRAMES

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

HOST = "127.0.0.1"
NOW, LATER = 1, 2
TURN = 64


class Handler:
    def __init__(self) -> None:
        self.seen: list[RemotingCommand] = []
        self.gate = asyncio.Event()
        self.open: set[RemotingConnection] = set()

    def handle(
        self, request: RemotingCommand, connection: RemotingConnection
    ) -> RemotingCommand | Awaitable[RemotingCommand]:
        self.seen.append(request)
        return self._later(request) if request.code == LATER else request.answer(0, body=request.body)

    async def _later(self, request: RemotingCommand) -> RemotingCommand:
        await self.gate.wait()
        return request.answer(0)

    def connection_opened(self, connection: RemotingConnection) -> None:
        self.open.add(connection)

    def connection_closed(self, connection: RemotingConnection) -> None:
        self.open.remove(connection)


class FakeTransport(asyncio.Transport):
    """Remembers what was asked of it."""

    def __init__(self) -> None:
        super().__init__({"peername": ("192.0.2.1", 40000)})
        self.written: list[bytes] = []
        self.reading = True
        self.closing = False

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        self.written.append(bytes(data))

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        self.closing = True

    abort = close

    def answers(self) -> list[RemotingCommand]:
        return FrameDecoder().feed(b"".join(self.written))


@pytest.fixture(autouse=True)
async def _nothing_reaches_the_loop() -> AsyncIterator[None]:
    """An exception that asyncio would only log fails the test."""
    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    yield
    assert reported == []


@pytest.fixture
def handler() -> Handler:
    return Handler()


async def serve(handler: Handler, **settings: Any) -> AsyncIterator[RemotingServer]:
    server = RemotingServer(handler, **settings)
    await server.start(HOST, 0)
    yield server
    await server.stop(grace_seconds=1)
    assert not handler.open


@pytest.fixture
async def server(handler: Handler) -> AsyncIterator[RemotingServer]:
    async for server in serve(handler):
        yield server


@pytest.fixture
async def strict_server(handler: Handler) -> AsyncIterator[RemotingServer]:
    limits = FrameLimits(max_frame_bytes=100_000, max_frame_bytes_until_known=1000)
    async for server in serve(
        handler, limits=limits, frame_timeout_seconds=0.2, max_connections=4, max_connections_per_host=2
    ):
        yield server


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - what is waited for happens in the code under test
            await asyncio.sleep(0.001)


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


@pytest.mark.parametrize("data", NOT_FRAMES.values(), ids=NOT_FRAMES.keys())
async def test_what_is_no_frame_closes_that_connection_and_no_other(server: RemotingServer, data: bytes) -> None:
    client = RemotingClient()
    address = f"{server.host}:{server.port}"
    await client.invoke(address, request(NOW), timeout_seconds=5)
    reader, writer = await asyncio.open_connection(server.host, server.port)
    writer.write(data)
    assert await read_to_end(reader) == b""
    assert (await client.invoke(address, request(NOW, body=b"x"), timeout_seconds=5)).body == b"x"
    await client.close()
    await close(writer)


async def test_good_requests_before_a_bad_frame_are_answered(server: RemotingServer) -> None:
    reader, writer = await asyncio.open_connection(server.host, server.port)
    writer.write(encode(request(NOW, body=b"a")) + struct.pack(">i", -1))
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
    frame = encode(request(NOW, body=b"x" * 100))
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
    async for server in serve(handler, idle_timeout_seconds=0.1):
        reader, writer = await asyncio.open_connection(server.host, server.port)
        assert await read_to_end(reader) == b""
        await close(writer)


async def test_a_length_beyond_the_limit_is_refused_before_its_bytes_come(strict_server: RemotingServer) -> None:
    reader, writer = await asyncio.open_connection(strict_server.host, strict_server.port)
    writer.write(struct.pack(">i", 1001))
    assert await read_to_end(reader) == b""
    await close(writer)


async def test_a_known_peer_may_send_more(strict_server: RemotingServer, handler: Handler) -> None:
    _, writer = await asyncio.open_connection(strict_server.host, strict_server.port)
    await until(lambda: len(handler.open) == 1)
    next(iter(handler.open)).peer_is_known()
    writer.write(encode(request(NOW, body=bytes(50_000))))
    await until(lambda: len(handler.seen) == 1)
    await close(writer)


async def test_one_host_cannot_take_all_connections(strict_server: RemotingServer, handler: Handler) -> None:
    taken = [await asyncio.open_connection(strict_server.host, strict_server.port) for _ in range(2)]
    await until(lambda: len(handler.open) == 2)
    reader, writer = await asyncio.open_connection(strict_server.host, strict_server.port)
    assert await read_to_end(reader) == b""
    elsewhere = RemotingClient(local_host="127.0.0.2")
    address = f"{strict_server.host}:{strict_server.port}"
    assert (await elsewhere.invoke(address, request(NOW), timeout_seconds=5)).code == 0
    await close(taken[0][1])
    await until(lambda: len(handler.open) == 2)
    again, again_writer = await asyncio.open_connection(strict_server.host, strict_server.port)
    again_writer.write(encode(request(NOW)))
    assert await again.read(1)
    await elsewhere.close()
    await close(writer, taken[1][1], again_writer)


async def test_all_hosts_together_cannot_take_more_than_the_server_keeps(
    strict_server: RemotingServer, handler: Handler
) -> None:
    clients = [RemotingClient(local_host=f"127.0.0.{2 + number}") for number in range(4)]
    address = f"{strict_server.host}:{strict_server.port}"
    for client in clients:
        await client.invoke(address, request(NOW), timeout_seconds=5)
    reader, writer = await asyncio.open_connection(strict_server.host, strict_server.port)
    assert await read_to_end(reader) == b""
    for client in clients:
        await client.close()
    await close(writer)


async def test_ten_thousand_requests_of_one_opaque_get_ten_thousand_answers(server: RemotingServer) -> None:
    reader, writer = await asyncio.open_connection(server.host, server.port)
    frame = encode(request(NOW).with_opaque(7))
    writer.write(frame * 10_000)
    decoder, answers = FrameDecoder(), 0
    async with asyncio.timeout(30):
        while answers < 10_000:
            commands = decoder.feed(await reader.read(65536))
            assert all(command.opaque == 7 for command in commands)
            answers += len(commands)
    await close(writer)


async def test_answers_nobody_asked_for_are_dropped() -> None:
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
    answer = await client.invoke(address, request(NOW), timeout_seconds=5)
    assert answer.body == b"right"
    with pytest.raises(RemotingTimeoutError):
        await client.invoke(address, request(NOW), timeout_seconds=0.05)
    await client.close()
    listener.close()
    await listener.wait_closed()


def connected(handler: Handler, **settings: Any) -> tuple[RemotingConnection, FakeTransport]:
    connection = RemotingConnection(handler=handler, settings=ConnectionSettings(**settings))
    transport = FakeTransport()
    connection.connection_made(transport)
    return connection, transport


async def test_tiny_frames_are_taken_a_turn_at_a_time(handler: Handler) -> None:
    connection, transport = connected(handler)
    connection.data_received(encode(request(NOW)) * 200)
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
    handler.gate.set()
    await until(lambda: len(handler.seen) == 10)
    await connection.wait_answered()
    await until(lambda: transport.reading)
    assert sorted(answer.opaque for answer in transport.answers()) == list(range(10))
    connection.connection_lost(None)


async def test_a_peer_that_does_not_read_is_not_read(handler: Handler) -> None:
    connection, transport = connected(handler)
    connection.pause_writing()
    assert not transport.reading
    connection.data_received(encode(request(NOW)) * 1000)
    await asyncio.sleep(0)
    assert handler.seen == []
    connection.resume_writing()
    await until(lambda: len(handler.seen) == 1000)
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
    connection.data_received(encode(request(NOW, body=bytes(10_000))) * 200)
    assert len(handler.seen) == 7
    connection.connection_lost(None)


async def test_requests_go_no_further_when_the_peer_is_gone(handler: Handler) -> None:
    connection, transport = connected(handler)
    connection.data_received(encode(request(NOW)) * 1000)
    transport.close()
    connection.connection_lost(None)
    await asyncio.sleep(0)
    assert len(handler.seen) == TURN


async def test_a_request_that_cannot_be_written_ends_at_its_deadline(handler: Handler) -> None:
    connection, _ = connected(handler)
    connection.pause_writing()
    with pytest.raises(RemotingTimeoutError):
        await connection.send_oneway(request(NOW, oneway=True), timeout_seconds=0.01)
    connection.connection_lost(None)
