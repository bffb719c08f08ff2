"""The sandbox's own start on a machine that is busy with something else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from brokergroup_operator.kube.client import KubernetesApi
from brokergroup_operator.kube.resources import CUSTOM_RESOURCE_DEFINITIONS
from kube_sandbox.client import ApiUnavailableError, KubeClient
from kube_sandbox.kubelet import ImageCatalogue
from kube_sandbox.sandbox import sandbox
from tests.sandbox.things import THING_DEFINITION

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


async def test_a_late_answer_to_a_definition_does_not_end_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    apply = KubeClient.apply
    failed: list[tuple[Any, ...]] = []

    async def late_once(self: KubeClient, *arguments: Any, **keywords: Any) -> Any:
        applied = await apply(self, *arguments, **keywords)
        if not failed:
            failed.append(arguments)
            raise ApiUnavailableError("PATCH: TimeoutError")
        return applied

    monkeypatch.setattr(KubeClient, "apply", late_once)
    async with (
        sandbox(data_dir=tmp_path, images=ImageCatalogue({}), definitions=[THING_DEFINITION]) as running,
        KubernetesApi.from_kubeconfig(running.kubeconfig) as api,
    ):
        served = await api.list(CUSTOM_RESOURCE_DEFINITIONS)
    assert failed
    assert [item["metadata"]["name"] for item in served.items] == [THING_DEFINITION["metadata"]["name"]]
