"""Metadata that slaves lack: compared before a switchover, after a failover, and periodically (upstream #9804)."""

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokergroup_operator.controller.peers.metadata import Metadata, read_metadata
from brokergroup_operator.controller.plane import ControllerPlane
from brokergroup_operator.controller.upkeep.metadata_guard import MOST_DIFFERENCES, lacking, settled
from brokergroup_operator.observe.group_view import GroupViewError, MetadataKind, SwitchoverRefusedError
from rocketmq_remoting.errors import BodyError
from tests.controller.conftest import snapshot_of
from tests.controller.world import KEY, World, compared_again
from tests.support.fake_broker import FakeBroker, eventually

SOON: dict[str, Any] = {"metadata_period_seconds": 0.05, "metadata_copy_seconds": 0.1}


def _diverged(plane: ControllerPlane) -> list[tuple[int, str, str]]:
    return [(one.broker_id, one.kind.value, one.name) for one in snapshot_of(plane).metadata_diverged]


async def test_a_slave_that_lacks_a_topic_for_long_is_told_of_until_it_has_it(group: World) -> None:
    plane, (first, second, third) = await group.three_under(**SOON)
    for broker in (first, second):
        broker.topics["orders"] = 4
        broker.groups["billing"] = 3
        broker.offsets["orders@billing"] = {0: 7}
    third.topics["orders"] = 8
    third.offsets["orders@billing"] = {0: 6}
    expected = [(3, "ConsumerOffset", "orders@billing"), (3, "SubscriptionGroup", "billing"), (3, "Topic", "orders")]
    await eventually(lambda: _diverged(plane) == expected, what="the differences")
    third.topics["orders"], third.groups["billing"], third.offsets["orders@billing"] = 4, 3, {0: 9}
    await eventually(lambda: not snapshot_of(plane).metadata_diverged, what="nothing to be missing")
    assert group.notes.differences[-1]
    assert all(one.broker_id == 3 for differences in group.notes.differences for one in differences)


async def test_a_group_made_anew_under_the_same_name_has_nothing_of_the_old_one(group: World) -> None:
    """The old group's topics were reported as lost for an hour."""
    plane, (first, *_) = await group.three_under(**SOON)
    first.topics["orders"] = 4
    await eventually(lambda: len(_diverged(plane)) == 2, what="both slaves to lack it")
    plane._groups._forget(KEY)
    plane._groups.get(KEY)
    assert _diverged(plane) == []


async def test_nobody_becomes_master_who_lacks_a_topic(group: World) -> None:
    """itboon/rocketmq-helm #33, apache/rocketmq #9804: topics were gone after a switch."""
    plane, (first, _, third) = await group.three_under(metadata_copy_seconds=0.1)
    first.topics["orders"] = third.topics["orders"] = 4
    with pytest.raises(SwitchoverRefusedError, match=r"broker 2 lacks 1 .* Topic 'orders'"):
        await plane.switch_master(KEY, to_broker_id=2)
    assert first.minimum == 2
    assert (await plane.switch_master(KEY)).to_broker_id == 3  # 2 has the longest log


async def test_a_member_is_said_to_have_all_of_it_only_if_that_was_found(group: World) -> None:
    """A backup is a copy of a slave: what that lacks is in no backup, and a switchover's benefit of the doubt is none here."""
    plane, (first, second, third) = await group.three_under(metadata_copy_seconds=0.1)
    first.topics["orders"] = second.topics["orders"] = 4
    await plane.check_metadata(KEY, 2)
    with pytest.raises(GroupViewError, match=r"broker 3 lacks 1 of the master's metadata, as Topic 'orders'"):
        await plane.check_metadata(KEY, 3)
    third.topics["orders"] = 4
    await plane.check_metadata(KEY, 3)
    third.answers_metadata = False
    with pytest.raises(GroupViewError, match="broker 3 or of its master can't be read"):
        await plane.check_metadata(KEY, 3)


def _each_change(plane: ControllerPlane) -> list[list[tuple[int, str, str]]]:
    """Collect the missing metadata at each change from now on."""
    found: list[list[tuple[int, str, str]]] = []
    plane.subscribe(lambda _: found.append(_diverged(plane)))
    return found


# Longer than any test: no report comes from a scheduled comparison.
NEVER = 3600.0


async def _three_compared(group: World) -> tuple[ControllerPlane, list[FakeBroker]]:
    """Wait for the first comparisons of a new master: the next would be in an hour."""
    plane, brokers = await group.three_under(metadata_period_seconds=NEVER, metadata_copy_seconds=0.1)
    await eventually(lambda: brokers[2].asked.count(21) > 0, what="the slaves to have been compared")
    return plane, brokers


