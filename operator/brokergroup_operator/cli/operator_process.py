"""Puts the operator together: one loop, one API client, the controller plane, the reconcile plane, and what they tell.

The controller plane starts first and stops last: brokers are served while kopf comes up, and nothing the reconcile plane does
can delay an answer by more than its own turn of the loop. Kopf takes over the process's signals when it starts, so they are
taken back each time.
"""

import asyncio
import signal
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from brokergroup_operator.api import names
from brokergroup_operator.api.meaning.fence_keys import FenceKeys
from brokergroup_operator.controller.change.fencing import KubernetesFencer
from brokergroup_operator.controller.directory.kubernetes_directory import KubernetesDirectory
from brokergroup_operator.controller.plane import ControllerPlane
from brokergroup_operator.controller.security_settings import SecuritySettings
from brokergroup_operator.controller.settings import PlaneSettings
from brokergroup_operator.kube import KubernetesApi
from brokergroup_operator.kube.kept_secret import kept_secret
from brokergroup_operator.observe.events import EventObserver, KubernetesEventSink
from brokergroup_operator.observe.failover_history import FailoverHistory
from brokergroup_operator.observe.incidents import IncidentLog
from brokergroup_operator.observe.metrics import Metrics
from brokergroup_operator.observe.observer import Observer, ObserverGroup
from brokergroup_operator.page.live_page import LivePage, PageSettings
from brokergroup_operator.reconcile.access import ClusterAccess
from brokergroup_operator.reconcile.run.plane import ReconcilePlane
from brokergroup_operator.reconcile.settings import LeaderElectionSettings, ReconcileSettings
from brokergroup_operator.records.kubernetes import KubernetesRecordStore
from rocketmq_remoting.tls import ClientCertificates

Endpoint = tuple[str, int]
FENCE_KEY_SECONDS: Final = 10.0


@dataclass(frozen=True, kw_only=True)
class OperatorSettings:
    """One value a flag of `brokergroup operator`."""

    kubeconfig: Path | None
    namespace: str | None
    listen: Endpoint
    advertise: str
    controller_addresses: tuple[str, ...]
    metrics_listen: Endpoint | None
    incident_log: Path | None
    leader_election_namespace: str | None
    identity: str
    replica_image: str
    rocketmq_image_repository: str
    rocketmq_version: str
    security: SecuritySettings = field(default_factory=SecuritySettings)
    drain_seconds: float = 0.0
    max_groups_rolling: int = 1
    lease_seconds: int = 3
    lease_name: str = names.DEFAULT_LEASE
    # In the Lease's namespace; None: no fence is ordered to do anything.
    fence_key_secret: str | None = None
    page: PageSettings | None = None


async def run_operator(settings: OperatorSettings, stop: asyncio.Event) -> None:
    """Run both planes until `stop`. OSError when an address can't be bound; ApiError when the API refuses us."""
    access = ClusterAccess(kubeconfig=settings.kubeconfig)
    async with AsyncExitStack() as stack:
        api = await stack.enter_async_context(access.own_client())
        metrics = Metrics(controller_address=settings.advertise)
        keys = await _fence_keys(api, settings)
        fencer = KubernetesFencer(api, keys)
        stack.push_async_callback(fencer.close)
        incidents = _incident_log(settings, stack)
        page = LivePage(settings.page, access.own_client) if settings.page is not None else None
        plane = ControllerPlane(
            store=KubernetesRecordStore(api, namespace=settings.namespace),
            directory=KubernetesDirectory(api, namespace=settings.namespace),
            settings=_plane_settings(settings),
            fencer=fencer,
            observer=ObserverGroup([*_observers(api, metrics, incidents, stack), *([page.observer] if page else [])]),
        )
        metrics.attach(plane)
        stack.push_async_callback(plane.stop)
        if settings.metrics_listen is not None:
            stack.push_async_callback(metrics.stop)
            await metrics.start(*settings.metrics_listen)
        await plane.start()
        if page is not None:
            stack.push_async_callback(page.stop)
            await page.start(plane)
        reconcile = ReconcilePlane(
            api,
            access,
            plane,
            replace(_reconcile_settings(settings), fence_keys=keys),
            after_watch_spawned=lambda: _take_signals_back(stop),
            circumstances=incidents,
            conditions=metrics.conditions,
        )
        metrics.health.ask(reconcile.trouble)
        stack.push_async_callback(reconcile.stop)
        await reconcile.start()
        await stop.wait()


async def _fence_keys(api: KubernetesApi, settings: OperatorSettings) -> FenceKeys | None:
    """All operator pods have the same, or pods would be rolled to and fro: so one that cannot read it does not run. ApiError."""
    name, namespace = settings.fence_key_secret, settings.leader_election_namespace
    if name is None or namespace is None:
        return None
    labels = {names.LABEL_APP_MANAGED_BY: names.MANAGED_BY}
    root = await kept_secret(api, name, namespace=namespace, labels=labels, timeout_seconds=FENCE_KEY_SECONDS)
    return FenceKeys(root)


def _incident_log(settings: OperatorSettings, stack: AsyncExitStack) -> IncidentLog | None:
    """Begun here, and the last but the API to end: both planes tell it things."""
    if settings.incident_log is None:
        return None
    incidents = IncidentLog(settings.incident_log)
    incidents.start()
    stack.push_async_callback(incidents.stop)
    return incidents


def _observers(
    api: KubernetesApi, metrics: Metrics, incidents: IncidentLog | None, stack: AsyncExitStack
) -> list[Observer]:
    events = KubernetesEventSink(api)
    events.start()
    stack.push_async_callback(events.stop)
    history = FailoverHistory(api)
    history.start()
    stack.push_async_callback(history.stop)
    return [metrics.observer, EventObserver(events), history, *([incidents] if incidents is not None else [])]


def _take_signals_back(stop: asyncio.Event) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)


def _plane_settings(settings: OperatorSettings) -> PlaneSettings:
    host, port = settings.listen
    return PlaneSettings(
        listen_host=host,
        listen_port=port,
        advertise_address=settings.advertise,
        peer_addresses=settings.controller_addresses,
        security=settings.security,
        drain_seconds=settings.drain_seconds,
    )


def _reconcile_settings(settings: OperatorSettings) -> ReconcileSettings:
    """OSError when the file of the certificate authority cannot be read any more."""
    security = settings.security
    authority = security.tls.files.ca if security.tls is not None else None
    election = None
    if settings.leader_election_namespace is not None:
        election = LeaderElectionSettings.lasting(
            settings.lease_seconds,
            namespace=settings.leader_election_namespace,
            identity=settings.identity,
            name=settings.lease_name,
        )
    return ReconcileSettings(
        controller_addresses=settings.controller_addresses,
        namespace=settings.namespace,
        max_groups_rolling=settings.max_groups_rolling,
        replica_image=settings.replica_image,
        rocketmq_image_repository=settings.rocketmq_image_repository,
        rocketmq_version=settings.rocketmq_version,
        leader_election=election,
        controller_tls=security.tls is not None,
        controller_authority=None if authority is None else authority.read_text(encoding="utf-8"),
        broker_tls=security.broker_tls is not None,
        client_certificates_required=security.tls is not None
        and security.tls.client_certificates is ClientCertificates.REQUIRED,
    )
