"""The operator process: one loop, one API client, the controller plane, the reconcile plane, and their observers.

The controller plane starts first and stops last: brokers are served while kopf starts.
"""

import asyncio
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Final

from brokergroup_operator.api import names
from brokergroup_operator.api.pod_fence import FenceKeys
from brokergroup_operator.cli.operator_command import OperatorOptions
from brokergroup_operator.cli.running import parse_endpoint
from brokergroup_operator.controller.change.fencing import KubernetesFencer
from brokergroup_operator.controller.detect.api_contact import ApiContact, kubernetes_read
from brokergroup_operator.controller.directory.kubernetes_directory import KubernetesDirectory
from brokergroup_operator.controller.plane import ControllerPlane
from brokergroup_operator.controller.settings import PlaneSettings, SecuritySettings
from brokergroup_operator.kube import KubernetesApi
from brokergroup_operator.kube.recipes import kept_secret
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

FENCE_KEY_SECONDS: Final = 10.0


async def run_operator(
    options: OperatorOptions, security: SecuritySettings, page_settings: PageSettings | None, stop: asyncio.Event
) -> None:
    """Run both planes until `stop`. OSError if an address can't be bound, ApiError if the API refuses the operator."""
    access = ClusterAccess(kubeconfig=options.kubeconfig)
    async with AsyncExitStack() as stack:
        api = await stack.enter_async_context(access.own_client())
        metrics = Metrics(controller_address=str(options.advertise))
        keys = await _fence_keys(api, options)
        fencer = KubernetesFencer(api, keys)
        stack.push_async_callback(fencer.close)
        incidents = None if options.incident_log is None else IncidentLog(options.incident_log)
        if incidents is not None:
            # It stops last but for the API client: both planes write to it.
            incidents.start()
            stack.push_async_callback(incidents.stop)
        # Of its own client: not behind the reads of a start, nor on a connection that another request waits for.
        contact = ApiContact(kubernetes_read(await stack.enter_async_context(access.own_client()), options.namespace))
        contact.start()
        stack.push_async_callback(contact.stop)
        page = LivePage(page_settings, access.own_client) if page_settings is not None else None
        plane = ControllerPlane(
            store=KubernetesRecordStore(api, namespace=options.namespace),
            directory=KubernetesDirectory(api, namespace=options.namespace),
            settings=_plane_settings(options, security),
            fencer=fencer,
            contact=contact,
            observer=ObserverGroup([*_observers(api, metrics, incidents, stack), *([page.observer] if page else [])]),
        )
        metrics.attach(plane)
        stack.push_async_callback(plane.stop)
        if options.metrics_listen is not None:
            stack.push_async_callback(metrics.stop)
            await metrics.start(*parse_endpoint(options.metrics_listen, "--metrics-listen"))
        await plane.start()
        if page is not None:
            stack.push_async_callback(page.stop)
            await page.start(plane)
        reconcile = ReconcilePlane(
            api,
            access,
            plane,
            replace(reconcile_settings(options, security), fence_keys=keys),
            circumstances=incidents,
            conditions=metrics.conditions,
        )
        metrics.health.ask(reconcile.trouble)
        stack.push_async_callback(reconcile.stop)
        await reconcile.start()
        await stop.wait()


async def _fence_keys(api: KubernetesApi, options: OperatorOptions) -> FenceKeys | None:
    """Read or create the Secret. ApiError if that fails: operator pods with different keys would each roll every pod."""
    name, namespace = options.fence_key_secret, options.leader_election_namespace
    if name is None or namespace is None:
        return None
    labels = {names.LABEL_APP_MANAGED_BY: names.MANAGED_BY}
    root = await kept_secret(api, name, namespace=namespace, labels=labels, timeout_seconds=FENCE_KEY_SECONDS)
    return FenceKeys(root)


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


def _plane_settings(options: OperatorOptions, security: SecuritySettings) -> PlaneSettings:
    host, port = parse_endpoint(options.listen, "--listen")
    return PlaneSettings(
        listen_host=host,
        listen_port=port,
        advertise_address=str(options.advertise),
        peer_addresses=tuple(options.controller_addresses),
        security=security,
        drain_seconds=options.drain_seconds,
    )


def reconcile_settings(options: OperatorOptions, security: SecuritySettings) -> ReconcileSettings:
    """Return what pods are rendered with. OSError if the file of the certificate authority cannot be read any more."""
    authority = security.tls.files.ca if security.tls is not None else None
    election = None
    if options.leader_election_namespace is not None:
        election = LeaderElectionSettings.lasting(
            options.lease_seconds,
            namespace=options.leader_election_namespace,
            identity=str(options.identity),
            name=options.lease_name,
        )
    return ReconcileSettings(
        controller_addresses=tuple(options.controller_addresses),
        namespace=options.namespace,
        max_groups_rolling=options.max_groups_rolling,
        replica_image=options.replica_image,
        catalogue=options.catalogue(),
        rocketmq_version=options.rocketmq_version,
        leader_election=election,
        controller_tls=security.tls is not None,
        controller_authority=None if authority is None else authority.read_text(encoding="utf-8"),
        authority_file=authority,
        broker_tls=security.broker_tls is not None,
        client_certificates_required=security.tls is not None
        and security.tls.client_certificates is ClientCertificates.REQUIRED,
    )
