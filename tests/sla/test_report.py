"""The report equals the planted data exactly: in text and files, from every form, by the command line, on executors elsewhere."""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import pytest

from metric_names import GROUP_WRITABLE, REPLICA_LAG_BYTES, UNAVAILABLE_SECONDS_TOTAL
from sla_reports.class_archive import archive_options
from sla_reports.measures.periods import PeriodError, instant_of, window_of
from sla_reports.pod_entrypoint import SPARK_HOME
from sla_reports.readers import lake
from sla_reports.readers.samples import ExportFormatError
from sla_reports.readers.text import read_openmetrics
from sla_reports.report import Request, as_text, make_report, result_line
from sla_reports.series import series_text
from sla_reports.sources import Form, Origin, origin_of
from tests.real.parts.process import RealProcess, start
from tests.sla import one_day
from tests.sla.planted import exports, on_executors
from tests.sla.planted.exports import FILES
from tests.sla.planted.month import Month, Planted, plant

if TYPE_CHECKING:
    from collections.abc import Mapping

MINUTE_MS = 60_000
LABELS = {"namespace": "default", "cluster": "c", "broker_group": "orders"}


def _series(metric: str, group: str, values: list[tuple[float, float]], **labels: str) -> dict[str, Any]:
    own = {"__name__": metric, "namespace": "default", "cluster": "c", "broker_group": group, **labels}
    return {"metric": own, "values": [[1_763_700_000 + at_seconds, str(value)] for at_seconds, value in values]}


def _export(path: Path, samples: dict[str, list[tuple[float, float]]], *more: dict[str, Any]) -> Path:
    result = [_series(GROUP_WRITABLE, group, values) for group, values in samples.items()] + list(more)
    path.write_text(json.dumps({"status": "success", "data": {"resultType": "matrix", "result": result}}))
    return path


def _incident(number: int, **changes: Any) -> str:
    document = {
        "schemaVersion": 1, "id": f"default/orders/{number}", "kind": "failover", "namespace": "default", "name": "orders",
        "cluster": "c", "brokerName": "orders", "trigger": "silence", "epoch": number, "epochBefore": number - 1,
        "startedAt": f"2025-11-21T04:40:{number:02}.000Z", "detectionMilliseconds": 300.0, "durationMilliseconds": 100.0,
        "unfenced": False, "outcome": "completed", "stepsMilliseconds": {"detected": 0.0, "roleChanged": 100.0},
    }  # fmt: skip
    return json.dumps({**document, **changes})


def _partition(started_at: str, ended_at: str) -> str:
    document = {
        "schemaVersion": 3, "id": "default/orders/orders-1/NodeReachableAgain", "kind": "circumstance",
        "namespace": "default", "name": "orders", "cluster": "c", "brokerName": "orders", "brokerId": 1,
        "cause": "partition", "what": "NodeReachableAgain", "startedAt": started_at, "endedAt": ended_at,
        "pod": "orders-1",
    }  # fmt: skip
    return json.dumps(document)


