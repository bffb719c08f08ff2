"""The operator's incident logs: all pods', with what was rotated away and what is still open; what is no incident is told."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from brokergroup_operator.observe.incident_file import IncidentFile
from brokergroup_operator.observe.incidents import IncidentLog, incident_to_json
from brokergroup_operator.observe.timeline import Outcome, Step
from sla_reports.readers.contract import ExportFormatError
from sla_reports.readers.incident_log import INCIDENT_SCHEMA, read_rows
from tests.observe.test_metrics import timeline

if TYPE_CHECKING:
    from pathlib import Path


def line(**changes: Any) -> str:
    return json.dumps({**incident_to_json(timeline()), **changes}) + "\n"


async def test_what_the_operator_writes_is_read_with_all_that_was_rotated_away(tmp_path: Path) -> None:
    path = tmp_path / "incidents.jsonl"
    log = IncidentLog(path, written_by="operator-0", max_bytes=1500, kept_files=3)
    log.start()
    for epoch in range(10, 16):
        log.incident_closed(timeline(epoch_after=epoch, started_at_unix_seconds=1_780_000_000.5 + epoch))
    log.master_lost(timeline(epoch_after=None, outcome=Outcome.RUNNING, steps={Step.DETECTED: 100.0}))
    await log.stop()
    found = read_rows([path])
    assert found.unreadable == ()
    assert [row["epoch"] for row in found.rows] == [10, 11, 12, 13, 14, 15, None]
    assert [row["outcome"] for row in found.rows] == ["completed"] * 6 + ["running"]
    first = found.rows[0]
    assert first["started_at_ms"] == 1_780_000_010_500
    assert (first["broker_group"], first["cluster"], first["written_by"]) == ("orders", "DefaultCluster", "operator-0")
    assert (first["detection_ms"], first["duration_ms"], first["steps_ms"]["roleChanged"]) == (3000.0, 200.0, 200.0)
    assert set(first) == {part.split()[0] for part in INCIDENT_SCHEMA.split(", ")}


def test_the_note_of_what_has_ended_is_not_read_again(tmp_path: Path) -> None:
    path = tmp_path / "incidents.jsonl"
    path.write_text(line())
    begun = timeline(epoch_after=None, outcome=Outcome.RUNNING, steps={Step.DETECTED: 100.0})
    IncidentFile(path).note_open([incident_to_json(begun)])
    assert [row["outcome"] for row in read_rows([path]).rows] == ["completed"]


def test_of_two_pods_lines_the_whole_one_wins(tmp_path: Path) -> None:
    for pod, changes in (("a", {"outcome": "interrupted", "censored": True}), ("b", {})):
        (tmp_path / pod).mkdir()
        (tmp_path / pod / "incidents.jsonl").write_text(line(**changes))
    for order in (("a", "b"), ("b", "a")):
        [row] = read_rows([tmp_path / pod for pod in order]).rows
        assert (row["outcome"], row["censored"]) == ("completed", False)


def test_version_one_is_still_read(tmp_path: Path) -> None:
    path = tmp_path / "incidents.jsonl"
    old = incident_to_json(timeline()) | {"schemaVersion": 1}
    del old["cause"]
    path.write_text(json.dumps(old) + "\n")
    [row] = read_rows([path]).rows
    assert (row["cause"], row["schema_version"]) == (None, 1)


def test_a_torn_line_is_counted_and_the_rest_is_read(tmp_path: Path) -> None:
    path = tmp_path / "incidents.jsonl"
    path.write_text('{"schemaVersion": 2, "id": "def\n' + line())
    found = read_rows([path])
    assert len(found.rows) == 1
    assert [(one.line, one.kind.value) for one in found.unreadable] == [(1, "truncated")]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"schemaVersion": 99}, "schemaVersion: 99; expected 1 to 2"),
        ({"schemaVersion": None}, "schemaVersion: None"),
        ({"id": None}, "id: missing"),
        ({"from": "one"}, "from: 'one'; expected int"),
        ({"epoch": True}, "epoch: True; expected int"),
        ({"unfenced": "no"}, "unfenced: 'no'; expected bool"),
        ({"startedAt": "yesterday"}, "startedAt: 'yesterday'; expected a time"),
        ({"startedAt": "2026-05-28T20:26:40.500"}, "has no time zone"),
        ({"brokerName": None, "name": None}, "brokerName: missing"),
        ({"stepsMilliseconds": {"detected": "soon"}}, "detected: 'soon'; expected int or float"),
    ],
)
def test_a_line_that_is_no_incident_is_an_error_with_its_line_or_counted(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    path = tmp_path / "incidents.jsonl"
    path.write_text(line() + line(**changes))
    with pytest.raises(ExportFormatError) as told:
        read_rows([path])
    assert str(told.value).startswith(f"{path}:2: ")
    assert message in str(told.value)
    found = read_rows([path], skip_broken=True)
    assert (len(found.rows), len(found.unreadable)) == (1, 1)


def test_a_log_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ExportFormatError, match="no such file"):
        read_rows([tmp_path / "incidents.jsonl"])


@pytest.mark.real("java")
@pytest.mark.timeout(600)
def test_as_frames(spark: Any, tmp_path: Path) -> None:
    path = tmp_path / "incidents.jsonl"
    path.write_text("torn\n" + line(evidence=["it is silent"]))
    found = read_rows([path])
    [row] = found.frame(spark).collect()
    assert (row["id"], row["evidence"], row["to_broker_id"]) == ("default/orders/5", ["it is silent"], 2)
    assert row["steps_ms"]["roleChanged"] == 200.0
    assert found.unreadable_frame(spark).count() == 1
