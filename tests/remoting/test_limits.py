"""What a peer may cost: bytes of unfinished frames, lines of the log."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING

import pytest

from rocketmq_remoting.client import RemotingClient
from rocketmq_remoting.command import request
from rocketmq_remoting.handler import not_supported
from rocketmq_remoting.limits import LINES_PER_WINDOW, WINDOW_SECONDS, ByteBudget, PeerLog
from rocketmq_remoting.server import RemotingServer
from tests.support.quiet_handler import QuietHandler

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from rocketmq_remoting.command import RemotingCommand
    from rocketmq_remoting.connection import RemotingConnection


HALF = 64 * 1024
PER_HOST = 10 * HALF


class Handler(QuietHandler):
    """Answers everything with 3."""

    def handle(self, request: RemotingCommand, connection: RemotingConnection) -> RemotingCommand:
        return not_supported(request)


@pytest.fixture
async def server() -> AsyncIterator[RemotingServer]:
    server = RemotingServer(Handler(), max_unfinished_bytes=2 * PER_HOST, max_unfinished_bytes_per_host=PER_HOST)
    await server.start("127.0.0.1", 0)
    yield server
    await server.stop(grace_seconds=0.1)


async def half_frame(port: int, host: str) -> asyncio.StreamWriter:
    _, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(host, 0))
    writer.write((2 * HALF).to_bytes(4, "big") + bytes(HALF - 4))
    with contextlib.suppress(ConnectionError):
        await writer.drain()
    return writer


async def until(what) -> None:  # type: ignore[no-untyped-def]
    async with asyncio.timeout(15):
        while not what():  # noqa: ASYNC110 - what is waited for happens in the server
            await asyncio.sleep(0.005)


async def test_half_frames_of_one_host_stay_within_its_share(server: RemotingServer) -> None:
    budget = server._settings.budget
    assert budget is not None
    peers = [await half_frame(server.port, "127.0.0.2") for _ in range(30)]
    await until(lambda: 0 < len(server.connections) <= 10)
    assert 0 < budget.held_bytes <= PER_HOST
    client = RemotingClient()
    answer = await client.invoke(f"127.0.0.1:{server.port}", request(999), timeout_seconds=5.0)  # another host
    assert answer.code == 3
    await client.close()
    for peer in peers:
        peer.close()
    await until(lambda: budget.held_bytes == 0)


async def test_half_frames_of_many_hosts_stay_within_the_whole(server: RemotingServer) -> None:
    budget = server._settings.budget
    assert budget is not None
    peers = [await half_frame(server.port, f"127.0.0.{host}") for host in range(2, 8) for _ in range(8)]
    await until(lambda: 0 < len(server.connections) <= 20)
    assert 0 < budget.held_bytes <= 2 * PER_HOST
    for peer in peers:
        peer.close()
    await until(lambda: budget.held_bytes == 0)


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
