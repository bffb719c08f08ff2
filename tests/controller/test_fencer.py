"""The fence deletes the pod at a silent master's address, no other pod, and waits until the pod is reported dead."""

from __future__ import annotations

import asyncio
import datetime as dt
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn, cast

import pytest

from brokergroup_operator.api import names
from brokergroup_operator.controller.change.fencing import KubernetesFencer
from brokergroup_operator.controller.directory.pods import PodPlace
from brokergroup_operator.kube.answers import decode
from brokergroup_operator.kube.errors import ApiError, NotFoundError, error_from_status
from brokergroup_operator.kube.resources import PODS
from tests.controller.cluster import ADDRESS, BINDING, TERMINATED, create_pod, is_dying, set_status
from tests.controller.conftest import group_of
from tests.controller.world import Fencer, World
from tests.support.fake_broker import eventually

if TYPE_CHECKING:
    from brokergroup_operator.kube.client import KubernetesApi


async def test_a_pod_of_the_right_name_at_another_address_is_left_alone(api: KubernetesApi) -> None:
    """`orders-4` exists too, and is another broker's process (safety rule 8)."""
    await create_pod(api, "orders-4", address="127.64.1.4")
    await create_pod(api, "orders-1")
    fencing = asyncio.create_task(KubernetesFencer(api).fence(BINDING, 4, ADDRESS, deadline_seconds=20.0))
    await eventually(lambda: is_dying(api, "orders-1"), what="the pod to be deleted")
    await set_status(api, "orders-1", state=TERMINATED)
    outcome = await fencing
    assert outcome.confirmed
    assert "orders-1" in outcome.how
    assert not await is_dying(api, "orders-4")


async def test_no_pod_at_the_address_confirms_nothing(api: KubernetesApi) -> None:
    """Safety rule 8: a pod of the right name at another address may be the innocent successor of the silent broker."""
    fencer = KubernetesFencer(api)
    outcomes = [await fencer.fence(BINDING, 1, ADDRESS, deadline_seconds=5.0)]
    for number in (1, 4):
        await create_pod(api, f"orders-{number}", address=f"127.64.1.{number + 1}")
        outcomes.append(await fencer.fence(BINDING, number, ADDRESS, deadline_seconds=5.0))
        assert not await is_dying(api, f"orders-{number}")
    assert [one.confirmed for one in outcomes] == [False] * 3


async def test_the_next_pod_at_the_same_service_is_not_killed_for_the_one_before_it(api: KubernetesApi) -> None:
    """The new pod's start proves nothing about the old process: a pod deleted by force may still run on a node that is cut off."""
    known = "10.96.0.1:10911"
    await create_pod(api, "orders-1", address="127.64.1.9", known_by=known)
    there = replace(BINDING, translated=True, places={"orders-1": PodPlace(ip="127.64.1.9", address=known)})
    before = there.process_address(known, "127.64.1.1")
    assert before is not None
    for address in (before, known):
        outcome = await KubernetesFencer(api).fence(there, 1, address, deadline_seconds=5.0)
        assert outcome.untouched
        assert not outcome.confirmed
    assert not await is_dying(api, "orders-1")
    own = there.process_address(known, "127.64.1.9")
    assert own is not None
    fencing = asyncio.create_task(KubernetesFencer(api).fence(there, 1, own, deadline_seconds=20.0))
    await eventually(lambda: is_dying(api, "orders-1"), what="the pod of that process to be deleted")
    await set_status(api, "orders-1", address="127.64.1.9", state=TERMINATED)
    assert (await fencing).confirmed


async def test_a_master_that_was_never_heard_here_names_no_pod_that_could_be_killed(group: World) -> None:
    fencer = Fencer()
    plane, (first, *_) = await group.three_under(fencer=fencer)
    group.directory.wish(translated=True)
    await eventually(lambda: group_of(plane).binding.translated, what="the plane to know of the Services")
    engine, known = plane._failover, group_of(plane)
    assert (await engine._kill(known, 1, "10.96.0.1:10911")).confirmed
    assert fencer.asked == [first.address.rpartition(":")[0] + ":10911"], (
        "the fence goes to the heartbeats' source address, not to the Service"
    )
    known.addresses.channel_hosts.clear()
    outcome = await engine._kill(known, 1, "10.96.0.1:10911")
    assert outcome.untouched
    assert not outcome.confirmed
    assert len(fencer.asked) == 1


