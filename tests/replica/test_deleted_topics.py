"""A topic that is deleted (215) stays deleted: at the master, at its slaves, after a failover, a restart and a truncation.

The specification (004): made, written to and deleted within one sync of metadata, a topic is in the slave's log and not in its
table of topics, and a slave that becomes master would make it again from the log.
"""

from __future__ import annotations

import asyncio
import errno
from typing import TYPE_CHECKING
from unittest import mock

import pytest

from rocketmq_remoting.codes import RequestCode, ResponseCode
from rocketmq_remoting.message_record import decode_records
from rocketmq_replica.log import disk, side_files
from rocketmq_replica.log.side_files import TooManyDeletionsError
from tests.replica.stores import put
from tests.replica.support import numbered
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from pathlib import Path

    from rocketmq_replica.log.message_store import MessageStore
    from tests.replica.stores import Stores
    from tests.replica.support import Client, Lab, RunningReplica

SUCCESS = ResponseCode.SUCCESS
DELETE = RequestCode.DELETE_TOPIC_IN_BROKER


async def delete(client: Client, replica: RunningReplica, topic: str) -> tuple[int, str]:
    answer = await client.ask(replica, DELETE, ext_fields={"topic": topic})
    return answer.code, answer.remark or ""


async def topics_of(client: Client, replica: RunningReplica) -> set[str]:
    return set((await client.table(replica, RequestCode.GET_ALL_TOPIC_CONFIG))["topicConfigTable"])


async def offset_table(client: Client, replica: RunningReplica) -> dict[str, dict[str, int]]:
    table: dict[str, dict[str, int]]
    table = (await client.table(replica, RequestCode.GET_ALL_CONSUMER_OFFSET))["offsetTable"]
    return table


async def test_what_java_answers_is_answered(lab: Lab) -> None:
    one, two = await lab.pair()
    await lab.client.store(one, b"x", topic="T")
    assert await delete(lab.client, two, "T") == (ResponseCode.SYSTEM_ERROR, "this broker is no master")
    assert "T" in await topics_of(lab.client, one)
    version = one.process.broker.topics.data_version()
    assert await delete(lab.client, one, "T") == (SUCCESS, "")
    assert "T" not in await topics_of(lab.client, one)
    assert one.process.broker.topics.data_version() != version, "a Java slave copies only another version"
    assert await delete(lab.client, one, "T") == (SUCCESS, ""), "a topic that is not there is no error"
    assert await delete(lab.client, one, " ") == (ResponseCode.INVALID_PARAMETER, "The specified topic is blank.")
    for name in ("TBW102", "SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer", "broker-a", "DefaultCluster"):
        remark = f"The topic[{name}] is conflict with system topic."
        assert await delete(lab.client, one, name) == (ResponseCode.INVALID_PARAMETER, remark)


async def test_a_topic_made_and_deleted_within_one_copy_is_not_there_after_a_failover(lab: Lab) -> None:
    one, two = await lab.pair()
    await two.process.metadata.copy()
    await lab.client.store(one, *numbered(3), topic="Passing")
    assert await lab.client.commit(one, 2, topic="Passing") == SUCCESS
    await lab.client.store(one, b"kept", topic="Kept")
    assert await lab.client.commit(one, 1, topic="Kept") == SUCCESS
    assert await delete(lab.client, one, "Passing") == (SUCCESS, "")
    assert await lab.client.commit(one, 3, topic="Passing") == ResponseCode.TOPIC_NOT_EXIST, (
        "its consumers go on committing"
    )
    await eventually(lambda: two.process.store.max_offset == one.process.store.max_offset)
    await two.process.metadata.copy()
    await lab.fail_over(one, two)
    assert {"Passing", "Kept"} & await topics_of(lab.client, two) == {"Kept"}
    assert (await lab.client.pull(two, 0, topic="Passing")).code == ResponseCode.TOPIC_NOT_EXIST
    assert await offset_table(lab.client, two) == {"Kept@CG": {"0": 1}}
    again = await lab.start("r1")
    await eventually(lambda: again.role == "SLAVE")
    await again.process.metadata.copy()
    assert "Passing" not in await topics_of(lab.client, again)


async def test_a_slave_forgets_the_offsets_of_a_topic_that_is_deleted_a_second_time(lab: Lab) -> None:
    one, two = await lab.pair()
    for _ in range(2):
        answer = await lab.client.send(one, b"x", topic="Only")
        number = int((answer.ext_fields or {})["queueOffset"])
        assert await lab.client.commit(one, number + 1, topic="Only") == SUCCESS
        await two.process.metadata.copy()
        assert await offset_table(lab.client, two) == {"Only@CG": {"0": number + 1}}
        assert await delete(lab.client, one, "Only") == (SUCCESS, "")
        assert await offset_table(lab.client, one) == {}
        await two.process.metadata.copy()
        assert await offset_table(lab.client, two) == {}


