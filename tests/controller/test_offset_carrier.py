"""Consumer offsets that a slave does not copy: the master's are written there (apache/rocketmq #10284)."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokergroup_operator.controller.peers.metadata import Metadata, Offsets
from brokergroup_operator.controller.plane import ControllerPlane
from brokergroup_operator.controller.upkeep import offset_carrier
from brokergroup_operator.controller.upkeep.metadata_guard import MOST_DIFFERENCES, lacking
from brokergroup_operator.controller.upkeep.offset_carrier import (
    IN_FLIGHT,
    MOST_REFUSALS,
    OffsetCarrier,
    offsets_to_write,
)
from brokergroup_operator.observe.group_view import MetadataKind
from rocketmq_remoting.codes import RequestCode
from tests.controller.conftest import record_of, snapshot_of
from tests.controller.world import KEY, World, compared_again
from tests.support.fake_broker import FakeBroker, eventually

NAME = "orders@billing"
SOON: dict[str, Any] = {"metadata_period_seconds": 0.3, "metadata_copy_seconds": 0.1}
# No comparison comes by itself: the test begins what it looks at.
NEVER: dict[str, Any] = {"metadata_period_seconds": 3600.0, "metadata_copy_seconds": 3600.0}


async def _three(group: World, **settings: Any) -> tuple[ControllerPlane, list[FakeBroker]]:
    """Start a group whose members have one topic and one consumer group, and copy nothing by themselves."""
    plane, brokers = await group.three_under(**settings)
    for broker in brokers:
        broker.topics["orders"], broker.groups["billing"], broker.takes_new_names = 4, 3, True
    return plane, brokers


def _written_at(broker: FakeBroker) -> int:
    return broker.asked.count(RequestCode.UPDATE_CONSUMER_OFFSET)


async def test_slaves_that_copy_no_offsets_get_the_masters_again_and_again(group: World) -> None:
    plane, (first, second, third) = await _three(group, **SOON)
    for offset in (7, 20, 21):
        first.offsets[NAME] = {0: offset, 1: 2 * offset}
        await eventually(lambda: second.offsets == third.offsets == first.offsets, what="slaves with its offsets")
    await eventually(lambda: set(group.notes.carried) == {2, 3}, what="a report of each")
    first.offsets[NAME][0] = 22
    await eventually(lambda: second.offsets == third.offsets == first.offsets, what="slaves with the last offset")
    assert sorted(group.notes.carried) == [2, 3]
    assert group.notes.differences == []
    assert snapshot_of(plane).metadata_diverged == ()
    assert _written_at(first) == 0


async def test_two_planes_do_not_keep_each_other_from_it(group: World) -> None:
    """Each takes what the other wrote for the slave's own copy."""
    planes = await group.several(2, **SOON)
    first, second, third = await group.three()
    for broker in (first, second, third):
        broker.topics["orders"], broker.groups["billing"], broker.takes_new_names = 4, 3, True
    for offset in range(10, 60, 10):
        first.offsets[NAME] = {0: offset}
        await eventually(lambda: second.offsets == third.offsets == first.offsets, what="slaves with its offset")
    assert [snapshot_of(plane).metadata_diverged for plane in planes] == [(), ()]


async def test_an_offset_that_a_person_lowered_at_the_master_is_lowered_at_the_slave(group: World) -> None:
    """Java's own copy replaces the offset as well. Else a failover would skip what the person wanted to be read again."""
    _, (first, second, _) = await _three(group, **SOON)
    first.offsets[NAME] = {0: 700}
    await eventually(lambda: second.offsets == first.offsets, what="its offset")
    first.offsets[NAME] = {0: 3}
    await eventually(lambda: second.offsets == {NAME: {0: 3}}, what="the lower offset")
    assert first.offsets == {NAME: {0: 3}}


