"""Keeps one pod's status in the API equal to what the kubelet knows, whatever the API does meanwhile.

A status is built afresh for every post and posted whole, so a lost answer or a repeated post does no harm, and several
changes at once become one post. The patch carries the pod's uid: the status of an earlier pod never lands on its successor.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog

from brokergroup_operator.kube.errors import ApiError, ConflictError, NotFoundError
from brokergroup_operator.kube.resources import PODS

if TYPE_CHECKING:
    from collections.abc import Callable

    from brokergroup_operator.kube.client import JsonObject, KubernetesApi

log = structlog.get_logger(__name__)

FIRST_BACKOFF_SECONDS = 0.05
LAST_BACKOFF_SECONDS = 2.0


class StatusPoster:
    """Run ``run()`` as a task; call ``changed()``; ``flush()`` waits until the API has the present status."""

    def __init__(
        self,
        api: KubernetesApi,
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
