"""Server and client on a real socket of the loopback interface; answers that are given later without a task."""

from __future__ import annotations

import asyncio
import socket
from functools import partial
from typing import TYPE_CHECKING

import pytest

from rocketmq_remoting.client import RemotingClient
from rocketmq_remoting.codec import FrameDecoder, encode
from rocketmq_remoting.command import RemotingCommand, SerializeType, request
from rocketmq_remoting.errors import RemotingConnectError, RemotingConnectionLostError, RemotingTimeoutError
from rocketmq_remoting.handler import LaterAnswer
from rocketmq_remoting.server import RemotingServer
from tests.support.quiet_handler import QuietHandler
from tests.support.remoting_rig import ECHO, FAIL, FAIL_LATER, HOST, LATER, SILENT, Handler, connected, serving
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from rocketmq_remoting.connection import RemotingConnection


@pytest.fixture
def handler() -> Handler:
    return Handler()


@pytest.fixture
async def server(handler: Handler) -> AsyncIterator[RemotingServer]:
    async with serving(handler) as (server, _):
        yield server


@pytest.fixture
async def client() -> AsyncIterator[RemotingClient]:
    client = RemotingClient()
    yield client
    await client.close()


@pytest.mark.parametrize("serialize_type", list(SerializeType))
async def test_a_request_is_answered_in_its_own_encoding(
    server: RemotingServer, client: RemotingClient, serialize_type: SerializeType
) -> None:
    asked = request(ECHO, ext_fields={"brokerName": "b"}, body=b"x", serialize_type=serialize_type)
    answer = await client.invoke(server.address, asked, timeout_seconds=3)
    assert (answer.code, answer.body, answer.ext_fields) == (0, b"x", {"brokerName": "b"})
    assert answer.serialize_type == serialize_type
    assert answer.is_response


async def test_answers_overtake_each_other(server: RemotingServer, client: RemotingClient, handler: Handler) -> None:
    order: list[bytes] = []

    async def ask(name: bytes) -> None:
        answer = await client.invoke(server.address, request(LATER, body=name), timeout_seconds=5)
        assert answer.body == name
        order.append(name)

    tasks = [asyncio.create_task(ask(name)) for name in (b"a", b"b", b"c")]
    await eventually(lambda: len(handler.gates) == 3)
    assert len(server.connections) == 1
    echoed = await client.invoke(server.address, request(ECHO, body=b"meanwhile"), timeout_seconds=5)
    assert echoed.body == b"meanwhile"
    for name in (b"c", b"a", b"b"):
        handler.gates[name].set()
        await eventually(partial(order.__contains__, name))
    await asyncio.gather(*tasks)
    assert order == [b"c", b"a", b"b"]


async def test_a_failing_handler_is_answered_with_system_error(server: RemotingServer, client: RemotingClient) -> None:
    at_once = await client.invoke(server.address, request(FAIL), timeout_seconds=3)
    later = await client.invoke(server.address, request(FAIL_LATER), timeout_seconds=3)
    assert (at_once.code, at_once.remark) == (1, "ValueError: broken at once")
    assert (later.code, later.remark) == (1, "KeyError: 'broken later'")


async def test_an_unknown_code_gets_javas_remark(server: RemotingServer, client: RemotingClient) -> None:
    answer = await client.invoke(server.address, request(9999), timeout_seconds=3)
    assert (answer.code, answer.remark) == (3, " request type 9999 not supported")


async def test_one_way_requests_are_never_answered(server: RemotingServer, handler: Handler) -> None:
    reader, writer = await asyncio.open_connection(server.host, server.port)
    for code in (ECHO, FAIL, FAIL_LATER, 9999):
        writer.write(encode(request(code, oneway=True)))
    writer.write(encode(request(ECHO, body=b"last").with_opaque(77)))
    [answer] = FrameDecoder().feed(await read_frame(reader))
    assert (answer.opaque, answer.body) == (77, b"last")
    await eventually(lambda: not handler.opened[0].in_flight)
    assert len(handler.seen) == 5
    writer.close()
    assert await reader.read() == b""


async def test_the_client_sends_one_way(server: RemotingServer, client: RemotingClient, handler: Handler) -> None:
    await client.invoke_oneway(server.address, request(ECHO, oneway=True, body=b"x"), timeout_seconds=3)
    await eventually(lambda: len(handler.seen) == 1)
    assert handler.seen[0].is_oneway


