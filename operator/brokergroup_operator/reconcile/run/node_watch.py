"""Watches nodes for one thing: whether they are about to be emptied. Where the operator may not read nodes it watches nothing.

kubectl drain cordons first and then asks for evictions every few seconds; a master's pod may be evicted once it is a slave. So a
drain waits as long as the cordon goes unnoticed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from brokergroup_operator.kube.errors import ApiError
from brokergroup_operator.kube.reflector import Reflector
from brokergroup_operator.kube.resources import NODES
from brokergroup_operator.reconcile.see.observed import is_draining

if TYPE_CHECKING:
    from collections.abc import Callable

    from brokergroup_operator.kube.client import KubernetesApi, WatchEvent

log = structlog.get_logger(__name__)
FORBIDDEN = 403


class NodeWatch:
    """`run` it as a task; `on_change` is called when a node begins or ceases to be drained, and must return at once."""

    def __init__(self, api: KubernetesApi, *, on_change: Callable[[], None], timeout_seconds: float) -> None:
        self._api = api
        self._on_change = on_change
        self._timeout_seconds = timeout_seconds
        self._draining: set[str] = set()

    async def run(self) -> None:
        """Until it is cancelled, or at once to its end without the right to read nodes."""
        try:
            await self._api.list(NODES, timeout_seconds=self._timeout_seconds)
        except ApiError as error:
            if error.status == FORBIDDEN:
                log.info("nodes may not be read: a master leaves a drained node only by its own preStop")
                return
            log.warning("nodes could not be read", error=str(error))
        await Reflector(self._api, NODES, on_change=self._heard).run()

    def _heard(self, event: WatchEvent) -> None:
        name = str(event.object["metadata"]["name"])
        draining = event.type != "DELETED" and is_draining(event.object)
        if draining == (name in self._draining):
            return
        (self._draining.add if draining else self._draining.discard)(name)
        log.info("node.drained" if draining else "node.in_use_again", node=name)
        self._on_change()
