"""Picks the one reconcile plane by a Lease, with the official client's elector in a thread of its own.

The Lease keeps two planes from doing the same work twice. It protects nothing else: every write of a pass can be repeated,
and masters are granted by compare-and-set on the record, never by the Lease (design.md §4).
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import TYPE_CHECKING, Any

import structlog
import urllib3
from kubernetes.client import CoordinationV1Api
from kubernetes.client.exceptions import ApiException
from kubernetes.leaderelection.electionconfig import Config
from kubernetes.leaderelection.leaderelection import LeaderElection
from kubernetes.leaderelection.leaderelectionrecord import LeaderElectionRecord
from kubernetes.leaderelection.resourcelock.leaselock import LeaseLock

if TYPE_CHECKING:
    from collections.abc import Callable

    from brokergroup_operator.reconcile.access import ClusterAccess
    from brokergroup_operator.reconcile.settings import LeaderElectionSettings

log = structlog.get_logger(__name__)


class _Stopped(Exception):  # noqa: N818 - not an error: it leads the elector out of its endless loop
    """The elector was asked to end."""


class _Lock(LeaseLock):
    """The official lock on a client of ours, with a way out."""

    def __init__(self, access: ClusterAccess, settings: LeaderElectionSettings, stopped: threading.Event) -> None:
        # Not super().__init__: it would take the client library's global configuration.
        self.api_instance = CoordinationV1Api(access.official_client())
        self.name = settings.name
        self.namespace = settings.namespace
        self.identity = settings.identity
        self.lease_reference = None
        self._stopped = stopped

    def get(self, name: str, namespace: str) -> Any:
        if self._stopped.is_set():
            raise _Stopped
        return super().get(name, namespace)  # type: ignore[no-untyped-call]

    def release(self) -> None:
        """Give the Lease back, so that the next plane need not wait for its end."""
        found, record = super().get(self.name, self.namespace)  # type: ignore[no-untyped-call]
        if found and record.holder_identity == self.identity:
            now = record.renew_time
            released = LeaderElectionRecord("", record.lease_duration, now, now)  # type: ignore[no-untyped-call]
            self.update(self.name, self.namespace, released)  # type: ignore[no-untyped-call]

    def close(self) -> None:
        """Close the connections."""
        self.api_instance.api_client.close()


class LeaderElector:
    """Calls `on_started` and `on_stopped` in the event loop, as leadership comes and goes, until `stop`."""

    def __init__(
        self,
        access: ClusterAccess,
        settings: LeaderElectionSettings,
        *,
        on_started: Callable[[], None],
        on_stopped: Callable[[], None],
    ) -> None:
        self._access = access
        self._settings = settings
        self._on_started = on_started
        self._on_stopped = on_stopped
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._campaign, args=(loop,), name="leader election", daemon=True)
        self._thread.start()

    async def stop(self) -> None:
        self._stopped.set()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join, self._settings.retry_period_seconds + 5.0)

    def _campaign(self, loop: asyncio.AbstractEventLoop) -> None:
        lock = _Lock(self._access, self._settings, self._stopped)
        config = Config(  # type: ignore[no-untyped-call]
            lock,
            lease_duration=self._settings.lease_duration_seconds,
            renew_deadline=self._settings.renew_deadline_seconds,
            retry_period=self._settings.retry_period_seconds,
            onstarted_leading=lambda: self._tell(loop, self._on_started),
            onstopped_leading=lambda: self._tell(loop, self._on_stopped),
        )
        while not self._stopped.is_set():
            try:
                LeaderElection(config).run()  # type: ignore[no-untyped-call]
            except _Stopped:
                break
            except (ApiException, urllib3.exceptions.HTTPError) as error:
                # The library gives up on a lost connection; whoever led until now must not go on believing it.
                log.warning("leader_election.interrupted", error=str(error))
                self._tell(loop, self._on_stopped)
                self._stopped.wait(self._settings.retry_period_seconds)
        with contextlib.suppress(ApiException, urllib3.exceptions.HTTPError):
            lock.release()
        lock.close()

    def _tell(self, loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
        # The loop may be gone when the process ends while the elector sleeps.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(callback)
