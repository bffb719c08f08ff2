"""Gives pods without a node to this one, as a scheduler would whose cluster has a single node with room for all.

Several process kubelets may share an API: each offers its node, the first binding wins and the others hear 409.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog

from brokergroup_operator.kube.errors import ApiError, ApiUnavailableError, OutcomeUnknownError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from brokergroup_operator.kube.client import JsonObject, KubernetesApi

log = structlog.get_logger(__name__)

RETRY_SECONDS = 0.2


class Scheduler:
    """Call ``consider()`` with every pod; run ``run()`` as a task."""

    def __init__(self, api: KubernetesApi, node_name: str, node_labels: Mapping[str, str]) -> None:
        self._api = api
        self._node_name = node_name
        self._node_labels = node_labels
        self._queue: asyncio.Queue[JsonObject] = asyncio.Queue()

    def consider(self, pod: JsonObject) -> None:
        """Bind this pod if it waits for a node and ours will do."""
        spec = pod["spec"]
        selector = spec.get("nodeSelector") or {}
        if (
            not spec.get("nodeName")
            and "deletionTimestamp" not in pod["metadata"]
            and not spec.get("schedulingGates")
            and all(self._node_labels.get(key) == value for key, value in selector.items())
        ):
            self._queue.put_nowait(pod)

    async def run(self) -> None:
        """Bind one pod after the other."""
        while True:
            metadata = (pod := await self._queue.get())["metadata"]
            try:
                await self._api.bind_pod(
                    metadata["name"], namespace=metadata["namespace"], node_name=self._node_name, uid=metadata["uid"]
                )
            except (ApiUnavailableError, OutcomeUnknownError) as error:
                # Binding twice is harmless: the second one is refused with 409.
                log.warning("pod not bound yet", pod=metadata["name"], error=str(error))
                await asyncio.sleep(RETRY_SECONDS)
                self._queue.put_nowait(pod)
            except ApiError as error:
                log.debug("pod not bound", pod=metadata["name"], error=str(error))  # gone, or another node's
