"""The operator's incident logs of all pods, with rotated files and open incidents; lines that are no incident are reported."""

from __future__ import annotations

import datetime as dt
import json
from typing import TYPE_CHECKING, Any

import pytest

from brokergroup_operator.observe.incidents import (
    Circumstance,
    IncidentFile,
    IncidentLog,
    circumstance_to_json,
    circumstances_beside,
    incident_to_json,
)
from brokergroup_operator.observe.timeline import Outcome, Step
from sla_reports.readers.samples import ExportFormatError
from sla_reports.states.entities import GroupKey
from sla_reports.states.logged import Circumstance as LoggedCircumstance
from sla_reports.states.logged import read_logs
from tests.observe.test_metrics import KEY, timeline

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
    found = read_logs([path])
    assert found.unreadable == ()
    assert [one.id.rpartition("/")[2] for one in found.incidents[1:]] == ["10", "11", "12", "13", "14", "15"]
    assert [one.outcome for one in found.incidents] == ["running"] + ["completed"] * 6
    first = found.incidents[1]
    assert first.started_at_ms == 1_780_000_010_500
    assert (first.id, first.group) == ("default/orders/10", GroupKey("default", "DefaultCluster", "orders"))
    assert (first.detection_ms, first.end_ms, first.steps_ms["roleChanged"]) == (3000.0, 1_780_000_010_700, 200.0)
    assert first.evidence == ()


def test_the_note_of_what_has_ended_is_not_read_again(tmp_path: Path) -> None:
    path = tmp_path / "incidents.jsonl"
    path.write_text(line())
    begun = timeline(epoch_after=None, outcome=Outcome.RUNNING, steps={Step.DETECTED: 100.0})
    IncidentFile(path).note_open([incident_to_json(begun)])
    assert [one.outcome for one in read_logs([path]).incidents] == ["completed"]


@pytest.mark.parametrize(
    ("worse", "better"),
    [
        ({"outcome": "interrupted", "censored": True}, {}),
        # Seen on two nodes: the end of a switchover of 0.9 s could not be written, and the pod that took over logged 5.7 s.
        ({"durationMilliseconds": 5695.3}, {"durationMilliseconds": 938.4}),
    ],
    ids=["not whole", "told later"],
)
def test_of_two_pods_lines_the_whole_one_wins_and_of_two_whole_ones_the_first_told(
    tmp_path: Path, worse: dict[str, Any], better: dict[str, Any]
) -> None:
    for pod, changes in (("worse", worse), ("better", better)):
        (tmp_path / pod).mkdir()
        (tmp_path / pod / "incidents.jsonl").write_text(line(**changes, trigger=pod))
    for order in (("worse", "better"), ("better", "worse")):
        [one] = read_logs([tmp_path / pod for pod in order]).incidents
        assert (one.trigger, one.outcome) == ("better", "completed")


def test_older_versions_are_still_read_and_a_newer_cause_is_unknown(tmp_path: Path) -> None:
    path = tmp_path / "incidents.jsonl"
    for version, cause, known in ((1, None, "unknown"), (2, "crash", "crash"), (3, "of a newer operator", "unknown")):
        old = incident_to_json(timeline()) | {"schemaVersion": version, "cause": cause}
        path.write_text(json.dumps(old) + "\n")
        [one] = read_logs([path]).incidents
        assert one.cause == known


def _noted(minutes: int) -> str:
    began = dt.datetime(2026, 11, 21, 0, 10, tzinfo=dt.UTC)
    told = Circumstance(
        group=KEY, cluster_name="DefaultCluster", broker_name="orders", broker_id=1, cause="disk", what="DiskPressure",
        started_at=began, ended_at=began + dt.timedelta(minutes=minutes), pod="orders-1", node="node-1", message="full",
    )  # fmt: skip
    return json.dumps(circumstance_to_json(told)) + "\n"


