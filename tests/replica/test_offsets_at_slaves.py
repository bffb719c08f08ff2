"""One consumer group at master and slave (specification 004): what its consumers have read is neither lost nor moved back.

While the master is away a client sends its commits to a slave. Two consumers of one group may read one queue at master and slave,
because they learn routes at different times. Java's slave takes such a commit and overwrites it at its next copy.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest

from rocketmq_remoting.codes import RequestCode, ResponseCode
from rocketmq_remoting.message_record import decode_records
from rocketmq_replica.ha import metadata_sync
from rocketmq_replica.tables import ConsumerOffsets
from tests.replica.support import (
    Client,
    FakeController,
    RunningReplica,
    Starter,
    change_master,
    eventually,
    start_master,
    start_pair,
)

if TYPE_CHECKING:
    from pathlib import Path

    from rocketmq_remoting.command import RemotingCommand

SUCCESS = ResponseCode.SUCCESS
MESSAGES = [b"%d" % number for number in range(10)]


async def commit(client: Client, replica: RunningReplica, offset: int, **more: str) -> int:
    return await client.commit(replica.address, offset, **more)


async def committed(client: Client, replica: RunningReplica) -> int | None:
    fields = {"consumerGroup": "CG", "topic": "Topic", "queueId": "0", "setZeroIfNotFound": "false"}
    answer = await client.ask(replica.address, RequestCode.QUERY_CONSUMER_OFFSET, ext_fields=fields)
    return int((answer.ext_fields or {})["offset"]) if answer.code == SUCCESS else None


async def read_and_commit(client: Client, replica: RunningReplica, offset: int, commits: int) -> list[bytes]:
    """A pull that commits, as consumers send it to whichever broker they read from."""
    answer = await client.pull(replica.address, offset, sysFlag="5", commitOffset=str(commits))
    return [message.body for message in decode_records(answer.body or b"")]


async def written_pair(
    start: Starter, controller: FakeController, client: Client
) -> tuple[RunningReplica, RunningReplica]:
    """Ten messages, of which the group has read four; the slave serves reads and has copied that."""
    one, two = await start_pair(start, controller, slaveReadEnable="true")
    for body in MESSAGES:
        assert (await client.send(one.address, body)).code == SUCCESS
    assert await commit(client, one, 4) == SUCCESS
    await two.process.metadata.copy()
    await eventually(lambda: two.process.store.confirm_offset == one.process.store.max_offset)
    assert await committed(client, two) == 4
    return one, two


async def test_what_is_read_at_a_slave_without_its_master_is_known_after_the_failover(
    start: Starter, controller: FakeController, client: Client
) -> None:
    one, two = await written_pair(start, controller, client)
    await one.stop()
    assert await read_and_commit(client, two, 4, 4) == MESSAGES[4:]
    assert await commit(client, two, 7) == SUCCESS
    assert await read_and_commit(client, two, 9, 9) == MESSAGES[9:]
    await two.process.metadata.copy()
    assert await committed(client, two) == 9, "a copy that cannot be had takes nothing away"
    await change_master(controller, two)
    assert await committed(client, two) == 9
    one = await start("r1", slaveReadEnable="true")
    await eventually(lambda: controller.members == {1, 2})
    await one.process.metadata.copy()
    assert await committed(client, one) == 9, "the old master comes back with 4"


async def test_what_is_read_at_a_slave_without_its_master_is_known_to_that_master_when_it_is_back(
    start: Starter, controller: FakeController, client: Client
) -> None:
    one, two = await written_pair(start, controller, client)
    await one.stop()
    assert await commit(client, two, 7) == SUCCESS
    await two.process.metadata.copy()
    one = await start_master(start, slaveReadEnable="true")
    await controller.notify(2)
    await eventually(lambda: controller.members == {1, 2})
    assert await committed(client, one) == 4
    await two.process.metadata.copy()
    assert (await committed(client, one), await committed(client, two)) == (7, 7)
    assert await commit(client, one, 2) == SUCCESS, "a consumer that goes back on purpose"
    await two.process.metadata.copy()
    assert (await committed(client, one), await committed(client, two)) == (2, 2), "told once, and not again"


async def test_two_consumers_of_one_group_at_master_and_slave_move_it_forward_only(
    start: Starter, controller: FakeController, client: Client
) -> None:
    one, two = await written_pair(start, controller, client)
    assert await read_and_commit(client, one, 4, 6) == MESSAGES[4:]
    assert await read_and_commit(client, two, 3, 5) == MESSAGES[3:]
    assert await commit(client, two, 3) == SUCCESS
    assert await read_and_commit(client, two, 2, 2) == MESSAGES[2:]
    assert await committed(client, two) == 5, "the slave knew 4, and 3 and 2 are behind it"
    await two.process.metadata.copy()
    assert (await committed(client, one), await committed(client, two)) == (6, 6), "5 is behind the master's 6"
    assert await commit(client, two, 8) == SUCCESS
    await two.process.metadata.copy()
    assert (await committed(client, one), await committed(client, two)) == (8, 8)
    assert await read_and_commit(client, two, 9, 9) == MESSAGES[9:]
    await two.process.metadata.copy()
    assert (await committed(client, one), await committed(client, two)) == (9, 9), "a pull's commit is told as well"
    await one.stop()
    await change_master(controller, two)
    assert await committed(client, two) == 9
    assert await read_and_commit(client, two, 9, 9) == MESSAGES[9:], "none is skipped"


async def test_a_master_that_does_not_take_it_is_told_once(
    start: Starter, controller: FakeController, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    """A Java master answers 26 for a group that it does not know."""
    one, two = await written_pair(start, controller, client)
    handlers, asked = one.process.dispatcher._handlers, []

    def refuse(request: RemotingCommand) -> RemotingCommand:
        asked.append((request.ext_fields or {})["commitOffset"])
        return request.answer(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark="Group CG not exist!")

    handlers[RequestCode.UPDATE_CONSUMER_OFFSET] = refuse
    assert await commit(client, two, 7) == SUCCESS
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            await two.process.metadata.copy()
    assert asked == ["7"]
    assert "Group CG not exist!" in caplog.text
    assert await committed(client, two) == 4


async def test_a_master_that_has_no_role_yet_is_told_again(
    start: Starter, controller: FakeController, client: Client
) -> None:
    """The slave asks as soon as that process listens: it serves its table, and takes nothing before it is master."""
    one, two = await written_pair(start, controller, client)
    await one.stop()
    assert await commit(client, two, 7) == SUCCESS
    silent = {RequestCode.CONTROLLER_REGISTER_BROKER, RequestCode.CONTROLLER_GET_REPLICA_INFO}
    controller.silent |= silent
    one = await start("r1", slaveReadEnable="true", address=one.process.configuration.broker_ip)
    await eventually(one.process.listening.is_set)
    await two.process.metadata.copy()
    assert (one.role, await committed(client, one), await committed(client, two)) == ("FENCED", 4, 7)
    controller.silent -= silent
    await eventually(lambda: one.role == "MASTER")
    await controller.notify(2)
    await eventually(lambda: controller.members == {1, 2})
    await two.process.metadata.copy()
    assert (await committed(client, one), await committed(client, two)) == (7, 7)


async def test_an_offset_that_the_master_does_not_take_now_is_in_no_others_way(
    start: Starter, controller: FakeController, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata_sync, "_MOST_REPORTED", 1)
    one, two = await written_pair(start, controller, client)
    handlers = one.process.dispatcher._handlers
    take = handlers[RequestCode.UPDATE_CONSUMER_OFFSET]

    def refuse_one(request: RemotingCommand) -> Any:
        if (request.ext_fields or {})["consumerGroup"] == "Never":
            return request.answer(ResponseCode.SYSTEM_ERROR, remark="not now")
        return take(request)

    handlers[RequestCode.UPDATE_CONSUMER_OFFSET] = refuse_one
    for group in ("Never", "CG"):
        assert await commit(client, two, 7, consumerGroup=group) == SUCCESS
    for _ in range(2):
        await two.process.metadata.copy()
    assert await committed(client, one) == 7
    assert [offset.group for offset in two.process._offsets.taken()] == ["Never"], "it is asked again"


@pytest.mark.parametrize("read_at_slave", [False, True])
async def test_a_slave_takes_no_offset_that_cannot_be_one(
    start: Starter, controller: FakeController, client: Client, *, read_at_slave: bool
) -> None:
    """Offsets go forward only: one that is too high would stay, and skip messages, until a person resets the group."""
    one, two = await written_pair(start, controller, client)
    if read_at_slave:
        await read_and_commit(client, two, 4, 1 << 60)
    else:
        assert await commit(client, two, 1 << 60) == ResponseCode.INVALID_PARAMETER
        assert await commit(client, two, 5, queueId="900") == ResponseCode.INVALID_PARAMETER
        assert await commit(client, two, 1, topic="Nowhere") == ResponseCode.TOPIC_NOT_EXIST
    assert two.process._offsets.taken() == []
    assert await commit(client, two, 10) == SUCCESS, "the end of the queue"
    await two.process.metadata.copy()
    assert (await committed(client, one), await committed(client, two)) == (10, 10)


async def test_a_master_takes_no_report_beyond_its_queue(
    start: Starter, controller: FakeController, client: Client
) -> None:
    """A slave's log may have been truncated since: the next message then gets that number, and no consumer has read it."""
    one, _ = await written_pair(start, controller, client)
    assert await commit(client, one, 11, onlyForward="true") == ResponseCode.INVALID_PARAMETER
    assert await commit(client, one, 10, onlyForward="true") == SUCCESS
    assert await commit(client, one, 7, onlyForward="true") == SUCCESS, "the master heard more since the slave's copy"
    assert await committed(client, one) == 10