async def test_what_a_switchover_was_refused_for_is_told_at_once_and_no_longer_than_it_is_so(group: World) -> None:
    plane, (first, second, third) = await _three_compared(group)
    first.topics["orders"] = third.topics["orders"] = 4
    first.groups["billing"] = third.groups["billing"] = 3
    with pytest.raises(SwitchoverRefusedError, match="broker 2 lacks 2"):
        await plane.switch_master(KEY, to_broker_id=2)
    expected = [(2, "SubscriptionGroup", "billing"), (2, "Topic", "orders")]
    assert _diverged(plane) == expected
    found = _each_change(plane)
    assert [[one.name for one in differences] for differences in group.notes.differences] == [["billing", "orders"]]
    # The next two comparisons keep the report while the topic is missing.
    await second.asked_again(21, times=3, what="it to be compared again, and soon")
    assert _diverged(plane) == expected
    assert [] not in found
    second.topics["orders"], second.groups["billing"] = 4, 3
    await eventually(lambda: not snapshot_of(plane).metadata_diverged, what="nothing to be missing")
    assert (await plane.switch_master(KEY, to_broker_id=2)).to_broker_id == 2


async def test_the_first_comparison_of_a_new_master_does_not_forget_a_refusal(group: World) -> None:
    """No snapshot of the new master exists yet to compare with."""
    plane, (first, second, third) = await group.three_under(metadata_period_seconds=NEVER, metadata_copy_seconds=0.1)
    second.answers_metadata = False
    assert (await plane.switch_master(KEY, to_broker_id=2)).confirmed
    await second.asked_again(21, what="a comparison that comes to nothing")
    second.answers_metadata = True
    second.topics["orders"] = 4
    with pytest.raises(SwitchoverRefusedError, match="lacks 1"):
        await plane.switch_master(KEY)
    expected = [(1, "Topic", "orders"), (3, "Topic", "orders")]  # no slave is left, and each is named
    assert _diverged(plane) == expected
    found = _each_change(plane)
    await third.asked_again(21, times=2, what="the first two comparisons")
    assert _diverged(plane) == expected
    assert [] not in found
    first.topics["orders"] = third.topics["orders"] = 4
    await eventually(lambda: not snapshot_of(plane).metadata_diverged, what="nothing to be missing")


async def test_what_is_refused_while_a_comparison_is_on_its_way_is_not_taken_back_by_it(group: World) -> None:
    plane, (first, second, third) = await group.three_under(**SOON)
    third.gives_metadata.clear()
    compared = third.asked.count(21)
    await eventually(lambda: third.asked.count(21) > compared, what="a comparison to wait for 3, with 2 in order")
    first.topics["orders"] = third.topics["orders"] = 4
    with pytest.raises(SwitchoverRefusedError, match="broker 2 lacks 1"):
        await plane.switch_master(KEY, to_broker_id=2)
    found = _each_change(plane)
    third.gives_metadata.set()
    await eventually(lambda: second.asked.count(21) > compared + 5, what="comparisons that began later")
    assert _diverged(plane) == [(2, "Topic", "orders")]
    assert [] not in found


async def test_a_topic_that_is_being_copied_is_waited_for(group: World) -> None:
    plane, (first, second, _) = await group.three_under()
    first.topics["orders"] = 4
    first.asked.clear()

    async def copy() -> bool:
        if 21 in second.asked:
            second.topics["orders"] = 4
        return second.is_master

    switching = asyncio.create_task(plane.switch_master(KEY, to_broker_id=2))
    await eventually(copy, what="2 to be master")
    assert (await switching).to_broker_id == 2


async def test_what_a_failover_lost_is_said_until_it_is_there_again(group: World) -> None:
    plane, (first, second, _) = await group.three_under(metadata_period_seconds=0.05, metadata_copy_seconds=0.2)
    first.topics["orders"] = 4
    await eventually(lambda: _diverged(plane), what="a picture of the first master")
    await first.kill()
    await eventually(lambda: second.is_master, what="2 to be master")
    await eventually(lambda: _diverged(plane) == [(2, "Topic", "orders")], what="the loss at the new master")
    second.topics["orders"] = 16
    await eventually(lambda: (2, "Topic", "orders") not in _diverged(plane), what="the loss to be over")


async def test_brokers_that_do_not_answer_are_not_compared_and_still_moved(group: World) -> None:
    plane, (first, second, third) = await group.three_under(**SOON)
    first.topics["orders"] = 4
    second.answers_metadata = third.answers_metadata = False
    assert (await plane.switch_master(KEY, to_broker_id=2)).to_broker_id == 2
    assert _diverged(plane) == []


