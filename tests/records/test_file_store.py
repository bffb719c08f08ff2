"""The file store alone: one owner, torn files are rejected, and a slow disk counts as unavailable."""

import json
import os
import threading
from pathlib import Path

import pytest

from brokergroup_operator.records.file import FileRecordStore, read_record_file
from brokergroup_operator.records.store import (
    GroupKey,
    RecordCorruptError,
    RecordStoreError,
    RecordUnavailableError,
)
from controller_core.model import BrokerGroupRecord, Replica

KEY = GroupKey("default", "orders")
RECORD = BrokerGroupRecord("c", "orders", next_broker_id=2, replicas={1: Replica(1, "a:1;1", "a:1")}, master_epoch=7)


def record_path(folder: Path) -> Path:
    (path,) = folder.glob("*.record.json")
    return path


async def test_the_record_outlives_the_process(tmp_path: Path) -> None:
    first = FileRecordStore(tmp_path)
    committed = await first.commit(KEY, RECORD, None)
    await first.close()
    second = FileRecordStore(tmp_path)
    assert await second.read(KEY) == committed
    await second.close()


async def test_a_second_owner_is_refused(tmp_path: Path) -> None:
    store = FileRecordStore(tmp_path)
    with pytest.raises(RecordStoreError, match="another process"):
        FileRecordStore(tmp_path)
    await store.close()
    again = FileRecordStore(tmp_path)
    await again.close()


async def test_a_file_torn_at_any_byte_is_refused_and_never_taken_for_new(tmp_path: Path) -> None:
    store = FileRecordStore(tmp_path)
    committed = await store.commit(KEY, RECORD, None)
    await store.close()
    path = record_path(tmp_path)
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        if length == len(whole) - 1:  # only the last newline is missing: the record itself is whole
            assert read_record_file(path) == committed
            continue
        with pytest.raises(RecordCorruptError, match=path.name):
            read_record_file(path)


async def test_a_changed_byte_is_refused(tmp_path: Path) -> None:
    store = FileRecordStore(tmp_path)
    await store.commit(KEY, RECORD, None)
    await store.close()
    path = record_path(tmp_path)
    path.write_bytes(path.read_bytes().replace(b'"masterEpoch": 7', b'"masterEpoch": 6'))
    with pytest.raises(RecordCorruptError, match="checksum"):
        read_record_file(path)


async def test_a_leftover_of_a_crash_beside_the_record_does_not_matter(tmp_path: Path) -> None:
    store = FileRecordStore(tmp_path)
    committed = await store.commit(KEY, RECORD, None)
    path = record_path(tmp_path)
    path.with_suffix(".aside").write_bytes(b'{"version": "2", "rec')
    assert await store.read(KEY) == committed
    await store.close()


async def test_a_slow_disk_is_unavailable_and_the_next_read_knows_the_outcome(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk_answers = threading.Event()
    flush = os.fsync

    def slow_flush(descriptor: int) -> None:
        disk_answers.wait(10)
        flush(descriptor)

    store = FileRecordStore(tmp_path)
    monkeypatch.setattr("brokergroup_operator.records.file.os.fsync", slow_flush)
    with pytest.raises(RecordUnavailableError, match="longer than"):
        await store.commit(KEY, RECORD, None, deadline_seconds=0.05)
    disk_answers.set()
    stored = await store.read(KEY)
    assert stored is not None
    assert stored.record == RECORD
    await store.close()


async def test_what_is_renamed_is_on_the_disk_and_so_is_the_renaming(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power cut at any point leaves the old or the new record; after the answer always the new one."""
    operations: list[str] = []
    flush, rename = os.fsync, Path.replace

    def noted_flush(descriptor: int) -> None:
        flush(descriptor)
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        whole = path.is_file() and json.loads(path.read_bytes())["record"]["masterEpoch"] == RECORD.master_epoch
        operations.append("sync the folder" if path == tmp_path else f"sync {path.suffix}, whole: {whole}")

    def noted_rename(path: Path, target: Path) -> Path:
        operations.append(f"rename {path.suffix} to {target.suffix}")
        return rename(path, target)

    store = FileRecordStore(tmp_path)
    monkeypatch.setattr("brokergroup_operator.records.file.os.fsync", noted_flush)
    monkeypatch.setattr(Path, "replace", noted_rename)
    committed = await store.commit(KEY, RECORD, None)
    assert operations == ["sync .aside, whole: True", "rename .aside to .json", "sync the folder"]
    operations.clear()
    await store.commit(KEY, None, committed)
    assert operations == ["sync the folder"]
    await store.close()
