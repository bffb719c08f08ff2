"""An HTTP server on loopback in a thread of its own, for as long as a `with` block lasts."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    import ssl


class QuietHandler(BaseHTTPRequestHandler):
    """Writes no log."""

    def log_message(self, *_: Any) -> None:
        """Quiet."""


class LoopbackServer:
    """What each stand-in has: `handler` is the class that answers."""

    tls: ssl.SSLContext | None = None

    def handler(self) -> type[QuietHandler]:
        raise NotImplementedError

    def __enter__(self) -> Self:
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self.handler())
        if self.tls is not None:
            self._server.socket = self.tls.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def place(self) -> str:
        return f"127.0.0.1:{self._server.server_address[1]}"

    @property
    def url(self) -> str:
        return f"http://{self.place}"
