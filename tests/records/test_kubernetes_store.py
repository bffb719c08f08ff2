"""The Kubernetes store against the embedded API: compare-and-set, fields it must not touch, and writes with lost answers."""

import copy
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from brokergroup_operator.kube.client import KubernetesApi
from brokergroup_operator.kube.errors import ApiUnavailableError, OutcomeUnknownError
from brokergroup_operator.kube.resources import (
    BROKER_GROUP_STATES,
    Resource,
)
from brokergroup_operator.records.kubernetes import KubernetesRecordStore
from brokergroup_operator.records.store import (
    GroupKey,
    RecordConflictError,
    RecordRefusedError,
    RecordUnavailableError,
)
from controller_core.model import BrokerGroupRecord, Replica
from tests.our_kinds import api_with_our_kinds
from tests.support.waiting import eventually

KEY = GroupKey("default", "orders")
RECORD = BrokerGroupRecord(
    "DefaultCluster",
    "orders",
    next_broker_id=3,
    replicas={1: Replica(1, "10.0.0.1:10911;1", "10.0.0.1:10911", "orders-1", registered=True)},
    master_broker_id=1,
    master_epoch=4,
    sync_state_set=frozenset({1}),
    sync_state_set_epoch=7,
)
NEXT = replace(RECORD, master_epoch=5, sync_state_set_epoch=8)


class LossyApi(KubernetesApi):
    """Loses answers: the n-th write is carried out (or not) without an answer. Counts from 0; None loses none."""

    lose: int | None = None
    before_it_is_done = False
    # Whether the lost write is carried out only when the next one arrives.
    late = False
    waiting: Any = None
    count = 0
    away = False

    async def create(self, resource: Resource, obj: Any, **options: Any) -> Any:
        return await self._lossy(super().create(resource, obj, **options), resource)

    async def replace(self, resource: Resource, obj: Any, **options: Any) -> Any:
        return await self._lossy(super().replace(resource, obj, **options), resource)

    async def get(self, resource: Resource, name: str, **options: Any) -> Any:
        if self.away:
            raise ApiUnavailableError("away")
        return await super().get(resource, name, **options)

    async def _lossy(self, write: Any, resource: Resource) -> Any:
        if resource != BROKER_GROUP_STATES:
            return await write
        lose = self.count == self.lose
        self.count += 1
        if self.waiting is not None:
            waiting, self.waiting = self.waiting, None
            await waiting
        if lose and self.late:
            self.waiting = write
            raise OutcomeUnknownError("on its way")
        if self.away or (lose and self.before_it_is_done):
            write.close()
            raise OutcomeUnknownError("lost before it was done")
        answer = await write
        if lose:
            raise OutcomeUnknownError("lost after it was done")
        return answer


@pytest.fixture
async def api() -> AsyncIterator[LossyApi]:
    async with api_with_our_kinds(LossyApi) as opened:
        yield opened


async def test_everything_else_in_the_object_stays(api: LossyApi) -> None:
    store = KubernetesRecordStore(api)
    await store.commit(KEY, RECORD, None)
    patch = {"metadata": {"finalizers": ["example.org/keep"], "labels": {"a": "b"}}}
    await api.patch(BROKER_GROUP_STATES, "orders", patch, namespace="default")
    await store.commit(KEY, NEXT, await store.read(KEY))
    obj = await api.get(BROKER_GROUP_STATES, "orders", namespace="default")
    assert obj["metadata"]["finalizers"] == ["example.org/keep"]
    assert obj["metadata"]["labels"] == {"a": "b"}
    assert obj["record"]["masterEpoch"] == 5


async def test_a_commit_leaves_the_copy_that_it_was_decided_on_as_it_was(api: LossyApi) -> None:
    store = KubernetesRecordStore(api)
    first = await store.commit(KEY, RECORD, None)
    assert first is not None
    before = copy.deepcopy(first.backing)
    assert await store.commit(KEY, NEXT, first) is not None
    assert first.backing == before


async def test_the_api_itself_refuses_a_record_that_goes_back_in_time(api: LossyApi) -> None:
    store = KubernetesRecordStore(api)
    await store.commit(KEY, NEXT, None)
    with pytest.raises(RecordRefusedError, match="masterEpoch"):
        await store.commit(KEY, RECORD, await store.read(KEY))


@pytest.mark.parametrize("before_it_is_done", [True, False])
@pytest.mark.parametrize("lost", [0, 1])
async def test_a_write_whose_answer_is_lost_is_known_in_the_end(
    api: LossyApi, lost: int, before_it_is_done: bool
) -> None:
    """Invariant I15, for the creation (0) and the replacement (1)."""
    store = KubernetesRecordStore(api)
    api.lose, api.before_it_is_done = lost, before_it_is_done
    first = await store.commit(KEY, RECORD, None)
    second = await store.commit(KEY, NEXT, first)
    assert second is not None
    assert second.record == NEXT
    assert await store.read(KEY) == second


@pytest.mark.parametrize("lost", [0, 1])
async def test_a_write_that_arrives_after_it_was_looked_for_is_our_own(api: LossyApi, lost: int) -> None:
    """The repeated write conflicts with the store's own first one."""
    store = KubernetesRecordStore(api)
    api.lose, api.late = lost, True
    first = await store.commit(KEY, RECORD, None)
    second = await store.commit(KEY, NEXT, first)
    assert second is not None
    assert (second.record, api.count) == (NEXT, 3)
    assert await store.read(KEY) == second


async def test_a_write_that_was_overwritten_before_it_was_known_is_a_conflict(api: LossyApi) -> None:
    store = KubernetesRecordStore(api)
    first = await store.commit(KEY, RECORD, None)
    look = api.get
    overwritten = False

    async def overwrite_first(resource: Resource, name: str, **options: Any) -> Any:
        nonlocal overwritten
        if not overwritten:
            overwritten = True
            other = KubernetesRecordStore(api)
            await other.commit(KEY, NEXT, await other.read(KEY))
        return await look(resource, name, **options)

    api.lose, api.count = 0, 0
    api.get = overwrite_first  # type: ignore[method-assign]
    with pytest.raises(RecordConflictError, match="overwritten"):
        await store.commit(KEY, RECORD, first)


async def test_an_api_that_stays_away_is_unavailable_and_nothing_is_granted(api: LossyApi) -> None:
    store = KubernetesRecordStore(api)
    first = await store.commit(KEY, RECORD, None)
    api.away = True
    with pytest.raises(RecordUnavailableError):
        await store.commit(KEY, NEXT, first, 0.2)
    with pytest.raises(RecordUnavailableError):
        await store.read(KEY, deadline_seconds=0.1)
    api.away = False
    assert await store.read(KEY) == first


async def test_a_watch_tells_that_a_record_moved(api: LossyApi) -> None:
    store = KubernetesRecordStore(api)
    told: list[tuple[GroupKey, str | None]] = []
    unsubscribe = store.subscribe(lambda key, version: told.append((key, version)))
    first = await store.commit(KEY, RECORD, None)
    assert first is not None
    await eventually(lambda: told, what="the watch to tell")
    assert told == [(KEY, first.version)]
    unsubscribe()
    await store.close()
