"""The controller plane without Kubernetes: a drop-in for RocketMQ's own controller, for trying out and for differential tests.

Every brokerName is a group, records are in a folder or in memory, and nothing can be fenced: a silent master is replaced all
the same, and the incident says that its death was not confirmed.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from brokergroup_operator.api.brokergroup import Signature
from brokergroup_operator.controller.directory.group_directory import FixedDirectory
from brokergroup_operator.controller.plane import ControllerPlane
from brokergroup_operator.controller.settings import KNOWN_BYTES, NEW_NAMES_PER_HOST, PlaneSettings
from brokergroup_operator.observe.incidents import IncidentLog
from brokergroup_operator.observe.metrics import Metrics
from brokergroup_operator.observe.observer import Observer, ObserverGroup
from brokergroup_operator.records.stores import namespace_of, open_record_store
from controller_core.settings import ControllerSettings
from rocketmq_remoting.address import join_address
from rocketmq_remoting.codec import FrameLimits

if TYPE_CHECKING:
    import asyncio
    from pathlib import Path

    from rocketmq_remoting.signature import Credentials


@dataclass(frozen=True, kw_only=True)
class StandaloneSettings:
    """The settings of a standalone controller. `store` is a text of `records/stores.py`."""

    plane: PlaneSettings = field(default_factory=PlaneSettings)
    store: str = "memory"
    name_servers: tuple[str, ...] = ()
    controller: ControllerSettings = field(default_factory=ControllerSettings)
    metrics_listen: tuple[str, int] | None = None
    incident_log: Path | None = None
    signature: Signature = Signature.ACCEPTED
    broker_credentials: Credentials | None = None


async def run_standalone(settings: StandaloneSettings, stop: asyncio.Event) -> None:
    """Serve until `stop` is set. `OSError` if an address cannot be bound, `RecordStoreError` if another process has the folder."""
    async with contextlib.AsyncExitStack() as stack:
        store = open_record_store(settings.store)
        stack.push_async_callback(store.close)
        plane_settings = settings.plane
        listens_at = join_address(plane_settings.listen_host, plane_settings.listen_port)
        metrics = Metrics(controller_address=plane_settings.advertise_address or listens_at)
        observers: list[Observer] = [metrics.observer]
        if settings.incident_log is not None:
            incidents = IncidentLog(settings.incident_log)
            incidents.start()
            stack.push_async_callback(incidents.stop)
            observers.append(incidents)
        directory = FixedDirectory(
            namespace=namespace_of(settings.store),
            settings=settings.controller,
            name_servers=settings.name_servers,
            signature=settings.signature,
            credentials=settings.broker_credentials,
        )
        plane = ControllerPlane(
            store=store, directory=directory, settings=_for_all_alike(settings), observer=ObserverGroup(observers)
        )
        metrics.attach(plane)
        stack.push_async_callback(plane.stop)
        if settings.metrics_listen is not None:
            stack.push_async_callback(metrics.stop)
            await metrics.start(*settings.metrics_listen)
        await plane.start()
        await stop.wait()


def _for_all_alike(settings: StandaloneSettings) -> PlaneSettings:
    """Return the plane's settings; without required signatures all callers are unknown, so the limits for those are lifted."""
    if settings.signature is Signature.REQUIRED:
        return settings.plane
    security = replace(
        settings.plane.security,
        frame_limits=FrameLimits(max_frame_bytes=KNOWN_BYTES),
        max_unknown_connections=None,
        max_unknown_connections_per_host=None,
        max_new_names_per_host=NEW_NAMES_PER_HOST,
    )
    return replace(settings.plane, security=security)
