"""brokergroup sla: its refusals, the verbs that need no Spark, and the objectives of groups."""

from __future__ import annotations

import json
import subprocess
import sys
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
from brokergroup_operator.cli.sla_command import _log_lines
from metric_names import GROUP_WRITABLE
from sla_reports.measures.objectives import BudgetWindow, Objective, ObjectiveError
from sla_reports.output.files import write_report
from sla_reports.series import series_text
from tests.sla import one_day

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


REPORT = ["report", "--incidents", "log.jsonl"]
BACKFILL = ["backfill", "--store", "runs"]
HTTP = ["--from", "http", "--url", "http://127.0.0.1:9"]


def _run(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["sla", *words], env={"COLUMNS": "200"})
    return result.exit_code, result.output


@pytest.mark.parametrize("verb", ["export", "report", "whatif", "explain", "backfill"])
def test_every_verb_explains_itself(verb: str) -> None:
    code, output = _run(verb, "--help")
    assert code == 0, output


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([*REPORT, "--from", "csv"], "sla report: --from: 'csv'; expected one of http, openmetrics, victoriametrics, tsdb-dump"),
        (REPORT, "--export: missing; expected a file or folder in the form query-range"),
        ([*REPORT, "--export", "a", "--url", "http://u:secret@h"], "--url: '...@h'; expected no address with --from query-range"),
        ([*REPORT, "--from", "lake", "--export", "a", "--export", "b"], "--export: 2 paths; expected one folder with --from lake"),
        ([*REPORT, *HTTP], "--period: missing; expected one with --from http"),
        ([*REPORT, "--from", "http"], "--url: missing; expected http://host:port"),
        ([*REPORT, "--from", "http", "--url", "ftp://h"], "--url: 'ftp://h'; expected http://host:port"),
        ([*REPORT, *HTTP, "--export", "a"], "--export: a; expected none with --from http"),
        ([*REPORT, "--export", "a", "--period", "2026-13"], "--period '2026-13'"),
        ([*REPORT, "--export", "a", "--time-zone", "Mars"], "--time-zone 'Mars': unknown; expected a name as Asia/Shanghai"),
        ([*REPORT, "--export", "a", "--until", "noon"], "--until 'noon'"),
        ([*REPORT, "--export", "a", "--objective", "100"], "--objective 100.0: expected a percentage above 1 and below 100"),
        ([*REPORT, "--export", "a", "--objective", "0.9995"], "--objective 0.9995: expected a percentage above 1"),
        ([*REPORT, "--export", "a", "--out", "/proc/report"], "--out /proc/report: No such file or directory; expected a folder"),
        ([*REPORT, "--export", "a", "--amendments", "none.yaml"], "amendments none.yaml: cannot be read"),
        ([*REPORT, "--from", "runs", "--export", "a"], "--period: missing; expected one with --from runs"),
        (BACKFILL, "sla backfill: --export: missing"),
        ([*BACKFILL, "--from", "runs", "--export", "a"], "sla backfill: --from runs: expected a form that has samples"),
        ([*BACKFILL, "--export", "a", "--period", "2026-10"], "--period 2026-10: expected none with --from query-range"),
        ([*BACKFILL, *HTTP], "--period: missing"),
        ([*BACKFILL, *HTTP, "--period", "2999-01"], "--period '2999-01': it has not begun; expected one whose first day has"),
        ([*BACKFILL, "--export", "a", "--catch-up-days", "3"], "--catch-up-days 3: expected none with --from query-range"),
        ([*BACKFILL, *HTTP, "--catch-up-days", "3", "--period", "2026-10"], "--catch-up-days 3: expected none with --period"),
        (["whatif", "--report", "none"], "sla whatif: none/summary.json: No such file or directory; expected a folder that"),
        (["explain", "g", "i", "--report", "none"], "sla explain: none/summary.json: No such file"),
        (["explain", "g", "i", "--report", "none", "--time-zone", "Mars"], "--time-zone 'Mars': unknown"),
    ],
)  # fmt: skip
def test_a_wrong_argument_is_told_with_its_option_its_value_and_what_was_expected(words: list[str], said: str) -> None:
    code, output = _run(*words)
    assert (code, output.count("\n")) == (1, 1), output
    assert said in output


def test_only_a_table_has_a_log_of_its_own() -> None:
    code, output = _run("report", "--export", "a")
    assert (code, "--incidents: missing; expected the operator's incident log with --from query-range" in output) == (
        2,
        True,
    )


def test_days_are_kept_also_where_no_log_is_yet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Prometheus drops samples after two weeks, so days are kept; a later run adds the log's lines."""
    assert _log_lines(tmp_path) == []
    assert "no such file" in capsys.readouterr().err