async def test_a_late_answer_is_dropped_and_the_connection_kept(
    server: RemotingServer, client: RemotingClient, handler: Handler
) -> None:
    await client.invoke(server.address, request(ECHO), timeout_seconds=5)  # connecting must not eat up the deadline
    with pytest.raises(RemotingTimeoutError, match="code 2"):
        await client.invoke(server.address, request(LATER, body=b"a"), timeout_seconds=0.05)
    assert client.is_connected(server.address)
    handler.gates[b"a"].set()
    answer = await client.invoke(server.address, request(ECHO, body=b"b"), timeout_seconds=5)
    assert answer.body == b"b"
    assert len(handler.opened) == 1


async def test_a_silent_path_is_given_up_at_the_second_timeout(
    server: RemotingServer, client: RemotingClient, handler: Handler
) -> None:
    await client.invoke(server.address, request(ECHO), timeout_seconds=5)  # connecting must not eat up the deadline
    for expected in (True, False):
        with pytest.raises(RemotingTimeoutError):
            await client.invoke(server.address, request(SILENT), timeout_seconds=0.05)
        assert client.is_connected(server.address) is expected
    assert (await client.invoke(server.address, request(ECHO), timeout_seconds=5)).code == 0
    assert len(handler.opened) == 2


async def test_many_timeouts_at_once_count_as_one(
    server: RemotingServer, client: RemotingClient, handler: Handler
) -> None:
    await client.invoke(server.address, request(ECHO), timeout_seconds=5)  # connecting must not eat up the deadline
    calls = [client.invoke(server.address, request(SILENT), timeout_seconds=0.1) for _ in range(20)]
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert all(isinstance(result, RemotingTimeoutError) for result in results)
    assert client.is_connected(server.address)


async def test_the_deadline_covers_connecting(client: RemotingClient) -> None:
    """A listener whose queue is full answers no SYN."""
    with socket.socket() as listener:
        listener.bind((HOST, 0))
        listener.listen(0)
        port = listener.getsockname()[1]
        fillers = [socket.socket() for _ in range(4)]
        for filler in fillers:
            filler.settimeout(0)
            filler.connect_ex((HOST, port))
        with pytest.raises(RemotingConnectError) as raised:
            await client.invoke(f"{HOST}:{port}", request(ECHO), timeout_seconds=0.1)
        assert not raised.value.refused
        for filler in fillers:
            filler.close()


@pytest.mark.parametrize("host", [HOST, "localhost"])
async def test_a_refused_connection_is_distinguished_from_others(client: RemotingClient, host: str) -> None:
    with socket.socket() as reserved:
        reserved.bind((HOST, 0))
        with pytest.raises(RemotingConnectError) as raised:
            await client.invoke(f"{host}:{reserved.getsockname()[1]}", request(ECHO), timeout_seconds=3)
    assert raised.value.refused


async def test_a_bad_address_is_a_failed_call(client: RemotingClient) -> None:
    bad = ("", "x", "x:", ":1", "x:0", "x:65536", "x:-1", "x:1e3", "x:" + "9" * 5000, "\0:1", "a..b:1", "[::1]")
    calls = [client.invoke(each, request(ECHO), timeout_seconds=3) for each in bad]
    for each, result in zip(bad, await asyncio.gather(*calls, return_exceptions=True), strict=True):
        assert isinstance(result, RemotingConnectError), (each, result)
        assert not result.refused, each


async def test_the_next_call_reconnects(client: RemotingClient, handler: Handler) -> None:
    first = RemotingServer(handler)
    await first.start(HOST, 0)
    where = first.address
    assert (await client.invoke(where, request(ECHO), timeout_seconds=3)).code == 0
    waiting = asyncio.create_task(client.invoke(where, request(LATER), timeout_seconds=10))
    await eventually(lambda: len(handler.gates) == 1)
    await first.stop(grace_seconds=0)
    with pytest.raises(RemotingConnectionLostError):
        await waiting
    assert not client.is_connected(where)
    with pytest.raises(RemotingConnectError):
        await client.invoke(where, request(ECHO), timeout_seconds=3)
    second = RemotingServer(handler)
    await second.start(HOST, first.port)
    assert (await client.invoke(where, request(ECHO), timeout_seconds=3)).code == 0
    await client.close()
    await second.stop(grace_seconds=1)
    assert len(handler.opened) == len(handler.closed) == 2


async def test_callers_share_the_connection_being_made(
    server: RemotingServer, client: RemotingClient, handler: Handler
) -> None:
    calls = [client.invoke(server.address, request(ECHO, body=b"%d" % n), timeout_seconds=5) for n in range(50)]
    answers = await asyncio.gather(*calls)
    assert [answer.body for answer in answers] == [b"%d" % n for n in range(50)]
    assert len({answer.opaque for answer in answers}) == 50
    assert len(handler.opened) == 1


