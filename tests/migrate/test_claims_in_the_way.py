"""What other users of the cluster have done to claims, volumes and pods meanwhile: no volume is lost or given away for it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from brokergroup_operator.kube.errors import ApiUnavailableError
from brokergroup_operator.kube.resources import PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES, PODS
from brokergroup_operator.migrate.adopt import record_of
from brokergroup_operator.migrate.claims import SourceClaim, Takeover
from brokergroup_operator.migrate.plan import RecordInTheWayError
from brokergroup_operator.migrate.pod_runs import ClaimsError
from brokergroup_operator.migrate.store_pods import CONTAINER, store_pod
from brokergroup_operator.migrate.stores import Identity, Place, inspect
from brokergroup_operator.records.kubernetes import KubernetesRecordStore
from brokergroup_operator.records.store import GroupKey
from tests.migrate.fake_node import NAMESPACE
from tests.migrate.test_claims import (
    CLUSTER,
    GROUP,
    NAME,
    OLD,
    WISH,
    a_cluster,
    expected,
    group_of_that_name,
    state_of,
    take,
)
from tests.migrate.test_stores import write_store
from tests.support.memory_api import MemoryApi

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.migrate.fake_node import FakeNode


class DyingBefore(MemoryApi):
    """The administrator's client: its process is gone before the first request of this method on a path with this end."""

    def __init__(self, node: FakeNode, method: str, end: str) -> None:
        super().__init__(node.api.server)
        self.last = (method, end)

    async def _request(self, method: str, path: str, **more: Any) -> dict[str, Any]:
        if method == self.last[0] and path.endswith(self.last[1]):
            raise ApiUnavailableError(f"{method} {path}: killed")
        return await super()._request(method, path, **more)


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[FakeNode]:
    async with a_cluster(tmp_path) as found:
        yield found


async def killed_before(node: FakeNode, method: str, end: str) -> None:
    with pytest.raises(ApiUnavailableError):
        await take(DyingBefore(node, method, end))


async def volume(node: FakeNode, name: str) -> dict[str, Any]:
    return await node.api.get(PERSISTENT_VOLUMES, name)


async def test_a_volume_of_another_group_is_not_taken_from_it(node: FakeNode, tmp_path: Path) -> None:
    """The mark of where it came from stays on a volume for ever: it gives no right to it."""
    await take(node.api)
    before = await state_of(node.api, tmp_path)
    with pytest.raises(ClaimsError, match="volume pv-0, once of claim store-broker-0, is for claim shop/orders-1"):
        await take(node.api, replace(WISH, group="other"))
    assert await state_of(node.api, tmp_path) == before


async def test_a_volume_whose_policy_was_set_back_meanwhile_is_kept_all_the_same(
    node: FakeNode, tmp_path: Path
) -> None:
    """`Retain` is checked right before the claim is deleted, and not only once."""
    await killed_before(node, "DELETE", f"persistentvolumeclaims/{OLD[0]}")
    await node.api.patch(PERSISTENT_VOLUMES, "pv-0", {"spec": {"persistentVolumeReclaimPolicy": "Delete"}})
    with pytest.raises(ApiUnavailableError):
        await take(DyingBefore(node, "PATCH", "persistentvolumes/pv-0"))
    assert await node.get(PERSISTENT_VOLUME_CLAIMS, OLD[0])
    await take(node.api)
    assert await state_of(node.api, tmp_path) == expected(tmp_path)


async def test_a_claim_that_was_made_again_meanwhile_is_neither_taken_nor_deleted(
    node: FakeNode, tmp_path: Path
) -> None:
    """A StatefulSet that is scaled up makes its claim again, with an empty volume."""
    await killed_before(node, "POST", f"{NAMESPACE}/persistentvolumeclaims")
    write_store(tmp_path / "pv-new" / "store")
    await node.make_volume("pv-new", OLD[0])
    with pytest.raises(ClaimsError, match="claim store-broker-0 has volume pv-new, and pv-0 was taken from it"):
        await take(node.api)
    assert (await node.get(PERSISTENT_VOLUME_CLAIMS, OLD[0]))["status"]["phase"] == "Bound"
    await node.delete(PERSISTENT_VOLUME_CLAIMS, OLD[0])
    await take(node.api)
    claims = await node.items(PERSISTENT_VOLUME_CLAIMS)
    assert {one["metadata"]["name"]: one["spec"]["volumeName"] for one in claims} == {
        "orders-1": "pv-0",
        "orders-2": "pv-1",
    }


async def test_a_claim_is_deleted_only_while_it_has_the_volume_that_was_read(node: FakeNode) -> None:
    takeover = Takeover(node.api, WISH, lambda *_, **__: None)
    first, _ = await takeover._volumes()
    with pytest.raises(ClaimsError, match="claim store-broker-0 has volume pv-0, expected pv-1"):
        await takeover._release(replace(first, name="pv-1"))
    assert "deletionTimestamp" not in (await node.get(PERSISTENT_VOLUME_CLAIMS, OLD[0]))["metadata"]


