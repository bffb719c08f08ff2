"""What stands beside the log: a Java master's tables through a Python master's term, and offsets that are read at master and slave.

While the master is away a client sends its commits to a slave (specification 004); they are neither lost nor moved back. Java's
slave takes such a commit and overwrites it at its next copy.
"""

from __future__ import annotations

import json
import logging
import socket
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from brokergroup_operator.controller.peers.broker_calls import BrokerCallError, BrokerCalls
from brokergroup_operator.controller.settings import PlaneSettings
from rocketmq_remoting.codes import RequestCode, ResponseCode
from rocketmq_remoting.message_record import decode_records
from rocketmq_replica import tables
from rocketmq_replica.ha import metadata_sync
from rocketmq_replica.log import disk
from rocketmq_replica.tables import ConsumerOffsets, DelayOffsets, SubscriptionGroups
from rocketmq_replica.topics import Topics
from tests.replica.support import Lab, RunningReplica, fresh_address, numbered
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from pathlib import Path

    from rocketmq_remoting.command import RemotingCommand


JAVA_TOPIC = {
    "topicName": "Ordered", "readQueueNums": 2, "writeQueueNums": 2, "perm": 4, "topicFilterType": "MULTI_TAG",
    "topicSysFlag": 1, "order": True, "attributes": {"message.type": "FIFO"},
}  # fmt: skip
JAVA_GROUPS: dict[str, Any] = {
    "subscriptionGroupTable": {
        "Shy": {"groupName": "Shy", "consumeEnable": False, "retryMaxTimes": 3, "newer": {"x": 1}}
    },
    "forbiddenTable": {"Shy": {"Ordered": 1}},
    "dataVersion": {"stateVersion": 1, "timestamp": 2, "counter": 3},
}
JAVA_DELAYS = {"offsetTable": {"3": 17}, "dataVersion": {"stateVersion": 0, "timestamp": 5, "counter": 6}}


