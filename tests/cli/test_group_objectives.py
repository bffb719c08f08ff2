"""`sla report --objectives-from-cluster`: the groups' own `spec.slo`, and the messages if they can't be read."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
import yaml
from typer.testing import CliRunner

from brokergroup_operator.cli import group_objectives
from brokergroup_operator.cli.group_objectives import objectives_of_cluster
from brokergroup_operator.cli.main import app
from metric_names import GROUP_WRITABLE
from sla_reports.measures.objectives import BudgetWindow, Objective, ObjectiveError
from sla_reports.series import series_text
from tests.sla import one_day

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MINUTE_MS = 60_000
FORBIDDEN = {
    "kind": "Status", "reason": "Forbidden",
    "message": 'brokergroups.brokergroup.dev is forbidden: User "system:serviceaccount:system:sla" cannot list resource',
}  # fmt: skip


def _group(name: str, **slo: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": "default"}, "spec": {"brokerClusterName": "c", "slo": slo}}


GROUPS = [
    _group("orders", availabilityPercent="95", window="30d", timeZone="UTC"),
    _group("quiet", window="30d", timeZone="UTC"),
]


@contextmanager
def _api_server(folder: Path, status: int, answer: dict[str, Any]) -> Iterator[tuple[Path, list[str]]]:
    """Yield the kubeconfig of a server with one fixed answer, and the paths of its requests."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            body = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Keep the log out of the tests' output."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield _kubeconfig(folder, server.server_port), asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _kubeconfig(folder: Path, port: int) -> Path:
    file = folder / "kubeconfig"
    document = {
        "current-context": "c", "users": [],
        "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
        "contexts": [{"name": "c", "context": {"cluster": "c"}}],
    }  # fmt: skip
    file.write_text(yaml.safe_dump(document))
    return file


def test_the_groups_own_objectives_are_read_from_the_api(tmp_path: Path) -> None:
    with _api_server(tmp_path, 200, {"items": GROUPS}) as (kubeconfig, asked):
        told = objectives_of_cluster(None, kubeconfig)
        one_namespace = objectives_of_cluster("shop", kubeconfig)
    assert told.objectives == (Objective("default/orders", "default/c/orders", 0.95, BudgetWindow(30)),)
    assert told.notes == ()
    assert one_namespace.objectives == told.objectives
    assert [path.partition("?")[0] for path in asked] == [
        "/apis/brokergroup.dev/v1beta1/brokergroups", "/apis/brokergroup.dev/v1beta1/namespaces/shop/brokergroups",
    ]  # fmt: skip


@pytest.mark.parametrize("window", ["1M", "30d"])
def test_one_group_that_says_nonsense_leaves_the_others_theirs(tmp_path: Path, window: str) -> None:
    """An older API server accepted any time zone: the monthly job must not fail for one group's mistake."""
    wrong = _group("wrong", availabilityPercent="99", window=window, timeZone="Asia/Nowhere")
    with _api_server(tmp_path, 200, {"items": [wrong, *GROUPS]}) as (kubeconfig, _):
        told = objectives_of_cluster(None, kubeconfig)
    assert [one.name for one in told.objectives] == ["default/orders"]
    [note] = told.notes
    assert (
        "BrokerGroup default/wrong: spec.slo.timeZone: time zone 'Asia/Nowhere': unknown; expected a name as Asia/Shanghai"
        in note
    )
    assert note.endswith("; the group is judged by the objective of all others")


@pytest.mark.parametrize(
    ("namespace", "place", "needed"),
    [(None, "in all namespaces", "a ClusterRole"), ("shop", "in namespace shop", "a Role in shop")],
)
def test_a_right_that_is_missing_is_named(tmp_path: Path, namespace: str | None, place: str, needed: str) -> None:
    with _api_server(tmp_path, 403, FORBIDDEN) as (kubeconfig, asked):
        told = objectives_of_cluster(namespace, kubeconfig)
    assert told.objectives == ()
    [note] = told.notes
    assert note.startswith(
        f"spec.slo of the groups was not read: the right to list brokergroups.brokergroup.dev {place}"
    )
    assert f"expected {needed}" in note
    assert "system:serviceaccount:system:sla" in note
    assert len(asked) == 1  # a retry does not help against a missing right


def test_a_cluster_that_lacks_the_kind_is_told(tmp_path: Path) -> None:
    missing = {"kind": "Status", "reason": "NotFound", "message": "the server could not find the requested resource"}
    with _api_server(tmp_path, 404, missing) as (kubeconfig, _):
        told = objectives_of_cluster(None, kubeconfig)
    assert told.objectives == ()
    assert "this cluster has no kind brokergroups.brokergroup.dev" in told.notes[0]


def test_without_a_cluster_it_goes_on_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_objectives, "PAUSES_SECONDS", (0.0,))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    nowhere = objectives_of_cluster(None, None)
    assert nowhere.objectives == ()
    assert "KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set" in nowhere.notes[0]
    # A pod without a token: `automountServiceAccountToken: false`.
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "1")
    assert "service account" in objectives_of_cluster(None, None).notes[0]
    refused = objectives_of_cluster(None, _kubeconfig(tmp_path, 1))
    assert refused.objectives == ()
    assert "127.0.0.1:1" in refused.notes[0]


