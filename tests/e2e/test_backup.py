"""A group is backed up while it is written to, lost with its disks, and restored as a new group: counted to the message."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from brokergroup_operator.api.times import moment
from brokergroup_operator.demo.client import Ledger, key_of, read_messages
from brokergroup_operator.kube.resources import BROKER_GROUP_STATES, PERSISTENT_VOLUME_CLAIMS, PODS
from tests.e2e.house import NAMESPACE, QUEUES, TOPIC, House, WholeGroup, settled_group, whole_group
from tests.e2e.stories import ask_for, claims_of, condition, end_of, holds, objects_of

if TYPE_CHECKING:
    from rocketmq_remoting.message_record import StoredMessage

pytestmark = [pytest.mark.longer, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]

BACKUPS = "kept-copies"
LOG_APART = {"commitLog": {"size": "1Gi"}}
DELETED_WITH_DATA = {"retention": {"whenDeleted": "Delete"}}


async def make_claim(house: House, name: str) -> None:
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name, "namespace": NAMESPACE}}
    await house.api.create(PERSISTENT_VOLUME_CLAIMS, {**claim, "spec": spec})


async def messages_of(group: WholeGroup) -> list[StoredMessage]:
    address = group.seen.master_address()
    assert address is not None, group.story()
    return await read_messages(address, TOPIC, QUEUES)


async def delete_with_data(group: WholeGroup) -> None:
    await group.house.delete_group(group.name)

    async def all_gone() -> bool:
        states = (await group.house.api.list(BROKER_GROUP_STATES, namespace=NAMESPACE)).items
        kept = [*await claims_of(group), *await objects_of(group, PODS), *(one["metadata"]["name"] for one in states)]
        return not kept

    await holds(group, f"{group.name} is gone with its claims and its record", all_gone)


async def end_of_backup(group: WholeGroup, **section: Any) -> dict[str, Any]:
    await group.until(lambda: condition(group, "FailoverSafe")[0] == "True", "the group is safe for a Backup")
    return await end_of(group, await ask_for(group, "Backup", claim={"name": BACKUPS}, **section))


@pytest.mark.java_brokers
async def test_a_lost_group_is_restored_with_every_message_of_its_backup(any_house: House) -> None:
    house = any_house
    await house.start_operator()
    await make_claim(house, BACKUPS)
    async with settled_group(house, "orders", storage=DELETED_WITH_DATA) as orders:
        async with orders.under_load():
            await orders.until_acknowledged(300)
            status = await end_of_backup(orders)
            assert status["phase"] == "Succeeded", f"{status}\n{orders.story()}"
            await orders.until_acknowledged(300)
        await orders.verify()
        started = moment(status["startedAt"]).timestamp()
        acknowledged = {one.key for one in orders.ledger.acknowledgements if one.at_seconds < started}
        backup, old_record = status["result"]["backup"], orders.seen.record
        before = await messages_of(orders)
        await delete_with_data(orders)
    copied = Counter(key_of(one) for one in before if one.physical_offset < backup["offset"])
    assert len(acknowledged) >= 100
    assert acknowledged <= set(copied), "acknowledged before the backup began, and not in it"
    assert len(copied) < len(before), "messages were sent after the backup too"
    assert backup["offset"] >= backup["confirmOffset"] > 0

    async with whole_group(house, "orders-again", replicas=3) as again:
        source = {"claim": {"name": BACKUPS, "folder": backup["folder"]}}
        await house.create_group("orders-again", bootstrap={"fromBackup": source})
        await again.until_settled()
        assert Counter(key_of(one) for one in await messages_of(again)) == copied
        record = again.seen.record
        assert again.seen.master_id == min(one["brokerId"] for one in record["replicas"])
        assert again.seen.master_id >= old_record["nextBrokerId"] + 100
        assert record["masterEpoch"] > old_record["masterEpoch"] + 1000
        assert record["restoredFrom"] == backup["folder"]
        # What the backup has is acknowledged for good: the new group's faults and loads are judged by it too.
        again.ledger = Ledger(
            [one for one in orders.ledger.acknowledgements if one.key in copied], failures=2 * len(before)
        )
        async with again.under_load():
            await again.until_acknowledged(100)
        await again.verify()
        after = Counter(key_of(one) for one in await messages_of(again))
        assert {key: after[key] for key in copied} == copied, "each message of the backup is there once, as before"


async def test_a_group_of_one_is_backed_up_while_its_master_is_stopped_and_two_groups_begin_with_it(
    house: House,
) -> None:
    """Nothing takes its place: it is master again afterwards, with every message. The two have no id and no epoch in common."""
    await house.start_operator()
    await make_claim(house, BACKUPS)
    async with settled_group(house, "lone", replicas=1, durability="Available", storage=LOG_APART) as lone:
        async with lone.under_load():
            await lone.until_acknowledged(50)
        before = Counter(key_of(one) for one in await messages_of(lone))
        status = await end_of(lone, await ask_for(lone, "Backup", claim={"name": BACKUPS}, stopMaster=True))
        assert status["phase"] == "Succeeded", f"{status}\n{lone.story()}"
        await lone.until_settled()
        assert Counter(key_of(one) for one in await messages_of(lone)) == before
        assert lone.seen.master_id == status["result"]["backup"]["brokerId"]
    begun: list[tuple[int, int]] = []
    for name in ("first", "second"):
        async with whole_group(house, name, replicas=1) as restored:
            source = {"claim": {"name": BACKUPS, "folder": status["result"]["backup"]["folder"]}}
            spec = {"durability": "Available", "storage": LOG_APART, "bootstrap": {"fromBackup": source}}
            await house.create_group(name, replicas=1, **spec)
            await restored.until_settled()
            assert Counter(key_of(one) for one in await messages_of(restored)) == before
            begun.append((restored.seen.master_id or 0, restored.seen.record["masterEpoch"]))
    (first_id, first_epoch), (second_id, second_epoch) = begun
    assert abs(first_id - second_id) >= 100
    assert abs(first_epoch - second_epoch) >= 1000
