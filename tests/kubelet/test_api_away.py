"""The API may be away at any moment: pods run on, and what happened meanwhile is told afterwards."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest

from brokergroup_operator.kube import ApiError, KubernetesApi
from brokergroup_operator.kube.resources import PODS
from kube_sandbox.api_server.server import SandboxApiServer
from kube_sandbox.client import KubeClient
from tests.kubelet.node_under_test import (
    NAMESPACE,
    Node,
    eventually,
    is_dead,
    is_ready,
    is_running,
    pod_object,
    state_of,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from aiohttp.web import BaseRequest


class ApiThatGoesAway:
    """An embedded API that stops and comes back at the same address with the same objects."""

    def __init__(self) -> None:
        self.server = SandboxApiServer()

    async def leave(self) -> None:
        await self.server.stop()

    async def come_back(self) -> None:
        self.server = SandboxApiServer(port=self.server.port, store=self.server.store)
        await self.server.start()


@pytest.fixture
async def away() -> AsyncIterator[ApiThatGoesAway]:
    away = ApiThatGoesAway()
    await away.server.start()
    yield away
    await away.server.stop()


@pytest.fixture
async def node(away: ApiThatGoesAway, tmp_path: Path) -> AsyncIterator[Node]:
    away.server.write_kubeconfig(tmp_path / "kubeconfig")
    kubeconfig = tmp_path / "kubeconfig"
    async with KubernetesApi.from_kubeconfig(kubeconfig) as api, KubeClient.from_kubeconfig(kubeconfig) as client:
        node = Node(api, client, tmp_path / "kubeconfig", tmp_path / "node")
        await node.kubelet.start()
        yield node
        await node.kubelet.stop()


async def test_a_container_that_dies_meanwhile_is_started_again_and_told_later(
    node: Node, away: ApiThatGoesAway
) -> None:
    _, pid = await node.started("a")
    await away.leave()
    with pytest.raises(ApiError):
        await node.api.get(PODS, "a", namespace=NAMESPACE)
    os.kill(pid, signal.SIGKILL)

    async def started_again() -> bool:
        return node.pid("a") not in (None, pid)

    await eventually(started_again)
    await away.come_back()
    pod = await node.until("a", lambda pod: state_of(pod)["restartCount"] == 1 and is_running(pod))
    assert state_of(pod)["lastState"]["terminated"]["exitCode"] == 137


async def test_no_container_starts_before_its_address_is_in_the_api(node: Node, away: ApiThatGoesAway) -> None:
    """Bound by hand while the kubelet's status posts are refused: it waits."""

    def refuse(request: BaseRequest) -> None:
        if "/pods/" in request.path and request.path.endswith("/status"):
            raise ConnectionResetError("cut by the test")

    away.server.before_request = refuse
    await node.create(pod_object("a"))

    await node.until("a", lambda pod: pod["spec"].get("nodeName"))

    async def has_an_address() -> bool:
        workers = list(node.kubelet._workers.values())
        return bool(workers) and workers[0].address is not None

    await eventually(has_an_address)
    assert node.pid("a") is None
    away.server.before_request = None
    pod = await node.until("a", is_ready)
    assert pod["status"]["podIP"]


async def test_a_deletion_meanwhile_is_carried_out_when_the_api_is_back(node: Node, away: ApiThatGoesAway) -> None:
    uid, pid = await node.started("a")
    await away.leave()
    away.server = SandboxApiServer(store=away.server.store)  # elsewhere: the kubelet does not see this one
    await away.server.start()
    async with KubernetesApi.from_url(away.server.url) as elsewhere:
        await elsewhere.delete(PODS, "a", namespace=NAMESPACE)
    port = int(node.api.url.rpartition(":")[2])
    await away.server.stop()
    away.server = SandboxApiServer(port=port, store=away.server.store)
    await away.server.start()
    await node.until_gone("a", uid)
    assert is_dead(pid)
