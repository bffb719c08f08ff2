"""Runs kopf in a thread and loop of its own, the embedding that its documentation describes, and starts it again when it ends.

Kopf cancels every task of its loop at its end, and takes the process's signals in the main thread: neither reaches ours from a
thread of its own. Its handlers pass keys to our loop and do nothing else. Asked for no identity, kopf asks the system for the
user's name, and an image whose user has none would never watch anything, so it gets one.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import threading
import time
from typing import TYPE_CHECKING, Final

import aiohttp
import kopf
import structlog

from brokergroup_operator.reconcile.run.handlers import build_registry, build_settings

if TYPE_CHECKING:
    from collections.abc import Callable

    from brokergroup_operator.reconcile.access import ClusterAccess
    from brokergroup_operator.records.store import GroupKey

log = structlog.get_logger(__name__)

RESPAWN_SECONDS: Final = 1.0
STOP_TIMEOUT_SECONDS: Final = 10.0
CLOSE_SECONDS: Final = 0.1
# A run of kopf that lasted so long had its watches.
LASTED_SECONDS: Final = 20.0
# So long kopf may fail at once, start after start, before the process asks to be restarted.
FAILING_SECONDS: Final = 60.0
# What kopf ends with while the API cannot be reached: a restart of this process would change nothing.
# Not every OSError: a file that may not be read, or a disk that may not be written, is a fault of this process's own.
OUTAGES: Final = (kopf.LoginError, ConnectionError, TimeoutError, socket.gaierror, ssl.SSLError, aiohttp.ClientError)


class Watcher:
    """Runs kopf until stopped; when kopf ends by itself (a watch it cannot repair), it is started again.

    `on_change` and `on_cluster_change` are called in the loop in which this was started.
    """

    def __init__(
        self,
        access: ClusterAccess,
        *,
        namespace: str | None,
        on_change: Callable[[GroupKey], None],
        on_cluster_change: Callable[[GroupKey], None] | None,
        identity: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._access = access
        self._namespace = namespace
        self._on_change = on_change
        self._on_cluster_change = on_cluster_change
        self._identity = identity
        self._clock = clock
        self._running_since: float | None = None
        self._failing_since: float | None = None
        self._failure = ""
        self._stopping = asyncio.Event()
        # Of the present run of kopf.
        self._stop_flag = threading.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._keep_running(), name="kopf supervisor")

    async def stop(self) -> None:
        """End kopf; after a bounded time without waiting for it: what a thread left behind hears goes nowhere."""
        self._stopping.set()
        self._stop_flag.set()
        if self._task is not None:
            await asyncio.wait({self._task}, timeout=STOP_TIMEOUT_SECONDS)
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def trouble(self) -> str | None:
        """Why no watch lives and none will without a restart of this process; None while one lives, or the API is away."""
        now = self._clock()
        if self._failing_since is None or now - self._failing_since < FAILING_SECONDS:
            return None
        if self._running_since is not None and now - self._running_since >= LASTED_SECONDS:
            return None
        return f"no watch for {now - self._failing_since:.0f} s: {self._failure}"

    def _note_end(self, error: BaseException | None) -> None:
        now = self._clock()
        lasted = self._running_since is not None and now - self._running_since >= LASTED_SECONDS
        self._running_since = None
        if is_outage(error):
            self._failing_since = None
        elif lasted or self._failing_since is None:
            self._failing_since = now
        self._failure = repr(error)

    async def _keep_running(self) -> None:
        while not self._stopping.is_set():
            self._running_since = self._clock()
            kopf_task = asyncio.create_task(self._run_kopf(), name="kopf")
            try:
                await asyncio.wait({kopf_task})
            finally:
                kopf_task.cancel()
            if not self._stopping.is_set():
                error = None if kopf_task.cancelled() else kopf_task.exception()
                self._note_end(error)
                log.warning("watch.ended", error=repr(error), respawn_seconds=RESPAWN_SECONDS)
                await asyncio.sleep(RESPAWN_SECONDS)

    async def _run_kopf(self) -> None:
        """One run of kopf, in its thread; raises what it ended with."""
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()
        self._stop_flag = threading.Event()

        def passed_on(call: Callable[[GroupKey], None]) -> Callable[[GroupKey], None]:
            return lambda key: _in(loop, lambda: None if self._stopping.is_set() else call(key))

        registry = build_registry(
            self._access,
            passed_on(self._on_change),
            None if self._on_cluster_change is None else passed_on(self._on_cluster_change),
        )

        def run() -> None:
            error: BaseException | None = None
            try:
                asyncio.run(self._operate(registry, self._stop_flag))
            except BaseException as caught:  # noqa: BLE001 - it is raised in our loop
                error = caught
            _in(loop, lambda: _settle(ended, error))

        threading.Thread(target=run, name="kopf", daemon=True).start()
        await ended

    async def _operate(self, registry: kopf.OperatorRegistry, stop_flag: threading.Event) -> None:
        try:
            await kopf.operator(
                registry=registry,
                settings=build_settings(),
                identity=self._identity,  # type: ignore[arg-type]  # kopf's own type of text
                clusterwide=self._namespace is None,
                namespaces=[] if self._namespace is None else [self._namespace],
                standalone=True,
                stop_flag=stop_flag,
            )
        finally:
            # A thread of this loop waits for it; the loop's end waits for that thread.
            stop_flag.set()
            # Aiohttp closes TLS connections some turns of the loop after their session.
            await asyncio.sleep(CLOSE_SECONDS)


def is_outage(error: BaseException | None) -> bool:
    """Whether the API was away or refused us. Kopf's errors for refusals are not public; aiohttp's error is their cause."""
    return isinstance(error, OUTAGES) or (error is not None and isinstance(error.__cause__, aiohttp.ClientError))


def _in(loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
    """Call it in that loop, soon. A loop that is closed has no more use for it."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(call)


def _settle(ended: asyncio.Future[None], error: BaseException | None) -> None:
    if ended.done():
        return
    if error is None:
        ended.set_result(None)
    else:
        ended.set_exception(error)
