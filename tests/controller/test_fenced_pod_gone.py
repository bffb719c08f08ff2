"""A fenced pod whose object is gone before its end was seen: only the last state that its kubelet reported confirms its death."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from brokergroup_operator.api import names
from brokergroup_operator.controller.change.fencing import FenceOutcome, KubernetesFencer
from brokergroup_operator.kube.errors import ApiError, ApiUnavailableError, GoneError, OutcomeUnknownError
from brokergroup_operator.kube.resources import NODES, PODS
from tests.controller.cluster import ADDRESS, BINDING, RUNNING, TERMINATED, create_pod, let_go, set_status
from tests.support.fake_broker import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from brokergroup_operator.kube.client import JsonObject, KubernetesApi, WatchEvent


@dataclass
class Unseen:
    """A fence that has deleted `orders-1` and, until `look` is set, does not look at it again."""

    pod: JsonObject
    fencer: KubernetesFencer
    fencing: asyncio.Task[FenceOutcome]
    look: asyncio.Event


@pytest.fixture
async def unseen(api: KubernetesApi, monkeypatch: pytest.MonkeyPatch) -> Unseen:
    """The pod's end takes place between two looks, on a node that is there."""
    await api.create(NODES, {"metadata": {"name": "node-1"}})
    pod, fencer = await create_pod(api, node="node-1"), KubernetesFencer(api)
    get, delete, look, deleted = api.get, api.delete, asyncio.Event(), asyncio.Event()
    look.set()

    async def later(*arguments: Any, **named: Any) -> Any:
        await look.wait()
        return await get(*arguments, **named)

    async def hold(*arguments: Any, **named: Any) -> Any:
        look.clear()
        answer = await delete(*arguments, **named)
        deleted.set()
        return answer

    monkeypatch.setattr(api, "get", later)
    monkeypatch.setattr(api, "delete", hold)
    fencing = asyncio.create_task(fencer.fence(BINDING, 1, ADDRESS, deadline_seconds=60.0))
    await deleted.wait()
    return Unseen(pod, fencer, fencing, look)


@pytest.mark.parametrize("returns", [False, True], ids=["gone", "made again"])
@pytest.mark.parametrize(("state", "confirmed"), [(RUNNING, False), (TERMINATED, True)], ids=["running", "terminated"])
@pytest.mark.parametrize("phase", ["Running", "Failed"])
async def test_a_pod_that_goes_between_two_looks_is_dead_only_if_its_kubelet_reported_it(
    api: KubernetesApi, unseen: Unseen, phase: str, state: dict[str, Any], confirmed: bool, returns: bool
) -> None:
    """A person takes the finalizer off; or PodGC calls it Failed, since its node is gone, and the reconcile plane takes it off."""
    await set_status(api, "orders-1", state=state)
    await api.patch(PODS, "orders-1", {"status": {"phase": phase}}, namespace="default", subresource="status")
    await let_go(api)
    if returns:
        await create_pod(api, node="node-2")
    unseen.look.set()
    outcome = await unseen.fencing
    assert outcome.confirmed == confirmed
    assert ("terminated" in outcome.how) == confirmed


