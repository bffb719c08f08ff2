"""The sandbox as a whole: the file that says it is ready, the kinds it serves, logs, and its orderly end."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest

from brokergroup_operator.kube import KubernetesApi
from brokergroup_operator.kube.resources import CUSTOM_RESOURCE_DEFINITIONS, NODES, PODS
from kube_sandbox.client import ApiUnavailableError, KubeClient
from kube_sandbox.kubelet import Image, ImageCatalogue
from kube_sandbox.kubelet.files import NoSuchLogError
from kube_sandbox.sandbox import read_definitions, run_sandbox, sandbox
from tests.kubelet.node_under_test import NAMESPACE, eventually, is_dead, is_running, pod_object, state_of

if TYPE_CHECKING:
    from tests.kubelet.node_under_test import Node


IMAGE = {"image": "any:1"}
IMAGES = ImageCatalogue({"any:*": Image()})


async def test_whoever_sees_the_kubeconfig_may_begin(tmp_path: Path) -> None:
    stop = asyncio.Event()
    kubeconfig = tmp_path / "elsewhere" / "kubeconfig"
    running = asyncio.create_task(
        run_sandbox(
            data_dir=tmp_path / "data",
            images=IMAGES,
            kubeconfig_path=kubeconfig,
            stop=stop,
        )
    )

    async def ready() -> bool:
        return running.done() or kubeconfig.exists()

    await eventually(ready)
    async with KubernetesApi.from_kubeconfig(kubeconfig) as api:
        (node,) = (await api.list(NODES)).items
        assert node["status"]["conditions"][0]["status"] == "True"
        await api.create(PODS, pod_object("a", container=IMAGE))

        async def started() -> int | None:
            pod = await api.get(PODS, "a", namespace=NAMESPACE)
            return int(state_of(pod)["containerID"].removeprefix("process://")) if is_running(pod) else None

        pid = await eventually(started)
    stop.set()
    await running
    assert is_dead(pid)


async def test_a_late_answer_to_a_definition_does_not_end_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a machine that is busy with something else."""
    apply = KubeClient.apply
    failed: list[tuple[Any, ...]] = []

    async def late_once(self: KubeClient, *arguments: Any, **keywords: Any) -> Any:
        applied = await apply(self, *arguments, **keywords)
        if not failed:
            failed.append(arguments)
            raise ApiUnavailableError("PATCH: TimeoutError")
        return applied

    monkeypatch.setattr(KubeClient, "apply", late_once)
    things = read_definitions(Path(__file__).parents[1] / "sandbox" / "crds")
    async with (
        sandbox(data_dir=tmp_path, images=ImageCatalogue({}), definitions=things) as running,
        KubernetesApi.from_kubeconfig(running.kubeconfig) as api,
    ):
        served = await api.list(CUSTOM_RESOURCE_DEFINITIONS)
    assert failed
    assert [item["metadata"]["name"] for item in served.items] == ["things.example.dev"]


async def test_logs_over_the_api(tmp_path: Path) -> None:
    async with (
        sandbox(data_dir=tmp_path, images=IMAGES) as running,
        KubernetesApi.from_kubeconfig(running.kubeconfig) as api,
        aiohttp.ClientSession() as session,
    ):
        await api.create(PODS, pod_object("a", "echo one; echo two", container=IMAGE, restartPolicy="Never"))

        async def ended() -> bool:
            return bool((await api.get(PODS, "a", namespace=NAMESPACE))["status"]["phase"] == "Succeeded")

        await eventually(ended)
        url = f"{running.server.url}/api/v1/namespaces/{NAMESPACE}/pods/a/log"
        async with session.get(url) as answer:
            assert await answer.text() == "one\ntwo\n"
        async with session.get(url, params={"tailLines": "1"}) as answer:
            assert await answer.text() == "two\n"


async def read(node: Node, tail_lines: int | None = None) -> str:
    chunks = [chunk async for chunk in node.kubelet.log_provider(NAMESPACE, "a", "main", tail_lines, follow=False)]
    return b"".join(chunks).decode()


async def test_whole_and_last_lines(node: Node) -> None:
    await node.create(pod_object("a", "seq 1 30000; exec sleep 1000"))
    await node.until_output("a", "\n30000\n")
    assert await read(node) == "".join(f"{number}\n" for number in range(1, 30001))
    assert await read(node, 2) == "29999\n30000\n"
    assert await read(node, 20000) == "".join(f"{number}\n" for number in range(10001, 30001))
    assert await read(node, 0) == ""
    assert len((await read(node, 10**6)).splitlines()) == 30000


async def test_following_ends_with_the_container_and_has_both_outputs(node: Node) -> None:
    script = "echo first; while [ ! -e /data/go ]; do sleep 0.02; done; echo last >&2"
    volumes = [{"name": "v", "hostPath": {"path": str(node.data_dir)}}]
    mounts = {"volumeMounts": [{"name": "v", "mountPath": "/data"}]}
    await node.create(pod_object("a", script, container=mounts, volumes=volumes, restartPolicy="Never"))
    await node.until("a", is_running)
    await node.until_output("a", "first")
    chunks = []
    async for chunk in node.kubelet.log_provider(NAMESPACE, "a", "main", None, follow=True):
        chunks.append(chunk)
        (node.data_dir / "go").touch()
    assert b"".join(chunks) == b"first\nlast\n"


async def test_a_container_that_never_started_has_no_log(node: Node) -> None:
    with pytest.raises(NoSuchLogError, match="does not run"):
        await read(node)
