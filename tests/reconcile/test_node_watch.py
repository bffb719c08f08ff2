"""A node that begins to be drained wakes the plane up, at once and once; without the right to read nodes nothing is asked again."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from brokergroup_operator.kube.client import PatchType
from brokergroup_operator.kube.resources import NODES
from brokergroup_operator.reconcile.run.node_watch import NodeWatch
from kube_sandbox.api_server.errors import StatusError
from tests.reconcile.world import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from brokergroup_operator.kube.client import KubernetesApi
    from kube_sandbox.api_server.server import SandboxApiServer


class Woken:
    """How often the plane was woken."""

    def __init__(self) -> None:
        self.times = 0

    def __call__(self) -> None:
        self.times += 1


@pytest.fixture
async def woken(api: KubernetesApi) -> AsyncIterator[Woken]:
    await api.create(NODES, {"metadata": {"name": "node-1"}})
    counter = Woken()
    task = asyncio.create_task(NodeWatch(api, on_change=counter, timeout_seconds=5).run())
    yield counter
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def patch(api: KubernetesApi, change: dict[str, Any]) -> None:
    await api.patch(NODES, "node-1", change, content_type=PatchType.MERGE)


async def test_only_a_change_of_what_matters_wakes(api: KubernetesApi, woken: Woken) -> None:
    async def is_woken(times: int) -> bool:
        return woken.times == times

    await patch(api, {"metadata": {"labels": {"a": "b"}}})
    await patch(api, {"spec": {"unschedulable": True}})
    await until("woken by the cordon", lambda: is_woken(1))
    await patch(api, {"metadata": {"labels": {"a": "c"}}})
    await patch(api, {"spec": {"unschedulable": None}})
    await until("woken by its end", lambda: is_woken(2))


async def test_without_the_right_to_read_nodes_it_ends(api: KubernetesApi, sandbox: SandboxApiServer) -> None:
    def forbidden(request: Any) -> None:
        raise StatusError(403, "Forbidden", f"no {request.path} for you")

    sandbox.before_request = forbidden
    await asyncio.wait_for(NodeWatch(api, on_change=Woken(), timeout_seconds=5).run(), 10)
