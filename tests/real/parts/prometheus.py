"""A real Prometheus on loopback that scrapes given targets."""

from __future__ import annotations

import json
import subprocess
import urllib.parse
import urllib.request
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tests.real.parts import install
from tests.real.parts.process import RealProcess, RealProcessError, start
from tests.support.places import free_port

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


@dataclass(frozen=True)
class Prometheus:
    """A running Prometheus and its HTTP API."""

    process: RealProcess
    url: str

    def api(self, path: str, **parameters: str | float) -> Any:
        """One GET of the HTTP API; hands back `data`."""
        query = urllib.parse.urlencode(parameters)
        with urllib.request.urlopen(f"{self.url}/api/v1/{path}?{query}", timeout=10) as answer:
            body = json.load(answer)
        if body["status"] != "success":
            raise RealProcessError(f"prometheus {path} {parameters}: {body.get('error')}")
        return body["data"]

    def query(self, expression: str, *, at_seconds: float | None = None) -> list[dict[str, Any]]:
        """An instant query's result vector, now or at a point in time."""
        when = {} if at_seconds is None else {"time": at_seconds}
        result: list[dict[str, Any]] = self.api("query", query=expression, **when)["result"]
        return result

    def is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/-/ready", timeout=1) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False


def start_prometheus(
    folder: Path, *, targets: list[str], scrape_interval: str = "1s", arguments: Sequence[str] = ()
) -> Prometheus:
    """Prometheus, ready, scraping the `host:port` targets, with what is in `folder/data` already."""
    folder.mkdir(parents=True, exist_ok=True)
    scrape = {"job_name": "brokergroup-operator", "static_configs": [{"targets": targets}]}
    config = {"global": {"scrape_interval": scrape_interval}, "scrape_configs": [scrape]}
    config_file = folder / "prometheus.yml"
    config_file.write_text(json.dumps(config), encoding="utf-8")
    program = install.prometheus_program()
    if program is None:
        raise RealProcessError("no prometheus here; the test needs the marker real('prometheus')")
    address = f"127.0.0.1:{free_port()}"
    command = [str(program), f"--config.file={config_file}", f"--storage.tsdb.path={folder / 'data'}", *arguments]
    process = start("prometheus", [*command, f"--web.listen-address={address}"], log=folder / "prometheus.log")
    prometheus = Prometheus(process, f"http://{address}")
    try:
        process.wait_until(prometheus.is_ready, what="being ready")
    except RealProcessError:
        process.stop()
        raise
    return prometheus


def promtool(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run promtool; the caller looks at the exit code and the output."""
    program = install.prometheus_program("promtool")
    if program is None:
        raise RealProcessError("no promtool here; the test needs the marker real('prometheus')")
    return subprocess.run([str(program), *arguments], capture_output=True, text=True, timeout=60, check=False)
