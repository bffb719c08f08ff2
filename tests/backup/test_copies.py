"""A store is copied to a backup and back: whole or not at all, and a torn or changed copy is known as such."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from brokergroup_operator.api.backup_fields import Manifest
from brokergroup_operator.backup import __main__ as program
from brokergroup_operator.backup import copies, files
from brokergroup_operator.backup.copies import restore, take
from brokergroup_operator.backup.files import BackupError, Store
from brokergroup_operator.backup.log_end import LogError, log_end
from brokergroup_operator.reconcile.render.broker_config import broker_properties
from rocketmq_remoting.message_record import encode_blank
from tests.backup.stores import FILE_BYTES, KNOWN, NAME, files_of, log_bytes, message
from tests.reconcile import builders as b


def back(backup: Path, disk: Store) -> Manifest:
    """Restore the backup to a disk of a Java group, as `NAME` names it."""
    return restore(backup, disk, name=NAME, implementation="Java")


def test_a_store_comes_back_as_it_was_but_for_its_identity(store: Store, folder: Path, tmp_path: Path) -> None:
    taken = take(store, folder, KNOWN)
    assert taken.offset == FILE_BYTES + len(log_bytes(3, FILE_BYTES))
    assert (taken.store_epoch, taken.next_broker_id, taken.version) == (41, 7, "5.5.0")
    assert taken.bytes == 3 * FILE_BYTES + 2 + len("2\n0\n7-0\n41-2000\n")
    new = Store.at(tmp_path / "new", str(tmp_path / "new-log"))
    assert back(folder, new) == taken
    assert files_of(new) == files_of(store)
    assert {path.name for path in new.root.iterdir()} == {"config", "epochFileCheckpoint", files.RESTORED}
    assert log_end(new.commit_log) == taken.offset


def test_a_commit_log_on_a_claim_of_its_own_is_where_its_broker_has_it(tmp_path: Path) -> None:
    """Seen in the sandbox: the copy had looked in the volume itself, and every backup of such a group failed."""
    spec = b.group(storage={"commitLog": {"size": "1Gi"}}).spec
    path = broker_properties("orders", spec, b.SETTINGS)["storePathCommitLog"]
    folders = {"${STORE_DIR}": str(tmp_path / "disk"), "${COMMIT_LOG_DIR}": str(tmp_path / "log")}
    for variable, folder in folders.items():
        path = path.replace(variable, folder)
    assert Store.at(tmp_path / "disk", str(tmp_path / "log")).commit_log == Path(path)


def test_holes_of_a_prepared_log_file_are_not_filled(store: Store, folder: Path) -> None:
    prepared = store.commit_log / f"{3 * FILE_BYTES:020d}"
    with prepared.open("wb") as file:
        file.truncate(64 << 20)
    take(store, folder, KNOWN)
    copied = (folder / "commitlog" / prepared.name).stat()
    assert copied.st_size == 64 << 20
    assert copied.st_blocks * 512 < 1 << 20


def test_what_is_empty_behind_a_queues_entries_takes_no_room(store: Store, folder: Path) -> None:
    """With thousands of queues, a megabyte of zeros for each was far more than the messages."""
    queue = store.root / "consumequeue" / "t" / "0" / f"{0:020d}"
    queue.parent.mkdir(parents=True)
    with queue.open("wb") as file:
        file.write(b"\0" * 19 + b"\1" * 21)
        file.truncate(6_000_000)
    take(store, folder, KNOWN)
    copied = folder / "store" / queue.relative_to(store.root)
    assert copied.read_bytes() == queue.read_bytes()
    assert copied.stat().st_blocks * 512 <= 64 << 10


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


def test_an_attempt_that_was_cut_off_is_no_backup_and_is_made_anew(store: Store, backup: Path, new: Store) -> None:
    whole = files_of(Store(backup / "store", backup / "commitlog"))
    (backup / copies.MANIFEST).unlink()
    (backup / copies.ATTEMPT).write_text('{"brokergroupBackup": "op-uid"}')
    (backup / "store" / "of an earlier attempt").write_text("left")
    with pytest.raises(BackupError, match=r"torn: it has no manifest\.json"):
        back(backup, new)
    take(store, backup, KNOWN)
    assert files_of(Store(backup / "store", backup / "commitlog")) == whole


def test_a_whole_backup_is_not_taken_twice_nor_written_over(store: Store, folder: Path) -> None:
    first = take(store, folder, KNOWN)
    (store.root / "config" / "topics.json").write_text('{"later": 1}')
    assert take(store, folder, KNOWN) == first
    with pytest.raises(BackupError, match="was taken by another operation"):
        take(store, folder, msgspec.structs.replace(KNOWN, operation="another"))
    # The member was started by another before its operation had the first copy's end, and has confirmed more since.
    again = take(store, folder, msgspec.structs.replace(KNOWN, confirm_offset=first.offset))
    assert (again.confirm_offset, again.offset) == (first.offset, first.offset)
    assert (folder / "store" / "config" / "topics.json").read_text() == '{"later": 1}'
    assert not (folder / copies.ATTEMPT).exists()


def test_a_log_that_lacks_what_its_broker_had_confirmed_is_no_backup(store: Store, folder: Path) -> None:
    with pytest.raises(BackupError, match="though it had confirmed 99999"):
        take(store, folder, msgspec.structs.replace(KNOWN, confirm_offset=99999))
    assert not (folder / copies.MANIFEST).exists()


def test_a_store_that_a_broker_runs_on_is_no_backup(
    store: Store, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = files.copy

    def copy_while_a_broker_starts(source: Path, target: Path, name: str) -> files.CopiedFile:
        (store.root / "abort").write_text("")
        return copy(source, target, name)

    monkeypatch.setattr(files, "copy", copy_while_a_broker_starts)
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
    path.write_bytes(path.read_bytes().replace(b'"masterEpoch":41', b'"masterEpoch":31'))


def change_a_field_that_is_not_known(folder: Path) -> None:
    """Of a later version: it is covered by the check sum too."""
    path = folder / copies.MANIFEST
    path.write_bytes(path.read_bytes().replace(b'"masterEpoch":41', b'"masterEpoch":41,"later":1'))


def rewritten(folder: Path, **changes: Any) -> None:
    """A manifest as another program may write it, with a check sum that is right."""
    contents = copies.read_manifest(folder)
    (folder / copies.MANIFEST).write_bytes(copies.sealed(msgspec.structs.replace(contents, **changes)))


def name_files(folder: Path, *names: str) -> None:
    first, *others = copies.read_manifest(folder).files
    rewritten(folder, files=[*(msgspec.structs.replace(first, path=name) for name in names), *others])


def link_a_file(folder: Path) -> None:
    path = folder / "store" / "config" / "topics.json"
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


def link_a_folder(folder: Path) -> None:
    path = folder / "store" / "config"
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (flip_a_byte, "damaged: commitlog/0{20} is not as its manifest says"),
        (lose_a_file, "store/config/topics.json is missing"),
        (cut_the_manifest, "manifest.json of orders/nightly is damaged"),
        (change_the_manifest, "its check sum is wrong"),
        (change_a_field_that_is_not_known, "its check sum is wrong"),
        (link_a_folder, "lies behind a symbolic link"),
    ],
)
def test_a_damaged_backup_is_not_restored(backup: Path, new: Store, damage: object, said: str) -> None:
    assert callable(damage)
    damage(backup)
    with pytest.raises(BackupError, match=said):
        back(backup, new)
    assert not (new.root / files.RESTORED).exists()


@pytest.mark.parametrize(
    "name",
    [
        "store/../../elsewhere", "store//elsewhere", "store/", "store", "/elsewhere", "store/config/../../../elsewhere",
        "store/./x", "other/x", "", "store/brokerIdentity", "store/lock", "store/restored.json", "store/restore-unfinished/x",
        "store/commitlog/00000000000000000000", "commitlog/restore-unfinished", "store/x\0y",
    ],
)  # fmt: skip
def test_a_manifest_that_leads_elsewhere_writes_nothing(backup: Path, tmp_path: Path, new: Store, name: str) -> None:
    name_files(backup, name)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(BackupError, match="expected a path of data below store/"):
        back(backup, new)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_file_that_is_named_twice_is_damage(backup: Path, new: Store) -> None:
    name_files(backup, "store/x", "store/x")
    with pytest.raises(BackupError, match="names a file twice"):
        back(backup, new)


def test_a_link_in_a_backup_is_not_followed(backup: Path, new: Store) -> None:
    link_a_file(backup)
    with pytest.raises(OSError, match="symbolic link"):
        back(backup, new)


@pytest.mark.parametrize("what", ["a file", "a folder", "a pipe"])
def test_a_store_with_a_link_is_not_copied(store: Store, folder: Path, tmp_path: Path, what: str) -> None:
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "token").write_text("x")
    if what == "a pipe":
        os.mkfifo(store.root / "config" / "pipe")
    else:
        (store.root / "config" / "link").symlink_to(tmp_path / "secret" / ("token" if what == "a file" else ""))
    with pytest.raises(BackupError, match="a symbolic link or a special file"):
        take(store, folder, KNOWN)


def test_names_that_are_left_out_at_the_top_are_data_below(store: Store, folder: Path, new: Store) -> None:
    """A topic may be called "lock", and its consume queue is a folder of that name."""
    for name in ("lock", "lost+found", "brokerIdentity", "commitlog"):
        (store.root / "consumequeue" / name / "0").mkdir(parents=True)
        (store.root / "consumequeue" / name / "0" / "00000000000000000000").write_text(name)
    take(store, folder, KNOWN)
    back(folder, new)
    assert files_of(new) == files_of(store)
    assert (new.root / "consumequeue" / "lock" / "0" / "00000000000000000000").read_text() == "lock"


def test_a_folder_of_another_program_is_not_emptied(store: Store, folder: Path, tmp_path: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "photos").write_text("dear")
    with pytest.raises(BackupError, match="has photos and is no backup"):
        take(store, folder, KNOWN)
    assert (folder / "photos").read_text() == "dear"
    (folder / "photos").rename(tmp_path / "photos")
    take(store, folder, KNOWN)
    linked = folder.with_name("linked")
    linked.symlink_to(tmp_path)
    with pytest.raises(BackupError, match="is a symbolic link"):
        take(store, linked, KNOWN)
    with pytest.raises(BackupError, match="is a symbolic link"):
        copies.read_manifest(linked)


def test_what_the_claim_does_not_keep_is_no_backup(store: Store, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = files.copy

    def copy_and_lose(source: Path, target: Path, name: str) -> files.CopiedFile:
        done = copy(source, target, name)
        if name == "store/config/topics.json":
            target.write_text("[]")
        return done

    monkeypatch.setattr(files, "copy", copy_and_lose)
    with pytest.raises(BackupError, match=r"topics\.json is not read back as it was written"):
        take(store, folder, KNOWN)
    assert not (folder / copies.MANIFEST).exists()


def test_everything_is_on_the_disk_before_the_manifest_and_the_folders_above_too(
    store: Store, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    fsync = os.fsync

    def noted(descriptor: int) -> None:
        fsync(descriptor)
        synced.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))

    folder.parent.parent.mkdir()
    monkeypatch.setattr(os, "fsync", noted)
    take(store, folder, KNOWN)
    manifest = synced.index(f"{folder / copies.MANIFEST}.tmp")
    before = set(synced[:manifest])
    assert {str(one) for one in (folder, folder.parent, folder.parent.parent)} <= before
    assert {str(one) for one in folder.rglob("*") if one.name != copies.MANIFEST} <= before
    assert synced[-1] == str(folder), "the manifest's own entry"


def test_a_log_with_a_hole_is_no_log(tmp_path: Path) -> None:
    full = log_bytes(5)
    (tmp_path / f"{0:020d}").write_bytes(full + encode_blank(FILE_BYTES - len(full)))
    (tmp_path / f"{2 * FILE_BYTES:020d}").write_bytes(log_bytes(1, 2 * FILE_BYTES).ljust(FILE_BYTES, b"\0"))
    with pytest.raises(LogError, match=f"has no file {FILE_BYTES:020d}: behind {0:020d} comes {2 * FILE_BYTES:020d}"):
        log_end(tmp_path)
    (tmp_path / f"{FILE_BYTES:020d}").write_bytes(log_bytes(1, FILE_BYTES).ljust(FILE_BYTES, b"\0"))
    with pytest.raises(
        LogError, match=f"file {FILE_BYTES:020d} of the commit log ends at [0-9]+ of {FILE_BYTES} bytes"
    ):
        log_end(tmp_path)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"confirm_offset": -1}, "it is not known how far broker 3 had confirmed"),
        ({"confirm_offset": 1}, "ends at 0, though it had confirmed 1"),
    ],
)
def test_an_empty_store_is_a_backup_only_where_nothing_was_confirmed(
    folder: Path, tmp_path: Path, changes: dict[str, Any], why: str
) -> None:
    empty = Store.at(tmp_path / "empty", None)
    empty.root.mkdir()
    with pytest.raises(BackupError, match=why):
        take(empty, folder, msgspec.structs.replace(KNOWN, **changes))
    assert take(empty, folder, KNOWN).offset == 0


def test_messages_without_epochs_or_with_epochs_of_elsewhere_are_no_backup(store: Store, folder: Path) -> None:
    with pytest.raises(BackupError, match="has epoch 41, and its group's record only 40"):
        take(store, folder, msgspec.structs.replace(KNOWN, master_epoch=40))
    (store.root / "epochFileCheckpoint").unlink()
    with pytest.raises(BackupError, match="has messages, and no epochs of them"):
        take(store, folder, KNOWN)


def test_no_broker_starts_on_a_store_that_is_not_whole(
    backup: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker opens `lock` for writing: a folder there stops Java brokers of any command, and ours, which names the mark too."""
    new = Store.at(tmp_path / "new", str(tmp_path / "new-log"))
    seen: list[tuple[bool, ...]] = []
    copy = files.copy

    def looking(source: Path, target: Path, name: str) -> files.CopiedFile:
        marks = (new.root / "restore-unfinished", new.commit_log.parent / "restore-unfinished")
        seen.append((*(one.is_file() for one in marks), (new.root / "lock").is_dir()))
        return copy(source, target, name)

    monkeypatch.setattr(files, "copy", looking)
    back(backup, new)
    assert set(seen) == {(True, True, True)}
    assert not any(
        one.name in {"restore-unfinished", "lock"} for one in (*new.root.iterdir(), *new.commit_log.parent.iterdir())
    )


