"""A look at a master, by what its requests answer: what is not known for certain counts against the deletion of the group."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from brokergroup_operator.controller.peers import offset_reader
from brokergroup_operator.controller.peers.broker_calls import BrokerCallError, Metadata, all_have_the_log
from brokergroup_operator.controller.peers.offset_reader import OffsetReader
from controller_core.model import BrokerGroupRecord, Replica
from rocketmq_remoting.broker_protocol import HAConnectionRuntimeInfo, HARuntimeInfoBody, QueueOffsets

CLOSED = {"brokerPermission": "4", "minInSyncReplicas": "99"}
TIMERS = {"timerOffsetBehind": 0, "timerCongestNum": 0, "timerReadBehind": 0}


def link(host: str, *, diff: int = 0, in_sync: bool = True) -> HAConnectionRuntimeInfo:
    return HAConnectionRuntimeInfo(addr=f"{host}:1000", diff=diff, in_sync=in_sync)


def status(*links: HAConnectionRuntimeInfo) -> HARuntimeInfoBody:
    return HARuntimeInfoBody(master=True, ha_connection_info=links)


class Answers:
    """The calls, with these answers."""

    def __init__(self, **changes: Any) -> None:
        self.shown: dict[str, str] = changes.get("shown", CLOSED)
        self.numbers: dict[str, int] = changes.get("numbers", {})
        self.links: tuple[HAConnectionRuntimeInfo, ...] = changes.get("links", (link("h2"),))
        self.of_slave: frozenset[str] = changes.get("of_slave", frozenset({"t"}))
        self.consumed: dict[str, dict[int, int]] = changes.get("consumed", {})
        self.answers_stats: bool = changes.get("answers_stats", True)
        self.under_way = 0

    async def end_of_log(self, *_: Any) -> tuple[int, int]:
        return 5, 1000

    async def broker_config(self, _: str) -> dict[str, str]:
        return self.shown

    async def runtime_numbers(self, _: str) -> dict[str, int]:
        return self.numbers

    async def metadata(self, _: str) -> Metadata:
        return Metadata(topics={"t": (1, 1, 6), "u": (1, 1, 6)}, offsets=self.consumed)

    async def delay_offsets(self, _: str) -> dict[int, int]:
        return {}

    async def topic_names(self, _: str) -> frozenset[str]:
        return self.of_slave

    async def ha_status(self, _: str) -> HARuntimeInfoBody:
        return status(*self.links)

    async def topic_readers(self, *_: str) -> frozenset[str]:
        return frozenset()

    async def topic_stats(self, _: str, topic: str) -> dict[int, QueueOffsets]:
        if topic == "u" and not self.answers_stats:
            raise BrokerCallError("202: no answer")
        self.under_way += 1
        try:
            await asyncio.sleep(0 if self.answers_stats else 60)
        finally:
            self.under_way -= 1
        return {0: QueueOffsets(minimum=0, maximum=5)}


def reader(answers: Answers) -> OffsetReader:
    replicas = {
        number: Replica(broker_id=number, register_check_code="c", address=f"h{number}:10911", registered=True)
        for number in (1, 2)
    }
    record = BrokerGroupRecord(
        cluster_name="c", broker_name="b", replicas=replicas, master_broker_id=1, master_epoch=5,
        sync_state_set=frozenset({1, 2}),
    )  # fmt: skip
    return OffsetReader(calls=answers, address="h1:10911", record=record, hosts={2: "h2"})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("hosts", "links", "expected"),
    [
        ({}, (), True),
        ({2: "h2"}, (), False),
        ({2: "h2"}, (link("h2"),), True),
        ({2: "h2"}, (link("h2", diff=1),), False),
        ({2: "h2", 3: "h3"}, (link("h2"),), False),
        ({2: "h2", 3: "h3"}, (link("h2"), link("h4")), False),
        ({2: "h", 3: "h"}, (link("h"), link("h")), True),
        ({2: "h", 3: "h"}, (link("h"), link("h", in_sync=False)), False),
    ],
)
def test_every_member_of_the_set_is_linked_and_lacks_nothing(
    hosts: dict[int, str], links: tuple[HAConnectionRuntimeInfo, ...], expected: bool
) -> None:
    assert all_have_the_log(hosts, status(*links)) is expected


@pytest.mark.parametrize(
    ("changes", "field", "expected"),
    [
        ({}, "steady", True),
        ({"links": ()}, "steady", False),
        ({"numbers": {"confirmOffset": 999}}, "steady", False),
        ({"numbers": {"confirmOffset": 1000}}, "steady", True),
        ({"numbers": {"dispatchBehindBytes": 1}}, "steady", False),
        ({"numbers": TIMERS}, "timers", None),
        ({"numbers": TIMERS, "shown": {"timerWheelEnable": "false"}}, "timers", None),
        ({"numbers": TIMERS, "shown": {"timerWheelEnable": "true"}}, "timers", 0),
        ({"of_slave": frozenset({"t", "old"})}, "missing_topics", frozenset({"old"})),
        ({"shown": {"enableLmq": "true", "enableMultiDispatch": "false"}}, "uncounted", ("enableLmq",)),
        ({"numbers": {"bootTimestamp": 12_000}}, "booted_at_unix_seconds", 12.0),
        ({}, "acknowledges", False),
        ({"shown": {"minInSyncReplicas": "2"}}, "acknowledges", True),
    ],
)
async def test_what_a_look_says(changes: dict[str, Any], field: str, expected: object) -> None:
    assert getattr(await reader(Answers(**changes)).read(), field) == expected


async def test_a_java_broker_acknowledges_unless_it_refuses_all_sends() -> None:
    """It asks no slave for a send with WAIT=false, whatever minInSyncReplicas is."""
    for ahead_seconds, acknowledges in ((0, True), (20, True), (100, False)):
        until_ms = str(int((time.time() + ahead_seconds) * 1000))
        shown = CLOSED | {"startAcceptSendRequestTimeStamp": until_ms}
        assert (await reader(Answers(shown=shown)).read()).acknowledges is acknowledges


async def test_groups_and_queues_with_an_offset_are_known_from_the_table_of_offsets() -> None:
    offsets = await reader(Answers(consumed={"t@a": {0: 5, 7: 3}, "u@b": {0: 1}})).read()
    assert (offsets.topics["t"].readers, offsets.topics["t"].unlisted) == (frozenset("a"), (7,))
    assert (offsets.topics["u"].readers, offsets.topics["u"].unlisted) == (frozenset("b"), ())


async def test_a_master_that_is_opened_during_a_look_is_not_closed() -> None:
    """A look at many topics takes a while: another plane may give the minimum back in that time, as the rest of a switchover."""

    class Opened(Answers):
        async def topic_stats(self, _: str, topic: str) -> dict[int, QueueOffsets]:
            self.shown = {"brokerPermission": "6", "minInSyncReplicas": "2"}
            return await super().topic_stats(_, topic)

    found = await reader(Opened()).read()
    assert (found.takes_sends, found.acknowledges) == (True, True)


async def test_a_look_that_fails_leaves_no_request_behind() -> None:
    answers = Answers(answers_stats=False)
    with pytest.raises(BrokerCallError, match="202: no answer"):
        await reader(answers).read()
    assert answers.under_way == 0


async def test_a_look_has_a_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offset_reader, "_LOOK_SECONDS", 0.0)
    with pytest.raises(BrokerCallError, match="its offsets took more than 0 s"):
        await reader(Answers()).read()
