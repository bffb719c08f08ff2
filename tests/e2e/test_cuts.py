"""Network faults between live Java brokers under load: no link to the master, a link to the wrong broker, lost metadata.
The operator reaches all of them all the time, so no broker counts as dead; each fault is reported and repaired, and no
acknowledged message is lost.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio

from brokergroup_operator.kube.resources import EVENTS
from rocketmq_remoting.broker_protocol import HARuntimeInfoBody
from rocketmq_remoting.codes import RequestCode
from rocketmq_remoting.command import request
from tests.e2e.conftest import REAL_PARTS
from tests.e2e.cuts import CLIENT_PORTS, HA_PORT, broken, callers_of, cut, led_astray, place_of
from tests.e2e.house import NAMESPACE, House, WholeGroup
from tests.e2e.java_house import open_java_house
from tests.e2e.stories import a_slave, address_of, ask, ask_for, condition, done, end_of, has_copied, holds

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from rocketmq_remoting.command import RemotingCommand

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.real(*REAL_PARTS, "nft"),
    pytest.mark.timeout(900),
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def house(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[House]:
    """The house of Java brokers: the sandbox's replicas share one network."""
    async with open_java_house(tmp_path_factory.mktemp("house")) as running:
        yield running


async def test_a_slave_cut_off_from_its_master_is_told_of_and_comes_back(group: WholeGroup) -> None:
    slave, master = a_slave(group), group.seen.master_id
    async with group.lossless():
        async with cut(place_of(group, slave), place_of(group, master or 0), HA_PORT):
            await holds(
                group, f"an Event about broker {slave}", lambda: tells(group, "MembersUnlinked", f"{{{slave}}}")
            )
            await group.until(lambda: f"broker {slave}:" in not_linked(group), "a condition that names it")
            await group.until_acknowledged()
        await group.until(lambda: condition(group, "ReplicationHealthy")[0] == "True", "it replicates again")
    assert group.seen.master_id == master
    assert await tells(group, "MembersLinked", "")


async def test_a_slave_that_hangs_on_another_slave_is_brought_back_by_new_epochs(group: WholeGroup) -> None:
    """It gets all data there and never enters the set; only a change of role ends an open link."""
    slave, master, epoch = a_slave(group), group.seen.master_id, group.seen.master_epoch
    other = next(one for one in group.seen.sync_state_set if one not in (slave, master))
    here, wrong = place_of(group, slave), place_of(group, other)
    async with group.lossless():
        async with led_astray(here, place_of(group, master or 0), wrong, HA_PORT):

            async def hangs_on_the_other() -> bool:
                return here.host in await callers_of(wrong, HA_PORT)

            await holds(group, "a chain of two slaves", hangs_on_the_other)
            # A Java slave may break a connection in its handshake and dial again: the one that brings data stays.
            before = await offset_of(group, slave)

            async def copies_from_the_other() -> bool:
                return await hangs_on_the_other() and await offset_of(group, slave) > before

            await holds(group, "a chain that data go through", copies_from_the_other)
        await group.until(lambda: f"broker {slave}:" in not_linked(group), "a condition that names it")
        assert here.host in await callers_of(wrong, HA_PORT), (
            "it is still linked there, though the right address is open"
        )
        await holds(group, "the cure", lambda: tells(group, "MemberRelinked", f"broker {slave} "))
        await group.until(group.is_settled, "it is in the set again")
    assert await callers_of(wrong, HA_PORT) == set()
    assert (group.seen.master_id, group.seen.master_epoch) == (master, epoch + 2)


async def test_nobody_becomes_master_who_lacks_a_topic_until_it_has_it(group: WholeGroup) -> None:
    """It gets data, but no metadata. The group is safe otherwise: else the switchover would be refused for that."""
    slave, master = a_slave(group), group.seen.master_id
    await until_safe(group)
    async with group.lossless():
        async with cut(place_of(group, slave), place_of(group, master or 0), *CLIENT_PORTS):
            await make_topic_and_group(group, "abroad")
            refused = await end_of(group, await ask_for(group, "Switchover", toBrokerId=slave))
            # Either reason may come first: this slave lacks metadata, or the group is not FailoverSafe because of that.
            assert refused["phase"] in ("Rejected", "Failed"), refused
            assert "SubscriptionGroup 'abroad'" in str(refused) or "MetadataDiverged" in str(refused), refused
            await group.until(lambda: f"broker {slave}: Topic abroad" in diverged(group), "what is missing is said")
            assert f"broker {slave}: SubscriptionGroup abroad" in diverged(group)
            assert group.seen.master_id == master
        await group.until(lambda: not diverged(group), "it has copied them")
        await done(group, "Switchover", toBrokerId=slave)
    assert group.seen.master_id == slave
    assert b'"abroad"' in ((await ask_the_master(group, request(RequestCode.GET_ALL_TOPIC_CONFIG))).body or b"")