async def test_a_crash_between_the_topics_end_and_that_of_its_offsets_leaves_none(lab: Lab) -> None:
    """Offsets are saved every few seconds."""
    one, _ = await lab.pair()
    await lab.client.store(one, b"x", topic="Only")
    assert await delete(lab.client, one, "Only") == (SUCCESS, "")
    for topic in ("Only", "Kept"):
        one.process._offsets.put("CG", topic, 0, 1)
    await one.stop()
    one = await lab.master()
    assert await offset_table(lab.client, one) == {"Kept@CG": {"0": 1}}


async def test_a_crash_before_a_topic_that_was_made_again_is_saved_keeps_its_offsets(lab: Lab) -> None:
    """Without them a group that begins at the end would skip what it has not read."""
    one, _ = await lab.pair()
    await lab.client.store(one, b"x", topic="Again")
    assert await delete(lab.client, one, "Again") == (SUCCESS, "")
    table = one.process.configuration.root_folder / "config" / "topics.json"
    before = table.read_bytes()
    await lab.client.store(one, *[b"new"] * 2, topic="Again")
    assert await lab.client.commit(one, 2, topic="Again") == SUCCESS
    await one.stop()
    table.write_bytes(before)
    one = await lab.master()
    assert await offset_table(lab.client, one) == {"Again@CG": {"0": 2}}
    assert "Again" in await topics_of(lab.client, one)


async def test_a_deleted_topic_stays_so_over_a_restart_and_its_numbers_go_on(lab: Lab) -> None:
    """Java begins with 0 again, and its slaves, which keep their queues, then drop the first messages as repeated."""
    one, two = await lab.pair()
    await lab.client.store(one, *(b"old %d" % number for number in range(3)), topic="T")
    assert await delete(lab.client, one, "T") == (SUCCESS, "")
    await two.process.metadata.copy()
    await one.stop()
    one = await lab.master()
    assert "T" not in await topics_of(lab.client, one)
    await lab.rejoin(two)
    answer = await lab.client.send(one, b"new", topic="T")
    assert (answer.code, (answer.ext_fields or {})["queueOffset"]) == (SUCCESS, "3")
    await eventually(lambda: two.process.store.max_offset == one.process.store.max_offset)
    await two.process.metadata.copy()
    await lab.fail_over(one, two)
    moved = await lab.client.pull(two, 0, topic="T")
    assert moved.code == ResponseCode.PULL_OFFSET_MOVED
    assert (moved.ext_fields or {})["nextBeginOffset"] == "3"
    answer = await lab.client.pull(two, 3, topic="T")
    assert [message.body for message in decode_records(answer.body or b"")] == [b"new"]


async def test_a_deletion_that_no_slave_copied_ends_with_its_master(lab: Lab) -> None:
    """The new master lists the topic, so its messages are back, at the old master too: no replica loses what others serve."""
    one, two = await lab.pair()
    await lab.client.store(one, b"old", topic="T")
    await two.process.metadata.copy()
    assert await delete(lab.client, one, "T") == (SUCCESS, "")
    await lab.fail_over(one, two)
    assert await lab.client.bodies(two, topic="T") == [b"old"]
    one = await lab.join("r1")
    await one.process.metadata.copy()
    await lab.fail_over(two, one)
    assert await lab.client.bodies(one, topic="T") == [b"old"]


async def test_a_pull_that_waits_at_a_deleted_topic_is_answered(lab: Lab) -> None:
    one, _ = await lab.pair()
    await lab.client.store(one, b"x", topic="T")
    waiting = asyncio.create_task(lab.client.pull(one, 1, topic="T", suspend_ms=9000))
    await eventually(lambda: bool(one.process.pulls._held))
    assert await delete(lab.client, one, "T") == (SUCCESS, "")
    assert (await waiting).code == ResponseCode.TOPIC_NOT_EXIST