async def test_a_slave_without_a_link_gets_none(group: World) -> None:
    plane, (first, second, third) = await _three(group, **SOON, link_check_seconds=0.05)
    third.ignores_ha_pushes_for_ever = True
    first.linked.discard(3)
    await eventually(lambda: snapshot_of(plane).unlinked == {3}, what="3 to count as unlinked")
    first.offsets[NAME] = {0: 7}
    await eventually(lambda: second.offsets == first.offsets, what="2 to get it")
    await compared_again(third)
    assert (third.offsets, _written_at(third)) == ({}, 0)
    third.ignores_ha_pushes_for_ever = False
    await eventually(lambda: third.offsets == first.offsets, what="3 to be linked, and to get it")


async def test_a_member_that_was_made_master_meanwhile_gets_none(group: World) -> None:
    """Its consumers may have committed later offsets there."""
    plane, (first, _, third) = await _three(group, **SOON)
    third.config["brokerRole"] = "SYNC_MASTER"
    first.offsets[NAME] = {0: 7}
    await eventually(lambda: {one.broker_id for one in snapshot_of(plane).metadata_diverged} == {3}, what="a report")
    await compared_again(third)
    assert (third.offsets, _written_at(third)) == ({}, 0)
    third.config["brokerRole"] = "SLAVE"
    await eventually(lambda: not snapshot_of(plane).metadata_diverged, what="nothing to be missing")
    assert third.offsets == first.offsets


async def test_offsets_of_a_deleted_group_or_topic_are_left_out(group: World) -> None:
    """A broker takes none for them: the group would wait for ever."""
    plane, (first, second, third) = await _three(group, **SOON)
    first.offsets |= {NAME: {0: 7}, "orders@deleted": {0: 9}, "deleted@billing": {0: 9}}
    await eventually(lambda: second.offsets == third.offsets == {NAME: {0: 7}}, what="the offset in use")
    await compared_again(third)
    assert group.notes.differences == []
    await plane.check_metadata(KEY, 3)


async def test_before_a_switchover_its_target_has_the_offsets_of_that_moment(group: World) -> None:
    plane, (first, second, third) = await _three(group, metadata_period_seconds=30.0, metadata_copy_seconds=15.0)
    first.offsets[NAME] = {0: 7}
    await eventually(lambda: second.offsets == third.offsets == first.offsets, within_seconds=90.0, what="the offset")
    first.offsets[NAME] = {0: 20}
    assert (await plane.switch_master(KEY, to_broker_id=2)).to_broker_id == 2
    assert second.offsets == {NAME: {0: 20}}
    assert third.offsets == {NAME: {0: 7}}


async def test_a_switchover_writes_nothing_at_a_slave_that_copies(group: World) -> None:
    plane, (first, second, _) = await _three(group, **NEVER)
    first.offsets[NAME], second.offsets[NAME] = {0: 7}, {0: 6}
    assert (await plane.switch_master(KEY, to_broker_id=2)).to_broker_id == 2
    assert (second.offsets, _written_at(second)) == ({NAME: {0: 6}}, 0)


class Carrier:
    """The carrier of a plane whose guard compares nothing, for one slave."""

    def __init__(self, plane: ControllerPlane, slave: FakeBroker) -> None:
        self.plane, self.slave = plane, slave
        group = plane._groups.get(KEY)
        assert group is not None
        self.record, self.group = record_of(plane), group
        self.carrier: OffsetCarrier = plane._metadata._offsets
        self.may_write = True
        # It is no slave of this master any more after so many writes.
        self.most_writes = 10_000

    async def carry(self, *, is_behind: bool) -> bool:
        """Whether something was written."""
        own = Metadata(
            topics=dict.fromkeys(self.slave.topics, ()),
            groups=dict.fromkeys(self.slave.groups, ()),
            offsets={name: dict(queues) for name, queues in self.slave.offsets.items()},
        )
        has = await self.carrier.carry(
            self.group,
            self.record,
            self.slave.broker_id,
            own,
            is_behind=is_behind,
            may_write=lambda: self.may_write and _written_at(self.slave) < self.most_writes,
        )
        assert has.offsets == (own.offsets if has is own else self.slave.offsets)
        return has is not own

    @property
    def copies_none(self) -> bool:
        return self.carrier.copies_none(self.group, self.record, self.slave.broker_id)


