"""A group with an async learner: it copies all data, no write waits for it, and it is never master, whatever its log holds."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio

from brokergroup_operator.kube import InvalidError
from brokergroup_operator.kube.resources import PODS
from tests.e2e.house import House, WholeGroup, settled_group
from tests.e2e.stories import a_slave, ask_for, change, condition, done, end_of, objects_of, pod_uids, up_to_date

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = [pytest.mark.longer, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]
LEARNER = 4


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared_group(house: House) -> AsyncIterator[WholeGroup]:
    """Three voters and a learner."""
    await house.start_operator()
    async with settled_group(house, "orders", replicas=4, learners=1, replication={"learners": 1}) as watched:
        yield watched


def was_in_the_set(group: WholeGroup, *, since: int) -> bool:
    return any(LEARNER in record.get("syncStateSet", []) for record in group.history.versions[since:])


async def roles(group: WholeGroup) -> dict[str, str]:
    return {
        name: pod["metadata"]["labels"]["brokergroup.dev/role"] for name, pod in (await objects_of(group, PODS)).items()
    }


async def test_it_begins_with_a_learner_that_nobody_waits_for(group: WholeGroup) -> None:
    assert [member.state for member in group.seen.members()] == ["InSync", "InSync", "InSync", "Learning"]
    assert group.seen.status["durability"] == "Strict"
    # Its members may be in sync one pass before the master's reports allow a safe failover.
    await group.until(lambda: condition(group, "FailoverSafe")[0] == "True", "three that vote are safe to fail over")
    assert not was_in_the_set(group, since=0)
    async with group.under_load():
        with group.frozen(LEARNER):
            await group.until_acknowledged(50)
    await group.verify()


async def test_a_master_is_lost_while_the_learner_has_the_longest_log(group: WholeGroup) -> None:
    """The voting slaves freeze briefly: the master's unacknowledged writes of that time are copied only by the learner."""
    epoch, master = group.seen.master_epoch, group.master
    async with group.lossless():
        with group.frozen(*(each for each in group.pids() if each not in {master, LEARNER})):
            await asyncio.sleep(0.5)  # any amount will do: only the learner copies now
            group.kill(master)
        await group.until(lambda: group.seen.master_epoch > epoch, "another epoch")
    assert all(LEARNER not in masters for masters in group.history.masters_of_epochs().values())
    assert not was_in_the_set(group, since=0)


async def test_nobody_can_make_it_master(group: WholeGroup) -> None:
    epoch = group.seen.master_epoch
    status = await end_of(group, await ask_for(group, "Switchover", toBrokerId=LEARNER))
    assert status["phase"] == "Rejected"
    assert f"broker {LEARNER} is an async learner (spec.replication.learners" in status["result"]["message"]
    await change(group, {"spec": {"failover": {"preferredMaster": LEARNER}}})
    await group.until(lambda: condition(group, "Stalled") == ("True", "InvalidSpec"), "the preference is refused")
    await change(group, {"spec": {"failover": {"preferredMaster": None}}})
    await group.until(lambda: condition(group, "Stalled")[0] == "False", "it is taken back")
    await group.verify()
    assert group.seen.master_epoch == epoch


async def test_a_restart_begins_with_the_learner(group: WholeGroup) -> None:
    before, epoch, since = await pod_uids(group), group.seen.master_epoch, len(group.history.versions)
    async with group.lossless():
        await change(group, {"metadata": {"annotations": {"kubectl.kubernetes.io/restartedAt": "now"}}})
        await group.until(lambda: condition(group, "UpToDate")[0] == "False", "the update is seen")
        await group.until(up_to_date(group), "every pod was restarted", deadline_seconds=120)
    assert not set((await pod_uids(group)).values()) & set(before.values()), "every pod is a new one"
    assert group.seen.master_epoch == epoch + 1, "mastership moved once, by a switchover"
    assert not was_in_the_set(group, since=since)
    made = {name: pod["metadata"]["creationTimestamp"] for name, pod in (await objects_of(group, PODS)).items()}
    assert made[f"orders-{LEARNER}"] == min(made.values())


async def test_a_learner_begins_to_vote_and_stops_again(group: WholeGroup) -> None:
    before, epoch = await pod_uids(group), group.seen.master_epoch
    async with group.lossless():
        await change(group, {"spec": {"replication": {"learners": 0}}})
        group.learners = 0
        await group.until(group.is_settled, "four vote", deadline_seconds=60)
        assert (await roles(group))[f"orders-{LEARNER}"] == "slave"
        await group.until_acknowledged()
        await change(group, {"spec": {"replication": {"learners": 1}}})
        group.learners = 1
        await group.until(group.is_settled, "it has left the set", deadline_seconds=60)
    after = await pod_uids(group)
    assert [name for name in before if before[name] != after[name]] == [f"orders-{LEARNER}"], (
        "no other pod was replaced"
    )
    assert group.seen.master_epoch == epoch
    assert (await roles(group))[f"orders-{LEARNER}"] == "learner"


async def test_it_is_restarted_and_a_new_member_takes_its_place_among_the_highest(group: WholeGroup) -> None:
    """The highest id learns: the new member has it, so the earlier learner becomes a voter."""
    before = await pod_uids(group)
    async with group.lossless():
        await done(group, "Restart", brokerIds=[LEARNER])
        after = await pod_uids(group)
        assert [name for name in before if before[name] != after[name]] == [f"orders-{LEARNER}"]
        slave, new = a_slave(group), group.seen.record["nextBrokerId"]
        await done(group, "Rebuild", brokerId=slave)
        await group.until(up_to_date(group), "the former learner votes", deadline_seconds=60)
    assert LEARNER in group.seen.sync_state_set
    assert [member.broker_id for member in group.seen.members() if member.state == "Learning"] == [new]


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"replicas": 3, "replication": {"learners": 3}}, ["replication.learners", "below replicas"]),
        ({"config": {"asyncLearner": "true"}}, ["asyncLearner", "use spec.replication.learners"]),
    ],
)
async def test_what_can_not_be_is_refused(house: House, spec: dict[str, Any], expected: list[str]) -> None:
    with pytest.raises(InvalidError) as refusal:
        await house.create_group("bad", **spec)
    for text in expected:
        assert text in str(refusal.value)