async def test_a_leaving_pod_that_is_deleted_by_force_confirms_nothing(
    api: KubernetesApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pod that is already being deleted takes no finalizer, so nothing keeps its object."""
    await api.create(NODES, {"metadata": {"name": "node-1"}})
    await create_pod(api, node="node-1")
    await api.delete(PODS, "orders-1", namespace="default", grace_period_seconds=30)
    deleted, delete = asyncio.Event(), api.delete

    async def tell(*arguments: Any, **named: Any) -> Any:
        answer = await delete(*arguments, **named)
        deleted.set()
        return answer

    monkeypatch.setattr(api, "delete", tell)
    fencing = asyncio.create_task(KubernetesFencer(api).fence(BINDING, 1, ADDRESS, deadline_seconds=3.0))
    await deleted.wait()
    await delete(PODS, "orders-1", namespace="default", grace_period_seconds=0)
    assert not (await fencing).confirmed


UNAVAILABLE = ApiUnavailableError("etcd has no leader", status=503)


def watch_fails(
    api: KubernetesApi, monkeypatch: pytest.MonkeyPatch, error: ApiError | None, *, times: int
) -> list[dict[str, Any]]:
    """Let the first watches fail with this error, or hang without one. Return the list of all that were asked for."""
    watch, asked = api.watch, list[dict[str, Any]]()

    async def answer(*arguments: Any, **named: Any) -> AsyncGenerator[WatchEvent]:
        asked.append(named)
        if len(asked) <= times:
            await (asyncio.Event().wait() if error is None else asyncio.sleep(0))
            raise error or AssertionError("it hangs")
        async with aclosing(watch(*arguments, **named)) as events:
            async for event in events:
                yield event

    monkeypatch.setattr(api, "watch", answer)
    return asked


@pytest.mark.parametrize("first", [UNAVAILABLE, None], ids=["503", "hangs"])
async def test_an_end_whose_events_are_not_read_at_first_is_read_again(
    api: KubernetesApi, unseen: Unseen, monkeypatch: pytest.MonkeyPatch, first: ApiError | None
) -> None:
    asked = watch_fails(api, monkeypatch, first, times=1)
    await set_status(api, "orders-1", state=TERMINATED)
    await let_go(api)
    unseen.look.set()
    assert (await unseen.fencing).confirmed
    assert len(asked) == 2


@pytest.mark.parametrize("error", [UNAVAILABLE, ApiError("forbidden", status=403, reason="Forbidden")], ids=str)
async def test_an_end_whose_events_are_never_read_confirms_nothing(
    api: KubernetesApi, unseen: Unseen, monkeypatch: pytest.MonkeyPatch, error: ApiError
) -> None:
    asked = watch_fails(api, monkeypatch, error, times=1000)
    await set_status(api, "orders-1", state=TERMINATED)
    await let_go(api)
    unseen.look.set()
    await eventually(lambda: len(asked) > 2, what="it to ask again and again")
    assert not unseen.fencing.done()
    unseen.fencing.cancel()
    await asyncio.gather(unseen.fencing, return_exceptions=True)


async def test_an_end_whose_events_are_forgotten_confirms_nothing(
    api: KubernetesApi, unseen: Unseen, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch_fails(api, monkeypatch, GoneError("too old resource version", status=410), times=1)
    await set_status(api, "orders-1", state=TERMINATED)
    await let_go(api)
    unseen.look.set()
    assert not (await unseen.fencing).confirmed


async def test_the_events_are_read_from_the_deletion_on(
    api: KubernetesApi, unseen: Unseen, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An API server may have forgotten those since the pod was last written, which may be days ago."""
    asked = watch_fails(api, monkeypatch, None, times=0)
    await let_go(api)
    unseen.look.set()
    await unseen.fencing
    assert asked[0]["resource_version"] != unseen.pod["metadata"]["resourceVersion"]


@pytest.mark.parametrize("ends", ["after its deletion", "before its deletion"])
async def test_a_pod_that_ends_around_a_deletion_whose_answer_is_lost_is_dead(
    api: KubernetesApi, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    """The fence saw the pod at its address, so the pod's last state counts, whichever client deleted it."""
    await create_pod(api)
    delete = api.delete
    if ends == "before its deletion":
        await delete(PODS, "orders-1", namespace="default", grace_period_seconds=30)

    async def lost(*arguments: Any, **named: Any) -> Any:
        if ends == "after its deletion":
            await delete(*arguments, **named)
            await set_status(api, "orders-1", state=TERMINATED)
            await let_go(api)
            raise OutcomeUnknownError("timeout")
        await set_status(api, "orders-1", state=TERMINATED)
        await delete(PODS, "orders-1", namespace="default", grace_period_seconds=0)
        return await delete(*arguments, **named)

    monkeypatch.setattr(api, "delete", lost)
    assert (await KubernetesFencer(api).fence(BINDING, 1, ADDRESS, deadline_seconds=60.0)).confirmed


async def test_the_release_of_a_pod_that_is_gone_leaves_the_next_pod_of_its_name_alone(
    api: KubernetesApi, unseen: Unseen
) -> None:
    await set_status(api, "orders-1", state=TERMINATED)
    await let_go(api)
    await create_pod(api, metadata={"finalizers": [names.FINALIZER_FENCE]})
    unseen.look.set()
    assert (await unseen.fencing).confirmed
    await unseen.fencer.close()
    found = await api.get(PODS, "orders-1", namespace="default")
    assert found["metadata"]["finalizers"] == [names.FINALIZER_FENCE]
