"""Consumer groups: bounded and saved off the event loop; their members are notified when one joins or leaves (40)."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from typing import TYPE_CHECKING, Any

import pytest

from rocketmq_remoting.client import RemotingClient
from rocketmq_remoting.client_protocol import NotifyConsumerIdsChangedRequestHeader
from rocketmq_remoting.codes import RequestCode, ResponseCode
from rocketmq_remoting.command import RemotingCommand, request
from rocketmq_replica import topics
from rocketmq_replica.clients import consumers as consumers_module
from rocketmq_replica.clients.client_requests import MAX_GROUPS_OF_ONE_CLIENT
from rocketmq_replica.clients.consumers import CLIENT_EXPIRY_SECONDS, Clients
from tests.replica.support import Client, FakeController, RunningReplica, Starter, eventually, start_master
from tests.support.quiet_handler import QuietHandler

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from rocketmq_remoting.connection import RemotingConnection


@pytest.fixture
async def one(start: Starter, controller: FakeController) -> RunningReplica:
    return await start_master(start)


async def beat(client: Client, replica: RunningReplica, groups: list[str]) -> RemotingCommand:
    body = {"clientID": "c", "consumerDataSet": [{"groupName": group} for group in groups]}
    return await client.ask(replica.address, RequestCode.HEART_BEAT, body=json.dumps(body).encode())


class Syncs:
    """The names of the threads that called fsync."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.on_the_loop = self.elsewhere = 0
        real = os.fsync

        def fsync(descriptor: int) -> None:
            if threading.current_thread() is threading.main_thread():
                self.on_the_loop += 1
            else:
                self.elsewhere += 1
            real(descriptor)

        monkeypatch.setattr(os, "fsync", fsync)


async def test_a_heartbeat_of_thousands_of_groups_is_refused_and_costs_nothing(
    one: RunningReplica, client: Client
) -> None:
    before = one.process.broker.topics.all()
    answer = await beat(client, one, [f"g{number}" for number in range(2000)])
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark == f"heartbeat: 2000 consumer groups, expected at most {MAX_GROUPS_OF_ONE_CLIENT}"
    assert one.process.broker.topics.all() == before


