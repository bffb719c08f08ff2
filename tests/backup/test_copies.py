"""A store is copied to a backup and back: whole or not at all, and a torn or changed copy is known as such."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import msgspec
import pytest

from brokergroup_operator.api.backup_fields import Manifest
from brokergroup_operator.backup import __main__ as program
from brokergroup_operator.backup import copies
from brokergroup_operator.backup.copies import BackupError, Store, restore, take
from brokergroup_operator.backup.log_end import log_end
from rocketmq_remoting.message_record import Host, encode_blank, encode_record

if TYPE_CHECKING:
    from pathlib import Path

FILE_BYTES = 4096
HOST = Host("10.1.0.2", 10911)
NAME = "orders/nightly"
KNOWN = Manifest(
    name=NAME, operation="op-uid", group="orders", namespace="shop", cluster_name="c", broker_name="orders",
    broker_id=3, next_broker_id=7, master_epoch=41, implementation="Java", version="5.5.0",
)  # fmt: skip


def message(offset: int, body: bytes = b"x" * 500) -> bytes:
    return encode_record(
        topic="t", body=body, queue_id=0, queue_offset=0, physical_offset=offset, born_timestamp_ms=1, born_host=HOST,
        store_timestamp_ms=2, store_host=HOST, properties=b"KEYS\x01k\x02",
    )  # fmt: skip


def log_bytes(count: int, start: int = 0) -> bytes:
    content = b""
    for _ in range(count):
        content += message(start + len(content))
    return content


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """A store as a stopped Java broker leaves it: a full log file, one that is begun, and one that is prepared."""
    root = tmp_path / "disk"
    made = Store.at(root, None)
    made.commit_log.mkdir(parents=True)
    full = log_bytes(5)
    (made.commit_log / f"{0:020d}").write_bytes(full + encode_blank(FILE_BYTES - len(full)))
    (made.commit_log / f"{FILE_BYTES:020d}").write_bytes(log_bytes(3, FILE_BYTES).ljust(FILE_BYTES, b"\0"))
    (made.commit_log / f"{2 * FILE_BYTES:020d}").write_bytes(bytes(FILE_BYTES))
    (root / "config").mkdir()
    (root / "config" / "topics.json").write_text("{}")
    (root / "epochFileCheckpoint").write_text("2\n0\n7-0\n41-2000\n")
    for name in ("brokerIdentity", "lock", ".disk-probe"):
        (root / name).write_text("orders#3")
    return made


def files_of(store: Store) -> dict[str, bytes]:
    return {name: path.read_bytes() for name, path in store.files()}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "claim" / NAME


def test_a_store_comes_back_as_it_was_but_for_its_identity(store: Store, folder: Path, tmp_path: Path) -> None:
    taken = take(store, folder, KNOWN)
    assert taken.offset == FILE_BYTES + len(log_bytes(3, FILE_BYTES))
    assert (taken.store_epoch, taken.next_broker_id, taken.version) == (41, 7, "5.5.0")
    assert taken.bytes == 3 * FILE_BYTES + 2 + len("2\n0\n7-0\n41-2000\n")
    new = Store.at(tmp_path / "new", str(tmp_path / "new-log"))
    assert restore(folder, new, name=NAME, implementation="Java") == taken
    assert files_of(new) == files_of(store)
    assert {path.name for path in new.root.iterdir()} == {"config", "epochFileCheckpoint", copies.RESTORED}
    assert log_end(new.commit_log) == taken.offset


def test_holes_of_a_prepared_log_file_are_not_filled(store: Store, folder: Path) -> None:
    prepared = store.commit_log / f"{3 * FILE_BYTES:020d}"
    with prepared.open("wb") as file:
        file.truncate(64 << 20)
    take(store, folder, KNOWN)
    copied = (folder / "commitlog" / prepared.name).stat()
    assert copied.st_size == 64 << 20
    assert copied.st_blocks * 512 < 1 << 20


@pytest.mark.parametrize(
    ("content", "end"),
    [
        (b"", 0),
        (bytes(FILE_BYTES), 0),
        (log_bytes(2).ljust(FILE_BYTES, b"\0"), len(log_bytes(2))),
        (log_bytes(2) + log_bytes(1, len(log_bytes(2)))[:-1], len(log_bytes(2))),
        (log_bytes(2) + b"\xff" * 100, len(log_bytes(2))),
        (log_bytes(2) + message(77), len(log_bytes(2))),
    ],
    ids=["nothing", "prepared", "two messages", "a message in part", "no message", "a message of another offset"],
)
def test_the_log_ends_behind_its_last_whole_message(tmp_path: Path, content: bytes, end: int) -> None:
    (tmp_path / f"{0:020d}").write_bytes(content)
    assert log_end(tmp_path) == end


def test_an_attempt_that_was_cut_off_is_no_backup_and_is_made_anew(store: Store, folder: Path, tmp_path: Path) -> None:
    take(store, folder, KNOWN)
    whole = files_of(Store(folder / "store", folder / "commitlog"))
    (folder / copies.MANIFEST).unlink()
    (folder / "store" / "of an earlier attempt").write_text("left")
    with pytest.raises(BackupError, match=r"torn: it has no manifest\.json"):
        restore(folder, Store.at(tmp_path / "new", None), name=NAME, implementation="Java")
    take(store, folder, KNOWN)
    assert files_of(Store(folder / "store", folder / "commitlog")) == whole


def test_a_whole_backup_is_not_taken_twice_nor_written_over(store: Store, folder: Path) -> None:
    first = take(store, folder, KNOWN)
    (store.root / "config" / "topics.json").write_text('{"later": 1}')
    assert take(store, folder, KNOWN) == first
    with pytest.raises(BackupError, match="was taken by another operation"):
        take(store, folder, msgspec.structs.replace(KNOWN, operation="another"))


def test_a_log_that_lacks_what_its_broker_had_confirmed_is_no_backup(store: Store, folder: Path) -> None:
    with pytest.raises(BackupError, match="though it had confirmed 99999"):
        take(store, folder, msgspec.structs.replace(KNOWN, confirm_offset=99999))
    assert not (folder / copies.MANIFEST).exists()


def test_a_store_that_a_broker_runs_on_is_no_backup(
    store: Store, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = copies._copy

    def copy_while_a_broker_starts(source: Path, target: Path, name: str) -> copies.CopiedFile:
        (store.root / "abort").write_text("")
        return copy(source, target, name)

    monkeypatch.setattr(copies, "_copy", copy_while_a_broker_starts)
    with pytest.raises(BackupError, match="a broker runs on them"):
        take(store, folder, KNOWN)
    assert not (folder / copies.MANIFEST).exists()


def flip_a_byte(folder: Path) -> None:
    path = folder / "commitlog" / f"{0:020d}"
    content = bytearray(path.read_bytes())
    content[300] ^= 1
    path.write_bytes(content)


def lose_a_file(folder: Path) -> None:
    (folder / "store" / "config" / "topics.json").unlink()


def cut_the_manifest(folder: Path) -> None:
    path = folder / copies.MANIFEST
    path.write_bytes(path.read_bytes()[:-20])


def change_the_manifest(folder: Path) -> None:
    path = folder / copies.MANIFEST
    content = json.loads(path.read_bytes())
    content["backup"]["masterEpoch"] = 3
    path.write_bytes(json.dumps(content).encode())


def name_a_file_elsewhere(folder: Path) -> None:
    path = folder / copies.MANIFEST
    contents = msgspec.json.decode(path.read_bytes(), type=copies.Contents)
    files = [msgspec.structs.replace(contents.files[0], path="store/../../elsewhere"), *contents.files[1:]]
    contents = msgspec.structs.replace(contents, files=files)
    path.write_bytes(msgspec.json.encode(msgspec.structs.replace(contents, sha256=contents.check_sum())))


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (flip_a_byte, "damaged: commitlog/0{20} is not as its manifest says"),
        (lose_a_file, "store/config/topics.json is missing"),
        (cut_the_manifest, "manifest.json of orders/nightly is damaged"),
        (change_the_manifest, "its check sum is wrong"),
        (name_a_file_elsewhere, "expected a path below store/"),
    ],
)
def test_a_damaged_backup_is_not_restored(
    store: Store, folder: Path, tmp_path: Path, damage: object, said: str
) -> None:
    take(store, folder, KNOWN)
    assert callable(damage)
    damage(folder)
    new = Store.at(tmp_path / "new", None)
    with pytest.raises(BackupError, match=said):
        restore(folder, new, name=NAME, implementation="Java")
    assert not (new.root / copies.RESTORED).exists()


def test_a_restore_that_was_cut_off_begins_again_and_one_that_is_done_does_nothing(
    store: Store, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    take(store, folder, KNOWN)
    new, copy = Store.at(tmp_path / "new", None), copies._copy
    copied: list[str] = []

    def copy_until_killed(source: Path, target: Path, name: str) -> copies.CopiedFile:
        if len(copied) == 2:
            raise OSError("killed")
        copied.append(name)
        return copy(source, target, name)

    with monkeypatch.context() as patch:
        patch.setattr(copies, "_copy", copy_until_killed)
        with pytest.raises(OSError, match="killed"):
            restore(folder, new, name=NAME, implementation="Java")
    (new.root / "left of the first attempt").write_text("x")
    restore(folder, new, name=NAME, implementation="Java")
    assert files_of(new) == files_of(store)
    (new.root / "config" / "topics.json").write_text('{"written by the broker": 1}')
    restore(folder, new, name=NAME, implementation="Java")
    assert (new.root / "config" / "topics.json").read_text() == '{"written by the broker": 1}'


def test_a_disk_with_data_is_not_written_over(store: Store, folder: Path, tmp_path: Path) -> None:
    take(store, folder, KNOWN)
    with pytest.raises(BackupError, match="the claim is not empty, it has epochFileCheckpoint"):
        restore(folder, store, name=NAME, implementation="Java")
    other = folder.with_name("other")
    take(store, other, msgspec.structs.replace(KNOWN, name="orders/other"))
    new = Store.at(tmp_path / "new", None)
    restore(other, new, name="orders/other", implementation="Java")
    with pytest.raises(BackupError, match="has the data of another backup"):
        restore(folder, new, name=NAME, implementation="Java")


def test_another_implementations_backup_is_refused(store: Store, folder: Path, tmp_path: Path) -> None:
    take(store, folder, KNOWN)
    with pytest.raises(BackupError, match="is of Java brokers, the group's are Python"):
        restore(folder, Store.at(tmp_path / "new", None), name=NAME, implementation="Python")


def test_the_program_says_by_its_termination_message_how_it_ended(
    store: Store, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = tmp_path / "termination-log"
    environment = {
        "STORE_DIR": str(store.root), "BACKUP_DIR": str(folder.parent.parent), "BACKUP_NAME": NAME,
        "BACKUP_MANIFEST": msgspec.json.encode(KNOWN).decode(), "TERMINATION_LOG": str(said), "IMPLEMENTATION": "Java",
    }  # fmt: skip
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert program.main(["restore"]) == 1
    assert said.read_text() == "there is no folder orders/nightly in the claim"
    assert program.main(["take"]) == 0
    manifest = msgspec.json.decode(said.read_bytes(), type=Manifest)
    assert manifest.offset == log_end(store.commit_log)
    monkeypatch.setenv("STORE_DIR", str(tmp_path / "new"))
    assert program.main(["restore"]) == 0
    assert msgspec.json.decode(said.read_bytes(), type=Manifest) == manifest
