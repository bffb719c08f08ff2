"""Consumer groups: bounded, notified of members (40), and what a member subscribed to."""

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
from rocketmq_remoting.message_record import decode_records
from rocketmq_replica import topics
from rocketmq_replica.clients import consumers as consumers_module
from rocketmq_replica.clients.client_requests import MAX_GROUPS_OF_ONE_CLIENT
from rocketmq_replica.clients.consumers import CLIENT_EXPIRY_SECONDS, Clients
from tests.support.quiet_handler import QuietHandler
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from pathlib import Path

    from rocketmq_remoting.connection import RemotingConnection
    from tests.replica.support import Client, Lab, RunningReplica


@pytest.fixture
async def one(lab: Lab) -> RunningReplica:
    return await lab.master()


async def beat(client: Client, replica: RunningReplica, groups: list[str]) -> RemotingCommand:
    body = {"clientID": "c", "consumerDataSet": [{"groupName": group} for group in groups]}
    return await client.ask(replica, RequestCode.HEART_BEAT, body=json.dumps(body).encode())


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


async def test_a_heartbeat_of_thousands_of_groups_is_refused_and_costs_nothing(lab: Lab, one: RunningReplica) -> None:
    before = one.process.broker.topics.all()
    answer = await beat(lab.client, one, [f"g{number}" for number in range(2000)])
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark == f"heartbeat: 2000 consumer groups, expected at most {MAX_GROUPS_OF_ONE_CLIENT}"
    assert one.process.broker.topics.all() == before


