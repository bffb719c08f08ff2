"""`brokergroup sla`: its refusals and their texts, and the verbs that need no Spark."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from brokergroup_operator.cli.main import app
from brokergroup_operator.cli.sla_command import _log_lines
from sla_reports.output.files import write_report
from tests.sla import one_day

if TYPE_CHECKING:
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
