"""The incident log: one durable line for each incident, on a new line after a torn one; none is lost when the operator dies."""

import asyncio
import datetime as dt
import json
from pathlib import Path

import pytest

from brokergroup_operator.observe import incidents
from brokergroup_operator.observe.incidents import (
    Circumstance,
    IncidentFile,
    IncidentLog,
    append_line,
    circumstances_beside,
    incident_to_json,
)
from brokergroup_operator.observe.timeline import Cause, FailoverTimeline, Kind, Outcome, Step, Trigger
from tests.observe.test_metrics import KEY, timeline


def test_an_incident_says_everything_in_one_object() -> None:
    made = timeline(evidence=["it is silent", "killed"], unfenced=False)
    assert incident_to_json(made) == {
        "schemaVersion": 3,
        "id": "default/orders/5",
        "kind": "failover",
        "namespace": "default",
        "name": "orders",
        "cluster": "DefaultCluster",
        "brokerName": "orders",
        "trigger": "silence",
        "cause": "unknown",
        "evidence": ["it is silent", "killed"],
        "from": 1,
        "to": 2,
        "epochBefore": 4,
        "epoch": 5,
        "startedAt": "2026-05-28T20:26:40.500Z",
        "detectionMilliseconds": 3000.0,
        "durationMilliseconds": 200.0,
        "unfenced": False,
        "unclean": False,
        "outcome": "completed",
        "stepsMilliseconds": {"detected": 0.0, "decided": 10.0, "committed": 20.0, "roleChanged": 200.0},
    }


def test_what_the_lost_master_was_is_told() -> None:
    assert incident_to_json(timeline(facts={"node": "n1", "zone": "a"}))["facts"] == {"node": "n1", "zone": "a"}


def test_what_nobody_knows_is_left_out() -> None:
    made = timeline(to_broker_id=None, epoch_after=None, outcome=Outcome.NO_ELIGIBLE_REPLICA)
    document = incident_to_json(made)
    assert "to" not in document
    assert "facts" not in document
    assert "epoch" not in document
    assert document["outcome"] == "noEligibleReplica"
    # Epoch 4 may have any number of these, and is the id of the incident that led to it.
    assert document["id"] == "default/orders/4@2026-05-28T20:26:40.500Z"


CUT_OFF = ["it is silent", "nothing answers at its address", "pod orders-1 ran until it was deleted"]


@pytest.mark.parametrize(
    ("cause", "changes"),
    [
        ("crash", {"trigger": Trigger.CONNECTION_REFUSED}),
        ("crash", {"trigger": Trigger.CONTAINER_TERMINATED}),
        ("oom", {"trigger": Trigger.CONTAINER_TERMINATED, "evidence": ["container terminated: OOMKilled (137)"]}),
        ("plannedSwitchover", {"kind": Kind.SWITCHOVER, "trigger": Trigger.REQUESTED}),
        ("drain", {"kind": Kind.SWITCHOVER, "trigger": Trigger.REQUESTED, "planned_cause": Cause.DRAIN}),
        ("unknown", {"trigger": Trigger.SILENCE}),
        # A frozen process is killed by its deletion too, and a dead one answers nothing: only both prove that it was cut off.
        ("unknown", {"trigger": Trigger.SILENCE, "evidence": ["pod orders-1 ran until it was deleted"]}),
        ("unknown", {"trigger": Trigger.SILENCE, "evidence": ["nothing answers at its address"]}),
        ("partition", {"trigger": Trigger.SILENCE, "evidence": CUT_OFF}),
        ("crash", {"trigger": Trigger.CONNECTION_REFUSED, "evidence": CUT_OFF}),
        ("unknown", {"trigger": Trigger.MASTERLESS}),
    ],
)
def test_the_cause_is_what_the_operator_itself_knows(cause: str, changes: dict[str, object]) -> None:
    assert timeline(**changes).cause == cause


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