async def test_what_a_java_master_keeps_beside_the_log_survives_two_failovers_and_a_restart(
    lab: Lab, tmp_path: Path
) -> None:
    config = tmp_path / "r1" / "config"
    config.mkdir(parents=True)
    topics = {"topicConfigTable": {"Ordered": JAVA_TOPIC}, "dataVersion": {}}
    for name, document in (("topics", topics), ("subscriptionGroup", JAVA_GROUPS), ("delayOffset", JAVA_DELAYS)):
        (config / f"{name}.json").write_text(json.dumps(document))
    one = await lab.master()
    two = await lab.join("r2")
    await two.process.metadata.copy()
    await one.stop()
    await two.stop()
    lab.controller.lose_master()
    two = await lab.start("r2")
    await eventually(lambda: two.role == "SLAVE" or lab.controller.master_id is None)
    lab.controller.decide(2)
    await eventually(lambda: two.role != "FENCED")
    await lab.controller.notify(2)
    assert (await lab.client.table(two, RequestCode.GET_ALL_TOPIC_CONFIG))["topicConfigTable"]["Ordered"] == JAVA_TOPIC
    assert await lab.client.table(two, RequestCode.GET_TOPIC_CONFIG, topic="Ordered") == JAVA_TOPIC
    groups = await lab.client.table(two, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
    assert groups["forbiddenTable"] == JAVA_GROUPS["forbiddenTable"]
    assert groups["subscriptionGroupTable"] == JAVA_GROUPS["subscriptionGroupTable"]
    settings = JAVA_GROUPS["subscriptionGroupTable"]["Shy"]
    assert await lab.client.table(two, RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, group="Shy") == settings
    assert await lab.client.table(two, RequestCode.GET_ALL_DELAY_OFFSET) == JAVA_DELAYS


async def test_topics_are_served_two_ports_lower_too_where_a_java_slave_looks_for_them(lab: Lab) -> None:
    one = await lab.master()
    configuration = one.process.configuration
    fast_address = f"{configuration.broker_ip}:{configuration.listen_port - 2}"
    assert "TBW102" in (await lab.client.table(fast_address, RequestCode.GET_ALL_TOPIC_CONFIG))["topicConfigTable"]


async def test_a_fast_port_that_is_taken_is_logged_and_the_replica_serves(
    lab: Lab, caplog: pytest.LogCaptureFixture
) -> None:
    address = fresh_address()
    with socket.create_server((address, 10909)):
        one = await lab.master(address=address)
    assert f"fast port {address}:10909" in caplog.text
    assert "a Java slave of this replica gets no topics" in caplog.text
    await lab.client.store(one, b"x")


async def test_what_is_not_there_is_said_so(lab: Lab) -> None:
    one = await lab.master()
    answer = await lab.client.ask(one, RequestCode.GET_TOPIC_CONFIG, ext_fields={"topic": "None"})
    assert (answer.code, answer.remark) == (ResponseCode.TOPIC_NOT_EXIST, "No topic in this broker. topic: None")
    answer = await lab.client.ask(one, RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, ext_fields={"group": "None"})
    assert answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


async def test_a_topic_is_made_and_changed_as_it_is_asked_for(lab: Lab) -> None:
    one = await lab.master()
    code = RequestCode.UPDATE_AND_CREATE_TOPIC
    asked = {"topic": "T", "readQueueNums": "8", "writeQueueNums": "4", "perm": "4", "order": "true"}
    asked |= {"topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "attributes": "+message.type=FIFO,+x=1"}
    assert (await lab.client.ask(one, code, ext_fields=asked)).code == ResponseCode.SUCCESS
    made = await lab.client.table(one, RequestCode.GET_TOPIC_CONFIG, topic="T")
    assert (made["readQueueNums"], made["writeQueueNums"], made["perm"], made["order"]) == (8, 4, 4, True)
    assert made["attributes"] == {"message.type": "FIFO", "x": "1"}
    assert (await lab.client.send(one, b"x", topic="T")).code == ResponseCode.NO_PERMISSION
    changed = asked | {"perm": "6", "attributes": "-x"}
    assert (await lab.client.ask(one, code, ext_fields=changed)).code == ResponseCode.SUCCESS
    made = await lab.client.table(one, RequestCode.GET_TOPIC_CONFIG, topic="T")
    assert (made["perm"], made["attributes"]) == (6, {"message.type": "FIFO"})
    for wrong, complaint in (
        ({"attributes": "message.type=FIFO"}, "attribute 'message.type=FIFO', expected +name=value or -name"),
        ({"perm": "8"}, "perm 8, expected 0 to 7"),
        (
            {"readQueueNums": "0", "writeQueueNums": "0"},
            "readQueueNums and writeQueueNums (0, 0), expected 1 to 1024 and 0 to 1024",
        ),
        ({"writeQueueNums": "-1"}, "readQueueNums and writeQueueNums (8, -1), expected 1 to 1024 and 0 to 1024"),
    ):
        answer = await lab.client.ask(one, code, ext_fields=asked | wrong)
        assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, complaint)


@pytest.mark.parametrize("queue_id", [-1, 0])
async def test_a_topic_without_a_queue_to_write_to_is_read_and_takes_no_message(lab: Lab, queue_id: int) -> None:
    """So consumer groups get their first offsets before the first message."""
    one = await lab.master()
    asked = {"topic": "T", "readQueueNums": "8", "writeQueueNums": "0", "perm": "6"}
    answer = await lab.client.ask(one, RequestCode.UPDATE_AND_CREATE_TOPIC, ext_fields=asked)
    assert answer.code == ResponseCode.SUCCESS
    refused = await lab.client.send(one, b"x", topic="T", queue_id=queue_id)
    assert refused.code == ResponseCode.SYSTEM_ERROR
    assert "is illegal" in (refused.remark or "")
    assert await lab.client.commit(one, 0, topic="T") == ResponseCode.SUCCESS


async def test_a_group_is_made_for_an_operator_unless_it_should_be_a_special_one(lab: Lab) -> None:
    one = await lab.master()
    code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
    for document, complaint in (
        (
            {"groupName": "G", "consumeMessageOrderly": True},
            "consumeMessageOrderly=True of group G: this replica does not act",
        ),
        ({"groupName": "G", "consumeEnable": "no"}, "consumeEnable=no of group G, expected true or false"),
        ({"groupName": "G", "retryMaxTimes": 1001}, "retryMaxTimes=1001 of group G, expected 0 to 1000"),
        ({"groupName": "G", "retryMaxTimes": True}, "retryMaxTimes=True of group G, expected 0 to 1000"),
        ({"groupName": "G", "attributes": {"+x": "1"}}, "attributes="),
        ({"groupName": "G", "subscriptionDataSet": [{}]}, "subscriptionDataSet="),
        ({"groupName": ""}, "groupName ''"),
        ({"groupName": "a b"}, "expected letters, digits"),
        ([], "expected the settings of one group"),
    ):
        answer = await lab.client.ask(one, code, body=json.dumps(document).encode())
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert complaint in (answer.remark or "")
    wanted = {"groupName": "G", "retryMaxTimes": 16, "subscriptionDataSet": None}
    assert (await lab.client.ask(one, code, body=json.dumps(wanted).encode())).code == ResponseCode.SUCCESS
    made = await lab.client.table(one, RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, group="G")
    assert made["consumeEnable"] is True


async def test_a_group_that_may_not_consume_gets_no_message_until_it_may_again(lab: Lab) -> None:
    one = await lab.master()
    await lab.client.store(one, *MESSAGES)

    async def put(**settings: Any) -> None:
        body = json.dumps({"groupName": "CG", **settings}).encode()
        answer = await lab.client.ask(one, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)
        assert answer.code == ResponseCode.SUCCESS

    await put(consumeEnable=False, retryMaxTimes=3)
    refused = await lab.client.pull(one, 0)
    assert (refused.code, refused.remark) == (ResponseCode.NO_PERMISSION, "subscription group no permission, CG")
    shown = await lab.client.table(one, RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, group="CG")
    await put(**shown | {"consumeEnable": True})
    assert [message.body for message in decode_records((await lab.client.pull(one, 0)).body or b"")] == MESSAGES
    shown = await lab.client.table(one, RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, group="CG")
    assert (shown["consumeEnable"], shown["retryMaxTimes"]) == (True, 3)


async def test_the_operators_requests_about_consumer_groups_are_answered_as_javas_are(lab: Lab) -> None:
    one = await lab.master()
    await lab.client.store(one, *MESSAGES)
    calls, address = BrokerCalls(lab.client.remoting, PlaneSettings()), one.address
    await calls.put_consumer_group(address, {"groupName": "billing", "retryMaxTimes": 3})
    found = await calls.consumer_groups(address, ["billing", "none"])
    assert (set(found), found["billing"]["retryMaxTimes"]) == ({"billing"}, 3)
    await calls.put_consumer_group(address, found["billing"] | {"consumeEnable": False})
    found = await calls.consumer_groups(address, ["billing"])
    assert (found["billing"]["retryMaxTimes"], found["billing"]["consumeEnable"]) == (3, False)
    assert await calls.consumer_offsets(address) == {}
    await calls.commit_offset(address, topic="Topic", queue_id=0, group="billing", offset=0)
    assert await calls.consumer_offsets(address) == {"Topic@billing": {0: 0}}
    assert await calls.topic_readers(address, "Topic") == {"billing"}
    with pytest.raises(BrokerCallError, match="200 answered 1: consumeMessageOrderly=True of group billing"):
        await calls.put_consumer_group(address, {"groupName": "billing", "consumeMessageOrderly": True})


def test_so_many_groups_may_be_made_on_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "MAX_GROUPS", 2)
    groups = SubscriptionGroups(tmp_path / "groups.json", now_ms=1)
    for name in ("A", "B", "A"):
        groups.put({"groupName": name})
    with pytest.raises(ValueError, match="group C: 2 groups are there, expected at most 2"):
        groups.put({"groupName": "C"})


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


