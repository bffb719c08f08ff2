"""Two voters and one async learner: it copies all data, no write waits for it or counts it, no election chooses it.

Runs in both houses; `test_learners.py` has the cases that only Python replicas can show.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from brokergroup_operator.demo.client import ReadbackError, read_keys
from brokergroup_operator.kube.resources import PODS
from tests.e2e.house import NAMESPACE, QUEUES, TOPIC, House, WholeGroup, whole_group
from tests.e2e.stories import a_slave, address_of, change, condition, holds, objects_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

# Of Java brokers by night. By day: here in the sandbox with replicas.
pytestmark = [
    pytest.mark.longer,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.java_brokers(nightly=True),
    pytest.mark.timeout(300),
]
LEARNER = 3


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def orders(any_house: House) -> AsyncIterator[WholeGroup]:
    """Two voters, both needed for every write, and a learner that consumers may read from."""
    async with whole_group(any_house, "orders", replicas=3, learners=1) as watched:
        await any_house.start_operator()
        spec = {"durability": "Strict", "replication": {"learners": 1}, "config": {"slaveReadEnable": "true"}}
        await any_house.create_group("orders", **spec, replicas=3)
        await watched.until_settled()
        yield watched


def was_more_than_a_learner(group: WholeGroup) -> bool:
    """Whether any version of the record had it in the set, or as master."""
    versions = group.history.versions
    in_set = any(LEARNER in record.get("syncStateSet", []) for record in versions)
    return in_set or any(record.get("masterBrokerId") == LEARNER for record in versions)


async def has_copied_all(group: WholeGroup) -> bool:
    """Whether it shows consumers every acknowledged message."""
    try:
        return not group.ledger.missing_from(await read_keys(address_of(group, LEARNER), TOPIC, QUEUES))
    except ReadbackError:
        return False


async def until_refused(group: WholeGroup) -> None:
    """Wait until eight more sends have failed."""
    failures = group.ledger.failures + 8
    await group.until(lambda: group.ledger.failures >= failures, "writes are refused")


async def test_it_copies_and_nobody_waits_for_it(orders: WholeGroup) -> None:
    assert [member.state for member in orders.seen.members()] == ["InSync", "InSync", "Learning"]
    pods = await objects_of(orders, PODS)
    assert pods[orders.pod_of(LEARNER)]["metadata"]["labels"]["brokergroup.dev/role"] == "learner"
    async with orders.under_load():
        with orders.frozen(LEARNER):
            await orders.until_acknowledged(50)
    await orders.verify()
    await holds(orders, "the learner has every message", lambda: has_copied_all(orders))
    assert not was_more_than_a_learner(orders)


async def test_left_alone_it_is_no_second_disk_and_no_master(orders: WholeGroup) -> None:
    await orders.until_settled()
    api, master, slave = orders.house.api, orders.master, a_slave(orders)
    # No operator recreates pods meanwhile.
    await change(orders, {"spec": {"maintenance": {"paused": True}}})
    await orders.until(lambda: condition(orders, "Paused")[0] == "True", "it is paused")
    async with orders.under_load():
        await api.delete(PODS, orders.pod_of(slave), namespace=NAMESPACE, grace_period_seconds=0)
        await orders.until(lambda: condition(orders, "DegradedDurability")[0] == "True", "a voter is missed")
        await until_refused(orders)
    # The master may notice later than the operator, and then answers sends that waited for the slave: those have ended now.
    acknowledged = len(orders.ledger.acknowledgements)
    async with orders.under_load(served=False):
        await until_refused(orders)
    assert len(orders.ledger.acknowledgements) == acknowledged, "the learner's disk counts for nothing"
    await api.delete(PODS, orders.pod_of(master), namespace=NAMESPACE, grace_period_seconds=0)
    await orders.until(lambda: orders.seen.master_id is None, "there is no master")
    await orders.until(lambda: condition(orders, "Available") == ("False", "NoMaster"), "it says so")
    await orders.until(lambda: condition(orders, "Stalled") == ("True", "NoEligibleReplica"), "no replica may lead")
    assert await orders.masters() == []
    await change(orders, {"spec": {"maintenance": {"paused": False}}})
    async with orders.under_load():
        pass
    await orders.verify()
    assert not was_more_than_a_learner(orders)