def _copies_again(broker: FakeBroker) -> list[int]:
    """Return the requests that make a slave copy all metadata again, in order."""
    return [code for code in broker.asked if code in (17, 215, 200, 207)]


async def test_a_slave_that_does_not_copy_by_itself_is_made_to_once(group: World) -> None:
    """Java 5.5.0: a truncated page carried the new data version, so the slave never copies again."""
    plane, (first, second, third) = await group.three_under(metadata_period_seconds=0.5, metadata_copy_seconds=0.1)
    third.takes_new_names = True
    for broker in (first, second):
        broker.topics |= {"orders": 4, "zebras": 4}
        broker.groups["billing"] = 3
    third.topics["orders"] = 4
    await eventually(lambda: _diverged(plane), what="the differences")
    await eventually(lambda: not snapshot_of(plane).metadata_diverged, what="nothing to be missing")
    assert (third.topics, third.groups) == (first.topics, first.groups)
    assert _copies_again(third) in ([17, 215, 200], [200, 17, 215])
    assert _copies_again(first) == _copies_again(second) == []
    lacked = [[(one.broker_id, one.name) for one in differences] for differences in group.notes.copied_again]
    assert lacked == [[(3, "billing"), (3, "zebras")]]


async def test_it_is_made_to_only_after_two_comparisons_and_once_in_a_period(group: World) -> None:
    plane, (first, second, third) = await _three_compared(group)
    first.topics["orders"] = third.topics["orders"] = 4
    with pytest.raises(SwitchoverRefusedError, match="broker 2 lacks 1"):
        await plane.switch_master(KEY, to_broker_id=2)
    assert _copies_again(second) == []
    # It refuses, as a Python replica does: all else continues, and not every comparison repeats the request.
    await eventually(lambda: _copies_again(second) == [17], what="it to be asked soon, for all the hour")
    await compared_again(second)
    assert _copies_again(second) == [17]
    assert _diverged(plane) == [(2, "Topic", "orders")]
    assert group.notes.copied_again == []


async def test_it_is_made_to_ever_more_seldom_where_that_does_not_help(group: World) -> None:
    """apache/rocketmq #11041: with 2001 topics each copy lacks the last one."""
    plane, (first, second, third) = await group.three_under(metadata_period_seconds=0.2, metadata_copy_seconds=0.05)
    third.takes_new_names = third.copies_in_vain = True
    clock = asyncio.get_running_loop().time
    began_seconds = clock()
    first.topics["orders"] = second.topics["orders"] = 4
    await eventually(lambda: len(group.notes.copied_again) >= 4, what="the fourth request")
    assert clock() - began_seconds >= (1 + 2 + 4) * 0.2
    third.copies_in_vain = False
    await eventually(lambda: not _diverged(plane), what="it to be over")


async def test_what_was_only_late_once_is_not_copied_again(group: World) -> None:
    plane, (first, second, third) = await group.three_under(**SOON)
    third.takes_new_names = True
    found: list[list[tuple[int, str, str]]] = []

    def copied_in_time(_: object) -> None:
        if _diverged(plane):
            found.append(_diverged(plane))
            third.topics["orders"] = 4

    plane.subscribe(copied_in_time)
    first.topics["orders"] = second.topics["orders"] = 4
    await eventually(lambda: found and not _diverged(plane), what="the difference to come and go")
    assert _copies_again(third) == []


async def test_nobody_is_made_to_whom_the_master_has_no_link_to(group: World) -> None:
    plane, (first, second, third) = await group.three_under(**SOON, link_check_seconds=0.05)
    third.takes_new_names = True
    third.ignores_ha_pushes_for_ever = True
    first.linked.discard(3)
    await eventually(lambda: snapshot_of(plane).unlinked == {3}, what="3 to count as unlinked")
    first.topics["orders"] = second.topics["orders"] = 4
    await eventually(lambda: _diverged(plane) == [(3, "Topic", "orders")], what="the difference")
    await compared_again(third)
    assert _copies_again(third) == []
    third.ignores_ha_pushes_for_ever = False
    await eventually(lambda: not snapshot_of(plane).metadata_diverged, what="it to be linked, and then made to")


async def test_a_broker_that_would_give_the_passing_topic_a_route_is_not_asked(group: World) -> None:
    plane, (first, second, third) = await group.three_under(**SOON)
    third.takes_new_names = True
    third.config["enableSingleTopicRegister"] = "true"
    first.topics["orders"] = second.topics["orders"] = 4
    first.groups["billing"] = second.groups["billing"] = 3
    await eventually(lambda: 200 in third.asked, what="the groups to be copied again")
    await eventually(lambda: _diverged(plane) == [(3, "Topic", "orders")], what="only the topic to be missing")
    assert not {17, 215} & set(third.asked)


