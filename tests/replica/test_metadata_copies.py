"""What a Java master keeps beside the log comes through a Python master's term unchanged.

A Java slave overwrites its own tables with what its master answers, so whatever ours left out would be gone for good.
"""

from __future__ import annotations

import json
import socket
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rocketmq_remoting.codes import RequestCode, ResponseCode
from rocketmq_replica.tables import DelayOffsets, SubscriptionGroups
from rocketmq_replica.topics import Topics
from tests.replica.support import (
    Client,
    FakeController,
    Starter,
    eventually,
    fresh_address,
    start_master,
)

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

JAVA_TOPIC = {
    "topicName": "Ordered",
    "readQueueNums": 2,
    "writeQueueNums": 2,
    "perm": 4,
    "topicFilterType": "MULTI_TAG",
    "topicSysFlag": 1,
    "order": True,
    "attributes": {"message.type": "FIFO"},
}
JAVA_GROUPS: dict[str, Any] = {
    "subscriptionGroupTable": {
        "Shy": {"groupName": "Shy", "consumeEnable": False, "retryMaxTimes": 3, "newer": {"x": 1}}
    },
    "forbiddenTable": {"Shy": {"Ordered": 1}},
    "dataVersion": {"stateVersion": 1, "timestamp": 2, "counter": 3},
}
JAVA_DELAYS = {"offsetTable": {"3": 17}, "dataVersion": {"stateVersion": 0, "timestamp": 5, "counter": 6}}


