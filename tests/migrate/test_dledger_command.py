"""`adopt dledger` as commands, and the room that a copy needs on its disk."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

from brokergroup_operator.backup.copies import ATTEMPT
from brokergroup_operator.migrate.dledger_copy import copy_store, missing_bytes
from brokergroup_operator.migrate.dledger_store import MemberReport, survey
from brokergroup_operator.migrate.stores import Place
from tests.migrate.test_adopt import adopt
from tests.migrate.test_dledger_copy import SENT, copied, messages_in, target_in, write_queues
from tests.support.dledger_files import Sent, change, write_member

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_an_attempt_that_was_cut_off_is_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A claim as large as the log is full of the attempt: the next one deletes it first."""
    write_member(tmp_path / "store", SENT)
    report = survey(Place(tmp_path / "store"))
    target = target_in(tmp_path / "claim")
    free = shutil.disk_usage(tmp_path)._replace(free=0)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: free)
    assert missing_bytes(report, target) > 0
    target.folder.mkdir(parents=True)
    (target.folder / ATTEMPT).write_text('{"brokergroupBackup":"dledger-0"}')
    (target.folder / "commitlog").mkdir()
    (target.folder / "commitlog" / f"{0:020d}").write_bytes(b"x" * 200_000)
    assert missing_bytes(report, target) == 0
    shutil.rmtree(target.folder)
    copy_store(Place(tmp_path / "store"), report, (), target)
    assert missing_bytes(report, target) == 0


def test_room_on_the_disk(tmp_path: Path) -> None:
    write_member(tmp_path / "store", SENT)
    report = survey(Place(tmp_path / "store"))
    assert missing_bytes(report, target_in(tmp_path)) == 0
    free = os.statvfs(tmp_path).f_bavail * os.statvfs(tmp_path).f_frsize
    large = MemberReport(
        member="n0", file_bytes=1, begin=0, end=4 * free, terms=((1, 0),), last_index=0, messages=1, files=()
    )
    assert missing_bytes(large, target_in(tmp_path)) > 0


def test_room_for_many_queues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has a file with few entries: of thousands the copy was cut off, an hour later, for want of room."""
    write_member(tmp_path / "store", [Sent(queue=queue) for queue in range(50)])
    write_queues(tmp_path / "store", 50)
    report = survey(Place(tmp_path / "store"))
    for_the_log = report.end - report.begin + report.file_bytes
    free = shutil.disk_usage(tmp_path)._replace(free=for_the_log)
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda _: free)
        assert missing_bytes(report, target_in(tmp_path / "claim")) > 50 * 4096
    folder = copied(tmp_path / "store", tmp_path / "claim")
    taken = sum(path.lstat().st_blocks * 512 for path in (folder, *folder.rglob("*")))
    assert taken <= report.room_bytes


def test_the_commands_from_stores_to_a_backup(tmp_path: Path) -> None:
    reports = []
    for member, messages in (("n0", SENT), ("n1", SENT), ("n2", SENT[:12])):
        write_member(tmp_path / member, messages, member=member)
        done = adopt("dledger", "check", tmp_path / member)
        assert done.exit_code == 0, done.stderr
        reports.append(tmp_path / f"{member}.json")
        reports[-1].write_text(done.stdout)
    plan = ("copy", *reports, "--members", "3", "--cluster", "DefaultCluster", "--broker-name", "broker-a")
    shown = adopt("dledger", *plan)
    assert (shown.exit_code, "nothing was done" in shown.stdout) == (0, True)
    assert "member n0 (n0.json) is copied: its last entry is 19 of term 1" in shown.stdout
    assert "member n2 is not copied: 8 entries behind" in shown.stdout
    assert not (tmp_path / "claim").exists()
    assert adopt("dledger", *plan, "--yes").exit_code == 2
    where = ("--to", tmp_path / "claim", "--name", "orders/from-dledger", "--yes")
    refused = adopt("dledger", *plan, *where, "--store", tmp_path / "n1")
    assert (refused.exit_code, "is not as its report says" in refused.stderr) == (2, True)
    done = adopt("dledger", *plan, *where, "--store", tmp_path / "n0")
    assert done.exit_code == 0, done.stderr
    assert "folder: orders/from-dledger" in done.stdout
    assert len(messages_in(tmp_path / "claim" / "orders" / "from-dledger" / "commitlog")) == 20


def test_the_commands_say_what_is_wrong(tmp_path: Path) -> None:
    write_member(tmp_path / "n0", SENT)
    done = adopt("dledger", "check", tmp_path / "n0")
    (tmp_path / "n0.json").write_text(done.stdout)
    blocked = adopt("dledger", "copy", tmp_path / "n0.json", "--members", "3", "--cluster", "c", "--broker-name", "b")
    assert (blocked.exit_code, "BLOCKS NoMajority" in blocked.stdout) == (2, True)
    (tmp_path / "bad.json").write_text("{}")
    bad = adopt("dledger", "copy", tmp_path / "bad.json", "--members", "1", "--cluster", "c", "--broker-name", "b")
    assert "expected what `adopt dledger check` printed" in " ".join(bad.stderr.replace("│", " ").split())
    change(tmp_path / "n0", 150, b"\xff" * 20)
    damaged = adopt("dledger", "check", tmp_path / "n0")
    assert (damaged.exit_code, "dledger-n0: the entry at 0 is damaged" in damaged.stderr) == (2, True)