async def test_the_client_comes_from_the_address_it_was_given(server: RemotingServer, handler: Handler) -> None:
    client = RemotingClient(local_host="127.0.0.7")
    await client.invoke(server.address, request(ECHO), timeout_seconds=3)
    assert handler.opened[0].peer_host == "127.0.0.7"
    await client.close()


async def test_both_sides_hear_of_the_end(handler: Handler) -> None:
    ended: list[str] = []
    server = RemotingServer(handler)
    await server.start(HOST, 0)
    client = RemotingClient(on_connection_closed=ended.append)
    await client.invoke(server.address, request(ECHO), timeout_seconds=3)
    handler.opened[0].close()
    await eventually(lambda: len(ended) == 1)
    assert ended == [server.address]
    assert handler.closed == handler.opened
    await client.close()
    await server.stop()


async def test_the_server_may_ask_back(server: RemotingServer, handler: Handler) -> None:
    asked_back = Handler()
    client = RemotingClient(request_handler=asked_back)
    await client.invoke(server.address, request(ECHO), timeout_seconds=3)
    answer = await handler.opened[0].invoke(request(ECHO, body=b"to you"), timeout_seconds=3)
    assert answer.body == b"to you"
    assert [command.code for command in asked_back.seen] == [ECHO]
    await client.close()


async def test_a_client_without_handler_says_that_it_supports_nothing(
    server: RemotingServer, client: RemotingClient, handler: Handler
) -> None:
    await client.invoke(server.address, request(ECHO), timeout_seconds=3)
    answer = await handler.opened[0].invoke(request(1008), timeout_seconds=3)
    assert (answer.code, answer.remark) == (3, " request type 1008 not supported")


async def test_stopping_answers_what_is_being_handled(client: RemotingClient, handler: Handler) -> None:
    server = RemotingServer(handler)
    await server.start(HOST, 0)
    asked = asyncio.create_task(client.invoke(server.address, request(LATER, body=b"a"), timeout_seconds=10))
    await eventually(lambda: len(handler.gates) == 1)
    stopping = asyncio.create_task(server.stop(grace_seconds=10))
    await asyncio.sleep(0)
    handler.gates[b"a"].set()
    assert (await asked).body == b"a"
    await stopping
    assert handler.closed == handler.opened


async def test_stopping_does_not_wait_for_ever(client: RemotingClient, handler: Handler) -> None:
    server = RemotingServer(handler)
    await server.start(HOST, 0)
    asked = asyncio.create_task(client.invoke(server.address, request(LATER), timeout_seconds=10))
    await eventually(lambda: len(handler.gates) == 1)
    await server.stop(grace_seconds=0.01)
    with pytest.raises(RemotingConnectionLostError):
        await asked
    assert not handler.opened[0].in_flight


async def test_a_handler_goes_on_when_its_peer_is_gone(server: RemotingServer, handler: Handler) -> None:
    """A decision half made is worse than an answer that is not read."""
    _, writer = await asyncio.open_connection(server.host, server.port)
    writer.write(encode(request(LATER, body=b"a")))
    await eventually(lambda: len(handler.gates) == 1)
    writer.transport.abort()
    await eventually(lambda: len(handler.closed) == 1)
    assert handler.opened[0].in_flight == 1
    handler.gates[b"a"].set()
    await eventually(lambda: handler.opened[0].in_flight == 0)


async def test_an_answer_that_does_not_fit_becomes_a_system_error(client: RemotingClient) -> None:
    class Unfit(Handler):
        def handle(self, request: RemotingCommand, connection: RemotingConnection) -> RemotingCommand:
            return request.answer(0, body=bytes(17 * 1024 * 1024))

    server = RemotingServer(Unfit())
    await server.start(HOST, 0)
    answer = await client.invoke(server.address, request(ECHO), timeout_seconds=5)
    assert answer.code == 1
    assert answer.remark is not None
    assert "expected at most 16777216" in answer.remark
    await server.stop()


async def test_a_closed_client_refuses(server: RemotingServer, client: RemotingClient) -> None:
    await client.close()
    with pytest.raises(RemotingConnectError, match="the client is closed"):
        await client.invoke(server.address, request(ECHO), timeout_seconds=3)


async def read_frame(reader: asyncio.StreamReader) -> bytes:
    length = await reader.readexactly(4)
    return length + await reader.readexactly(int.from_bytes(length, "big"))


