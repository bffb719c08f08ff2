"""A hibernated group's claims go to a Java controller or to static roles; wherever it is ended, the next run goes on."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from brokergroup_operator.api import names
from brokergroup_operator.kube.errors import ApiUnavailableError, NotFoundError
from brokergroup_operator.kube.resources import (
    BROKER_GROUP_STATES,
    BROKER_GROUPS,
    PERSISTENT_VOLUME_CLAIMS,
    PODS,
)
from brokergroup_operator.migrate import run
from brokergroup_operator.migrate.claims_back import BackWish, ClaimsBack, sole_release
from brokergroup_operator.migrate.departure import Target
from brokergroup_operator.migrate.pod_runs import ClaimsError
from brokergroup_operator.migrate.store_pods import store_pod
from brokergroup_operator.migrate.stores import Identity, Place, inspect
from brokergroup_operator.records.kubernetes import KubernetesRecordStore
from brokergroup_operator.records.store import GroupKey
from controller_core.model import BrokerGroupRecord
from rocketmq_replica.log.epochs import EpochCache, EpochEntry
from rocketmq_replica.log.side_files import encode_epochs
from tests.migrate.fake_node import NAMESPACE, FakeNode, is_killed, kills_of
from tests.migrate.test_departure import seat
from tests.migrate.test_stores import write_store
from tests.support.memory_api import MemoryApi, MemoryApiServer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from pathlib import Path

    from brokergroup_operator.kube import KubernetesApi
    from brokergroup_operator.migrate.departure import Departure

GROUP, CLUSTER, NAME = "orders", "DefaultCluster", "broker-a"
CLAIMS = ("orders-1", "orders-2")
WISH = BackWish(namespace=NAMESPACE, group=GROUP, target=Target.STATIC_ROLES, image="brokergroup-operator:1")
RECORD = BrokerGroupRecord(
    cluster_name=CLUSTER, broker_name=NAME, next_broker_id=3, replicas={1: seat(1, 100), 2: seat(2, 100)},
    master_broker_id=2, master_epoch=7, sync_state_set=frozenset({1, 2}), sync_state_set_epoch=9,
)  # fmt: skip


@asynccontextmanager
async def a_cluster(folder: Path, **spec: Any) -> AsyncIterator[FakeNode]:
    """A hibernated group of two, with its claims and its record."""
    node = FakeNode(MemoryApiServer(), folder)
    await node.install()
    for broker_id, claim in enumerate(CLAIMS, start=1):
        root = folder / f"pv-{broker_id}"
        write_store(root)
        (root / "epochFileCheckpoint").write_bytes(encode_epochs(EpochCache([EpochEntry(2, 0), EpochEntry(7, 400)])))
        holder = Identity(cluster_name=CLUSTER, broker_name=NAME, broker_id=broker_id)
        (root / "brokerIdentity").write_text(str(holder))
        await node.make_volume(f"pv-{broker_id}", claim)
    await make_group(node, **spec)
    store = KubernetesRecordStore(node.api, namespace=NAMESPACE)
    await store.commit(GroupKey(NAMESPACE, GROUP), RECORD, None)
    await store.close()
    async with node.running():
        yield node


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[FakeNode]:
    async with a_cluster(tmp_path) as found:
        yield found


async def make_group(node: FakeNode, *, runs: bool = False, **spec: Any) -> None:
    config = {"flushDiskType": "SYNC_FLUSH"}
    wanted = {"implementation": "Python", "maintenance": {"hibernated": True}, "config": config} | spec
    await node.make(BROKER_GROUPS, GROUP, wanted)
    said = {"status": "False", "reason": "Hibernating"} if runs else {"status": "True", "reason": "NothingRuns"}
    condition = {"type": "Hibernated", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"} | said
    await node.patch(BROKER_GROUPS, GROUP, {"status": {"conditions": [condition]}}, subresource="status")


async def leave(api: KubernetesApi, *, yes: bool = True, wish: BackWish = WISH) -> tuple[Departure, dict[str, str]]:
    async with sole_release(api, wish):
        way = ClaimsBack(api, wish, lambda *_, **__: None)
        departure = await way.plan()
        further = await way.further_properties(departure)
        if yes and not departure.blocked:
            await way.run(departure, further)
        return departure, further


async def exists(node: FakeNode, resource: Any) -> bool:
    try:
        await node.get(resource, GROUP)
    except NotFoundError:
        return False
    return True


async def check_left(node: FakeNode, folder: Path) -> None:
    """Only the claims are left, with their stores as static roles read them."""
    assert not await exists(node, BROKER_GROUPS)
    assert not await exists(node, BROKER_GROUP_STATES)
    claims = await node.items(PERSISTENT_VOLUME_CLAIMS)
    assert {one["metadata"]["name"]: one["status"]["phase"] for one in claims} == dict.fromkeys(CLAIMS, "Bound")
    assert await node.items(PODS) == []
    for broker_id in (1, 2):
        report = inspect(Place(folder / f"pv-{broker_id}"))
        assert (report.identity, report.epochs) == (None, ())
        assert report.released is not None
        assert report.released.broker_id == broker_id


async def test_a_plan_changes_nothing(node: FakeNode, tmp_path: Path) -> None:
    departure, further = await leave(node.api, yes=False)
    assert (departure.blocked, further) == (False, {"flushDiskType": "SYNC_FLUSH"})
    assert node.ran == [("check", claim) for claim in CLAIMS]
    assert await exists(node, BROKER_GROUPS)
    assert await exists(node, BROKER_GROUP_STATES)
    assert inspect(Place(tmp_path / "pv-1")).identity is not None


@pytest.mark.sampled
async def test_wherever_it_is_killed_the_next_run_comes_to_the_same_end(tmp_path: Path) -> None:
    async with a_cluster(tmp_path / "whole") as node:
        kills = await kills_of(leave, node.api.server, at_least=12)
        await check_left(node, tmp_path / "whole")
    for writes in kills:
        folder = tmp_path / str(writes)
        async with a_cluster(folder) as node:
            killed = await is_killed(leave, node.api.server, writes=writes)
            assert killed == (writes < kills[-1])
            if killed and await exists(node, BROKER_GROUP_STATES):
                await leave(MemoryApi(node.api.server))
            await check_left(node, folder)


async def test_to_a_java_controller_the_epochs_are_below_every_new_one(node: FakeNode, tmp_path: Path) -> None:
    await leave(node.api, wish=replace(WISH, target=Target.JAVA_CONTROLLER, controllers="c:9878"))
    assert [inspect(Place(tmp_path / f"pv-{number}")).epochs for number in (1, 2)] == [((0, 0),)] * 2
    assert not await exists(node, BROKER_GROUP_STATES)


@pytest.mark.parametrize(
    ("spec", "fault"),
    [
        ({"maintenance": {"hibernated": False}}, "BrokerGroup orders is not Hibernated"),
        ({"runs": True}, "BrokerGroup orders is not Hibernated: wait until it is FailoverSafe"),
        (
            {"storage": {"retention": {"whenDeleted": "Delete"}}},
            "whenDeleted Delete, expected Retain: its claims would go with it",
        ),
    ],
)
async def test_a_group_that_is_not_stopped_or_not_kept_stays(tmp_path: Path, spec: dict[str, Any], fault: str) -> None:
    async with a_cluster(tmp_path, **spec) as node:
        with pytest.raises(ClaimsError, match=fault):
            await leave(node.api)
        assert node.ran == []
        assert await exists(node, BROKER_GROUPS)


async def test_a_member_without_its_claim_blocks_it(node: FakeNode) -> None:
    await node.delete(PERSISTENT_VOLUME_CLAIMS, "orders-1")
    departure, _ = await leave(node.api)
    assert [doubt.obstacle.value for doubt in departure.doubts] == ["MemberMissing"]
    assert await exists(node, BROKER_GROUPS)


async def test_logs_that_differ_block_it(node: FakeNode, tmp_path: Path) -> None:
    second = tmp_path / "pv-1" / "commitlog" / f"{4096:020d}"
    second.write_bytes(bytes(4096))
    departure, _ = await leave(node.api)
    assert "LogsDiffer" in [doubt.obstacle.value for doubt in departure.doubts]
    assert await exists(node, BROKER_GROUPS)
    assert inspect(Place(tmp_path / "pv-2")).identity is not None


async def test_a_claim_that_a_pod_uses_is_left(node: FakeNode) -> None:
    await node.make_pod("other", "orders-2")
    with pytest.raises(ClaimsError, match="pod other uses claim orders-2: stop it first"):
        await leave(node.api)
    assert node.ran == []


async def test_a_group_that_is_made_again_meanwhile_keeps_its_record(node: FakeNode, tmp_path: Path) -> None:

    class MadeAgain(MemoryApi):
        async def _request(self, method: str, path: str, **more: Any) -> dict[str, Any]:
            answer = await super()._request(method, path, **more)
            if method == "DELETE" and "/brokergroups/" in path:
                await make_group(node)
            return answer

    api = MadeAgain(node.api.server)
    with pytest.raises(ClaimsError, match="BrokerGroup orders was made again meanwhile"):
        await leave(api)
    assert await exists(node, BROKER_GROUP_STATES)
    assert inspect(Place(tmp_path / "pv-1")).identity is not None
    # It does not run: the next run says what to do with it.
    awake = {"spec": {"maintenance": {"hibernated": False}}}
    await node.patch(BROKER_GROUPS, GROUP, awake)
    with pytest.raises(ClaimsError, match="made again after its claims were released: delete it"):
        await leave(node.api)
    await node.delete(BROKER_GROUPS, GROUP)
    await leave(node.api)
    await check_left(node, tmp_path)


async def test_a_group_whose_status_is_written_meanwhile_is_deleted_as_it_is_then(
    node: FakeNode, tmp_path: Path
) -> None:
    class Touched(MemoryApi):
        async def _request(self, method: str, path: str, **more: Any) -> dict[str, Any]:
            if method == "DELETE" and "/brokergroups/" in path and len(touched) < 3:
                touched.append(path)
                note = {"metadata": {"annotations": {"touched": str(len(touched))}}}
                await node.patch(BROKER_GROUPS, GROUP, note)
            return await super()._request(method, path, **more)

    touched: list[str] = []
    await leave(Touched(node.api.server))
    assert len(touched) == 3
    await check_left(node, tmp_path)


class Woken(MemoryApi):
    """The group is woken just before it is deleted."""

    async def _request(self, method: str, path: str, **more: Any) -> dict[str, Any]:
        if method == "DELETE" and "/brokergroups/" in path:
            awake = {"spec": {"maintenance": {"hibernated": False}}}
            await MemoryApi(self.server).patch(BROKER_GROUPS, GROUP, awake, namespace=NAMESPACE)
        return await super()._request(method, path, **more)


async def test_a_group_that_is_woken_meanwhile_stays(node: FakeNode, tmp_path: Path) -> None:
    with pytest.raises(ClaimsError, match="BrokerGroup orders is not Hibernated"):
        await leave(Woken(node.api.server))
    assert await exists(node, BROKER_GROUPS)
    assert inspect(Place(tmp_path / "pv-1")).identity is not None


async def test_a_pod_that_a_killed_run_left_is_no_obstacle(node: FakeNode, tmp_path: Path) -> None:
    verb = ["check"]
    left = store_pod(NAMESPACE, "orders-adopt-2", "i:1", "orders-2", verb, folder="", read_only=True, seconds=60.0)
    await node.api.create(PODS, left)
    await leave(node.api)
    await check_left(node, tmp_path)


async def released_to(node: FakeNode) -> list[str | None]:
    claims = [await node.get(PERSISTENT_VOLUME_CLAIMS, one) for one in CLAIMS]
    return [(one["metadata"].get("annotations") or {}).get(names.ANNOTATION_RELEASED_TO) for one in claims]


async def test_the_claims_are_marked_before_the_group_goes_and_stay_so(node: FakeNode) -> None:
    """A GitOps controller makes the BrokerGroup again within seconds: no broker may start on a store that is released."""

    class Looking(MemoryApi):
        async def _request(self, method: str, path: str, **more: Any) -> dict[str, Any]:
            if method == "DELETE" and "/brokergroups/" in path:
                marks.append(await released_to(node))
            return await super()._request(method, path, **more)

    marks: list[list[str | None]] = []
    await leave(node.api, yes=False)
    assert await released_to(node) == [None, None]
    await leave(Looking(node.api.server))
    assert marks == [["static-roles"] * 2]
    assert await released_to(node) == ["static-roles"] * 2


async def test_a_group_that_stays_keeps_no_mark(node: FakeNode) -> None:
    with pytest.raises(ClaimsError, match="BrokerGroup orders is not Hibernated"):
        await leave(Woken(node.api.server))
    assert await released_to(node) == [None, None]


async def test_a_run_after_the_groups_end_has_its_configuration(node: FakeNode) -> None:

    class Killed(MemoryApi):
        async def _request(self, method: str, path: str, **more: Any) -> dict[str, Any]:
            if method == "POST" and path.endswith("/pods") and not await exists(node, BROKER_GROUPS):
                raise ApiUnavailableError("killed")
            return await super()._request(method, path, **more)

    with pytest.raises(ApiUnavailableError):
        await leave(Killed(node.api.server))
    assert not await exists(node, BROKER_GROUPS)
    damaged = {"metadata": {"annotations": {names.ANNOTATION_RELEASED_CONFIG: "{flush"}}}
    found = await node.get(PERSISTENT_VOLUME_CLAIMS, CLAIMS[0])
    await node.patch(PERSISTENT_VOLUME_CLAIMS, CLAIMS[0], damaged)
    with pytest.raises(ClaimsError, match=r"claim orders-1 has annotation brokergroup\.dev/released-config"):
        await leave(node.api)
    kept = {names.ANNOTATION_RELEASED_CONFIG: found["metadata"]["annotations"][names.ANNOTATION_RELEASED_CONFIG]}
    await node.api.patch(PERSISTENT_VOLUME_CLAIMS, CLAIMS[0], {"metadata": {"annotations": kept}}, namespace=NAMESPACE)
    _, further = await leave(node.api)
    assert further == {"flushDiskType": "SYNC_FLUSH"}


async def test_a_member_with_a_later_id_on_its_pods_claim_leaves_too(node: FakeNode, tmp_path: Path) -> None:
    """Its pod came back without its disk, and took the next id: the claim keeps the pod's name."""
    holder = Identity(cluster_name=CLUSTER, broker_name=NAME, broker_id=3)
    (tmp_path / "pv-2" / "brokerIdentity").write_text(str(holder))
    later = replace(seat(3, 100), reserved_for="orders-2")
    record = replace(
        RECORD, replicas={1: seat(1, 100), 3: later}, master_broker_id=3, master_epoch=8,
        sync_state_set=frozenset({1, 3}), next_broker_id=4,
    )  # fmt: skip
    store = KubernetesRecordStore(node.api, namespace=NAMESPACE)
    await store.commit(GroupKey(NAMESPACE, GROUP), record, await store.read(GroupKey(NAMESPACE, GROUP)))
    await store.close()
    departure, _ = await leave(node.api)
    assert [str(doubt) for doubt in departure.doubts] == []
    assert inspect(Place(tmp_path / "pv-2")).released == holder
    assert await released_to(node) == ["static-roles"] * 2


async def test_the_plan_is_shown_before_anything_is_changed(
    node: FakeNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:

    @asynccontextmanager
    async def the_api(_: object) -> AsyncIterator[MemoryApi]:
        yield node.api

    def show(departure: Departure, further: Mapping[str, str]) -> None:
        shown.append((departure.blocked, dict(further), inspect(Place(tmp_path / "pv-1")).identity is not None))

    shown: list[tuple[bool, dict[str, str], bool]] = []
    monkeypatch.setattr(run, "kubernetes_api", the_api)
    await run.release_claims(WISH, kubeconfig=None, report=lambda *_, **__: None, yes=True, show=show)
    assert shown == [(False, {"flushDiskType": "SYNC_FLUSH"}, True)]
    await check_left(node, tmp_path)


async def test_a_group_that_left_has_no_record(node: FakeNode) -> None:
    await leave(node.api)
    with pytest.raises(ClaimsError, match="there is no record BrokerGroupState shop/orders: the group has left"):
        await leave(node.api)
