"""A live page over a scripted plane in a separate thread, so that a test can open it in a browser."""

from __future__ import annotations

import asyncio
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from brokergroup_operator.page.live_page import LivePage, PageSettings
from tests.page.scripted_plane import ListedGroups, ScriptedPlane

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

CALL_SECONDS = 30.0


@dataclass
class Served:
    """``do`` runs something in the controller plane's loop."""

    plane: ScriptedPlane
    loop: asyncio.AbstractEventLoop
    page: LivePage
    api: ListedGroups

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.page.port}/"

    def do(self, work: Callable[[], Any]) -> Any:
        async def run() -> Any:
            return work()

        return asyncio.run_coroutine_threadsafe(run(), self.loop).result(CALL_SECONDS)

    def await_(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(CALL_SECONDS)

    def again(self) -> None:
        """A new page at the same port, as an operator that was restarted has."""
        port = self.page.port
        self.page = LivePage(PageSettings(host="127.0.0.1", port=port, identity="operator-0"), self._open)
        self.start()

    def start(self) -> None:
        self.plane.observer = self.page.observer
        self.await_(self.page.start(self.plane))

    def _open(self) -> Any:
        return self.api


@contextmanager
def served(plane: ScriptedPlane, *, token_file: Path | None = None) -> Iterator[Served]:
    """A page of this plane for the length of a block."""
    from brokergroup_operator.page.access import AccessMode

    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="scripted plane", daemon=True)
    thread.start()
    api: Any = ListedGroups(plane)
    settings = PageSettings(
        host="127.0.0.1",
        port=0,
        identity="operator-0",
        access=AccessMode.TOKEN if token_file else AccessMode.OPEN,
        token_file=token_file,
    )
    here = Served(plane, loop, LivePage(settings, lambda: api), api)
    here.start()
    try:
        yield here
    finally:
        here.await_(here.page.stop())
        loop.call_soon_threadsafe(loop.stop)
        thread.join(CALL_SECONDS)
        loop.close()