async def test_who_was_made_master_meanwhile_is_not_asked(group: World) -> None:
    """A master copies from no broker: the temporary entries that make a slave copy again would stay on it."""
    plane, (first, second, third) = await group.three_under(**SOON)
    third.takes_new_names = True
    third.config["brokerRole"] = "SYNC_MASTER"
    first.topics["orders"] = second.topics["orders"] = 4
    first.groups["billing"] = second.groups["billing"] = 3
    await eventually(lambda: len(_diverged(plane)) == 2, what="the differences")
    await compared_again(third)
    assert _copies_again(third) == []
    third.config["brokerRole"] = "SLAVE"
    await eventually(lambda: not snapshot_of(plane).metadata_diverged, what="a slave to be made to")


NAMES = st.sampled_from(["a", "b", "c"])
METADATA = st.builds(
    Metadata,
    topics=st.dictionaries(NAMES, st.tuples(st.integers(1, 2))),
    groups=st.dictionaries(NAMES, st.sampled_from([(True, True, True, 1, 16), (True, True, True, 1, 3)])),
    offsets=st.dictionaries(NAMES, st.dictionaries(st.integers(0, 1), st.integers(0, 3))),
)


def test_many_late_offsets_do_not_hide_a_topic() -> None:
    expected = Metadata(topics={"orders": (4, 4, 6)}, offsets={f"t{number}@g": {0: 5} for number in range(60)})
    found = lacking(3, expected, Metadata(), makes_groups=True)
    assert len(found) == MOST_DIFFERENCES
    assert (3, MetadataKind.TOPIC, "orders") in {(one.broker_id, one.kind, one.name) for one in found}


@given(before=METADATA, now=METADATA)
def test_a_copy_of_the_master_lacks_nothing_however_old_the_picture(before: Metadata, now: Metadata) -> None:
    assert lacking(2, settled(before, now), now, makes_groups=False) == ()


@given(before=METADATA, slave=METADATA)
def test_what_a_master_has_had_for_long_is_there_or_missing(before: Metadata, slave: Metadata) -> None:
    found = {(one.kind, one.name) for one in lacking(2, settled(before, before), slave, makes_groups=False)}
    for name, entry in before.topics.items():
        assert ((MetadataKind.TOPIC, name) in found) == (slave.topics.get(name) != entry)
    for name, entry in before.groups.items():
        assert ((MetadataKind.SUBSCRIPTION_GROUP, name) in found) == (slave.groups.get(name) != entry)
    for name, queues in before.offsets.items():
        behind = any(slave.offsets.get(name, {}).get(queue, 0) < offset for queue, offset in queues.items())
        assert ((MetadataKind.CONSUMER_OFFSET, name) in found) == behind


def test_a_group_that_any_consumer_makes_anew_is_not_missed() -> None:
    expected = Metadata(groups={"auto": (True, True, True, 1, 16), "tuned": (True, True, True, 1, 3)})
    named = [one.name for one in lacking(2, expected, Metadata(), makes_groups=True)]
    assert named == ["tuned"]
    assert len(lacking(2, expected, Metadata(), makes_groups=False)) == 2


def test_bodies_as_java_writes_them_are_read() -> None:
    version = b'"dataVersion":{"counter":3,"stateVersion":2,"timestamp":1}'
    topics = (
        b'{"topicConfigTable":{"t":{"order":false,"perm":6,"readQueueNums":8,"topicName":"t","writeQueueNums":8}},'
        + version
    )
    groups = b'{"forbiddenTable":{},"subscriptionGroupTable":{"g":{"consumeEnable":true,"retryMaxTimes":16}},' + version
    found = read_metadata(topics + b"}", groups + b"}", b'{"offsetTable":{"t@g":{0:12,1:9}}}')
    assert found.topics == {"t": (8, 8, 6)}
    assert found.offsets == {"t@g": {0: 12, 1: 9}}
    assert (found.topics_version, found.groups_version) == ("2/3", "2/3")


@pytest.mark.parametrize("body", [b"", b"[]", b'{"topicConfigTable":3}', b'{"topicConfigTable":{"t":[]}}', None])
def test_a_body_that_is_none_is_an_error(body: bytes | None) -> None:
    groups, offsets = json.dumps({"subscriptionGroupTable": {}}).encode(), b'{"offsetTable":{}}'
    with pytest.raises(BodyError):
        read_metadata(body, groups, offsets)
