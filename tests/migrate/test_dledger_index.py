"""The index files of a DLedger log are copied with the new places of the messages, or not at all."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from brokergroup_operator.backup.copies import read_manifest
from brokergroup_operator.migrate import dledger_index
from brokergroup_operator.migrate.dledger_copy import Target, copy_store
from brokergroup_operator.migrate.dledger_index import SHAPE
from brokergroup_operator.migrate.dledger_log import ledger_of
from brokergroup_operator.migrate.dledger_store import survey
from brokergroup_operator.migrate.stores import Place
from rocketmq_remoting.message_record import decode_record
from tests.support.dledger_files import FILE_BYTES, INDEX_SHAPE, Sent, found_by_key, write_index, write_member

if TYPE_CHECKING:
    from pathlib import Path

SENT = [Sent(queue=0, offset=number) for number in range(20)]
BEGIN = 3 * FILE_BYTES


@pytest.fixture(autouse=True)
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dledger_index, "SHAPE", INDEX_SHAPE)


def places(store: Path) -> list[int]:
    return [one.place for one in ledger_of(store / "dledger-n0" / "data").entries()]


def copied(store: Path, to: Path) -> Path:
    target = Target(claim=to, name="orders/copy", cluster_name="c", broker_name="b")
    copy_store(Place(store), survey(Place(store)), (), target)
    return target.folder


def key_at(folder: Path, place: int) -> str:
    """Return the key of the message that a broker reads at this place."""
    path = folder / "commitlog" / f"{place // FILE_BYTES * FILE_BYTES:020d}"
    return decode_record(path.read_bytes(), place % FILE_BYTES, physical_offset=place).properties["KEYS"]


def test_a_key_finds_its_messages_at_their_new_places(tmp_path: Path) -> None:
    """Two items a message in two files; the first items are of messages that retention has deleted."""
    store = tmp_path / "store"
    write_member(store, SENT, begin=BEGIN)
    deleted = [(500, 100), (501, BEGIN - 300)]
    items = [(number * 3 + twice * 1000, place) for number, place in enumerate(places(store)) for twice in (0, 1)]
    write_index(store, "20261130000000001", [*deleted, *items[:17]])
    write_index(store, "20261130000000002", items[17:35])
    # Begun, and without an item: it names the last place of the one before.
    write_index(store, "20261130000000003", [])
    report = survey(Place(store))
    assert (report.no_index, report.index_bytes) == ("", INDEX_SHAPE.item_at(20) + INDEX_SHAPE.item_at(19))
    folder = copied(store, tmp_path / "claim")
    index = folder / "store" / "index"
    assert sorted(one.name for one in index.iterdir()) == ["20261130000000001", "20261130000000002"]
    for key, place in items[:35]:
        [found] = found_by_key(index, key)
        assert key_at(folder, found) == key_at_old(store, place)
        assert found < place
    assert found_by_key(index, 500) == [100]
    for name, first, last in (("1", 100, items[16]), ("2", items[17], items[34])):
        head = struct.unpack_from(">qqqqii", (index / f"2026113000000000{name}").read_bytes())
        begins = first if isinstance(first, int) else found_by_key(index, first[0])[0]
        assert head[2:4] == (begins, found_by_key(index, last[0])[0])
    assert "store/index/20261130000000002" in [one.path for one in read_manifest(folder).files]


def key_at_old(store: Path, place: int) -> str:
    [found] = [one for one in ledger_of(store / "dledger-n0" / "data").entries() if one.place == place]
    return f"0-{found.message.queue_offset}" if found.message else ""


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("within a message", "where no message lies"),
        ("behind the end", "behind the end of the log"),
        ("falls", "where no message lies"),
        ("other shape", "by Java's defaults"),
        ("too many", "has 2000000000 items, expected at most 20"),
        ("no header", "has 3 bytes"),
        ("killed", "its broker was killed"),
    ],
)
def test_index_files_that_cannot_be_copied_are_left_out(tmp_path: Path, fault: str, said: str) -> None:
    """By a wrong place a broker would read the middle of a message as one."""
    store = tmp_path / "store"
    end = write_member(store, SENT)
    held = [(number, place) for number, place in enumerate(places(store)[:10])]
    items = {
        "within a message": [*held[:4], (4, held[4][1] + 1), *held[5:]],
        "behind the end": [*held, (11, end + 48)],
        "falls": [*held[:5], held[3], *held[5:]],
    }.get(fault, held)
    shape = replace(INDEX_SHAPE, items=21) if fault == "other shape" else INDEX_SHAPE
    write_index(store, "20261130000000001", items, shape=shape)
    path = store / "index" / "20261130000000001"
    if fault == "killed":
        (store / "abort").write_text("")
    if fault == "no header":
        path.write_bytes(b"abc")
    if fault == "too many":
        path.write_bytes(path.read_bytes()[:36] + struct.pack(">i", 2_000_000_000) + path.read_bytes()[40:])
    report = survey(Place(store))
    assert said in report.no_index
    assert report.index_bytes == 0
    folder = copied(store, tmp_path / "claim")
    assert not (folder / "store" / "index").exists()
    assert not any("index/" in one.path for one in read_manifest(folder).files)


def test_a_store_without_index_files(tmp_path: Path) -> None:
    write_member(tmp_path, SENT)
    (tmp_path / "abort").write_text("")
    assert survey(Place(tmp_path)).no_index == ""


def test_java_has_files_of_420_megabytes() -> None:
    assert SHAPE.file_bytes == 420_000_040
