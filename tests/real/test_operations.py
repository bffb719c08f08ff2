"""BrokerGroupOperations at the real kube-apiserver: the operations pass with the chart's rights and no others, the plugin, and
two people of whom one may only switch a master over."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from typing import TYPE_CHECKING, Any

import pytest

from brokergroup_operator.kube.client import KubernetesApi
from brokergroup_operator.kube.errors import ApiError, InvalidError
from brokergroup_operator.records.store import GroupKey
from tests.operations.world import World
from tests.real.clusters import install_kinds_and_rights
from tests.support.kube_apiserver import OPERATOR

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.support.kube_apiserver import KubeApiserver

pytestmark = [pytest.mark.real("kube-apiserver", "helm")]


@pytest.fixture(scope="session")
def with_rights(with_kinds: KubeApiserver) -> KubeApiserver:
    install_kinds_and_rights(with_kinds.client)
    return with_kinds


@pytest.fixture
async def world(with_rights: KubeApiserver, namespace: str) -> AsyncIterator[World]:
    """Hands are the administrator's; the pass has the operator's."""
    async with (
        KubernetesApi.from_kubeconfig(with_rights.kubeconfig) as hands,
        KubernetesApi.from_kubeconfig(with_rights.kubeconfig_of(OPERATOR)) as operator,
    ):
        made = World(hands, operator, GroupKey(namespace, "orders"))
        await made.create_group()
        yield made
        await made.runner.stop()


def phase(item: dict[str, Any]) -> str:
    return str(item["status"]["phase"])


async def test_a_switchover_with_the_charts_rights(world: World, with_rights: KubeApiserver) -> None:
    await world.ask("one", "Switchover", {"toBrokerId": 3}, ttlSecondsAfterFinished=86_400)
    one = (await world.until_over("one"))["one"]
    assert (phase(one), one["status"]["result"]["toBrokerId"]) == ("Succeeded", 3)
    wait = ("wait", "--for=condition=Complete", "bgop/one", "-n", world.key.namespace, "--timeout=5s")
    assert "condition met" in with_rights.must(*wait)
    shown = with_rights.must("get", "bgop", "-n", world.key.namespace)
    assert "Succeeded" in shown


async def test_one_after_the_other_and_old_ones_go(world: World) -> None:
    await world.ask("a", "Switchover", {"toBrokerId": 2})
    await world.ask("b", "Drill", {"kind": "Switchover"})
    await world.ask("c", "Switchover", {"toBrokerId": 9}, ttlSecondsAfterFinished=0)
    await world.until_over("a", "b")
    assert world.view.asked == [(1, 2), (2, None), (1, 2)]

    async def c_is_gone() -> bool:
        await world.run_pass()
        return "c" not in await world.names()

    await world.until(c_is_gone)


async def test_a_killed_master_with_the_charts_rights(world: World) -> None:
    await world.ask("drill", "Drill", {"kind": "KillMaster"})
    drill = (await world.until_over("drill", hands=world.master_comes_back))["drill"]
    assert phase(drill) == "Succeeded", drill["status"]


@pytest.mark.parametrize(
    ("kind", "sections", "why"),
    [
        ("Switchover", {"drill": {"kind": "Switchover"}}, "drill is for type Drill"),
        ("Restart", {}, "restart is for type Restart"),
        ("Elect", {"elect": {"toBrokerId": 2, "acknowledgeDataLoss": "other"}}, "must be the name of the group"),
        ("Rebuild", {"rebuild": {"brokerId": 0}}, "brokerId"),
        ("Destroy", {"restart": {}}, "Unsupported value"),
    ],
)
async def test_what_cannot_be_meant_is_refused_by_the_api_server(
    world: World, kind: str, sections: dict[str, Any], why: str
) -> None:
    with pytest.raises(InvalidError, match=why):
        await world.ask_raw("bad", {"brokerGroupRef": {"name": "orders"}, "type": kind, **sections})


async def test_the_plugin_at_the_real_api_server(world: World, with_rights: KubeApiserver) -> None:
    def plugin(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "brokergroup_operator.kubectl.main", *arguments, "-n", world.key.namespace],
            env={**os.environ, "KUBECONFIG": str(with_rights.kubeconfig)},
            capture_output=True, text=True, check=False, timeout=60, stdin=subprocess.DEVNULL,
        )  # fmt: skip

    shown = plugin("status", "orders")
    assert shown.returncode == 0, shown.stderr
    assert "FailoverSafe" in shown.stdout
    created = plugin("switchover", "orders", "--to", "2", "-o", "json")
    assert created.returncode == 0, created.stderr
    name = json.loads(created.stdout)["metadata"]["name"]
    assert phase((await world.until_over(name))[name]) == "Succeeded"
    assert plugin("pause", "orders").returncode == 0
    assert plugin("status", "nobody").returncode == 3
    refused = plugin("restart", "orders", *map(str, range(1, 80)))
    assert (refused.returncode, "brokerIds" in refused.stderr) == (6, True)


async def test_who_may_ask_for_operations_may_not_edit_groups(world: World, with_rights: KubeApiserver) -> None:
    """The point of the object: rights of its own."""
    user, namespace = f"dba-{uuid.uuid4().hex[:6]}", world.key.namespace
    rules = ["--verb=create,get,list", "--resource=brokergroupoperations.brokergroup.dev"]
    with_rights.must("create", "role", "switcher", "-n", namespace, *rules)
    with_rights.must("create", "rolebinding", "switcher", "-n", namespace, "--role=switcher", f"--user={user}")

    def can(*words: str) -> str:
        return with_rights.kubectl("auth", "can-i", *words, "-n", namespace, f"--as={user}").stdout.strip()

    assert can("create", "brokergroupoperations.brokergroup.dev") == "yes"
    assert can("patch", "brokergroups.brokergroup.dev") == "no"
    assert can("patch", "brokergroupoperations.brokergroup.dev", "--subresource=status") == "no"


async def test_the_operator_may_not_ask_for_operations_itself(with_rights: KubeApiserver, namespace: str) -> None:
    async with KubernetesApi.from_kubeconfig(with_rights.kubeconfig_of(OPERATOR)) as operator:
        world = World(operator, operator, GroupKey(namespace, "orders"))
        with pytest.raises(ApiError, match="forbidden"):
            await world.ask("own", "Restart", {})
