"""The contract of every record store: compare-and-set, versions, absence, deletion. For memory, file and the embedded API."""

import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from brokergroup_operator.kube.client import KubernetesApi
from brokergroup_operator.records.file import FileRecordStore
from brokergroup_operator.records.kubernetes import KubernetesRecordStore
from brokergroup_operator.records.memory import MemoryRecordStore
from brokergroup_operator.records.store import GroupKey, RecordConflictError, RecordStore
from controller_core.model import BrokerGroupRecord, Replica
from tests.our_kinds import api_with_our_kinds

KEY = GroupKey("default", "orders")
RECORD = BrokerGroupRecord(
    cluster_name="DefaultCluster",
    broker_name="orders",
    next_broker_id=3,
    replicas={
        1: Replica(
            1, "10.0.0.1:10911;100", "10.0.0.1:10911", "orders-1", registered=True, held_epoch=4, held_offset=2**60
        ),
        2: Replica(2, reserved_for="orders-2"),
    },
    master_broker_id=1,
    master_epoch=4,
    sync_state_set=frozenset({1}),
    sync_state_set_epoch=9,
    master_process_lost=True,
    eligible=frozenset({1}),
    lost_seats=frozenset({1}),
    unclean_elections=2,
    unfenced=frozenset({3}),
)


NEXT = replace(RECORD, master_epoch=5, sync_state_set_epoch=10)


@pytest.fixture(params=["memory", "file", "kubernetes"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[RecordStore]:
    async with contextlib.AsyncExitStack() as stack:
        if request.param == "kubernetes":
            opened: RecordStore = KubernetesRecordStore(
                await stack.enter_async_context(api_with_our_kinds(KubernetesApi))
            )
        else:
            opened = MemoryRecordStore() if request.param == "memory" else FileRecordStore(tmp_path / "records")
        yield opened
        await opened.close()


async def test_what_was_committed_is_read_back_whole(store: RecordStore) -> None:
    assert await store.read(KEY) is None
    committed = await store.commit(KEY, RECORD, None)
    assert committed is not None
    assert committed.record == RECORD
    assert await store.read(KEY) == committed


async def test_a_commit_replaces_only_what_was_read(store: RecordStore) -> None:
    first = await store.commit(KEY, RECORD, None)
    second = await store.commit(KEY, NEXT, first)
    assert second is not None
    assert first is not None
    assert second.version != first.version
    assert second.uid == first.uid
    # Also what the store has by now: the same record, written by another plane, is not this plane's.
    for record, expected in ((RECORD, first), (NEXT, first), (RECORD, None)):
        with pytest.raises(RecordConflictError):
            await store.commit(KEY, record, expected)
    assert await store.read(KEY) == second


@pytest.mark.parametrize("store", ["memory", "file"], indirect=True)  # Kubernetes has no such names
async def test_groups_do_not_share_a_record(store: RecordStore) -> None:
    """Names that would collide if simply joined have separate records."""
    await store.commit(GroupKey("a.b", "c"), RECORD, None)
    assert await store.read(GroupKey("a", "b.c")) is None


async def test_a_deleted_record_is_gone_and_its_old_version_is_void(store: RecordStore) -> None:
    first = await store.commit(KEY, RECORD, None)
    assert await store.commit(KEY, None, first) is None
    assert await store.read(KEY) is None
    again = await store.commit(KEY, RECORD, None)
    assert again is not None
    assert first is not None
    assert again.uid != first.uid
    with pytest.raises(RecordConflictError):
        await store.commit(KEY, RECORD, first)


async def test_only_the_record_that_was_read_is_deleted(store: RecordStore) -> None:
    """A record that another controller has written since may have a grant that the deletion does not know."""
    first = await store.commit(KEY, RECORD, None)
    second = await store.commit(KEY, NEXT, first)
    with pytest.raises(RecordConflictError):
        await store.commit(KEY, None, first)
    assert await store.read(KEY) == second