def test_empty_delay_offsets_replace_no_others(tmp_path: Path) -> None:
    delays = DelayOffsets(tmp_path / "delays.json")
    delays.replace(JAVA_DELAYS)
    delays.replace({"offsetTable": {}})
    assert DelayOffsets(tmp_path / "delays.json").document == JAVA_DELAYS


def test_delay_offsets_copied_while_a_thread_saves_older_ones_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A former master still saves its own offsets when it copies those of the next one."""
    delays = DelayOffsets(tmp_path / "delays.json")
    delays.put(1, 5)
    older = delays.take_changes()
    assert older is not None
    real, copies = disk.sync_file, iter((JAVA_DELAYS,))

    def sync_file(descriptor: int) -> None:
        real(descriptor)
        if (copy := next(copies, None)) is not None:
            delays.replace(copy)

    monkeypatch.setattr(disk, "sync_file", sync_file)
    delays.write(older)
    assert DelayOffsets(tmp_path / "delays.json").document == JAVA_DELAYS


SUCCESS = ResponseCode.SUCCESS
MESSAGES = numbered(10)


async def committed(lab: Lab, *replicas: RunningReplica) -> list[int | None]:
    """The group's offset at each of these replicas."""
    fields = {"consumerGroup": "CG", "topic": "Topic", "queueId": "0", "setZeroIfNotFound": "false"}
    answers = [await lab.client.ask(one, RequestCode.QUERY_CONSUMER_OFFSET, ext_fields=fields) for one in replicas]
    return [int((one.ext_fields or {})["offset"]) if one.code == SUCCESS else None for one in answers]