async def test_many_groups_are_saved_once_and_not_on_the_event_loop(
    lab: Lab, one: RunningReplica, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    groups = [f"g{number}" for number in range(MAX_GROUPS_OF_ONE_CLIENT)]
    await asyncio.sleep(0)
    syncs = Syncs(monkeypatch)
    assert (await beat(lab.client, one, groups)).code == ResponseCode.SUCCESS
    path = tmp_path / "r1" / "config" / "topics.json"
    await eventually(lambda: path.exists() and f"%RETRY%{groups[-1]}" in path.read_text())
    assert syncs.on_the_loop == 0
    assert 0 < syncs.elsewhere < 20


async def test_groups_and_topics_are_bounded_in_all(
    lab: Lab, one: RunningReplica, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumers_module, "MAX_GROUPS", 3)
    assert (await beat(lab.client, one, ["a", "b"])).code == ResponseCode.SUCCESS
    refused = await beat(lab.client, one, ["a", "c", "d"])
    assert (refused.code, refused.remark) == (
        ResponseCode.SYSTEM_ERROR,
        "heartbeat: 2 new consumer groups beside 2, expected at most 3",
    )
    assert (await beat(lab.client, one, ["a", "b", "c"])).code == ResponseCode.SUCCESS
    monkeypatch.setattr(topics, "MAX_TOPICS", len(one.process.broker.topics.all()))
    refused = await lab.client.send(one, b"x", topic="OneTooMany")
    assert refused.code == ResponseCode.SYSTEM_ERROR
    assert "expected at most" in (refused.remark or "")


@pytest.mark.parametrize("group", ["", "a b", "line\nbreak", "x" * 300])
async def test_an_invalid_name_is_no_group(lab: Lab, one: RunningReplica, group: str) -> None:
    answer = await beat(lab.client, one, ["good", group])
    assert answer.code == ResponseCode.SYSTEM_ERROR
    expected = f"groupName {group[:50]!r}: its retry topic" if group else "a consumer group without groupName"
    assert (answer.remark or "").startswith(f"heartbeat: {expected}")
    assert one.process.broker.topics.find("%RETRY%good") is None


class Consumer(QuietHandler):
    """A client with a connection of its own that remembers which of its groups changed."""

    def __init__(self, name: str, address: str) -> None:
        self.name = name
        self.address = address
        self.notified_of: list[str | None] = []
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
        self.notified_of.append(NotifyConsumerIdsChangedRequestHeader.decode(request.ext_fields).consumer_group)


async def test_members_of_a_group_are_notified_of_joins_and_leaves_and_of_nothing_else(
    lab: Lab, one: RunningReplica
) -> None:
    first, second, other = consumers = [Consumer(name, one.address) for name in ("one", "two", "other")]
    await other.beat("Others")
    await eventually(lambda: other.notified_of == ["Others"])
    await first.beat("CG")
    await eventually(lambda: first.notified_of == ["CG"])
    await second.beat("CG")
    await eventually(lambda: (first.notified_of, second.notified_of) == (["CG"] * 2, ["CG"]))
    assert other.notified_of == ["Others"], "a consumer of another group"

    await first.beat("CG")
    await second.beat("CG", "Second")
    await eventually(lambda: second.notified_of == ["CG", "Second"])
    assert first.notified_of == ["CG"] * 2, "a heartbeat of a member changes nothing"

    await second.leave("CG")
    await eventually(lambda: first.notified_of == ["CG"] * 3)
    await second.leave("CG")
    await second.leave("Unknown")
    await first.beat("CG")
    assert (first.notified_of, second.notified_of) == (["CG"] * 3, ["CG", "Second"])

    await second.beat("CG", "Second")
    await eventually(lambda: first.notified_of == ["CG"] * 4)
    await second.remoting.close()
    await eventually(lambda: first.notified_of == ["CG"] * 5)
    code = RequestCode.GET_CONSUMER_LIST_BY_GROUP
    assert (await lab.client.table(one, code, consumerGroup="CG"))["consumerIdList"] == ["one"]
    assert (await lab.client.ask(one, code, ext_fields={"consumerGroup": "Unknown"})).code == ResponseCode.SYSTEM_ERROR
    for each in consumers:
        await each.remoting.close()


def test_a_client_that_spoke_over_another_connection_since_stays() -> None:
    clients = Clients()
    old, new = object(), object()
    assert clients.heartbeat("one", ["G"], old, now_seconds=0.0) == {"G"}  # type: ignore[arg-type]
    assert clients.heartbeat("one", ["G"], new, now_seconds=1.0) == set()  # type: ignore[arg-type]
    assert clients.connection_closed(old) == set()  # type: ignore[arg-type]
    assert clients.members("G", now_seconds=1.0) == ("one",)
    assert clients.connection_closed(new) == {"G"}  # type: ignore[arg-type]
    assert clients.members("G", now_seconds=1.0) == ()


def test_a_client_without_heartbeats_for_too_long_is_a_new_member() -> None:
    clients = Clients()
    connection: Any = object()
    clients.heartbeat("one", ["G"], connection, now_seconds=0.0)
    assert clients.heartbeat("one", ["G"], connection, now_seconds=CLIENT_EXPIRY_SECONDS) == set()
    assert clients.heartbeat("one", ["G"], connection, now_seconds=2 * CLIENT_EXPIRY_SECONDS + 1) == {"G"}


async def subscribe(client: Client, replica: RunningReplica, tags: list[str], version: int) -> None:
    text = "||".join(tags) or "*"
    subscription = {
        "topic": "Topic", "subString": text, "tagsSet": tags, "subVersion": version, "expressionType": "TAG",
    }  # fmt: skip
    body = {"clientID": "c", "consumerDataSet": [{"groupName": "CG", "subscriptionDataSet": [subscription]}]}
    answer = await client.ask(replica, RequestCode.HEART_BEAT, body=json.dumps(body).encode())
    assert answer.code == ResponseCode.SUCCESS


async def test_a_pull_without_a_subscription_goes_by_the_heartbeat(lab: Lab) -> None:
    """As Java's push consumers pull: bit 4 of sysFlag is not set."""
    one = await lab.master()
    for number, tag in enumerate(("red", "blue", "red", "green")):
        await lab.client.send(one, b"%d" % number, properties=f"TAGS\x01{tag}\x02")

    async def pulled(sys_flag: int = 0) -> bytes:
        answer = await lab.client.pull(one, 0, sysFlag=str(sys_flag), subscription="green")
        return b"".join(each.body for each in decode_records(answer.body or b""))

    assert await pulled(sys_flag=4) == b"3"
    await subscribe(lab.client, one, ["red"], 5)
    assert await pulled() == b"02"
    assert await pulled(sys_flag=4) == b"3"
    await subscribe(lab.client, one, ["blue"], 4)
    assert await pulled() == b"02", "an older word than what is known"
    await subscribe(lab.client, one, [], 6)
    assert await pulled() == b"0123"