@pytest.mark.real("java")
@pytest.mark.timeout(900)
def test_planted_outages_come_out_in_text_and_files(spark: Any, tmp_path: Path) -> None:
    # 04:40:00 UTC is the first sample. orders is down from 20 to 30, more exactly in the log, and once without a sample at 40.
    orders = [(float(second), 0.0 if 20 <= second < 30 else 1.0) for second in range(61)]
    # payments is scraped until 30, then not before 50: 20 s are unknown.
    payments = [(float(second), 1.0) for second in (*range(31), *range(50, 61))]
    rises = [(0.0, 100.0), (30.0, 109.5), (41.0, 109.9)]
    counter = _series(UNAVAILABLE_SECONDS_TOTAL, "orders", rises, cause="silence", instance="a")
    export = _export(tmp_path / "export.json", {"orders": orders, "payments": payments}, counter)
    log = tmp_path / "incidents.jsonl"
    long = {"detected": 0.0, "roleChanged": 100.0, "inSync": 9200.0}
    lines = [
        _incident(20, stepsMilliseconds=long),
        _incident(20, stepsMilliseconds=long),  # the same incident, written by a second operator pod
        _incident(40),
        _incident(45, outcome="cancelled"),
        '{"schemaVersion": 1, "id": "default/ord',
    ]
    log.write_text("\n".join(lines) + "\n")
    beside = tmp_path / "incidents.jsonl.circumstances"
    # The first incident began less than a minute after its end, the second more.
    beside.write_text(_partition("2025-11-21T04:39:00.000Z", "2025-11-21T04:39:30.000Z") + "\n")
    request = Request(Origin(Form.QUERY_RANGE, [export]), [log], interval_ms=1000, objective=0.99)
    report = make_report(spark, request)

    line = result_line(report)
    assert (line["verdict"], line["samples"], line["rto_p95_ms"]) == ("breached", 61 + 42 + 3, 9500.0)
    assert [(group["broker_group"], group["up_ms"], group["down_ms"]) for group in line["groups"]] == [
        ("orders", 50_101, 9_900), ("payments", 40_001, 0),
    ]  # fmt: skip
    assert [(one["trigger"], one["length_ms"]) for one in line["incidents"]] == [("silence", 9500), ("silence", 400)]
    assert [one["cause"] for one in line["incidents"]] == ["partition", "unknown"]
    assert line["unreadable_incidents"] == 1
    text = as_text(report)
    assert (
        "default/c/orders: breached, 83.5002 % (between 83.5002 % and 83.5002 %; down 9.900 s by incident_log" in text
    )
    assert "default/c/payments: undecidable" in text
    assert "left out: 1 unreadable line of" in text

    first, second = (report.write(tmp_path / name) for name in ("first", "second"))
    again = make_report(spark, request).write(tmp_path / "third")
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in again]
    files = {path.name: path for path in first}
    assert sorted(files) == [
        "groups.csv", "incidents.jsonl", "provenance.json", "report.html", "runs.parquet", "summary.json",
    ]  # fmt: skip
    document = json.loads(files["summary.json"].read_text())
    assert (document["schemaVersion"], document["verdict"]) == (2, "breached")
    assert [group["verdict"] for group in document["groups"]] == ["breached", "undecidable"]
    assert document["groups"][0]["recovery"]["dominant"] == "firstSuccess"
    incidents = [json.loads(line) for line in files["incidents.jsonl"].read_text().splitlines()]
    assert [(one["endMs"] - one["startMs"], one["seenByGauge"]) for one in incidents] == [(9500, True), (400, False)]
    rows = list(csv.DictReader(files["groups.csv"].read_text().splitlines()))
    assert [row["write.downMs"] for row in rows] == ["9900", "0"]
    provenance = json.loads(files["provenance.json"].read_text())
    assert [one["name"] for one in provenance["inputs"]] == [
        "export.json", "incidents.jsonl", "incidents.jsonl.circumstances",
    ]  # fmt: skip
    assert provenance["quality"]["unreadable_incidents"] == 1
    assert str(tmp_path) not in "".join(path.read_text() for name, path in files.items() if name != "runs.parquet")


@pytest.mark.real("java")
@pytest.mark.timeout(900)
def test_an_export_without_series_of_ours_is_named(spark: Any, tmp_path: Path) -> None:
    (tmp_path / "incidents.jsonl").write_text(_incident(1) + "\n")
    export = _export(tmp_path / "export.json", {})
    with pytest.raises(ExportFormatError, match=r"export\.json: holds no sample"):
        make_report(spark, Request(Origin(Form.QUERY_RANGE, [export]), [tmp_path / "incidents.jsonl"]))


