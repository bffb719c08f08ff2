"""A group is backed up by VolumeSnapshots under load, lost with its disks, and begins anew with them: counted to the message.

The driver is scripted (`support/snapshot_controller.py`): it copies the volumes' folders when it takes a snapshot.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from brokergroup_operator.api.names import ANNOTATION_MANIFEST
from brokergroup_operator.api.times import moment
from brokergroup_operator.demo.client import Ledger, key_of
from brokergroup_operator.kube.resources import VOLUME_SNAPSHOTS
from kube_sandbox.kubelet.files import DataFolders
from tests.e2e.house import NAMESPACE, House, WholeGroup, whole_group
from tests.e2e.stories import ask_for, claims_of, condition, end_of, holds, pod_uids
from tests.e2e.test_backup import DELETED_WITH_DATA, delete_with_data, messages_of
from tests.support.snapshot_controller import SnapshotController, define

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from rocketmq_remoting.message_record import StoredMessage

pytestmark = [pytest.mark.longer, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]

# Its commit log has a claim of its own: a backup is two snapshots.
STORAGE = {"commitLog": {"size": "1Gi"}, "size": "1Gi"}


@asynccontextmanager
async def driver(house: House, kept: Path) -> AsyncIterator[SnapshotController]:
    """Serve VolumeSnapshots of this house's volumes."""
    await define(house.api)
    folders = DataFolders(house.node_folder)

    def folder_of(claim: dict[str, Any]) -> Path:
        volume = claim["spec"].get("volumeName")
        return kept / volume if volume else folders.claim(claim)

    controller = SnapshotController(house.api, NAMESPACE, now_seconds=time.time, folder_of=folder_of, kept=kept)
    # An error of the driver ends the story at once, and is shown.
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(controller.run())
        yield controller
        running.cancel()


async def snapshots(house: House) -> dict[str, dict[str, Any]]:
    items = (await house.api.list(VOLUME_SNAPSHOTS, namespace=NAMESPACE)).items
    return {one["metadata"]["name"]: one for one in items}


async def backed_up(orders: WholeGroup, controller: SnapshotController) -> tuple[str, dict[str, Any]]:
    """Back up the group; the log's snapshot is cut late, and both are uploaded until the member is in sync again.

    Until both are ready, neither of the two is a backup.
    """
    await orders.until(lambda: condition(orders, "FailoverSafe")[0] == "True", "it is safe for a Backup")
    controller.late, controller.uploads = {"backup-0-commitlog"}, {"backup-0", "backup-0-commitlog"}
    before = await pod_uids(orders)
    name = await ask_for(orders, "Backup", snapshot={})

    async def one_is_cut() -> bool:
        found = await snapshots(orders.house)
        return "creationTime" in found.get(name, {}).get("status", {}) and len(found) == 2

    await holds(orders, "the store's snapshot is cut", one_is_cut)
    assert len(await pod_uids(orders)) == len(before) - 1, "the member stays stopped until both are"
    controller.late = set()

    async def runs_again() -> bool:
        now = await pod_uids(orders)
        return now.keys() == before.keys() and now != before and orders.is_settled()

    await holds(orders, "the member is in sync again", runs_again)
    parts = (await snapshots(orders.house)).values()
    assert not any(one["status"]["readyToUse"] for one in parts)
    assert not any(ANNOTATION_MANIFEST in one["metadata"]["annotations"] for one in parts)
    controller.uploads = set()
    status = await end_of(orders, name)
    assert status["phase"] == "Succeeded", f"{status}\n{orders.story()}"
    return name, status


async def test_a_lost_group_begins_anew_with_every_message_of_its_snapshots(
    any_house: House, tmp_path_factory: pytest.TempPathFactory
) -> None:
    house, kept = any_house, tmp_path_factory.mktemp("kept")
    await house.start_operator()
    async with driver(house, kept) as controller:
        async with whole_group(house, "orders", replicas=3) as orders:
            await house.create_group("orders", storage=STORAGE | DELETED_WITH_DATA)
            await orders.until_settled()
            async with orders.under_load():
                await orders.until_acknowledged(300)
                name, status = await backed_up(orders, controller)
                await orders.until_acknowledged(300)
            await orders.verify()
            before, old_record = await messages_of(orders), orders.seen.record
            await delete_with_data(orders)
        started, backup = moment(status["startedAt"]).timestamp(), status["result"]["backup"]
        acknowledged = {one.key for one in orders.ledger.acknowledgements if one.at_seconds < started}
        at_least = Counter(key_of(one) for one in before if one.physical_offset < backup["confirmOffset"])
        assert len(acknowledged) >= 100
        assert acknowledged <= set(at_least), "acknowledged before the backup began, and not in it"
        assert backup["snapshots"] == [name, f"{name}-commitlog"]
        assert set(await snapshots(house)) == {*backup["snapshots"]}, "they outlive the group"

        async with whole_group(house, "orders-again", replicas=3) as again:
            source = {"snapshot": {"name": name}}
            await house.create_group("orders-again", storage=STORAGE, bootstrap={"fromBackup": source})
            await again.until_settled()
            found = await as_it_was(again, before)
            assert {key: found[key] for key in at_least} == at_least
            record = again.seen.record
            assert again.seen.master_id == min(one["brokerId"] for one in record["replicas"])
            assert again.seen.master_id >= old_record["nextBrokerId"] + 100
            assert record["masterEpoch"] > old_record["masterEpoch"] + 1000
            assert record["restoredFrom"] == name
            sources = {claim: one["spec"].get("dataSource") for claim, one in (await claims_of(again)).items()}
            made_from = {claim: source["name"] for claim, source in sources.items() if source is not None}
            assert made_from == {"orders-again-1": name, "orders-again-1-commitlog": f"{name}-commitlog"}
            # What the snapshots have is acknowledged for good: the new group's faults and loads are judged by it too.
            kept_ones = [one for one in orders.ledger.acknowledgements if one.key in found]
            again.ledger = Ledger(kept_ones, failures=2 * len(before))
            async with again.under_load():
                await again.until_acknowledged(100)
            await again.verify()
            after = Counter(key_of(one) for one in await messages_of(again))
            assert {key: after[key] for key in found} == found, "each message of the backup is there once, as before"


async def as_it_was(again: WholeGroup, before: list[StoredMessage]) -> Counter[str]:
    """Count the new group's messages: those of the lost one up to where its log ends, and not all of them."""
    restored = await messages_of(again)
    found, end = Counter(key_of(one) for one in restored), max(one.physical_offset for one in restored)
    assert found == Counter(key_of(one) for one in before if one.physical_offset <= end)
    assert len(found) < len(before), "messages were sent after the backup too"
    return found
