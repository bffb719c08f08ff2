"""A group of Java brokers 5.5.0 that is read from takes the update to 5.5.1, under load, and its consumer misses nothing.

Slaves of 5.5.0 copy no consumer offsets once a consumer has pulled (apache/rocketmq #10284). Until the operator wrote them there,
such a group was `MetadataDiverged`, and each of its updates waited for ever, this one too.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from brokergroup_operator.kube.resources import PODS
from tests.e2e.conftest import REAL_PARTS
from tests.e2e.house import TOPIC, settled_group
from tests.e2e.java_house import open_java_house
from tests.e2e.stories import change, condition, events, holds, objects_of, pod_uids, up_to_date
from tests.interop.clients import JavaClient, compile_client, start_client
from tests.real.parts import install

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.e2e.house import House, WholeGroup

pytestmark = [pytest.mark.real(*REAL_PARTS, "newest-rocketmq"), pytest.mark.timeout(900)]


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    async with open_java_house(tmp_path) as opened:
        await opened.start_operator()
        yield opened


@asynccontextmanager
async def reading(house: House) -> AsyncIterator[JavaClient]:
    """A Java consumer of the load's topic, which ends by itself."""
    class_path = await asyncio.to_thread(compile_client, house.folder, install.ROCKETMQ_VERSION)
    options = {"name_server": house.group_spec["nameServers"][0], "topic": TOPIC, "group": "readers"}
    reader = start_client(house.folder / "reader", "reader", class_path, "push", **options)
    try:
        yield reader
    finally:
        await asyncio.to_thread(reader.stop)


async def writes_offsets(group: WholeGroup) -> bool:
    return "OffsetsCarried" in await events(group)


async def test_a_group_that_is_read_from_takes_the_update_to_the_version_that_copies_offsets(house: House) -> None:
    async with settled_group(house, "orders", version=install.ROCKETMQ_VERSION) as group, reading(house) as reader:
        before, epoch = await pod_uids(group), group.seen.master_epoch
        async with group.lossless():
            await group.until(lambda: len(reader.seen()) > 50, "messages are read")
            await holds(group, "a slave that copies no offsets is known", lambda: writes_offsets(group))
            assert condition(group, "FailoverSafe")[0] == "True", group.story()
            await change(group, {"spec": {"version": install.NEWEST_ROCKETMQ_VERSION}})
            await group.until(up_to_date(group), "every pod is a new one", deadline_seconds=120)
        acknowledged = {one.key for one in group.ledger.acknowledgements}
        await group.until(lambda: acknowledged <= {one.key for one in reader.seen()}, "everything is read")
        after = await objects_of(group, PODS)
        assert not {pod["metadata"]["uid"] for pod in after.values()} & set(before.values())
        images = {pod["spec"]["containers"][0]["image"].rpartition(":")[2] for pod in after.values()}
        assert images == {install.NEWEST_ROCKETMQ_VERSION}
        assert group.seen.master_epoch == epoch + 1, "mastership moved once, by a switchover"
