"""The checker of the chaos runs must find each violation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarks.chaos_faults import RecordHistory, compare_logs, plan
from rocketmq_remoting.message_record import Host
from rocketmq_replica.log.message_store import MessageStore, NewMessage, StorePaths

if TYPE_CHECKING:
    from pathlib import Path


def record(**changes: Any) -> dict[str, Any]:
    return {
        "masterEpoch": 3,
        "syncStateSetEpoch": 5,
        "nextBrokerId": 3,
        "masterBrokerId": 1,
        "replicas": [{"brokerId": 1, "registerCheckCode": "a;1"}, {"brokerId": 2, "registerCheckCode": ""}],
    } | changes


def test_a_history_that_only_grows_is_right() -> None:
    history = RecordHistory()
    for each in (record(), record(masterEpoch=4, masterBrokerId=2), record(masterEpoch=4, masterBrokerId=None)):
        history.see(each)
    assert (history.fallen, history.reused_ids, history.shared_epochs) == ([], [], [])


def test_a_fallen_epoch_a_reused_id_and_a_shared_epoch_are_seen() -> None:
    history = RecordHistory()
    history.see(record())
    history.see(record(masterEpoch=2, masterBrokerId=2))
    assert history.fallen == ["masterEpoch fell from 3 to 2"]
    history.see(record(masterBrokerId=2, replicas=[{"brokerId": 1, "registerCheckCode": "b;2"}]))
    assert history.reused_ids == [1]
    assert history.shared_epochs == [3]


def test_logs_that_differ_are_seen(tmp_path: Path) -> None:
    for name, body in (("one", b"x"), ("two", b"x"), ("three", b"y")):
        folder = tmp_path / name
        paths = StorePaths(folder, folder / "commitlog", folder / "epochFileCheckpoint")
        store = MessageStore(paths, file_size_bytes=4096, store_host=Host("127.0.0.1", 10911))
        for part in (b"same", body):
            message = NewMessage("t", 0, part, b"", 1, Host("127.0.0.1", 1))
            store.put(message, store_timestamp_ms=1)
        store.close()
    assert compare_logs([tmp_path / "one", tmp_path / "two"]) == []
    [difference] = compare_logs([tmp_path / "one", tmp_path / "three"])
    assert "differ at offset" in difference


def test_a_seed_is_a_plan() -> None:
    assert plan(7, 20) == plan(7, 20)
    assert plan(7, 20) != plan(8, 20)
