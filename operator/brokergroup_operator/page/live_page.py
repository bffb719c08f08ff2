"""The live page as the operator starts it: a thread with a loop of its own, fed from the controller plane's loop.

The two loops share one dict under a lock, with the latest sighting of each group: a page that is slow, or has a thousand idle
viewers, makes the controller plane wait for nothing and grow by nothing (tests/page/test_live_page.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import structlog
from aiohttp import web

from brokergroup_operator.kube.reflector import Reflector, key_of
from brokergroup_operator.kube.resources import BROKER_GROUPS
from brokergroup_operator.observe.metrics import listen
from brokergroup_operator.page.access import AccessMode, KubernetesTokens, Sessions, TokenFile, is_loopback_host
from brokergroup_operator.page.board import Board
from brokergroup_operator.page.feed import MOST_CHANGES, Feed, SetChanges
from brokergroup_operator.page.server import PageServer
from brokergroup_operator.records.store import GroupKey
from rocketmq_remoting.address import join_address

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable
    from pathlib import Path

    from brokergroup_operator.kube.client import JsonObject, KubernetesApi, WatchEvent
    from brokergroup_operator.observe.group_view import ShownGroups
    from brokergroup_operator.page.sighting import SetChange, Sighting

PUBLISH_SECONDS: Final = 0.25
START_SECONDS: Final = 20.0
STOP_SECONDS: Final = 5.0

log = structlog.get_logger(__name__)


@dataclass(frozen=True, kw_only=True)
class PageSettings:
    """Where the page listens, and how it checks viewers. ValueError names what does not go together."""

    host: str
    port: int
    access: AccessMode = AccessMode.OPEN
    token_file: Path | None = None
    tls: ssl.SSLContext | None = None
    identity: str = ""
    served_namespace: str | None = None

    def __post_init__(self) -> None:
        """Refuse settings that would show the page without a check of viewers to other hosts."""
        if self.access is AccessMode.OPEN and not is_loopback_host(self.host):
            raise ValueError(
                f"host {self.host!r} is no loopback address and access is 'open': expected access 'kubernetes' or 'token'"
            )
        if (self.access is AccessMode.TOKEN) != (self.token_file is not None):
            raise ValueError(
                f"access {self.access.value!r} with token file {self.token_file}: expected both or neither"
            )


class LivePage:
    """``start`` returns when the page listens; ``stop`` when its thread has ended. Both in the controller plane's loop."""

    def __init__(self, settings: PageSettings, open_api: Callable[[], KubernetesApi]) -> None:
        self._settings = settings
        self._open_api = open_api
        # One of the controller plane's observers.
        self.observer = SetChanges()
        self._feed: Feed | None = None
        self._feeding: asyncio.Task[None] | None = None
        self._lock = threading.Lock()
        self._pending: dict[GroupKey, Sighting] = {}
        self._pending_changes: deque[SetChange] = deque(maxlen=MOST_CHANGES)
        self._known: frozenset[GroupKey] = frozenset()
        self._take_is_due = False
        self._thread: threading.Thread | None = None
        self._plane_loop: asyncio.AbstractEventLoop | None = None
        self._page_loop: asyncio.AbstractEventLoop | None = None
        self._end: asyncio.Event | None = None
        self._board: Board | None = None
        self.port = 0

    async def start(self, view: ShownGroups) -> None:
        """OSError when the address cannot be bound."""
        self._feed = Feed(view, self.observer, self._hand_over)
        self._plane_loop = asyncio.get_running_loop()
        listening: asyncio.Future[int] = self._plane_loop.create_future()
        self._thread = threading.Thread(target=self._run_thread, args=(listening,), name="live page", daemon=True)
        self._thread.start()
        async with asyncio.timeout(START_SECONDS):
            self.port = await listening
        self._feeding = asyncio.create_task(self._feed.run(), name="rmq:page-feed")
        log.info("page", address=join_address(self._settings.host, self.port), access=self._settings.access.value)

    async def stop(self) -> None:
        """End the streams and the thread."""
        if self._feeding is not None:
            self._feeding.cancel()
            await asyncio.gather(self._feeding, return_exceptions=True)
        if self._page_loop is not None and self._end is not None:
            with contextlib.suppress(RuntimeError):  # its loop has ended already
                self._page_loop.call_soon_threadsafe(self._end.set)
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join, STOP_SECONDS)

    def trouble(self) -> str | None:
        """For the log of the operator, not for ``/healthz``: brokers are served without a page too."""
        return "the page's thread has ended" if self._thread is not None and not self._thread.is_alive() else None

    # ---- in the controller plane's loop

    def _hand_over(self, sightings: list[Sighting], changes: list[SetChange], known: frozenset[GroupKey]) -> None:
        with self._lock:
            self._pending_changes.extend(changes)
            self._pending.update((one.snapshot.key, one) for one in sightings)
            self._known = known
            if self._take_is_due or self._page_loop is None:
                return
            self._take_is_due = True
        try:
            self._page_loop.call_soon_threadsafe(self._take)
        except RuntimeError:
            log.warning("page ended", trouble=self.trouble())

    # ---- in the page's thread

    def _run_thread(self, listening: asyncio.Future[int]) -> None:
        try:
            asyncio.run(self._serve(listening))
        except OSError as error:
            self._tell(listening, error)
        except Exception as error:  # the thread's supervision point: the page ends, the operator goes on
            log.exception("the live page ended", error=repr(error))
            self._tell(listening, OSError(f"the live page ended: {error!r}"))

    def _tell(self, listening: asyncio.Future[int], outcome: int | OSError) -> None:
        def tell() -> None:
            if listening.done():
                return
            if isinstance(outcome, OSError):
                listening.set_exception(outcome)
            else:
                listening.set_result(outcome)

        assert self._plane_loop is not None
        with contextlib.suppress(RuntimeError):  # the operator is ending
            self._plane_loop.call_soon_threadsafe(tell)

    async def _serve(self, listening: asyncio.Future[int]) -> None:
        self._end = asyncio.Event()
        first_viewer = asyncio.Event()
        async with self._open_api() as api:
            reflector = Reflector(
                api, BROKER_GROUPS, namespace=self._settings.served_namespace, on_change=self._object_changed
            )
            self._board = board = Board(reflector.objects)
            server = PageServer(
                board,
                self._settings.identity,
                self._sessions(api, board),
                secure_cookie=self._settings.tls is not None,
                on_viewers=lambda opened, count: self._viewers(first_viewer, opened, count),
            )
            runner = web.AppRunner(server.application(), access_log=None, shutdown_timeout=1.0)
            await runner.setup()
            tasks: list[asyncio.Task[None]] = []
            try:
                await listen(runner, self._settings.host, self._settings.port, tls=self._settings.tls, backlog=512)
                with self._lock:
                    self._page_loop = asyncio.get_running_loop()
                self._tell(listening, runner.addresses[0][1])
                tasks = [
                    asyncio.create_task(self._publish(board, server)),
                    asyncio.create_task(self._reflect(reflector, first_viewer)),
                ]
                await self._end.wait()
            finally:
                server.stop()
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                await runner.cleanup()

    def _sessions(self, api: KubernetesApi, board: Board) -> Sessions | None:
        if self._settings.access is AccessMode.KUBERNETES:
            return Sessions(KubernetesTokens(api, self._settings.served_namespace, lambda: board.namespaces))
        if self._settings.token_file is not None:
            return Sessions(TokenFile(self._settings.token_file))
        return None

    def _take(self) -> None:
        with self._lock:
            sightings, self._pending = list(self._pending.values()), {}
            changes = list(self._pending_changes)
            self._pending_changes.clear()
            known, self._take_is_due = self._known, False
        if self._board is not None:
            self._board.take(sightings, changes, known)

    def _object_changed(self, event: WatchEvent) -> None:
        if self._board is not None:
            self._board.object_changed(_group_key(event.object))

    def _viewers(self, first_viewer: asyncio.Event, opened: frozenset[GroupKey], count: int) -> None:
        if count:
            first_viewer.set()
        feed = self._feed
        if self._plane_loop is not None and feed is not None:
            with contextlib.suppress(RuntimeError):  # the operator is ending
                self._plane_loop.call_soon_threadsafe(lambda: feed.viewed(opened, has_viewers=count > 0))

    async def _reflect(self, reflector: Reflector, first_viewer: asyncio.Event) -> None:
        """Manifests and status of all groups, from the first viewer on: a page without viewers costs no requests."""
        await first_viewer.wait()
        await reflector.run()

    async def _publish(self, board: Board, server: PageServer) -> None:
        while True:
            await asyncio.sleep(PUBLISH_SECONDS)
            if server.viewers and (board.publish() or server.has_opened):
                server.publish()


def _group_key(obj: JsonObject) -> GroupKey:
    namespace, name = key_of(obj)
    return GroupKey(namespace, name)