@pytest.mark.parametrize("words", [[*REPORT, "--export", "a"], [*BACKFILL, "--export", "a"]])
def test_without_java_one_line_says_how_to_get_it(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    code, output = _run(*words)
    assert (code, output.count("\n")) == (1, 1), output
    assert "java: not found" in output
    assert "apt-get install openjdk-17-jre-headless" in output


def test_the_command_line_is_light() -> None:
    """Neither `--help` nor a wrong argument loads Spark."""
    script = (
        "import sys\n"
        "from typer.testing import CliRunner\n"
        "from brokergroup_operator.cli.main import app\n"
        "result = CliRunner().invoke(app, ['sla', 'report', '--incidents', 'a', '--from', 'csv'])\n"
        "assert result.exit_code == 1, result.output\n"
        "print(sorted(name for name in ('pyspark', 'pyarrow', 'pandas') if name in sys.modules))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout == "[]\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    runs = one_day.all_runs()
    write_report(tmp_path, one_day.summary(), runs, {run.series: 15_000 for run in runs}, {"schemaVersion": 1})
    return tmp_path


def test_whatif_tells_each_setup_against_what_was(folder: Path) -> None:
    code, output = _run(
        "whatif", "--report", str(folder), "--replicas", "1", "--replicas", "5", "--silence-timeout-seconds", "2"
    )
    assert code == 0, output
    lines = output.splitlines()
    assert lines[1].startswith("observed: 3 replicas")
    assert "5 replicas, minInSync 1, 1 zone, silence timeout 2.0 s" in lines[3]
    told = json.loads(lines[-1])
    assert (told["observed"]["replicas"], [one["replicas"] for one in told["others"]]) == (3, [1, 5])
    assert told["others"][0]["downMs"] > told["observed"]["downMs"] >= told["others"][1]["downMs"]


def test_whatif_compares_no_setup_with_itself(folder: Path) -> None:
    code, output = _run("whatif", "--report", str(folder), "--replicas", "3", "--zones", "1", "--zones", "2")
    assert code == 0, output
    assert "3 replicas, minInSync 1, 2 zones: as 3 replicas, minInSync 1, 1 zone" in output
    assert "3 replicas, minInSync 1, 1 zone: as" not in output


def test_whatif_takes_durabilities_by_their_names(folder: Path) -> None:
    names = ("--durability", "Strict", "--durability", "Fast", "--observed-durability", "Available")
    code, output = _run("whatif", "--report", str(folder), "--replicas", "1", "--replicas", "3", *names)
    assert code == 0, output
    told = json.loads(output.splitlines()[-1])
    # Strict needs two: one replica alone can't have it.
    assert [(one["replicas"], one["minInSync"], one["masterAlone"]) for one in told["others"]] == [
        (1, 1, True), (3, 2, False), (3, 1, True),
    ]  # fmt: skip
    assert (told["observed"]["minInSync"], told["observed"]["masterAlone"]) == (1, False)
    assert told["others"][2]["change"]["oneCopyMs"] > 0
    for wrong in (("--durability", "Safe"), ("--durability", "Fast", "--min-in-sync", "1")):
        code, output = _run("whatif", "--report", str(folder), *wrong)
        assert code == 1
        assert "sla whatif: --durability: " in output


def test_whatif_refuses_what_no_group_can_have(folder: Path) -> None:
    code, output = _run("whatif", "--report", str(folder), "--replicas", "2", "--min-in-sync", "3")
    assert code == 1
    assert "sla whatif: --min-in-sync 3: expected 1 to replicas (2)" in output


def test_explain_tells_one_incident(folder: Path) -> None:
    code, output = _run("explain", "orders", "1", "--report", str(folder), "--time-zone", "Asia/Shanghai")
    assert code == 0, output
    assert "began   2025-11-01 10:00:00 Asia/Shanghai" in output
    assert "cause   crash" in output
    code, output = _run("explain", "orders", "9", "--report", str(folder))
    assert code == 1
    assert "sla explain: incident '9': expected one of orders/1, orders/2, orders/3" in output


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


def _listed(groups: list[dict[str, Any]]) -> dict[str, Any]:
    """Return an API server's answer to a list."""
    return {"metadata": {"resourceVersion": "1"}, "items": groups}


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
    with _api_server(tmp_path, 200, _listed(GROUPS)) as (kubeconfig, asked):
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
    with _api_server(tmp_path, 200, _listed([wrong, *GROUPS])) as (kubeconfig, _):
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
    with _api_server(tmp_path, 200, _listed(groups)) as (kubeconfig, _):
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
    with _api_server(tmp_path, 200, _listed(GROUPS)) as (kubeconfig, _):
        code, output, page = _report(tmp_path, kubeconfig, "--objectives", str(own))
    assert code == 3, output
    assert "95.0000 % over rolling 30 days" in page
    own.write_text(own.read_text().replace("'95'", "'96'"))
    with _api_server(tmp_path, 200, _listed(GROUPS)) as (kubeconfig, _):
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