async def read_and_commit(lab: Lab, replica: RunningReplica, offset: int, commits: int) -> list[bytes]:
    """A pull that commits, as consumers send it to whichever broker they read from."""
    answer = await lab.client.pull(replica, offset, sysFlag="5", commitOffset=str(commits))
    return [message.body for message in decode_records(answer.body or b"")]


async def written_pair(lab: Lab) -> tuple[RunningReplica, RunningReplica]:
    """Ten messages, of which the group has read four; the slave serves reads and has copied that."""
    one, two = await lab.pair(slaveReadEnable="true")
    await lab.client.store(one, *MESSAGES)
    assert await lab.client.commit(one, 4) == SUCCESS
    await two.process.metadata.copy()
    await eventually(lambda: two.process.store.confirm_offset == one.process.store.max_offset)
    assert await committed(lab, two) == [4]
    return one, two


async def test_what_is_read_at_a_slave_without_its_master_is_known_after_the_failover(lab: Lab) -> None:
    one, two = await written_pair(lab)
    await one.stop()
    assert await read_and_commit(lab, two, 4, 4) == MESSAGES[4:]
    assert await lab.client.commit(two, 7) == SUCCESS
    assert await read_and_commit(lab, two, 9, 9) == MESSAGES[9:]
    await two.process.metadata.copy()
    assert await committed(lab, two) == [9], "a copy that cannot be had takes nothing away"
    await lab.change_master(two)
    assert await committed(lab, two) == [9]
    one = await lab.join("r1", slaveReadEnable="true")
    await one.process.metadata.copy()
    assert await committed(lab, one) == [9], "the old master comes back with 4"


async def test_what_is_read_at_a_slave_without_its_master_is_known_to_that_master_when_it_is_back(lab: Lab) -> None:
    one, two = await written_pair(lab)
    await one.stop()
    assert await lab.client.commit(two, 7) == SUCCESS
    await two.process.metadata.copy()
    one = await lab.master(slaveReadEnable="true")
    await lab.rejoin(two)
    assert await committed(lab, one) == [4]
    await two.process.metadata.copy()
    assert await committed(lab, one, two) == [7, 7]
    assert await lab.client.commit(one, 2) == SUCCESS, "a consumer that goes back on purpose"
    await two.process.metadata.copy()
    assert await committed(lab, one, two) == [2, 2], "reported once, and not again"


