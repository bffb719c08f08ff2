"""Brings up the NameServer pod that Java brokers and clients need, and tells its address."""

import asyncio
from pathlib import Path
from typing import Any

import yaml

from brokergroup_operator.demo.processes import DemoProcessError, DemoProcesses
from brokergroup_operator.kube import JsonObject, KubernetesApi
from brokergroup_operator.kube.resources import PODS
from rocketmq_remoting.address import join_address

_PORT = 9876
_READY_SECONDS = 60.0
_POLL_SECONDS = 0.1


async def start_name_server(api: KubernetesApi, manifest: Path, processes: DemoProcesses) -> str:
    """Apply the pod of the manifest and wait until it is ready; returns `podIP:9876`."""
    [pod] = [
        document
        for document in yaml.safe_load_all(await asyncio.to_thread(manifest.read_text))
        if document["kind"] == "Pod"
    ]
    pod["metadata"]["namespace"] = "default"
    await api.create(PODS, pod)
    name = pod["metadata"]["name"]
    seen: JsonObject = {}
    try:
        async with asyncio.timeout(_READY_SECONDS):
            while not _is_ready(seen):
                processes.check()
                await asyncio.sleep(_POLL_SECONDS)
                seen = await api.get(PODS, name, namespace="default")
    except TimeoutError:
        raise DemoProcessError(
            f"pod {name} was not ready within {_READY_SECONDS:.0f} s: {seen.get('status')}"
        ) from None
    return join_address(str(seen["status"]["podIP"]), _PORT)


def _is_ready(pod: dict[str, Any]) -> bool:
    conditions = pod.get("status", {}).get("conditions", [])
    return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)