@pytest.mark.real("java")
@pytest.mark.timeout(900)
def test_what_is_missing_at_the_end_is_unknown_unless_the_period_still_runs(spark: Any, tmp_path: Path) -> None:
    # From an hour before the day's begin until noon.
    begin = instant_of("2025-11-20T23:00:00Z") / 1000 - 1_763_700_000
    up = [(begin + 60 * minute, 1.0) for minute in range(13 * 60)]
    export = _export(tmp_path / "export.json", {"orders": up})
    (tmp_path / "incidents.jsonl").write_text("")
    day = window_of("2025-11-21", "UTC")
    request: dict[str, Any] = {
        "origin": Origin(Form.QUERY_RANGE, [export]),
        "incident_logs": [tmp_path / "incidents.jsonl"],
        "window": day,
        "interval_ms": 60_000,
    }
    [whole] = make_report(spark, Request(**request)).summary.groups
    assert (whole.verdict.value, round(whole.availability.coverage, 3)) == ("undecidable", 0.499)
    noon = instant_of("2025-11-21T12:00:00Z")
    [running] = make_report(spark, Request(**request, until_ms=noon)).summary.groups
    assert (running.verdict.value, running.availability.coverage) == ("met", 1.0)
    with pytest.raises(PeriodError, match="until: lies before the period"):
        make_report(spark, Request(**request, until_ms=day.start_ms))


def _samples() -> list[tuple[str, dict[str, str], int, float]]:
    """Return a day scraped every minute: down from 05:00 to 05:10; slaves lag by 100 and 700, at noon by 900 and 4000 bytes."""
    found = []
    for minute in range(24 * 60):
        at_ms = one_day.START_MS + minute * MINUTE_MS
        found.append((GROUP_WRITABLE, LABELS, at_ms, 0.0 if 300 <= minute < 310 else 1.0))
        lags = (0.0, 900.0, 4000.0) if minute == 720 else (0.0, 100.0, 700.0)
        # At one o'clock only the master runs.
        for broker_id, lag in list(enumerate(lags))[: 1 if minute == 60 else 3]:
            found.append((REPLICA_LAG_BYTES, {**LABELS, "broker_id": str(broker_id)}, at_ms, lag))
    return found


def _openmetrics(path: Path) -> Path:
    lines = [f"{series_text(metric, labels)} {value} {at_ms / 1000}" for metric, labels, at_ms, value in _samples()]
    path.write_text("\n".join([*lines, "# EOF\n"]))
    return path


def _query_range(path: Path) -> Path:
    series: dict[str, dict[str, Any]] = {}
    for metric, labels, at_ms, value in _samples():
        whole = {"__name__": metric, **labels}
        series.setdefault(str(whole), {"metric": whole, "values": []})["values"].append([at_ms / 1000, str(value)])
    answer = {"status": "success", "data": {"resultType": "matrix", "result": list(series.values())}}
    path.write_text(json.dumps(answer))
    return path


def _sla(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "brokergroup_operator.cli.main", "sla", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)


