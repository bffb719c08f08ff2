"""`make test-observability`: every view of a failover, compared; the last line is JSON.

One demo is played with a real Prometheus looking on. Then every query of every dashboard is asked of that Prometheus,
the seven views of a failover are compared step by step, and those of a switchover, each dashboard is drawn from its JSON, the
commands of every runbook's "Look at this" are run on the demo's cluster, and promtool judges each alert.

    python -m tests.observability.run --pictures docs/pictures    the same, and pictures of the drawn dashboards and of a report

The line is `{"queries", "empty", "panels", "panels_empty", "alerts", "alert_tests_failed", "runbook_commands",
"runbook_commands_failed", "views_that_agree"}`; the exit code is 0 only if there are 40 queries or more, nothing is empty or
failed, and seven views agree.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from brokergroup_operator.observe.dashboards import DASHBOARDS  # noqa: E402
from brokergroup_operator.observe.dashboards.model import filled  # noqa: E402
from brokergroup_operator.observe.timeline import Kind  # noqa: E402
from tests.observability import pictures  # noqa: E402
from tests.observability.drawing import Drawing, Window, draw  # noqa: E402
from tests.observability.views import (  # noqa: E402
    GROUP,
    NAMESPACE,
    QUICK_VIEWS,
    Places,
    differing,
    incident_log,
    is_told,
    report,
    switch_over,
)
from tests.real.parts.install import kubernetes_folder  # noqa: E402
from tests.real.parts.prometheus import Prometheus, start_prometheus  # noqa: E402

DEMO_SECONDS = 240.0
ALL_VIEWS = 7
# Of a line in a picture.
MOST_POINTS = 240
RULES = ROOT / "charts" / "brokergroup-operator" / "files" / "alerts.yaml"
# Of an operator in a cluster, which the demo's is not: the two nodes run these (tests/node/runbooks.py).
IN_A_CLUSTER = ("brokergroup-system", "kubectl top", "prometheus")


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def play(directory: Path) -> tuple[subprocess.Popen[str], Places]:
    """The demo, once its scripted part is over and the last failover has reached the status."""
    command = [
        sys.executable,
        "-m",
        "brokergroup_operator.cli.main",
        "demo",
        "--directory",
        str(directory),
        "--pace-seconds",
        "6",
    ]
    demo = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    assert demo.stderr is not None
    page = demo.stderr.readline().split()[-1]
    endpoints = wait_for("the demo's endpoints", lambda: _read(directory / "endpoints.json"), demo)
    return demo, Places(directory, endpoints, page)


def wait_for(what: str, look: Any, demo: subprocess.Popen[str]) -> Any:
    deadline = time.monotonic() + DEMO_SECONDS
    while not (found := look()):
        if demo.poll() is not None or time.monotonic() > deadline:
            raise SystemExit(f"{what}: not there; the demo's exit code is {demo.returncode}")
        time.sleep(0.2)
    return found


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return None


def is_played(places: Places) -> bool:
    import urllib.request

    with urllib.request.urlopen(f"{places.page}demo/state", timeout=30) as answer:
        state = json.load(answer)
    return any(not strike["whyNot"] for strike in state.get("strikes", []))


def scrapes(server: Prometheus) -> float:
    """How often the operator was scraped."""
    return sum(float(one["value"][1]) for one in server.query("count_over_time(up[1h])"))


def ask_dashboards(server: Prometheus) -> tuple[int, int]:
    """How many queries there are, and how many have no answer."""
    asked = [(one.uid, filled(expression)) for one in DASHBOARDS for expression in one.expressions()]
    empty = [(uid, expression) for uid, expression in asked if not server.query(expression)]
    for uid, expression in empty:
        say(f"empty: {uid}: {expression}")
    return len(asked), len(empty)


class Answers:
    """Prometheus' answers to a drawing."""

    def __init__(self, server: Prometheus) -> None:
        self._server = server

    def instant(self, expression: str) -> list[dict[str, Any]]:
        return self._server.query(expression)

    def over_time(self, expression: str, window: Window) -> list[dict[str, Any]]:
        asked = {"start": window.start_seconds, "end": window.end_seconds, "step": window.step_seconds}
        found: list[dict[str, Any]] = self._server.api("query_range", query=expression, **asked)["result"]
        return found


def draw_dashboards(server: Prometheus, since_seconds: float) -> dict[str, Drawing]:
    """Each dashboard, from its JSON file, over the demo."""
    now_seconds = time.time()
    window = Window(since_seconds, now_seconds, max(1.0, (now_seconds - since_seconds) / MOST_POINTS))
    files = {one.uid: ROOT / "dashboards" / one.file_name for one in DASHBOARDS}
    drawings = {uid: draw(json.loads(file.read_text("utf-8")), Answers(server), window) for uid, file in files.items()}
    for uid, drawing in drawings.items():
        for question in drawing.empty:
            say(f"not drawn: {uid}: {question}")
    return drawings


