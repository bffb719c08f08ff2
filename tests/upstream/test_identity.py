"""Who is who: upstream issues about broker ids, addresses, and what a controller forgot or never knew."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from brokergroup_operator.controller.directory.group_directory import FixedDirectory, GroupBinding, Peer
from brokergroup_operator.records.store import GroupKey
from controller_core.settings import Adoption, ControllerSettings
from rocketmq_remoting.codes import RequestCode, ResponseCode
from tests.upstream.lab import WireGroup, eventually

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.upstream.lab import Controller, WireBroker

OK = 0
NEED_TO_BE_REGISTERED = ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED


async def test_issue_5745_a_broker_whose_address_changed_registers(group: WireGroup) -> None:
    """#5745: brokers were known by their address, so one that got another could not register. Fixed in 5.1.1, right here."""
    one, two = await group.in_sync(2)
    old_address = two.address
    await two.come_back(elsewhere=True)
    assert two.address != old_address
    assert (await two.register()).code == OK
    await two.heartbeat()
    state = await group.state()
    assert (state.members, state.others, state.alive) == ({1, 2}, set(), {1, 2})
    await one.die()
    after = await group.until(lambda state: state.master == two.broker_id, "the one that moved is master")
    assert after.master_address == two.address
    await eventually(lambda: two.notifications(2), "it is told at its new address")


async def test_issue_5989_a_broker_is_its_id_and_not_its_address(group: WireGroup) -> None:
    """#5989, #4808: persistent ids. A stranger at a former member's address is a new member, and takes nothing over."""
    one, two = await group.in_sync(2)
    port = int(two.address.rpartition(":")[2])
    await two.die()
    stranger = await group.starting_broker(port=port)
    await stranger.take_id()
    assert stranger.broker_id == 3
    assert (await stranger.register()).code == OK
    await stranger.heartbeat()
    state = await group.state()
    assert state.members == {1, 2}
    assert state.others == {3}
    assert two.broker_id not in state.alive
    assert state.master == one.broker_id


async def test_issue_4808_a_master_that_moved_is_told_at_its_new_address(group: WireGroup) -> None:
    """#4808 and its remainder: the answer to the moved master's own 1003 names its old address as the master's.

    In ours that answer names no master at all: its new process is granted an epoch first (safety rule 6).
    """
    [one] = await group.in_sync(1)
    old_address = one.address
    await one.move()  # and nobody has noticed yet that its former process is gone
    answer = await one.register()
    named = (answer.ext_fields or {}).get("masterAddress")
    assert named == (old_address if group.controller.is_java else None)
    await one.heartbeat()
    answer = await one.elect()
    assert answer.code in (OK, ResponseCode.CONTROLLER_MASTER_STILL_EXIST)
    assert (answer.ext_fields or {})["masterAddress"] == one.address != old_address


async def test_issue_4857_an_unknown_group_is_told_to_register(group: WireGroup) -> None:
    """#4857: the answer to a poll of an unknown group was one that brokers took for an error, so they never registered again.

    Fixed: code 2008 makes a broker register (1003); right here. What its 1003 is then answered is the next test's.
    """
    answer = await group.ask(RequestCode.CONTROLLER_GET_REPLICA_INFO)
    assert answer.code == ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST


async def test_source_only_the_next_id_can_be_taken(group: WireGroup) -> None:
    """Source: any free id is given to whoever asks for it, and counted as one: later the next id is one in use."""
    await group.broker()
    stranger = await group.starting_broker()
    answer = await stranger.apply(3)
    if not group.controller.is_java:
        assert answer.code == ResponseCode.CONTROLLER_BROKER_ID_INVALID
        return
    assert answer.code == OK
    victim = await group.starting_broker()
    answer = await victim.ask(RequestCode.CONTROLLER_GET_NEXT_BROKER_ID)
    assert (answer.ext_fields or {})["nextBrokerId"] == "3"
    answer = await victim.apply(3)
    assert answer.code == ResponseCode.CONTROLLER_BROKER_ID_INVALID