def test_a_restore_that_was_cut_off_begins_again_and_one_that_is_done_does_nothing(
    store: Store, backup: Path, new: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied, copy = list[str](), files.copy

    def copy_until_killed(source: Path, target: Path, name: str) -> files.CopiedFile:
        if len(copied) == 2:
            raise OSError("killed")
        copied.append(name)
        return copy(source, target, name)

    with monkeypatch.context() as patch:
        patch.setattr(files, "copy", copy_until_killed)
        with pytest.raises(OSError, match="killed"):
            back(backup, new)
    (new.root / "left of the first attempt").write_text("x")
    (new.root / "of the first").mkdir()
    back(backup, new)
    assert files_of(new) == files_of(store)
    assert not (new.root / "of the first").exists()
    before = {path: path.stat().st_mtime_ns for path in new.root.rglob("*")}
    back(backup, new)
    assert {path: path.stat().st_mtime_ns for path in new.root.rglob("*")} == before


@pytest.mark.parametrize("left", ["a file", "another byte", "its identity", "its lock", "a file is gone"])
def test_a_restored_store_that_a_broker_has_used_is_not_taken_for_the_backup(
    backup: Path, new: Store, left: str
) -> None:
    """A kept claim of an earlier group that began with the same backup: its log goes further, and it has an id."""
    back(backup, new)
    topics = new.root / "config" / "topics.json"
    match left:
        case "a file":
            (new.root / "abort").write_text("")
        case "another byte":
            topics.write_text("[]")
        case "its identity":
            (new.root / "brokerIdentity").write_text("c#orders#7")
        case "its lock":
            (new.root / "lock").write_text("")
        case _:
            topics.unlink()
    with pytest.raises(BackupError, match="a broker has run on it since"):
        back(backup, new)


def test_a_crash_between_the_last_two_writes_of_a_restore_is_begun_anew(store: Store, backup: Path, new: Store) -> None:
    back(backup, new)
    (new.root / "restore-unfinished").write_text(f'{{"brokergroupBackup": "{NAME}"}}')
    (new.root / "config" / "topics.json").write_text("[]")
    back(backup, new)
    assert files_of(new) == files_of(store)
    assert not (new.root / "restore-unfinished").exists()


def test_a_disk_with_data_is_not_written_over(store: Store, backup: Path, tmp_path: Path, new: Store) -> None:
    with pytest.raises(BackupError, match="the claim is not empty, it has brokerIdentity"):
        back(backup, store)
    foreign = Store.at(tmp_path / "foreign", None)
    foreign.root.mkdir()
    for mark in ("", "x", "{}"):
        (foreign.root / "restore-unfinished").write_text(mark)
        (foreign.root / "photos").write_text("dear")
        with pytest.raises(BackupError, match="the claim is not empty, it has photos"):
            back(backup, foreign)
    assert (foreign.root / "photos").read_text() == "dear"
    other = backup.with_name("other")
    (store.root / "config" / "topics.json").write_text("{ }")
    take(store, other, msgspec.structs.replace(KNOWN, name="orders/other"))
    restore(other, new, name="orders/other", implementation="Java")
    with pytest.raises(BackupError, match="has the data of another backup"):
        back(backup, new)


def test_another_implementations_backup_is_refused(backup: Path, new: Store) -> None:
    with pytest.raises(BackupError, match="is of Java brokers, the group's are Python"):
        restore(backup, new, name=NAME, implementation="Python")


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