async def test_two_consumers_of_one_group_at_master_and_slave_move_it_forward_only(lab: Lab) -> None:
    one, two = await written_pair(lab)
    assert await read_and_commit(lab, one, 4, 6) == MESSAGES[4:]
    assert await read_and_commit(lab, two, 3, 5) == MESSAGES[3:]
    assert await lab.client.commit(two, 3) == SUCCESS
    assert await read_and_commit(lab, two, 2, 2) == MESSAGES[2:]
    assert await committed(lab, two) == [5], "the slave knew 4, and 3 and 2 are behind it"
    await two.process.metadata.copy()
    assert await committed(lab, one, two) == [6, 6], "5 is behind the master's 6"
    assert await lab.client.commit(two, 8) == SUCCESS
    await two.process.metadata.copy()
    assert await committed(lab, one, two) == [8, 8]
    assert await read_and_commit(lab, two, 9, 9) == MESSAGES[9:]
    await two.process.metadata.copy()
    assert await committed(lab, one, two) == [9, 9], "a pull's commit is reported as well"
    await lab.fail_over(one, two)
    assert await committed(lab, two) == [9]
    assert await read_and_commit(lab, two, 9, 9) == MESSAGES[9:], "none is skipped"


async def test_a_commit_that_the_master_refuses_is_reported_once(lab: Lab, caplog: pytest.LogCaptureFixture) -> None:
    """A Java master answers 26 for a group that it does not know."""
    one, two = await written_pair(lab)
    handlers, asked = one.process.dispatcher._handlers, []

    def refuse(request: RemotingCommand) -> RemotingCommand:
        asked.append((request.ext_fields or {})["commitOffset"])
        return request.answer(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark="Group CG not exist!")

    handlers[RequestCode.UPDATE_CONSUMER_OFFSET] = refuse
    assert await lab.client.commit(two, 7) == SUCCESS
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            await two.process.metadata.copy()
    assert asked == ["7"]
    assert "Group CG not exist!" in caplog.text
    assert await committed(lab, two) == [4]


async def test_a_commit_is_reported_again_to_a_master_without_a_role_yet(lab: Lab) -> None:
    """The slave asks as soon as that process listens: it serves its table, and takes nothing before it is master."""
    one, two = await written_pair(lab)
    await one.stop()
    assert await lab.client.commit(two, 7) == SUCCESS
    silent = {RequestCode.CONTROLLER_REGISTER_BROKER, RequestCode.CONTROLLER_GET_REPLICA_INFO}
    lab.controller.silent |= silent
    one = await lab.start("r1", slaveReadEnable="true", address=one.process.configuration.broker_ip)
    await eventually(one.process.listening.is_set)
    await two.process.metadata.copy()
    assert (one.role, await committed(lab, one, two)) == ("FENCED", [4, 7])
    lab.controller.silent -= silent
    await eventually(lambda: one.role == "MASTER")
    await lab.rejoin(two)
    await two.process.metadata.copy()
    assert await committed(lab, one, two) == [7, 7]


async def test_an_offset_that_the_master_does_not_take_now_is_in_no_others_way(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata_sync, "_MOST_REPORTED", 1)
    one, two = await written_pair(lab)
    handlers = one.process.dispatcher._handlers
    take = handlers[RequestCode.UPDATE_CONSUMER_OFFSET]

    def refuse_one(request: RemotingCommand) -> Any:
        if (request.ext_fields or {})["consumerGroup"] == "Never":
            return request.answer(ResponseCode.SYSTEM_ERROR, remark="not now")
        return take(request)

    handlers[RequestCode.UPDATE_CONSUMER_OFFSET] = refuse_one
    for group in ("Never", "CG"):
        assert await lab.client.commit(two, 7, consumerGroup=group) == SUCCESS
    for _ in range(2):
        await two.process.metadata.copy()
    assert await committed(lab, one) == [7]
    assert [offset.group for offset in two.process._offsets.taken()] == ["Never"], "it is asked again"


