"""Offsets of topics (202) and their consumer groups (300), and a replica that refuses sends: what a Retire relies on."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from brokergroup_operator.controller.peers.broker_calls import BrokerCallError, BrokerCalls
from brokergroup_operator.controller.peers.offset_reader import OffsetReader
from brokergroup_operator.controller.settings import PlaneSettings
from brokergroup_operator.observe.group_view import GroupUnknownError, GroupViewError
from brokergroup_operator.reconcile.decide.unread import described, unread_topics
from brokergroup_operator.records.store import GroupKey
from controller_core.model import BrokerGroupRecord, Replica
from rocketmq_remoting.address import host_of
from rocketmq_remoting.broker_protocol import QueueOffsets, decode_topic_stats
from rocketmq_remoting.client_protocol import ConsumerData, HeartbeatDataBody, SubscriptionData
from rocketmq_remoting.codes import RequestCode, ResponseCode
from rocketmq_replica.broker import wall_clock_ms
from tests.replica.support import is_complete, record_of, start_replica
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from pathlib import Path

    from rocketmq_remoting.command import RemotingCommand
    from tests.controller.conftest import StartPlane
    from tests.replica.support import Lab, RunningReplica
    from tests.support.fake_name_server import FakeNameServer

READ_ONLY, READ_AND_WRITE = b"brokerPermission=4\n", b"brokerPermission=6\n"


async def heartbeat(lab: Lab, at: RunningReplica, group: str, topic: str) -> None:
    subscription = SubscriptionData(topic=topic, sub_string="*", expression_type="TAG")
    consumer = ConsumerData(group_name=group, subscription_data_set=(subscription,))
    body = HeartbeatDataBody(client_id=f"client of {group}", consumer_data_set=(consumer,)).encode()
    assert (await lab.client.ask(at, RequestCode.HEART_BEAT, body=body)).code == ResponseCode.SUCCESS


async def permit(lab: Lab, at: RunningReplica, body: bytes) -> RemotingCommand:
    return await lab.client.ask(at, RequestCode.UPDATE_BROKER_CONFIG, body=body)


async def test_202_tells_how_far_every_queue_reaches(lab: Lab) -> None:
    """Only of confirmed messages, as consumers see them; of a queue without one too."""
    one = await lab.master(defaultTopicQueueNums=2)
    await lab.client.store(one, b"a", b"b", topic="Orders")
    answer = await lab.client.ask(one, RequestCode.GET_TOPIC_STATS_INFO, ext_fields={"topic": "Orders"})
    found = decode_topic_stats(answer.body)
    (message, last) = await lab.client.pull_all(one, topic="Orders")
    assert message.queue_offset == 0
    assert found[0] == QueueOffsets(minimum=0, maximum=2, last_update_ms=last.store_timestamp_ms)
    assert set(found) == set(range(4)), "as many queues as the producer wanted"
    assert found[1] == QueueOffsets(minimum=0, maximum=0)
    unknown = await lab.client.ask(one, RequestCode.GET_TOPIC_STATS_INFO, ext_fields={"topic": "Unknown"})
    assert (unknown.code, unknown.remark) == (ResponseCode.TOPIC_NOT_EXIST, "topic[Unknown] not exist")


async def test_300_tells_which_groups_read_a_topic(lab: Lab) -> None:
    """Those that committed an offset, and those that have subscribed and read nothing yet."""
    one = await lab.master()
    await lab.client.store(one, b"a", topic="Orders")

    async def readers() -> list[str]:
        table = await lab.client.table(one, RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, topic="Orders")
        found: list[str] = table["groupList"]
        return found

    assert await readers() == []
    assert await lab.client.commit(one, 1, topic="Orders", consumerGroup="earlier") == ResponseCode.SUCCESS
    await heartbeat(lab, one, "late", "Orders")
    await heartbeat(lab, one, "other", "Payments")
    assert await readers() == ["earlier", "late"]


async def test_a_replica_without_the_write_permission_is_read_and_takes_no_send(
    lab: Lab, name_server: FakeNameServer
) -> None:
    one, _ = await lab.pair(namesrvAddr=name_server.address)
    await lab.client.store(one, b"a")

    def routed() -> int | None:
        table = name_server.registered_bodies[one.address]["topicConfigSerializeWrapper"]["topicConfigTable"]
        return table["Topic"]["perm"] if "Topic" in table else None

    def version() -> int:
        wrapper = name_server.registered_bodies[one.address]["topicConfigSerializeWrapper"]
        return int(wrapper["dataVersion"]["counter"])

    await eventually(lambda: one.address in name_server.registered_bodies)
    await eventually(lambda: routed() == 6)
    before = version()
    assert (await permit(lab, one, READ_ONLY)).code == ResponseCode.SUCCESS
    refused = await lab.client.send(one, b"b")
    assert (refused.code, refused.remark) == (ResponseCode.NO_PERMISSION, "the broker's permission forbids sending")
    assert await lab.client.bodies(one) == [b"a"]
    await eventually(lambda: routed() == 4)
    assert version() > before, "a NameServer takes topics of a newer version only"
    shown = await lab.client.ask(one, RequestCode.GET_BROKER_CONFIG)
    assert READ_ONLY.strip() in (shown.body or b"")
    topics = await lab.client.table(one, RequestCode.GET_ALL_TOPIC_CONFIG)
    assert topics["topicConfigTable"]["Topic"]["perm"] == 6, "slaves copy the topic as it is"

    assert (await permit(lab, one, READ_AND_WRITE)).code == ResponseCode.SUCCESS
    await lab.client.store(one, b"b")
    await eventually(lambda: routed() == 6)
    assert (await permit(lab, one, b"brokerPermission=8\n")).code == ResponseCode.NO_PERMISSION


async def test_a_message_sent_back_to_a_read_only_replica_is_not_lost(lab: Lab) -> None:
    """A consumer that fails while the group drains: the message is delivered later, so it counts until then."""
    one = await lab.master(messageDelayLevel="2h")
    await lab.client.store(one, b"a")
    await permit(lab, one, READ_ONLY)
    assert (await lab.client.send_back(one, 0, level=1)).code == ResponseCode.SUCCESS
    assert await lab.client.commit(one, 1) == ResponseCode.SUCCESS
    assert await unread_at(lab, one) == "topic SCHEDULE_TOPIC_XXXX: 1 messages in 1 queue that are delivered later"
    one.process.delayed.deliver(now_ms=wall_clock_ms() + 3 * 3_600_000)
    assert one.process.store.queues.end("%RETRY%CG", 0) == 1

    async def retried() -> bool:
        return await unread_at(lab, one) == "topic %RETRY%CG: 1 messages in 1 queue that no consumer group reads"

    await eventually(retried, "its retry", within_seconds=20)
    assert await lab.client.commit(one, 1, topic="%RETRY%CG") == ResponseCode.SUCCESS
    assert await unread_at(lab, one) == ""


async def unread_at(lab: Lab, one: RunningReplica) -> str:
    return described(unread_topics(await reader_of(lab, one).read()))


def reader_of(lab: Lab, one: RunningReplica, *others: RunningReplica, epoch: int = 1) -> OffsetReader:
    """Return a reader at the master of a record whose SyncStateSet has these other members, with ids from 2 on."""
    configuration, members = one.process.configuration, dict(enumerate((one, *others), 1))
    record = BrokerGroupRecord(
        cluster_name=configuration.broker_cluster_name,
        broker_name=configuration.broker_name,
        replicas={
            number: Replica(broker_id=number, register_check_code="c", address=each.address, registered=True)
            for number, each in members.items()
        },
        sync_state_set=frozenset(members),
        master_broker_id=1,
        master_epoch=epoch,
    )
    calls = BrokerCalls(lab.client.remoting, PlaneSettings())
    hosts = {number: host_of(each.address) for number, each in members.items() if number != 1}
    return OffsetReader(calls=calls, address=one.address, record=record, hosts=hosts)


async def test_the_operator_reads_what_is_read(lab: Lab) -> None:
    one, two = await lab.pair()
    await lab.client.store(one, b"a", b"b", b"c")
    offsets = await reader_of(lab, one).read()
    assert (offsets.takes_sends, offsets.acknowledges, offsets.log_end) == (True, True, one.process.store.max_offset)
    assert described(unread_topics(offsets)) == "topic Topic: 3 messages in 1 queue that no consumer group reads"
    assert await lab.client.commit(one, 2) == ResponseCode.SUCCESS
    assert await unread_at(lab, one) == "topic Topic: 1 messages in 1 queue, unread by CG (1)"
    await heartbeat(lab, one, "late", "Topic")
    assert await unread_at(lab, one) == "topic Topic: 3 messages in 1 queue, unread by late (3), CG (1)"
    for group in ("CG", "late"):
        assert await lab.client.commit(one, 3, consumerGroup=group) == ResponseCode.SUCCESS
    await permit(lab, one, b"brokerPermission=4\nminInSyncReplicas=99\n")

    async def is_steady() -> bool:
        return (await reader_of(lab, one, two).read()).steady

    await eventually(is_steady, "the slave to have everything", within_seconds=20)
    closed = await reader_of(lab, one, two).read()
    assert (closed.takes_sends, closed.acknowledges, unread_topics(closed)) == (False, False, [])
    assert not closed.missing_topics
    two.process.ha_client.leave()

    async def is_unsteady() -> bool:
        return not (await reader_of(lab, one, two).read()).steady

    await eventually(is_unsteady, "a member of the SyncStateSet without a link", within_seconds=20)
    with pytest.raises(BrokerCallError, match="its log is of epoch 1, expected 2"):
        await reader_of(lab, one, epoch=2).read()


async def test_a_slave_is_not_read(lab: Lab) -> None:
    _, two = await lab.pair()
    with pytest.raises(BrokerCallError, match=r"1007 has no answer of broker 1|no master"):
        await reader_of(lab, two).read()


async def test_a_plane_reads_the_master_of_the_record(start_plane: StartPlane, lab: Lab, tmp_path: Path) -> None:
    plane = await start_plane(heartbeat_timeout_seconds=5.0)
    for number in (1, 2):
        lab.started.append(await start_replica(tmp_path / f"r{number}", plane.address, syncBrokerMetadataPeriod=300))
    await eventually(lambda: is_complete(plane, 2))
    (key,) = plane.keys()
    record = record_of(plane)
    assert record is not None
    master = next(one for one in lab.started if one.address == record.address_of(record.granted_master_id))
    await lab.client.store(master, b"a")
    offsets = await plane.offsets(key)
    assert (offsets.master_id, offsets.epoch) == (record.master_broker_id, record.master_epoch)
    assert described(unread_topics(offsets)) == "topic Topic: 1 messages in 1 queue that no consumer group reads"
    await plane.switch_master(key, from_broker_id=record.master_broker_id)

    async def is_read_again() -> bool:
        with suppress(GroupViewError):  # refused while the change is under way
            return (await plane.offsets(key)).epoch == record.master_epoch + 1
        return False

    await eventually(is_read_again, "the end of the switchover", within_seconds=20)
    for replica in lab.started:
        await replica.stop()
    with pytest.raises(GroupViewError):
        await plane.offsets(key)
    with pytest.raises(GroupUnknownError):
        await plane.offsets(GroupKey("default", "unknown"))


async def test_a_topic_that_only_a_slave_has_is_told(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of an earlier master, before an unclean election: it may hold messages."""
    one, two = await lab.pair()
    await lab.client.store(one, b"a")
    # A copy of the master's topics, every 5 s, would remove it.
    monkeypatch.setattr(two.process.broker.topics, "replace_all", lambda _topics, **_: None)
    two.process.broker.topics.create("Lost", queue_count=1, now_ms=1)
    assert "Lost" in (await reader_of(lab, one, two).read()).missing_topics


async def test_queues_beyond_todays_number_are_listed(lab: Lab) -> None:
    """A topic that was made smaller keeps the messages of its former queues."""
    one = await lab.master()
    await lab.client.store(one, b"a", topic="Orders")
    one.process.store.queues.queue("Orders", 9).add(0, 0, 100, 1)
    answer = await lab.client.ask(one, RequestCode.GET_TOPIC_STATS_INFO, ext_fields={"topic": "Orders"})
    assert 9 in decode_topic_stats(answer.body)