class LaterHandler(QuietHandler):
    """Answers when the test says so, or at once with ``at_once``."""

    def __init__(self) -> None:
        self.waiting: list[tuple[RemotingCommand, LaterAnswer]] = []
        self.at_once = False

    def handle(self, request: RemotingCommand, connection: RemotingConnection) -> LaterAnswer:
        later = LaterAnswer()
        self.waiting.append((request, later))
        if self.at_once:
            later.give(request.answer(0))
        return later

    def give(self, *positions: int) -> None:
        for position in positions:
            asked, later = self.waiting[position]
            later.give(asked.answer(position))


@pytest.fixture
def later() -> LaterHandler:
    return LaterHandler()


def ask(connection: RemotingConnection, *opaques: int) -> None:
    connection.data_received(b"".join(encode(request(1).with_opaque(opaque)) for opaque in opaques))


async def test_answers_of_one_turn_leave_in_one_write_in_the_order_they_are_given(later: LaterHandler) -> None:
    connection, transport = connected(later)
    ask(connection, 10, 11, 12)
    assert connection.in_flight == 3
    assert transport.writes == []
    later.give(2, 0)
    assert connection.in_flight == 1
    await asyncio.sleep(0)
    assert len(transport.writes) == 1
    later.give(1)
    await asyncio.sleep(0)
    assert transport.answers() == [(12, 2), (10, 0), (11, 1)]
    assert len(transport.writes) == 2
    connection.connection_lost(None)


async def test_an_answer_that_was_given_before_it_was_returned_leaves_with_the_others(later: LaterHandler) -> None:
    connection, transport = connected(later)
    later.at_once = True
    ask(connection, 1, 2)
    assert transport.answers() == [(1, 0), (2, 0)]
    assert len(transport.writes) == 1
    assert not connection.in_flight
    connection.connection_lost(None)


async def test_only_the_first_answer_counts(later: LaterHandler) -> None:
    connection, transport = connected(later)
    ask(connection, 5)
    later.give(0)
    later.waiting[0][1].give(later.waiting[0][0].answer(99))
    await asyncio.sleep(0)
    assert transport.answers() == [(5, 0)]
    connection.connection_lost(None)


async def test_what_was_given_is_sent_before_the_connection_closes(later: LaterHandler) -> None:
    connection, transport = connected(later)
    ask(connection, 1, 2)
    later.give(0, 1)
    connection.close()
    assert transport.closing
    assert transport.answers() == [(1, 0), (2, 1)]
    connection.connection_lost(None)
    await asyncio.sleep(0)


async def test_waiting_for_all_answers_includes_those_given_later(later: LaterHandler) -> None:
    connection, _ = connected(later)
    ask(connection, 1, 2)
    waiting = asyncio.create_task(connection.wait_answered())
    await asyncio.sleep(0)
    later.give(0)
    for _ in range(5):
        await asyncio.sleep(0)
    assert not waiting.done()
    later.give(1)
    await asyncio.wait_for(waiting, 5)
    connection.connection_lost(None)


async def test_given_up_answers_are_not_waited_for_and_not_sent(later: LaterHandler) -> None:
    connection, transport = connected(later)
    ask(connection, 1)
    waiting = asyncio.create_task(connection.wait_answered())
    await asyncio.sleep(0)
    connection.cancel_in_flight()
    await asyncio.wait_for(waiting, 5)
    later.give(0)
    await asyncio.sleep(0)
    assert transport.writes == []
    connection.connection_lost(None)


async def test_answers_given_later_count_as_being_handled(later: LaterHandler) -> None:
    connection, transport = connected(later, max_in_flight=2)
    ask(connection, *range(5))
    assert len(later.waiting) == 2
    later.give(0)
    assert len(later.waiting) == 2, "giving an answer must not enter another handler"
    await asyncio.sleep(0)
    assert len(later.waiting) == 3
    later.give(1, 2)
    await asyncio.sleep(0)
    later.give(3, 4)
    await asyncio.sleep(0)
    assert transport.answers() == [(opaque, opaque) for opaque in range(5)]
    connection.connection_lost(None)


async def test_a_lost_connection_loses_only_its_own_answers(later: LaterHandler) -> None:
    first, gone = connected(later)
    second, stays = connected(later)
    ask(first, 1)
    ask(second, 2)
    first.connection_lost(None)
    gone.closing = True
    later.give(0, 1)
    await asyncio.sleep(0)
    assert gone.writes == []
    assert stays.answers() == [(2, 1)]
    assert not first.in_flight
    second.connection_lost(None)
