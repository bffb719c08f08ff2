"""A server on loopback whose every answer is scripted: what HTTP servers and proxies between do besides answering."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl

from tests.sla.readers.loopback import LoopbackServer, QuietHandler

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable


@dataclass(frozen=True)
class Asked:
    """A request as it came."""

    path: str
    form: dict[str, str]
    headers: dict[str, str]


@dataclass(frozen=True)
class Reply:
    """What is written. `declared` is a Content-Length other than the body's, `chunked` writes chunks without an end."""

    code: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    declared: int | None = None
    is_chunked: bool = False


@dataclass
class OddServer(LoopbackServer):
    """`answer` makes the reply to each request."""

    answer: Callable[[Asked], Reply]
    asked: list[Asked] = field(default_factory=list)
    tls: ssl.SSLContext | None = None

    def handler(self) -> type[QuietHandler]:
        odd = self

        class Handler(QuietHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:  # noqa: N802 - the handler's name
                form = dict(parse_qsl(self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()))
                asked = Asked(self.path, form, {name.lower(): value for name, value in self.headers.items()})
                odd.asked.append(asked)
                self._write(odd.answer(asked))

            do_GET = do_POST  # noqa: N815 - the handler's name

            def _write(self, reply: Reply) -> None:
                self.close_connection = True
                self.send_response(reply.code)
                for name, value in reply.headers.items():
                    self.send_header(name, value)
                if reply.is_chunked:
                    self.send_header("Transfer-Encoding", "chunked")
                    self.end_headers()
                    self.wfile.write(f"{len(reply.body):x}\r\n".encode() + reply.body + b"\r\n")
                    return
                self.send_header("Content-Length", str(reply.declared or len(reply.body)))
                self.end_headers()
                self.wfile.write(reply.body)

        return Handler
