"""A store as a stopped broker leaves it, and the folder of its backup."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from brokergroup_operator.backup.copies import take
from brokergroup_operator.backup.files import Store
from rocketmq_remoting.message_record import encode_blank
from tests.backup.stores import FILE_BYTES, KNOWN, NAME, log_bytes

if TYPE_CHECKING:
    from pathlib import Path


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


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "claim" / NAME


@pytest.fixture
def backup(store: Store, folder: Path) -> Path:
    """The folder of a whole backup of the store."""
    take(store, folder, KNOWN)
    return folder


@pytest.fixture
def new(tmp_path: Path) -> Store:
    """An empty disk."""
    return Store.at(tmp_path / "new", None)
