"""Whose a group is: the first operator takes it, by compare-and-set; any other leaves it alone, and says so once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from brokergroup_operator.api import names
from brokergroup_operator.api.names import operator_of
from brokergroup_operator.kube import ConflictError, KubernetesApi
from brokergroup_operator.kube.resources import BROKER_GROUP_OPERATIONS, BROKER_GROUPS, EVENTS
from brokergroup_operator.reconcile.act import ownership
from brokergroup_operator.reconcile.operations.runner import OperationRunner
from brokergroup_operator.reconcile.see.fetch import GroupFetcher
from brokergroup_operator.reconcile.tell.events import EventPoster
from brokergroup_operator.records.kubernetes import KubernetesRecordStore
from brokergroup_operator.records.store import GroupKey
from tests.reconcile.fake_view import FakeGroupView

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from kube_sandbox.api_server.server import SandboxApiServer

KEY = GroupKey("default", "orders")
FIRST, SECOND = "first-system/brokergroup-operator", "second-system/brokergroup-operator"


@pytest.fixture
async def api(sandbox: SandboxApiServer) -> AsyncIterator[KubernetesApi]:
    async with KubernetesApi.from_url(sandbox.url) as client:
        await client.create(
            BROKER_GROUPS,
            {"metadata": {"name": "orders", "namespace": "default"}, "spec": {"implementation": "Python"}},
        )
        yield client


async def group_of(api: KubernetesApi) -> dict[str, Any]:
    return await api.get(BROKER_GROUPS, "orders", namespace="default")


async def take(api: KubernetesApi, operator: str | None, *, seen: dict[str, Any] | None = None) -> Any:
    events = EventPoster(api, instance="test")
    group = seen if seen is not None else await group_of(api)
    return await ownership.take(api, events, group, operator=operator)


async def test_the_first_takes_it_and_keeps_it(api: KubernetesApi) -> None:
    taken = await take(api, FIRST)
    assert operator_of(taken) == operator_of(await group_of(api)) == FIRST
    assert await take(api, FIRST) == taken, "a second pass writes nothing"


async def test_of_two_that_saw_it_free_one_gets_it(api: KubernetesApi) -> None:
    seen = await group_of(api)
    await take(api, FIRST, seen=seen)
    with pytest.raises(ConflictError):
        await take(api, SECOND, seen=seen)
    assert operator_of(await group_of(api)) == FIRST


@pytest.mark.parametrize("other", [SECOND, None], ids=["another release", "one without a Lease"])
async def test_anybody_else_leaves_it_alone_and_says_so(api: KubernetesApi, other: str | None) -> None:
    before = await take(api, FIRST)
    assert await take(api, other) is None
    assert await group_of(api) == before
    [event] = (await api.list(EVENTS, namespace="default")).items
    assert (event["reason"], event["type"]) == ("ServedByAnotherOperator", "Warning")
    assert f"operator {FIRST} reconciles it" in event["message"]


async def test_without_a_lease_nothing_is_taken(api: KubernetesApi) -> None:
    before = await group_of(api)
    assert await take(api, None) == before == await group_of(api)


@pytest.mark.parametrize("holder", [FIRST, None], ids=["another's", "nobody's yet"])
async def test_what_is_asked_of_a_group_is_done_by_its_own_operator(api: KubernetesApi, holder: str | None) -> None:
    if holder is not None:
        merge = {"metadata": {"annotations": {names.ANNOTATION_OPERATOR: holder}}}
        await api.patch(BROKER_GROUPS, "orders", merge, namespace="default")
    spec = {"brokerGroupRef": {"name": "orders"}, "type": "Switchover", "switchover": {}}
    await api.create(BROKER_GROUP_OPERATIONS, {"metadata": {"name": "move", "namespace": "default"}, "spec": spec})
    view = FakeGroupView(KubernetesRecordStore(api))
    read = GroupFetcher(api, view).fetch_for_operations
    post = EventPoster(api, instance="test").post
    runner = OperationRunner(api, view, operator=SECOND, read=read, post=post, wake=lambda _key: None)
    await runner.run_pass(KEY)
    await runner.stop()
    assert "status" not in await api.get(BROKER_GROUP_OPERATIONS, "move", namespace="default")