async def test_what_a_java_master_keeps_beside_the_log_survives_two_failovers_and_a_restart(
    start: Starter, controller: FakeController, client: Client, tmp_path: Path
) -> None:
    config = tmp_path / "r1" / "config"
    config.mkdir(parents=True)
    topics = {"topicConfigTable": {"Ordered": JAVA_TOPIC}, "dataVersion": {}}
    for name, document in (("topics", topics), ("subscriptionGroup", JAVA_GROUPS), ("delayOffset", JAVA_DELAYS)):
        (config / f"{name}.json").write_text(json.dumps(document))
    one = await start_master(start)
    two = await start("r2")
    await eventually(lambda: controller.members == {1, 2})
    await two.process.metadata.copy()
    await one.stop()
    await two.stop()
    controller.lose_master()
    two = await start("r2")
    await eventually(lambda: two.role == "SLAVE" or controller.master_id is None)
    controller.decide(2)
    await eventually(lambda: two.role != "FENCED")
    await controller.notify(2)
    assert (await client.table(two.address, RequestCode.GET_ALL_TOPIC_CONFIG))["topicConfigTable"][
        "Ordered"
    ] == JAVA_TOPIC
    assert await client.table(two.address, RequestCode.GET_TOPIC_CONFIG, topic="Ordered") == JAVA_TOPIC
    groups = await client.table(two.address, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
    assert groups["forbiddenTable"] == JAVA_GROUPS["forbiddenTable"]
    assert groups["subscriptionGroupTable"] == JAVA_GROUPS["subscriptionGroupTable"]
    settings = JAVA_GROUPS["subscriptionGroupTable"]["Shy"]
    assert await client.table(two.address, RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, group="Shy") == settings
    assert await client.table(two.address, RequestCode.GET_ALL_DELAY_OFFSET) == JAVA_DELAYS


async def test_topics_are_served_two_ports_lower_too_where_a_java_slave_looks_for_them(
    start: Starter, controller: FakeController, client: Client
) -> None:
    one = await start_master(start)
    configuration = one.process.configuration
    fast_address = f"{configuration.broker_ip}:{configuration.listen_port - 2}"
    assert "TBW102" in (await client.table(fast_address, RequestCode.GET_ALL_TOPIC_CONFIG))["topicConfigTable"]


async def test_a_fast_port_that_is_taken_is_told_and_nothing_else(
    start: Starter, controller: FakeController, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    address = fresh_address()
    with socket.create_server((address, 10909)):
        one = await start_master(start, address=address)
    assert f"fast port {address}:10909" in caplog.text
    assert "a Java slave of this replica gets no topics" in caplog.text
    assert (await client.send(one.address, b"x")).code == ResponseCode.SUCCESS


async def test_what_is_not_there_is_said_so(start: Starter, controller: FakeController, client: Client) -> None:
    one = await start_master(start)
    answer = await client.ask(one.address, RequestCode.GET_TOPIC_CONFIG, ext_fields={"topic": "None"})
    assert (answer.code, answer.remark) == (ResponseCode.TOPIC_NOT_EXIST, "No topic in this broker. topic: None")
    answer = await client.ask(one.address, RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, ext_fields={"group": "None"})
    assert answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


async def test_a_topic_is_made_and_changed_as_it_is_asked_for(
    start: Starter, controller: FakeController, client: Client
) -> None:
    one = await start_master(start)
    code = RequestCode.UPDATE_AND_CREATE_TOPIC
    asked = {"topic": "T", "readQueueNums": "8", "writeQueueNums": "4", "perm": "4", "order": "true"}
    asked |= {"topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "attributes": "+message.type=FIFO,+x=1"}
    assert (await client.ask(one.address, code, ext_fields=asked)).code == ResponseCode.SUCCESS
    made = await client.table(one.address, RequestCode.GET_TOPIC_CONFIG, topic="T")
    assert (made["readQueueNums"], made["writeQueueNums"], made["perm"], made["order"]) == (8, 4, 4, True)
    assert made["attributes"] == {"message.type": "FIFO", "x": "1"}
    assert (await client.send(one.address, b"x", topic="T")).code == ResponseCode.NO_PERMISSION
    changed = asked | {"perm": "6", "attributes": "-x"}
    assert (await client.ask(one.address, code, ext_fields=changed)).code == ResponseCode.SUCCESS
    made = await client.table(one.address, RequestCode.GET_TOPIC_CONFIG, topic="T")
    assert (made["perm"], made["attributes"]) == (6, {"message.type": "FIFO"})
    for wrong, complaint in (
        ({"attributes": "message.type=FIFO"}, "attribute 'message.type=FIFO', expected +name=value or -name"),
        ({"perm": "8"}, "perm 8, expected 0 to 7"),
        ({"writeQueueNums": "0"}, "readQueueNums and writeQueueNums (8, 0), expected 1 to 1024"),
    ):
        answer = await client.ask(one.address, code, ext_fields=asked | wrong)
        assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, complaint)


async def test_a_group_is_made_for_an_operator_unless_it_should_be_a_special_one(
    start: Starter, controller: FakeController, client: Client
) -> None:
    one = await start_master(start)
    code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
    for document, complaint in (
        ({"groupName": "G", "consumeEnable": False}, "consumeEnable=False of group G"),
        ({"groupName": "G", "subscriptionDataSet": [{}]}, "subscriptionDataSet="),
        ({"groupName": ""}, "groupName ''"),
        ([], "expected the settings of one group"),
    ):
        answer = await client.ask(one.address, code, body=json.dumps(document).encode())
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert complaint in (answer.remark or "")
    wanted = {"groupName": "G", "retryMaxTimes": 16, "subscriptionDataSet": None}
    assert (await client.ask(one.address, code, body=json.dumps(wanted).encode())).code == ResponseCode.SUCCESS
    made = await client.table(one.address, RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, group="G")
    assert made["consumeEnable"] is True


def test_a_topic_that_grows_keeps_its_settings(tmp_path: Path) -> None:
    path = tmp_path / "topics.json"
    path.write_text(json.dumps({"topicConfigTable": {"Ordered": JAVA_TOPIC}}))
    topics = Topics(path, system_topics=(), queue_count=1, now_ms=1)
    topics.adopt([("Ordered", 5)], now_ms=2)
    grown = topics.find("Ordered")
    assert grown is not None
    assert grown.to_json() == JAVA_TOPIC | {"readQueueNums": 6, "writeQueueNums": 6}
    topics.put(replace(grown, read_queues=2, write_queues=16), now_ms=3)
    topics.adopt([("Ordered", 5)], now_ms=4)
    grown_again = topics.find("Ordered")
    assert grown_again is not None
    assert (grown_again.read_queues, grown_again.write_queues) == (6, 16), "queues are never taken away"
    made_again = topics.create("Ordered", queue_count=8, now_ms=3)
    assert made_again.to_json() == JAVA_TOPIC | {"readQueueNums": 8, "writeQueueNums": 8}


def test_a_group_that_is_known_keeps_its_settings_and_a_new_one_gets_javas_defaults(tmp_path: Path) -> None:
    groups = SubscriptionGroups(tmp_path / "groups.json", now_ms=1)
    groups.replace_all(JAVA_GROUPS)
    before = groups.to_json()["dataVersion"]
    groups.adopt(["Shy", "New", "x" * 256])
    groups = SubscriptionGroups(tmp_path / "groups.json", now_ms=2)
    assert groups.find("Shy") == JAVA_GROUPS["subscriptionGroupTable"]["Shy"]
    assert (groups.find("New") or {})["retryMaxTimes"] == 16
    assert groups.find("x" * 256) is None
    groups.adopt(["Newer"])
    assert groups.to_json()["dataVersion"] != before, "a Java slave takes only another version"


def test_delay_offsets_of_nobody_do_not_replace_those_of_somebody(tmp_path: Path) -> None:
    delays = DelayOffsets(tmp_path / "delays.json")
    delays.replace(JAVA_DELAYS)
    delays.replace({"offsetTable": {}})
    assert DelayOffsets(tmp_path / "delays.json").document == JAVA_DELAYS
