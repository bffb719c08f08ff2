"""No request of a client costs the others more than its share: groups and topics are bounded, and saved off the event loop."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from typing import TYPE_CHECKING

import pytest

from rocketmq_remoting.codes import RequestCode, ResponseCode
from rocketmq_replica import topics
from rocketmq_replica.clients import consumers
from rocketmq_replica.clients.client_requests import MAX_GROUPS_OF_ONE_CLIENT
from tests.replica.support import Client, FakeController, RunningReplica, Starter, eventually

if TYPE_CHECKING:
    from pathlib import Path

    from rocketmq_remoting.command import RemotingCommand


@pytest.fixture
async def one(start: Starter, controller: FakeController) -> RunningReplica:
    replica = await start("r1")
    await eventually(lambda: replica.role == "MASTER")
    return replica


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
    monkeypatch.setattr(consumers, "MAX_GROUPS", 3)
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
