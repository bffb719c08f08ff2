"""Answers that are given later without a task: each once, to its own request, and those of one turn in one write."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rocketmq_remoting.codec import FrameDecoder, encode
from rocketmq_remoting.command import RemotingCommand, request
from rocketmq_remoting.connection import RemotingConnection
from rocketmq_remoting.handler import LaterAnswer
from rocketmq_remoting.limits import ConnectionSettings
from tests.support.quiet_handler import QuietHandler


class Handler(QuietHandler):
    """Answers nothing by itself, or at once if told so."""

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


class Transport(asyncio.Transport):
    """Remembers each write."""

    def __init__(self) -> None:
        super().__init__({"peername": ("192.0.2.1", 40000)})
        self.writes: list[bytes] = []
        self.closing = False

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        assert not self.closing, "written after it was closed"
        self.writes.append(bytes(data))

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        self.closing = True

    abort = close

    def answers(self) -> list[tuple[int, int]]:
        """(opaque, code) of each."""
        return [(each.opaque, each.code) for each in FrameDecoder().feed(b"".join(self.writes))]


@pytest.fixture
def handler() -> Handler:
    return Handler()


def connected(handler: Handler, **settings: Any) -> tuple[RemotingConnection, Transport]:
    connection = RemotingConnection(handler=handler, settings=ConnectionSettings(**settings))
    transport = Transport()
    connection.connection_made(transport)
    return connection, transport


def ask(connection: RemotingConnection, *opaques: int) -> None:
    connection.data_received(b"".join(encode(request(1).with_opaque(opaque)) for opaque in opaques))


async def test_answers_of_one_turn_leave_in_one_write_in_the_order_they_are_given(handler: Handler) -> None:
    connection, transport = connected(handler)
    ask(connection, 10, 11, 12)
    assert connection.in_flight == 3
    assert transport.writes == []
    handler.give(2, 0)
    assert connection.in_flight == 1
    await asyncio.sleep(0)
    assert len(transport.writes) == 1
    handler.give(1)
    await asyncio.sleep(0)
    assert transport.answers() == [(12, 2), (10, 0), (11, 1)]
    assert len(transport.writes) == 2
    connection.connection_lost(None)


async def test_an_answer_that_was_given_before_it_was_returned_leaves_with_the_others(handler: Handler) -> None:
    connection, transport = connected(handler)
    handler.at_once = True
    ask(connection, 1, 2)
    assert transport.answers() == [(1, 0), (2, 0)]
    assert len(transport.writes) == 1
    assert not connection.in_flight
    connection.connection_lost(None)


async def test_only_the_first_answer_counts(handler: Handler) -> None:
    connection, transport = connected(handler)
    ask(connection, 5)
    handler.give(0)
    handler.waiting[0][1].give(handler.waiting[0][0].answer(99))
    await asyncio.sleep(0)
    assert transport.answers() == [(5, 0)]
    connection.connection_lost(None)


async def test_what_was_given_is_sent_before_the_connection_closes(handler: Handler) -> None:
    connection, transport = connected(handler)
    ask(connection, 1, 2)
    handler.give(0, 1)
    connection.close()
    assert transport.closing
    assert transport.answers() == [(1, 0), (2, 1)]
    connection.connection_lost(None)
    await asyncio.sleep(0)


async def test_who_waits_for_all_answers_waits_for_those_given_later(handler: Handler) -> None:
    connection, _ = connected(handler)
    ask(connection, 1, 2)
    waiting = asyncio.create_task(connection.wait_answered())
    await asyncio.sleep(0)
    handler.give(0)
    for _ in range(5):
        await asyncio.sleep(0)
    assert not waiting.done()
    handler.give(1)
    await asyncio.wait_for(waiting, 5)
    connection.connection_lost(None)


async def test_given_up_answers_are_not_waited_for_and_not_sent(handler: Handler) -> None:
    connection, transport = connected(handler)
    ask(connection, 1)
    waiting = asyncio.create_task(connection.wait_answered())
    await asyncio.sleep(0)
    connection.cancel_in_flight()
    await asyncio.wait_for(waiting, 5)
    handler.give(0)
    await asyncio.sleep(0)
    assert transport.writes == []
    connection.connection_lost(None)


async def test_they_count_as_being_handled(handler: Handler) -> None:
    connection, transport = connected(handler, max_in_flight=2)
    ask(connection, *range(5))
    assert len(handler.waiting) == 2
    handler.give(0)
    assert len(handler.waiting) == 2, "who gives an answer must not find himself in another handler"
    await asyncio.sleep(0)
    assert len(handler.waiting) == 3
    handler.give(1, 2)
    await asyncio.sleep(0)
    handler.give(3, 4)
    await asyncio.sleep(0)
    assert transport.answers() == [(opaque, opaque) for opaque in range(5)]
    connection.connection_lost(None)


async def test_a_lost_connection_loses_only_its_own_answers(handler: Handler) -> None:
    first, gone = connected(handler)
    second, stays = connected(handler)
    ask(first, 1)
    ask(second, 2)
    first.connection_lost(None)
    gone.closing = True
    handler.give(0, 1)
    await asyncio.sleep(0)
    assert gone.writes == []
    assert stays.answers() == [(2, 1)]
    assert not first.in_flight
    second.connection_lost(None)