async def test_a_master_without_a_list_of_deletions_brings_a_listed_topic_back_and_no_other(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a Java master: what it lists it serves whole; of what it does not list the slave's own mark decides."""
    one, two = await lab.pair()
    for topic in ("Listed", "Gone"):
        await lab.client.store(one, b"x", topic=topic)
    listed = one.process.broker.topics.find("Listed")
    assert listed is not None
    for topic in ("Listed", "Gone"):
        assert await delete(lab.client, one, topic) == (SUCCESS, "")
    await two.process.metadata.copy()
    assert two.process.store.deleted_topics.keys() == {"Listed", "Gone"}
    one.process.broker.topics.put(listed, now_ms=1)
    one.process.store.take_deleted_topics({})
    monkeypatch.setattr(one.process.broker.topics, "adopt", lambda *_, **__: None)
    await two.process.metadata.copy()
    assert two.process.store.deleted_topics.keys() == {"Gone"}
    await lab.change_master(two)
    assert {"Listed", "Gone"} & await topics_of(lab.client, two) == {"Listed"}
    assert await lab.client.bodies(two, topic="Listed") == [b"x"]


async def test_a_master_whose_log_begins_above_a_mark_takes_it_away_from_no_slave(lab: Lab) -> None:
    """It drops marks of messages that it has no more; a slave keeps its log for longer, and they would be there again."""
    one, two = await lab.pair()
    await lab.client.store(one, b"x", topic="T")
    assert await delete(lab.client, one, "T") == (SUCCESS, "")
    await two.process.metadata.copy()
    mark = two.process.store.deleted_topics["T"]
    await lab.client.store(one, b"new", topic="T")
    document = await lab.client.table(one, RequestCode.GET_ALL_TOPIC_CONFIG)
    document |= {"deletedTopics": {}, "logBeginsAt": mark.end_offset}
    two.process.metadata._take_topics(document)
    assert two.process.store.deleted_topics == {"T": mark}
    two.process.metadata._take_topics(document | {"logBeginsAt": mark.end_offset - 1})
    assert two.process.store.deleted_topics == {}


async def test_a_disk_that_takes_no_deletion_keeps_the_topic(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    one, _ = await lab.pair()
    await lab.client.store(one, b"x", topic="T")
    with monkeypatch.context() as patch:
        patch.setattr(disk, "rename", mock.Mock(side_effect=OSError(errno.ENOSPC, "no space")))
        code, remark = await delete(lab.client, one, "T")
    assert (code, remark) == (ResponseCode.SYSTEM_ERROR, "topic T not deleted, ask again: [Errno 28] no space")
    assert "T" in await topics_of(lab.client, one)
    assert await lab.client.bodies(one, topic="T") == [b"x"]
    assert await delete(lab.client, one, "T") == (SUCCESS, "")


def shown(store: MessageStore, topic: str = "T") -> list[int]:
    queue = store.queues.queue(topic, 0)
    return [number for number in range(queue.next_offset) if queue.locate(number) is not None]


def test_what_is_deleted_is_what_was_there_before_in_every_file_and_after_every_start(
    tmp_path: Path, stores: Stores
) -> None:
    store = stores.open()
    store.begin_epoch(1)
    for _ in range(40):
        put(store, b"x" * 200)
    assert len(store.log.files()) > 2
    store.delete_topic("T")
    assert (shown(store), list(store.queues.names())) == ([], [])
    queue = store.queues.queue("T", 0)
    assert (queue.min_offset, queue.next_offset, queue.earliest_store_timestamp_ms) == (40, 40, -1)
    assert queue.visible_end(store.max_offset) == 40
    put(store, b"new")
    store.confirm_offset = store.max_offset
    for wipe_index in (False, False, True):
        assert shown(store) == [40]
        assert list(store.queues.names()) == [("T", 0)]
        queue = store.queues.queue("T", 0)
        assert (queue.min_offset, queue.visible_end(store.max_offset), queue.first_stored_at_or_after(0)) == (
            40,
            41,
            40,
        )
        stores.close()
        if wipe_index:
            for path in (tmp_path / "indexed").iterdir():
                path.unlink()
        store = stores.open()
    store.delete_oldest_files(1)
    assert (shown(store), store.queues.queue("T", 0).min_offset) == ([40], 40)


async def test_too_many_deletions_bring_no_topic_back(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that may make topics may delete them, again and again."""
    monkeypatch.setattr(side_files, "MAX_DELETED_TOPICS", 2)
    one, two = await lab.pair()
    for topic in ("A", "B", "C"):
        await lab.client.store(one, b"x", topic=topic)
    assert await delete(lab.client, one, "A") == await delete(lab.client, one, "B") == (SUCCESS, "")
    code, remark = await delete(lab.client, one, "C")
    assert code == ResponseCode.SYSTEM_ERROR
    assert "2 deleted topics have messages in the log, expected at most 2" in remark
    assert await lab.client.bodies(one, topic="C") == [b"x"], "it is there as it was"
    await two.process.metadata.copy()
    await eventually(lambda: two.process.store.max_offset == one.process.store.max_offset)
    await lab.fail_over(one, two)
    assert {"A", "B", "C"} & await topics_of(lab.client, two) == {"C"}


def test_marks_of_messages_that_are_gone_make_room(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(side_files, "MAX_DELETED_TOPICS", 2)
    store = stores.open()
    store.begin_epoch(1)
    for topic in ("A", "B", "C"):
        put(store, b"x", topic=topic)
    store.delete_topic("A")
    for _ in range(20):
        put(store, b"x" * 400, topic="Other")
    store.delete_topic("B")
    with pytest.raises(TooManyDeletionsError):
        store.delete_topic("C")
    store.delete_oldest_files(1)
    store.delete_topic("C")
    assert store.deleted_topics.keys() == {"B", "C"}
    for _ in range(2):
        assert {name for name, _ in store.queues.names()} == {"Other"}
        store = stores.reopen()
    assert put(store, b"new", topic="A") == store.max_offset
    assert shown(store, "A") == [1], "its numbers go on"