async def test_a_slave_that_copies_by_itself_is_left_alone(group: World) -> None:
    """What it copied is older than what the master has by now: to write that would double each of its copies."""
    plane, (first, second, _) = await _three(group, **NEVER)
    carrier = Carrier(plane, second)
    first.offsets[NAME] = {0: 7}
    assert await carrier.carry(is_behind=True)
    assert carrier.copies_none
    first.offsets[NAME], second.offsets[NAME] = {0: 9}, {0: 8}
    assert not await carrier.carry(is_behind=False)
    assert not carrier.copies_none
    assert second.offsets == {NAME: {0: 8}}
    assert group.notes.carried == []


async def test_of_a_name_that_the_slave_lacks_one_queue_is_written_before_the_others(group: World) -> None:
    """A Java broker loses one of two first offsets that come at once (seen: one of four queues was missing after the writes)."""
    plane, (first, second, _) = await _three(group, **NEVER)
    carrier = Carrier(plane, second)
    second.groups["shipping"], second.offsets["orders@shipping"] = 3, {0: 1}
    first.offsets |= {NAME: dict.fromkeys(range(40), 7), "orders@shipping": dict.fromkeys(range(40), 8)}
    assert await carrier.carry(is_behind=True)
    assert second.offsets == first.offsets


async def test_nothing_is_written_once_it_is_no_slave_of_this_master(group: World) -> None:
    plane, (first, second, _) = await _three(group, **NEVER)
    carrier = Carrier(plane, second)
    carrier.may_write = False
    first.offsets[NAME] = {0: 7}
    assert not await carrier.carry(is_behind=True)
    assert _written_at(second) == 0
    assert not carrier.copies_none
    carrier.may_write, carrier.most_writes = True, 20
    first.offsets[NAME] = dict.fromkeys(range(500), 7)
    assert await carrier.carry(is_behind=True)
    assert carrier.most_writes <= _written_at(second) < carrier.most_writes + IN_FLIGHT


async def test_a_slave_that_is_slow_is_written_to_for_its_time_alone(group: World) -> None:
    plane, (first, second, _) = await _three(group, **NEVER)
    carrier = Carrier(plane, second)
    carrier.carrier._settings = replace(carrier.carrier._settings, metadata_deadline_seconds=0.01)
    first.offsets[NAME] = dict.fromkeys(range(1000), 7)
    assert await carrier.carry(is_behind=True)
    assert 0 < _written_at(second) < 1000


async def test_what_is_known_of_a_slave_lasts_while_its_master_leads(group: World) -> None:
    plane, (first, second, _) = await _three(group, **NEVER)
    carrier = Carrier(plane, second)
    for epoch in (1, 2):
        carrier.record = replace(carrier.record, master_epoch=epoch)
        assert not carrier.copies_none
        for offset in (10 * epoch, 10 * epoch + 1):
            first.offsets[NAME] = {0: offset}
            assert await carrier.carry(is_behind=epoch * 10 == offset)
        assert group.notes.carried == [2] * epoch
        assert not await carrier.carry(is_behind=False), "nothing was read meanwhile"
        assert carrier.copies_none


async def test_a_slave_that_refuses_offsets_is_soon_left_alone(group: World) -> None:
    plane, (first, second, _) = await _three(group, **NEVER)
    carrier = Carrier(plane, second)
    second.takes_new_names = False
    first.offsets[NAME] = dict.fromkeys(range(500), 7)
    assert not await carrier.carry(is_behind=True)
    assert MOST_REFUSALS < _written_at(second) <= MOST_REFUSALS + IN_FLIGHT


