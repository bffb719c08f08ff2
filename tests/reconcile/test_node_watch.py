"""A node is watched for what passes read of it; the rest, and its heartbeats, are no news."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from brokergroup_operator.kube.client import PatchType
from brokergroup_operator.kube.resources import NODES
from brokergroup_operator.reconcile.access import ClusterAccess
from brokergroup_operator.reconcile.run.watch import Listener, Watcher, node_facts
from brokergroup_operator.reconcile.see.observed import is_draining
from brokergroup_operator.records.group_cache import GroupCache

if TYPE_CHECKING:
    from brokergroup_operator.kube.client import KubernetesApi
    from kube_sandbox.api_server.server import SandboxApiServer


async def test_only_a_change_of_what_matters_is_news(api: KubernetesApi, sandbox: SandboxApiServer) -> None:
    """Also where one namespace is served."""
    await api.create(NODES, {"metadata": {"name": "node-1"}})
    cache, news = GroupCache(), asyncio.Queue[Any]()

    def on_node(name: str, node: dict[str, Any] | None) -> None:
        if cache.hold_node(name, node):
            news.put_nowait(node)

    watching = Watcher(
        ClusterAccess(url=sandbox.url),
        namespace="default",
        listener=Listener(on_object=lambda *_: None, on_listed=lambda: None, on_node=on_node),
        identity="operator-0",
    )
    watching.start()
    async with asyncio.timeout(120):
        assert not is_draining(await news.get())
        for label, cordoned in (("b", True), ("c", None)):
            await api.patch(NODES, "node-1", {"metadata": {"labels": {"a": label}}}, content_type=PatchType.MERGE)
            await api.patch(NODES, "node-1", {"spec": {"unschedulable": cordoned}}, content_type=PatchType.MERGE)
            assert is_draining(await news.get()) is bool(cordoned)
        await api.delete(NODES, "node-1")
        assert await news.get() is None
    assert news.empty()
    await watching.stop()


def test_a_heartbeat_changes_no_fact() -> None:
    def node(heartbeat: str) -> dict[str, Any]:
        ready = {"type": "Ready", "status": "True", "lastHeartbeatTime": heartbeat, "lastTransitionTime": "t"}
        return {
            "metadata": {"name": "n", "resourceVersion": heartbeat},
            "status": {"conditions": [ready], "images": [1]},
        }

    assert node_facts(node("1")) == node_facts(node("2"))
    assert node_facts(node("1"))["status"]["conditions"] == [
        {"type": "Ready", "status": "True", "lastTransitionTime": "t"}
    ]
