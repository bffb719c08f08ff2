"""What the kubelet tells the API of its pods: the status, until it is known to be there, and Events, while there is time.

A status is built afresh for every post and posted whole, so a lost answer or a repeated post does no harm, and several
changes at once become one post. The patch carries the pod's uid: the status of an earlier pod never lands on its successor. Events
are dropped when the API is away for long, and never waited for.
"""

from __future__ import annotations

import asyncio
import itertools
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import structlog

from kube_sandbox.client import EVENTS, PODS, ApiError, ConflictError, NotFoundError

from .status import timestamp

if TYPE_CHECKING:
    from collections.abc import Callable

    from kube_sandbox.client import JsonObject, KubeClient

log = structlog.get_logger(__name__)

FIRST_BACKOFF_SECONDS = 0.05
LAST_BACKOFF_SECONDS = 2.0


class StatusPoster:
    """Run ``run()`` as a task; call ``changed()``; ``flush()`` waits until the API has the present status."""

    def __init__(
        self,
        api: KubeClient,
        *,
        namespace: str,
        name: str,
        uid: str,
        build: Callable[[], JsonObject],
        gone: Callable[[], None],
    ) -> None:
        self._api = api
        self._namespace, self._name, self._uid = namespace, name, uid
        self._build = build
        self._gone = gone
        self._dirty = asyncio.Event()
        self._posted: JsonObject | None = None
        self._was_posted = asyncio.Condition()

    def changed(self) -> None:
        """Post again soon."""
        self._dirty.set()

    async def flush(self) -> None:
        """Wait until the API has accepted the status as it is now; there is no deadline, the caller has one."""
        wanted = self._build()
        self._dirty.set()
        async with self._was_posted:
            await self._was_posted.wait_for(lambda: self._posted == wanted or self._posted == self._build())

    async def run(self) -> None:
        """Post every change; an API that is away is tried again for as long as it takes."""
        backoff_seconds = FIRST_BACKOFF_SECONDS
        while True:
            await self._dirty.wait()
            self._dirty.clear()
            try:
                await self._post_if_different()
                backoff_seconds = FIRST_BACKOFF_SECONDS
            except NotFoundError:
                self._gone()
                return
            except ApiError as error:
                if isinstance(error, ConflictError) and await self._replaced():
                    self._gone()
                    return
                log.warning("pod status not posted", pod=self._name, error=str(error))
                self._dirty.set()
                await asyncio.sleep(backoff_seconds)
                backoff_seconds = min(backoff_seconds * 2, LAST_BACKOFF_SECONDS)

    async def _post_if_different(self) -> None:
        status = self._build()
        if status != self._posted:
            patch = {"metadata": {"uid": self._uid}, "status": status}
            await self._api.patch(PODS, self._name, patch, namespace=self._namespace, subresource="status")
        async with self._was_posted:
            self._posted = status
            self._was_posted.notify_all()

    async def _replaced(self) -> bool:
        """A conflict means another uid, or only much traffic on this object: ask."""
        try:
            pod = await self._api.get(PODS, self._name, namespace=self._namespace)
        except NotFoundError:
            return True
        except ApiError:
            return False
        return bool(pod["metadata"]["uid"] != self._uid)


WAITING_AT_MOST = 256


class EventRecorder:
    """Run ``run()`` as a task."""

    def __init__(self, api: KubeClient, node_name: str) -> None:
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