async def test_stores_that_are_named_in_another_order_after_a_kill_get_the_ids_of_that_order(
    node: FakeNode, tmp_path: Path
) -> None:
    """Each store's identity must be that of its claim: two brokers with one id would come of it."""
    await killed_before(node, "DELETE", f"persistentvolumeclaims/{OLD[1]}")
    await node.delete(PERSISTENT_VOLUME_CLAIMS, "orders-1")
    await node.api.patch(
        PERSISTENT_VOLUMES, "pv-0", {"spec": {"claimRef": {"name": OLD[0], "uid": None, "resourceVersion": None}}}
    )
    await take(node.api, replace(WISH, sources=tuple(reversed(WISH.sources))))
    claims = await node.items(PERSISTENT_VOLUME_CLAIMS)
    folders = {one["metadata"]["name"]: tmp_path / one["spec"]["volumeName"] for one in claims}
    for number in (1, 2):
        own = Identity(cluster_name=CLUSTER, broker_name=NAME, broker_id=number)
        assert inspect(Place(folders[f"orders-{number}"])).identity == own


async def test_a_volume_whose_new_claim_was_deleted_is_bound_again(node: FakeNode, tmp_path: Path) -> None:
    """Its reference then has the uid of the claim that is gone, for which it would wait for ever."""
    await take(node.api)
    await node.delete(PERSISTENT_VOLUME_CLAIMS, "orders-2")
    await take(node.api)
    assert await state_of(node.api, tmp_path) == expected(tmp_path)


async def test_a_pod_of_another_group_that_has_the_name_is_left_alone(node: FakeNode) -> None:
    """A BrokerGroup `orders-adopt` has a pod `orders-adopt-1`."""
    spec = {"containers": [{"name": "broker", "image": "apache/rocketmq:5.5.0"}]}
    metadata = {"name": "orders-adopt-1", "namespace": NAMESPACE}
    made = await node.api.create(PODS, {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
    with pytest.raises(ClaimsError, match="pod orders-adopt-1 is not of this command"):
        await take(node.api)
    there = await node.get(PODS, "orders-adopt-1")
    assert (there["metadata"]["uid"], "deletionTimestamp" in there["metadata"]) == (made["metadata"]["uid"], False)


@pytest.mark.parametrize("end", [f"persistentvolumeclaims/{OLD[1]}", "brokergroupstates"])
async def test_a_group_that_is_created_between_two_steps_stops_it(node: FakeNode, end: str) -> None:
    class Meanwhile(DyingBefore):
        async def _request(self, method: str, path: str, **more: Any) -> dict[str, Any]:
            if method == "POST" and path.endswith("/persistentvolumeclaims") and self.left:
                self.left = False
                await group_of_that_name(node)
            return await super()._request(method, path, **more)

        left = True

    with pytest.raises(ClaimsError, match="BrokerGroup orders exists"):
        await take(Meanwhile(node, "DELETE" if "claims" in end else "POST", end))


async def test_a_record_that_goes_on_is_found_before_anything_is_changed(node: FakeNode) -> None:
    store = KubernetesRecordStore(node.api, namespace=NAMESPACE)
    planned = record_of(await take(node.api, yes=False), group=GROUP)
    await store.commit(GroupKey(NAMESPACE, GROUP), replace(planned, master_epoch=9), None)
    for yes in (False, True):
        with pytest.raises(RecordInTheWayError, match="epoch 9"):
            await take(node.api, yes=yes)
    assert {verb for verb, _ in node.ran} == {"check"}


async def test_a_claim_that_has_its_new_name_already_is_refused(node: FakeNode, tmp_path: Path) -> None:
    write_store(tmp_path / "pv-same")
    await node.make_volume("pv-same", "orders-1")
    with pytest.raises(ClaimsError, match="claim orders-1 has the name that group orders gives to broker 1"):
        await take(node.api, replace(WISH, sources=(SourceClaim(name="orders-1"),)))
    assert node.ran == []


async def test_a_pod_that_says_something_else_is_an_error_that_names_it(node: FakeNode) -> None:
    class Mute(MemoryApi):
        async def _request(self, method: str, path: str, **more: Any) -> dict[str, Any]:
            answer = await super()._request(method, path, **more)
            pods = [answer] if "/pods" in path else []
            for one in (status for pod in pods for status in (pod.get("status") or {}).get("containerStatuses") or []):
                one["state"]["terminated"]["message"] = "{"
            return answer

    with pytest.raises(ClaimsError, match=r"claim store-broker-0: pod orders-adopt-1 says '\{', expected a report"):
        await take(Mute(node.api.server))


async def test_a_volume_that_changes_between_a_look_and_a_write_is_looked_at_again(
    node: FakeNode, tmp_path: Path
) -> None:
    """Kubernetes marks it as released in the same moment."""

    class Touched(MemoryApi):
        async def _request(self, method: str, path: str, **more: Any) -> dict[str, Any]:
            if method == "PATCH" and path.endswith("persistentvolumes/pv-0") and len(touched) < 4:
                touched.append(path)
                status = {"metadata": {"annotations": {"touched": str(len(touched))}}}
                await node.api.patch(PERSISTENT_VOLUMES, "pv-0", status)
            return await super()._request(method, path, **more)

    touched: list[str] = []
    await take(Touched(node.api.server))
    assert len(touched) == 4
    await node.api.patch(PERSISTENT_VOLUMES, "pv-0", {"metadata": {"annotations": {"touched": None}}})
    assert await state_of(node.api, tmp_path) == expected(tmp_path)


def test_a_pod_that_is_left_behind_ends_itself() -> None:
    pod = store_pod("shop", "orders-adopt-1", "i:1", "c", ["check"], folder="", read_only=True, seconds=600.0)
    assert pod["spec"]["activeDeadlineSeconds"] == 660
    assert pod["spec"]["containers"][0]["name"] == CONTAINER
