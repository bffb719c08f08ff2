"""The fence finds the process by its address: a pod whose disk was lost carries a new broker id under its old name."""

import asyncio
from dataclasses import replace

import pytest

from brokergroup_operator.controller.change.fencing import FenceOutcome, KubernetesFencer
from brokergroup_operator.controller.directory.group_directory import FixedDirectory, GroupBinding, PodPlace
from brokergroup_operator.controller.directory.places import process_address
from brokergroup_operator.kube.client import KubernetesApi
from brokergroup_operator.kube.errors import NotFoundError
from brokergroup_operator.kube.resources import PODS
from brokergroup_operator.records.store import GroupKey
from controller_core.settings import ControllerSettings
from tests.controller.conftest import StartPlane, group_of
from tests.controller.test_kubernetes_parts import ADDRESS, BINDING, TERMINATED, api, create_pod, set_status
from tests.support.fake_broker import FakeGroup, eventually

__all__ = ["api"]


class Translating(FixedDirectory):
    """Its groups are known by Services."""

    def binding(self, key: GroupKey) -> GroupBinding | None:
        found = super().binding(key)
        return None if found is None else replace(found, translated=True)


class Asked:
    """A fencer that notes at which address it is asked for."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def fence(
        self,
        binding: GroupBinding,
        broker_id: int,
        address: str,
        *,
        deadline_seconds: float,
    ) -> FenceOutcome:
        self.asked.append(address)
        return FenceOutcome(confirmed=True, how="asked")


async def _is_dying(api: KubernetesApi, name: str) -> bool:
    pod = await api.get(PODS, name, namespace="default")
    return "deletionTimestamp" in pod["metadata"]


async def test_the_pod_at_the_address_is_killed_whatever_its_name_says(api: KubernetesApi) -> None:
    """Broker 4 is the pod `orders-1` since its volume was lost; there is no pod `orders-4`."""
    await create_pod(api, "orders-1")
    fencing = asyncio.create_task(KubernetesFencer(api).fence(BINDING, 4, ADDRESS, deadline_seconds=20.0))
    await eventually(lambda: _is_dying(api, "orders-1"), what="the pod to be deleted")
    await set_status(api, "orders-1", address="127.64.1.1", state=TERMINATED)
    outcome = await fencing
    assert outcome.confirmed
    assert "orders-1" in outcome.how


async def test_a_pod_of_the_right_name_at_another_address_is_left_alone(api: KubernetesApi) -> None:
    """`orders-4` exists too, and is somebody else's process (safety rule 8)."""
    await create_pod(api, "orders-4", address="127.64.1.4")
    await create_pod(api, "orders-1")
    fencing = asyncio.create_task(KubernetesFencer(api).fence(BINDING, 4, ADDRESS, deadline_seconds=20.0))
    await eventually(lambda: _is_dying(api, "orders-1"), what="the pod to be deleted")
    await set_status(api, "orders-1", address="127.64.1.1", state=TERMINATED)
    assert (await fencing).confirmed
    assert not await _is_dying(api, "orders-4")


async def test_nobody_at_the_address_confirms_nothing(api: KubernetesApi) -> None:
    await create_pod(api, "orders-4", address="127.64.1.4")
    outcome = await KubernetesFencer(api).fence(BINDING, 4, ADDRESS, deadline_seconds=5.0)
    assert not outcome.confirmed
    assert not await _is_dying(api, "orders-4")
    with pytest.raises(NotFoundError):
        await api.get(PODS, "orders-1", namespace="default")


async def test_the_next_pod_at_the_same_service_is_not_killed_for_the_one_before_it(api: KubernetesApi) -> None:
    """Its start proves nothing of the old process: a pod that was deleted by force may run on, on a node that is cut off."""
    known = "10.96.0.1:10911"
    await create_pod(api, "orders-1", address="127.64.1.9", known_by=known)
    there = replace(BINDING, translated=True, places={"orders-1": PodPlace(ip="127.64.1.9", address=known)})
    before = process_address(there, known, "127.64.1.1")
    assert before is not None
    for address in (before, known):
        outcome = await KubernetesFencer(api).fence(there, 1, address, deadline_seconds=5.0)
        assert outcome.untouched
        assert not outcome.confirmed
    assert not await _is_dying(api, "orders-1")
    own = process_address(there, known, "127.64.1.9")
    assert own is not None
    fencing = asyncio.create_task(KubernetesFencer(api).fence(there, 1, own, deadline_seconds=20.0))
    await eventually(lambda: _is_dying(api, "orders-1"), what="the pod of that process to be deleted")
    await set_status(api, "orders-1", address="127.64.1.9", state=TERMINATED)
    assert (await fencing).confirmed


async def test_a_master_that_was_never_heard_here_names_no_pod_that_could_be_killed(
    start_plane: StartPlane, group: FakeGroup
) -> None:
    directory = Translating(settings=ControllerSettings(shrink_floor=True, min_in_sync_replicas=2))
    fencer = Asked()
    plane = await start_plane(directory=directory, fencer=fencer)
    group.planes = [plane.address]
    first, _, _ = await group.three()
    engine, known = plane._failover, group_of(plane)
    assert (await engine._kill(known, 1, "10.96.0.1:10911")).confirmed
    assert fencer.asked == [first.address.rpartition(":")[0] + ":10911"], (
        "where its heartbeats came from, not the Service"
    )
    known.addresses.channel_hosts.clear()
    outcome = await engine._kill(known, 1, "10.96.0.1:10911")
    assert outcome.untouched
    assert not outcome.confirmed
    assert len(fencer.asked) == 1