def test_a_server_that_comes_back_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_objectives, "PAUSES_SECONDS", (0.0, 0.0))
    with _api_server(tmp_path, 503, {"kind": "Status", "message": "starting"}) as (kubeconfig, asked):
        told = objectives_of_cluster(None, kubeconfig)
    assert len(asked) == 3
    assert "503" in told.notes[0]


def _table(folder: Path) -> Path:
    """A day of `orders`, scraped each minute, down from 05:00 to 05:10: 99.3 %."""
    from sla_reports.reduction.daily_table import write_days
    from sla_reports.reduction.runs import Quality

    pieces = [(1.0, 0, 300), (0.0, 300, 310), (1.0, 310, 1440)]
    series = series_text(GROUP_WRITABLE, {"namespace": "default", "cluster": "c", "broker_group": "orders"})
    columns = {
        "series": [series] * 3,
        "value": [value for value, _, _ in pieces],
        "start_ms": [one_day.START_MS + start * MINUTE_MS for _, start, _ in pieces],
        "end_ms": [one_day.START_MS + (end - 1) * MINUTE_MS for _, _, end in pieces],
        "n": [end - start for _, start, end in pieces],
        "interval_ms": [MINUTE_MS] * 3,
    }
    write_days(folder / "runs", pa.table(columns), Quality(1440, 0, 0, 0, 0))
    return folder / "runs"


def _report(folder: Path, kubeconfig: Path, *words: str) -> tuple[int, str, str]:
    (folder / "log.jsonl").write_text("")
    told = CliRunner().invoke(
        app,
        ["sla", "report", "--from", "runs", "--export", str(_table(folder)), "--incidents", str(folder / "log.jsonl"),
         "--period", "2025-11-01", "--out", str(folder / "out"), "--objectives-from-cluster",
         "--kubeconfig", str(kubeconfig), *words],
    )  # fmt: skip
    return told.exit_code, told.output, (folder / "out" / "report.html").read_text()


def test_a_report_judges_each_group_by_the_objective_in_its_spec(tmp_path: Path) -> None:
    """99.9 % is for groups without an objective; this one promises 95 % of a day, and keeps it."""
    groups = [_group("orders", availabilityPercent="95", window="1w", timeZone="UTC")]
    with _api_server(tmp_path, 200, {"items": groups}) as (kubeconfig, _):
        code, output, page = _report(tmp_path, kubeconfig, "--objective", "99.9")
    assert code == 3, output  # one day of the week is known
    assert "95.0000 % over calendar week (UTC)" in page
    asked = json.loads((tmp_path / "out" / "provenance.json").read_text())["question"]
    assert asked["objectives"] == [
        {"name": "default/orders", "groups": "default/c/orders", "share": 0.95, "window": "calendar week (UTC)"}
    ]


def test_a_report_without_the_right_goes_on_with_the_default_objective(tmp_path: Path) -> None:
    with _api_server(tmp_path, 403, FORBIDDEN) as (kubeconfig, _):
        code, output, page = _report(tmp_path, kubeconfig, "--objective", "99.9")
    assert code == 2, output
    assert "sla report: spec.slo of the groups was not read: the right to list brokergroups.brokergroup.dev" in output
    assert "99.9000 % over the report's period" in " ".join(page.split()).replace("&#x27;", "'")
    # On page one too: a reader of the report does not see the job's log.
    assert "the right to list brokergroups.brokergroup.dev in all namespaces is missing" in page


def test_a_file_and_the_cluster_that_say_the_same_are_one_objective(tmp_path: Path) -> None:
    own = tmp_path / "own.yaml"
    own.write_text(yaml.safe_dump({"kind": "List", "items": [{"kind": "BrokerGroup", **one} for one in GROUPS]}))
    with _api_server(tmp_path, 200, {"items": GROUPS}) as (kubeconfig, _):
        code, output, page = _report(tmp_path, kubeconfig, "--objectives", str(own))
    assert code == 3, output
    assert "95.0000 % over rolling 30 days" in page
    own.write_text(own.read_text().replace("'95'", "'96'"))
    with _api_server(tmp_path, 200, {"items": GROUPS}) as (kubeconfig, _):
        told = CliRunner().invoke(
            app, ["sla", "report", "--from", "runs", "--export", "x", "--incidents", "x", "--period", "2025-11-01",
                  "--objectives", str(own), "--objectives-from-cluster", "--kubeconfig", str(kubeconfig)],
        )  # fmt: skip
    assert told.exit_code == 1
    assert "objectives: default/orders stands twice; expected each name once" in told.output


def test_options_of_the_cluster_without_the_cluster_are_refused(tmp_path: Path) -> None:
    told = CliRunner().invoke(
        app, ["sla", "report", "--export", "a", "--incidents", "a", "--objectives-namespace", "shop"]
    )
    assert told.exit_code == 1
    assert "--objectives-namespace shop: expected none without --objectives-from-cluster" in told.output
    # An explicit kubeconfig must work: it is not ignored like an absent cluster.
    with pytest.raises(ObjectiveError, match=r"--kubeconfig .*none: No such file or directory, expected a kubeconfig"):
        objectives_of_cluster(None, tmp_path / "none")
