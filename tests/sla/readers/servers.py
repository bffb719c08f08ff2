"""Servers on loopback for a `with` block: one answers like Prometheus 2 or 3 from memory, the other's answers are scripted."""

from __future__ import annotations

import json
import re
import threading
import urllib.parse
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import parse_qsl

from sla_reports.series import parse_series

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

_QUERY = re.compile(r"\{(.*)\}\[(\d+)ms\]", re.DOTALL)
_MATCHER = re.compile(r'([a-zA-Z_]\w*)(=~|=)"((?:[^"\\]|\\.)*)"')


class QuietHandler(BaseHTTPRequestHandler):
    """Writes no log."""

    def log_message(self, *_: Any) -> None:
        """Write no log."""


class LoopbackServer:
    """The base of the servers: `handler` is the class that answers."""

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


@dataclass
class StandIn(LoopbackServer):
    """A Prometheus. `samples`: series text to (ts_ms, value). `asked` has the queries in order."""

    samples: dict[str, list[tuple[int, float]]]
    left_open: bool = False
    asked: list[str] = field(default_factory=list)
    tokens: list[str | None] = field(default_factory=list)

    def handler(self) -> type[QuietHandler]:
        stand_in = self

        class Handler(QuietHandler):
            def do_GET(self) -> None:
                self._answer(*stand_in.label_values(self.path))

            def do_POST(self) -> None:
                stand_in.tokens.append(self.headers.get("Authorization"))
                form = urllib.parse.parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
                self._answer(*stand_in.query(form["query"][0], float(form["time"][0])))

            def _answer(self, code: int, answer: dict[str, Any]) -> None:
                body = json.dumps(answer).encode()
                self.send_response(code)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        return Handler

    def query(self, text: str, at_seconds: float) -> tuple[int, dict[str, Any]]:
        self.asked.append(text)
        found = _QUERY.fullmatch(text)
        if found is None:
            return 400, {"status": "error", "errorType": "bad_data", "error": f"parse error: {text}"}
        end_ms = round(at_seconds * 1000)
        start_ms = end_ms - int(found[2])
        result = []
        for series, samples in self.samples.items():
            inside = [
                (at, v) for at, v in samples if start_ms <= at <= end_ms and not (self.left_open and at == start_ms)
            ]
            if inside and self._matches(series, found[1]):
                parts = parse_series(series)
                metric = {"__name__": parts.metric, **dict(parts.labels)}
                result.append({"metric": metric, "values": [[at / 1000, str(value)] for at, value in inside]})
        return 200, {"status": "success", "data": {"resultType": "matrix", "result": result}}

    def label_values(self, path: str) -> tuple[int, dict[str, Any]]:
        label = path.split("/label/")[1].split("/", maxsplit=1)[0]
        return 200, {"status": "success", "data": sorted({parse_series(s).label(label) for s in self.samples} - {""})}

    @staticmethod
    def _matches(series: str, matchers: str) -> bool:
        parts = parse_series(series)
        labels = {"__name__": parts.metric, **dict(parts.labels)}
        for name, operator, quoted in _MATCHER.findall(matchers):
            wanted = quoted.replace("\\n", "\n").replace('\\"', '"').replace("\\\\", "\\")
            value = labels.get(name, "")
            if not (re.fullmatch(wanted, value) if operator == "=~" else value == wanted):
                return False
        return True


@dataclass(frozen=True)
class Asked:
    """A received request."""

    path: str
    form: dict[str, str]
    headers: dict[str, str]


@dataclass(frozen=True)
class Reply:
    """An answer. `declared` is a Content-Length other than the body's, `chunked` writes chunks without an end."""

    code: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    declared: int | None = None
    is_chunked: bool = False


@dataclass
class OddServer(LoopbackServer):
    """A server with scripted answers: `answer` makes the reply to each request."""

    answer: Callable[[Asked], Reply]
    asked: list[Asked] = field(default_factory=list)
    tls: ssl.SSLContext | None = None

    def handler(self) -> type[QuietHandler]:
        odd = self

        class Handler(QuietHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                form = dict(parse_qsl(self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()))
                asked = Asked(self.path, form, {name.lower(): value for name, value in self.headers.items()})
                odd.asked.append(asked)
                self._write(odd.answer(asked))

            do_GET = do_POST  # noqa: N815

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