@pytest.mark.real("java")
@pytest.mark.timeout(900)
def test_a_report_is_the_same_from_every_form_and_tells_the_lag(spark: Any, tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").write_text("")
    told = []
    for origin in (
        Origin(Form.OPENMETRICS, [_openmetrics(tmp_path / "day.om")]),
        Origin(Form.QUERY_RANGE, [_query_range(tmp_path / "day.json")]),
    ):
        report = make_report(spark, Request(origin, [tmp_path / "log.jsonl"], window=one_day.DAY))
        [figures] = report.summary.groups
        assert figures.exposure.most_behind_bytes == 900
        assert figures.availability.down_ms == 10 * MINUTE_MS
        assert report.reduced.quality.samples == 24 * 60
        told.append(report.summary)
    assert told[0] == told[1]


@pytest.mark.real("java")
@pytest.mark.timeout(900)
def test_days_are_kept_as_runs_and_reported_on(tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").write_text("")
    export, store = _openmetrics(tmp_path / "day.om"), tmp_path / "runs"
    # One series of another application, with two samples.
    foreign = "".join(f'up{{job="x"}} 1 {one_day.START_MS // 1000 + second}\n' for second in (0, 60))
    export.write_text(foreign + export.read_text())
    kept = _sla("backfill", "--from", "openmetrics", "--export", str(export), "--store", str(store))
    assert kept.returncode == 0, kept.stderr
    assert json.loads(kept.stdout.splitlines()[-1]) == {
        "days": ["2025-11-01"], "replaced": [], "logged": [], "samples": 24 * 60, "foreign_series": 1, "late": 0, "missing": 0,
    }  # fmt: skip
    told = _sla(
        "report", "--from", "runs", "--export", str(store), "--incidents", str(tmp_path / "log.jsonl"),
        "--period", "2025-11-01", "--objective", "99.9", "--out", str(tmp_path / "{period}"),
    )  # fmt: skip
    assert told.returncode == 2, told.stderr
    result = json.loads(told.stdout.splitlines()[-1])
    assert [one["down_ms"] for one in result["groups"]] == [10 * MINUTE_MS]
    assert "<svg" in (tmp_path / "2025-11-01" / "report.html").read_text()
    explained = _sla("explain", "orders", result["incidents"][0]["group"], "--report", str(tmp_path / "2025-11-01"))
    assert explained.returncode == 1
    assert "default/c/orders@1761973200000" in explained.stderr


ROOT = Path(__file__).resolve().parents[2]
PERIOD = "2025-11-01"
MONTH = Month(groups=2, start_ms=one_day.DAY.start_ms, end_ms=one_day.DAY.end_ms, step_ms=60_000, incidents_per_group=3)


def _write_forms(planted: Planted, folder: Path) -> None:
    exports.write_openmetrics(planted, folder / FILES[Form.OPENMETRICS])
    exports.write_victoriametrics(planted, folder / FILES[Form.VICTORIAMETRICS])
    exports.write_incident_log(planted, folder / "incidents.jsonl")
    exports.backfill(folder / FILES[Form.OPENMETRICS], folder / "prometheus" / "data")
    exports.dump(folder / "prometheus" / "data", folder / FILES[Form.TSDB_DUMP])


def _reported(folder: Path, form: Form) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    report = folder / "reports" / form.value
    incidents = [json.loads(line) for line in (report / "incidents.jsonl").read_text().splitlines()]
    return json.loads((report / "summary.json").read_text()), incidents


@pytest.mark.real("java", "prometheus")
@pytest.mark.timeout(1500)
def test_every_form_by_the_command_line_is_one_report(tmp_path: Path) -> None:
    planted = plant(MONTH)
    _write_forms(planted, tmp_path)
    server = exports.serve(tmp_path / "prometheus")
    try:
        exports.write_answers(server, planted, tmp_path / FILES[Form.QUERY_RANGE])
        command = [sys.executable, "-m", "tests.sla.planted.exports", str(tmp_path), server.url, PERIOD]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=1400, cwd=ROOT)
    finally:
        server.process.stop()
    assert done.returncode == 0, done.stderr[-4000:]
    told = json.loads(done.stdout.splitlines()[-1])
    assert told.keys() == set(Form) - {Form.RUNS}, "runs are what `backfill` keeps, see test_report.py"
    lines = {form: json.loads(line) for form, line in told.items()}
    # The export has only the operator's series. A lake counts no other series.
    foreign = {form: line.pop("foreign_series") for form, line in lines.items()}
    assert foreign == dict.fromkeys(foreign, 0) | {Form.LAKE: None}
    assert all(line == lines[Form.HTTP] for line in lines.values())
    summary, incidents = _reported(tmp_path, Form.HTTP)
    assert sorted((one["brokerGroup"], one["startMs"], one["endMs"]) for one in incidents) == sorted(
        (one.group, one.fault_ms, one.in_sync_ms) for one in planted.incidents
    )
    for form in FILES:
        assert _reported(tmp_path, form) == (summary, incidents), form


@pytest.mark.parametrize("form", [Form.OPENMETRICS, Form.LAKE])
def test_a_task_elsewhere_is_told_whole_paths(form: Form, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An executor has its own working folder."""
    monkeypatch.chdir(tmp_path)
    assert origin_of(form, [Path("day")], None).paths == (tmp_path / "day",)


@pytest.mark.parametrize(
    ("url", "shown"),
    [("http://user:secret@[fd00::9]:9090/select", "http://[fd00::9]:9090/select"), ("https://[::1]/", "https://[::1]"),
     ("http://user:secret@prometheus:9090", "http://prometheus:9090"), ("http://prometheus", "http://prometheus")],
)  # fmt: skip
def test_a_server_is_shown_with_the_brackets_of_its_address_and_without_a_password(url: str, shown: str) -> None:
    assert Origin(Form.HTTP, url=url).shown_url == shown


# For JVMs that live a minute: the full compiler would only cost time.
SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
WORKERS = 2
_STARTED_WITHIN_S = 180.0
_ADDRESS = re.compile(r"Starting Spark master at (spark://\S+)")
_PASSED_ON = ("PATH", "HOME", "JAVA_HOME", "TMPDIR")


def process_environment(**more: str) -> dict[str, str]:
    """Return the environment of every process of a cluster and its driver; executors inherit it from their worker."""
    kept = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    # Each JVM would also print `JAVA_TOOL_OPTIONS`.
    return {**kept, "PYTHONPATH": str(ROOT), "SPARK_LOCAL_IP": "127.0.0.1", **more}


@dataclass
class StandaloneCluster:
    """A cluster for a `with` block: its address is known, and all workers have registered."""

    folder: Path
    url: str = ""
    processes: dict[str, RealProcess] = field(default_factory=dict)

    def __enter__(self) -> Self:
        try:
            self._start("master", "org.apache.spark.deploy.master.Master", "--port", "0")
            self.url = self._said(_ADDRESS, 1)[0]
            for number in range(WORKERS):
                work = ["--cores", "1", "--memory", "1g", "--work-dir", str(self.folder / f"work-{number}")]
                self._start(f"worker-{number}", "org.apache.spark.deploy.worker.Worker", *work, self.url)
            self._said(re.compile("Registering worker"), WORKERS)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        # Workers end their executors on SIGTERM.
        for process in reversed(self.processes.values()):
            process.stop(30)

    def settings(self) -> Mapping[str, str]:
        """Return an application's settings: one executor on each worker, and no task before both run."""
        options = " ".join(filter(None, (SHORT_LIVED, archive_options())))
        return {
            "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.extraJavaOptions": options, "spark.executor.extraJavaOptions": options,
            "spark.executor.memory": "640m", "spark.executor.cores": "1",
            "spark.scheduler.minRegisteredResourcesRatio": "1.0",
            "spark.scheduler.maxRegisteredResourcesWaitingTime": "180s",
            "spark.ui.port": "0",
        }  # fmt: skip

    def _start(self, name: str, program: str, *words: str) -> None:
        command = [str(SPARK_HOME / "bin" / "spark-class"), program, "--host", "127.0.0.1", "--webui-port", "0", *words]
        environment = process_environment(SPARK_DAEMON_MEMORY="256m", SPARK_DAEMON_JAVA_OPTS=SHORT_LIVED)
        self.processes[name] = start(name, command, log=self.folder / f"{name}.log", env=environment)

    def _said(self, wanted: re.Pattern[str], times: int) -> list[str]:
        """Return the matches in the master's log once there are this many."""
        master = self.processes["master"]

        def found() -> list[str]:
            return wanted.findall(master.log.read_text(errors="replace"))

        master.wait_until(
            lambda: len(found()) >= times, what=f"{wanted.pattern}, {times} times", deadline_seconds=_STARTED_WITHIN_S
        )
        return found()


DAY = Month(groups=1, start_ms=one_day.DAY.start_ms, end_ms=one_day.DAY.end_ms, step_ms=60_000, incidents_per_group=3)
BREACHED = 2
# The removed lines name the files that were read.
SAME = ("summary.json", "groups.csv", "incidents.jsonl", "runs.parquet")


@pytest.mark.real("java", "prometheus")
@pytest.mark.timeout(900)
def test_executors_elsewhere_make_the_report_of_a_laptop(spark: Any, tmp_path: Path) -> None:
    planted = plant(DAY)
    day = exports.write_openmetrics(planted, tmp_path / FILES[Form.OPENMETRICS])
    log = exports.write_incident_log(planted, tmp_path / "incidents.jsonl")
    lake.write(spark, read_openmetrics(spark, [day]).frame, tmp_path / FILES[Form.LAKE])
    request = Request(
        origin_of(Form.OPENMETRICS, [day], None), [log], one_day.DAY, on_executors.OBJECTIVE_PERCENT / 100
    )
    laptop = make_report(spark, request)
    laptop.write(tmp_path / "laptop")
    exports.backfill(day, tmp_path / "prometheus" / "data")
    server = exports.serve(tmp_path / "prometheus")
    try:
        with StandaloneCluster(tmp_path / "cluster") as cluster:
            submitted = _submit(cluster, tmp_path, on_executors.__file__, server.url, PERIOD)
            words = ["backfill", "--from", "openmetrics", "--export", FILES[Form.OPENMETRICS], "--store", "runs"]
            kept = _submit(
                cluster, tmp_path, "{application}", *words, "--incidents", "incidents.jsonl", "--no-progress"
            )
    finally:
        server.process.stop()
    assert submitted.returncode == BREACHED, _without_info(submitted.stderr)
    told = [json.loads(line) for line in submitted.stdout.splitlines() if line.startswith("{")]
    assert told[0]["master"] == cluster.url
    folders = {Path(one).relative_to(tmp_path / "cluster").parts[0] for one in told[0]["folders"]}
    assert folders == {f"work-{number}" for number in range(WORKERS)}
    # spark-submit's or Spark's own settings: none of a session on a single machine.
    assert (told[0]["page"].startswith("http://127.0.0.1"), told[0]["partitions"], told[0]["tasks"]) == (
        True,
        "200",
        WORKERS,
    )
    assert told[-1]["verdict"] == "breached"
    for form in on_executors.FORMS:
        for name in SAME:
            ours, theirs = tmp_path / "laptop" / name, tmp_path / "executors" / form.value / name
            assert ours.read_bytes() == theirs.read_bytes(), (form, name)
    assert kept.returncode == 0, _without_info(kept.stderr)
    assert PERIOD in json.loads(kept.stdout.splitlines()[-1])["days"]
    table = Origin(Form.RUNS, table=str(tmp_path / "runs"))
    from_table = make_report(None, replace(request, origin=table, incident_logs=())).summary
    assert [one.availability for one in from_table.groups] == [one.availability for one in laptop.summary.groups]
    assert from_table.incidents == laptop.summary.incidents


def _submit(cluster: StandaloneCluster, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Submit as the image does."""
    command = [sys.executable, "-m", "sla_reports.pod_entrypoint", "submit", f"--master={cluster.url}"]
    command += [word for name, value in cluster.settings().items() for word in ("--conf", f"{name}={value}")]
    return subprocess.run(
        [*command, *words], env=process_environment(), cwd=folder, capture_output=True, text=True, check=False, timeout=400
    )  # fmt: skip


def _without_info(text: str) -> str:
    """Remove Spark's output from before its session's log level is set: it has no errors."""
    return "\n".join(line for line in text.splitlines() if " INFO " not in line)[-4000:]