async def test_who_lacks_a_topic_is_passed_over(group: WholeGroup) -> None:
    """Without load both slaves have the same data, and the one with the lower id would win."""
    slave, master = a_slave(group), group.seen.master_id
    other = next(one for one in group.seen.sync_state_set if one not in (slave, master))
    # Each slave of this master copies: after a change of master a Java slave may lack the address to copy from for 30 s (seen),
    # because it registered at the NameServer before its master had.
    await make_topic_and_group(group, "home")
    await holds(group, "both have copied once", lambda: copied(group, "home", slave, other))
    await until_safe(group)
    async with cut(place_of(group, slave), place_of(group, master or 0), *CLIENT_PORTS):
        await make_topic_and_group(group, "overseas")
        await holds(group, f"broker {other} has copied again", lambda: copied(group, "overseas", other))
        assert not await copied(group, "overseas", slave)
        result = await done(group, "Switchover")
    async with group.under_load():
        await group.until_acknowledged()
    await group.verify()
    assert result["toBrokerId"] == group.seen.master_id == other


async def tells(group: WholeGroup, reason: str, what: str) -> bool:
    """Whether an Event of this reason has this text in its message."""
    found = (await group.house.api.list(EVENTS, namespace=NAMESPACE)).items
    return any(one["reason"] == reason and what in one["message"] for one in found)


def message_of(group: WholeGroup, kind: str, status: str) -> str:
    """Return the condition's message while it has this status; else an empty text."""
    conditions: list[dict[str, Any]] = group.seen.status.get("conditions", [])
    return next((one["message"] for one in conditions if (one["type"], one["status"]) == (kind, status)), "")


def not_linked(group: WholeGroup) -> str:
    return message_of(group, "ReplicationHealthy", "False")


def diverged(group: WholeGroup) -> str:
    return message_of(group, "MetadataDiverged", "True")


async def test_a_shrink_that_was_refused_keeps_nobody_out(group: WholeGroup) -> None:
    """A Java master drops a slave from its own set when their link breaks, regardless of the answer. For the last slave the
    floor refuses that, and the master's later proposals both add and drop, or change nothing: seen for minutes.
    """
    slave, master, epoch = a_slave(group), group.seen.master_id or 0, group.seen.master_epoch
    other = next(one for one in group.seen.sync_state_set if one not in (slave, master))
    here, there = place_of(group, slave), place_of(group, master)

    async def counts_on_itself_alone() -> bool:
        answer = await ask_the_master(group, request(RequestCode.GET_BROKER_HA_STATUS))
        return HARuntimeInfoBody.decode(answer.body).in_sync_slave_nums == 0

    await until_safe(group)
    async with group.lossless():
        async with cut(place_of(group, other), there, HA_PORT):
            await group.until(lambda: set(group.seen.sync_state_set) == {master, slave}, "two of three are in the set")
            async with broken(here, there, HA_PORT):
                await holds(group, "the master has dropped them all", counts_on_itself_alone)
        await group.until(group.is_settled, "all are in the set again")
    assert (group.seen.master_id, group.seen.master_epoch) == (master, epoch)


async def until_safe(group: WholeGroup) -> None:
    await group.until(lambda: not diverged(group) and condition(group, "FailoverSafe")[0] == "True", "it is safe")


async def offset_of(group: WholeGroup, broker_id: int) -> int:
    """Return the end of a slave's log, by its answer to 907."""
    answer = await ask(address_of(group, broker_id), request(RequestCode.GET_BROKER_HA_STATUS))
    return HARuntimeInfoBody.decode(answer.body).ha_client_runtime_info.max_offset


async def copied(group: WholeGroup, name: str, *broker_ids: int) -> bool:
    """Whether all of these have the objects of ``make_topic_and_group``."""
    both = (RequestCode.GET_ALL_TOPIC_CONFIG, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
    return all([await has_copied(group, name, one, code) for one in broker_ids for code in both])


async def ask_the_master(group: WholeGroup, command: RemotingCommand) -> RemotingCommand:
    return await ask(group.seen.master_address(), command)


async def make_topic_and_group(group: WholeGroup, name: str) -> None:
    """Create both as `mqadmin updateTopic` and `updateSubGroup` do; the setting shows that no consumer created the group."""
    topic = {"topic": name, "defaultTopic": "TBW102", "readQueueNums": "4", "writeQueueNums": "4", "perm": "6"}
    topic |= {"topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false"}
    await ask_the_master(group, request(RequestCode.UPDATE_AND_CREATE_TOPIC, ext_fields=topic))
    body = json.dumps({"groupName": name, "retryMaxTimes": 3}).encode()
    await ask_the_master(group, request(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body))