def lines_of(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def files_in(folder: Path) -> list[Path]:
    return sorted(folder.iterdir())


async def written(path: Path, *calls: tuple[str, FailoverTimeline]) -> None:
    """Return a log after these calls and its end."""
    log = IncidentLog(path, written_by="operator-0")
    log.start()
    for method, told in calls:
        getattr(log, method)(told)
    await log.stop()


def begun(**changes: object) -> FailoverTimeline:
    return timeline(
        to_broker_id=None, epoch_after=None, outcome=Outcome.RUNNING, steps={Step.DETECTED: 100.0}, **changes
    )


async def test_an_operator_that_dies_in_a_failover_leaves_it_to_the_next_one(tmp_path: Path) -> None:
    path = tmp_path / "incidents.jsonl"
    await written(path, ("master_lost", begun()))
    assert not path.exists()
    await written(path)
    [line] = lines_of(path)
    assert (line["outcome"], line["censored"], line["writtenBy"]) == ("interrupted", True, "operator-0")
    assert line["id"] == "default/orders/4@2026-05-28T20:26:40.500Z"
    assert line["detectionMilliseconds"] == 3000.0
    assert "durationMilliseconds" not in line
    await written(path)
    assert len(lines_of(path)) == 1, "the next start writes it again"


async def test_one_that_dies_after_the_commit_leaves_the_epoch_by_which_others_know_it(tmp_path: Path) -> None:
    path = tmp_path / "incidents.jsonl"
    committed = timeline(outcome=Outcome.RUNNING, steps={Step.DETECTED: 100.0, Step.COMMITTED: 100.02})
    await written(path, ("master_lost", begun()), ("master_committed", committed))
    await written(path)
    [line] = lines_of(path)
    assert (line["id"], line["outcome"], line["epoch"], line["to"]) == ("default/orders/5", "interrupted", 5, 2)


async def test_what_has_ended_is_not_written_twice(tmp_path: Path) -> None:
    path = tmp_path / "incidents.jsonl"
    await written(path, ("master_lost", begun()), ("incident_closed", timeline()))
    assert not (tmp_path / "incidents.jsonl.open").exists()
    # It died between the line and the note.
    IncidentFile(path).note_open([incident_to_json(begun())])
    await written(path)
    assert [line["outcome"] for line in lines_of(path)] == ["completed"]


async def test_the_log_is_bounded_and_the_oldest_lines_go(tmp_path: Path) -> None:
    path = tmp_path / "incidents.jsonl"
    log = IncidentLog(path, max_bytes=1500, kept_files=2)
    log.start()
    for epoch in range(1, 21):
        log.incident_closed(timeline(epoch_after=epoch))
    await log.stop()
    files = [tmp_path / f"incidents.jsonl{end}" for end in (".2", ".1", "")]
    assert files_in(tmp_path) == sorted(files)
    kept = [line["epoch"] for file in files for line in lines_of(file)]
    assert kept == list(range(21 - len(kept), 21))
    assert all(file.stat().st_size <= 1500 for file in files)


async def test_a_full_disk_delays_a_line_and_loses_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(incidents, "RETRY_SECONDS", 0.001)
    failures = [OSError(28, "No space left on device")] * 3
    append = IncidentFile.append

    def failing(self: IncidentFile, document: dict[str, object]) -> None:
        if failures:
            raise failures.pop()
        append(self, document)

    monkeypatch.setattr(IncidentFile, "append", failing)
    path = tmp_path / "incidents.jsonl"
    log = IncidentLog(path)
    log.start()
    log.incident_closed(timeline())
    async with asyncio.timeout(30):
        while not path.exists():  # noqa: ASYNC110 - a file has no event
            await asyncio.sleep(0.001)
    await log.stop()
    assert [line["epoch"] for line in lines_of(path)] == [5]


def going_on(minutes: int = 0, pod: str = "orders-1") -> Circumstance:
    began = dt.datetime(2026, 11, 21, 0, 10, tzinfo=dt.UTC)
    return Circumstance(
        group=KEY,
        cluster_name="DefaultCluster",
        broker_name="orders",
        broker_id=1,
        cause="disk",
        what="DiskPressure",
        started_at=began,
        ended_at=began + dt.timedelta(minutes=minutes),
        pod=pod,
        node="node-1",
    )


async def test_a_circumstance_is_on_the_disk_when_its_noting_returns_and_leaves_the_incidents_alone(
    tmp_path: Path,
) -> None:
    path = tmp_path / "incidents.jsonl"
    log = IncidentLog(path, written_by="operator-0")
    log.start()
    await log.note([going_on()])
    assert lines_of(circumstances_beside(path)) == [
        {
            "schemaVersion": 3, "id": "default/orders/orders-1/DiskPressure@2026-11-21T00:10:00.000Z",
            "kind": "circumstance", "namespace": "default", "name": "orders", "cluster": "DefaultCluster",
            "brokerName": "orders", "brokerId": 1, "cause": "disk", "what": "DiskPressure",
            "startedAt": "2026-11-21T00:10:00.000Z", "endedAt": "2026-11-21T00:10:00.000Z", "pod": "orders-1",
            "node": "node-1", "writtenBy": "operator-0",
        }
    ]  # fmt: skip
    assert not path.exists()
    log.incident_closed(timeline())
    await log.stop()
    assert [line["outcome"] for line in lines_of(path)] == ["completed"]


async def test_what_goes_on_is_noted_again_only_after_a_while(tmp_path: Path) -> None:
    path = tmp_path / "incidents.jsonl"
    log = IncidentLog(path)
    log.start()
    for minutes in (0, 1, 4, 5, 6, 10):
        await log.note([going_on(minutes)])
    await log.note([going_on(10, pod="orders-2")])
    await log.stop()
    ends = [(line["pod"], line["endedAt"]) for line in lines_of(circumstances_beside(path))]
    assert ends == [
        ("orders-1", "2026-11-21T00:10:00.000Z"), ("orders-1", "2026-11-21T00:15:00.000Z"),
        ("orders-1", "2026-11-21T00:20:00.000Z"), ("orders-2", "2026-11-21T00:20:00.000Z"),
    ]  # fmt: skip


async def test_circumstances_have_a_bound_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "incidents.jsonl"
    log = IncidentLog(path, max_bytes=4000, kept_files=1)
    log.start()
    log.incident_closed(timeline())
    for number in range(40):
        await log.note([going_on(pod=f"orders-{number}")])
    await log.stop()
    beside = circumstances_beside(path)
    rotated = beside.with_name(f"{beside.name}.1")
    assert files_in(tmp_path) == [path, beside, rotated]
    assert lines_of(beside)[-1]["pod"] == "orders-39"
    assert max(beside.stat().st_size, rotated.stat().st_size) <= 1000
    assert len(lines_of(path)) == 1


async def test_a_full_disk_holds_up_whoever_notes_for_a_moment_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(incidents, "NOTE_SECONDS", 0.01)
    monkeypatch.setattr(incidents, "RETRY_SECONDS", 0.001)
    path = tmp_path / "incidents.jsonl"
    is_full = True
    append = IncidentFile.append

    def failing(self: IncidentFile, document: dict[str, object]) -> None:
        if is_full:
            raise OSError(28, "No space left on device")
        append(self, document)

    monkeypatch.setattr(IncidentFile, "append", failing)
    log = IncidentLog(path)
    log.start()
    await log.note([going_on()])
    assert not circumstances_beside(path).exists()
    is_full = False
    async with asyncio.timeout(30):
        while not circumstances_beside(path).exists():  # noqa: ASYNC110 - a file has no event
            await asyncio.sleep(0.001)
    await log.stop()
    assert len(lines_of(circumstances_beside(path))) == 1