async def test_the_fence_kills_the_pod_and_waits_for_its_end(api: KubernetesApi) -> None:
    await create_pod(api)
    fencer = KubernetesFencer(api)
    fencing = asyncio.create_task(fencer.fence(BINDING, 1, ADDRESS, deadline_seconds=10.0))
    await eventually(lambda: is_dying(api), what="the pod to be deleted")
    dying = (await api.get(PODS, "orders-1", namespace="default"))["metadata"]
    assert names.FINALIZER_FENCE in dying["finalizers"]
    assert dying["deletionGracePeriodSeconds"] == 0
    assert not fencing.done()
    await set_status(api, "orders-1", state=TERMINATED)
    assert (await fencing).confirmed
    await fencer.close()
    with pytest.raises(NotFoundError):
        await api.get(PODS, "orders-1", namespace="default")


@pytest.mark.parametrize(
    ("after_seconds", "told"),
    [(0, "pod orders-1 ran until it was deleted"), (-5, "containers of pod orders-1 terminated")],
)
async def test_a_fence_reports_whether_the_silent_broker_still_ran(
    api: KubernetesApi, after_seconds: int, told: str
) -> None:
    """The process's end may be reported late: it ran until the fence only if the deletion ended it."""
    await create_pod(api)
    fencing = asyncio.create_task(KubernetesFencer(api).fence(BINDING, 1, ADDRESS, deadline_seconds=10.0))
    await eventually(lambda: is_dying(api), what="the pod to be deleted")
    dying = (await api.get(PODS, "orders-1", namespace="default"))["metadata"]
    ended = dt.datetime.fromisoformat(dying["deletionTimestamp"]) + dt.timedelta(seconds=after_seconds)
    finished = ended.isoformat().replace("+00:00", "Z")
    await set_status(api, "orders-1", state={"terminated": {"exitCode": 137, "finishedAt": finished}})
    outcome = await fencing
    assert (outcome.confirmed, outcome.how) == (True, told)


async def test_a_404_from_in_front_of_the_api_server_confirms_no_death(
    api: KubernetesApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A load balancer whose backend restarts answers a page; the next request reaches an API server again."""
    await create_pod(api, node="node-1")
    request, pages = api._request, 0

    async def without_backend(method: str, path: str, **named: Any) -> Any:
        nonlocal pages
        if method == "GET" and path.endswith("/pods/orders-1"):
            pages += 1
            raise error_from_status(f"{method} {path}", 404, decode(b"default backend - 404"), write=False)
        return await request(method, path, **named)

    fencing = asyncio.create_task(KubernetesFencer(api).fence(BINDING, 1, ADDRESS, deadline_seconds=2.0))
    await eventually(lambda: is_dying(api), what="the pod to be deleted")
    monkeypatch.setattr(api, "_request", without_backend)
    assert not (await fencing).confirmed
    assert pages


async def test_a_fence_without_a_confirmation_ends_at_its_deadline(api: KubernetesApi) -> None:
    await create_pod(api)
    outcome = await KubernetesFencer(api).fence(BINDING, 1, ADDRESS, deadline_seconds=0.3)
    assert not outcome.confirmed
    assert "not reported dead" in outcome.how


@pytest.mark.parametrize("error", [ApiError("not reachable"), ApiError("forbidden", status=403)], ids=str)
async def test_a_fence_that_the_api_refuses_ends_at_its_deadline(error: ApiError) -> None:
    class NoApi:
        async def get(self, *_: object, **__: object) -> NoReturn:
            raise error

    outcome = await KubernetesFencer(cast("KubernetesApi", NoApi())).fence(BINDING, 1, ADDRESS, deadline_seconds=0.3)
    assert not outcome.confirmed
    assert "not reported dead" in outcome.how
