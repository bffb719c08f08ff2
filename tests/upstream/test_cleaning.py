"""What an administrator may make a controller forget (1011): one upstream issue, and what reading the source found."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rocketmq_remoting.codes import RequestCode, ResponseCode

if TYPE_CHECKING:
    from rocketmq_remoting.command import RemotingCommand
    from tests.upstream.lab import WireGroup

OK = 0
REFUSED = ResponseCode.CONTROLLER_INVALID_CLEAN_BROKER_METADATA


async def clean(group: WireGroup, ids: str | None = None, *, living: bool = False) -> RemotingCommand:
    """What mqadmin cleanBrokerMetadata sends."""
    fields: dict[str, object] = {"isCleanLivingBroker": str(living).lower()}
    if ids is not None:
        fields["brokerControllerIdsToClean"] = ids
    return await group.ask(RequestCode.CLEAN_BROKER_DATA, **fields)


async def next_id(group: WireGroup) -> int:
    answer = await group.ask(RequestCode.CONTROLLER_GET_NEXT_BROKER_ID)
    return int((answer.ext_fields or {})["nextBrokerId"])


async def test_issue_10861_malformed_ids_clean_nothing(group: WireGroup) -> None:
    """#10861 (open): mqadmin lets malformed ids through. So whoever answers has to refuse them, all of them, and forget nobody.

    Java's controller does too, save with isCleanLivingBroker, where it does not look at the ids at all.
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
    """Source: the last in-sync member cleaned, the group counts as unknown: ids begin anew at 1, and so do epochs.

    A broker that remembers id 2 and epoch 1 then meets another 2 with another epoch 1.
    """
    one, two = await group.in_sync(2)
    await one.alter({1})
    await one.die()
    lost_epoch = 4 if group.controller.is_java else 1  # Java tries three times to replace it, an epoch each
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
    # Nobody holds a seat any more: who of those two is elected now is another matter.
    assert after.members | after.others == {2, 3}
    assert after.master_epoch >= before.master_epoch > 0
    assert after.set_epoch >= before.set_epoch


async def test_source_a_dead_master_does_not_keep_its_group_from_being_cleaned(group: WireGroup) -> None:
    """Source: a master in the table blocks the cleaning of its group, also a dead one that nobody will ever replace.

    Here it dies right after its election, before its first heartbeat: Java has nothing whose end it could notice.
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
    """Source: who is alive is asked for by cluster, name and id, but forgotten by name and id.

    So with another cluster's name the check finds nobody alive, and a living member is cleaned without isCleanLivingBroker.
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
