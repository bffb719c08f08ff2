"""Events about pods, for ``kubectl describe``: told when there is time, dropped when there is not, never waited for."""

from __future__ import annotations

import asyncio
import itertools
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import structlog

from brokergroup_operator.kube.errors import ApiError
from brokergroup_operator.kube.resources import EVENTS

from .status import timestamp

if TYPE_CHECKING:
    from brokergroup_operator.kube.client import JsonObject, KubernetesApi

log = structlog.get_logger(__name__)

WAITING_AT_MOST = 256


class EventRecorder:
    """Run ``run()`` as a task."""

    def __init__(self, api: KubernetesApi, node_name: str) -> None:
        self._api = api
        self._node_name = node_name
        self._queue: asyncio.Queue[JsonObject] = asyncio.Queue(WAITING_AT_MOST)
        self._numbers = itertools.count(int(datetime.now(UTC).timestamp() * 1_000_000))

    def tell(self, pod: JsonObject, kind: str, reason: str, message: str) -> None:
        """Queue one event about a pod; if the API is away for long, the newest are dropped."""
        metadata, now = pod["metadata"], timestamp(datetime.now(UTC))
        event = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {
                "name": f"{metadata['name']}.{next(self._numbers):x}",
                "namespace": metadata["namespace"],
            },
            "involvedObject": {
                "apiVersion": "v1",
                "kind": "Pod",
                "name": metadata["name"],
                "namespace": metadata["namespace"],
                "uid": metadata["uid"],
            },
            "type": kind,
            "reason": reason,
            "message": message[:1024],
            "source": {"component": "process-kubelet", "host": self._node_name},
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }
        if not self._queue.full():
            self._queue.put_nowait(event)

    async def run(self) -> None:
        """Send them, one after the other."""
        while True:
            event = await self._queue.get()
            try:
                await self._api.create(EVENTS, event)
            except ApiError as error:
                log.debug("event not recorded", reason=event["reason"], error=str(error))