def test_circumstances_are_read_from_beside_the_log_and_from_within_it(tmp_path: Path) -> None:
    path = tmp_path / "incidents.jsonl"
    beside = circumstances_beside(path)
    path.write_text(line())
    beside.with_name(f"{beside.name}.1").write_text(_noted(0))
    beside.write_text(_noted(10) + _noted(5))
    shipped = tmp_path / "shipped" / "all.jsonl"
    shipped.parent.mkdir()
    shipped.write_text(_noted(5) + line() + _noted(10))
    for told in ([path], [tmp_path], [shipped], [path, shipped]):
        found = read_logs(told)
        assert len(found.incidents) == 1
        [one] = found.circumstances
        assert one == LoggedCircumstance(
            "disk", 1_795_219_800_000, 1_795_220_400_000, GroupKey("default", "DefaultCluster", "orders"),
            broker_id=1, note="DiskPressure: full",
        )  # fmt: skip


def test_a_circumstance_of_a_newer_operator_proves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "incidents.jsonl"
    path.write_text(_noted(0).replace('"cause": "disk"', '"cause": "meteor"'))
    [one] = read_logs([path]).circumstances
    assert (one.cause, one.note) == ("unknown", "DiskPressure: full")


def test_a_torn_line_is_counted_and_the_rest_is_read(tmp_path: Path) -> None:
    path = tmp_path / "incidents.jsonl"
    path.write_text('{"schemaVersion": 2, "id": "def\n' + line())
    found = read_logs([path])
    assert len(found.incidents) == 1
    assert [(one.line, one.kind.value) for one in found.unreadable] == [(1, "truncated")]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (line(schemaVersion=99), "Expected `int` <= 3 - at `$.schemaVersion`"),
        (line(schemaVersion=None), "Expected `int`, got `null` - at `$.schemaVersion`"),
        (line(id=None), "Expected `str`, got `null` - at `$.id`"),
        (line().replace('"id"', '"name"', 1), "missing required field `id`"),
        (line(**{"from": "one"}), "got `str` - at `$.from`"),
        (line(epoch=True), "got `bool` - at `$.epoch`"),
        (line(unfenced="no"), "got `str` - at `$.unfenced`"),
        (line(startedAt="yesterday"), "Invalid RFC3339 encoded datetime - at `$.startedAt`"),
        (line(startedAt="2026-05-28T20:26:40.500"), "with a timezone component - at `$.startedAt`"),
        (line(brokerName=None, name=None), "brokerName: missing"),
        (line(stepsMilliseconds={"detected": "soon"}), "Expected `float`, got `str` - at `$.stepsMilliseconds[...]`"),
        (line(detectionMilliseconds=-1000.0), "Expected `float` >= 0.0 - at `$.detectionMilliseconds`"),
        (
            line(detectionMilliseconds=40 * 86_400_000.0),
            "Expected `float` <= 604800000.0 - at `$.detectionMilliseconds`",
        ),
        (line(durationMilliseconds=-1), "Expected `float` >= 0.0 - at `$.durationMilliseconds`"),
        (line(truncatedBytes=-5), "Expected `int` >= 0 - at `$.truncatedBytes`"),
        (
            line(stepsMilliseconds={"detected": 0.0, "inSync": -1}),
            "Expected `float` >= 0.0 - at `$.stepsMilliseconds[...]`",
        ),
        (_noted(0).replace('"endedAt"', '"gone"'), "missing required field `endedAt`"),
        (_noted(0).replace('"cause"', '"gone"'), "missing required field `cause`"),
        (_noted(0).replace('"brokerId": 1', '"brokerId": "1"'), "got `str` - at `$.brokerId`"),
    ],
)
def test_a_line_that_is_no_incident_or_tells_what_nothing_can_take_is_an_error_with_its_line(
    tmp_path: Path, text: str, message: str
) -> None:
    path = tmp_path / "incidents.jsonl"
    path.write_text(line() + text)
    with pytest.raises(ExportFormatError) as told:
        read_logs([path])
    assert str(told.value).startswith(f"{path}:2: ")
    assert message in str(told.value)


def test_a_log_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ExportFormatError, match="no such file"):
        read_logs([tmp_path / "incidents.jsonl"])
