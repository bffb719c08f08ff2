"""The sandbox as a whole: the file that says it is ready, the kinds it serves, logs over the API, and its orderly end."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp

from brokergroup_operator.kube import KubernetesApi
from brokergroup_operator.kube.resources import CUSTOM_RESOURCE_DEFINITIONS, NODES, PODS
from kube_sandbox.client import ApiUnavailableError, KubeClient
from kube_sandbox.kubelet import Image, ImageCatalogue
from kube_sandbox.sandbox import read_definitions, run_sandbox, sandbox
from tests.kubelet.node_under_test import NAMESPACE, eventually, is_dead, is_running, pod_object, state_of

if TYPE_CHECKING:
    import pytest

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
