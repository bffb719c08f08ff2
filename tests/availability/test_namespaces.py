"""One operator and many namespaces: fifty groups under one release, five names in ten namespaces, strictly separate.

Earlier operators mixed them up: with a NameServer address in a global variable, the last reconciled one applied to all
(apache/rocketmq-operator #54, #68, #70, #158, #176, #240). So every name occurs ten times, also as brokerName, and each group
has its own NameServers. The request log shows that a release for one namespace sends no request outside it.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio

from brokergroup_operator.api import names
from brokergroup_operator.demo.processes import DemoProcesses
from brokergroup_operator.kube import KubernetesApi
from brokergroup_operator.kube.reflector import Reflector
from brokergroup_operator.kube.resources import (
    BROKER_GROUP_STATES,
    BROKER_GROUPS,
    CONFIG_MAPS,
    NAMESPACES,
    PERSISTENT_VOLUME_CLAIMS,
    PODS,
    SERVICES,
)
from tests.availability.requests_seen import is_outside
from tests.availability.stand_in_node import StandInNode
from tests.e2e.api_proxy import ApiProxy
from tests.e2e.house import eventually, kubeconfig_for
from tests.our_kinds import server_with_our_kinds
from tests.support.places import free_port

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from brokergroup_operator.demo.processes import ChildProcess
    from brokergroup_operator.kube.resources import Resource

pytestmark = [pytest.mark.longer, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]

TEAMS = tuple(f"team-{number}" for number in range(10))
GROUPS = ("orders", "payments", "stock", "mail", "audit")
PLACES = tuple((team, group) for team in TEAMS for group in GROUPS)
DEADLINE_SECONDS = 180.0


def name_servers(team: str, group: str) -> list[str]:
    """Return two NameServers that no other group has."""
    number = PLACES.index((team, group))
    return [f"10.9.{number}.1:9876", f"10.9.{number}.2:9876"]


@dataclass
class Cluster:
    """The embedded API with one node for all groups, and a method to start operators."""

    api: KubernetesApi
    node: StandInNode
    proxy: ApiProxy
    processes: DemoProcesses
    kubeconfig: Path
    groups: Reflector

    async def start_operator(self, name: str, *arguments: str) -> ChildProcess:
        own = f"127.0.0.1:{free_port()}"
        return await self.processes.start(
            name, "operator", "--kubeconfig", str(self.kubeconfig), "--listen", own, "--controller-address", own,
            *arguments,
        )  # fmt: skip

    async def create_group(self, team: str, group: str) -> None:
        spec = {"implementation": "Python", "replicas": 1, "nameServers": name_servers(team, group)}
        await self.api.create(BROKER_GROUPS, {"metadata": {"name": group, "namespace": team}, "spec": spec})

    def ready(self) -> set[tuple[str, str]]:
        return {
            place
            for place, group in self.groups.objects.items()
            if any(
                item["type"] == "Ready" and item["status"] == "True"
                for item in group.get("status", {}).get("conditions", [])
            )
        }

    async def all_of(self, resource: Resource) -> dict[tuple[str, str], dict[str, Any]]:
        return {
            (item["metadata"]["namespace"], item["metadata"]["name"]): item
            for item in (await self.api.list(resource)).items
        }


@pytest_asyncio.fixture(loop_scope="module")
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with (
        server_with_our_kinds() as server,
        KubernetesApi.from_url(server.url) as api,
        ApiProxy(server.url).running() as proxy,
        StandInNode(api).running() as node,
    ):
        for team in TEAMS:
            await api.create(NAMESPACES, {"metadata": {"name": team}})
        groups = Reflector(api, BROKER_GROUPS, on_change=lambda _: None)
        processes = DemoProcesses(tmp_path / "logs")
        kubeconfig = kubeconfig_for(proxy.url, tmp_path / "kubeconfig")

        watch = asyncio.create_task(groups.run())
        try:
            yield Cluster(api, node, proxy, processes, kubeconfig, groups)
        finally:
            await processes.stop()
            watch.cancel()
            await asyncio.gather(watch, return_exceptions=True)


async def test_fifty_groups_in_ten_namespaces_under_one_operator(cluster: Cluster) -> None:
    """apache/rocketmq-operator #54, #55, #56, #68, #70, #158, #176, #183, #240: one cluster for each operator,
    and another namespace's NameServer.
    """
    for team, group in PLACES:
        await cluster.create_group(team, group)
    operator = await cluster.start_operator("operator")

    def all_ready() -> bool:
        operator.check()
        return cluster.ready() == set(PLACES)

    await eventually(
        all_ready,
        lambda: f"not Ready: {sorted(set(PLACES) - cluster.ready())}\n{operator.log_path.read_text()[-3000:]}",
        within_seconds=DEADLINE_SECONDS,
    )
    await nothing_is_mixed(cluster)

    # One of ten groups of a name is deleted; the nine others stay unchanged.
    before = await cluster.all_of(PODS)
    await cluster.api.delete(BROKER_GROUPS, "orders", namespace="team-3")
    await eventually(
        lambda: ("team-3", "orders") not in cluster.groups.objects,
        lambda: f"team-3/orders is still there: {cluster.groups.objects[('team-3', 'orders')]}",
    )
    after = await cluster.all_of(PODS)
    assert {place: pod["metadata"]["uid"] for place, pod in after.items()} == {
        place: pod["metadata"]["uid"] for place, pod in before.items() if place != ("team-3", "orders-1")
    }


async def nothing_is_mixed(cluster: Cluster) -> None:
    """Check that every object, address and name belongs to one group."""
    pods, states = await cluster.all_of(PODS), await cluster.all_of(BROKER_GROUP_STATES)
    services, config_maps = await cluster.all_of(SERVICES), await cluster.all_of(CONFIG_MAPS)
    assert pods.keys() == {(team, f"{group}-1") for team, group in PLACES}
    assert (await cluster.all_of(PERSISTENT_VOLUME_CLAIMS)).keys() == pods.keys()
    ends = ("master", "members", "slaves")
    assert services.keys() == {(team, f"{group}-{end}") for team, group in PLACES for end in ends}
    assert config_maps.keys() == {(team, f"{group}-broker") for team, group in PLACES}
    assert states.keys() == set(PLACES)
    assert len({pod["status"]["podIP"] for pod in pods.values()}) == len(PLACES)
    for team, group in PLACES:
        life = cluster.node.lives[(team, f"{group}-1")]
        pod, record = pods[(team, f"{group}-1")], states[(team, group)]["record"]
        status = cluster.groups.objects[(team, group)]["status"]
        owner = cluster.groups.objects[(team, group)]["metadata"]["uid"]
        # The broker's configuration and identity, and its entries in the record and the status.
        assert life.properties["brokerName"] == group
        assert life.properties["namesrvAddr"].split(";") == name_servers(team, group)
        assert (life.broker.broker_id, life.broker.is_master, life.broker.epoch) == (1, True, record["masterEpoch"])
        assert [(one["brokerId"], one["reservedFor"], one["address"]) for one in record["replicas"]] == [
            (1, f"{group}-1", life.broker.address)
        ]
        assert status["master"]["address"] == life.broker.address
        assert [member["pod"] for member in status["members"]] == [f"{group}-1"]
        assert status["endpoints"]["master"].startswith(f"{group}-master.{team}:")
        # The owner of every object.
        assert [one["uid"] for one in pod["metadata"]["ownerReferences"]] == [owner]
        assert services[(team, f"{group}-master")]["metadata"]["ownerReferences"][0]["uid"] == owner
        assert services[(team, f"{group}-master")]["spec"]["selector"][names.LABEL_BROKER_GROUP] == group


async def test_a_release_for_one_namespace_asks_for_nothing_outside(cluster: Cluster) -> None:
    await cluster.create_group("team-0", "orders")
    await cluster.create_group("team-1", "orders")
    operator = await cluster.start_operator(
        "operator", "--namespace", "team-0", "--leader-election-namespace", "operators", "--identity", "operator-0"
    )
    await cluster.api.create(NAMESPACES, {"metadata": {"name": "operators"}})

    def ready() -> bool:
        operator.check()
        return cluster.ready() == {("team-0", "orders")}

    await eventually(ready, lambda: operator.log_path.read_text()[-3000:])
    asked = set(cluster.proxy.reads) | {write.path for write in cluster.proxy.writes}
    leases = "/apis/coordination.k8s.io/v1/namespaces/operators/leases"
    assert {path for path in asked if is_outside(path, "team-0")} <= {leases, f"{leases}/brokergroup-operator"}
    foreign = await cluster.api.get(BROKER_GROUPS, "orders", namespace="team-1")
    assert "status" not in foreign
    assert "finalizers" not in foreign["metadata"]
    assert [pod for pod in (await cluster.all_of(PODS)) if pod[0] != "team-0"] == []
