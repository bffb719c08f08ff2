"""Ids, addresses, and lost or cleaned entries (1011): upstream issues, and findings in the source."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from brokergroup_operator.controller.directory.group_directory import FixedDirectory, GroupBinding
from brokergroup_operator.controller.directory.pods import Peer
from brokergroup_operator.records.store import GroupKey
from controller_core.settings import ControllerSettings
from rocketmq_remoting.codes import RequestCode, ResponseCode
from tests.support.pods_directory import PodsDirectory
from tests.support.waiting import eventually
from tests.upstream.lab import WireGroup

if TYPE_CHECKING:
    from rocketmq_remoting.command import RemotingCommand
    from tests.upstream.lab import Controller, StartOurs, WireBroker


OK = 0
NEED_TO_BE_REGISTERED = ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED


async def test_issue_5745_a_broker_whose_address_changed_registers(group: WireGroup) -> None:
    """#5745: brokers were identified by address, so one with a new address could not register. Fixed in 5.1.1."""
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
    """#5989, #4808: persistent ids. A stranger at a former member's address is a new member, and inherits nothing."""
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

    In ours that answer has no master: its new process gets an epoch first (safety rule 6).
    """
    [one] = await group.in_sync(1)
    old_address = one.address
    await one.move()  # and no controller has noticed yet that its former process is gone
    answer = await one.register()
    named = (answer.ext_fields or {}).get("masterAddress")
    assert named == (old_address if group.controller.is_java else None)
    await one.heartbeat()
    answer = await one.elect()
    assert answer.code in (OK, ResponseCode.CONTROLLER_MASTER_STILL_EXIST)
    assert (answer.ext_fields or {})["masterAddress"] == one.address != old_address


async def test_issue_4857_an_unknown_group_is_told_to_register(group: WireGroup) -> None:
    """#4857: brokers took the answer about an unknown group for an error, so they never registered again.

    Fixed: code 2008 makes a broker register (1003). The next test shows the answer to its 1003.
    """
    answer = await group.ask(RequestCode.CONTROLLER_GET_REPLICA_INFO)
    assert answer.code == ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST


async def test_source_only_the_next_id_can_be_taken(group: WireGroup) -> None:
    """Source: any free id is assigned on request, and only counted: later the next id is one in use."""
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
    """Source: any broker may take an id that clean freed; its former broker still has its identity file and its log."""
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
    controller: Controller, start_ours: StartOurs
) -> None:
    """Source: after a loss of the controller's data, brokers with an identity file get 2010 for ever.

    Ours adopts them under their ids if they are pods of the group, waits until all members of the group were heard, and grants
    the one with the most data an epoch above all theirs.
    """
    directory = PodsDirectory(settings=ControllerSettings(expected_replicas=2))
    if not controller.is_java:
        controller = await start_ours(directory=directory)
    async with WireGroup(controller) as group:
        hosts = ("127.64.8.1", "127.64.8.2")
        for number, host in enumerate(hosts, start=1):
            pod = Peer(
                namespace="standalone", pod_name=f"{group.name}-{number}", group=GroupKey("standalone", group.name)
            )
            directory.introduce(host, pod)
        one = await group.starting_broker(epoch=7, max_offset=1000, host=hosts[0])
        two = await group.starting_broker(epoch=7, max_offset=2000, host=hosts[1])
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
    """Send 1002, as a broker without a master repeats it."""
    return (await broker.elect()).code in (OK, ResponseCode.CONTROLLER_MASTER_STILL_EXIST)


class TwoClusters(FixedDirectory):
    """A directory of groups by cluster and name, like the Kubernetes directory; a brokerName alone is not a group."""

    def find(self, broker_name: str, *, cluster_name: str = "", peer: Peer | None = None) -> GroupBinding | None:
        found = super().find(f"{cluster_name}-{broker_name}", cluster_name=cluster_name, peer=peer)
        if found is None or not cluster_name:
            return None
        binding = replace(found, key=GroupKey("standalone", f"{cluster_name}-{broker_name}"), broker_name=broker_name)
        self._bindings[binding.key] = binding
        return binding


async def test_source_one_name_in_two_clusters_is_two_groups(controller: Controller, start_ours: StartOurs) -> None:
    """Source: the tables' key is only the brokerName, so brokers of another cluster become members of this group."""
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


REFUSED = ResponseCode.CONTROLLER_INVALID_CLEAN_BROKER_METADATA


async def clean(group: WireGroup, ids: str | None = None, *, living: bool = False) -> RemotingCommand:
    """Send the request of mqadmin cleanBrokerMetadata."""
    fields: dict[str, object] = {"isCleanLivingBroker": str(living).lower()}
    if ids is not None:
        fields["brokerControllerIdsToClean"] = ids
    return await group.ask(RequestCode.CLEAN_BROKER_DATA, **fields)


