"""The real operator, wired to the API in memory: both planes, their watches, queue and passes.

Two parts are replaced, because they have their own sockets and threads: kopf, whose events a
Reflector delivers here, and the official client under server-side apply (our own client sends the same request).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any
from unittest import mock

from brokergroup_operator.api import names
from brokergroup_operator.controller.change.fencing import KubernetesFencer
from brokergroup_operator.controller.directory.kubernetes_directory import KubernetesDirectory
from brokergroup_operator.controller.plane import ControllerPlane
from brokergroup_operator.controller.settings import PlaneSettings
from brokergroup_operator.kube.reflector import Reflector
from brokergroup_operator.kube.resources import BROKER_GROUPS, ROCKETMQ_CLUSTERS
from brokergroup_operator.reconcile.run import plane as reconcile_plane
from brokergroup_operator.reconcile.settings import ReconcileSettings
from brokergroup_operator.records.group_cache import LABELLED, WATCHED
from brokergroup_operator.records.kubernetes import KubernetesRecordStore
from brokergroup_operator.records.store import GroupKey
from tests.sieve.cluster import CONTROLLER

if TYPE_CHECKING:
    from collections.abc import Callable

    from brokergroup_operator.kube.client import WatchEvent
    from brokergroup_operator.kube.resources import Resource
    from brokergroup_operator.reconcile.run.watch import Listener
    from tests.sieve.perturbed_api import PerturbedApi

HOST, _, PORT = CONTROLLER.rpartition(":")
PLANE_SETTINGS = PlaneSettings(listen_host=HOST, listen_port=int(PORT), tick_seconds=0.1)


class _Access:
    """The API of the replaced parts."""

    def __init__(self, api: PerturbedApi) -> None:
        self.api = api

    def official_client(self) -> PerturbedApi:
        """Return the same client: there is only one API."""
        return self.api


class _Applier:
    """Server-side apply through our own client."""

    def __init__(
        self,
        new_client: Callable[[], PerturbedApi],
        *,
        field_manager: str,
        timeout_seconds: float,
        may_write_seconds: Callable[[], float],
    ) -> None:
        del may_write_seconds  # there is no Lease: the operator always leads
        self._api, self._field_manager, self._timeout_seconds = new_client(), field_manager, timeout_seconds

    async def apply(self, resource: Any, obj: dict[str, Any], *, force: bool = True) -> None:
        await self._api.apply(
            resource, obj, field_manager=self._field_manager, force=force, timeout_seconds=self._timeout_seconds
        )

    async def settle(self) -> None:
        """No-op: no request outlives its caller."""

    async def close(self) -> None:
        pass


class _Watcher:
    """Watches every kind that kopf watches, except nodes: there are none."""

    def __init__(
        self,
        access: _Access,
        *,
        namespace: str | None,
        listener: Listener,
        identity: str,
    ) -> None:
        assert listener.on_cluster is not None, "every kind of ours is defined in the API in memory"
        self._listener, self._on_cluster = listener, listener.on_cluster
        clusters = Reflector(access.api, ROCKETMQ_CLUSTERS, namespace=namespace, on_change=self._cluster)
        self._reflectors = [*(self._reflector(access, kind, namespace) for kind in WATCHED), clusters]
        self._tasks: list[asyncio.Task[None]] = []

    def _reflector(self, access: _Access, kind: Resource, namespace: str | None) -> Reflector:
        def heard(event: WatchEvent) -> None:
            self._listener.on_object(kind, event.object, event.type == "DELETED")
            cluster = (event.object["metadata"].get("labels") or {}).get(names.LABEL_ROCKETMQ_CLUSTER)
            if kind == BROKER_GROUPS and cluster:
                self._on_cluster(GroupKey(event.object["metadata"]["namespace"], cluster))

        selector = names.LABEL_BROKER_GROUP if kind in LABELLED else ""
        return Reflector(access.api, kind, namespace=namespace, label_selector=selector, on_change=heard)

    def _cluster(self, event: WatchEvent) -> None:
        metadata = event.object["metadata"]
        self._on_cluster(GroupKey(metadata["namespace"], metadata["name"]))

    def start(self) -> None:
        self._tasks = [asyncio.create_task(reflector.run()) for reflector in self._reflectors]

    def trouble(self) -> str | None:
        """Return None: a reflector ends only when it is stopped."""
        return None

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def run_operator(api: PerturbedApi, namespace: str) -> None:
    """Run the operator until killed."""
    access: Any = _Access(api)
    controller = ControllerPlane(
        store=KubernetesRecordStore(api, namespace=namespace),
        directory=KubernetesDirectory(api, namespace=namespace),
        settings=PLANE_SETTINGS,
        fencer=KubernetesFencer(api),
    )
    await controller.start()
    # A longer resync interval than the product's, so that runs are short; no group needs it to settle.
    settings = ReconcileSettings(controller_addresses=(CONTROLLER,), namespace=namespace, resync_seconds=20.0)
    with (
        mock.patch.object(reconcile_plane, "Watcher", _Watcher),
        mock.patch.object(reconcile_plane, "ServerSideApplier", _Applier),
    ):
        plane = reconcile_plane.ReconcilePlane(api, access, controller, settings)
        await plane.start()
        # The operator creates the watcher when it leads; that must happen inside the patch.
        await asyncio.sleep(1.0)
    if trouble := plane.trouble():
        raise RuntimeError(trouble)
    await asyncio.Event().wait()
