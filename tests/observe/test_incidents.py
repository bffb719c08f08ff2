"""The incident log: one whole line an incident, durable, on a new line after a torn one."""

import json
from pathlib import Path

from brokergroup_operator.observe.incidents import IncidentLog, append_line, incident_to_json
from brokergroup_operator.observe.timeline import Outcome
from tests.observe.test_metrics import timeline


def test_an_incident_says_everything_in_one_object() -> None:
    made = timeline(evidence=["it is silent", "killed"], unfenced=False)
    assert incident_to_json(made) == {
        "schemaVersion": 1,
        "id": "default/orders/5",
        "kind": "failover",
        "namespace": "default",
        "name": "orders",
        "cluster": "DefaultCluster",
        "brokerName": "orders",
        "trigger": "silence",
        "evidence": ["it is silent", "killed"],
        "from": 1,
        "to": 2,
        "epochBefore": 4,
        "epoch": 5,
        "startedAt": "2026-05-28T20:26:40.500Z",
        "detectionMilliseconds": 3000.0,
        "durationMilliseconds": 200.0,
        "unfenced": False,
        "outcome": "completed",
        "stepsMilliseconds": {"detected": 0.0, "decided": 10.0, "committed": 20.0, "roleChanged": 200.0},
    }


def test_what_nobody_knows_is_left_out() -> None:
    made = timeline(to_broker_id=None, epoch_after=None, outcome=Outcome.NO_ELIGIBLE_REPLICA)
    document = incident_to_json(made)
    assert "to" not in document
    assert "epoch" not in document
    assert document["outcome"] == "noEligibleReplica"


async def test_incidents_are_appended_in_order(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "incidents.jsonl"
    log = IncidentLog(path)
    log.start()
    log.incident_closed(timeline(epoch_after=5))
    log.incident_closed(timeline(epoch_after=6))
    await log.stop()
    again = IncidentLog(path)
    again.start()
    again.incident_closed(timeline(epoch_after=7))
    await again.stop()
    assert [json.loads(line)["epoch"] for line in path.read_text().splitlines()] == [5, 6, 7]


def test_a_torn_line_does_not_swallow_the_next(tmp_path: Path) -> None:
    path = tmp_path / "incidents.jsonl"
    path.write_bytes(b'{"schemaVersion": 1, "id": "de')
    append_line(path, b'{"whole": true}\n')
    assert path.read_bytes().splitlines()[1] == b'{"whole": true}'
