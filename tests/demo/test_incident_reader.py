import json
from pathlib import Path

from brokergroup_operator.demo.watched_group import find_incident, steps_since

INCIDENT = {
    "kind": "failover", "from": 1, "epochBefore": 4, "startedAt": "2026-11-21T00:10:00.500Z",
    "stepsMilliseconds": {"detected": 0.0, "committed": 6.5, "roleChanged": 97.5},
}  # fmt: skip


def test_only_the_failover_of_that_master_at_that_epoch_is_found(tmp_path: Path) -> None:
    log = tmp_path / "incidents.jsonl"
    assert find_incident(log, from_broker_id=1, epoch_before=4) is None
    others = [INCIDENT | {"epochBefore": 3}, INCIDENT | {"kind": "switchover"}, INCIDENT | {"from": 2}]
    log.write_text("".join(json.dumps(line) + "\n" for line in [*others, INCIDENT]) + '{"kind": "fail')
    assert find_incident(log, from_broker_id=1, epoch_before=4) == INCIDENT


def test_steps_are_counted_from_the_fault_not_from_its_detection() -> None:
    fault_at_seconds = 1795219800.0 + 0.4  # 100 ms before the incident's start
    steps = steps_since(INCIDENT | {"startedAt": "2026-11-21T00:10:00.500Z"}, fault_at_seconds)
    assert steps == {"detected": 100.0, "committed": 106.5, "role_changed": 197.5}
