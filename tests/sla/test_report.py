"""The report says exactly what was planted: in samples with an outage and a gap, and in a log with a torn line."""

import json
from pathlib import Path
from typing import Any

import pytest

from controller_core.metric_names import GROUP_WRITABLE, UNAVAILABLE_SECONDS_TOTAL

pytestmark = pytest.mark.real("java")


def _series(metric: str, group: str, values: list[tuple[float, float]], **labels: str) -> dict[str, Any]:
    return {
        "metric": {"__name__": metric, "namespace": "default", "broker_group": group, **labels},
        "values": [[at_seconds, str(value)] for at_seconds, value in values],
    }


def _export(path: Path, samples: dict[str, list[tuple[float, float]]], *more: dict[str, Any]) -> Path:
    result = [_series(GROUP_WRITABLE, group, values) for group, values in samples.items()] + list(more)
    path.write_text(json.dumps({"status": "success", "data": {"resultType": "matrix", "result": result}}))
    return path


def _incident(number: int, **changes: Any) -> str:
    document = {
        "schemaVersion": 1, "id": f"default/orders/{number}", "kind": "failover", "namespace": "default", "name": "orders",
        "trigger": "silence", "epoch": number, "startedAt": f"2026-11-21T00:10:0{number}.000Z",
        "detectionMilliseconds": 3000.0, "durationMilliseconds": 100.0, "unfenced": False, "outcome": "completed",
        "stepsMilliseconds": {"detected": 0.0, "roleChanged": 100.0},
    }  # fmt: skip
    return json.dumps({**document, **changes})


def test_the_planted_outage_gap_and_incidents_come_out_exactly(spark: Any, tmp_path: Path) -> None:
    from sla_reports.report import as_text, make_report

    orders = [(float(second), 0.0 if 20 <= second < 30 else 1.0) for second in range(61)]
    # payments is scraped until 30, then not before 50: 20 s nobody knows about.
    payments = [(float(second), 1.0) for second in (*range(31), *range(50, 61))]
    export = _export(tmp_path / "export.json", {"orders": orders, "payments": payments})
    log = tmp_path / "incidents.jsonl"
    lines = [
        _incident(1),
        _incident(1),  # the same incident, written by a second operator pod
        _incident(2, durationMilliseconds=300.0, unfenced=True),
        _incident(3, kind="switchover"),
        _incident(4, outcome="noEligibleReplica", durationMilliseconds=None),
        '{"schemaVersion": 1, "id": "default/ord',
        _incident(5, schemaVersion=99),
    ]
    log.write_text("\n".join(lines) + "\n")

    report = make_report(spark, exports=[export], incident_logs=[log], max_gap_seconds=5.0)

    by_group = {group["broker_group"]: group for group in report.groups}
    assert by_group["orders"]["up_seconds"] == pytest.approx(50.0)
    assert by_group["orders"]["down_seconds"] == pytest.approx(10.0)
    assert by_group["orders"]["availability"] == pytest.approx(50 / 60)
    assert by_group["payments"]["unknown_seconds"] == pytest.approx(20.0)
    assert by_group["payments"]["availability"] == pytest.approx(1.0)
    assert by_group["payments"]["at_least"] == pytest.approx(40 / 60)
    [recovered] = report.recoveries
    assert (recovered["incidents"], recovered["completed"], recovered["unfenced"]) == (3, 2, 1)
    assert recovered["rto_p50_ms"] == pytest.approx(3200.0)
    assert recovered["rto_max_ms"] == pytest.approx(3300.0)
    assert report.unreadable_incidents == 2
    assert "default/orders: 83.333 %" in as_text(report)


def test_what_no_scrape_saw_is_counted_by_the_counter(spark: Any, tmp_path: Path) -> None:
    from sla_reports.report import make_report

    always_up = [(float(second), 1.0) for second in range(61)]
    # One outage of 3.5 s before a restart of the operator, one of 2 s after it; an old total of 100 s from before the export.
    rises = [(10.0, 3.5), (20.0, 3.5), (30.0, 2.0), (60.0, 2.0)]
    export = _export(
        tmp_path / "export.json",
        {"orders": always_up},
        _series(UNAVAILABLE_SECONDS_TOTAL, "orders", rises, cause="silence", instance="a"),
        _series(UNAVAILABLE_SECONDS_TOTAL, "orders", [(0.0, 100.0), (60.0, 100.0)], cause="silence", instance="b"),
    )
    log = tmp_path / "incidents.jsonl"
    log.write_text(_incident(1) + "\n")
    report = make_report(spark, exports=[export], incident_logs=[log], max_gap_seconds=5.0)
    [group] = report.groups
    assert group["down_seconds"] == pytest.approx(5.5)
    assert group["up_seconds"] == pytest.approx(54.5)
    assert group["availability"] == pytest.approx(54.5 / 60)


def test_a_file_that_is_no_export_is_named(spark: Any, tmp_path: Path) -> None:
    from sla_reports.report import make_report
    from sla_reports.samples import ExportFormatError

    export = tmp_path / "export.json"
    export.write_text('{"status": "success", "data": {"resultType": "vector", "result": []}}')
    with pytest.raises(ExportFormatError, match=r"export\.json: data\.resultType is 'vector'; expected 'matrix'"):
        make_report(spark, exports=[export], incident_logs=[], max_gap_seconds=5.0)