def compare(places: Places, demo: subprocess.Popen[str]) -> dict[str, list[str]]:
    """The views that do not agree with the incident log, by name: on the last failover, then on a switchover.

    The metric tells of a group's last change of master only, so the failover is looked at before the switchover begins.
    """
    told = []
    for kind in (Kind.FAILOVER, Kind.SWITCHOVER):
        if kind is Kind.SWITCHOVER:
            switch_over(places)
            wait_for("the switchover in each view", lambda: is_told(places, Kind.SWITCHOVER), demo)
        truth = incident_log(places, kind)
        told.append((truth, kind, differing(places, truth, kind, QUICK_VIEWS)))
    differ: dict[str, list[str]] = {}
    for truth, kind, found in told:
        for name, text in (found | differing(places, truth, kind, {"report": report})).items():
            differ.setdefault(name, []).append(text)
    return differ


def run_runbooks(places: Places) -> tuple[int, int]:
    """How many commands of "Look at this" were run, and how many failed."""
    from tests.node.runbooks import FOLDER, commands_of, parts_of

    pages = {path.stem: parts_of(path.read_text(encoding="utf-8"))["Look at this"] for path in FOLDER.glob("*.md")}
    commands = sorted({command for text in pages.values() for command in commands_of(text)})
    path = os.pathsep.join([str(kubernetes_folder()), str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path, "KUBECONFIG": places.endpoints["kubeconfig"]}
    run = [one for one in commands if not any(word in one for word in IN_A_CLUSTER)]
    failed = 0
    for command in run:
        here = re.sub("NAMESPACE|GROUP", lambda word: NAMESPACE if word[0] == "NAMESPACE" else GROUP, command)
        here = here.replace("BROKER-ID", "1")
        done = subprocess.run(
            ["bash", "-c", here], env=environment, capture_output=True, text=True, timeout=60, check=False
        )
        # The demo's operator holds no Lease, and `explain` says by 9 that it cannot prove that the operator is there.
        if done.returncode not in ((0, 9) if "explain" in here else (0,)):
            failed += 1
            say(f"runbook command failed ({done.returncode}): {here}: {done.stderr.strip()[-300:]}")
    return len(run), failed


def judge_alerts() -> tuple[int, int]:
    """How many alerts there are, and how many of their tests failed."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/real/test_alerts.py"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    say(done.stdout[-2000:])
    counted = {word: int(number) for number, word in re.findall(r"(\d+) (passed|failed|error|skipped)", done.stdout)}
    bad = counted.get("failed", 0) + counted.get("error", 0) + counted.get("skipped", 0)
    rules = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    return sum(len(group["rules"]) for group in rules), bad if counted.get("passed") else max(1, bad)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pictures", type=Path, help="folder for pictures of the drawn dashboards and of a report")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="brokergroup-observability-") as folder:
        demo, places = play(Path(folder) / "demo")
        server: Prometheus | None = None
        try:
            server = start_prometheus(Path(folder) / "prometheus", targets=[places.endpoints["metrics"]])
            began_seconds = time.time()
            wait_for("the end of the scripted part", lambda: is_played(places), demo)
            wait_for("the last failover in each view", lambda: is_told(places, Kind.FAILOVER), demo)
            scraped = scrapes(server)
            wait_for("two scrapes after it", lambda: scrapes(server) >= scraped + 2, demo)
            queries, empty = ask_dashboards(server)
            differ = compare(places, demo)
            drawings = draw_dashboards(server, began_seconds)
            commands, failed = run_runbooks(places)
        finally:
            if server is not None:
                server.process.stop()
            demo.send_signal(signal.SIGINT)
            demo.communicate(timeout=120)
        if options.pictures is not None:
            options.pictures.mkdir(parents=True, exist_ok=True)
            pictures.of_dashboards({uid: drawing.html for uid, drawing in drawings.items()}, options.pictures)
            pictures.of_a_report(options.pictures / "sla-report.png", Path(folder))
    for name, texts in differ.items():
        say(f"differs: {name}: {texts}")
    alerts, alert_tests_failed = judge_alerts()
    panels_empty = sum(len(drawing.empty) for drawing in drawings.values())
    agree = ALL_VIEWS - len(differ)
    line = {
        "queries": queries,
        "empty": empty,
        "panels": sum(len(drawing.marks) for drawing in drawings.values()),
        "panels_empty": panels_empty,
        "alerts": alerts,
        "alert_tests_failed": alert_tests_failed,
        "runbook_commands": commands,
        "runbook_commands_failed": failed,
        "views_that_agree": agree,
    }
    print(json.dumps(line))
    whole = queries >= 40 and commands and agree == ALL_VIEWS
    return 0 if whole and not (empty or panels_empty or failed or alert_tests_failed) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