async def test_a_slave_that_permits_none_is_left_alone_at_once(group: World) -> None:
    plane, (first, second, _) = await _three(group, **NEVER)
    carrier = Carrier(plane, second)
    second.refuses = lambda command: "no" if command.code == RequestCode.UPDATE_CONSUMER_OFFSET else ""
    first.offsets[NAME] = dict.fromkeys(range(500), 7)
    assert not await carrier.carry(is_behind=True)
    assert _written_at(second) <= IN_FLIGHT


async def test_more_than_one_look_may_write_is_written_in_turn(group: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offset_carrier, "MOST_OFFSETS", 40)
    plane, (first, second, _) = await _three(group, **NEVER)
    carrier = Carrier(plane, second)
    first.offsets[NAME] = dict.fromkeys(range(100), 7)
    written = [len(second.offsets.get(NAME, {})) for _ in range(3) if await carrier.carry(is_behind=True)]
    assert written == [40, 80, 100]
    assert second.offsets == first.offsets


NAMES = st.sampled_from(["a@g", "b@g", "a@h", "gone@g", "a@gone"])
OFFSETS = st.dictionaries(NAMES, st.dictionaries(st.integers(0, 2), st.integers(0, 5), min_size=1))
SLAVE = Metadata(topics={"a": (), "b": ()}, groups={"g": (), "h": ()})


@given(master=OFFSETS, own=OFFSETS)
def test_after_all_writes_a_slave_has_the_masters_offsets(master: Offsets, own: Offsets) -> None:
    writes = offsets_to_write(master, replace(SLAVE, offsets=own))
    has = {name: dict(queues) for name, queues in own.items()}
    for one in writes:
        has.setdefault(f"{one.topic}@{one.group}", {})[one.queue_id] = one.offset
    for name, queues in master.items():
        kept = own.get(name, {}) if "gone" in name else {**own.get(name, {}), **queues}
        assert has.get(name, {}) == kept
    assert has.keys() - master.keys() == own.keys() - master.keys()
    assert len(writes) == len(set(writes))
    missing = [one.queue_id not in own.get(f"{one.topic}@{one.group}", {}) for one in writes]
    assert missing == sorted(missing, reverse=True)
    firsts = [one for one in writes if one.is_first]
    assert writes[: len(firsts)] == firsts
    names = [f"{one.topic}@{one.group}" for one in firsts]
    assert sorted(names) == sorted(name for name in master.keys() - own.keys() if "gone" not in name)


def test_the_offset_that_is_furthest_behind_is_written_first() -> None:
    own: Offsets = {"a@g": {0: 4, 1: 1, 2: 5}}
    writes = offsets_to_write({"a@g": {0: 5, 1: 9, 2: 5}, "b@h": {0: 1}}, replace(SLAVE, offsets=own))
    assert [(one.topic, one.group, one.queue_id, one.offset) for one in writes] == [
        ("b", "h", 0, 1),
        ("a", "g", 1, 9),
        ("a", "g", 0, 5),
    ]


def test_an_older_offset_is_distinguished_from_one_that_is_not_there() -> None:
    """Without one, a consumer may begin at the end of the queue."""
    expected = Metadata(offsets={"a@g": {0: 5, 1: 5}, "b@g": {0: 5, 1: 5}, "c@g": {0: 5}})
    found = Metadata(offsets={"a@g": {0: 4, 1: 5}, "b@g": {0: 4}})
    differences = lacking(2, expected, found, makes_groups=True)
    assert [(one.name, one.only_older) for one in differences] == [("a@g", True), ("b@g", False), ("c@g", False)]


def test_many_older_offsets_do_not_hide_one_that_is_not_there() -> None:
    old = {f"a{number}@g": {0: 4} for number in range(2 * MOST_DIFFERENCES)}
    expected = Metadata(offsets={name: {0: 5} for name in (*old, "z@g")})
    differences = lacking(2, expected, Metadata(offsets=old), makes_groups=True)
    assert [one.name for one in differences if not one.only_older] == ["z@g"]
    assert {one.kind for one in differences} == {MetadataKind.CONSUMER_OFFSET}