async def test_a_slave_that_became_master_reports_nothing_of_before(
    start: Starter, controller: FakeController, client: Client
) -> None:
    one, two = await written_pair(start, controller, client)
    assert await commit(client, two, 7) == SUCCESS
    await change_master(controller, two)
    await controller.notify(1)
    await eventually(lambda: controller.members == {1, 2})
    assert await commit(client, two, 2) == SUCCESS, "a consumer that goes back on purpose"
    await one.process.metadata.copy()
    await change_master(controller, one)
    await controller.notify(2)
    await eventually(lambda: two.role == "SLAVE")
    await two.process.metadata.copy()
    assert (await committed(client, one), await committed(client, two)) == (2, 2)


async def test_a_replica_without_a_role_takes_no_offset(
    start: Starter, controller: FakeController, client: Client
) -> None:
    controller.silent |= {RequestCode.CONTROLLER_REGISTER_BROKER, RequestCode.CONTROLLER_GET_REPLICA_INFO}
    one = await start("r1")
    await eventually(one.process.listening.is_set)
    assert one.role == "FENCED"
    assert await commit(client, one, 1) == ResponseCode.SYSTEM_ERROR


def test_a_deleted_topic_leaves_nothing_to_tell(tmp_path: Path) -> None:
    offsets = ConsumerOffsets(tmp_path / "consumerOffset.json")
    offsets.take("CG", "Gone", 0, 3)
    offsets.take("CG", "Kept", 0, 3)
    offsets.forget_topics({"Gone"})
    assert [one.topic for one in offsets.taken()] == ["Kept"]
