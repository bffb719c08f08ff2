"""A volume that was cut from a stopped broker's becomes the first disk of a new group: checked, without identity, or not at all."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import msgspec
import pytest

from brokergroup_operator.backup import __main__ as program
from brokergroup_operator.backup import adoption, files
from brokergroup_operator.backup.adoption import adopt
from brokergroup_operator.backup.copies import check_log
from brokergroup_operator.backup.files import BackupError, Store
from tests.backup.stores import FILE_BYTES, KNOWN, files_of, log_bytes

if TYPE_CHECKING:
    from pathlib import Path

    from brokergroup_operator.api.backup_fields import Manifest

END = FILE_BYTES + len(log_bytes(3, FILE_BYTES))
CONFIRMED = msgspec.structs.replace(KNOWN, confirm_offset=END - 1)


def names_in(store: Store) -> set[str]:
    return {path.name for path in store.root.iterdir()}


def test_a_store_loses_its_identity_and_nothing_else(store: Store) -> None:
    before = files_of(store)
    manifest = adopt(store, CONFIRMED)
    assert (manifest.offset, manifest.store_epoch, manifest.confirm_offset) == (END, 41, END - 1)
    assert manifest.bytes == sum(map(len, before.values()))
    assert files_of(store) == before
    assert names_in(store) == {"commitlog", "config", "epochFileCheckpoint", ".disk-probe", files.RESTORED}
    assert adopt(store, CONFIRMED) == manifest, "the pod was made once more"


def test_a_commit_log_on_a_volume_of_its_own(store: Store, tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    store.commit_log.rename(tmp_path / "log" / "commitlog")
    apart = Store.at(store.root, str(tmp_path / "log"))
    assert adopt(apart, CONFIRMED).offset == END
    assert not apart.is_unfinished


@pytest.mark.parametrize("broken", ["brokerIdentity", "lock"])
def test_a_store_that_a_broker_has_run_on_since_is_refused(store: Store, broken: str) -> None:
    adopt(store, CONFIRMED)
    (store.root / broken).write_text("orders#108")
    with pytest.raises(BackupError, match="a broker has run on the claim since"):
        adopt(store, CONFIRMED)


def test_a_snapshot_of_a_restored_disk_is_adopted_too(store: Store) -> None:
    """Its group was backed up again: the mark of the first restore came along, and says nothing of this one."""
    adopt(store, CONFIRMED)
    (store.root / "brokerIdentity").write_text("orders#108")
    (store.root / "lock").write_text("")
    again = adopt(store, msgspec.structs.replace(CONFIRMED, operation="a later one"))
    assert again.operation == "a later one"
    assert not names_in(store) & {"brokerIdentity", "lock"}


def hole(store: Store) -> None:
    (store.commit_log / f"{FILE_BYTES:020d}").unlink()


def cut(store: Store) -> None:
    (store.commit_log / f"{FILE_BYTES:020d}").write_bytes(bytes(FILE_BYTES))


def without_epochs(store: Store) -> None:
    (store.root / "epochFileCheckpoint").unlink()


def empty(store: Store) -> None:
    files.empty(store.root, frozenset())


@pytest.mark.parametrize(
    ("damage", "known", "why"),
    [
        (hole, CONFIRMED, f"the commit log has no file {FILE_BYTES:020d}"),
        (cut, CONFIRMED, "though it had confirmed"),
        (without_epochs, CONFIRMED, "has messages, and no epochs of them"),
        (lambda _: None, msgspec.structs.replace(CONFIRMED, master_epoch=40), "has epoch 41, and its group's record only 40"),
        (empty, msgspec.structs.replace(CONFIRMED, confirm_offset=0), "the claim is empty: it was made without its dataSource"),
    ],
    ids=["a hole", "cut off", "no epochs", "a later epoch", "an empty volume"],
)  # fmt: skip
def test_no_broker_starts_on_a_store_that_is_not_what_its_backup_knew(
    store: Store, damage: object, known: Manifest, why: str
) -> None:
    assert callable(damage)
    damage(store)
    for _ in range(2):
        with pytest.raises(BackupError, match=why):
            adopt(store, known)
        assert store.is_unfinished
        assert (store.root / files.LOCK).is_dir(), "a Java broker opens it for writing"


@pytest.mark.parametrize("step", ["check_log", "sync_folders", "end_restore"])
def test_an_adoption_that_was_cut_off_is_finished_by_the_next(
    store: Store, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    def killed(*_: object) -> None:
        raise SystemExit(137)

    place = files if step == "sync_folders" else adoption
    with monkeypatch.context() as patch:
        patch.setattr(place, step, killed)
        with pytest.raises(SystemExit):
            adopt(store, CONFIRMED)
    assert store.is_unfinished
    assert adopt(store, CONFIRMED).offset == END
    assert not store.is_unfinished
    check_log(adopt(store, CONFIRMED))


def test_the_pod_says_how_it_ended(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environment = {
        "STORE_DIR": str(store.root),
        "BACKUP_MANIFEST": msgspec.json.encode(CONFIRMED).decode(),
        "TERMINATION_LOG": str(tmp_path / "said"),
    }
    monkeypatch.setattr(os, "environ", environment)
    assert program.main(["adopt"]) == 0
    assert b'"offset":' in (tmp_path / "said").read_bytes()
    hole(store)
    environment["BACKUP_MANIFEST"] = msgspec.json.encode(msgspec.structs.replace(CONFIRMED, operation="x")).decode()
    assert program.main(["adopt"]) == 1
    assert b"has no file" in (tmp_path / "said").read_bytes()