async def test_many_groups_are_saved_once_and_not_on_the_event_loop(
    one: RunningReplica, client: Client, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    groups = [f"g{number}" for number in range(MAX_GROUPS_OF_ONE_CLIENT)]
    await asyncio.sleep(0)
    syncs = Syncs(monkeypatch)
    assert (await beat(client, one, groups)).code == ResponseCode.SUCCESS
    path = tmp_path / "r1" / "config" / "topics.json"
    await eventually(lambda: path.exists() and f"%RETRY%{groups[-1]}" in path.read_text())
    assert syncs.on_the_loop == 0
    assert 0 < syncs.elsewhere < 20


async def test_groups_and_topics_are_bounded_in_all(
    one: RunningReplica, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumers_module, "MAX_GROUPS", 3)
    assert (await beat(client, one, ["a", "b"])).code == ResponseCode.SUCCESS
    refused = await beat(client, one, ["a", "c", "d"])
    assert (refused.code, refused.remark) == (
        ResponseCode.SYSTEM_ERROR,
        "heartbeat: 2 new consumer groups beside 2, expected at most 3",
    )
    assert (await beat(client, one, ["a", "b", "c"])).code == ResponseCode.SUCCESS
    monkeypatch.setattr(topics, "MAX_TOPICS", len(one.process.broker.topics.all()))
    refused = await client.send(one.address, b"x", topic="OneTooMany")
    assert refused.code == ResponseCode.SYSTEM_ERROR
    assert "expected at most" in (refused.remark or "")


@pytest.mark.parametrize("group", ["", "a b", "line\nbreak", "x" * 300])
async def test_what_is_no_name_is_no_group(one: RunningReplica, client: Client, group: str) -> None:
    answer = await beat(client, one, ["good", group])
    assert answer.code == ResponseCode.SYSTEM_ERROR
    expected = f"groupName {group[:50]!r}: its retry topic" if group else "a consumer group without groupName"
    assert (answer.remark or "").startswith(f"heartbeat: {expected}")
    assert one.process.broker.topics.find("%RETRY%good") is None


class Consumer(QuietHandler):
    """A client with a connection of its own that remembers which of its groups changed."""

    def __init__(self, name: str, address: str) -> None:
        self.name = name
        self.address = address
        self.told: list[str | None] = []
        self.remoting = RemotingClient(request_handler=self)

    async def beat(self, *groups: str) -> None:
        consumers = [{"groupName": group} for group in groups]
        body = {"clientID": self.name, "producerDataSet": [], "consumerDataSet": consumers}
        await self.ask(RequestCode.HEART_BEAT, body=json.dumps(body).encode())

    async def leave(self, group: str) -> None:
        await self.ask(RequestCode.UNREGISTER_CLIENT, ext_fields={"clientID": self.name, "consumerGroup": group})

    async def ask(self, code: int, **what: Any) -> None:
        answer = await self.remoting.invoke(self.address, request(code, **what), timeout_seconds=5.0)
        assert answer.code == ResponseCode.SUCCESS, answer

    def handle(self, request: RemotingCommand, connection: RemotingConnection) -> None:
        assert request.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED
        assert request.is_oneway
        self.told.append(NotifyConsumerIdsChangedRequestHeader.decode(request.ext_fields).consumer_group)


@pytest.fixture
async def consumers(one: RunningReplica) -> AsyncIterator[list[Consumer]]:
    found = [Consumer(name, one.address) for name in ("one", "two", "other")]
    await found[2].beat("Others")
    await eventually(lambda: found[2].told == ["Others"])
    for count, each in enumerate(found[:2], start=1):
        await each.beat("CG")
        await eventually(lambda count=count: len(found[0].told) == count)  # type: ignore[misc]
    await eventually(lambda: found[1].told == ["CG"])
    yield found
    for each in found:
        await each.remoting.close()


async def test_who_is_in_the_group_hears_of_who_comes(consumers: list[Consumer]) -> None:
    assert consumers[0].told == ["CG", "CG"]
    assert consumers[2].told == ["Others"], "another group's consumer is not told"


async def test_a_heartbeat_of_a_member_changes_nothing(consumers: list[Consumer]) -> None:
    await consumers[0].beat("CG")
    await consumers[1].beat("CG", "Second")
    await eventually(lambda: consumers[1].told == ["CG", "Second"])
    assert consumers[0].told == ["CG", "CG"]


async def test_who_stays_hears_of_who_leaves(consumers: list[Consumer]) -> None:
    await consumers[1].leave("CG")
    await eventually(lambda: consumers[0].told == ["CG"] * 3)
    await consumers[1].leave("CG")
    await consumers[1].leave("Unknown")
    await consumers[0].beat("CG")
    assert consumers[0].told == ["CG"] * 3
    assert consumers[1].told == ["CG"]


async def test_a_broken_connection_is_a_leave(one: RunningReplica, consumers: list[Consumer], client: Client) -> None:
    await consumers[1].remoting.close()
    await eventually(lambda: consumers[0].told == ["CG"] * 3)
    code = RequestCode.GET_CONSUMER_LIST_BY_GROUP
    assert (await client.table(one.address, code, consumerGroup="CG"))["consumerIdList"] == ["one"]
    assert (
        await client.ask(one.address, code, ext_fields={"consumerGroup": "Unknown"})
    ).code == ResponseCode.SYSTEM_ERROR


def test_a_client_that_spoke_over_another_connection_since_stays() -> None:
    clients = Clients()
    old, new = object(), object()
    assert clients.heartbeat("one", ["G"], old, now_seconds=0.0) == {"G"}  # type: ignore[arg-type]
    assert clients.heartbeat("one", ["G"], new, now_seconds=1.0) == set()  # type: ignore[arg-type]
    assert clients.connection_closed(old) == set()  # type: ignore[arg-type]
    assert clients.members("G", now_seconds=1.0) == ("one",)
    assert clients.connection_closed(new) == {"G"}  # type: ignore[arg-type]
    assert clients.members("G", now_seconds=1.0) == ()


def test_who_was_silent_for_too_long_comes_anew() -> None:
    clients = Clients()
    connection: Any = object()
    clients.heartbeat("one", ["G"], connection, now_seconds=0.0)
    assert clients.heartbeat("one", ["G"], connection, now_seconds=CLIENT_EXPIRY_SECONDS) == set()
    assert clients.heartbeat("one", ["G"], connection, now_seconds=2 * CLIENT_EXPIRY_SECONDS + 1) == {"G"}
