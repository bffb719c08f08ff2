"""Claims of old brokers become a BrokerGroup's, with their volumes: wherever it is ended, the next run goes on."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from brokergroup_operator.api import names
from brokergroup_operator.kube.errors import ApiUnavailableError, NotFoundError
from brokergroup_operator.kube.resources import (
    BROKER_GROUP_STATES,
    BROKER_GROUPS,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    PODS,
    STATEFUL_SETS,
)
from brokergroup_operator.migrate import run
from brokergroup_operator.migrate.claims import SourceClaim, Takeover, Wish, sole_adoption
from brokergroup_operator.migrate.pod_runs import ClaimsError
from brokergroup_operator.migrate.stores import Identity, Place, inspect
from brokergroup_operator.records.store import RecordUnavailableError
from tests.migrate.fake_node import NAMESPACE, FakeNode, is_killed, kills_of
from tests.migrate.test_stores import write_store
from tests.support.memory_api import MemoryApi, MemoryApiServer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from brokergroup_operator.kube import KubernetesApi
    from brokergroup_operator.migrate.adopt import Adoption

GROUP, CLUSTER, NAME = "orders", "DefaultCluster", "broker-a"
OLD = ("store-broker-0", "store-broker-1")
WISH = Wish(
    namespace=NAMESPACE,
    group=GROUP,
    cluster_name=CLUSTER,
    broker_name=NAME,
    sources=tuple(SourceClaim(name=name, folder="store") for name in OLD),
    image="brokergroup-operator:1",
)


@asynccontextmanager
async def a_cluster(folder: Path) -> AsyncIterator[FakeNode]:
    """Two volumes with stores of static roles, each with the claim of its old broker."""
    node = FakeNode(MemoryApiServer(), folder)
    await node.install()
    for number, claim in enumerate(OLD):
        write_store(folder / f"pv-{number}" / "store")
        await node.make_volume(f"pv-{number}", claim)
    async with node.running():
        yield node


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[FakeNode]:
    async with a_cluster(tmp_path) as found:
        yield found


async def take(api: KubernetesApi, wish: Wish = WISH, *, yes: bool = True) -> Adoption:
    steps: list[str] = []
    async with sole_adoption(api, wish):
        takeover = Takeover(api, wish, lambda step, **facts: steps.append(step))
        adoption = await takeover.plan(go_on=yes)
        if yes and not adoption.blocked:
            await takeover.run(adoption)
        return adoption


async def state_of(api: KubernetesApi, folder: Path) -> dict[str, Any]:
    """Everything that the end consists of."""
    record = (await api.get(BROKER_GROUP_STATES, GROUP, namespace=NAMESPACE))["record"]
    claims = (await api.list(PERSISTENT_VOLUME_CLAIMS, namespace=NAMESPACE)).items
    volumes = (await api.list(PERSISTENT_VOLUMES)).items
    return {
        "claims": {one["metadata"]["name"]: (one["spec"]["volumeName"], one["status"]["phase"]) for one in claims},
        "volumes": {
            one["metadata"]["name"]: (
                one["spec"]["claimRef"]["name"],
                one["spec"]["persistentVolumeReclaimPolicy"],
                one["metadata"]["annotations"],
            )
            for one in volumes
        },
        "pods": (await api.list(PODS, namespace=NAMESPACE)).items,
        "seats": (record["masterEpoch"], record["syncStateSet"], record["nextBrokerId"], record.get("masterBrokerId")),
        "pods of the record": [one["reservedFor"] for one in record["replicas"]],
        "stores": [inspect(Place(folder / f"pv-{number}")) for number in range(2)],
    }


def expected(folder: Path) -> dict[str, Any]:
    stores = [inspect(Place(folder / f"pv-{number}")) for number in range(2)]
    assert [one.identity for one in stores] == [
        Identity(cluster_name=CLUSTER, broker_name=NAME, broker_id=number) for number in (1, 2)
    ]
    assert [one.epochs for one in stores] == [((1, 0),)] * 2
    return {
        "claims": {"orders-1": ("pv-0", "Bound"), "orders-2": ("pv-1", "Bound")},
        "volumes": {
            f"pv-{number}": (f"orders-{number + 1}", "Delete", {"brokergroup.dev/taken-from": f"{NAMESPACE}/{claim}"})
            for number, claim in enumerate(OLD)
        },
        "pods": [],
        "seats": (1, [1], 3, None),
        "pods of the record": ["orders-1", "orders-2"],
        "stores": stores,
    }


async def test_a_plan_changes_nothing(node: FakeNode) -> None:
    adoption = await take(node.api, yes=False)
    assert not adoption.blocked
    assert node.ran == [("check", OLD[0]), ("check", OLD[1])]
    claims = await node.items(PERSISTENT_VOLUME_CLAIMS)
    assert {one["metadata"]["name"] for one in claims} == set(OLD)
    assert await node.items(PODS) == []
    assert all(one["metadata"].get("annotations") is None for one in (await node.api.list(PERSISTENT_VOLUMES)).items)
    with pytest.raises(NotFoundError):
        await node.get(BROKER_GROUP_STATES, GROUP)


@pytest.mark.sampled
async def test_wherever_it_is_killed_the_next_run_comes_to_the_same_end(tmp_path: Path) -> None:
    """A kill before each write in turn."""
    async with a_cluster(tmp_path / "whole") as node:
        kills = await kills_of(take, node.api.server, at_least=20)
        assert await state_of(node.api, tmp_path / "whole") == expected(tmp_path / "whole")
    for writes in kills:
        folder = tmp_path / str(writes)
        async with a_cluster(folder) as node:
            killed = await is_killed(take, node.api.server, writes=writes)
            assert killed == (writes < kills[-1])
            if killed:
                await take(MemoryApi(node.api.server))
            assert await state_of(node.api, folder) == expected(folder), f"killed before write {writes + 1}"


async def test_until_the_record_is_there_no_broker_may_start_on_the_claims(node: FakeNode) -> None:
    """A GitOps tool may create the BrokerGroup too early: without the record, any disk could be elected first."""

    async def marks() -> list[str]:
        claims = await node.items(PERSISTENT_VOLUME_CLAIMS)
        annotated = (one["metadata"] for one in claims if one["metadata"]["name"].startswith(GROUP))
        return [str((one.get("annotations") or {}).get(names.ANNOTATION_ADOPT_UNFINISHED)) for one in annotated]

    class KilledBeforeRecord(MemoryApi):
        async def _request(self, method: str, path: str, **more: Any) -> dict[str, Any]:
            if method == "POST" and path.endswith("/brokergroupstates"):
                raise ApiUnavailableError("killed")
            return await super()._request(method, path, **more)

    with pytest.raises((ApiUnavailableError, RecordUnavailableError)):
        await take(KilledBeforeRecord(node.api.server))
    assert await marks() == ["true", "true"]
    await take(node.api)
    assert await marks() == ["None", "None"]


async def test_the_plan_is_shown_before_a_store_is_changed(node: FakeNode, monkeypatch: pytest.MonkeyPatch) -> None:

    @asynccontextmanager
    async def the_api(_: object) -> AsyncIterator[MemoryApi]:
        yield node.api

    def show(adoption: Adoption) -> None:
        shown.append((adoption.blocked, [verb for verb, _ in node.ran]))

    shown: list[tuple[bool, list[str]]] = []
    monkeypatch.setattr(run, "kubernetes_api", the_api)
    spec = await run.take_claims(WISH, kubeconfig=None, report=lambda *_, **__: None, yes=True, show=show)
    assert shown == [(False, ["check", "check"])]
    assert f"brokerName: {NAME}" in spec


async def test_done_again_it_changes_nothing(node: FakeNode, tmp_path: Path) -> None:
    await take(node.api)
    before = await state_of(node.api, tmp_path)
    await take(node.api)
    assert await state_of(node.api, tmp_path) == before


async def test_a_volume_between_two_claims_is_told_and_needs_yes(node: FakeNode) -> None:
    await take(node.api)
    await node.delete(PERSISTENT_VOLUME_CLAIMS, "orders-2")
    with pytest.raises(ClaimsError, match="pv-1 is taken from claim store-broker-1, and not bound yet: say --yes"):
        await take(node.api, yes=False)


async def test_a_blocked_plan_is_not_carried_out(node: FakeNode, tmp_path: Path) -> None:
    (tmp_path / "pv-1" / "store" / "dledger-n0").mkdir()
    adoption = await take(node.api)
    assert adoption.blocked
    assert "DLedger" in adoption.doubts[0].what
    assert {verb for verb, _ in node.ran} == {"check"}


async def pod_of_old_broker(node: FakeNode) -> None:
    labels = {"app": "broker"}
    containers = [{"name": "broker", "image": "apache/rocketmq:5.5.0"}]
    template = {"metadata": {"labels": labels}, "spec": {"containers": containers}}
    spec = {"serviceName": "broker", "selector": {"matchLabels": labels}, "template": template}
    uid = (await node.make(STATEFUL_SETS, "broker", spec))["metadata"]["uid"]
    owner = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "broker", "uid": uid, "controller": True}
    await node.make_pod("broker-0", OLD[0], ownerReferences=[owner])


async def group_of_that_name(node: FakeNode) -> None:
    await node.make(BROKER_GROUPS, GROUP, {"implementation": "Python"})


async def claim_of_that_name(node: FakeNode) -> None:
    await node.make_volume("pv-other", "orders-1")


async def no_such_claim(node: FakeNode) -> None:
    await node.delete(PERSISTENT_VOLUME_CLAIMS, OLD[1])


@pytest.mark.parametrize(
    ("before", "fault"),
    [
        (pod_of_old_broker, "pod broker-0 of StatefulSet broker uses claim store-broker-0: stop the old brokers first"),
        (group_of_that_name, "BrokerGroup orders exists"),
        (claim_of_that_name, "claim orders-1 exists and has another volume"),
        (no_such_claim, "there is no claim store-broker-1 in namespace shop"),
    ],
)
async def test_what_is_in_the_way_is_named_and_nothing_is_done(node: FakeNode, before: Any, fault: str) -> None:
    await before(node)
    with pytest.raises(ClaimsError, match=fault):
        await take(node.api)
    assert node.ran == []


async def test_a_volume_that_a_group_cannot_have_is_left_with_its_claim(node: FakeNode, tmp_path: Path) -> None:
    write_store(tmp_path / "pv-shared" / "store")
    await node.make_volume("pv-shared", "shared", modes=("ReadWriteMany",))
    wish = Wish(
        namespace=NAMESPACE, group=GROUP, cluster_name=CLUSTER, broker_name=NAME, image="i:1",
        sources=(SourceClaim(name="shared", folder="store"),),
    )  # fmt: skip
    with pytest.raises(ClaimsError, match="volume pv-shared does not allow ReadWriteOnce"):
        await take(node.api, wish)
    assert await node.get(PERSISTENT_VOLUME_CLAIMS, "shared")