async def next_id(group: WireGroup) -> int:
    answer = await group.ask(RequestCode.CONTROLLER_GET_NEXT_BROKER_ID)
    return int((answer.ext_fields or {})["nextBrokerId"])


async def test_issue_10861_malformed_ids_clean_nothing(group: WireGroup) -> None:
    """#10861 (open): mqadmin passes malformed ids. So the controller must refuse the whole request, and remove no broker.

    Java's controller does too, except with isCleanLivingBroker, when it ignores the ids.
    """
    await group.broker()
    for ids in ("1;not-a-number", "not-a-number", "1;;2", "1,2", "-", "1;2.5"):
        answer = await clean(group, ids)
        assert answer.code == REFUSED, ids
        assert "brokerControllerIdsToClean" in (answer.remark or ""), ids
    assert (await group.state()).others == {1}
    answer = await clean(group, "1;not-a-number", living=True)
    if group.controller.is_java:
        assert (answer.code, (await group.state()).known) == (OK, False)
        return
    assert answer.code == REFUSED
    assert (await group.state()).others == {1}


async def test_source_cleaning_the_living_is_kept_to_the_ids_that_were_named(group: WireGroup) -> None:
    """Source: with isCleanLivingBroker the ids are ignored, and the whole group is dropped."""
    await group.in_sync(2)
    third = await group.broker()
    assert (await clean(group, str(third.broker_id), living=True)).code == OK
    after = await group.state()
    if group.controller.is_java:
        assert not after.known
        return
    assert (after.master, after.members, after.others) == (1, {1, 2}, set())


async def test_source_cleaning_never_resets_the_next_id_nor_an_epoch(group: WireGroup) -> None:
    """Source: after the last in-sync member is cleaned, the group counts as unknown: ids and epochs restart at 1.

    A broker with id 2 and epoch 1 on its disk then meets another 2 with another epoch 1.
    """
    one, two = await group.in_sync(2)
    await one.alter({1})
    await one.die()
    lost_epoch = 4 if group.controller.is_java else 1  # Java tries three times to replace it, each with an epoch
    before = await group.until(
        lambda state: one.broker_id not in state.alive and state.master_epoch >= lost_epoch, "the master is gone"
    )
    assert (await clean(group, "1")).code == OK
    stranger = await group.broker()
    if group.controller.is_java:
        assert (await two.register()).code == ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED
        assert await next_id(group) == 2  # although 2 is in use
        assert (await stranger.elect()).code == OK
        assert (await group.state()).master_epoch == 1
        return
    assert stranger.broker_id == 3
    assert await next_id(group) == 4
    assert (await two.register()).code == OK
    after = await group.state()
    # No member has a seat any more: which of those two is elected now does not matter here.
    assert after.members | after.others == {2, 3}
    assert after.master_epoch >= before.master_epoch > 0
    assert after.set_epoch >= before.set_epoch


async def test_source_a_dead_master_does_not_keep_its_group_from_being_cleaned(group: WireGroup) -> None:
    """Source: a master in the table blocks the cleaning of its group, even a dead one without a successor.

    Here it dies right after its election, before its first heartbeat: Java has no connection whose end it could notice.
    """
    one = await group.unheard_broker()
    assert (await one.elect()).code == OK
    await one.die()
    if group.controller.is_java:
        await group.stays(lambda state: (state.master, state.alive) == (1, set()))
        answer = await clean(group)
        assert (answer.code, answer.remark) == (REFUSED, f"Broker {group.name} is still alive, clean up failure")
        return
    await group.until(lambda state: (state.master, state.alive) == (None, set()), "the master is lost")
    assert (await clean(group)).code == OK
    assert not (await group.state()).known


async def test_source_a_wrong_cluster_name_does_not_clean_the_living(group: WireGroup) -> None:
    """Source: liveness is looked up by cluster, name and id, but entries are removed by name and id.

    So with another cluster's name the check finds no live member, and cleans a living one without isCleanLivingBroker.
    """
    await group.in_sync(2)
    fields = {"clusterName": "another", "brokerControllerIdsToClean": "2", "isCleanLivingBroker": "false"}
    answer = await group.ask(RequestCode.CLEAN_BROKER_DATA, **fields)
    after = await group.state()
    if group.controller.is_java:
        assert (answer.code, after.members) == (OK, {1})
        return
    assert answer.code == REFUSED
    assert (after.members, after.alive) == ({1, 2}, {1, 2})
