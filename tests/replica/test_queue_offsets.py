"""A rebuilt member takes the ends of the queues from its master, so that no queue offset is given twice."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from rocketmq_remoting.codes import RequestCode, ResponseCode
from rocketmq_remoting.errors import RemotingError
from rocketmq_remoting.message_record import decode_records
from rocketmq_replica.ha.client import HaClient
from rocketmq_replica.ha.metadata_sync import MetadataSync
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from tests.replica.support import Lab, RunningReplica


def forget_old_files(replica: RunningReplica) -> None:
    """Let retention delete every file but the last."""
    store = replica.process.store
    store.delete_oldest_files(len(store.log.files()) - 1)


async def filled_after(lab: Lab, *bodies: bytes) -> RunningReplica:
    """A master whose topic had these messages, in files that are deleted."""
    one = await lab.master(mappedFileSizeCommitLog=4096)
    await lab.client.store(one, *bodies)
    await lab.client.store(one, *[b"x" * 1000] * 8, topic="Busy")
    forget_old_files(one)
    return one


async def test_a_rebuilt_member_gives_no_queue_offset_again(lab: Lab) -> None:
    """The member's log begins with the master's oldest file, which has no message of this topic; consumers read these long ago."""
    one = await filled_after(lab, b"first", b"second")
    assert await lab.client.commit(one, 2) == ResponseCode.SUCCESS
    two = await lab.join("r2", mappedFileSizeCommitLog=4096)
    await two.process.metadata.copy()
    await lab.fail_over(one, two)
    await lab.client.store(two, b"third")
    answer = await lab.client.pull(two, 2)
    assert [each.body for each in decode_records(answer.body or b"")] == [b"third"]
    await two.stop()
    two = await lab.start("r2", mappedFileSizeCommitLog=4096)
    assert two.process.store.queues.end("Topic", 0) == 3


@pytest.mark.parametrize("unanswered", [0, 1])
async def test_a_rebuilt_member_that_is_elected_at_once_gives_no_queue_offset_again(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, unanswered: int
) -> None:
    """Before its first regular copy of the tables."""
    one = await filled_after(lab, b"first", b"second")
    monkeypatch.setattr(MetadataSync, "run", lambda _: asyncio.Event().wait())
    ask, asked = MetadataSync._ask, 0

    async def answered_later(*arguments: Any) -> object:
        nonlocal asked
        asked += 1
        if asked <= unanswered:
            raise RemotingError("no answer")
        return await ask(*arguments)

    monkeypatch.setattr(MetadataSync, "_ask", answered_later)
    two = await lab.join("r2", mappedFileSizeCommitLog=4096)
    await lab.fail_over(one, two)
    await lab.client.store(two, b"third")
    assert two.process.store.queues.end("Topic", 0) == 3


async def test_a_slave_that_cannot_link_copies_the_tables_once(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MetadataSync, "run", lambda _: asyncio.Event().wait())
    dialled, copied, copy = 0, 0, MetadataSync.copy

    async def nowhere(_self: HaClient, _address: str) -> bool:
        nonlocal dialled
        dialled += 1
        return False

    async def count(self: MetadataSync) -> None:
        nonlocal copied
        copied += 1
        await copy(self)

    monkeypatch.setattr(HaClient, "_follow_once", nowhere)
    monkeypatch.setattr(MetadataSync, "copy", count)
    await lab.master()
    await lab.start("r2")
    await eventually(lambda: dialled > 2)
    assert copied == 1


async def test_a_rebuilt_member_keeps_the_queue_offsets_over_a_restart(lab: Lab) -> None:
    await filled_after(lab, b"first", b"second")
    two = await lab.join("r2", mappedFileSizeCommitLog=4096)
    await two.process.metadata.copy()
    await two.stop()
    two = await lab.start("r2", mappedFileSizeCommitLog=4096)
    assert two.process.store.queues.end("Topic", 0) == 2


async def test_queue_offsets_are_sent_once_to_each_slave_that_asks_for_them(lab: Lab) -> None:
    """There may be many thousand offsets, and operators and Java slaves read topics every 5 s too."""
    one = await filled_after(lab, b"first", b"second")
    assert "nextOffsets" not in await lab.client.table(one, RequestCode.GET_ALL_TOPIC_CONFIG)
    two = await lab.join("r2", mappedFileSizeCommitLog=4096)
    await two.process.metadata.copy()
    assert two.process.store.queues.end("Topic", 0) == 2
    queues, asked = one.process.store.queues, 0
    real = queues.ended

    def ended() -> dict[tuple[str, int], int]:
        nonlocal asked
        asked += 1
        return real()

    queues.ended = ended  # type: ignore[method-assign]
    await two.process.metadata.copy()
    assert asked == 0
    await lab.controller.elect(one.broker_id, one.broker_id)
    await lab.controller.notify(two.broker_id)
    await eventually(lambda: two.process.broker.master == one.process.broker.master)
    await two.process.metadata.copy()
    assert asked == 1, "it may be another master"


@pytest.mark.parametrize("rows", [{}, [["T", 0]], [[1, 0, 1]], [["T", -1, 1]], [["T", 0, -1]], [["T", 0, "1"]]])
async def test_invalid_queue_offsets_of_a_master_are_not_taken(lab: Lab, rows: object) -> None:
    one, two = await lab.pair()
    document = await lab.client.table(one, RequestCode.GET_ALL_TOPIC_CONFIG)
    with pytest.raises(ValueError, match="nextOffsets: expected"):
        two.process.metadata._take_topics(document | {"nextOffsets": rows})
    assert two.process.store.queues.next_offsets() == {}