async def test_source_a_cleaned_id_is_never_given_again(group: WireGroup) -> None:
    """Source: an id that clean freed is anybody's; the broker that had it still has its identity file, and its log."""
    await group.in_sync(2)
    third = await group.broker()
    await third.die()
    await group.until(lambda state: third.broker_id not in state.alive, "the third is gone")
    answer = await group.ask(RequestCode.CLEAN_BROKER_DATA, brokerControllerIdsToClean="3", isCleanLivingBroker="false")
    assert answer.code == OK
    stranger = await group.starting_broker()
    answer = await stranger.apply(3)
    assert answer.code == (OK if group.controller.is_java else ResponseCode.CONTROLLER_BROKER_ID_INVALID)


async def test_source_brokers_that_the_controller_forgot_are_taken_in_again(
    controller: Controller, start_ours: Callable[..., Awaitable[Controller]]
) -> None:
    """Source: after the controller's data was lost, brokers with an identity file are answered 2010 for ever.

    Ours takes them in under the ids that they have (who may: settings `adoption`), waits until as many were heard as the group has,
    and grants the one with the most data an epoch above all that they remember.
    """
    if not controller.is_java:
        settings = ControllerSettings(adoption=Adoption.ANYBODY, expected_replicas=2)
        controller = await start_ours(directory=FixedDirectory(settings=settings))
    async with WireGroup(controller) as group:
        one = await group.starting_broker(epoch=7, max_offset=1000)
        two = await group.starting_broker(epoch=7, max_offset=2000)
        for broker_id, broker in enumerate((one, two), start=1):
            broker.broker_id = broker_id
            group.brokers[broker_id] = broker
            answer = await broker.register()
            if controller.is_java:
                assert answer.code == NEED_TO_BE_REGISTERED
                await broker.heartbeat()
                assert (await broker.register()).code == NEED_TO_BE_REGISTERED
            else:
                assert answer.code == OK
                broker.keep_beating()
        if controller.is_java:
            assert not (await group.state()).known
            return
        await eventually(lambda: has_a_master(one), "a master, for a broker that goes on asking")
        after = await group.state()
        assert after.master == two.broker_id
        assert after.master_epoch > 7
        assert after.members | after.others == {1, 2}
        assert (await group.broker()).broker_id == 3


async def has_a_master(broker: WireBroker) -> bool:
    """1002, as a broker without a master goes on asking."""
    return (await broker.elect()).code in (OK, ResponseCode.CONTROLLER_MASTER_STILL_EXIST)


class TwoClusters(FixedDirectory):
    """Groups by cluster and name, as the Kubernetes directory finds them; a brokerName alone does not make a group."""

    def find(self, broker_name: str, *, cluster_name: str = "", peer: Peer | None = None) -> GroupBinding | None:
        found = super().find(f"{cluster_name}-{broker_name}", cluster_name=cluster_name, peer=peer)
        if found is None or not cluster_name:
            return None
        binding = replace(found, key=GroupKey("standalone", f"{cluster_name}-{broker_name}"), broker_name=broker_name)
        self._bindings[binding.key] = binding
        return binding


async def test_source_one_name_in_two_clusters_is_two_groups(
    controller: Controller, start_ours: Callable[..., Awaitable[Controller]]
) -> None:
    """Source: the tables are keyed by brokerName only, so brokers of another cluster become members of this group."""
    if not controller.is_java:
        controller = await start_ours(directory=TwoClusters())
    async with (
        WireGroup(controller, cluster="east") as east,
        WireGroup(controller, name=east.name, cluster="west") as west,
    ):
        first = await east.broker()
        assert (await first.elect()).code == OK
        second = await west.broker()
        if controller.is_java:
            assert second.broker_id == 2
            assert (await second.elect()).code == ResponseCode.CONTROLLER_MASTER_STILL_EXIST
            return
        assert second.broker_id == 1
        assert (await second.elect()).code == OK
        assert second.is_master
