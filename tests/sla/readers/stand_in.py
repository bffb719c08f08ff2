"""A server that answers like Prometheus 2 or 3, from samples in memory; it can be told to fail, to answer in part, to be strict."""

from __future__ import annotations

import json
import re
import urllib.parse
from dataclasses import dataclass, field
from typing import Any

from sla_reports.series import parse_series
from tests.sla.readers.loopback import LoopbackServer, QuietHandler

_QUERY = re.compile(r"\{(.*)\}\[(\d+)ms\]", re.DOTALL)
_MATCHER = re.compile(r'([a-zA-Z_]\w*)(=~|=)"((?:[^"\\]|\\.)*)"')


@dataclass
class StandIn(LoopbackServer):
    """`samples`: series text to (ts_ms, value). `asked` are the queries, in order."""

    samples: dict[str, list[tuple[int, float]]]
    left_open: bool = False
    most_samples: int = 1_000_000
    fail_first: int = 0
    warnings: list[str] = field(default_factory=list)
    cut_at_bytes: int | None = None
    asked: list[str] = field(default_factory=list)
    methods: list[str] = field(default_factory=list)
    tokens: list[str | None] = field(default_factory=list)

    def handler(self) -> type[QuietHandler]:
        stand_in = self

        class Handler(QuietHandler):
            def do_GET(self) -> None:  # noqa: N802 - the handler's name
                stand_in.methods.append("GET")
                self._answer(*stand_in.label_values(self.path))

            def do_POST(self) -> None:  # noqa: N802 - the handler's name
                stand_in.methods.append("POST")
                stand_in.tokens.append(self.headers.get("Authorization"))
                form = urllib.parse.parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
                self._answer(*stand_in.query(form["query"][0], float(form["time"][0])))

            def _answer(self, code: int, answer: dict[str, Any]) -> None:
                body = json.dumps(answer).encode()
                self.send_response(code)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body[: stand_in.cut_at_bytes])

        return Handler

    def query(self, text: str, at_seconds: float) -> tuple[int, dict[str, Any]]:
        self.asked.append(text)
        if self.fail_first > 0:
            self.fail_first -= 1
            return 503, {"status": "error", "error": "starting"}
        found = _QUERY.fullmatch(text)
        if found is None:
            return 400, {"status": "error", "errorType": "bad_data", "error": f"parse error: {text}"}
        end_ms = round(at_seconds * 1000)
        start_ms = end_ms - int(found[2])
        result, count = [], 0
        for series, samples in self.samples.items():
            inside = [
                (at, v) for at, v in samples if start_ms <= at <= end_ms and not (self.left_open and at == start_ms)
            ]
            if inside and self._matches(series, found[1]):
                parts = parse_series(series)
                metric = {"__name__": parts.metric, **dict(parts.labels)}
                result.append({"metric": metric, "values": [[at / 1000, str(value)] for at, value in inside]})
                count += len(inside)
        if count > self.most_samples:
            error = "query processing would load too many samples into memory in query execution"
            return 422, {"status": "error", "errorType": "execution", "error": error}
        answer = {"status": "success", "data": {"resultType": "matrix", "result": result}}
        return 200, {**answer, "warnings": self.warnings} if self.warnings else answer

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