@pytest.mark.parametrize("read_at_slave", [False, True])
async def test_a_slave_takes_no_offset_that_cannot_be_one(lab: Lab, *, read_at_slave: bool) -> None:
    """Offsets go forward only: one that is too high would stay, and skip messages, until a person resets the group."""
    one, two = await written_pair(lab)
    if read_at_slave:
        await read_and_commit(lab, two, 4, 1 << 60)
    else:
        assert await lab.client.commit(two, 1 << 60) == ResponseCode.INVALID_PARAMETER
        assert await lab.client.commit(two, 5, queueId="900") == ResponseCode.INVALID_PARAMETER
        assert await lab.client.commit(two, 1, topic="Nowhere") == ResponseCode.TOPIC_NOT_EXIST
    assert two.process._offsets.taken() == []
    assert await lab.client.commit(two, 10) == SUCCESS, "the end of the queue"
    await two.process.metadata.copy()
    assert await committed(lab, one, two) == [10, 10]


async def test_a_master_takes_no_report_beyond_its_queue(lab: Lab) -> None:
    """A slave's log may have been truncated since: the next message then gets that number, and no consumer has read it."""
    one, _ = await written_pair(lab)
    assert await lab.client.commit(one, 11, onlyForward="true") == ResponseCode.INVALID_PARAMETER
    assert await lab.client.commit(one, 10, onlyForward="true") == SUCCESS
    assert await lab.client.commit(one, 7, onlyForward="true") == SUCCESS, (
        "the master heard more since the slave's copy"
    )
    assert await committed(lab, one) == [10]


async def test_a_slave_that_became_master_reports_nothing_of_before(lab: Lab) -> None:
    one, two = await written_pair(lab)
    assert await lab.client.commit(two, 7) == SUCCESS
    await lab.change_master(two)
    await lab.rejoin(one)
    assert await lab.client.commit(two, 2) == SUCCESS, "a consumer that goes back on purpose"
    await one.process.metadata.copy()
    await lab.change_master(one)
    await lab.controller.notify(2)
    await eventually(lambda: two.role == "SLAVE")
    await two.process.metadata.copy()
    assert await committed(lab, one, two) == [2, 2]


async def test_a_replica_without_a_role_takes_no_offset(lab: Lab) -> None:
    lab.controller.silent |= {RequestCode.CONTROLLER_REGISTER_BROKER, RequestCode.CONTROLLER_GET_REPLICA_INFO}
    one = await lab.start("r1")
    await eventually(one.process.listening.is_set)
    assert one.role == "FENCED"
    assert await lab.client.commit(one, 1) == ResponseCode.SYSTEM_ERROR


def test_a_deleted_topic_leaves_nothing_to_report(tmp_path: Path) -> None:
    offsets = ConsumerOffsets(tmp_path / "consumerOffset.json")
    offsets.take("CG", "Gone", 0, 3)
    offsets.take("CG", "Kept", 0, 3)
    offsets.forget_topics({"Gone"})
    assert [one.topic for one in offsets.taken()] == ["Kept"]


def test_the_groups_of_a_topic_follow_every_change_of_the_table(tmp_path: Path) -> None:
    """They are found by an index: 300 is asked for each topic, and scanned the whole table each time."""
    offsets = ConsumerOffsets(tmp_path / "consumerOffset.json")
    offsets.put("a", "T", 0, 1)
    assert offsets.groups_of("T") == {"a"}
    offsets.put("b", "T", 0, 1)
    offsets.put("a", "U", 0, 1)
    assert (offsets.groups_of("T"), offsets.groups_of("U")) == ({"a", "b"}, {"a"})
    offsets.forget_topics({"T"})
    assert (offsets.groups_of("T"), offsets.groups_of("U")) == (set(), {"a"})
    offsets.take("c", "T", 0, 3)
    offsets.replace_all({"U@d": {"0": 4}})
    assert (offsets.groups_of("T"), offsets.groups_of("U")) == ({"c"}, {"d"})
    offsets.groups_of("U").clear()
    assert offsets.groups_of("U") == {"d"}, "an answer is a copy"
