"""Consumers hear at once that their group changed: one came, one left, one's connection broke."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from rocketmq_remoting.client import RemotingClient
from rocketmq_remoting.client_protocol import NotifyConsumerIdsChangedRequestHeader
from rocketmq_remoting.codes import RequestCode, ResponseCode
from rocketmq_remoting.command import RemotingCommand, request
from rocketmq_replica.clients.consumers import CLIENT_EXPIRY_SECONDS, Clients
from tests.replica.support import RunningReplica, Starter, eventually
from tests.support.quiet_handler import QuietHandler

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from rocketmq_remoting.connection import RemotingConnection


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
async def broker(start: Starter) -> RunningReplica:
    one = await start("r1")
    await eventually(lambda: one.role == "MASTER")
    return one


@pytest.fixture
async def consumers(broker: RunningReplica) -> AsyncIterator[list[Consumer]]:
    found = [Consumer(name, broker.address) for name in ("one", "two", "other")]
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


async def test_a_broken_connection_is_a_leave(broker: RunningReplica, consumers: list[Consumer]) -> None:
    await consumers[1].remoting.close()
    await eventually(lambda: consumers[0].told == ["CG"] * 3)
    answer = await consumers[0].remoting.invoke(
        broker.address,
        request(RequestCode.GET_CONSUMER_LIST_BY_GROUP, ext_fields={"consumerGroup": "CG"}),
        timeout_seconds=5.0,
    )
    assert json.loads(answer.body or b"")["consumerIdList"] == ["one"]


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
