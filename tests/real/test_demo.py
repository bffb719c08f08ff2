"""The demo as a user runs it, with a real Prometheus looking on; then the report a user makes of it.

One run of `brokergroup demo --once` carries all of this, for it takes most of a minute.
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from brokergroup_operator.observe.dashboards import DASHBOARDS
from brokergroup_operator.observe.dashboards.model import filled
from tests.real.parts.prometheus import Prometheus

_DEMO_SECONDS = 110.0


@pytest.mark.real("prometheus", "java")
@pytest.mark.timeout(360)
def test_the_demo_loses_nothing_and_its_figures_reach_dashboard_and_report(
    prometheus: Callable[[list[str]], Prometheus], tmp_path: Path
) -> None:
    directory = tmp_path / "demo"
    with (tmp_path / "stderr").open("wb") as errors:
        demo = subprocess.Popen(
            # The pace gives Prometheus time to start and to scrape before the first fault.
            [
                *(sys.executable, "-m", "brokergroup_operator.cli.main", "demo", "--once"),
                *("--pace-seconds", "8", "--directory", str(directory)),
            ],
            stdout=subprocess.PIPE, stderr=errors, text=True,
        )  # fmt: skip
    try:
        endpoints = _endpoints(directory, demo)
        server = prometheus([endpoints["metrics"]])
        output, _ = demo.communicate(timeout=_DEMO_SECONDS)
    finally:
        demo.kill()
        demo.wait()
    assert demo.returncode == 0, (output, (tmp_path / "stderr").read_text()[-4000:])
    verdict = json.loads(output.splitlines()[-1])
    _check_verdict(verdict)
    export = _export(server, tmp_path / "writable.json")
    _check_dashboard(server, export)
    _check_report(export, directory / "incidents.jsonl", verdict)
    # The input of `make sla-report`: the demo's own scrapes, without a Prometheus.
    _check_report(directory / "prometheus.json", directory / "incidents.jsonl", verdict)


def _endpoints(directory: Path, demo: "subprocess.Popen[str]") -> dict[str, str]:
    path = directory / "endpoints.json"
    deadline = time.monotonic() + 30
    while not path.exists():
        assert demo.poll() is None, "the demo ended before it wrote its endpoints"
        assert time.monotonic() < deadline, "no endpoints.json within 30 s"
        time.sleep(0.05)
    endpoints: dict[str, str] = json.loads(path.read_text())
    return endpoints


def _check_verdict(verdict: dict[str, Any]) -> None:
    killed, frozen = verdict["failovers"]
    assert verdict["lost"] == 0
    assert verdict["acked"] > 200
    assert killed["to"] == frozen["from"]
    assert frozen["trigger"] == "silence"
    assert "fenced" in frozen["steps_ms"]
    assert verdict["epochs"] == sorted(set(verdict["epochs"]))
    assert verdict["final_master"] == frozen["to"]
    # The operator's own client, and the demo's: each after the commit.
    for steps in (killed["steps_ms"], frozen["steps_ms"]):
        assert steps["committed"] <= min(steps["canary_ack"], steps["first_ack"])


def _check_dashboard(server: Prometheus, export: Path) -> None:
    """Every panel shows something. Asked for the last moment scraped: the operator is gone by now."""
    series = json.loads(export.read_text())["data"]["result"]
    last = max(float(at_seconds) for entry in series for at_seconds, _ in entry["values"])
    for expression in (filled(one) for dashboard in DASHBOARDS for one in dashboard.expressions()):
        assert server.api("query", query=expression, time=last)["result"], f"no data for {expression}"


def _export(server: Prometheus, target: Path) -> Path:
    exported = _brokergroup("sla", "export", "--prometheus", server.url, "--out", str(target), "--range-seconds", "300")
    assert exported["samples"] > 0
    return target


def _check_report(export: Path, incidents: Path, verdict: dict[str, Any]) -> None:
    report = _brokergroup("sla", "report", "--prometheus-export", str(export), "--incidents", str(incidents))
    [group] = report["groups"]
    assert (group["namespace"], group["broker_group"]) == ("default", "quickstart")
    assert group["up_ms"] > 0
    assert group["down_ms"] > 0
    assert report["unreadable_incidents"] == 0
    logged = [entry for entry in report["incidents"] if entry["trigger"] is not None]
    by_trigger = {entry["trigger"]: entry for entry in logged}
    assert len(logged) == len(by_trigger)
    assert set(by_trigger) == {failover["trigger"] for failover in verdict["failovers"]}
    assert all(entry["outcome"] == "completed" for entry in by_trigger.values())
    # A silent master is believed lost only after its timeout of 3 s, a killed one long before.
    assert by_trigger["silence"]["length_ms"] > 3000


def _brokergroup(*arguments: str) -> dict[str, Any]:
    """Run a subcommand; hand back its last line as JSON."""
    done = subprocess.run(
        [sys.executable, "-m", "brokergroup_operator.cli.main", *arguments],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, (done.stdout[-2000:], done.stderr[-4000:])
    document: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return document
